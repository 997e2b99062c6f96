"""What is found out before the checks: the model, whether it was trained, and which parameters are accepted.

Endpoints differ: Moonshot's own refuses a temperature, vLLM turns reasoning off by `reasoning_effort`, SGLang by
`chat_template_kwargs`. What is refused here is left out later, and the report says so.
"""

from __future__ import annotations

from typing import Any

from k3stack.errors import UnavailableError
from k3stack.verify.answer import Answer
from k3stack.verify.endpoint import Endpoint, Lost, Refused
from k3stack.verify.report import Weights
from k3stack.verify.session import Dialect, Knowledge

__all__ = ["learn"]

_LOW: tuple[dict[str, Any], ...] = (
    {"reasoning_effort": "low"},
    {"chat_template_kwargs": {"thinking_effort": "low"}},
    {"thinking": {"type": "enabled", "effort": "low"}},
)
_OFF: tuple[dict[str, Any], ...] = (
    {"reasoning_effort": "none"},
    {"chat_template_kwargs": {"thinking": False}},
    {"thinking": {"type": "disabled"}},
)
_STEADY: tuple[dict[str, Any], ...] = ({"temperature": 0, "seed": 7}, {"temperature": 0}, {"seed": 7}, {})


async def learn(endpoint: Endpoint) -> Knowledge:
    """Ask the endpoint about itself.

    Raises:
        UnavailableError: it cannot be reached, wants a key, or answers no chat request.
    """
    entries = await _models(endpoint)
    names = tuple(str(entry.get("id")) for entry in entries)
    model = endpoint.target.model or (names[0] if names else "")
    if not model:
        raise UnavailableError(
            "/v1/models lists no model", where=endpoint.target.url, hint="Name it: k3 check URL --model NAME"
        )
    entry = next((one for one in entries if one.get("id") == model), {})
    weights, how = _weights(endpoint, entry)
    limit = _limit(entry)
    server = await _server(endpoint, entry)
    dialect = await _dialect(endpoint, model)
    notes = (
        f"model {model}; weights taken as {weights.value}: {how}",
        f"context {limit:,} tokens, by /v1/models" if limit else "/v1/models does not say how long a context may be",
        f"repeatable answers by {_say(dialect.steady)}" if dialect.steady else "temperature and seed are refused",
        f"little reasoning by {_say(dialect.low)}" if dialect.low else "no known way to ask for little reasoning",
        f"no reasoning by {_say(dialect.off)}" if dialect.off is not None else "no known way turns reasoning off",
    )
    return Knowledge(model, names, weights, server, limit, dialect, notes)


async def _models(endpoint: Endpoint) -> list[dict[str, Any]]:
    where = endpoint.target.url
    try:
        reply = await endpoint.get("/v1/models")
    except Lost as error:
        raise UnavailableError(
            f"the endpoint cannot be reached: {error}", where=where, hint="Is it running, and is this its address?"
        ) from None
    if reply.status in (401, 403):
        hint = "Put its key in an environment variable and name it: k3 check URL --key-variable NAME"
        raise UnavailableError(f"the endpoint wants an API key (HTTP {reply.status})", where=where, hint=hint)
    data = reply.json()
    entries = data.get("data") if isinstance(data, dict) else None
    if reply.status != 200 or not isinstance(entries, list):
        if endpoint.target.model:
            return []
        hint = "Give the base address of an OpenAI-compatible endpoint, or name the model: --model NAME"
        raise UnavailableError(f"/v1/models answers HTTP {reply.status} and no list", where=where, hint=hint)
    return [entry for entry in entries if isinstance(entry, dict)]


def _weights(endpoint: Endpoint, entry: dict[str, Any]) -> tuple[Weights, str]:
    if endpoint.target.weights is not None:
        return endpoint.target.weights, "as asked for"
    if isinstance(entry.get("random_weights"), bool):
        return Weights.RANDOM if entry["random_weights"] else Weights.TRAINED, "/v1/models says so"
    return Weights.TRAINED, "nothing says otherwise"


def _limit(entry: dict[str, Any]) -> int | None:
    for name in ("max_model_len", "context_length", "max_context_length"):
        if isinstance(entry.get(name), int) and entry[name] > 0:
            return int(entry[name])
    return None


async def _server(endpoint: Endpoint, entry: dict[str, Any]) -> str:
    """What it is, in its own words: the owner in /v1/models, and a version where /version gives one."""
    owner = str(entry.get("owned_by") or "unnamed server")
    try:
        reply = await endpoint.get("/version", silence_s=5.0)
    except Lost:
        return owner
    data = reply.json() if reply.status == 200 else None
    version = data.get("version") if isinstance(data, dict) else None
    return f"{owner} {version}" if isinstance(version, str) else owner


async def _dialect(endpoint: Endpoint, model: str) -> Dialect:
    least = {"model": model, "messages": [{"role": "user", "content": "Reply with exactly this text: ok"}]}
    refused: list[Refused] = []

    async def accepts(parameters: dict[str, Any], tokens: int = 8) -> Answer | None:
        try:
            return await endpoint.chat({**least, "max_tokens": tokens, **parameters})
        except Refused as error:
            refused.append(error)
            return None
        except Lost as error:
            hint = "Raise --silence if its first answer needs longer; else look at the engine's log: k3 doctor"
            what = f"the endpoint answers /v1/models but no chat request: {error}"
            raise UnavailableError(what, where=endpoint.target.url, hint=hint) from None

    async def first_accepted(options: tuple[dict[str, Any], ...], beside: dict[str, Any]) -> dict[str, Any] | None:
        for option in options:
            if await accepts({**beside, **option}):
                return option
        return None

    steady = await first_accepted(_STEADY, {})
    if steady is None:
        raise _refused(refused[-1], endpoint.target.url, model)
    low = await first_accepted(_LOW, steady) or {}
    for off in _OFF:
        answer = await accepts({**steady, **off}, tokens=48)
        if answer and not answer.reasoning and answer.content:
            return Dialect(steady, low, off)
    return Dialect(steady, low, None)


def _refused(refusal: Refused, where: str, model: str) -> UnavailableError:
    if refusal.status in (401, 403):
        hint = "Put its key in an environment variable and name it: k3 check URL --key-variable NAME"
        return UnavailableError(f"the endpoint wants an API key ({refusal})", where=where, hint=hint)
    hint = f"Is {model!r} the model's name there? k3 check URL --model NAME"
    return UnavailableError(f"a plain chat request is refused: {refusal}", where=where, hint=hint)


def _say(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items())
