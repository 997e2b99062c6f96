"""What the guard needs to know of a chat request, and the requests it refuses at the door."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from k3stack.guard import codec
from k3stack.guard.images import ImageLimits, check_images
from k3stack.guard.refused import RefusedError
from k3stack.guard.tools import ToolSet

__all__ = ["ChatRequest", "parse_chat_request"]

EFFORTS = ("low", "high", "max", "none")
"""The values of `reasoning_effort` that K3 knows; engines fall back silently on others or fail late."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request as the guard sees it.

    Args:
        raw: the body as it came; the upstream gets these bytes.
        body: the same, parsed.
        stream: whether the client wants server-sent events.
        include_usage: whether it asked for a last chunk with the usage.
        tools: what it declared, in `tools` and in system messages.
        choice: `auto`, `none`, `required`, or `named` with `named` set.
        named: the tool that a named choice asks for.
        parallel: whether more than one call is allowed.
        n: how many choices.
        thinking: whether the answer starts inside the think channel.
        known_ids: ids of calls in the history.
    """

    raw: bytes
    body: dict[str, Any]
    stream: bool
    include_usage: bool
    tools: ToolSet
    choice: str
    named: str | None
    parallel: bool
    n: int
    thinking: bool
    known_ids: frozenset[str]

    @property
    def resample_helps(self) -> bool:
        """Whether asking again can give another answer: not at temperature 0, and only for one choice."""
        temperature = self.body.get("temperature")
        return self.n == 1 and (temperature is None or temperature != 0)

    def resample_body(self, attempt: int) -> bytes:
        """The body for attempt 1, 2, ...: the same bytes, so that the whole prompt is found in the prefix cache.

        Only a fixed `seed`, which is no part of the prompt, moves on: the same seed gives the same answer.
        """
        seed = self.body.get("seed")
        if not isinstance(seed, int) or isinstance(seed, bool):
            return self.raw
        return codec.dumps({**self.body, "seed": seed + attempt})


def parse_chat_request(raw: bytes, images: ImageLimits | None = None) -> ChatRequest:
    """Read a request body.

    Raises:
        RefusedError: not JSON, a field of the wrong kind, or something K3 cannot do.
    """
    try:
        body = codec.loads(raw)
    except ValueError as error:
        raise RefusedError(f"the body is not JSON ({error})", where="body") from None
    if not isinstance(body, dict):
        raise RefusedError("the body is not a JSON object", where="body")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError("must be a list with at least one message", where="messages")
    choice, named = _choice(body)
    tools = ToolSet.declared(list(_declarations(body, messages)))
    if choice in ("required", "named") and not tools:
        raise RefusedError("asks for a call, but no tool is declared", where="tool_choice", hint="Declare `tools`")
    if named is not None and named not in tools:
        raise RefusedError(f"names the tool {named!r}, which is not declared", where="tool_choice")
    effort = body.get("reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        raise RefusedError(f"{effort!r} is not one of {', '.join(EFFORTS)}", where="reasoning_effort")
    if images is not None:
        check_images(messages, images)
    options = body.get("stream_options")
    n = body.get("n")
    return ChatRequest(
        raw=raw,
        body=body,
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        tools=tools,
        choice=choice,
        named=named,
        parallel=body.get("parallel_tool_calls") is not False,
        n=n if isinstance(n, int) and not isinstance(n, bool) else 1,
        thinking=_thinking(body),
        known_ids=frozenset(_known_ids(messages)),
    )


def _choice(body: dict[str, Any]) -> tuple[str, str | None]:
    wanted = body.get("tool_choice")
    if wanted is None:
        return "auto", None
    if wanted in ("auto", "none", "required"):
        return str(wanted), None
    function = wanted.get("function") if isinstance(wanted, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RefusedError("must be auto, none, required or a named function", where="tool_choice")
    return "named", name


def _declarations(body: dict[str, Any], messages: list[Any]) -> Iterator[Any]:
    """Declared tools: K3 also takes them in the middle of a conversation, from a message's own `tools`."""
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise RefusedError("must be a list", where="tools")
    yield from tools or ()
    for message in messages:
        if isinstance(message, dict) and isinstance(message.get("tools"), list):
            yield from message["tools"]


def _known_ids(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                yield call["id"]


def _thinking(body: dict[str, Any]) -> bool:
    """Whether the prompt ends with an open think channel: K3's default, switched off in any of three places."""
    if body.get("reasoning_effort") == "none":
        return False
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return False
    template = body.get("chat_template_kwargs")
    return not (isinstance(template, dict) and template.get("thinking") is False)
