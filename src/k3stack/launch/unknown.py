"""What can be said of a failure that nobody knows: its first error, the part that it was raised in, its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from k3stack.launch.loglines import LogLines, bare

__all__ = ["Part", "first_error", "kind_of", "part_of", "places", "raised_at", "said_at"]

_TRACEBACK_LINES = 40

_ERROR_LINE = re.compile(
    r"^(?!\S*\bCancelledError\b)(?:[a-zA-Z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Timeout|Refused|Interrupt)\b(?::.*)?$|"
    r"^[\w./-]+: error: .*|"
    r"^(?:fatal|panic|thread '[^']*' panicked)\b.*",
    re.MULTILINE,
)

_RAISED = re.compile(r"(?!\S*\bCancelledError\b)(?:(?:[A-Za-z_]\w*\.)+\w+(?:: .*)?$|[A-Z]\w+(?:: .*)?$)")
"""An exception whose name does not say that it is one, where a traceback stands before it."""

_ERROR_LEVEL = re.compile(r"^(?:\([^)]*\) *)*(?:\[[^\]]*\] *)?(?:ERROR|CRITICAL|FATAL)\b[: ]|^[EF]\d{4,8} [\d:.]+ ")

_PASSED_ON = re.compile(r"^RuntimeError: Worker failed with error '(.+)', please check the stack trace above.*$")
"""What the engine's core says of an error in a worker, whose own log is another."""

_NO_REASON = re.compile(
    r"\s|Traceback|Dumping |.* (?:failed to start|hit an exception|failed)\.$|.*[Ss]tack trace|[\^~ ]*$"
)

_PLACE_IN_CODE = re.compile(r'  File "(?:.*/(?:site|dist)-packages/)?([^"]+)", line (\d+), in (\S+)')

_KINDS = (
    (
        r"(?:Attribute|Type|Key|Index|Name|UnboundLocal|ZeroDivision)Error\b",
        "It is a fault in the code itself, or packages that do not belong together: another release, or an unchanged "
        "image of one, is likelier to help than other settings.",
    ),
    (
        r"AssertionError(?: at |$)|assert ",
        "It is a check inside the engine that failed: a fault of this release, or settings that it does not expect.",
    ),
    (
        r"(?:Value|Assertion|NotImplemented|Runtime|Validation)(?:Error)?: \S",
        "Its own words say what was refused.",
    ),
    (r"(?:\w*Timeout\w*|TimeoutError)\b", "It waited for another process in vain: read the logs of the others."),
    (r"(?:OSError|IOError|FileNotFoundError|MemoryError|BlockingIOError)\b", "The operating system refused it."),
)

_KINDS_COMPILED = tuple((re.compile(rf"(?:[\w]+\.)*{kind}"), words) for kind, words in _KINDS)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an engine.

    Attributes:
        name: as it stands behind "in".
        advice: what to try when it fails and nothing more is known; a sentence.
    """

    name: str
    advice: str


_PARTS = (
    (
        r"(?:^|/)aiter/|_aiter_ops",
        "AITER, AMD's kernels",
        "Start once with VLLM_ROCM_USE_AITER=0 (SGLang, SGLANG_USE_AITER=0) to see whether the rest works.",
    ),
    (
        r"deep_?gemm",
        "DeepGEMM, kernels compiled at the start",
        "Start once with VLLM_USE_DEEP_GEMM=0 (SGLang, SGLANG_ENABLE_JIT_DEEPGEMM=0) to see whether the rest works.",
    ),
    (
        r"deep_?ep\b|deep_ep/|all2all|token_dispatcher",
        "the sending of tokens to experts on other GPUs",
        "Take another --all2all-backend (SGLang, --moe-a2a-backend none), and the same image on every node.",
    ),
    (
        r"(?:^|/)(?:nixl|mooncake|lmcache)\w*/|kv_transfer/|srt/disaggregation/|kv_offload/|hicache|srt/mem_cache/storage",
        "the code that sends the cache to other servers or to the host",
        "Start once without --kv-transfer-config (SGLang, --disaggregation-mode, --enable-hierarchical-cache).",
    ),
    (
        r"spec_decode/|srt/speculative/",
        "speculative decoding",
        "Start once without the draft to see whether the rest works.",
    ),
    (
        r"tool_parsers?/|function_call/|vllm/reasoning/|srt/parser/|vllm/parser/",
        "the parser of tool calls or reasoning",
        "Compare --tool-call-parser and --reasoning-parser with those that `k3 recipe` writes.",
    ),
    (
        r"structured_output/|xgrammar/|llguidance|outlines|srt/constrained/",
        "structured output",
        "Try the same request without a schema, then another grammar backend.",
    ),
    (
        r"flashinfer",
        "FlashInfer's kernels",
        "Take another --attention-backend or --moe-backend; the packages flashinfer-python, -cubin and -jit-cache must "
        "be of one version, and ~/.cache/flashinfer may be deleted.",
    ),
    (
        r"fused_moe|/moe/|moe_runner",
        "the experts' kernels",
        "Take the --moe-backend (SGLang, --moe-runner-backend) that `k3 recipe` writes for this GPU and scheme.",
    ),
    (
        r"model_loader/|in load_weights$|weight_utils|weight_loader$|safetensors",
        "the loading of the weights",
        "Run `k3 inspect` on the checkpoint; if it is sound, take a release that `k3 recipe` names for this scheme.",
    ),
    (
        r"quantization/|compressed_tensors|modelopt",
        "the code of the quantisation",
        "Compare --quantization and the release with those that `k3 recipe` writes for this scheme.",
    ),
    (
        r"attention/|attention_registry|flash_attn|flash_mla|/mla\.py|/kda|/fla/",
        "the attention's kernels",
        "Take the --attention-backend and --kv-cache-dtype that `k3 recipe` writes for this GPU.",
    ),
    (
        r"torch/_inductor/|torch/_dynamo/|vllm/compilation/|torch/_functorch/|torch/fx/",
        "the compilation of the model",
        "Start once with --enforce-eager (SGLang, without --enable-torch-compile); delete torch_compile_cache in "
        "VLLM_CACHE_ROOT.",
    ),
    (r"(?:^|/)triton/", "a Triton kernel", "Take the newest image; delete TRITON_CACHE_DIR (~/.triton)."),
    (
        r"torch/distributed/|pynccl|parallel_state|device_communicators/|custom_all_reduce|symm_mem",
        "the talk between the ranks",
        "Start again with NCCL_DEBUG=INFO, and run `k3 preflight` on every node.",
    ),
    (r"(?:^|/)ray/|ray_\w*executor", "Ray", "See `ray status` on every node; or start without Ray (`k3 recipe`)."),
    (
        r"huggingface_hub/|transformers/|transformers_utils/|transformers_modules/|tokeniz",
        "the reading of the model's small files",
        "Run `k3 doctor` on the checkpoint's folder; transformers must be of the version in the engine's image.",
    ),
    (
        r"multimodal/|multimodal_gen|/processing\.py|image_process|video",
        "the reading of pictures",
        "Try the same request without pictures; start once with --language-model-only to see whether the rest works.",
    ),
    (
        r"vllm/config/|arg_utils|server_args|arg_groups|srt/configs/",
        "the checking of the settings",
        "Take the settings that `k3 recipe` writes for this release.",
    ),
    (
        r"cuda_?graph|in capture",
        "the capture of CUDA graphs",
        "Start once with --enforce-eager (SGLang, --disable-cuda-graph) to see whether the rest works.",
    ),
    (
        r"mem_cache/|kv_cache|block_pool|radix_cache",
        "the management of the cache",
        "Start once with --no-enable-prefix-caching (SGLang, --disable-radix-cache) to see whether the rest works.",
    ),
    (r"sample/|sampler|sampling", "the sampler", "Try the same request at temperature 0 without top_k and penalties."),
    (
        r"(?:vllm|srt)/entrypoints/|fastapi/|starlette/|uvicorn/",
        "the handling of a request",
        "Send the same request alone (`k3 check` sends such): the server goes on after such an error.",
    ),
    (
        r"(?:vllm|srt|model_executor)/models/\w",
        "the model's own code",
        "Take a release that `k3 recipe` names for this checkpoint, with its settings.",
    ),
)

_COMPILED = tuple((re.compile(path), Part(name, advice)) for path, name, advice in _PARTS)


def part_of(places: Iterable[str]) -> Part | None:
    """The part that an error lies in.

    Args:
        places: "FILE in FUNCTION" of its traceback, the innermost first; the first that belongs to a part decides.
    """
    for place in places:
        for pattern, part in _COMPILED:
            if pattern.search(place):
                return part
    return None


def kind_of(error: str) -> str:
    """What the class of an error says about it, as a sentence; empty where it says nothing."""
    return next((words for kind, words in _KINDS_COMPILED if kind.match(error)), "")


def first_error(log: LogLines, is_echo: Callable[[str], bool], by_level: bool = True) -> int | None:
    """The first line with the form of an error, past the log's prefixes; or else the first at the level of one.

    Args:
        log: the lines.
        is_echo: whether a line only says that something else failed; such a one is no first error.
        by_level: whether a line that has only the level of an error counts, if there is none of its form.
    """
    begin = max(1, log.number(max(log.ready_at, 0)))
    lines = range(begin, len(log.starts) + 1)
    for number in lines:
        said = bare(log.line(number)).strip()
        if (_ERROR_LINE.match(said) or _ends_traceback(log, number, said)) and not is_echo(said):
            return number
    return next((one for one in lines if by_level and _is_of_error_level(log.line(one), is_echo)), None)


def _ends_traceback(log: LogLines, number: int, said: str) -> bool:
    return _RAISED.match(said) is not None and any(
        _PLACE_IN_CODE.match(bare(line)) for line in log.before(number, 3).split("\n")
    )


def _is_of_error_level(line: str, is_echo: Callable[[str], bool]) -> bool:
    said = bare(line)
    return _ERROR_LEVEL.match(line) is not None and not _NO_REASON.match(said) and not is_echo(said)


def said_at(log: LogLines, number: int) -> str:
    """What an error says; where it was raised, when it says nothing."""
    said = _PASSED_ON.sub(r"\1", bare(log.line(number)).strip())
    return f"{said}{raised_at(log, number) if said.isidentifier() else ''}"[:400]


def places(log: LogLines, number: int) -> Iterator[str]:
    """The places of an error's traceback, the innermost first."""
    for line in reversed(log.before(number, _TRACEBACK_LINES).split("\n")):
        if match := _PLACE_IN_CODE.match(bare(line)):
            yield f"{match.group(1)} in {match.group(3)}"


def raised_at(log: LogLines, number: int) -> str:
    """Where an error without words was raised: the last place of its traceback, and what stands there."""
    lines = [bare(one) for one in log.before(number, _TRACEBACK_LINES).split("\n")]
    for at in range(len(lines) - 1, -1, -1):
        if match := _PLACE_IN_CODE.match(lines[at]):
            source = next((one.strip() for one in lines[at + 1 : at + 2] if one.startswith("    ")), "")
            return f" at {match.group(1)}:{match.group(2)} in {match.group(3)}{': ' if source else ''}{source}"
    return ""
