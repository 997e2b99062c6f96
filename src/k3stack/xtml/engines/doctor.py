"""What the parsers of an installed engine get wrong, on our corpus. No GPU needed."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import k3stack
from k3stack.errors import UnavailableError
from k3stack.xtml.engines.corpus import Case, corpus_json, load_corpus
from k3stack.xtml.events import Call, Message
from k3stack.xtml.wire import CONTROL_TOKENS

__all__ = ["Finding", "ParserReport", "differences", "examine"]

_PATIENCE_S = 600


@dataclass(frozen=True, slots=True)
class Finding:
    """What came out wrong for one completion; an empty tuple is right.

    Attributes:
        case: the case's id.
        title: what is special about the completion.
        whole: the faults when the whole text is parsed at once.
        streamed: the faults when it comes token by token.
    """

    case: str
    title: str
    whole: tuple[str, ...]
    streamed: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether both ways gave what they should."""
        return not self.whole and not self.streamed


@dataclass(frozen=True, slots=True)
class ParserReport:
    """All findings for one engine; measured by running its parsers here.

    Attributes:
        engine: its package name.
        version: its release.
        parser: the name of the parsers.
        findings: one for each case of the corpus.
    """

    engine: str
    version: str
    parser: str
    findings: tuple[Finding, ...]

    @property
    def right(self) -> int:
        """How many completions came out right both ways."""
        return sum(finding.right for finding in self.findings)


def examine(python: Path, parser: str = "kimi_k3", plugin: str | None = None) -> ParserReport:
    """Run the corpus through the engine that a Python has installed.

    Args:
        python: the interpreter of the engine's environment.
        parser: the name of its tool and reasoning parser.
        plugin: a module that registers the parser (vLLM only).

    Raises:
        UnavailableError: the interpreter does not run, has no engine, or the engine has no such parser.
    """
    answer = _run_probe(python, [parser, *([plugin] if plugin else [])])
    if not answer["engine"]:
        hint = "Give the python of an environment with vllm or sglang: --python ENV/bin/python"
        raise UnavailableError("no engine is installed there", where=python, hint=hint)
    results = {result["id"]: result for result in answer["results"]}
    findings = tuple(_finding(case, results[case.id]) for case in load_corpus())
    return ParserReport(answer["engine"], answer["version"], parser, findings)


def differences(result: Mapping[str, Any], want: Message) -> tuple[str, ...]:
    """What is wrong with an engine's result, in words.

    Args:
        result: reasoning, content and tool_calls (arguments as text) as a client gets them; or error.
        want: what should have come out.
    """
    if "error" in result:
        return (f"raised {result['error']}",)
    return tuple(_differences(result, want))


def _differences(result: Mapping[str, Any], want: Message) -> Iterator[str]:
    for channel, text, wanted in (
        ("reasoning", result["reasoning"], want.reasoning),
        ("content", result["content"], want.content),
    ):
        if (text or "") != (wanted or ""):
            yield _text_fault(channel, text or "", wanted or "")
    got = result["tool_calls"]
    if len(got) < len(want.tool_calls):
        yield f"{len(want.tool_calls) - len(got)} of {len(want.tool_calls)} calls lost"
    elif len(got) > len(want.tool_calls):
        yield f"{len(got) - len(want.tool_calls)} calls that should not be"
    for call, wanted_call in zip(got, want.tool_calls, strict=False):
        yield from _call_faults(call, wanted_call)


def _text_fault(channel: str, text: str, wanted: str) -> str:
    if any(text.count(token) > wanted.count(token) for token in CONTROL_TOKENS):
        return f"markers in {channel}"
    if not text:
        return f"{channel} lost"
    if not wanted:
        return f"{channel} that should not be"
    if wanted.startswith(text):
        return f"{channel} cut short"
    return f"{channel} differs"


def _call_faults(call: Mapping[str, Any], want: Call) -> Iterator[str]:
    if call["name"] != want.name:
        yield f"call to {call['name']} instead of {want.name}"
    try:
        arguments = json.loads(call["arguments"], parse_constant=_no_json)
    except ValueError:
        yield "arguments are not JSON"
        return
    if not isinstance(arguments, dict):
        yield "arguments are no object"
        return
    yield from (f"argument {key!r} lost" for key in want.arguments if key not in arguments)
    yield from (f"argument {key!r} invented" for key in arguments if key not in want.arguments)
    for key in arguments:
        if key in want.arguments and not _same(arguments[key], want.arguments[key]):
            yield f"argument {key!r} differs"


def _same(value: object, wanted: object) -> bool:
    return json.dumps(value, sort_keys=True) == json.dumps(wanted, sort_keys=True)


def _no_json(name: str) -> object:
    raise ValueError(name)


def _finding(case: Case, result: Mapping[str, Any]) -> Finding:
    whole, streamed = differences(result["whole"], case.want), differences(result["streamed"], case.want)
    return Finding(case.id, case.title, whole, streamed)


def _run_probe(python: Path, arguments: list[str]) -> dict[str, Any]:
    probe = resources.files("k3stack.xtml.engines").joinpath("probe.py")
    with resources.as_file(probe) as script, _our_package_alone() as folder:
        try:
            done = subprocess.run(
                [str(python), str(script), *arguments],
                input=corpus_json(),
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
                env={**os.environ, "PYTHONPATH": folder} if len(arguments) > 1 else None,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            hint = "Give the python of an environment with vllm or sglang"
            raise UnavailableError(f"cannot be run: {error}", where=python, hint=hint) from error
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise UnavailableError(f"the engine's parsers do not load: {last}", where=python)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@contextmanager
def _our_package_alone() -> Iterator[str]:
    """A folder with k3stack and nothing else: a plugin is found, and no library of the engine is shadowed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "k3stack").symlink_to(Path(k3stack.__file__).parent, target_is_directory=True)
        yield folder
