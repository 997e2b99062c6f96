"""A marked text is the text, and what a rule has set carries the rule."""

import pytest

from k3stack.errors import NotKnownError
from k3stack.panel.lines import marked
from k3stack.recipe.build import build
from k3stack.recipe.render import Form, render
from tests.panel.states import some


@pytest.mark.parametrize("form", list(Form))
def test_nothing_is_lost_or_added(form: Form) -> None:
    for choice in some()[::6]:
        deployment = build(choice)
        try:
            text = render(deployment, form)
        except NotKnownError:
            continue
        found = marked(text, deployment)
        assert found.text == text
        for line in found.lines:
            for words, number in line:
                assert -1 <= number < len(found.reasons)
                assert number < 0 or words.strip()


@pytest.mark.parametrize("form", [Form.SHELL, Form.DOCKER, Form.KUBERNETES])
def test_every_flag_and_variable_has_its_reason(form: Form) -> None:
    for choice in some()[::6]:
        deployment = build(choice)
        found = marked(render(deployment, form), deployment)
        said = [(words, found.reasons[number]) for line in found.lines for words, number in line if number >= 0]
        for role in deployment.roles:
            for flag in role.command.flags:
                name = flag.words()[0]
                named = {one.rule for words, many in said if words.split()[0] == name for one in many}
                assert flag.reason.rule in named, (name, form)
            for variable in role.command.environment:
                known = [many for words, many in said if words.startswith(variable.name)]
                assert any(variable.reason in many for many in known), (variable.name, form)


def test_a_part_ends_before_the_next_flag_and_the_continuation() -> None:
    deployment = build(some()[0])
    found = marked(render(deployment, Form.DOCKER), deployment)
    parts = [words for line in found.lines for words, number in line if number >= 0]
    assert all(words.count(" --") == 0 and not words.endswith(("\\", " ")) for words in parts)
