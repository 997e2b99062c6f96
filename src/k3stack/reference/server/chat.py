"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from k3stack.guard import codec
from k3stack.guard.http import Receive, Send, respond
from k3stack.guard.refused import RefusedError
from k3stack.guard.request import ChatRequest, parse_chat_request
from k3stack.guard.sse import event
from k3stack.reference.request import Request
from k3stack.reference.server.choice import Choice, Delta, logprob_entry
from k3stack.reference.server.fields import ChatFields, checked
from k3stack.reference.server.generation import Generation, new_id
from k3stack.reference.server.host import Host
from k3stack.reference.server.prompt import Prompt, chat_grammar, chat_prompt, room_for_answer
from k3stack.reference.server.stream import Stream
from k3stack.reference.server.timing import Timing
from k3stack.reference.server.usage import usage
from k3stack.xtml import Parser

__all__ = ["chat", "prepare_prompt"]


@dataclass(frozen=True, slots=True)
class _Chat:
    """One request, ready to run."""

    asked: ChatRequest
    fields: ChatFields
    prompt: Prompt
    id: str
    created: int
    host: Host

    def frame(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """What every answer and every chunk has."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.host.settings.model,
            "system_fingerprint": self.host.fingerprint,
            "choices": choices,
            **more,
        }

    def logprobs(self, delta: Delta) -> dict[str, Any] | None:
        """The log-probabilities of new tokens, if they were asked for."""
        if not self.fields.logprobs:
            return None
        return {"content": [logprob_entry(token, self.host.tokenizer) for token in delta.tokens], "refusal": None}


async def chat(host: Host, raw: bytes, receive: Receive, send: Send) -> None:
    """Answer a chat.

    Raises:
        RefusedError: the request cannot be answered; nothing was sent yet.
        ConnectionResetError: the client hung up.
    """
    asked, fields, prompt = await prepare_prompt(host, raw)
    most = room_for_answer(len(prompt.tokens), fields.most, host.settings.context)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise RefusedError("needs logprobs to be true", where="top_logprobs")
    request = _Chat(asked, fields, prompt, new_id("chatcmpl"), int(time.time()), host)
    generation = await _generation(request, most, receive)
    choices = [_choice(request) for _ in range(fields.n or 1)]
    timing = Timing(host.metrics)
    if fields.stream:
        await _stream(request, generation, choices, Stream(send), timing)
    else:
        await respond(send, 200, codec.dumps(await _whole(request, generation, choices, timing)))


async def prepare_prompt(host: Host, raw: bytes) -> tuple[ChatRequest, ChatFields, Prompt]:
    """Read a chat request as far as its prompt; also for /tokenize."""
    asked = parse_chat_request(raw, host.settings.images)
    fields = checked(ChatFields, asked.body)
    host.check_model(fields.model)
    images = await host.images(asked.body["messages"])
    return asked, fields, chat_prompt(asked, fields, host.tokenizer, images)


async def _generation(request: _Chat, most: int, receive: Receive) -> Generation:
    host, fields = request.host, request.fields
    grammar = chat_grammar(request.asked, fields)
    logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    requests, constraints = [], []
    for number in range(fields.n or 1):
        sampling = fields.sampling(most, number, logprobs, host.tokenizer.size)
        first = f"{request.id}-0" if number else None
        each = Request(f"{request.id}-{number}", request.prompt.tokens, sampling, request.prompt.pictures, after=first)
        requests.append(each)
        constraints.append(await host.constraint(grammar, most))
    return Generation(host.worker, requests, constraints, receive)


def _choice(request: _Chat) -> Choice:
    asked, tokenizer = request.asked, request.host.tokenizer
    parser = Parser(
        "think" if asked.thinking else "response",
        tools=asked.tools.names,
        tool_choice=asked.choice,
        vocabulary=tokenizer.vocabulary,
    )
    return Choice(parser, request.fields.stops, tokenizer, asked.thinking)


async def _whole(request: _Chat, generation: Generation, choices: list[Choice], timing: Timing) -> dict[str, Any]:
    logprobs: list[list[dict[str, Any]]] = [[] for _ in choices]
    async for number, update in generation.updates():
        timing.update(number, update)
        delta = choices[number].take(update)
        told = request.logprobs(delta)
        logprobs[number] += [] if told is None else told["content"]
        if choices[number].stopped:
            generation.stop(number)
    answers = []
    for number, choice in enumerate(choices):
        told = {"content": logprobs[number], "refusal": None} if request.fields.logprobs else None
        answers.append({"index": number, "message": choice.message(), "logprobs": told, "finish_reason": choice.finish})
    return request.frame("chat.completion", answers, usage=usage(len(request.prompt.tokens), choices))


async def _stream(
    request: _Chat, generation: Generation, choices: list[Choice], stream: Stream, timing: Timing
) -> None:
    def chunk(number: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        more = {"usage": None} if request.fields.include_usage else {}
        return event(request.frame("chat.completion.chunk", [choice], **more))

    async with stream.over(generation.updates()) as updates:
        for number in range(len(choices)):
            await stream.send(chunk(number, {"role": "assistant", "content": ""}))
        async for number, update in updates:
            timing.update(number, update)
            choice = choices[number]
            delta = choice.take(update)
            fields, logprobs = delta.fields(), request.logprobs(delta)
            if fields or (logprobs and logprobs["content"]):
                await stream.send(chunk(number, fields, logprobs))
            if choice.stopped:
                generation.stop(number)
            if choice.finish is not None:
                await stream.send(chunk(number, {}, finish=choice.finish))
        if request.fields.include_usage:
            told = usage(len(request.prompt.tokens), choices)
            await stream.send(event(request.frame("chat.completion.chunk", [], usage=told)))
