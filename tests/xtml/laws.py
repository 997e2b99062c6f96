"""What must hold for any bytes, as one function: used by the fuzzer and by the test of what it found."""

from __future__ import annotations

from tests.xtml.whole_text import parse_whole

from k3stack.xtml import CONTROL_IDS, Channel, Parser, Vocabulary, replay

DECLARED = ("read_file", "get_weather")
VOCABULARY = Vocabulary(lambda number: bytes([number]))


def check(data: bytes) -> None:
    """Parse bytes as text and as ids: nothing raises, any cut gives the same, the rules agree.

    The first byte chooses the channel, the declared tools and the cut; the rest is the completion.
    """
    options, text = (data[0] if data else 0), data[1:].decode("utf-8", "replace")
    channel: Channel = "response" if options & 1 else "think"
    declared = DECLARED if options & 2 else ()
    step = (options >> 2) + 1
    parser = Parser(channel, tools=declared)
    events = [event for at in range(0, len(text), step) for event in parser.feed(text[at : at + step])]
    events += parser.finish()
    at_once = Parser(channel, tools=declared)
    at_once.feed(text)
    at_once.finish()
    assert parser.message == at_once.message
    assert replay(events) == parser.message
    wanted = parse_whole(text, channel, set(declared))
    assert (parser.message.reasoning or "") == wanted.reasoning
    assert (parser.message.content or "") == wanted.content
    assert [vars_of(call) for call in parser.message.tool_calls] == wanted.calls
    assert {str(code) for code in parser.message.problems} == wanted.problems
    by_ids = Parser(channel, tools=declared, vocabulary=VOCABULARY)
    controls = list(CONTROL_IDS)
    by_ids.feed_ids([controls[byte & 3] if byte >= 252 else byte for byte in data])
    by_ids.finish()


def vars_of(call: object) -> dict[str, object]:
    return {"name": getattr(call, "name", None), "arguments": getattr(call, "arguments", None)}
