"""From a chat request to what the engine is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3stack.errors import InputError
from k3stack.guard.refused import RefusedError
from k3stack.guard.request import ChatRequest
from k3stack.reference.grammar import answer_grammar
from k3stack.reference.request import Picture
from k3stack.reference.server.eyes import SeenImage
from k3stack.reference.server.fields import ChatFields
from k3stack.reference.tokenizer import Tokenizer
from k3stack.xtml import IMAGE_PLACEHOLDER, Segment, encode

__all__ = ["Prompt", "chat_grammar", "chat_prompt", "room_for_answer"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the images among them."""

    tokens: tuple[int, ...]
    pictures: tuple[Picture, ...] = ()


def chat_prompt(
    asked: ChatRequest, fields: ChatFields, tokenizer: Tokenizer, images: Sequence[SeenImage] = ()
) -> Prompt:
    """The prompt of a chat.

    Raises:
        RefusedError: something that K3's grammar has no place for; names the field.
    """
    effort = fields.reasoning_effort
    messages = asked.body["messages"]
    _refuse_video(messages)
    choice = "required" if asked.choice == "named" else asked.choice
    try:
        segments = encode(
            messages,
            tools=_declared(fields),
            tool_choice=choice if asked.tools else None,
            response_format=fields.response_format,
            reasoning_effort="max" if effort in (None, "none") else effort,  # type: ignore[arg-type]
            thinking=asked.thinking,
            add_generation_prompt=fields.add_generation_prompt,
        )
    except InputError as error:
        raise RefusedError(error.what, where=error.where or "messages", hint=error.hint) from None
    except (TypeError, AttributeError, KeyError, ValueError):
        # A field of a message of a kind that the encoder never looks for, such as a list where a name belongs.
        raise RefusedError("a field of a message is of the wrong kind", where="messages") from None
    return _tokens(segments, tokenizer, images)


def chat_grammar(asked: ChatRequest, fields: ChatFields) -> str | None:
    """What the answer must look like, or None for anything.

    A required or named call, a response format, and tools declared strict are enforced. Other calls are left to the
    model, as the engines do.
    """
    content = _content_schema(fields.response_format)
    forced = asked.choice in ("required", "named")
    tools = _declared(fields)
    if asked.named is not None:
        tools = [tool for tool in tools if tool["function"]["name"] == asked.named]
    strict = asked.choice == "auto" and any(tool["function"].get("strict") is True for tool in tools)
    if not forced and content is None and not strict:
        return None
    calls = "must" if forced else "may" if asked.choice == "auto" and tools else "never"
    return answer_grammar(
        thinking=asked.thinking,
        tools=tools,
        calls=calls,  # type: ignore[arg-type]
        parallel=asked.parallel,
        content=content,
    )


def room_for_answer(prompt: int, wanted: int | None, context: int, where: str = "messages") -> int:
    """How many tokens the answer may have.

    Raises:
        RefusedError: prompt and answer do not fit the context.
    """
    if prompt >= context:
        what = f"the prompt has {prompt:,} tokens, the context {context:,}"
        raise RefusedError(what, where=where, hint="Send a shorter prompt")
    if wanted is None:
        return context - prompt
    if prompt + wanted > context:
        what = f"{prompt:,} tokens of prompt and {wanted:,} of answer are more than the context of {context:,}"
        raise RefusedError(what, where="max_tokens", hint=f"Ask for at most {context - prompt:,}")
    return wanted


def _declared(fields: ChatFields) -> list[dict[str, Any]]:
    tools = fields.tools or []
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        if tool.get("type", "function") != "function":
            raise RefusedError(f"tools of type {tool.get('type')!r} are not known", where=where, hint="Use function")
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise RefusedError("a tool without a name", where=f"{where}.function.name")
        assert isinstance(function, Mapping)
        if not isinstance(function.get("parameters", {}), Mapping):
            raise RefusedError("parameters are no JSON schema", where=f"{where}.function.parameters")
    return tools


def _content_schema(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    kind = None if response_format is None else response_format.get("type")
    if response_format is None or kind not in ("json_object", "json_schema"):
        return None
    if kind == "json_object":
        return {"type": "object"}
    given = response_format.get("json_schema")
    schema = given.get("schema") if isinstance(given, Mapping) else None
    if not isinstance(schema, Mapping):
        raise RefusedError("no schema", where="response_format.json_schema.schema", hint="Give {schema: {...}}")
    return schema


def _refuse_video(messages: Sequence[Any]) -> None:
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        for position, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and "video" in str(part.get("type")):
                hint = "Send single frames as image_url parts"
                where = f"messages[{number}].content[{position}]"
                raise RefusedError("video is not supported by the reference engine", where=where, hint=hint)


def _tokens(segments: Sequence[Segment], tokenizer: Tokenizer, images: Sequence[SeenImage]) -> Prompt:
    if len(images) != sum(segment.special and segment.text == IMAGE_PLACEHOLDER for segment in segments):
        hint = "Give image_url: {url: ...}"
        raise RefusedError("an image part without an address", where="messages", hint=hint)
    tokens: list[int] = []
    pictures: list[Picture] = []
    for segment in segments:
        if not segment.special:
            tokens += tokenizer.encode(segment.text)
        elif segment.text == IMAGE_PLACEHOLDER:
            _add_image(tokens, pictures, images[len(pictures)], tokenizer)
        else:
            tokens.append(tokenizer.special[segment.text])
    return Prompt(tuple(tokens), tuple(pictures))


def _add_image(tokens: list[int], pictures: list[Picture], image: SeenImage, tokenizer: Tokenizer) -> None:
    """`<|media_begin|>image WxH<|media_content|>`, a pad for each vector, `<|media_end|>`."""
    special = tokenizer.special
    tokens.append(special["<|media_begin|>"])
    tokens += tokenizer.encode(f"image {image.width}x{image.height}")
    tokens.append(special["<|media_content|>"])
    pictures.append(Picture(len(tokens), image.vectors, image.key))
    tokens += [special["<|media_pad|>"]] * image.vectors.shape[0]
    tokens.append(special["<|media_end|>"])
