"""The guard's small parts, each by itself."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.errors import InputError, UsageError
from k3stack.guard import Policy, StreamGuard, parse_chat_request
from k3stack.guard.codec import StrictJsonError, dumps, loads, strict_object
from k3stack.guard.images import ImageLimits, pixel_size
from k3stack.guard.refused import RefusedError
from k3stack.guard.repair import coerced
from k3stack.guard.settings import Balance, Settings
from k3stack.guard.sse import SseReader
from k3stack.guard.tools import ToolSet
from k3stack.guard.upstreams import Pool, conversation_key
from k3stack.values import dump, load
from tests.guard.answers import Answer, body, call, read_stream

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_strict_json_takes_all_strict_json(value: dict[str, Any]) -> None:
    text = json.dumps(value, allow_nan=False)
    try:
        assert strict_object(text) == value
    except StrictJsonError:
        assert "\\ud" in text.lower(), "only half a surrogate pair may be refused"


@st.composite
def nearly_objects(draw: st.DrawFn) -> str:
    """The JSON of an object with a few characters replaced, so that some are JSON still and some are not."""
    value = draw(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    at, cut = draw(st.integers(0, len(text))), draw(st.integers(0, 2))
    return (
        text[:at]
        + draw(st.sampled_from(["", " ", "\n", ",", '"', "\\", "{", "}", "1", "e999", "NaN"]))
        + text[at + cut :]
    )


@given(st.text() | nearly_objects())
def test_strict_json_takes_no_more_than_python(text: str) -> None:
    try:
        value = strict_object(text)
    except StrictJsonError as error:
        assert error.problem
    else:
        assert value == json.loads(text) and isinstance(value, dict)


@given(JSON)
def test_json_comes_back(value: Any) -> None:
    # orjson reads integers past 64 bits as doubles; none of them is one that this guard acts on.
    assert loads(dumps(value)) == json.loads(json.dumps(value), parse_int=lambda text: loads(text))


@given(st.lists(st.sampled_from([b"data: a", b"data:b", b": ping", b"event: x\ndata: c\ndata: d", b"", b"id: 1"])),
       st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())  # fmt: skip
def test_events_do_not_depend_on_the_cutting(blocks: list[bytes], newline: bytes, data: st.DataObject) -> None:
    whole = b"".join(block.replace(b"\n", newline) + newline * 2 for block in blocks)
    reader, pieces, left = SseReader(), [], whole
    while left:
        size = data.draw(st.integers(1, len(left)))
        pieces += reader.feed(left[:size])
        left = left[size:]
    wanted = {
        b"data: a": b"a",
        b"data:b": b"b",
        b": ping": None,
        b"event: x\ndata: c\ndata: d": b"c\nd",
        b"id: 1": None,
    }
    texts = [wanted[block] for block in blocks if block]
    assert [each.data for each in pieces if each.data is not None] == [text for text in texts if text is not None]
    assert b"".join(each.raw for each in pieces).count(b": ping") == blocks.count(b": ping")


def test_an_endless_event_is_refused() -> None:
    reader = SseReader(max_event_bytes=1000)
    with pytest.raises(InputError, match="longer than 1,000 bytes"):
        for _ in range(3000):
            reader.feed(b"x")


@given(st.binary(max_size=400), st.integers(1, 50))
def test_no_bytes_from_an_upstream_raise(noise: bytes, size: int) -> None:
    guard = StreamGuard(parse_chat_request(body(stream=True)), Policy(resamples=0))
    stream = b"".join(list(Answer("why", "hello", [call()]).chunks())[:5]) + noise
    out = b"".join(guard.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    out += guard.end().data
    assert out.endswith(b"\n\n") and guard.over


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_the_answer_does_not_depend_on_the_cutting(sizes: list[int]) -> None:
    stream = b"".join(Answer("because <of> this", "so < it is\n", [call(), call("{}", "noop")]).chunks(3, 4))
    guard = StreamGuard(parse_chat_request(body(stream=True)), Policy())
    out, at = b"", 0
    for size in [*sizes, len(stream)]:
        out += guard.feed(stream[at : at + size])
        at += size
    got = read_stream(out + guard.end().data)
    assert (got.reasoning, got.content, len(got.calls)) == ("because <of> this", "so < it is\n", 2)
    assert got.done and got.flag is None


def _tools(*schemas: Any) -> ToolSet:
    return ToolSet.declared([{"function": {"name": f"t{n}", "parameters": each}} for n, each in enumerate(schemas)])


def test_schemas_are_never_fetched_and_broken_ones_are_named() -> None:
    remote = {"properties": {"a": {"$ref": "http://127.0.0.1:1/x.json"}}}
    tools = _tools(remote, {"type": "objekt"}, 5, {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}})
    for name in ("t0", "t1", "t2", "t3"):
        tool = tools.get(name)
        assert tool is not None and tool.unusable and tool.errors({"a": 1}) == []


def test_patterns_cannot_run_away() -> None:
    tool = _tools({"properties": {"a": {"pattern": "^(a+)+$"}, "b": {"pattern": "^(?=x)y"}}}).get("t0")
    assert tool is not None and tool.unusable is None
    assert tool.errors({"a": "a" * 50_000 + "!"}) and tool.errors({"b": "y"})


def test_deep_schemas_and_values_are_survived() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(150):
        schema = {"type": "object", "properties": {"a": schema}}
    assert _tools(schema).get("t0")
    with pytest.raises(StrictJsonError, match="deep"):
        strict_object('{"a":' * 500 + "1" + "}" * 500)


@pytest.mark.parametrize(
    ("value", "schema", "wanted"),
    [
        ("3", {"type": "integer"}, 3),
        ("3.0", {"type": "integer"}, "3.0"),
        ("03", {"type": "integer"}, "03"),
        (" 3", {"type": "integer"}, " 3"),
        ("2.5", {"type": "number"}, 2.5),
        ("1e999", {"type": "number"}, "1e999"),
        ("NaN", {"type": "number"}, "NaN"),
        ("True", {"type": "boolean"}, True),
        ("yes", {"type": "boolean"}, "yes"),
        ("null", {"type": "null"}, None),
        ('["a"]', {"type": "array"}, ["a"]),
        ('{"a": 1, "a": 2}', {"type": "object"}, '{"a": 1, "a": 2}'),
        ("1}, {", {"type": "object"}, "1}, {"),
        (5, {"type": "string"}, "5"),
        (True, {"type": "string"}, True),
        (1.5, {"type": "string"}, 1.5),
        ("3", {"type": ["integer", "string"]}, "3"),
        ("3", {"anyOf": [{"type": "integer"}]}, "3"),
        ({"a": {"b": ["1"]}}, {"properties": {"a": {"$ref": "#/$defs/b"}},
         "$defs": {"b": {"properties": {"b": {"items": {"type": "integer"}}}}}}, {"a": {"b": [1]}}),
        ({"a": "1"}, {"properties": {"a": {"$ref": "#/properties/a"}}}, {"a": "1"}),
    ],
)  # fmt: skip
def test_only_one_meaning_is_coerced(value: Any, schema: dict[str, Any], wanted: Any) -> None:
    found = coerced(value, schema)
    assert found == wanted and type(found) is type(wanted)


def _png(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def test_sizes_of_images_are_read_from_their_heads() -> None:
    assert pixel_size(_png(640, 480)) == (640, 480)
    assert pixel_size(b"GIF89a" + struct.pack("<HH", 30, 20)) == (30, 20)
    jpeg = b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + b"x" * 14 + b"\xff\xc2" + struct.pack(">HBHH", 17, 8, 20, 30)
    assert pixel_size(jpeg + b"\x03") == (30, 20)
    bits = (29) | (19 << 14)
    assert pixel_size(b"RIFF....WEBPVP8L" + b"...." + b"\x2f" + struct.pack("<I", bits) + b"." * 8) == (30, 20)
    assert pixel_size(b"not an image") is None and pixel_size(b"") is None


@given(st.binary(max_size=80))
def test_no_image_head_raises(head: bytes) -> None:
    for start in (b"", b"\xff\xd8", b"RIFF....WEBPVP8X", b"\x89PNG\r\n\x1a\n", b"BM", b"GIF8"):
        pixel_size(start + head)


@pytest.mark.parametrize(
    ("urls", "limits", "why"),
    [
        (["data:image/png;base64,AAAA"] * 3, ImageLimits(count=2), "more than 2 images"),
        (["data:image/png;base64," + "A" * 4000], ImageLimits(image_bytes=1000), "bytes, more than 1,000"),
        (
            ["data:image/png;base64," + base64.b64encode(_png(60000, 60000)).decode()],
            ImageLimits(),
            "60000 x 60000",
        ),
        (["http://169.254.169.254/x"], ImageLimits(hosts=frozenset({"a.example"})), "not allowed"),
        (["file:///etc/passwd"], ImageLimits(hosts=frozenset({"a.example"})), "not allowed"),
    ],
)
def test_images_over_the_limits_are_refused(urls: list[str], limits: ImageLimits, why: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": each}} for each in urls]
    with pytest.raises(RefusedError, match=why) as error:
        parse_chat_request(body(messages=[{"role": "user", "content": parts}]), limits)
    assert error.value.where and error.value.where.startswith("messages[0].content")


def test_images_within_the_limits_pass() -> None:
    url = "data:image/png;base64," + base64.b64encode(_png(640, 480)).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": "https://a.example/b"},
    ]
    limits = ImageLimits(hosts=frozenset({"a.example"}))
    assert parse_chat_request(body(messages=[{"role": "user", "content": parts}]), limits)


def test_the_least_loaded_is_asked_and_the_failing_left_out() -> None:
    now = [0.0]
    pool = Pool(("http://a", "http://b/v1"), Balance.LEAST_LOADED, lambda: now[0])
    a, b = pool.upstreams
    assert b.url == "http://b"
    with a.working(4_000_000):
        assert pool.order()[0] is b
        pool.failed(b)
        assert pool.order()[0] is a and not pool.is_up(b)
        now[0] = 3.0
        assert pool.order()[0] is b, "after a pause it gets another chance"
    pool.answered(b)
    assert pool.is_up(b) and a.load == b.load == 0


def test_a_conversation_sticks_and_only_the_lost_ones_move() -> None:
    urls = tuple(f"http://{number}" for number in range(5))
    keys = [f"conversation {number}" for number in range(200)]
    homes = {key: Pool(urls, Balance.STICKY).order(key)[0].url for key in keys}
    assert len(set(homes.values())) == 5
    fewer = {key: Pool(urls[:4], Balance.STICKY).order(key)[0].url for key in keys}
    assert all(fewer[key] == home for key, home in homes.items() if home != urls[4])
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    longer = [*messages, {"role": "assistant", "content": "a"}]
    one = conversation_key({"messages": messages}, None)
    assert one == conversation_key({"messages": longer}, None) != conversation_key({"messages": messages[:1]}, None)
    assert conversation_key({"messages": longer}, "mine") == "mine"


def test_settings_come_back_and_bad_ones_are_named() -> None:
    settings = Settings(("http://a:1",), images=ImageLimits(hosts=frozenset({"x"})), balance=Balance.STICKY)
    assert load(Settings, json.loads(json.dumps(dump(settings)))) == settings
    for upstreams, why in (
        ((), "at least one"),
        (("ftp://a",), "not an http"),
        (("http://a/b",), "has a path"),
        (("http://u:p@a",), "password"),
    ):
        with pytest.raises(UsageError, match=why):
            Settings(upstreams)
    with pytest.raises(UsageError, match="0, 1 or 2"):
        Policy(resamples=3)
