"""Our corpus and our plugin in the real engines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.engines.environments import engine_python

import k3stack
from k3stack.xtml.engines import probe
from k3stack.xtml.engines.doctor import ParserReport, examine

pytestmark = pytest.mark.engines

PLUGIN = "k3stack.xtml.engines.vllm_plugin"
SHARED_CASES = Path(__file__).parents[3] / "shared" / "data" / "xtml_cases.json"


def faults(report: ParserReport, case: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    finding = next(finding for finding in report.findings if finding.case == case)
    return finding.whole, finding.streamed


def test_vllm_loses_and_mixes_up_calls() -> None:
    report = examine(engine_python("vllm-0.33.0"))
    assert (report.engine, report.version) == ("vllm", "0.33.0")
    assert faults(report, "two-calls") == ((), ())
    lost_and_mixed = ("1 of 2 calls lost", "argument 'to' invented")
    assert faults(report, "call-unclosed") == (lost_and_mixed, lost_and_mixed)
    assert faults(report, "number-nan") == (("arguments are not JSON",), ("arguments are not JSON",))


def test_sglang_shows_markup_to_the_client() -> None:
    report = examine(engine_python("sglang-0.5.23"))
    assert (report.engine, report.version) == ("sglang", "0.5.23")
    assert faults(report, "two-calls") == ((), ())
    assert faults(report, "choice-none") == (("markers in content",), ("markers in content",))


def test_our_plugin_gets_everything_right_that_a_stream_can() -> None:
    report = examine(engine_python("vllm-0.33.0"), parser="k3stack", plugin=PLUGIN)
    wrong = {finding.case: (finding.whole, finding.streamed) for finding in report.findings if not finding.right}
    # The reasoning that turns out to be the answer has been sent when that shows; it comes again as content.
    already_sent = ((), ("reasoning that should not be",))
    assert wrong == {"think-skipped": already_sent, "think-skipped-calls": already_sent}


@pytest.mark.skipif(not SHARED_CASES.exists(), reason="the published cases are not beside this repository")
@pytest.mark.parametrize(("engine", "name"), [("vllm", "vllm-0.33.0"), ("sglang", "sglang-0.5.23")])
def test_the_probe_sees_what_others_saw(engine: str, name: str) -> None:
    cases: list[dict[str, Any]] = json.loads(SHARED_CASES.read_text())
    tools = next(case["tools"] for case in cases if case["tools"])
    corpus = {"tools": tools, "cases": [{**case, "tools": bool(case["tools"])} for case in cases]}
    command = [str(engine_python(name)), probe.__file__]
    done = subprocess.run(command, input=json.dumps(corpus), capture_output=True, text=True, check=True)
    results = {result["id"]: result for result in json.loads(done.stdout)["results"]}
    for case in cases:
        seen = results[case["id"]]
        assert seen["whole"] == case["got"][f"{engine}_full"], case["title"]
        assert seen["streamed"] == case["got"][f"{engine}_stream"], case["title"]


START_UP = """
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()
from vllm.entrypoints.common.cli_args import init_parser_plugin, make_arg_parser, validate_api_server_args
from vllm.parser.parser_manager import ParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser
arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(
    "MODEL --enable-auto-tool-choice --tool-parser-plugin {plugin} --tool-call-parser k3stack"
    " --reasoning-parser-plugin {plugin} --reasoning-parser k3stack".split()
)
init_parser_plugin(arguments)
validate_api_server_args(arguments)
parser = ParserManager.get_parser("k3stack", "k3stack", enable_auto_tools=True)
from k3stack.xtml.engines.probe import _Vllm
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
case = {"starts_in": "think", "tool_choice": "required"}

def grammar(name):
    engine = _Vllm(name)
    request = engine.request(case, [tool], stream=True)
    return engine.parser(request).adjust_request(request).structured_outputs.structural_tag

assert grammar("k3stack") == grammar("kimi_k3") != None
print(parser.tool_parser_cls.__name__, parser.reasoning_parser_cls.__name__)
"""


def test_vllm_takes_the_plugin_and_keeps_its_grammars() -> None:
    command = [str(engine_python("vllm-0.33.0")), "-c", START_UP.replace("{plugin}", PLUGIN)]
    source = str(Path(k3stack.__file__).parents[1])
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": source, "PATH": ""})
    assert done.stdout.split()[-2:] == ["K3StackToolParser", "K3StackReasoningParser"], done.stderr[-2000:]
