"""Runs completions through the Kimi-K3 parsers of an installed engine. Not imported by k3stack: run by a Python.

    PYTHON probe.py < corpus.json

Reads {"tools": [...], "cases": [{id, starts_in, tools, tool_choice, raw}, ...]} and prints one JSON object
{"engine", "version", "results": [{id, whole, streamed}, ...]}, each of the two {reasoning, content, tool_calls} or
{error}. Needs the engine in PYTHON, no GPU. Only the standard library and the engine are imported.

The parsers work on text, so a tokenizer that only cuts text stands in for Kimi-K3's: control tokens get their ids,
words and single characters get ids as they come.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import re
import sys
from collections.abc import Callable
from typing import Any

Result = dict[str, Any]

_CONTROL_IDS = {"<|end_of_msg|>": 163586, "<|open|>": 163587, "<|close|>": 163588, "<|sep|>": 163589}
_TOKEN = re.compile(r"<\|(?:open|close|sep|end_of_msg)\|>|\w+|\s+|[^\w\s]")


class _StandInTokenizer:
    """Cuts text into control tokens, words, spaces and single characters."""

    def __init__(self) -> None:
        self._ids = dict(_CONTROL_IDS)
        self.all_special_tokens: list[str] = []
        self.eos_token_id = 163586

    def pieces(self, text: str) -> list[str]:
        return _TOKEN.findall(text)

    def id_of(self, piece: str) -> int:
        return self._ids.setdefault(piece, len(self._ids))

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return [self.id_of(piece) for piece in self.pieces(text)]

    def decode(self, ids: list[int], **_: Any) -> str:
        texts = {number: piece for piece, number in self._ids.items()}
        return "".join(texts[number] for number in ids)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    vocab = property(get_vocab)


class _Collected:
    """Puts streamed deltas together as a client does."""

    def __init__(self) -> None:
        self.reasoning = ""
        self.content = ""
        self.calls: dict[int, dict[str, str]] = {}

    def add_call(self, index: int, name: str | None, arguments: str | None) -> None:
        call = self.calls.setdefault(index, {"name": "", "arguments": ""})
        call["name"] += name or ""
        call["arguments"] += arguments or ""

    def result(self) -> Result:
        calls = [self.calls[index] for index in sorted(self.calls)]
        return {"reasoning": self.reasoning or None, "content": self.content or None, "tool_calls": calls}


def use_vllm_on_cpu() -> None:
    """Let vLLM import on a machine without a GPU; must come before its other imports."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()


class _Vllm:
    """vLLM's parsers, composed as its chat endpoint composes them."""

    def __init__(self, parser: str, plugin: str = "") -> None:
        use_vllm_on_cpu()
        if plugin:
            importlib.import_module(plugin)
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser.parser_manager import ParserManager

        self._request: Any = ChatCompletionRequest
        self._tokenizer = _StandInTokenizer()
        self._parser: Any = ParserManager.get_parser(
            tool_parser_name=parser, reasoning_parser_name=parser, enable_auto_tools=True, model_name="kimi-k3"
        )

    def request(self, case: dict[str, Any], tools: list[Any], stream: bool) -> Any:
        body: dict[str, Any] = {
            "model": "kimi-k3",
            "messages": [{"role": "user", "content": "?"}],
            "chat_template_kwargs": {"thinking": case["starts_in"] == "think"},
            "stream": stream,
        }
        if tools:
            body["tools"] = tools
        if case["tool_choice"] is not None:
            body["tool_choice"] = case["tool_choice"]
        return self._request(**body)

    def parser(self, request: Any) -> Any:
        return self._parser(self._tokenizer, request.tools, chat_template_kwargs=request.chat_template_kwargs)

    def whole(self, case: dict[str, Any], tools: list[Any]) -> Result:
        request = self.request(case, tools, stream=False)
        parser = self.parser(request)
        reasoning, content, calls = parser.parse(
            case["raw"],
            request,
            enable_auto_tools=True,
            model_output_token_ids=self._tokenizer.encode(case["raw"]),
        )
        return {
            "reasoning": reasoning or None,
            "content": content or None,
            "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in calls or []],
        }

    def stream(self, request: Any) -> Callable[[str, bool], Any]:
        """A function that takes the next piece, and whether it is the last, and gives what is sent for it."""
        parser = self.parser(request)
        opener = "think" if request.chat_template_kwargs["thinking"] else "response"
        prompt = self._tokenizer.encode(f'<|open|>message role="assistant"<|sep|><|open|>{opener}<|sep|>')
        try:
            from vllm.entrypoints.openai.chat_completion.stream_processor import ChatStreamProcessor
        except ImportError:  # before 0.33.0 the endpoint called the parser itself

            def parse(piece: str, last: bool) -> Any:
                return parser.parse_delta(piece, self.ids(piece), request, prompt, finished=last)

            return parse
        processor = ChatStreamProcessor(request, parser, enable_auto_tools=True, parser_cls=self._parser)

        def step(piece: str, last: bool) -> Any:
            return processor.step(piece, self.ids(piece), "stop" if last else None, prompt).delta

        return step

    def ids(self, piece: str) -> list[int]:
        """The id of one piece."""
        return [self._tokenizer.id_of(piece)]

    def streamed(self, case: dict[str, Any], tools: list[Any]) -> Result:
        send = self.stream(self.request(case, tools, stream=True))
        collected = _Collected()
        pieces = self._tokenizer.pieces(case["raw"])
        for number, piece in enumerate(pieces):
            delta = send(piece, number == len(pieces) - 1)
            if delta is None:
                continue
            collected.reasoning += delta.reasoning or ""
            collected.content += delta.content or ""
            for call in delta.tool_calls or []:
                collected.add_call(call.index, call.function.name, call.function.arguments)
        return collected.result()


class _Sglang:
    """SGLang's parsers, in the order in which its chat endpoint calls them.

    With tools the endpoint also stops generating at the first close of a tools channel, so nothing comes after it.
    """

    def __init__(self, parser: str) -> None:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        self._name = parser
        self._tool: Any = Tool
        self._calls: Any = FunctionCallParser
        self._reasoning: Any = ReasoningParser
        self._tokenizer = _StandInTokenizer()

    def parsers(self, case: dict[str, Any], tools: list[Any]) -> tuple[Any, Any]:
        reasoning = self._reasoning(
            self._name, stream_reasoning=True, force_reasoning=case["starts_in"] == "think"
        )
        uses_calls = bool(tools) and case["tool_choice"] != "none"
        calls = self._calls([self._tool(**tool) for tool in tools], self._name) if uses_calls else None
        return reasoning, calls

    def generated(self, case: dict[str, Any], call_parser: Any) -> str:
        before, stop, after = case["raw"].partition("<|close|>tools<|sep|>")
        return str(before + stop + ("" if call_parser is not None else after))

    def whole(self, case: dict[str, Any], tools: list[Any]) -> Result:
        reasoning_parser, call_parser = self.parsers(case, tools)
        collected = _Collected()
        reasoning, text = reasoning_parser.parse_non_stream(self.generated(case, call_parser))
        collected.reasoning = reasoning or ""
        calls: list[Any] = []
        if call_parser is not None and call_parser.has_tool_call(text or ""):
            text, calls = call_parser.parse_non_stream(text)
        collected.content = text or ""
        for index, call in enumerate(calls):
            collected.add_call(index, call.name, call.parameters)
        return collected.result()

    def streamed(self, case: dict[str, Any], tools: list[Any]) -> Result:
        reasoning_parser, call_parser = self.parsers(case, tools)
        collected = _Collected()
        for piece in self._tokenizer.pieces(self.generated(case, call_parser)):
            reasoning, text = reasoning_parser.parse_stream_chunk(piece)
            self._add(collected, call_parser, reasoning, text)
        if hasattr(reasoning_parser, "parse_stream_end"):
            self._add(collected, call_parser, *reasoning_parser.parse_stream_end())
        return collected.result()

    def _add(self, collected: _Collected, call_parser: Any, reasoning: str | None, text: str | None) -> None:
        collected.reasoning += reasoning or ""
        calls: list[Any] = []
        if text and call_parser is not None:
            text, calls = call_parser.parse_stream_chunk(text)
        collected.content += text or ""
        for call in calls:
            collected.add_call(call.tool_index, call.name, call.parameters)


ENGINES: dict[str, Callable[..., _Vllm | _Sglang]] = {"vllm": _Vllm, "sglang": _Sglang}


def installed_engine() -> tuple[str, str]:
    """The engine in this Python and its version; empty if there is none."""
    for name in ENGINES:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "", ""


def attempt(
    parse: Callable[[dict[str, Any], list[Any]], Result], case: dict[str, Any], tools: list[Any]
) -> Result:
    """The result; or the error, for an engine may raise anything."""
    try:
        return parse(case, tools)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Read the corpus, print the results. Arguments: another parser than kimi_k3, the module that brings it."""
    output, sys.stdout = sys.stdout, sys.stderr  # engines print to stdout while they load
    logging.disable(logging.CRITICAL)
    name, version = installed_engine()
    corpus = json.load(sys.stdin)
    parser = sys.argv[1] if len(sys.argv) > 1 else "kimi_k3"
    results = []
    if name:
        engine = ENGINES[name](parser, *sys.argv[2:])
        for case in corpus["cases"]:
            tools = corpus["tools"] if case["tools"] else []
            whole, streamed = attempt(engine.whole, case, tools), attempt(engine.streamed, case, tools)
            results.append({"id": case["id"], "whole": whole, "streamed": streamed})
    json.dump({"engine": name, "version": version, "results": results}, output)


if __name__ == "__main__":
    main()
