"""Laws that hold for every completion, whatever it says and however it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.xtml import strategies
from tests.xtml.whole_text import parse_whole

from k3stack.xtml import (
    CONTROL_IDS,
    CONTROL_TOKENS,
    IMAGE_PLACEHOLDER,
    Channel,
    Event,
    Message,
    Parser,
    Vocabulary,
    encode,
    parse,
    replay,
    tokenize,
)

Cut = list[str]

CHANNELS = st.sampled_from(["think", "response"])
DECLARED = st.sampled_from([(), strategies.TOOLS])
CHOICES = st.sampled_from(["auto", "none", "required", None])


def plain(message: Message) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    problems = {str(code) for code in message.problems}
    return {
        "reasoning": message.reasoning or "",
        "content": message.content or "",
        "calls": calls,
        "problems": problems,
    }


def feed_all(parser: Parser, pieces: list[str]) -> list[Event]:
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def follows_the_rules(
    text: str, channel: Channel, declared: tuple[str, ...], choice: str | None, cut: Cut
) -> None:
    parser = Parser(channel, tools=declared, tool_choice=choice)
    events = feed_all(parser, cut)
    assert plain(parser.message) == vars(parse_whole(text, channel, set(declared), choice))
    assert replay(events) == parser.message


def cut_text(data: st.DataObject, text: str) -> Cut:
    return data.draw(st.one_of(st.just(list(text)), strategies.cuts(text)))


@given(strategies.completions, CHANNELS, DECLARED, CHOICES, st.data())
@settings(max_examples=900, deadline=None)
def test_any_cut_gives_what_the_rules_give_for_the_whole_text(
    text: str, channel: Channel, declared: tuple[str, ...], choice: str | None, data: st.DataObject
) -> None:
    follows_the_rules(text, channel, declared, choice, cut_text(data, text))


@pytest.mark.slow
@given(strategies.completions, CHANNELS, DECLARED, CHOICES, st.data())
@settings(max_examples=10_000, deadline=None)
def test_many_more_cuts(
    text: str, channel: Channel, declared: tuple[str, ...], choice: str | None, data: st.DataObject
) -> None:
    follows_the_rules(text, channel, declared, choice, cut_text(data, text))


@given(st.text() | strategies.completions, CHANNELS, st.data())
@settings(max_examples=300, deadline=None)
def test_no_text_is_lost_without_a_problem(text: str, channel: Channel, data: st.DataObject) -> None:
    message = parse(text, channel, tools=strategies.TOOLS)
    if not message.problems:
        shown = (message.reasoning or "") + (message.content or "")
        shown += "".join(f"{call.name}{json.dumps(call.arguments)}" for call in message.tool_calls)
        for word in ("why", "ok", "three"):
            assert shown.count(word) >= min(text.count(word), 1)


@given(st.lists(strategies.fragments | st.text(max_size=5), max_size=10), CHANNELS)
@settings(max_examples=300, deadline=None)
def test_settled_means_that_no_correction_comes(fragments: list[str], channel: Channel) -> None:
    parser = Parser(channel, tools=strategies.TOOLS)
    settled = parser.settled
    for fragment in [*fragments, None]:
        events = parser.finish() if fragment is None else parser.feed(fragment)
        if settled:
            assert not any(type(event).__name__ == "Correction" for event in events)
        settled = parser.settled
    assert settled


# Token ids: control tokens by their id, everything else one id per byte.

VOCABULARY = Vocabulary(lambda number: bytes([number]))
SPECIALS = {text: number for number, text in CONTROL_IDS.items()} | {IMAGE_PLACEHOLDER: 0}


def ordinary(text: str) -> list[int]:
    return list(text.encode("utf-8", "surrogatepass"))


@given(strategies.completions, CHANNELS, st.data())
@settings(max_examples=300, deadline=None)
def test_ids_give_the_same_as_text(text: str, channel: Channel, data: st.DataObject) -> None:
    ids: list[int] = []
    rest = text
    while rest:
        control = next((control for control in CONTROL_TOKENS if rest.startswith(control)), None)
        ids += [SPECIALS[control]] if control else ordinary(rest[0])
        rest = rest[len(control) if control else 1 :]
    # At the very end text may be the beginning of a control token; an id that is none is not.
    ids += ordinary("!")
    parser = Parser(channel, tools=strategies.TOOLS, vocabulary=VOCABULARY)
    at = data.draw(st.lists(st.integers(0, len(ids)), max_size=8).map(sorted))
    for start, end in zip([0, *at], [*at, len(ids)], strict=True):
        parser.feed_ids(ids[start:end])
    parser.finish()
    assert parser.message == parse(text + "!", channel, tools=strategies.TOOLS)


@given(st.lists(st.integers(-1, 300) | st.sampled_from(sorted(CONTROL_IDS)), max_size=40), CHANNELS)
@settings(max_examples=200, deadline=None)
def test_any_ids_parse(ids: list[int], channel: Channel) -> None:
    parser = Parser(channel, vocabulary=VOCABULARY)
    events = parser.feed_ids(ids) + parser.finish()
    assert replay(events) == parser.message


@given(strategies.conversations(), st.booleans())
@settings(max_examples=120, deadline=None)
def test_every_answer_of_a_conversation_comes_back_as_it_was_encoded(
    messages: list[dict[str, Any]], thinking: bool
) -> None:
    channel: Channel = "think" if thinking else "response"
    for number, answer in enumerate(messages):
        if answer["role"] != "assistant":
            continue
        prompt = encode(messages[:number], thinking=thinking)
        whole = encode(messages[: number + 1], thinking=thinking, add_generation_prompt=False)
        assert whole[: len(prompt)] == prompt
        functions = [call["function"] for call in answer["tool_calls"]]
        names = [function["name"] for function in functions]
        parser = Parser(channel, tools=names, vocabulary=VOCABULARY)
        parser.feed_ids(tokenize(whole[len(prompt) :], ordinary, SPECIALS))
        parser.finish()
        reasoning = answer["reasoning"] if thinking and answer["reasoning"].strip() else None
        assert (parser.message.reasoning, parser.message.content) == (reasoning, answer["content"] or None)
        assert [call.name for call in parser.message.tool_calls] == names
        wanted = [json.loads(function["arguments"]) for function in functions]
        assert [call.arguments for call in parser.message.tool_calls] == wanted
        assert not parser.message.problems
