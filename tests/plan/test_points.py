"""Every public measurement of a K3 deployment that has enough inputs is predicted."""

import json

import pytest
from benchmarks.plan_points import LACKS, Checked, check_points

from tests.paths import SHARED

DATA = SHARED / "data"
pytestmark = pytest.mark.skipif(
    not (DATA / "memory_points.json").is_file(), reason="the public measurements are not beside this checkout"
)


@pytest.fixture(scope="module")
def points() -> dict[str, Checked]:
    return {point.id: point for point in check_points(DATA)}


def test_at_least_ten_are_exact_and_none_is_missed(points: dict[str, Checked]) -> None:
    exact = [name for name, point in points.items() if point.exact]
    assert len(exact) >= 14
    assert not [name for name, point in points.items() if point.exact is False]


def test_load_memory_within_one_per_cent(points: dict[str, Checked]) -> None:
    loads = [one for point in points.values() for one in point.comparisons if one.quantity == "model load memory"]
    compared = [one for one in loads if one.reported is not None]
    assert len(compared) >= 10
    for one in compared:
        assert one.predicted == pytest.approx(one.reported, rel=0.01)


def test_available_memory_within_five_per_cent_where_the_reserves_are_known(points: dict[str, Checked]) -> None:
    found = [one for point in points.values() for one in point.comparisons if one.quantity == "available cache memory"]
    assert len(found) >= 9
    for one in found:
        assert one.predicted == pytest.approx(one.reported, rel=0.05)


def test_a_point_is_predicted_or_says_what_it_lacks(points: dict[str, Checked]) -> None:
    ids = {point["id"] for point in json.loads((DATA / "memory_points.json").read_text())}
    assert set(points) == ids
    assert set(LACKS) <= ids
    for point in points.values():
        assert point.lacks or any(one.agrees is not None for one in point.comparisons)


def test_whole_blocks_are_not_counted_as_exact(points: dict[str, Checked]) -> None:
    """Without a memory figure only the divisibility of the printed tokens can be checked."""
    assert points["mn-pp2-agentx-offload-32k"].whole_blocks
    assert points["mn-pp2-agentx-offload-32k"].exact is None
