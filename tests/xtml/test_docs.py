"""The examples of docs/tool-calls.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tool-calls.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(EXAMPLES[number], f"{PAGE.name}, example {number + 1}", "exec"), {})
    if number == 0:
        assert capsys.readouterr().out == 'say One moment.\ncall get_weather {"city": "Paris"}\n'


def test_every_problem_code_is_explained() -> None:
    from k3stack.xtml import ProblemCode

    page = PAGE.read_text(encoding="utf-8")
    assert [code for code in ProblemCode if f"`{code}`" not in page] == []
