"""A live endpoint with /v1/completions and log-probabilities, as a side of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from k3stack.errors import InputError, UnavailableError, UsageError
from k3stack.ports import is_address
from k3stack.reference.parity.side import Key, Scored
from k3stack.xtml import Segment

__all__ = ["EndpointSide"]

_ID = "token_id:"


class EndpointSide:
    """Asks a server.

    Token ids go in as they are; they come back as ids where the server knows `return_tokens_as_token_ids` (vLLM does,
    and so does `k3 serve`), else as text.

    Args:
        url: the server's address, with or without /v1.
        model: its model; None asks /v1/models.
        timeout_s: for one request.

    Raises:
        UsageError: `url` is no address.
        UnavailableError, InputError: its model is not given, and the server does not answer or lists none.
    """

    def __init__(self, url: str, model: str | None = None, timeout_s: float = 300.0) -> None:
        if not is_address(url):
            raise UsageError(f"{url!r} is no address", hint="Give one like http://127.0.0.1:8000")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self.model = model or self._only_model()

    @property
    def name(self) -> str:
        """The address and the model."""
        return f"{self.url} ({self.model})"

    def tokens(self, prompt: Sequence[Segment]) -> list[int] | None:
        """None: a server's /tokenize may or may not take control tokens for what they are."""
        return None

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """See `Side.answer`.

        Raises:
            InputError: the server does not tell token ids.
        """
        body = {"prompt": list(prompt), "max_tokens": count, "temperature": 0, "logprobs": 1, "ignore_eos": True}
        names = self._complete(body)["tokens"]
        keys = [_key(name) for name in names]
        ids = [key for key in keys if isinstance(key, int)]
        if len(ids) != len(keys):
            hint = "Give the checkpoint first and the endpoint second: then the endpoint need not tell ids"
            raise InputError("does not tell token ids", where=self.url, hint=hint)
        return ids

    def score(self, tokens: Sequence[int], first: int, top: int) -> list[Scored]:
        """See `Side.score`; `top` 0 asks for 20."""
        body = {"prompt": list(tokens), "max_tokens": 1, "temperature": 0, "logprobs": top or 20, "echo": True}
        told = self._complete(body)
        found = []
        for place in range(first, len(tokens)):
            best: Mapping[str, float] = told["top_logprobs"][place] or {}
            logprobs = {_key(name): float(value) for name, value in best.items() if value is not None}
            token = _key(told["tokens"][place])
            logprobs[token] = float(told["token_logprobs"][place])
            found.append(Scored(token, max(logprobs, key=lambda key: logprobs[key]), logprobs))
        return found

    def text(self, token: int) -> str:
        """A server's spelling is not known from outside."""
        return f"{_ID}{token}"

    def _complete(self, body: dict[str, Any]) -> dict[str, list[Any]]:
        """The `logprobs` of the only choice."""
        answer = self._post("/v1/completions", {"model": self.model, "return_tokens_as_token_ids": True, **body})
        try:
            logprobs = answer["choices"][0]["logprobs"]
            assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"])
            return dict(logprobs)
        except (KeyError, IndexError, TypeError, AssertionError):
            hint = "It must answer /v1/completions with echo and logprobs"
            raise InputError("gives no log-probabilities", where=self.url, hint=hint) from None

    def _only_model(self) -> str:
        try:
            answer = httpx.get(f"{self.url}/v1/models", timeout=self._timeout_s)
            return str(answer.raise_for_status().json()["data"][0]["id"])
        except httpx.HTTPError as error:
            raise self._silent(error) from None
        except (ValueError, KeyError, IndexError, TypeError):
            raise InputError("lists no model", where=f"{self.url}/v1/models", hint="Name one: --model NAME") from None

    def _silent(self, error: httpx.HTTPError) -> UnavailableError:
        hint = "Is it running, and is this the address of an OpenAI-compatible endpoint?"
        return UnavailableError(f"does not answer ({error or type(error).__name__})", where=self.url, hint=hint)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        try:
            answer = httpx.post(f"{self.url}{path}", json=body, timeout=self._timeout_s)
        except httpx.HTTPError as error:
            raise self._silent(error) from None
        if answer.status_code != 200:
            raise InputError(f"answers {answer.status_code}: {answer.text[:300]}", where=f"{self.url}{path}")
        try:
            return answer.json()
        except ValueError:
            raise InputError("answers no JSON", where=f"{self.url}{path}") from None


def _key(name: str) -> Key:
    number = name.removeprefix(_ID)
    return int(number) if number != name and number.isdigit() else name
