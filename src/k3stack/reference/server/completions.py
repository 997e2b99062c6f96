"""POST /v1/completions: text or token ids go on, without a chat around them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from k3stack.errors import InputError
from k3stack.guard import codec
from k3stack.guard.http import Receive, Send, respond
from k3stack.guard.refused import RefusedError
from k3stack.guard.sse import event
from k3stack.reference.request import Request, Token, Update
from k3stack.reference.server.fields import CompletionFields, checked, read_json
from k3stack.reference.server.generation import Generation, new_id
from k3stack.reference.server.host import Host
from k3stack.reference.server.prompt import room_for_answer
from k3stack.reference.server.stream import Stream
from k3stack.reference.server.text import Stops, TokenText
from k3stack.reference.server.timing import Timing
from k3stack.reference.server.usage import usage

__all__ = ["completions"]

_MOST_PROMPTS = 64


class _Choice:
    """One answer as text, with its log-probabilities."""

    def __init__(self, host: Host, fields: CompletionFields, prompt: Sequence[int]) -> None:
        self._host = host
        self._fields = fields
        self._prompt = prompt
        self._text = TokenText()
        self._stops = Stops(fields.stops)
        self._offset = 0
        self.tokens = self.reasoning_tokens = self.cached_tokens = 0
        self.finish: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop text came."""
        return self._stops.found is not None

    def take(self, update: Update) -> tuple[str, dict[str, Any] | None]:
        """New text and the log-probabilities of its tokens."""
        self.cached_tokens = update.cached
        told: list[Token] = list(update.tokens)
        text = ""
        if self._fields.echo and self.tokens == 0:
            text = "".join(self._text.feed(self._bytes(number)) for number in self._prompt)
            told = list(update.prompt) + told
        self.tokens += len(update.tokens)
        text += self._stops.feed("".join(self._text.feed(self._bytes(token.id)) for token in update.tokens))
        if update.finish is not None:
            text += self._stops.feed(self._text.feed(b"", final=True)) + self._stops.finish()
            self.finish = str(update.finish)
        if self.stopped:
            self.finish = "stop"
        return text, self._logprobs(told)

    def _bytes(self, number: int) -> bytes:
        special = number in self._host.tokenizer.name_of
        return b"" if special and self._fields.skip_special_tokens else self._host.tokenizer.bytes_of(number)

    def _logprobs(self, told: list[Token]) -> dict[str, Any] | None:
        if self._fields.logprobs is None:
            return None
        names = [self._name(token.id) for token in told]
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        return {
            "tokens": names,
            "token_logprobs": [token.logprob for token in told],
            "top_logprobs": [{self._name(n): logprob for n, logprob in token.top} or None for token in told],
            "text_offset": offsets,
        }

    def _name(self, number: int) -> str:
        if self._fields.return_tokens_as_token_ids:
            return f"token_id:{number}"
        return self._host.tokenizer.bytes_of(number).decode(errors="replace")


async def completions(host: Host, raw: bytes, receive: Receive, send: Send) -> None:
    """Continue one or more prompts.

    Raises:
        RefusedError: the request cannot be answered; nothing was sent yet.
        ConnectionResetError: the client hung up.
    """
    fields = checked(CompletionFields, read_json(raw))
    host.check_model(fields.model)
    prompts = await asyncio.to_thread(_prompts, fields, host)
    answer_id, created = new_id("cmpl"), int(time.time())
    requests = _requests(fields, prompts, answer_id, host)
    generation = Generation(host.worker, requests, [None] * len(requests), receive)
    choices = [_Choice(host, fields, request.prompt) for request in requests]
    timing = Timing(host.metrics)

    def frame(each: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": answer_id, "object": "text_completion", "created": created, "model": host.settings.model}
        return {**head, "system_fingerprint": host.fingerprint, "choices": each, **more}

    count = sum(map(len, prompts))
    if fields.stream:
        stream = Stream(send)
        async with stream.over(generation.updates()) as updates:
            async for number, update in updates:
                timing.update(number, update)
                text, logprobs = choices[number].take(update)
                finish = choices[number].finish
                if choices[number].stopped:
                    generation.stop(number)
                if text or finish or logprobs:
                    each = {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish}
                    await stream.send(event(frame([each])))
            if fields.include_usage:
                await stream.send(event(frame([], usage=usage(count, choices))))
        return
    await respond(send, 200, codec.dumps(await _whole(frame, generation, choices, timing, count)))


async def _whole(
    frame: Any, generation: Generation, choices: list[_Choice], timing: Timing, count: int
) -> dict[str, Any]:
    texts = [""] * len(choices)
    logprobs: list[dict[str, list[Any]] | None] = [None] * len(choices)
    async for number, update in generation.updates():
        timing.update(number, update)
        text, told = choices[number].take(update)
        texts[number] += text
        if told is not None:
            so_far = logprobs[number] or {key: [] for key in told}
            logprobs[number] = {key: so_far[key] + told[key] for key in told}
        if choices[number].stopped:
            generation.stop(number)
    answers = [
        {"index": number, "text": texts[number], "logprobs": logprobs[number], "finish_reason": choice.finish}
        for number, choice in enumerate(choices)
    ]
    found: dict[str, Any] = frame(answers, usage=usage(count, choices))
    return found


def _prompts(fields: CompletionFields, host: Host) -> list[tuple[int, ...]]:
    given = fields.prompt
    one = isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
    each: list[Any] = [given] if one else list(given)
    if not each or len(each) > _MOST_PROMPTS:
        raise RefusedError(f"must be 1 to {_MOST_PROMPTS} prompts", where="prompt")
    found = []
    for prompt in each:
        tokens = host.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not tokens:
            raise RefusedError("is empty", where="prompt")
        try:
            host.tokenizer.check(tokens)
        except InputError as error:
            raise RefusedError(error.what, where="prompt") from None
        found.append(tuple(tokens))
    return found


def _requests(fields: CompletionFields, prompts: list[tuple[int, ...]], answer_id: str, host: Host) -> list[Request]:
    requests = []
    scored_only = fields.max_tokens == 0
    for place, prompt in enumerate(prompts):
        # A prompt that is only scored may fill the context, and nothing follows.
        room = room_for_answer(len(prompt) - scored_only, fields.max_tokens, host.settings.context, "prompt")
        most = 0 if scored_only else room
        for number in range(fields.n or 1):
            sampling = fields.sampling(most, number, fields.logprobs, host.tokenizer.size)
            scored = bool(fields.echo) and fields.logprobs is not None
            if scored:
                sampling = sampling.with_prompt(fields.logprobs)
            name = f"{answer_id}-{place}-{number}"
            after = f"{answer_id}-{place}-0" if number and not scored else None
            requests.append(Request(name, prompt, sampling, after=after, resume=not scored))
    return requests
