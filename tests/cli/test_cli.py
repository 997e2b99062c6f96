"""The command line: speed, one JSON form, exit codes, no tracebacks."""

import inspect
import json
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import pytest

from k3stack.checkpoint.convert.attention import AttentionScale
from k3stack.checkpoint.inspect import InspectReport
from k3stack.checkpoint.tiny import write_tiny
from k3stack.cli import convert, options, plan, recipe
from k3stack.cli.asked import Place
from k3stack.cli.spread import spread
from k3stack.plan import KvDtype, Plan, StateDtype, search
from k3stack.recipe.choice import Feature, Goal, Serving
from k3stack.recipe.deployment import Deployment
from k3stack.recipe.render import Form
from k3stack.spec.schemes import Scheme
from k3stack.values import load
from tests.cli.run import k3
from tests.paths import K3 as MOONSHOT
from tests.paths import needs_shared

K3 = [sys.executable, "-c", "from k3stack.cli.main import main; main()"]


def least_seconds(command: list[str]) -> float:
    """Processor time of a whole process, least of 10: what it costs, whatever else the machine is doing."""
    times = []
    for _ in range(10):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        times.append(used.ru_utime + used.ru_stime)
    return min(times)


def loaded_by(code: str) -> set[str]:
    """The top-level packages that running `code` has imported."""
    probe = f"import sys, contextlib\nwith contextlib.suppress(SystemExit):\n    {code}\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    return {name.partition(".")[0] for name in ran.stdout.splitlines()[-1].split()}


HEAVY = {"torch", "numpy", "pydantic", "rich", "yaml", "httpx", "huggingface_hub", "safetensors", "asyncio"}


@pytest.mark.parametrize(
    "code",
    [
        "import k3stack",
        "sys.argv[1:] = ['--help']; from k3stack.cli.main import main; main()",
    ],
)
def test_nothing_heavy_is_loaded_for_help(code: str) -> None:
    assert not loaded_by(code) & HEAVY


@pytest.mark.parametrize("room", ["spec", "formats", "checkpoint.inspect", "plan.plan", "recipe.build"])
def test_no_room_on_the_line_needs_torch(room: str) -> None:
    assert not loaded_by(f"import k3stack.{room}") & {"torch", "starlette", "uvicorn"}


@pytest.mark.slow
def test_help_costs_little_more_than_its_library() -> None:
    """Shared machines differ by a factor of two from hour to hour, so costs are held to that of another import.

    On a quiet machine `k3 --help` takes 80 ms and must stay under 150; benchmarks/startup.py prints wall times.
    """
    library = least_seconds([sys.executable, "-c", "import typer"])
    assert least_seconds([*K3, "--help"]) < 2.2 * library
    assert least_seconds([sys.executable, "-c", "import k3stack"]) < library / 2


@pytest.mark.slow
@needs_shared
def test_inspecting_moonshots_index_costs_little_more_than_reading_it() -> None:
    """On a quiet machine it takes 1.5 s and must stay under 2; reading the JSON alone takes a third of that."""
    reading = f"import gzip, json; json.load(gzip.open({str(MOONSHOT / 'model.safetensors.index.json.gz')!r}))"
    assert least_seconds([*K3, "inspect", str(MOONSHOT)]) < 5 * least_seconds([sys.executable, "-c", reading])


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["inspect", "kimi-k3", "--json"], InspectReport),
        (["plan", "kimi-k3", "--hardware", "b300", "--json"], Plan),
        (["recipe", "kimi-k3", "--hardware", "b300", "--scheme", "nvfp4-mixed", "--json"], Deployment),
    ],
)
def test_json_reads_back_as_the_value(arguments: list[str], kind: type) -> None:
    ran = k3(*arguments)
    assert ran.code == 0
    load(kind, json.loads(ran.out))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--version"], 0),
        ([], 2),
        (["inspect"], 2),
        (["inspect", "nothing"], 2),
        (["plan", "kimi-k3", "--hardware", "b300"], 0),
        (["plan", "kimi-k3", "--hardware", "h200"], 1),
        (["plan", "kimi-k3", "--hardware", "b400"], 2),
        (["plan", "kimi-k3", "--hardware", "b300", "--gpus", "0"], 2),
        (["plan", "kimi-k3", "--hardware", "b300", "--gpus", "7"], 2),
        (["plan", "kimi-k3", "--hardware", "b300", "--tp", "4"], 2),
        (["plan", "kimi-k3", "--hardware", "b300", "--dcp", "3"], 2),
        (["plan", "kimi-k3", "--hardware", "b300", "--context", "1048577"], 2),
        (["plan", "kimi-k3", "--hardware", "b300", "--utilization", "-1"], 2),
        (["plan", "kimi-k3", "--hardware", "b300", "--pp", "9"], 2),
        (["recipe", "kimi-k3", "--hardware", "h200"], 0),
        (["recipe", "kimi-k3", "--hardware", "h200", "--concurrency", "32"], 1),
        (["recipe", "kimi-k3", "--hardware", "b300", "--engine", "sglang", "--concurrency", "512"], 1),
        (["recipe", "kimi-k3", "--hardware", "b300"], 0),
        (["recipe", "kimi-k3"], 2),
        (["recipe", "kimi-k3", "--hardware", "h100"], 2),
        (["recipe", "kimi-k3", "--hardware", "b300", "--gpus", "7"], 2),
        (["recipe", "kimi-k3", "--hardware", "b300", "--engine-version", "9.9"], 2),
        (["recipe", "--link", "engine=vllm"], 2),
        (["recipe", "--from", "echo hello"], 3),
        (["recipe", "--from", "@/nowhere"], 3),
        (["engines", "list"], 0),
        (["engines", "diff", "vllm", "0.28.0", "0.33.0"], 0),
        (["engines", "flag", "sglang", "0.5.23", "no-such-flag"], 2),
        (["tiny", "/proc/x/y"], 2),
    ],
)
def test_exit_codes(arguments: list[str], code: int) -> None:
    ran = k3(*arguments)
    assert ran.code == code, ran
    assert "Traceback" not in ran.err


def test_errors_are_json_too() -> None:
    ran = k3("plan", "kimi-k3", "--hardware", "b400", "--json")
    error = json.loads(ran.out)["error"]
    assert error["kind"] == "NotKnownError" and "b300" in error["next"]


def test_tiny_then_inspect_as_a_user_would(tmp_path: Path) -> None:
    assert k3("tiny", str(tmp_path / "t"), "--scheme", "nvfp4-mixed", "--seed", "3").code == 0
    ran = k3("inspect", str(tmp_path / "t"))
    assert ran.code == 0 and "no fault found" in ran.out


def k3_in_shell(line: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `k3` is ours and a pipe ends as its first failing part does."""
    ours = f"k3() {{ {sys.executable} -c 'from k3stack.cli.main import main; main()' \"$@\"; }}"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {ours}; {line}"], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("k3 plan kimi-k3 --hardware b300 | true", 0),
        ("k3 plan kimi-k3 --hardware h200 | true", 1),
        ("k3 plan kimi-k3 --hardware b300 --json | true", 0),
        ("k3 recipe kimi-k3 --hardware b300 | true", 0),
        ("k3 plan kimi-k3 --hardware b300 >&-", 0),
        ("k3 plan kimi-k3 --hardware b400 --json >&- 2>&-", 2),
    ],
)
def test_a_reader_that_leaves_does_not_change_the_verdict(line: str, code: int) -> None:
    ran = k3_in_shell(line)
    assert ran.returncode == code and ran.stderr == ""


@pytest.mark.parametrize("more", ["", "--json"])
def test_a_full_disk_behind_stdout_is_told(more: str) -> None:
    ran = k3_in_shell(f"k3 plan kimi-k3 --hardware b300 {more} > /dev/full")
    assert ran.returncode == 3
    assert ran.stderr.splitlines() == [
        "error: stdout: No space left on device",
        "next:  Free some space there, or choose another folder.",
    ]


def test_what_the_machine_refuses_names_the_file(tmp_path: Path) -> None:
    ran = k3("inspect", str(tmp_path / ("x" * 300)))
    assert ran.code == 3 and "x" * 300 in ran.err and "next:  Give a shorter name." in ran.err


def test_explain_gives_every_setting_its_source() -> None:
    ran = k3("recipe", "kimi-k3", "--hardware", "b300", "--scheme", "nvfp4-mixed", "--explain")
    assert ran.code == 0
    assert "model card" in ran.out and "2026-08-14" in ran.out


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        (options.SchemeName, Scheme),
        (options.KvName, KvDtype),
        (options.GoalName, Goal),
        (options.ServingName, Serving),
        (options.FeatureName, Feature),
        (plan.GoalName, search.Goal),
        (plan.StateName, StateDtype),
        (recipe.FormName, Form),
        (convert.ScaleName, AttentionScale),
    ],
)
def test_options_name_all_that_their_room_knows(names: type[StrEnum], meant: type[StrEnum]) -> None:
    """`k3 --help` must not import the rooms, so their words stand twice."""
    assert set(names) == set(meant)


def test_a_verb_takes_a_group_of_options_as_one_value() -> None:
    seen: list[object] = []

    @spread
    def verb(*, before: int, place: Place, after: str = "x") -> None:
        seen.extend([before, place, after])

    verb(before=1, docker=True, host="::", port=None, python="p", after="y")
    assert seen == [1, Place(True, "::", None, "p"), "y"]
    assert [*inspect.signature(verb).parameters] == ["before", "docker", "host", "port", "python", "after"]


def test_a_plan_for_hopper_stores_the_cache_as_vllm_can_there() -> None:
    def kv(*more: str) -> str:
        return str(json.loads(k3("plan", "--hardware", *more, "--json").out)["workload"]["kv_dtype"])

    assert kv("h200") == "bf16" and kv("b300") == "fp8" and kv("h200", "--kv-dtype", "fp8") == "fp8"


def test_reserves_of_a_tiny_model_are_not_kept_for_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_tiny(tmp_path / "tiny", Scheme.MXFP4)
    log = Path(__file__).parents[1] / "launch/logs/good-vllm-h200.log"
    ran = k3("plan", str(tmp_path / "tiny"), "--from-log", str(log), "--save")
    assert ran.code == 2 and "smaller than Kimi-K3" in ran.err and not (tmp_path / "k3stack").exists()
    assert k3("plan", str(tmp_path / "tiny"), "--from-log", str(log)).code == 0
