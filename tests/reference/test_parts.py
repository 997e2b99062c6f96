"""Tokenizer, sampling, grammars, stop texts, images: each alone."""

from __future__ import annotations

import base64
import io
import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from k3stack.checkpoint.vocabulary import SPECIAL_NAMES, write_byte_vocabulary
from k3stack.errors import CheckpointError, InputError
from k3stack.guard.images import ImageLimits
from k3stack.guard.refused import RefusedError
from k3stack.reference.constraint import Grammars
from k3stack.reference.grammar import answer_grammar
from k3stack.reference.request import Sampling
from k3stack.reference.sampling import Chance, adjust, distribution, pick, report
from k3stack.reference.server import pictures
from k3stack.reference.server.text import Stops
from k3stack.reference.tokenizer import Tokenizer
from k3stack.xtml import CONTROL_TOKENS, Parser

BYTES = {bytes([byte]): byte for byte in range(256)}
NAMES = {256 + place: name for place, name in SPECIAL_NAMES.items()}
END = 258


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(BYTES, NAMES)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, END)


# The tokenizer


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_goes_to_ids_and_back_and_yields_no_special(tokenizer: Tokenizer, text: str) -> None:
    text += "".join(CONTROL_TOKENS)
    ids = tokenizer.encode(text)
    assert max(ids) < 256
    assert tokenizer.decode(ids) == text


def test_merges_and_special_ids_are_kimi_k3s(tmp_path: Path) -> None:
    """A model file with merges, in Moonshot's form: ranks in base64, special tokens behind them."""
    ranks = [*BYTES, b"th", b" th", b" the", "长城".encode()]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(ranks)]
    (tmp_path / "tiktoken.model").write_text("\n".join(lines) + "\n")
    names = {str(len(ranks) + place): {"content": name} for place, name in SPECIAL_NAMES.items()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": names}))
    tokenizer = Tokenizer.load(tmp_path, len(ranks) + 256)
    assert tokenizer.encode("the the") == [256, ord("e"), 258]
    assert tokenizer.special["<|open|>"] == 260 + 3 and tokenizer.special["[PAD]"] == 260 + 255
    assert tokenizer.name_of[260 + 100] == "<|reserved_token_360|>"
    assert tokenizer.decode([263, 258]) == "<|open|> the"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tiktoken.model", None, "cannot be read"),
        ("tiktoken.model", "no base64 here\n", "line 1"),
        ("tiktoken.model", "QQ== 0\nQg== 5\n", "0 to n-1"),
        ("tokenizer_config.json", "{", "added_tokens_decoder"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"999": {"content": "x"}}}', "999"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {}}', "no special token"),
    ],
)
def test_a_broken_tokenizer_is_named(tmp_path: Path, file: str, content: str | None, message: str) -> None:
    write_byte_vocabulary(tmp_path, 4096)
    Tokenizer.load(tmp_path, 512)
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(tmp_path, 512)


def test_a_vocabulary_of_another_size_is_refused(tmp_path: Path) -> None:
    write_byte_vocabulary(tmp_path, 4096)
    with pytest.raises(CheckpointError, match=r"512 tokens with specials, config\.json says 163840"):
        Tokenizer.load(tmp_path, 163_840)


# Sampling


def test_penalties_bias_and_filters_by_hand() -> None:
    logits = np.array([2.0, 1.0, -1.0, 0.5], dtype=np.float32)
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2, logit_bias={3: 1.0})
    row = adjust(logits, sampling, Counter({0: 2}), [2], None)
    assert np.allclose(row, [2 / 2 - 0.5 - 0.5, 1.0, -1 * 2, 1.5])
    p = np.exp([2.0, 1.0, -1.0, 0.5]) / np.exp([2.0, 1.0, -1.0, 0.5]).sum()
    wide = logits.astype(np.float64)
    assert np.allclose(distribution(wide, Sampling()), p)
    assert np.flatnonzero(distribution(wide, Sampling(top_k=2))).tolist() == [0, 1]
    assert np.flatnonzero(distribution(wide, Sampling(top_p=p[0] + 0.01))).tolist() == [0, 1]
    assert np.flatnonzero(distribution(wide, Sampling(top_p=p[0] - 0.01))).tolist() == [0]
    assert np.flatnonzero(distribution(wide, Sampling(min_p=0.3))).tolist() == [0, 1]
    assert distribution(wide, Sampling(temperature=0)).tolist() == [1, 0, 0, 0]
    allowed = np.array([False, True, True, False])
    assert np.flatnonzero(distribution(adjust(logits, Sampling(), {}, [], allowed), Sampling())).tolist() == [1, 2]


def test_draws_follow_the_distribution() -> None:
    p = np.array([0.1, 0.0, 0.6, 0.3])
    drawn = Counter(pick(p, Chance(1, position)) for position in range(4000))
    assert drawn[1] == 0
    assert all(abs(drawn[token] / 4000 - p[token]) < 0.03 for token in range(4))
    assert pick(p, Chance(1, 7)) == pick(p, Chance(1, 7))


def test_log_probabilities_are_of_the_plain_distribution() -> None:
    logits = np.array([0.0, 2.0, 1.0], dtype=np.float32)
    token = report(logits, 2, 2)
    total = np.log(np.exp(logits).sum())
    assert token.logprob == pytest.approx(1 - total)
    assert [best for best, _ in token.top] == [1, 2] and token.rank == 2
    assert report(logits, 2, None).logprob is None


# Grammars


def tool(name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool(
        "plain",
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]},
    ),
    tool("none", {"type": "object", "properties": {}}),
    tool("any", None),
    tool(
        "hard",
        {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/id"}, "y": {"anyOf": [{"type": "null"}, {"type": "number"}]}},
            "$defs": {"id": {"type": "string", "pattern": "^[a-z]{3}$"}},
            "required": ["x", "y"],
        },
    ),
    tool(
        'quote"d',
        {
            "type": "object",
            "properties": {
                'k"ey': {"type": ["string", "null"]},
                "pick": {"type": "string", "enum": ["a b", 'c"d']},
                "short": {"type": "string", "minLength": 2, "maxLength": 4},
                "on": {"type": "boolean"},
                "nest": {"type": "object", "properties": {"z": {"type": "array", "items": {"type": "integer"}}}},
            },
            "required": ['k"ey', "pick", "short", "on", "nest"],
        },
    ),
]


def follow(grammars: Grammars, grammar: str, most: int, seed: int) -> list[int]:
    """A random answer within a grammar."""
    constraint, random = grammars.start(grammar, most), np.random.default_rng(seed)
    said: list[int] = []
    while len(said) < most:
        token = int(random.choice(np.flatnonzero(constraint.allowed())))
        constraint.take(token)
        said.append(token)
        if token == END:
            return said
    return said


@pytest.mark.parametrize("thinking", [True, False])
def test_random_answers_in_a_grammar_are_valid_calls(tokenizer: Tokenizer, grammars: Grammars, thinking: bool) -> None:
    import jsonschema_rs

    grammar = answer_grammar(thinking=thinking, tools=TOOLS, calls="must")
    schemas = {each["function"]["name"]: each["function"]["parameters"] or {} for each in TOOLS}
    seen = set()
    for seed in range(12):
        said = follow(grammars, grammar, 600, seed)
        assert said[-1] == END
        parser = Parser("think" if thinking else "response", tools=TOOLS, vocabulary=tokenizer.vocabulary)
        parser.feed_ids(said)
        parser.finish()
        assert parser.message.problems == frozenset()
        assert parser.message.tool_calls
        for call in parser.message.tool_calls:
            seen.add(call.name)
            jsonschema_rs.validator_for(schemas[call.name]).validate(json.loads(call.arguments_json))
    assert len(seen) >= 4


def test_an_answer_is_brought_to_its_end_before_it_runs_out(tokenizer: Tokenizer, grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}, "required": ["a"]}
    grammar = answer_grammar(thinking=True, content=schema)
    for seed in range(6):
        for most in (130, 400):
            said = follow(grammars, grammar, most, seed)
            assert said[-1] == END
            parser = Parser("think", vocabulary=tokenizer.vocabulary)
            parser.feed_ids(said)
            parser.finish()
            value = json.loads(parser.message.content or "")
            assert all(isinstance(each, str) for each in value["a"])


def test_text_that_spells_a_marker_is_no_marker(tokenizer: Tokenizer, grammars: Grammars) -> None:
    constraint = grammars.start(answer_grammar(thinking=False, tools=TOOLS, calls="must"), 1000)
    assert not constraint.allowed()[ord("<")]  # the response is empty: only its close may come
    assert constraint.forced() == tokenizer.special["<|close|>"]
    free = grammars.start(answer_grammar(thinking=False), 1000)
    for byte in b"<|close|>response<|sep|>":
        assert free.allowed()[byte]
        free.take(byte)
    assert free.allowed()[ord("x")] and free.allowed()[tokenizer.special["<|close|>"]]


def test_one_call_only_when_calls_are_not_parallel(tokenizer: Tokenizer, grammars: Grammars) -> None:
    grammar = answer_grammar(thinking=False, tools=TOOLS[:2], calls="must", parallel=False)
    for seed in range(6):
        text = tokenizer.decode(follow(grammars, grammar, 400, seed))
        assert text.count("<|open|>call tool=") == 1


def test_a_schema_that_cannot_be_followed_is_an_error(grammars: Grammars) -> None:
    with pytest.raises(InputError, match="cannot be followed"):
        grammars.start(answer_grammar(thinking=False, content={"type": "nonsense"}), 10)


# Stop texts


@given(
    text=st.text("ab", max_size=30), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), data=st.data()
)
def test_a_stop_text_is_found_however_the_text_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    cutter, told, place = Stops(stops), "", 0
    while place < len(text) and cutter.found is None:
        size = data.draw(st.integers(1, 5))
        told += cutter.feed(text[place : place + size])
        place += size
    told += "" if cutter.found else cutter.finish()
    ends = [text.find(stop) for stop in stops if stop in text]
    if cutter.found is None:
        assert not ends and told == text
    else:
        assert text.startswith(told) and text[len(told) :].startswith(cutter.found)


# Images


def png(size: tuple[int, int] = (4, 3), mode: str = "RGB", color: Any = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, color).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_are_decoded_within_limits() -> None:
    limits = ImageLimits(pixels=100)
    assert pictures.decode_image(png(), limits, "here").shape == (3, 4, 3)
    clear = pictures.decode_image(png(mode="RGBA", color=(0, 0, 0, 0)), limits, "here")
    assert (clear == 255).all()
    with pytest.raises(RefusedError, match="more than 100") as caught:
        pictures.decode_image(png((11, 10)), limits, "here")
    assert caught.value.status == 413
    for data in (b"", b"GIF89a", png()[:40], b"%!PS-Adobe"):
        with pytest.raises(RefusedError):
            pictures.decode_image(data, limits, "here")


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "192.168.0.9", "169.254.169.254", "::1", "fd00::1", "0.0.0.0"]
)
def test_names_that_lead_into_private_networks_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 443))
        return [public, (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 443))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(RefusedError, match="private network"):
        pictures.fetch("https://looks-public.example/a.png", ImageLimits(), 1, "here")
