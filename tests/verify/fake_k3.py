"""A small K3 with real behaviour over the OpenAI API: streams, tools, JSON, images, a prefix cache, metrics.

It runs as a real server in a thread of its own. `untrained` makes it say that its weights are random, and babble.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.verify.brain import Thought, babble, images_of, read_png, text_of, think

LIMIT = 40_960
_TOKEN = re.compile(r"<\|\w+\|>|\s?[^\s<]{1,6}|<|\s", re.DOTALL)
_BLOCK = 64
ROLES = ("system", "developer", "user", "assistant", "tool")


Pieces = list[tuple[str, list[str]]]
"""(field or call, its tokens), in the order in which they are generated."""


class Refuse(Exception):  # noqa: N818
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def tokens_of(text: str) -> list[str]:
    """Pieces of at most six letters. A marker that somebody wrote is text: it falls apart into several."""
    found = []
    for piece in _TOKEN.findall(text):
        found += [piece[:2], piece[2:-2], piece[-2:]] if piece.startswith("<|") else [piece]
    return found


class FakeK3:
    """The server's state.

    Attributes:
        token_s: seconds for a generated token; prefill_s: for a prompt token that is not cached.
        running: requests in generation, as /metrics says; hits: prompt tokens found in the cache.
    """

    def __init__(self, untrained: bool = False, token_s: float = 0.0004, prefill_s: float = 0.00001) -> None:
        self.untrained, self.token_s, self.prefill_s = untrained, token_s, prefill_s
        self.running = 0
        self.served = 0
        self.hits = 0
        self.cache = True
        self._prefixes: set[bytes] = set()
        self._ids = itertools.count()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/version", self.version)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "1.0"})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def models(self, _: web.Request) -> web.Response:
        entry = {"id": "kimi-k3", "object": "model", "owned_by": "fake", "max_model_len": LIMIT}
        if self.untrained:
            entry["random_weights"] = True
        return web.json_response({"object": "list", "data": [entry]})

    async def metrics(self, _: web.Request) -> web.Response:
        known = {"vllm:num_requests_running": self.running, "vllm:prefix_cache_hits_total": self.hits}
        return web.Response(text="".join(f'# HELP x\n{name}{{engine="0"}} {known[name]:.1f}\n' for name in known))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = read_body(await request.read())
            thoughts = self.answers(body)
            prompt = prompt_tokens(body)
            check_length(body, prompt)
        except Refuse as error:
            data = {"error": {"message": error.message, "type": "invalid_request_error", "code": error.status}}
            return web.json_response(data, status=error.status)
        self.running += 1
        self.served += 1
        try:
            return await self._generate(request, body, thoughts, prompt)
        except ConnectionResetError:
            return web.Response()  # the client left; nobody reads this
        finally:
            self.running -= 1

    def answer(self, body: dict[str, Any]) -> Thought:
        off = thinking_off(body)
        thought = babble(body, off) if self.untrained else think(body)
        if off:
            thought.reasoning = ""
        return thought

    def answers(self, body: dict[str, Any]) -> list[Thought]:
        """As many answers as are asked for, each drawn by itself."""
        each = [
            {**body, "seed": body["seed"] + number} if "seed" in body else body for number in range(body.get("n", 1))
        ]
        return [self.answer(one) for one in each]

    async def _generate(
        self, request: web.Request, body: dict[str, Any], thoughts: list[Thought], prompt: list[str]
    ) -> web.StreamResponse:
        cached = self._cached(prompt)
        self.hits += cached
        await asyncio.sleep(self.prefill_s * (len(prompt) - cached))
        made = [cut(body, thought) for thought in thoughts]
        generated = sum(len(tokens) for pieces, _ in made for _, tokens in pieces)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": generated}
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        whole_usage = {**usage, "prompt_tokens_details": {"cached_tokens": cached}}
        head = {"id": f"chatcmpl-{next(self._ids)}", "created": 1_790_000_000, "model": body["model"]}
        if not body.get("stream"):
            await self._wait(generated)
            return web.json_response(whole(head, made, whole_usage, body, self._ids))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for event in interleaved([self._events(head, *one, body, index) for index, one in enumerate(made)]):
            await response.write(event)
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(sse({**head, "object": "chat.completion.chunk", "choices": [], "usage": whole_usage}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _wait(self, tokens: int) -> None:
        await asyncio.sleep(self.token_s * tokens)

    async def _events(
        self, head: dict[str, Any], pieces: list[tuple[str, list[str]]], finish: str, body: dict[str, Any], index: int
    ) -> AsyncIterator[bytes]:
        def event(delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> bytes:
            choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}
            return sse({**head, "object": "chat.completion.chunk", "choices": [choice]})

        yield event({"role": "assistant", "content": ""})
        owed, number = 0.0, 0
        for kind, tokens in pieces:
            if kind.startswith("call "):
                await self._wait(len(tokens))
                for delta in call_deltas(kind, "".join(tokens), number, self._ids):
                    yield event(delta)
                number += 1
                continue
            for token in tokens:
                owed += self.token_s
                if owed > 0.002:  # finer sleeps are not kept by the machine
                    await asyncio.sleep(owed)
                    owed = 0.0
                yield event({kind: token}, logprobs=chances([token]) if body.get("logprobs") else None)
        yield event({}, finish)

    def _cached(self, prompt: list[str]) -> int:
        """Tokens of the prompt's front that were seen before; remembers this prompt."""
        cached, digest = 0, hashlib.sha256()
        for start in range(0, len(prompt) - _BLOCK, _BLOCK):
            digest.update("".join(prompt[start : start + _BLOCK]).encode())
            key = digest.digest()
            if self.cache and key in self._prefixes and cached == start:
                cached = start + _BLOCK
            self._prefixes.add(key)
        return cached


def read_body(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refuse(400, f"not JSON: {type(error).__name__}") from None
    if not isinstance(body, dict):
        raise Refuse(400, "the body is no object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refuse(400, "messages must be a list of messages")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise Refuse(400, "a message needs a role")
        if not isinstance(message.get("content") or "", str | list):
            raise Refuse(400, "content must be text or parts")
    if body.get("model") != "kimi-k3":
        raise Refuse(404, f"no model {body.get('model')}")
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    check_parameters(body)
    return body


def check_parameters(body: dict[str, Any]) -> None:
    if not isinstance(body.get("n", 1), int) or not 0 < body.get("n", 1) <= 8:
        raise Refuse(400, "n must be a number up to 8")
    if not isinstance(body.get("max_tokens", 1), int) or body.get("max_tokens", 1) < 1:
        raise Refuse(400, "max_tokens must be a positive number")
    if not isinstance(body.get("temperature", 0), int | float):
        raise Refuse(400, "temperature must be a number")
    tools = body.get("tools", [])
    if not isinstance(tools, list):
        raise Refuse(400, "tools must be a list")
    choice = body.get("tool_choice", "auto")
    if choice == "required" and not tools:
        raise Refuse(400, "tool_choice required needs tools")
    names = [tool["function"]["name"] for tool in tools]
    if isinstance(choice, dict) and choice["function"]["name"] not in names:
        raise Refuse(400, "tool_choice names no declared tool")
    if body.get("reasoning_effort") not in (None, "none", "low", "high", "max"):
        raise Refuse(400, "reasoning_effort must be none, low, high or max")
    for message in body["messages"]:
        for address in images_of(message):
            try:
                read_png(address)
            except ValueError as error:
                raise Refuse(400, f"bad image: {error}") from None


def check_length(body: dict[str, Any], prompt: list[str]) -> None:
    if len(prompt) + body.get("max_tokens", 1) > LIMIT:
        raise Refuse(400, f"{len(prompt)} tokens and max_tokens pass the context length of {LIMIT} tokens")


def thinking_off(body: dict[str, Any]) -> bool:
    return body.get("reasoning_effort") == "none"


def prompt_tokens(body: dict[str, Any]) -> list[str]:
    parts = [json.dumps(body.get("tools") or "")]
    pictures = 0
    for message in body["messages"]:
        parts += [message["role"], message.get("reasoning_content") or message.get("reasoning") or "", text_of(message)]
        parts.append(json.dumps(message.get("tool_calls") or ""))
        pictures += sum((read_png(address)[0] // 28) ** 2 for address in images_of(message))
    return [*tokens_of("\n".join(parts)), *["<image>"] * pictures]


def cut(body: dict[str, Any], thought: Thought) -> tuple[list[tuple[str, list[str]]], str]:
    """(field or call, its tokens) in order, cut by stop and max_tokens; and why it ended."""
    content, finish = thought.content, "tool_calls" if thought.calls else "stop"
    stops = body.get("stop") or []
    hidden, shown = thought.reasoning, content
    for stop in [stops] if isinstance(stops, str) else stops:
        if stop in hidden:
            hidden, shown = hidden[: hidden.index(stop)], ""
        elif stop in shown:
            shown = shown[: shown.index(stop)]
    pieces = [("reasoning_content", tokens_of(hidden)), ("content", tokens_of(shown))]
    for name, arguments in thought.calls:
        pieces.append((f"call {name}", tokens_of(json.dumps(arguments, ensure_ascii=False))))
    room = body.get("max_tokens", 1_000)
    kept: list[tuple[str, list[str]]] = []
    for kind, tokens in pieces:
        if len(tokens) > room:
            return [*kept, *([(kind, tokens[:room])] if not kind.startswith("call ") else [])], "length"
        kept.append((kind, tokens))
        room -= len(tokens)
    return kept, finish


async def interleaved(streams: list[AsyncIterator[bytes]]) -> AsyncIterator[bytes]:
    """One event of each in turn, as the choices of one request come."""
    while streams:
        for one in list(streams):
            try:
                yield await anext(one)
            except StopAsyncIteration:
                streams.remove(one)


def whole(
    head: dict[str, Any], made: list[tuple[Pieces, str]], usage: Any, body: dict[str, Any], ids: Iterator[int]
) -> dict[str, Any]:
    choices = [choice(number, pieces, finish, body, ids) for number, (pieces, finish) in enumerate(made)]
    return {**head, "object": "chat.completion", "choices": choices, "usage": usage}


def choice(index: int, pieces: Pieces, finish: str, body: dict[str, Any], ids: Iterator[int]) -> dict[str, Any]:
    texts = {kind: "".join(tokens) for kind, tokens in pieces if not kind.startswith("call ")}
    message: dict[str, Any] = {"role": "assistant", "content": texts.get("content", "")}
    if texts.get("reasoning_content"):
        message["reasoning_content"] = texts["reasoning_content"]
    calls = [made_call(kind, "".join(tokens), ids) for kind, tokens in pieces if kind.startswith("call ")]
    if calls:
        message |= {"content": texts.get("content") or None, "tool_calls": calls}
    one: dict[str, Any] = {"index": index, "message": message, "finish_reason": finish, "logprobs": None}
    if body.get("logprobs"):
        one["logprobs"] = chances([token for kind, tokens in pieces for token in tokens if "call" not in kind])
    return one


def made_call(kind: str, arguments: str, ids: Iterator[int]) -> dict[str, Any]:
    function = {"name": kind.removeprefix("call "), "arguments": arguments}
    return {"id": f"call_{next(ids)}", "type": "function", "function": function}


def call_deltas(kind: str, arguments: str, index: int, ids: Iterator[int]) -> Iterator[dict[str, Any]]:
    made = made_call(kind, "", ids)
    yield {"tool_calls": [{"index": index, **made}]}
    for start in range(0, len(arguments), 20):
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[start : start + 20]}}]}


def chances(tokens: list[str]) -> dict[str, Any]:
    """Log probabilities that depend on the tokens before, as a real model's do on its prompt."""
    content = []
    for number, token in enumerate(tokens):
        first = -0.01 - (int(hashlib.sha256("".join(tokens[: number + 1]).encode()).hexdigest()[:6], 16) % 1000) / 5000
        top = [{"token": token, "logprob": first}]
        top += [{"token": f"t{other}", "logprob": first - 6.0 - other} for other in range(4)]
        content.append({"token": token, "logprob": first, "top_logprobs": top})
    return {"content": content}


def sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


@contextmanager
def serving(app: web.Application) -> Iterator[str]:
    """The app on a free port, in a thread of its own; yields its address."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    ready = threading.Event()
    address: list[str] = []

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
