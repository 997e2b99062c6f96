"""`k3 doctor parsers`: how results are judged, and what it says without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k3stack.cli.main import app
from k3stack.errors import UnavailableError
from k3stack.xtml import Call, Message
from k3stack.xtml.engines import doctor, probe
from k3stack.xtml.engines.corpus import corpus_json, load_corpus

WANT = Message("why", "ok", (Call("f", {"a": 1, "b": "x"}),))


def result(**changed: object) -> dict[str, object]:
    calls = [{"name": "f", "arguments": '{"b": "x", "a": 1}'}]
    return {"reasoning": "why", "content": "ok", "tool_calls": calls, **changed}


def call(arguments: str, name: str = "f") -> list[dict[str, str]]:
    return [{"name": name, "arguments": arguments}]


@pytest.mark.parametrize(
    ("changed", "faults"),
    [
        ({}, ()),
        ({"content": None}, ("content lost",)),
        ({"content": "o"}, ("content cut short",)),
        ({"content": "ok<|close|>"}, ("markers in content",)),
        ({"reasoning": "other"}, ("reasoning differs",)),
        ({"tool_calls": []}, ("1 of 1 calls lost",)),
        ({"tool_calls": call("{}") * 2}, ("1 calls that should not be", "argument 'a' lost", "argument 'b' lost")),
        ({"tool_calls": call('{"a": NaN}')}, ("arguments are not JSON",)),
        ({"tool_calls": call('{"a": 1, "b": "x", "c": 2}')}, ("argument 'c' invented",)),
        ({"tool_calls": call('{"a": true, "b": "x"}')}, ("argument 'a' differs",)),
        ({"tool_calls": call('{"a": 1, "b": "x"}', "g")}, ("call to g instead of f",)),
        ({"error": "KeyError: 'x'"}, ("raised KeyError: 'x'",)),
    ],
)
def test_faults_in_words(changed: dict[str, object], faults: tuple[str, ...]) -> None:
    assert doctor.differences(result(**changed), WANT) == faults


def test_our_own_results_have_no_faults() -> None:
    for case in load_corpus():
        message = case.parse()
        calls = [{"name": made.name, "arguments": made.arguments_json} for made in message.tool_calls]
        got = {"reasoning": message.reasoning, "content": message.content, "tool_calls": calls}
        assert doctor.differences(got, case.want) == ()


def test_a_python_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["doctor", "parsers", "--python", sys.executable])
    assert isinstance(done.exception, UnavailableError)
    assert "no engine is installed there" in str(done.exception)


def test_a_python_that_is_not_there() -> None:
    with pytest.raises(UnavailableError, match="cannot be run"):
        doctor.examine(Path("/no/such/python"))


def test_findings_as_json_and_as_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = (doctor.Finding("a", "One call", (), ()), doctor.Finding("b", "Two calls", ("content lost",), ()))
    report = doctor.ParserReport("vllm", "0.0.1", "kimi_k3", findings)
    monkeypatch.setattr(doctor, "examine", lambda *_: report)
    done = CliRunner().invoke(app, ["doctor", "parsers", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)[0]["findings"][1]["whole"] == ["content lost"]
    table = CliRunner().invoke(app, ["doctor", "parsers"]).stdout
    assert "1 of 2 right" in table and "content lost" in table and "One call" not in table
    assert "One call" in CliRunner().invoke(app, ["doctor", "parsers", "--all"]).stdout


def test_the_probe_needs_nothing_but_python() -> None:
    # Without PYTHONPATH, site-packages and the script's folder nothing but the standard library is there.
    command = [sys.executable, "-I", "-S", probe.__file__]
    done = subprocess.run(command, input=corpus_json(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"engine": "", "version": "", "results": []}
