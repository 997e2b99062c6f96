"""What the page shows is what the command line prints: the command byte for byte, memory figure by figure."""

import json
import shlex
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from k3stack.errors import NotKnownError, UsageError
from k3stack.panel.answer import Answer, Way, answer
from k3stack.panel.dimensions import start
from k3stack.panel.follow import against
from k3stack.plan.layout import Layout
from k3stack.recipe.choice import Choice, Feature
from k3stack.recipe.link import from_query
from k3stack.recipe.render import Form
from k3stack.values import dump
from tests.cli.run import k3
from tests.panel.states import clicked, follow, some


def text_of(shown: dict[str, Any]) -> str:
    return "\n".join("".join(text for text, _ in line) for line in shown["written"]["lines"])


def against_the_command_line(shown: dict[str, Any]) -> None:
    """Run what the answer says one would type, and compare."""
    ran = k3(*shlex.split(shown["command"])[1:])
    if shown["written"] is None:
        assert ran.code == 1
    elif shown["written"]["refused"]:
        assert ran.code == 2
    else:
        assert ran.code == 0 and ran.out == text_of(shown), shown["command"]
    for memory in shown["memory"]:
        planned = json.loads(k3(*shlex.split(memory["command"])[1:], "--json").out)
        assert planned["verdict"] == memory["verdict"], memory["command"]
        assert [(line["what"], line["size_bytes"], line["origin"]) for line in planned["ledger"]["lines"]] == [
            (item["what"], item["size_bytes"], item["origin"]) for item in memory["items"]
        ]
        assert (planned["left_bytes"], planned["budget_bytes"]) == (memory["left_bytes"], memory["budget_bytes"])
        assert planned["capacity"] == memory["capacity"]
        if len(shown["memory"]) == 1:  # `k3 plan` knows one role, and no rule about the other
            assert planned["would_fit"] == memory["would_fit"]


def json_of(choice: Choice, form: Form) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(json.dumps(dump(answer(choice, form))))
    return shown


@pytest.mark.parametrize("number", range(0, 60, 5))
def test_the_page_says_what_the_command_line_says(number: int) -> None:
    forms = list(Form)
    against_the_command_line(json_of(some()[number], forms[number // 5 % len(forms)]))


def test_a_plan_that_does_not_fit_has_no_command_and_says_what_would() -> None:
    shown = answer(start().at(1_048_576, 512), Form.DOCKER)
    assert shown.verdict == "does not fit" and shown.written is None
    assert shown.memory[0].would_fit and shown.memory[0].left_bytes < 0


def changed(shown: Answer, role: str, way: Way) -> Choice:
    """Where the page's button leads, as its script puts the link together."""
    fields = dict(parse_qsl(shown.selection, keep_blank_values=True))
    for name in ("context", "concurrency"):
        fields[name] = str(getattr(way, name) or getattr(shown, name))
    for name in ("utilization", "batched_tokens"):
        fields |= {name: str(getattr(way, name))} if getattr(way, name) is not None else {}
    if way.layout is not None:
        fields["prefill" if role == "prefill" else "layout"] = way.layout
    return from_query(urlencode(fields))


@pytest.mark.parametrize("serving", ["unified", "prefill-decode"])
def test_what_would_fit_is_possible_and_fits_when_it_is_taken(serving: str) -> None:
    taken = 0
    for shown in (answer(choice, Form.SHELL) for seed in range(100) if (choice := clicked(seed)).serving == serving):
        for memory in shown.memory:
            for _, way in zip(memory.would_fit, memory.ways, strict=True):
                choice = changed(shown, memory.role, way)
                assert not against(choice)
                again = next(one for one in answer(choice, Form.SHELL).memory if one.role == memory.role)
                assert again.verdict in ("fits", "tight")
                taken += 1
    assert taken > 20


def test_roles_of_a_split_deployment_have_a_memory_each() -> None:
    shown = answer(follow(("serving", "prefill-decode")), Form.SHELL)
    assert [memory.role for memory in shown.memory] == ["prefill", "decode"]
    assert (shown.gpus, shown.nodes) == (24, 3)


def test_a_variable_of_several_roles_is_told_once() -> None:
    shown = answer(follow(("serving", "prefill-decode")), Form.SHELL)
    told = {(one.name, one.value, one.why.why): one.roles for one in shown.environment}
    assert len(told) == len(shown.environment)
    assert {("prefill", "decode"), ("prefill",), ("decode",)} == set(told.values())
    assert 'VLLM_NIXL_SIDE_CHANNEL_HOST="${K3_ADDRESS}"' in [f"{one.name}={one.value}" for one in shown.environment]
    assert all(one.roles == () for one in answer(start(), Form.SHELL).environment)


def test_the_validated_image_names_its_patches_and_why() -> None:
    shown = answer(follow(("scheme", "nvfp4-mixed"), ("version", "kimi-k3")), Form.DOCKER)
    assert shown.patches and all(patch.why.source for patch in shown.patches)


def test_a_form_that_is_not_possible_says_why() -> None:
    shown = answer(follow(("hardware", "mi355x")), Form.DOCKER)
    refused = {one.form: one.refused for one in shown.forms}
    assert "SkyPilot" in refused["skypilot"] and not refused["docker"]


def test_what_is_not_allowed_is_refused_with_its_reason() -> None:
    with pytest.raises(NotKnownError, match="SGLang only"):
        answer(replace(start(), features=(Feature.DFLASH,)), Form.DOCKER)
    with pytest.raises(NotKnownError):
        answer(replace(start(), layout=Layout(tp=4)), Form.DOCKER)
    with pytest.raises(UsageError, match="1,048,576"):
        answer(start().at(2_000_000, 1), Form.DOCKER)


def test_published_speeds_are_of_this_hardware_and_carry_their_source() -> None:
    shown = answer(start(), Form.DOCKER)
    assert shown.figures and all(one.source and "B300" in one.setting for one in shown.figures)
    assert shown.figures[0].same_engine
