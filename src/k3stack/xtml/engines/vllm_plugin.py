"""k3stack's parser inside vLLM, opt-in: a reasoning parser and a tool parser, both called `k3stack`.

    vllm serve ... --enable-auto-tool-choice \\
        --tool-parser-plugin k3stack.xtml.engines.vllm_plugin --tool-call-parser k3stack \\
        --reasoning-parser-plugin k3stack.xtml.engines.vllm_plugin --reasoning-parser k3stack

Needs k3stack in vLLM's environment, and both parsers: with thinking on the reasoning parser reads the whole
message, with thinking off the tool parser does. vLLM's structured output, token counting and request changes stay
those of its own Kimi-K3 parsers, which these derive from.

Streaming cannot take back what was sent. Reasoning is sent as it comes. Content and calls are too, once reasoning
has its close; in a message where it has none they wait for the end, because a close may still come. If the end
shows that the reasoning was the answer, it is sent again as content.

Written for vLLM 0.33.0. Its Rust front end ignores Python plugins.
"""

# mypy: disable-error-code="import-not-found, misc, no-any-unimported"

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

if importlib.util.find_spec("vllm.entrypoints.openai.chat_completion.stream_processor") is None:
    # Older releases send every call that a parser finds, also with tool_choice none, and import from elsewhere.
    raise ImportError(
        f"k3stack's plugin needs vLLM 0.33.0 or newer, this is {importlib.metadata.version('vllm')}. "
        "Use --tool-call-parser kimi_k3 and put k3 guard in front"
    )

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.kimi_k3_reasoning_parser import KimiK3ReasoningParser
from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.kimi_k3_tool_parser import KimiK3ToolParser

from k3stack.xtml import Call, Channel, ContentDelta, Correction, Event, Message, Parser, ReasoningDelta
from k3stack.xtml.events import CallEnd

__all__ = ["K3StackReasoningParser", "K3StackToolParser", "Stream"]

NAME = "k3stack"

logger = logging.getLogger("vllm.k3stack")


class ParsedContent(str):
    """The content of a message that the reasoning parser has read as a whole, on its way to the tool parser."""

    message: Message


class Stream:
    """One streamed message: text in, the deltas to send out.

    Args:
        starts_in: the channel that the prompt left open.
        tools: the declared names; None: not known here, vLLM drops the calls of requests without tools.
        tool_choice: the request's.
    """

    def __init__(self, starts_in: Channel, tools: Iterable[str] | None, tool_choice: object = "auto") -> None:
        self._parser = Parser(starts_in, tools=tools, tool_choice=tool_choice)
        self._reasoning_sent = 0  # characters
        self._calls_sent = 0
        self._content: list[str] = []
        self._calls: list[Call] = []

    def feed(self, text: str) -> DeltaMessage | None:
        """The delta for one more piece of text."""
        return self._delta(self._parser.feed(text))

    def finish(self) -> DeltaMessage | None:
        """The delta for what was still held back."""
        delta = self._delta(self._parser.finish())
        _report(self._parser.message)
        return delta

    def _delta(self, events: list[Event]) -> DeltaMessage | None:
        reasoning: list[str] = []
        for event in events:
            match event:
                case ReasoningDelta(text):
                    reasoning.append(text)
                case ContentDelta(text):
                    self._content.append(text)
                case CallEnd(_, call):
                    self._calls.append(call)
                case Correction(message):
                    # Reasoning that was sent stays; the rest of the corrected reasoning follows it.
                    reasoning = [(message.reasoning or "")[self._reasoning_sent :]]
                    self._content, self._calls = [message.content or ""], []
                case _:
                    pass
        thought = "".join(reasoning)
        self._reasoning_sent += len(thought)
        content, calls = self._take_content_and_calls() if self._parser.settled else ("", [])
        if not thought and not content and not calls:
            return None
        return DeltaMessage(reasoning=thought or None, content=content or None, tool_calls=calls)

    def _take_content_and_calls(self) -> tuple[str, list[DeltaToolCall]]:
        content, calls = "".join(self._content), self._calls
        self._content, self._calls = [], []
        first = self._calls_sent
        self._calls_sent += len(calls)
        return content, [
            DeltaToolCall(
                index=first + number,
                id=ToolCall(function=FunctionCall(name=call.name, arguments="")).id,
                type="function",
                function=DeltaFunctionCall(name=call.name, arguments=call.arguments_json),
            )
            for number, call in enumerate(calls)
        ]


class K3StackReasoningParser(KimiK3ReasoningParser):
    """Reads a whole message that starts in the think channel."""

    engine_based_streaming = True

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self._stream: Stream | None = None

    def has_engine_confirmed_reasoning_end(self) -> bool:
        """Never: this parser goes on behind the reasoning, because only it knows where that ends."""
        return False

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str]:
        """Parse the whole message; the calls travel with the content to the tool parser."""
        channel: Channel = "think" if self._thinking_enabled else "response"
        message = _parse(model_output, channel, request)
        content = ParsedContent(message.content or "")
        content.message = message
        return message.reasoning, content

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """Parse the next piece; the delta may hold content and calls too."""
        if self._stream is None:
            self._stream = Stream("think", None)
        return self._stream.feed(delta_text)

    def finish_streaming(self) -> DeltaMessage | None:
        """The rest, when the stream ends."""
        return None if self._stream is None else self._stream.finish()


class K3StackToolParser(KimiK3ToolParser):
    """Hands out the calls that the reasoning parser found; reads messages that start in the response channel."""

    engine_based_streaming = True

    def __init__(self, tokenizer: Any, tools: Any = None) -> None:
        super().__init__(tokenizer, tools)
        self._stream: Stream | None = None

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """The calls and the content of a whole message."""
        if isinstance(model_output, ParsedContent):
            message = model_output.message
        else:
            message = _parse(model_output, _channel(request), request)
        calls = [
            ToolCall(function=FunctionCall(name=call.name, arguments=call.arguments_json))
            for call in message.tool_calls
        ]
        return ExtractedToolCallInformation(tools_called=bool(calls), tool_calls=calls, content=message.content)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        """Parse the next piece of a message that starts in the response channel."""
        if self._stream is None:
            self._stream = Stream("response", _names(request), request.tool_choice)
        return self._stream.feed(delta_text)

    def finish_streaming(self) -> DeltaMessage | None:
        """The rest, when the stream ends."""
        return None if self._stream is None else self._stream.finish()


def _parse(text: str, starts_in: Channel, request: Any) -> Message:
    parser = Parser(starts_in, tools=_names(request), tool_choice=request.tool_choice)
    parser.feed(text)
    parser.finish()
    _report(parser.message)
    return parser.message


def _report(message: Message) -> None:
    if message.problems:
        logger.warning("Kimi-K3 completion: %s", ", ".join(sorted(message.problems)))


def _names(request: Any) -> list[str]:
    """The declared names; chat tools keep theirs under `function`, responses tools do not."""
    tools = getattr(request, "tools", None) or []
    names = [getattr(getattr(tool, "function", tool), "name", None) for tool in tools]
    return [name for name in names if isinstance(name, str)]


def _channel(request: Any) -> Channel:
    options: Mapping[str, Any] = getattr(request, "chat_template_kwargs", None) or {}
    thinking = options.get("thinking", options.get("enable_thinking", True))
    off = not thinking or getattr(request, "reasoning_effort", None) == "none"
    return "response" if off else "think"


ReasoningParserManager.register_module(NAME, force=True, module=K3StackReasoningParser)
ToolParserManager.register_module(NAME, force=True, module=K3StackToolParser)
