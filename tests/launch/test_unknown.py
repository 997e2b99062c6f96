"""An error that nobody knows: which line it is, in which part of the engine it lies, and what its class says."""

import re
from pathlib import Path

import pytest

from k3stack import cli
from k3stack.engines.releases import engines, latest, release
from k3stack.launch.doctor import log_findings
from k3stack.launch.findings import Status
from k3stack.launch.recognise import recognise
from k3stack.launch.unknown import _COMPILED, kind_of, part_of

WORKER = "(Worker_TP1 pid=1279) ERROR 06-19 21:51:00 [multiproc_executor.py:839] "
CORE = "(EngineCore_DP6 pid=16998) "
SITE = "/opt/venv/lib/python3.12/site-packages"


def raised(prefix: str, path: str, function: str, source: str, error: str) -> str:
    """A traceback of the engine, with its echo."""
    lines = (
        "Traceback (most recent call last):",
        f'  File "{SITE}/vllm/v1/executor/multiproc_executor.py", line 837, in worker_main',
        "    worker = WorkerProc(*args, **kwargs)",
        f'  File "{SITE}/{path}", line 41, in {function}',
        f"    {source}",
        f'  File "{SITE}/torch/nn/modules/module.py", line 1931, in __getattr__',
        "    raise AttributeError(",
        error,
    )
    echo = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."
    return "\n".join([*(prefix + line for line in lines), echo])


@pytest.mark.parametrize("prefix", [WORKER, CORE, ""], ids=["worker", "core", "bare"])
@pytest.mark.parametrize(
    ("path", "function", "part"),
    [
        ("vllm/model_executor/layers/fused_moe/layer.py", "forward_impl", "the experts' kernels"),
        ("sglang/srt/layers/attention/nsa/nsa_indexer.py", "_get_topk_ragged", "the attention's kernels"),
        ("aiter/ops/gemm_op_a8w8.py", "gemm", "AITER, AMD's kernels"),
        ("vllm/v1/core/single_type_kv_cache_manager.py", "cache_blocks", "the management of the cache"),
        ("ray/experimental/channel/accelerator_channel.py", "destroy", "Ray"),
        ("vllm/models/kimi_k3/nvidia/model.py", "load_weights", "the loading of the weights"),
        ("vllm/models/kimi_k3/nvidia/model.py", "forward", "the model's own code"),
    ],
)
def test_the_part_is_told_from_the_innermost_place_that_belongs_to_one(
    prefix: str, path: str, function: str, part: str
) -> None:
    found = recognise(raised(prefix, path, function, "x = y.z", "AttributeError: 'Y' object has no attribute 'z'"))
    assert not [cause for cause in found.causes if not cause.symptom]
    assert found.first_error == "AttributeError: 'Y' object has no attribute 'z'"
    assert found.part is not None and found.part.name == part
    finding = list(log_findings(found))[-1]
    assert finding.title.endswith(f", in {part}") and found.part.advice in finding.fix


@pytest.mark.parametrize("prefix", [WORKER, CORE, ""], ids=["worker", "core", "bare"])
def test_an_error_without_words_shows_where_it_was_raised(prefix: str) -> None:
    text = raised(prefix, "vllm/v1/worker/block_table.py", "append_row", "assert a == b", "AssertionError")
    text = text.replace(f'{prefix}  File "{SITE}/torch/nn/modules/module.py", line 1931, in __getattr__\n', "")
    text = text.replace(f"{prefix}    raise AttributeError(\n", "")
    found = recognise(text)
    assert found.first_error == "AssertionError at vllm/v1/worker/block_table.py:41 in append_row: assert a == b"
    assert "check inside the engine" in kind_of(found.first_error)


def test_what_a_traceback_quotes_of_the_source_is_no_cause() -> None:
    """The line of source stands four columns in, behind the name of a process too."""
    source = 'raise ValueError("CUDA out of memory. Tried to allocate")'
    for prefix in (WORKER, CORE, ""):
        text = raised(prefix, "vllm/v1/worker/block_table.py", "f", source, "ValueError: the flux is not inverted")
        assert not [cause for cause in recognise(text).causes if not cause.symptom], prefix


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ERROR 09-01 02:20:44 [x.py:458] The flux is not inverted\n", "The flux is not inverted"),
        ("(Worker pid=1) ERROR 09-01 02:20:44 [x.py:458] WorkerProc failed to start.\n", None),
        ("WARNING 09-01 02:20:44 [x.py:458] The flux is not inverted\n", None),
        (
            '  File "/a/b.py", line 3, in f\n    g()\nodd.errors.FluxInverted: by two\n',
            "odd.errors.FluxInverted: by two",
        ),
        ("odd.errors.FluxInverted: by two\n", None),
        (
            f"{CORE}RuntimeError: Worker failed with error 'assert a == b', please check the stack trace above\n",
            "assert a == b",
        ),
    ],
)
def test_the_first_error_is_found_by_its_level_or_its_traceback_where_its_name_says_nothing(
    text: str, said: str | None
) -> None:
    assert recognise(text).first_error == said


def test_an_error_by_its_form_goes_before_one_by_its_level() -> None:
    text = "ERROR 09-01 02:20:44 [x.py:4] It went wrong\n" + raised(WORKER, "a/b.py", "f", "g()", "KeyError: 'flux'")
    assert recognise(text).first_error == "KeyError: 'flux'"


def test_nothing_is_said_of_what_belongs_to_no_part() -> None:
    assert part_of(["/opt/own/program.py in main", "runpy.py in _run_code"]) is None
    assert kind_of("odd.errors.FluxInverted: by two") == ""
    assert kind_of("ray.exceptions.SomeTimeoutError: x").startswith("It waited")


def test_an_error_of_a_request_is_told_and_is_no_failure() -> None:
    ready = "(APIServer pid=4) INFO:     Application startup complete.\n"
    text = ready + raised(WORKER, "vllm/entrypoints/openai/serving.py", "render", "x[0]", "IndexError: list index")
    found = recognise(text.rsplit("\n", 1)[0])
    assert not found.failed and found.of_a_request == "IndexError: list index"
    names = {finding.id: finding.status for finding in log_findings(found)}
    assert names == {"log": Status.PASS, "request-error": Status.WARN}


@pytest.mark.parametrize(
    "line",
    [
        "asyncio.exceptions.CancelledError: Cancelled via cancel scope 7f",
        "(APIServer pid=4) ERROR 11-20 09:15:01 [api.py:9] The model `x` does not exist.",
    ],
)
def test_what_a_client_did_is_no_error_of_a_request(line: str) -> None:
    found = recognise(f"(APIServer pid=4) INFO:     Application startup complete.\n{line}\n")
    assert not found.failed and found.of_a_request is None


def test_what_is_advised_exists() -> None:
    """Every flag is one that the newest release of an engine takes; every verb of ours is there."""
    newest = [release(engine, latest(engine)) for engine in engines()]
    for _, part in _COMPILED:
        for flag in re.findall(r"--[a-z][\w-]+", part.advice):
            assert any(one.flag(flag) for one in newest), (flag, part.name)
        for variable in re.findall(r"\b(?:VLLM|SGLANG)_\w+", part.advice):
            assert any(variable in one.variables for one in newest), (variable, part.name)
        for verb in re.findall(r"`k3 (\w+)`", part.advice):
            assert (Path(cli.__file__).parent / f"{verb}.py").is_file(), verb
