"""Reading a command line as a release's parser would: words to settings with canonical names, and what is wrong.

This follows argparse, and what vLLM adds to it: underscores for dashes, JSON keys as `--flag.key value`. It never
runs the engine; tests compare it with the real parsers.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from k3stack.engines.releases import FlagInfo, Release

__all__ = ["Fault", "Problem", "Reading", "Setting", "merged", "read", "value_problem"]

_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_LATER = re.compile(r"\$[({\w]|<[^<>]+>|\{\{\w+\}\}")  # a shell variable or a place in a recipe: known when it runs
_SIZE = re.compile(r"-1|[aA][uU][tT][oO]|\d+(\.\d+)?[kmgt]|\d+[KMGT]?")  # vLLM: small letters are decimal, large binary

_NAMES = {
    "attention-config": ("backend", "mla_prefill_backend"),
    "compilation-config": ("cudagraph_mode", "mode"),
    "speculative-config": ("attention_backend",),
}
"""Keys whose values vLLM takes in letters of either size (0.27.1 and 0.33.0: vllm/config/{attention,compilation,
speculative}.py, upper()); the snapshots have them in capitals."""

_AUTO = {("attention-config", "backend"), ("speculative-config", "attention_backend")}
"""Of these, the ones that also take "auto"."""


class Fault(StrEnum):
    """What can be wrong with a word."""

    UNKNOWN = "unknown flag"
    AMBIGUOUS = "ambiguous flag"
    ABBREVIATED = "abbreviated flag"
    VALUE = "wrong value"
    MISSING = "missing value"
    EXTRA = "extra word"
    REPEATED = "given more than once"
    DEPRECATED = "deprecated flag"


_STOPS = {Fault.UNKNOWN, Fault.AMBIGUOUS, Fault.VALUE, Fault.MISSING, Fault.EXTRA}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        stops: whether the engine refuses to start; otherwise it starts and does something else than it seems.
    """

    fault: Fault
    word: str
    what: str
    fix: str = ""

    @property
    def stops(self) -> bool:
        """Whether the parser refuses the command."""
        return self.fault in _STOPS


@dataclass(frozen=True, slots=True)
class Setting:
    """A flag as it was given: its canonical name, its value (True, False, text, a list, or a JSON value), the word."""

    name: str
    value: Any
    word: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A command line, understood."""

    positional: tuple[str, ...]
    settings: tuple[Setting, ...]
    problems: tuple[Problem, ...]

    def values(self) -> dict[str, Any]:
        """Canonical names to values; the last one wins, JSON given in parts is put together."""
        found: dict[str, Any] = {}
        for setting in self.settings:
            found[setting.name] = setting.value
        return found


def merged(old: Any, new: Any) -> Any:
    """`new` laid over `old`, deep: keys of objects that `new` does not name stay."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: merged(old.get(key), value) for key, value in new.items()}}
    return new


def read(release: Release, words: Sequence[str]) -> Reading:
    """Read the words behind `vllm serve` or `sglang serve`.

    vLLM takes the model as a word anywhere, SGLang only as the first one, routers not at all.
    """
    first = bool(words) and not words[0].startswith("-")
    allowed = {"vllm": 1, "sglang": int(first)}.get(release.engine, 0)
    return _Reader(release, allowed).read(list(words))


class _Reader:
    def __init__(self, release: Release, positionals: int) -> None:
        self.release = release
        self.positionals = positionals
        self.positional: list[str] = []
        self.settings: list[Setting] = []
        self.problems: list[Problem] = []
        self.parts: dict[str, Any] = {}

    def read(self, words: list[str]) -> Reading:
        while words:
            word = words.pop(0)
            if not word.startswith("-") or word == "-" or _NUMBER.match(word):
                self._without_flag(word)
            elif " " in word.partition("=")[0] and word.startswith("-"):
                self._say(Fault.UNKNOWN, word, "flag and value are one word", "Write them as two words.")
            else:
                self._flag(word, words)
        for name, value in self.parts.items():
            earlier: Any = next((one.value for one in self.settings if one.name == name), {})
            self.settings.append(Setting(name, merged(earlier, value), f"--{name}.*"))
        self._repeated()
        return Reading(tuple(self.positional), tuple(self.settings), tuple(self.problems))

    def _say(self, fault: Fault, word: str, what: str, fix: str = "") -> None:
        self.problems.append(Problem(fault, word, what, fix))

    def _without_flag(self, word: str) -> None:
        self.positional.append(word)
        if len(self.positional) > self.positionals:
            self._say(Fault.EXTRA, word, f"{word!r} belongs to no flag")

    def _flag(self, word: str, words: list[str]) -> None:
        name, equals, given = word.partition("=")
        vllm = self.release.engine == "vllm"
        name, _, key = name.partition(".") if vllm and "." in name else (name, "", "")
        if vllm and name.startswith("--"):
            name = name.replace("_", "-")
        found = self._find(name, word)
        if found is None:
            if not equals:
                _drop_values(words, 1)
            return
        flag, on = found
        if flag.deprecated:
            fix = flag.deprecated[:1].upper() + flag.deprecated[1:].rstrip(".") + "."
            self._say(Fault.DEPRECATED, word, f"--{flag.name} is deprecated", fix)
        if flag.kind == "flag":
            if equals:
                self._say(Fault.VALUE, word, f"--{flag.name} takes no value", f"Write {name} alone.")
            self.settings.append(Setting(flag.name, on, name))
            return
        values = [given] if equals else _take(words, flag)
        self._valued(flag, name, key, values)

    def _find(self, name: str, word: str) -> tuple[FlagInfo, bool] | None:
        exact = self.release.spellings.get(name)
        if exact is not None:
            return exact
        longer = [one for one in self.release.spellings if name.startswith("--") and one.startswith(name)]
        longer = longer if self.release.abbreviations else []
        fields = {(self.release.spellings[one][0].name, self.release.spellings[one][1]) for one in longer}
        if len(fields) == 1:
            self._say(Fault.ABBREVIATED, word, f"{name} is short for {longer[0]}", f"Write {longer[0]}.")
            return self.release.spellings[longer[0]]
        if fields:
            self._say(Fault.AMBIGUOUS, word, f"{name} could be {', '.join(sorted(longer))}", "Write one of them.")
            return None
        near = difflib.get_close_matches(name, self.release.spellings, n=1, cutoff=0.75)
        where = f"{self.release.engine} {self.release.version}"
        self._say(Fault.UNKNOWN, word, f"{where} has no {name}", f"Did you mean {near[0]}?" if near else "Remove it.")
        return None

    def _valued(self, flag: FlagInfo, name: str, key: str, values: list[str]) -> None:
        if not values and flag.count not in ("?", "*"):
            self._say(Fault.MISSING, name, f"{name} needs a value")
            return
        if key:
            self._part(flag, key, values[0])
            return
        for value in values:
            wrong = "" if _LATER.search(value) else value_problem(flag, value)
            if wrong:
                self._say(Fault.VALUE, f"{name} {value}", wrong, _choose(flag) or _quote(flag, value))
                return
        if flag.count in ("+", "*") or isinstance(flag.count, int):
            self.settings.append(Setting(flag.name, list(values), name))
        elif not values:
            self.settings.append(Setting(flag.name, True, name))
        else:
            self.settings.append(Setting(flag.name, _convert(flag, values[0]), name))

    def _part(self, flag: FlagInfo, key: str, text: str) -> None:
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        for part in reversed(key.split(".")):
            value = {part: value}
        value = _named(flag, value)
        self.parts[flag.name] = merged(self.parts.get(flag.name), value)
        wrong = _json_problem(flag, value)
        if wrong:
            self._say(Fault.VALUE, f"--{flag.name}.{key}", wrong)

    def _repeated(self) -> None:
        seen: dict[str, Setting] = {}
        for setting in self.settings:
            flag = self.release.flags[setting.name]
            if setting.name in seen and not flag.repeats and not setting.word.endswith(".*"):
                first = seen[setting.name]
                self._say(
                    Fault.REPEATED,
                    setting.word,
                    f"--{setting.name} is given twice ({first.value}, then {setting.value}): the last one counts whole",
                    "Keep one.",
                )
            seen[setting.name] = setting


def _drop_values(words: list[str], most: int) -> None:
    while most and words and not words[0].startswith("-"):
        words.pop(0)
        most -= 1


def _take(words: list[str], flag: FlagInfo) -> list[str]:
    most = {None: 1, "?": 1}.get(flag.count, 10**6) if not isinstance(flag.count, int) else flag.count
    taken: list[str] = []
    while words and len(taken) < most and (not words[0].startswith("-") or _NUMBER.match(words[0])):
        taken.append(words.pop(0))
    return taken


def _choose(flag: FlagInfo) -> str:
    return f"Choose from {', '.join(flag.choices)}." if flag.choices and len(flag.choices) <= 30 else ""


def _quote(flag: FlagInfo, text: str) -> str:
    """What to do about JSON whose quotation marks a shell has taken away."""
    bare = flag.kind == "json" and text.lstrip().startswith("{") and '"' not in text
    return "Put the value in single quotes: a shell takes double ones away." if bare else ""


def _convert(flag: FlagInfo, text: str) -> Any:
    if flag.kind != "json":
        return text.upper() if _names_kernel(flag) and text.lower() != "auto" else text
    try:
        return _named(flag, json.loads(text))
    except ValueError:
        return text


def _names_kernel(flag: FlagInfo) -> bool:
    """Whether this is vLLM's --attention-backend, the short form of a key above; SGLang's has its choices in small."""
    return flag.name == "attention-backend" and not flag.choices


def _named(flag: FlagInfo, value: Any) -> Any:
    """The value with names as the snapshot has them."""
    names = _NAMES.get(flag.name, ()) if isinstance(value, dict) else ()
    return {**value, **{key: value[key].upper() for key in names if _spelled(flag, value, key)}} if names else value


def _spelled(flag: FlagInfo, value: dict[str, Any], key: str) -> bool:
    text = value.get(key)
    return isinstance(text, str) and not _is_auto(flag, key, text)


def _is_auto(flag: FlagInfo, key: str, text: str) -> bool:
    return (flag.name, key) in _AUTO and text.lower() == "auto"


def value_problem(flag: FlagInfo, text: str) -> str:
    """What is wrong with a value as text; empty when nothing is."""
    if flag.choices and text not in flag.choices:
        return f"--{flag.name} does not take {text!r}"
    if flag.kind == "int" and not _is(int, text):
        return f"--{flag.name} takes a whole number, not {text!r}"
    if flag.kind == "float" and not _is(float, text):
        return f"--{flag.name} takes a number, not {text!r}"
    if flag.kind == "size" and not _SIZE.fullmatch(text):
        return f"--{flag.name} takes a whole number such as 8192 or 8k, not {text!r}"
    if flag.kind == "json":
        try:
            value = json.loads(text)
        except ValueError as error:
            loose = not flag.fields and not text.lstrip().startswith(("{", "["))
            return "" if loose else f"--{flag.name} takes JSON: {error}"
        return _json_problem(flag, value)
    return ""


def _json_problem(flag: FlagInfo, value: Any) -> str:
    if not flag.fields or not isinstance(value, dict):
        return ""
    return next(_key_problems(flag, value), "")


def _key_problems(flag: FlagInfo, value: dict[str, Any]) -> Iterator[str]:
    for key, one in _named(flag, value).items():
        if key not in flag.fields:
            near = difflib.get_close_matches(key, flag.fields, n=1)
            yield f"--{flag.name} has no key {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        elif flag.fields[key] and isinstance(one, str) and one not in flag.fields[key] and not _is_auto(flag, key, one):
            yield f"--{flag.name}: {key} does not take {one!r}"


def _is(kind: type, text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
