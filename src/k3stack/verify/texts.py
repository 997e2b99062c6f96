"""Prompts whose right answers are known: documents of records with codes in them, and texts to copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

__all__ = ["Document", "copy_prompt", "copy_text", "document", "plain_words"]

_NAMES = (
    "amber anchor apple arrow autumn badger balcony basil beacon birch blanket bramble bridge bronze canyon cedar "
    "chapel cherry cinder clover cobalt comet copper coral cotton crystal dahlia desert dolphin ember falcon feather "
    "fennel fjord forest fossil garden garnet ginger glacier granite harbor hazel heron hickory indigo island ivory "
    "jasmine juniper kettle lagoon lantern laurel lemon lichen lilac linen lotus magnet mango maple marble meadow "
    "mercury mint mirror mosaic nectar nutmeg oasis ocean olive onyx opal orchid otter oyster parsley pearl pebble "
    "pepper pine plum pocket poplar prairie quartz quiver rabbit raven ribbon river robin rocket rosemary ruby saddle "
    "saffron sage salmon sandal sapphire shadow silver sparrow spruce summit sunset thistle thunder timber topaz "
    "tulip tundra turtle umber valley velvet violet walnut willow winter zephyr"
).split()

# Letters of several scripts: their bytes are cut by tokens, and a stream that decodes each token alone breaks them.
_FOREIGN = ("héllo", "naïve", "Größe", "日本語", "月之暗面", "Привет", "नमस्ते", "안녕", "🌙", "👩‍🚀", "ﷺ", "∑∞")


@dataclass(frozen=True, slots=True)
class Document:
    """Records, one a line, each giving a name its code.

    Attributes:
        records: (name, code) in order; names are unique.
    """

    title: str
    records: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The document as the model sees it."""
        lines = [f"Record {number}: the code of {name} is {code}." for number, (name, code) in enumerate(self.records)]
        return "\n".join([f"Register {self.title}", *lines])

    def at(self, depth: float) -> tuple[str, str]:
        """(name, code) of the record at this depth, 0 for the first and 1 for the last."""
        return self.records[round(depth * (len(self.records) - 1))]

    def ask(self, name: str) -> str:
        """The whole prompt: the document, and a question about one name."""
        return f"{self.text}\n\nWhat is the code of {name} in this register? Answer with the code only."

    def ask_all(self, names: Sequence[str]) -> str:
        """The same with a question about several names."""
        question = "What are the codes of these names in this register, in this order:"
        return f"{self.text}\n\n{question} {'; '.join(names)}? Answer with the codes only, separated by spaces."

    def changed(self, name: str, code: str) -> Document:
        """The same document with another code for one name."""
        records = tuple((one, code if one == name else old) for one, old in self.records)
        return Document(self.title, records)


def document(dice: Random, records: int) -> Document:
    """A new register. One record is about 16 tokens."""
    names: list[str] = []
    while len(names) < records:
        fresh = [f"{dice.choice(_NAMES)} {dice.choice(_NAMES)} {dice.randrange(100)}" for _ in range(records)]
        names = list(dict.fromkeys([*names, *fresh]))
    return Document(_code(dice), tuple((name, _code(dice)) for name in names[:records]))


def _code(dice: Random) -> str:
    return f"{''.join(dice.choices('ABCDEFGHKLMNPQRTUVWXY', k=3))}-{dice.randrange(1000, 9999)}"


def copy_text(dice: Random, words: int) -> str:
    """Words, numbers and letters of other scripts, which nobody can guess and every token of which counts."""
    parts = []
    for number in range(words):
        if number % 5 == 4:
            parts.append(dice.choice(_FOREIGN))
        elif number % 3 == 2:
            parts.append(str(dice.randrange(10, 9999)))
        else:
            parts.append(dice.choice(_NAMES))
    return " ".join(parts)


def plain_words(dice: Random, count: int) -> str:
    """Common words in no order, which cost few tokens for their length."""
    return " ".join(dice.choices(_NAMES, k=count))


def copy_prompt(text: str) -> str:
    """Asks for an exact copy."""
    return f"Reply with exactly this text and nothing else: {text}"
