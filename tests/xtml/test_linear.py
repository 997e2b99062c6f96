"""The parser stays linear on inputs made to hurt it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from k3stack.xtml import Parser
from tests.xtml.strategies import argument, call, closer, opener

HEAD = "t" + closer("think") + opener("response") + closer("response") + opener("tools")
VALUE = HEAD + opener("call", ' tool="f"') + opener("argument", ' key="a" type="string"')

# What comes before, what repeats, what comes last.
HURTING = {
    "long value": (VALUE, "abc ", closer("argument") + closer("call") + closer("tools") + closer("message")),
    "value of markers": (VALUE, closer("argument") + "x", ""),
    "value of openers": (VALUE, opener("call", ' tool="f"') + opener("argument", ' key="a"'), closer("message")),
    "value of json openers": (VALUE, opener("call", ' tool="f"') + opener("json"), closer("message")),
    "reasoning of tools markers": ("", opener("tools"), ""),
    "unclosed reasoning": ("a" + opener("response"), "abc ", closer("think")),
    "calls": (HEAD, call("f", argument("a", "b")), ""),
    "unclosed calls": (HEAD, opener("call", ' tool="f"'), closer("message")),
    "arguments": (HEAD + opener("call", ' tool="f"'), argument("a", "b"), ""),
    "control tokens": ("", "<|open|>", ""),
    "beginnings of control tokens": ("", "<", ""),
    "an attribute without end": (HEAD + '<|open|>call tool="', "a ", ""),
    "attributes": (HEAD + "<|open|>call", ' a="b"', "<|sep|>"),
    "words for attributes": (HEAD + "<|open|>call", " word", "<|sep|>"),
    "equals signs": (HEAD + "<|open|>call ", "a=", "<|sep|>"),
    "quotes": (HEAD + "<|open|>call ", "a=\"'", "<|sep|>"),
    "spaces": (HEAD + "<|open|>", " ", "call<|sep|>"),
    "ends": ("", "<|end_of_msg|>", ""),
    "message closes": (HEAD, closer("message"), ""),
    "stray tools": (HEAD + closer("tools"), opener("tools") + " ", ""),
    "brackets": (VALUE.replace("string", "array"), "[", closer("argument")),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """The collector visits what other tests left, more often the more is made: that is no time of the parser."""
    gc.disable()
    yield
    gc.enable()


def seconds(name: str, repeats: int) -> float:
    before, again, last = HURTING[name]
    parser = Parser("think", tools=["f"])
    begin = time.process_time()
    parser.feed(before)
    for _ in range(repeats):
        parser.feed(again)
    parser.feed(last)
    parser.finish()
    return time.process_time() - begin


@pytest.mark.slow
@pytest.mark.parametrize("name", HURTING)
def test_eight_times_the_pieces_take_about_eight_times_as_long(name: str) -> None:
    few, many = 4_000, 32_000
    ratios = (min(seconds(name, many) for _ in range(2)) / min(seconds(name, few) for _ in range(3)) for _ in range(4))
    assert any(ratio < 24 for ratio in ratios), "8 if linear, 64 if quadratic, and more now and then on a busy machine"
