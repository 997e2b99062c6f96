"""Parsers as a choice: K3's own, none, and K2's, which are refused with what they really do."""

import pytest

from k3stack.hardware.table import gpu
from k3stack.plan.layout import Layout
from k3stack.recipe.build import build
from k3stack.recipe.choice import Choice, Parsers, refused
from k3stack.recipe.client import client_snippets
from k3stack.recipe.doctor import Weight, diagnose
from k3stack.recipe.link import from_query, to_query
from k3stack.recipe.translate import translate
from k3stack.recipe.wanted import Wanted, choose
from k3stack.spec.schemes import Scheme
from tests.cli.run import k3

NAMES = ("tool-call-parser", "reasoning-parser", "enable-auto-tool-choice")


def choice(engine: str, parsers: Parsers) -> Choice:
    return choose(Wanted(gpu("b300"), engine, parsers=parsers))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_raw_output_sets_no_parser_and_says_what_that_means(engine: str) -> None:
    with_parsers, without = (build(choice(engine, one)) for one in (Parsers.KIMI_K3, Parsers.RAW))
    before, after = (made.roles[0].command.values() for made in (with_parsers, without))
    assert {name for name in before if name not in after} == set(NAMES) & before.keys()
    assert {name: before[name] for name in after} == after
    more = set(without.notes) - set(with_parsers.notes)
    assert len(more) == 1 and "Without parsers" in more.pop()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_k2_parsers_are_refused_with_what_they_do(engine: str) -> None:
    (refusal,) = refused(choice(engine, Parsers.KIMI_K2))
    assert "found no tool call" in refusal.reason.why and "kimi_k3" in refusal.fix


def test_a_link_carries_them_and_an_older_link_means_k3s() -> None:
    raw = choice("vllm", Parsers.RAW)
    assert from_query(to_query(raw)) == raw
    usual = Choice("vllm", "0.33.0", gpu("b300"), Scheme.MXFP4, Layout(tp=8))
    assert "parsers" not in to_query(usual) and from_query(to_query(usual)).parsers is Parsers.KIMI_K3


COPIED = {
    "vllm": "vllm serve moonshotai/Kimi-K3 -tp 8 --enable-auto-tool-choice",
    "sglang": "sglang serve --model-path moonshotai/Kimi-K3 --tp-size 8",
}


@pytest.mark.parametrize("engine", COPIED)
def test_the_doctor_knows_k2_parsers_from_missing_ones(engine: str) -> None:
    named = f"{COPIED[engine]} --tool-call-parser kimi_k2 --reasoning-parser kimi_k3"
    found = {one.rule: one for one in diagnose(named, gpu("b300")).findings}
    assert found[f"{engine}-k2-parsers"].weight is Weight.WRONG and f"{engine}-parsers" not in found
    assert f"{engine}-parsers" in {one.rule for one in diagnose(COPIED[engine]).findings}
    assert f"{engine}-parsers" in {one.rule for one in diagnose(f"{COPIED[engine]} --tool-call-parser hermes").findings}


@pytest.mark.parametrize("engine", COPIED)
def test_parsers_left_out_on_purpose_are_no_fault(engine: str) -> None:
    text = COPIED[engine].removesuffix(" --enable-auto-tool-choice")
    diagnosis = diagnose(text, gpu("b300"), parsers=Parsers.RAW)
    assert not any("parser" in one.rule for one in diagnosis.findings)
    translated = translate(diagnosis, gpu("b300"), Parsers.RAW).deployment.roles[0].command
    assert not set(NAMES) & translated.values().keys()
    kept = translate(diagnosis, gpu("b300")).deployment.roles[0].command
    assert kept.flag("reasoning-parser") == "kimi_k3"


def test_the_client_of_raw_output_takes_the_text_apart() -> None:
    said = client_snippets(build(choice("sglang", Parsers.RAW)))
    assert "from k3stack.xtml import parse" in said and "skip_special_tokens" in said
    assert "k3stack" not in client_snippets(build(choice("sglang", Parsers.KIMI_K3)))
    compile(said[: said.index("\n# curl")], "client", "exec")


def test_the_command_line_takes_them() -> None:
    ran = k3("recipe", "--hardware", "b300", "--parsers", "raw", "--format", "shell")
    assert ran.code == 0 and "parser kimi_k3" not in ran.out
    refused_ = k3("recipe", "--hardware", "b300", "--parsers", "kimi_k2")
    assert refused_.code == 2 and "Use kimi_k3 for both parsers" in refused_.err


def test_prefill_and_decode_without_parsers() -> None:
    made = k3("recipe", "--hardware", "b300", "--serving", "prefill-decode", "--parsers", "raw", "--format", "shell")
    assert made.code == 0 and "reasoning-parser" not in made.out
