"""The simple commands of a shell script, each with the variables that hold where it stands. Nothing is run.

Branches are all gone into, each from what held before the first. A variable that the script sets, or that has a
default, is filled in; any other stays as it is written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from k3stack.recipe.copied.tokens import Here, Operator, Piece, Word, tokens

__all__ = ["Simple", "simple_commands"]

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DEFAULT = re.compile(r"([A-Za-z_]\w*|\d)(:?[-=+?])(.*)", re.DOTALL)
_LIST = re.compile(r"([A-Za-z_]\w*)\[[@*]\]")
_REDIRECTIONS = {">", ">>", "<", ">&", "<&", "&>", "&>>", ">|", "<>", "<<<"}
_OPENING = ("if", "while", "until", "for", "select", "case", "{")
_WORDS = {"then", "do", "!", "time"}
_RANK = re.compile(r"(?i)(rank|procid|node_?id|index)$")
"""Variables that differ between nodes: the default that a script gives them is one node's."""

_LONGEST = 65_536
"""Characters of a filled word: a script that doubles a variable again and again is not followed."""


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command, or a here-document (`text`).

    Attributes:
        environment: exported variables, and those in front of the command.
        unexported: other variables that the script set.
        place: the branch of a `case`, or the function, that it stands in.
        block: a number for the stretch of commands that run one after the other.
        background: it ends with `&`, so that the next one runs beside it.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    unexported: Mapping[str, str]
    line: int
    place: str
    block: int
    background: bool = False
    text: str = ""


@dataclass(slots=True)
class _Variables:
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    exports_all: bool = False

    def copy(self) -> _Variables:
        return _Variables(dict(self.values), set(self.exported), self.exports_all)

    def set(self, name: str, more: str, words: tuple[str, ...]) -> None:
        old = self.values.get(name, ()) if more else ()
        kept = (old[0] + words[0],) if more and len(old) == len(words) == 1 and more != "(" else (*old, *words)
        if sum(map(len, kept)) <= _LONGEST:
            self.values[name] = kept
        if self.exports_all:
            self.exported.add(name)


@dataclass(slots=True)
class _Scope:
    """A branch or function that is open: its word, what held before it, and its name."""

    kind: str
    before: _Variables
    place: str
    block: int


def simple_commands(text: str, variables: Mapping[str, str] | None = None) -> Iterator[Simple]:
    """The commands of a script, in order.

    Args:
        variables: what is in the environment when it starts.

    Raises:
        InputError: a quote is never closed.
    """
    return _Script(variables or {}).run(text)


class _Script:
    def __init__(self, variables: Mapping[str, str]) -> None:
        self.now = _Variables({name: (text,) for name, text in variables.items()}, set(variables))
        self.scopes: list[_Scope] = []
        self.place = ""
        self.block = self.blocks = 0
        self.words: list[Word] = []
        self.pattern = False  # inside `case`, before the `)` of a branch
        self.skip = False  # the next word is the target of a redirection
        self.array: tuple[str, str, list[str]] | None = None
        self.function = ""
        self.used: set[str] = set()  # variables that the script itself looks up

    def run(self, text: str) -> Iterator[Simple]:
        for token in tokens(text):
            if isinstance(token, Here):
                yield self._simple((), token.line, text=token.text)
            elif isinstance(token, Operator):
                yield from self._operator(token)
            elif self.skip:
                self.skip = False
            else:
                self._word(token)
        yield from self._end(background=False)

    def _word(self, word: Word) -> None:
        if self.array is not None:
            self.array[2].extend(self._filled(word))
        elif word.array:
            name, more, _ = _assigned("".join(piece.text for piece in word.pieces))
            self.array = (name, more, [])
        elif not self.words and self._keyword(word):
            pass
        else:
            self.words.append(word)
            if len(self.words) == 3 and self.words[0].plain == "case" and word.plain == "in":
                self.words, self.pattern = [], True

    def _keyword(self, word: Word) -> bool:
        """Whether the word at a command's beginning is the shell's own; opens and closes scopes."""
        text = word.plain
        if self.pattern:
            if text == "esac":
                self._close(("case",))
                self.pattern = False
                return True
            return False
        if text in _OPENING:
            if text == "{" and self.function:
                self._open("function", self.function)
                self.function = ""
            else:
                self._open(text, self.place)
            if text in ("for", "select", "case"):
                self.words.append(word)
            return True
        if text in ("elif", "else"):
            self._again()
            return True
        if text in ("fi", "done", "esac", "}"):
            self._close(
                {"fi": ("if",), "done": ("while", "until", "for", "select"), "esac": ("case",)}.get(
                    text, ("{", "function")
                )
            )
            return True
        return text in _WORDS

    def _open(self, kind: str, place: str) -> None:
        self.scopes.append(_Scope(kind, self.now.copy(), self.place, self.block))
        self.place = place
        self._next_block()

    def _next_block(self) -> None:
        self.blocks += 1
        self.block = self.blocks

    def _again(self) -> None:
        """Another branch: from what held before the first."""
        if self.scopes:
            self.now = self.scopes[-1].before.copy()
        self._next_block()

    def _close(self, kinds: tuple[str, ...]) -> None:
        if self.scopes and self.scopes[-1].kind in kinds:
            scope = self.scopes.pop()
            self.place, self.block = scope.place, scope.block
            if scope.kind in ("function", "case", "("):
                self.now = scope.before

    def _operator(self, token: Operator) -> Iterator[Simple]:
        text = token.text
        if text in _REDIRECTIONS:
            self.skip = True
        elif self.array is not None:
            if text == ")":
                name, more, words = self.array
                self.now.set(name, "(" if more else "", tuple(words))
                self.array = None
        elif self.pattern:
            self._pattern(text)
        elif text == "(":
            self._bracket()
        elif text == ")":
            yield from self._end(background=False)
            if self.function == "" and self.scopes and self.scopes[-1].kind == "(":
                self._close(("(",))
        else:
            yield from self._end(background=text == "&")
            if text in (";;", ";&", ";;&"):
                self._again()
                self.pattern = True

    def _pattern(self, text: str) -> None:
        if text == ")":
            outer = self.scopes[-1].place if self.scopes else ""
            names = "|".join(word for one in self.words for word in self._filled(one)).strip("*|")
            self.place = names or outer
            self.pattern, self.words = False, []

    def _bracket(self) -> None:
        """`NAME ()` begins a function, `(` alone a shell of its own."""
        if len(self.words) == 1 and self.words[0].plain not in ("", "for"):
            self.function = self.words[0].plain
            self.words = []
        elif not self.words:
            self._open("(", self.place)

    def _end(self, background: bool) -> Iterator[Simple]:
        words, self.words = self.words, []
        if not words:
            return
        first = words[0].plain
        if first in ("case", "for", "select"):
            return
        if first == "function" and len(words) > 1:
            self.function = words[1].plain
            if words[-1].plain == "{":
                self._open("function", self.function)
                self.function = ""
            return
        yield from self._command(words, background)

    def _command(self, words: list[Word], background: bool) -> Iterator[Simple]:
        front: dict[str, str] = {}
        rest = list(words)
        while rest and (found := self._assignment(rest[0])):
            front[found[0]] = found[1]
            rest.pop(0)
        filled = [text for word in rest for text in self._filled(word)]
        if not filled:
            for name, value in front.items():
                self.now.set(name, "", (value,))
            return
        if filled[0] in ("export", "declare", "typeset", "local", "readonly"):
            self._declare(filled)
            return
        if filled[0] == "unset":
            for name in filled[1:]:
                self.now.values.pop(name, None)
                self.now.exported.discard(name)
            return
        if filled[0] == "set" and {"-a", "allexport"} & set(filled[1:3]):
            self.now.exports_all = True
            return
        yield self._simple(tuple(filled), words[0].line, front, background)

    def _assignment(self, word: Word) -> tuple[str, str] | None:
        head = word.pieces[0] if word.pieces else None
        if head is None or head.quoted or head.looked_up or not _ASSIGNMENT.fullmatch(head.text):
            return None
        name, more, first = _assigned(head.text)
        if _RANK.search(name) and any(_DEFAULT.fullmatch(piece.text) for piece in word.pieces if piece.looked_up):
            return name, f"${{{name}}}"
        text = "".join(self._text(piece) for piece in (Piece(first), *word.pieces[1:]))
        old = " ".join(self.now.values.get(name, ())) if more else ""
        return name, (old + text)[:_LONGEST]

    def _declare(self, filled: list[str]) -> None:
        exports = filled[0] == "export" or any(word.startswith("-") and "x" in word for word in filled[1:])
        for word in filled[1:]:
            name, equals, text = word.partition("=")
            if not name.isidentifier():
                continue
            if equals:
                self.now.set(name, "", (text,))
            if exports:
                self.now.exported.add(name)

    def _simple(
        self,
        words: tuple[str, ...],
        line: int,
        front: Mapping[str, str] | None = None,
        background: bool = False,
        text: str = "",
    ) -> Simple:
        values = {name: " ".join(value) for name, value in self.now.values.items()}
        handed = {name: value for name, value in values.items() if name in self.now.exported} | dict(front or {})
        kept = {name: value for name, value in values.items() if name not in handed and name not in self.used}
        return Simple(words, handed, kept, line, self.place, self.block, background, text)

    def _filled(self, word: Word) -> list[str]:
        """The words that one word becomes: what is looked up outside quotes is split."""
        made: list[str] = []
        open_word: str | None = None
        for piece in word.pieces:
            if piece.looked_up and (items := self._items(piece)) is not None:
                first, *others = items or [""]
                open_word = (open_word or "") + first if items or open_word is not None else None
                for other in others:
                    made.append(open_word or "")
                    open_word = other
            elif piece.looked_up and not piece.quoted and self._known(piece):
                parts = _split(self._text(piece))
                if parts:
                    open_word = (open_word or "") + parts[0]
                    for other in parts[1:]:
                        made.append(open_word)
                        open_word = other
            else:
                open_word = (open_word or "") + self._text(piece)
        nothing = not open_word and any(piece.looked_up and self._items(piece) == [] for piece in word.pieces)
        return [*made, *([open_word] if open_word is not None and not nothing else [])]

    def _items(self, piece: Piece) -> list[str] | None:
        """The items of `${NAME[@]}`; none where the script made no such list."""
        found = _LIST.fullmatch(piece.text)
        self.used |= {found[1]} if found else set()
        return list(self.now.values.get(found[1], ())) if found else None

    def _known(self, piece: Piece) -> bool:
        return not self._text(piece).startswith("$")

    def _text(self, piece: Piece) -> str:
        if not piece.looked_up:
            return piece.text
        name = piece.text
        self.used.add(re.match(r"\w*", name)[0])  # type: ignore[index]  # which matches always
        found = _DEFAULT.fullmatch(name)
        if found:
            name, how, other = found[1], found[2], found[3]
            if how.endswith("+"):
                return self._inner(other) if self.now.values.get(name) else ""
            if name in self.now.values and (self.now.values[name] != ("",) or ":" not in how):
                return " ".join(self.now.values[name])
            return f"${{{name}}}" if how.endswith("?") or _RANK.search(name) else self._inner(other)
        if name in self.now.values:
            return " ".join(self.now.values[name])
        return f"${{{name}}}"

    def _inner(self, text: str) -> str:
        """The default inside `${X:-...}`: quotes and variables of its own."""
        if not re.search(r"[$'\"\\]", text):
            return text
        pieces = [
            piece
            for token in tokens(f'"{text}"' if '"' not in text else text)
            if isinstance(token, Word)
            for piece in token.pieces
        ]
        return "".join(map(self._text, pieces))


def _assigned(text: str) -> tuple[str, str, str]:
    """Name, `+` where it adds, and the beginning of the value."""
    found = _ASSIGNMENT.fullmatch(text)
    return (found[1], found[2], found[3]) if found else ("", "", text)


def _split(text: str) -> list[str]:
    """A variable's text as words. A shell does not look at quotes here, but what is meant by them is one word."""
    try:
        return shlex.split(text) if "'" in text else text.split()
    except ValueError:
        return text.split()
