"""Shell text as tokens: words in pieces, operators, here-documents. POSIX quoting, as far as published scripts use it.

Nothing is run. What a shell would look up (`$X`, `${X:-8}`) stays an expression in its word, for `shell.py` to fill.
Places in guides, such as `<N>` or `{{RANK}}`, are text and no redirections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from k3stack.errors import InputError

__all__ = ["Here", "Operator", "Piece", "Word", "tokens"]

_PLACE = re.compile(r"<[A-Za-z][^<>\n|;&\"']*>")
_OPERATOR = re.compile(r"&&|\|\||;;&|;&|;;|\|&|&>>|&>|>>|<<<|<<-?|>\||[<>]&|<>|[;&|()<>\n]")
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_NAME = re.compile(r"[A-Za-z_]\w*")
_RUN = re.compile(r"[^\s\\'\"$`#;&|()<>]+")
_QUOTED_RUN = re.compile(r"[^\\\"$]+")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word.

    Attributes:
        text: the text, or the inside of `${...}` where `looked_up`.
        quoted: inside quotes, so that it is never split into several words.
    """

    text: str
    quoted: bool = False
    looked_up: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, on a line (from 1). `array`: it opens `NAME=(`."""

    pieces: tuple[Piece, ...]
    line: int
    array: bool = False

    @property
    def plain(self) -> str:
        """The text, where nothing of it is quoted or looked up; else empty."""
        return "" if any(one.quoted or one.looked_up for one in self.pieces) else "".join(p.text for p in self.pieces)


@dataclass(frozen=True, slots=True)
class Operator:
    """`;`, `&&`, a new line and so on; redirections come without their target, which is the next word."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Here:
    """The text of a here-document, and the line before its first."""

    text: str
    line: int


Token = Word | Operator | Here


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a script.

    Raises:
        InputError: a quote or a bracket is never closed.
    """
    return _Scanner(text.replace("\r\n", "\n").replace("\r", "\n")).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.pieces: list[Piece] = []
        self.begun = False
        self.waiting: list[tuple[str, bool]] = []  # here-documents whose text begins on the next line

    def scan(self) -> Iterator[Token]:
        while self.at < len(self.text):
            char = self.text[self.at]
            operator = self._operator()
            if self._skip(char):
                continue
            if operator or char in " \t":
                if operator[:1] in "<>" and operator and self._numbers_a_file():
                    self.pieces, self.begun = [], False
                yield from self._ended(array=operator == "(" and self._assigns())
                yield from self._between(operator)
            else:
                self._in_word(char)
        yield from self._ended()

    def _operator(self) -> str:
        found = _OPERATOR.match(self.text, self.at)
        if (
            found is None
            or (not self.begun and self.text[self.at + 1 : self.at + 2] == "(" and found[0] in "<>")
            or _PLACE.match(self.text, self.at)
        ):
            return ""
        return found[0]

    def _skip(self, char: str) -> bool:
        """Whether there was a line that goes on, or a comment."""
        continued = _CONTINUED.match(self.text, self.at) if char == "\\" else None
        if continued:
            self._forward(continued[0])
            return True
        if char == "#" and not self.begun:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
            return True
        return False

    def _forward(self, passed: str) -> None:
        self.at += len(passed)
        self.line += passed.count("\n")

    def _assigns(self) -> bool:
        last = self.pieces[-1] if self.pieces else None
        return bool(last and not last.quoted and re.fullmatch(r"[A-Za-z_]\w*\+?=", last.text))

    def _numbers_a_file(self) -> bool:
        """Whether the word so far is the `2` of `2>`."""
        return len(self.pieces) == 1 and not self.pieces[0].quoted and self.pieces[0].text in "012"

    def _ended(self, array: bool = False) -> Iterator[Token]:
        if self.begun:
            yield Word(tuple(self.pieces), self.line, array)
        self.pieces, self.begun = [], False

    def _between(self, operator: str) -> Iterator[Token]:
        """What stands between words."""
        line = self.line
        if not operator:
            self.at += 1
            return
        self._forward(operator)
        if operator in ("<<", "<<-"):
            self._here_begins(operator == "<<-")
            return
        yield Operator(operator, line)
        if operator == "\n":
            yield from self._here_texts()

    def _here_begins(self, tabs: bool) -> None:
        found = re.compile(r"[ \t]*(['\"]?)(\\?[\w.-]+)\1").match(self.text, self.at)
        if found:
            self._forward(found[0])
            self.waiting.append((found[2].lstrip("\\"), tabs))

    def _here_texts(self) -> Iterator[Token]:
        for end, tabs in self.waiting:
            lines: list[str] = []
            start = self.line - 1
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self._forward(self.text[self.at : stop + 1])
                if (line.lstrip("\t") if tabs else line.rstrip()) == end:
                    break
                lines.append(line)
            yield Here("\n".join(lines), start)
        self.waiting = []

    def _in_word(self, char: str) -> None:
        self.begun = True
        if char == "\\":
            self._add(self.text[self.at + 1 : self.at + 2], quoted=True)
            self._forward(self.text[self.at : self.at + 2])
        elif char == "'":
            self._add(self._until("'", self.at + 1), quoted=True)
        elif char == '"':
            self._double()
        elif char == "$":
            self._dollar(quoted=False)
        elif char == "`":
            self._add(f"`{self._until('`', self.at + 1)}`")
        elif char in "<>":
            self._process()
        else:
            run = _RUN.match(self.text, self.at)
            self._add(run[0] if run else char)
            self._forward(run[0] if run else char)

    def _add(self, text: str, quoted: bool = False, looked_up: bool = False) -> None:
        last = self.pieces[-1] if self.pieces else None
        if last and not looked_up and not last.looked_up and last.quoted == quoted:
            self.pieces[-1] = Piece(last.text + text, quoted)
        else:
            self.pieces.append(Piece(text, quoted, looked_up))

    def _until(self, end: str, start: int) -> str:
        """The text up to an end, which is passed.

        Raises:
            InputError: it never comes.
        """
        found = self.text.find(end, start)
        if found < 0:
            raise InputError(
                f"the command cannot be read: {end} is never closed",
                where=f"line {self.line}",
                hint="Check its quotes.",
            )
        inside = self.text[start:found]
        self._forward(self.text[self.at : found + len(end)])
        return inside

    def _double(self) -> None:
        line, self.at = self.line, self.at + 1
        self._add("", quoted=True)
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                after = self.text[self.at + 1]
                self._add("" if after == "\n" else after, quoted=True)
                self._forward(self.text[self.at : self.at + 2])
            elif char == "$":
                self._dollar(quoted=True)
            else:
                run = _QUOTED_RUN.match(self.text, self.at)
                self._add(run[0] if run else char, quoted=True)
                self._forward(run[0] if run else char)
        raise InputError(
            'the command cannot be read: " is never closed', where=f"line {line}", hint="Check its quotes."
        )

    def _dollar(self, quoted: bool) -> None:
        after = self.text[self.at + 1 : self.at + 2]
        if after == "'" and not quoted:
            self._ansi()
        elif after in ("{", "("):
            start = self.at
            inside = self._balanced(start + 1)
            if after == "{":
                self._add(inside[1:-1], quoted, looked_up=True)
            else:
                self._add(f"${inside}", quoted)
            self._forward(self.text[start : start + 1 + len(inside)])
        elif name := _NAME.match(self.text, self.at + 1):
            self._add(name[0], quoted, looked_up=True)
            self._forward(self.text[self.at : name.end()])
        elif after and after in "@*#?$!0123456789-":
            self._add(after, quoted, looked_up=True)
            self._forward(self.text[self.at : self.at + 2])
        else:
            self._add("$", quoted)
            self.at += 1

    def _process(self) -> None:
        """A place in a guide, `<N>`, or another command's input, `>(tee log)`."""
        place = _PLACE.match(self.text, self.at)
        text = place[0] if place else self.text[self.at] + self._balanced(self.at + 1)
        self._add(text, quoted=not place)
        self._forward(text)

    def _ansi(self) -> None:
        found = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, self.at)
        if found is None:
            self._add("$")
            self.at += 1
            return
        self._add(re.sub(r"\\(.)", lambda one: _ANSI.get(one[1], one[0]), found[1]), quoted=True)
        self._forward(found[0])

    def _balanced(self, start: int) -> str:
        """The text from a bracket to the one that closes it; quotes inside are passed over."""
        inside = self._closed(start, quotes=True)
        if not inside or "\n" in inside:
            inside = self._closed(start, quotes=False) or inside
        if inside:
            return inside
        raise InputError(
            f"the command cannot be read: {self.text[start]} is never closed",
            where=f"line {self.line}",
            hint="Check its quotes.",
        )

    def _closed(self, start: int, quotes: bool) -> str:
        """The same; empty where it is never closed. Texts inside may have an apostrophe that is no quote."""
        pairs = {"{": "}", "(": ")"}
        opened = self.text[start]
        depth, at, quote = 0, start, ""
        while at < len(self.text):
            char = self.text[at]
            if quote:
                quote = "" if char == quote else quote
            elif char == "\\":
                at += 1
            elif quotes and char in "'\"":
                quote = char
            elif char == opened:
                depth += 1
            elif char == pairs[opened]:
                depth -= 1
                if depth == 0:
                    return self.text[start : at + 1]
            at += 1
        return ""
