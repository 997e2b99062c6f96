"""K3's tokenizer: a tiktoken model file and 256 special tokens behind its ranks, read from a checkpoint's folder.

Two files, as Moonshot ships them: `tiktoken.model` has a line for each rank (the token's bytes in base64, then the
rank), `tokenizer_config.json` names special tokens in `added_tokens_decoder`. Special ids follow the last rank; those
that the file does not name are called `<|reserved_token_ID|>`. Tiny checkpoints carry the same two files.

Ordinary text never yields a special id, whatever it spells: specials come from prompt segments alone.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tiktoken

from k3stack.errors import CheckpointError, InputError, next_step
from k3stack.files import json_value
from k3stack.xtml import CONTROL_TOKENS, Vocabulary

__all__ = ["Tokenizer"]

_SPECIALS = 256
_LONGEST_RUN = 100_000
"""Characters encoded at a time: tiktoken's time grows faster than the text within one run of letters."""

# The cutting of text before merging, as of the Kimi tokenizers: Han runs, words with their first space and English
# contraction, up to three digits, punctuation, line ends, spaces.
_LETTERS = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_WORD = (
    r"[^\r\n\p{L}\p{N}]?"
    r"(?:[\p{Lu}\p{Lt}" + _LETTERS + r"]*[\p{Ll}" + _LETTERS + r"]+"
    r"|[\p{Lu}\p{Lt}" + _LETTERS + r"]+[\p{Ll}" + _LETTERS + r"]*)"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
)
_PATTERN = "|".join(
    (r"[\p{Han}]+", _WORD, r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
)


class Tokenizer:
    """Text to ids and back.

    Args:
        ranks: ordinary tokens and their ids, 0 to n-1.
        names: ids of special tokens and their names; unnamed ids up to n+255 get a reserved name.
        where: the folder, for messages.
    """

    def __init__(self, ranks: dict[bytes, int], names: dict[int, str], where: str | Path = "tokenizer") -> None:
        first = len(ranks)
        if sorted(ranks.values()) != list(range(first)):
            raise CheckpointError("ranks are not 0 to n-1, each once", where=where)
        misplaced = [number for number in names if not first <= number < first + _SPECIALS]
        if misplaced:
            raise CheckpointError(f"the special id {misplaced[0]} is not behind the {first} ranks", where=where)
        self.size = first + _SPECIALS
        self.name_of = {n: names.get(n, f"<|reserved_token_{n}|>") for n in range(first, self.size)}
        self.special = {name: number for number, name in self.name_of.items()}
        if len(self.special) != _SPECIALS:
            raise CheckpointError("two special tokens have the same name", where=where)
        missing = [name for name in CONTROL_TOKENS if name not in self.special]
        if missing:
            raise CheckpointError(f"no special token {missing[0]}", where=where, hint="Is this a Kimi-K3 tokenizer?")
        self.encoding = tiktoken.Encoding(
            "kimi-k3", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=self.special
        )
        self.vocabulary = Vocabulary(self.bytes_of, {self.special[name]: name for name in CONTROL_TOKENS})

    @classmethod
    def load(cls, folder: Path, vocab_size: int | None = None) -> Tokenizer:
        """Read the two files of a checkpoint.

        Raises:
            CheckpointError: a file is missing or broken, or does not have `vocab_size` tokens.
        """
        path = folder / "tiktoken.model"
        tokenizer = cls(_read_ranks(path), _read_names(folder / "tokenizer_config.json"), path)
        if vocab_size is not None and tokenizer.size != vocab_size:
            what = f"has {tokenizer.size} tokens with specials, config.json says {vocab_size}"
            raise CheckpointError(what, where=path)
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text. Half surrogate pairs become U+FFFD: UTF-8 has no bytes for them."""
        text = text.encode("utf-8", errors="surrogatepass").decode("utf-8", errors="replace")
        ids: list[int] = []
        for start in range(0, len(text), _LONGEST_RUN):
            ids += self.encoding.encode_ordinary(text[start : start + _LONGEST_RUN])
        return ids

    def bytes_of(self, number: int) -> bytes:
        """The bytes of one token; of a special one its name.

        Raises:
            LookupError: there is no such token.
        """
        name = self.name_of.get(number)
        return self.encoding.decode_single_token_bytes(number) if name is None else name.encode()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, with special tokens by name and broken UTF-8 as U+FFFD.

        Raises:
            InputError: an id that the vocabulary does not have.
        """
        try:
            return b"".join(map(self.bytes_of, ids)).decode("utf-8", errors="replace")
        except (KeyError, OverflowError) as error:
            raise InputError(f"no token {error}", where="tokens") from None

    def check(self, ids: Sequence[int]) -> None:
        """Make sure that all ids are in the vocabulary.

        Raises:
            InputError: names the first that is not.
        """
        for position, number in enumerate(ids):
            if not 0 <= number < self.size:
                raise InputError(f"no token {number} in a vocabulary of {self.size}", where=f"prompt[{position}]")


def _read_ranks(path: Path) -> dict[bytes, int]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        hint = "Copy it from the checkpoint it belongs to; `k3 tiny` writes one"
        raise CheckpointError(f"cannot be read: {error.strerror}", where=path, hint=hint) from None
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise CheckpointError("is no `base64 rank`", where=f"{path}: line {number}") from None
    return ranks


def _read_names(path: Path) -> dict[int, str]:
    try:
        config: Any = json_value(path.read_bytes())
        tokens = config["added_tokens_decoder"]
        return {int(number): str(token["content"]) for number, token in tokens.items()}
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=path, hint=next_step(error)) from None
    except (ValueError, TypeError, KeyError, AttributeError):
        what = "is not what names special tokens: {id: {content: name}}"
        raise CheckpointError(what, where=f"{path}: added_tokens_decoder") from None
