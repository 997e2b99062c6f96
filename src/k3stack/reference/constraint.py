"""A grammar followed token by token, and brought to its end before the answer runs out of tokens.

Shapes: V the vocabulary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from k3stack.errors import InputError
from k3stack.reference.tokenizer import Tokenizer
from k3stack.xtml.wire import CLOSE

__all__ = ["Constraint", "Grammars"]

_EXPONENT = re.compile(rb"[0-9.]*[eE][-+0-9]*")
_LOOK_AGAIN = 32
"""Tokens between two looks at how long the shortest end is."""
_LONGEST_END = 4096
"""Tokens after which looking for the end is given up."""
_CAREFUL = 512
"""With fewer tokens to spare than this, each choice among a few is looked at for where it leads."""
_FEW = 12


class Grammars:
    """Compiles grammars for one tokenizer.

    Args:
        tokenizer: the checkpoint's.
        end: the token that ends an answer.
    """

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        encoding = tokenizer.encoding
        ordinary = {tokenizer.bytes_of(number): number for number in range(tokenizer.size - len(tokenizer.special))}
        # mypy does not see the extension's constructor for tiktoken models.
        make = LLTokenizer.from_tiktoken  # type: ignore[attr-defined]
        self._ids = make(
            encoder=ordinary,
            special_tokens=tokenizer.special,
            pattern=encoding._pat_str,
            eos_token=end,
            n_vocab=tokenizer.size,
        )
        self.end = end
        self.size = tokenizer.size
        self._closers = self._find_closers(tokenizer)
        self._compiled = lru_cache(maxsize=256)(self._compile)

    def start(self, grammar: str, most: int) -> Constraint:
        """Follow a grammar from its beginning, through an answer of at most `most` tokens.

        Raises:
            InputError: the grammar, or a JSON schema in it, cannot be compiled; says why.
        """
        return Constraint(self._compiled(grammar).deep_copy(), self.size, self.end, self._closers, most)

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._ids, grammar, log_level=0)
        if matcher.is_error():
            raise InputError(f"cannot be followed: {matcher.get_error().splitlines()[0][:300]}", where="schema")
        return matcher

    def _find_closers(self, tokenizer: Tokenizer) -> _Closers:
        ids = {text: np.array(tokenizer.encode(text)[:1], dtype=np.int64) for text in '}]"#09eE'}
        brackets = np.concatenate([ids["}"], ids["]"]])
        ordinary = range(tokenizer.size - len(tokenizer.special))
        exponents = [number for number in ordinary if _EXPONENT.fullmatch(tokenizer.bytes_of(number))]
        return _Closers(
            end=np.array([self.end], dtype=np.int64),
            marker=np.array([tokenizer.special[CLOSE]], dtype=np.int64),
            brackets=brackets,
            quote=ids['"'],
            in_string=ids["#"],
            number=np.concatenate([ids[each] for each in "09eE"]),
            exponents=np.array(exponents, dtype=np.int64),
        )


@dataclass(frozen=True, slots=True)
class _Closers:
    """Tokens that lead to the end of an answer, each an array of ids."""

    end: NDArray[np.int64]
    marker: NDArray[np.int64]
    brackets: NDArray[np.int64]
    quote: NDArray[np.int64]
    in_string: NDArray[np.int64]
    """JSON has this character within strings alone: where it may come, a quote closes and a bracket is text."""

    number: NDArray[np.int64]
    """Bytes that may all come next within a number alone (and within strings)."""
    exponents: NDArray[np.int64]

    def without_exponent(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The mask [vocab] for numbers without exponents: 1e999 is JSON and no number that a client can hold."""
        if not mask[self.number].all() or mask[self.in_string].any():
            return mask
        rest = mask.copy()
        rest[self.exponents] = False
        return rest if rest.any() else mask

    def among(self, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The ids [k] that the grammar's mask [vocab] takes and that are nearest to the end; empty where none is."""
        inside = bool(mask[self.in_string].any())
        groups = (self.end, self.marker, self.quote if inside else self.brackets, self.quote)
        for group in groups:
            found = group[mask[group]]
            if found.size:
                return found
        return groups[0][:0]


class Constraint:
    """Where one answer is in its grammar.

    An answer cut off by `max_tokens` is of no use to whoever asked for JSON or for a call. So when no more tokens are
    left than the shortest end takes, only tokens that lead there are allowed. All of them are the grammar's own.

    Args:
        matcher: at the grammar's beginning, its own.
        size: V.
        end: the token that ends an answer.
        closers: tokens that lead to the end.
        most: tokens that the answer may have.
    """

    def __init__(self, matcher: LLMatcher, size: int, end: int, closers: _Closers, most: int) -> None:
        self._matcher = matcher
        self._size = size
        self._end = end
        self._closers = closers
        self._left = most
        self._allowed: NDArray[np.bool_] | None = None
        self._shortest = 0
        self._look_at = most

    def allowed(self) -> NDArray[np.bool_]:
        """What may come next: [V]."""
        if self._allowed is None:
            mask = self._closers.without_exponent(self._mask(self._matcher))
            if self._must_close():
                mask = self._affordable(self._closing(mask))
            elif self._left <= self._shortest + _CAREFUL:
                mask = self._affordable(mask)
            self._allowed = mask
        return self._allowed

    def forced(self) -> int | None:
        """The next token, if only one may come."""
        allowed = self.allowed()
        return int(allowed.argmax()) if np.count_nonzero(allowed) == 1 else None

    def take(self, token: int) -> None:
        """The answer goes on with this token, which must be allowed. The end token changes nothing."""
        self._left -= 1
        self._allowed = None
        if token != self._end and not self._matcher.consume_token(token):
            raise AssertionError(f"token {token} is not in the grammar: {self._matcher.get_error()}")

    def _mask(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        if matcher.is_stopped():
            only_end = np.zeros(self._size, dtype=np.bool_)
            only_end[self._end] = True
            return only_end
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self._size].astype(np.bool_)

    def _closing(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        found = self._closers.among(mask)
        if not found.size:
            return mask
        only = np.zeros_like(mask)
        only[found] = True
        return only

    def _must_close(self) -> bool:
        """Whether all tokens left are needed for the end. The way there is measured now and then: that is a walk."""
        if self._left <= self._look_at:
            self._shortest = self._way_to_end(self._matcher)
            self._look_at = self._left - max(_LOOK_AGAIN, (self._left - self._shortest) // 2)
        return self._left <= self._shortest + 2 * _LOOK_AGAIN

    def _affordable(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Without choices behind which the end is too far, such as a tool with many arguments."""
        choices = np.flatnonzero(mask)
        if not 1 < len(choices) <= _FEW:
            return mask
        ways = np.array([self._way_behind(int(token)) for token in choices])
        kept = np.zeros_like(mask)
        kept[choices[(ways < self._left - 2 * _LOOK_AGAIN) | (ways == ways.min())]] = True
        return kept

    def _way_behind(self, token: int) -> int:
        after = self._matcher.deep_copy()
        if token == self._end or not after.consume_token(token):
            return 1
        return 1 + self._way_to_end(after)

    def _way_to_end(self, start: LLMatcher) -> int:
        """Tokens to the end by the way that `_closing` takes."""
        matcher = start.deep_copy()
        most = min(_LONGEST_END, self._left)
        for count in range(most):
            if matcher.is_stopped():
                return count + 1
            token = int(self._closing(self._mask(matcher)).argmax())
            if token == self._end or not matcher.consume_token(token):
                return count + 1
        return most
