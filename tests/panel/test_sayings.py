"""A reader of Chinese sees Chinese: whatever the rules, the planner and the doctor say has a sentence there."""

import re
from collections import Counter

from tests.panel.sayings import always, chinese, left_over, shown
from tests.panel.states import clicked

STATES = 150
PLACE, NUMBER = r"\{\w+[*,;]?\}", r"(?<![A-Za-z\d.-])\d(?:[\d,.]*\d)?"


def in_chinese(how: str, text: str) -> str:
    sayings = chinese()
    return sayings.said(text) if how == "said" else sayings.listed(text, {"listed": ",", "cited": ";"}[how])


def untranslated(texts: set[tuple[str, str]]) -> dict[str, str]:
    found = {text: in_chinese(how, text) for how, text in texts}
    return {text: said for text, said in found.items() if left_over(said)}


def test_everything_that_states_show_is_said_in_chinese() -> None:
    """A new sentence of the planner, the ledger or a rule needs one in zh.sentences.json."""
    texts = {pair for seed in range(STATES) for pair in shown(clicked(seed, 14)) if pair[1]}
    assert len(texts) > 500
    assert not untranslated(texts)


def test_every_rule_and_all_that_the_doctor_says_is_said_in_chinese() -> None:
    texts = set(always())
    assert len(texts) > 400
    assert not untranslated(texts)


def test_a_sentence_without_a_chinese_one_is_noticed() -> None:
    for text in ("A new reason.", "weights: lookup tables", "8 x NVIDIA B300 with more patience", "decode keeps warm."):
        assert untranslated({("said", text)}), text


def test_numbers_and_places_are_the_same_in_both_languages() -> None:
    for text, said in chinese().whole.items():
        assert not said.isascii(), text
        assert sorted(re.findall(PLACE, text)) == sorted(re.findall(PLACE, said)), text
        there, here = (Counter(re.findall(NUMBER, one)) for one in (text, said))
        assert not there - here, text
        assert set(here - there) <= {"1", "2"}, text  # "one" and "two" may be digits


def test_what_stands_in_a_place_is_said_too() -> None:
    said = chinese().said
    assert said("KDA state of 12 requests") == "12 个请求的 KDA 状态"
    assert said("16 GPUs: TP16 → 8 GPUs: TP8 + DCP8") == "16 个 GPU：TP16 → 8 个 GPU：TP8 + DCP8"
    asked = "16 x NVIDIA DGX Spark (GB10) (TP8 x PP2) with utilization 0.95, context 262,144, 5 concurrent requests"
    assert said(asked).endswith("显存占用比例 0.95，上下文 262,144，5 个并发请求")
    note = "NVIDIA B300 with TP8 is published (model card; recipe); no run of it is known here."
    assert said(note) == "NVIDIA B300 上的 TP8 有公开配置（模型卡；官方配方）；没有已知的运行记录。"
