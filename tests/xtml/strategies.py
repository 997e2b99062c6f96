"""What completions are made of, well-formed and not."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

TOOLS = ("get_weather", "read_file", "delete_file")
CONTROL_TEXTS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
TAGS = ("message", "think", "response", "tools", "call", "argument", "json")


def opener(tag: str, attributes: str = "") -> str:
    return f"<|open|>{tag}{attributes}<|sep|>"


def closer(tag: str) -> str:
    return f"<|close|>{tag}<|sep|>"


def argument(key: str, value: str, kind: str = "string") -> str:
    return opener("argument", f' key="{key}" type="{kind}"') + value + closer("argument")


def call(name: str, *arguments: str) -> str:
    return opener("call", f' tool="{name}" index="1"') + "".join(arguments) + closer("call")


_words = st.sampled_from(
    [
        "why",
        "ok",
        " ",
        "\n",
        "<",
        "<|",
        "3",
        "three",
        "true",
        "null",
        "1e400",
        "NaN",
        "{}",
        '{"a":1,"a":2}',
        "[1]",
        "é",
    ]
)
_attributes = st.sampled_from(
    [
        "",
        ' tool="read_file" index="1"',
        " tool='read_file' index='1'",
        ' tool="unknown"',
        ' index="2"',
        ' key="path" type="string"',
        ' key="n" type="number"',
        ' key="o" type="object"',
        " key='path' type='string'",
        ' type="string"',
        ' key="path"',
        ' type="object"',
        '  tool="read_file" ',
        ' tool="a&amp;&quot;b"',
        ' tool="open',
        " junk",
        ' key = "x"',
        ' key="a" key="b"',
    ]
)
_fitting = st.one_of(
    st.sampled_from([opener("think"), opener("response"), opener("tools"), *map(closer, TAGS)]),
    st.sampled_from([' tool="read_file" index="1"', ' tool="get_weather"', " tool='read_file'", ' index="1"']).map(
        lambda text: opener("call", text)
    ),
    st.sampled_from([' key="path" type="string"', ' key="n" type="number"', ' type="string"']).map(
        lambda text: opener("argument", text)
    ),
    st.just(opener("json", ' type="object"')),
    st.just(call("read_file", argument("path", "a.txt"))),
)
_any_marker = st.builds(
    lambda start, before, tag, attributes, after: f"{start}{before}{tag}{attributes}{after}<|sep|>",
    st.sampled_from(["<|open|>", "<|close|>"]),
    st.sampled_from(["", "", " ", "\n"]),
    st.sampled_from([*TAGS, "foo", "Call", "calls", ""]),
    st.one_of(st.just(""), _attributes),
    st.sampled_from(["", "", " "]),
)
fragments = st.one_of(_words, _fitting, _fitting, _any_marker, st.sampled_from(CONTROL_TEXTS))


@st.composite
def marker_soups(draw: st.DrawFn) -> str:
    """Fragments in any order, sometimes ended properly, sometimes cut off in the middle."""
    start = draw(st.sampled_from(["", "", "why" + closer("think"), "why" + closer("think") + opener("response")]))
    middle = "".join(draw(st.lists(fragments, max_size=14)))
    end = draw(st.sampled_from(["", closer("message"), closer("message"), closer("message") + "<|end_of_msg|>"]))
    text = start + middle + end
    return text if draw(st.booleans()) else text[: draw(st.integers(0, len(text)))]


_values = st.sampled_from([("path", "string"), ("n", "number"), ("o", "object"), ("b", "boolean")])
_arguments = st.builds(
    lambda named, value: [opener("argument", f' key="{named[0]}" type="{named[1]}"'), value, closer("argument")],
    _values,
    _words,
)
_json_blocks = st.builds(
    lambda value: [opener("json", ' type="object"'), value, closer("json")],
    st.sampled_from(['{"path":"a"}', '{"a":1,"a":2}', "[1]", "{", '{"a":NaN}']),
)
_calls = st.builds(
    lambda start, parts: [start, *(piece for part in parts for piece in part), closer("call")],
    st.sampled_from([opener("call", ' tool="read_file" index="1"'), opener("call", ' tool="x" index="1"')]),
    st.lists(_arguments, max_size=3) | st.lists(_json_blocks, min_size=1, max_size=2),
)


@st.composite
def damaged_messages(draw: st.DrawFn) -> str:
    """A well-formed message with up to four pieces left out, doubled, moved or put in, perhaps cut off."""
    pieces = ["why", closer("think"), opener("response"), draw(_words), closer("response")]
    calls_made = draw(st.lists(_calls, max_size=3))
    if calls_made:
        pieces += [opener("tools"), *(piece for made in calls_made for piece in made), closer("tools")]
    pieces.append(closer("message"))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, max(0, len(pieces) - 1)))
        match draw(st.sampled_from(["leave out", "double", "move", "put in"])):
            case "leave out":
                del pieces[place : place + 1]
            case "double":
                pieces[place:place] = pieces[place : place + 1]
            case "move":
                pieces.insert(draw(st.integers(0, len(pieces))), pieces.pop(place) if pieces else "")
            case _:
                pieces.insert(place, draw(fragments))
    text = "".join(pieces)
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 3)) == 0 else text


completions = marker_soups() | damaged_messages() | damaged_messages()


def cuts(text: str) -> st.SearchStrategy[list[str]]:
    """The text in pieces."""
    places = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    return places.map(lambda at: [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)

calls: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda name, arguments: {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}},
    st.text(min_size=1, max_size=12),
    st.dictionaries(st.text(max_size=8), json_values, max_size=4),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Questions, answers with reasoning and calls, and the results of the calls in any order."""
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    part = st.builds(lambda text: {"type": "text", "text": text}, st.text()) | st.just(image)
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(st.text())})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(st.text() | st.lists(part))})
        made = [{**call, "id": f"id-{number}"} for number, call in enumerate(draw(st.lists(calls, max_size=3)))]
        texts = {"reasoning": draw(st.text()), "content": draw(st.text())}
        messages.append({"role": "assistant", **texts, "tool_calls": made})
        results = [{"role": "tool", "tool_call_id": call["id"], "content": draw(st.text())} for call in made]
        messages += draw(st.permutations(results))
    return messages
