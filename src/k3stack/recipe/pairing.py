"""Whether prefill and decode fit together: what their two commands disagree about, by the rules of engines/pairs.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from k3stack.engines.check import has
from k3stack.engines.pairs import PairRule, pair_rules
from k3stack.recipe.meaning import layout_of, number_of, sizes_known

__all__ = ["Disagreement", "Said", "disagreements"]

_DCP = {"vllm": "decode-context-parallel-size", "sglang": "dcp-size"}
_NAMES = {
    "tp": "the attention's tensor-parallel size",
    "pp": "the number of pipeline stages",
    "dcp": "the decode-context-parallel size",
    "version": "the release",
    "model": "the model",
}


@dataclass(frozen=True, slots=True)
class Said:
    """What a command says.

    Attributes:
        values: canonical flags.
        version_known: the release is said, not assumed.
    """

    values: Mapping[str, Any]
    model: str
    version: str
    version_known: bool


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A rule that two commands do not keep, and how they differ, in a sentence."""

    rule: PairRule
    what: str


def disagreements(engine: str, prefill: Said, decode: Said) -> Iterator[Disagreement]:
    """What keeps prefill and decode of one engine from working together; what is not known is not held against them."""
    for rule in pair_rules(engine):
        if not all(rule.concerns(_release(one.version)) for one in (prefill, decode)):
            continue
        if not all(has(key, wanted, decode.values, {}) for key, wanted in rule.decode.items()):
            continue
        here, there = _value(rule, prefill), _value(rule, decode)
        if here is not None and there is not None and not _agree(rule, here, there):
            named = _NAMES.get(rule.of, f"--{rule.of}")
            yield Disagreement(rule, f"{named} is {here} for prefill and {there} for decode")


def _release(version: str) -> str:
    return version if version[:1].isdigit() else "0.1"  # the image of the model card is older than every release


def _value(rule: PairRule, said: Said) -> str | None:
    """What a command says, as text; None where that is not known."""
    if rule.of in ("tp", "pp", "dcp"):
        return _size(rule, said)
    if rule.of == "version":
        return said.version if said.version_known else None
    value: Any = said.model or None
    if rule.of != "model":
        name, _, inner = rule.of.partition(".")
        value = said.values.get(name)
        if inner:
            value = value.get(inner) if isinstance(value, dict) else None
    if value is None:
        value = said.model if rule.standard == "model" else rule.standard
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return None if value is None or "$" in text or "<" in text else rule.same.get(text, text)


def _size(rule: PairRule, said: Said) -> str | None:
    if not sizes_known(rule.engine, said.values):
        return None
    if rule.of == "dcp":
        return str(number_of(said.values, _DCP[rule.engine]))
    return str(getattr(layout_of(rule.engine, said.values), rule.of))


def _agree(rule: PairRule, prefill: str, decode: str) -> bool:
    if rule.of == "model":
        return _same_model(rule.engine, prefill, decode)
    if rule.must == "equal":
        return prefill == decode
    here, there = int(prefill), int(decode)
    if rule.must == "divide":
        return max(here, there) % max(1, min(here, there)) == 0
    return there in (here, 1) if rule.must == "decode-equal-or-one" else here in (there, 1)


def _same_model(engine: str, one: str, other: str) -> bool:
    """vLLM compares names as they are written; for SGLang a folder may hold what a hub's name means."""
    last = [name.rstrip("/").rpartition("/")[2].lower() for name in (one, other)]
    return one == other if engine == "vllm" else last[0] == last[1]
