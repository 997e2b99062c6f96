"""What the parsers' rules say of the real engines: without parsers, and with K2's."""

from __future__ import annotations

import subprocess

import pytest

from k3stack.xtml.engines.doctor import examine
from tests.engines.venvs import engine_python

pytestmark = pytest.mark.engines


@pytest.mark.parametrize(("engine", "release"), [("vllm", "0.33.0"), ("sglang", "0.5.23")])
def test_k2_parsers_find_no_call_and_leave_answers_in_the_reasoning(engine: str, release: str) -> None:
    report = examine(engine_python(engine, release), "kimi_k2")
    assert (len(report.findings), report.right) == (57, 1)
    lost = [fault for finding in report.findings for fault in finding.whole if fault.endswith("calls lost")]
    assert len(lost) > 30 and all(fault.split()[0] == fault.split()[2] for fault in lost)
    plain = next(finding for finding in report.findings if finding.case == "plain-answer")
    assert "content lost" in plain.whole and "markers in reasoning" in plain.whole


def said(engine: str, release: str, script: str) -> str:
    command = [str(engine_python(engine, release)), "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


VLLM = """
import asyncio
from types import SimpleNamespace as Stub
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.online_renderer import OnlineRenderer
tools = [{"type": "function", "function": {"name": "look"}}]
server = Stub(
    renderer=Stub(tokenizer=None), parser=None, use_harmony=False, enable_auto_tools=False,
    create_error_response=lambda text, **more: text,
)
messages = [{"role": "user", "content": "hi"}]
for choice in ("auto", "required", {"type": "function", "function": {"name": "look"}}):
    request = ChatCompletionRequest(model="m", messages=messages, tools=tools, tool_choice=choice)
    print(asyncio.run(OnlineRenderer.render_chat(server, request)))
plain = ChatCompletionRequest(model="m", messages=messages).to_sampling_params(16, {})
print(plain.skip_special_tokens, plain.spaces_between_special_tokens)
"""


def test_vllm_without_parsers_refuses_tools_and_drops_control_tokens() -> None:
    auto, required, named, kept = said("vllm", "0.33.0", VLLM).splitlines()[-4:]
    assert "requires --enable-auto-tool-choice and --tool-call-parser" in auto
    assert "requires --tool-call-parser" in required and "requires --tool-call-parser" in named
    assert kept == "True True"


SGLANG = """
from types import SimpleNamespace as Stub
from sglang.srt.entrypoints.openai.chat_encoding import resolve_chat_encoding_spec
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
config = Stub(architectures=["KimiK3ForConditionalGeneration"], model_type="kimi_k3")
spec = resolve_chat_encoding_spec(hf_config=config, tokenizer=None, tool_call_parser=None)
request = Stub(skip_special_tokens=True, reasoning_effort=None)
OpenAIServingChat._patch_reasoning_skip_special_tokens(Stub(reasoning_parser=None, chat_encoding_spec=spec), request)
print(spec, request.skip_special_tokens)
"""


def test_sglang_without_parsers_keeps_control_tokens() -> None:
    assert said("sglang", "0.5.23", SGLANG).splitlines()[-1] == "kimi_k3 False"
