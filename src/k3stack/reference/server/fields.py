"""The fields of requests, checked: wrong ones are answered with 400 and their name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from k3stack.errors import UsageError
from k3stack.guard import codec
from k3stack.guard.refused import RefusedError
from k3stack.reference.request import Sampling

__all__ = ["ChatFields", "CompletionFields", "DetokenizeFields", "TokenizeFields", "checked", "read_json"]

_MOST_CHOICES = 64
_Stop = Annotated[str, Field(min_length=1, max_length=1000)]

Fields = TypeVar("Fields", bound=BaseModel)


class _Strict(BaseModel):
    """Fields we do not know are left alone: clients send many that mean nothing here."""

    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptions(_Strict):
    """Of a streamed answer."""

    include_usage: bool = False


class SamplingFields(_Strict):
    """What chat and completions have in common."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    n: Annotated[int, Field(ge=1, le=_MOST_CHOICES)] | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=16)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=256)] | None = None
    ignore_eos: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the answer."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_tokens: int, choice: int, logprobs: int | None, vocabulary: int) -> Sampling:
        """How choice number `choice` is sampled.

        Raises:
            RefusedError: a bias or a stop token that the vocabulary does not have.
        """
        return Sampling(
            temperature=1.0 if self.temperature is None else float(self.temperature),
            top_p=1.0 if self.top_p is None else float(self.top_p),
            top_k=max(0, self.top_k or 0),
            min_p=float(self.min_p or 0),
            presence_penalty=float(self.presence_penalty or 0),
            frequency_penalty=float(self.frequency_penalty or 0),
            repetition_penalty=1.0 if self.repetition_penalty is None else float(self.repetition_penalty),
            logit_bias={_token(key, vocabulary, "logit_bias"): bias for key, bias in (self.logit_bias or {}).items()},
            seed=None if self.seed is None else self.seed + choice,
            logprobs=logprobs,
            max_tokens=max_tokens,
            ignore_eos=self.ignore_eos,
            stop_tokens=frozenset(_token(each, vocabulary, "stop_token_ids") for each in self.stop_token_ids or ()),
        )


def _token(written: str | int, vocabulary: int, where: str) -> int:
    try:
        number = int(written)
    except ValueError:
        number = -1
    if not 0 <= number < vocabulary:
        raise RefusedError(f"no token {written!r} in a vocabulary of {vocabulary}", where=where)
    return number


class ChatFields(SamplingFields):
    """Of a chat request, besides what `k3stack.guard.request` reads."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool = True

    @property
    def most(self) -> int | None:
        """The longest answer that the client wants."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionFields(SamplingFields):
    """Of a completion request."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: Annotated[int, Field(ge=0)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=100)] | None = None
    echo: bool | None = False
    skip_special_tokens: bool = True
    return_tokens_as_token_ids: bool = False
    suffix: Literal[""] | None = None


class TokenizeFields(_Strict):
    """Of a request to /tokenize: a text, or a chat."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    return_token_strs: bool = False


class DetokenizeFields(_Strict):
    """Of a request to /detokenize."""

    tokens: list[int]


def read_json(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        RefusedError: it is none.
    """
    try:
        body = codec.loads(raw)
    except ValueError as error:
        raise RefusedError(f"the body is not JSON ({error})", where="body") from None
    if not isinstance(body, dict):
        raise RefusedError("the body is not a JSON object", where="body")
    return body


def checked(kind: type[Fields], body: dict[str, Any]) -> Fields:
    """The fields of a body.

    Raises:
        RefusedError: names the first that is wrong.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        names = [str(part) for part in first["loc"]]
        raise RefusedError(first["msg"].lower(), where=".".join(names[:1] or ["body"])) from None
    except UsageError as error:
        raise RefusedError(error.what, where=error.where or "body") from None
