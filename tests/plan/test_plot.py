"""The picture: bars are the ledger, the file appears whole, bad names are refused."""

from pathlib import Path

import pytest

from k3stack.errors import UsageError
from k3stack.plan import Layout, Workload
from k3stack.plan.plot import PARTS, bars, draw
from tests.plan.common import plan_for

PLAN = plan_for("b300", Layout(tp=8), Workload(concurrency=8))


def test_a_bar_is_the_ledger() -> None:
    data = bars(PLAN)
    assert set(data) == {1, 2, 8}
    one = data[1][196_608]
    alone = plan_for("b300", Layout(tp=8), Workload(concurrency=1))
    assert sum(one) == pytest.approx(alone.ledger.total_bytes)
    assert len(one) == len(PARTS)


def test_bars_grow_with_context_and_requests() -> None:
    data = bars(PLAN)
    for row in data.values():
        totals = [sum(row[context]) for context in sorted(row)]
        assert totals == sorted(totals)
    assert all(sum(data[8][context]) >= sum(data[1][context]) for context in data[1])


@pytest.mark.parametrize(
    ("name", "start"),
    [pytest.param("plan.png", b"\x89PNG", marks=pytest.mark.slow), ("plan.svg", b"<?xml")],
)
def test_the_file_is_a_picture(tmp_path: Path, name: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    draw(PLAN, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "none/plan.png"])
def test_bad_names_write_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--plot"):
        draw(PLAN, tmp_path / name)
    assert not list(tmp_path.iterdir())
