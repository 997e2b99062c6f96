"""Our LeaderWorkerSets against the definition that the controller's project publishes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.recipe.lws import problems
from tests.recipe.test_render import NAMED, manifests


def sets(name: str) -> list[dict[str, Any]]:
    return [document for document in manifests(name) if document["kind"] == "LeaderWorkerSet"]


@pytest.mark.parametrize("name", NAMED)
def test_every_set_follows_the_definition(name: str) -> None:
    found = sets(name)
    assert found
    for document in found:
        assert not problems(document)


def test_the_definition_refuses_what_is_wrong() -> None:
    [good] = sets("two nodes")
    wrong: dict[str, Callable[[dict[str, Any]], object]] = {
        "replicas": lambda spec: spec.update(replicas="two"),
        "workerTemplate": lambda spec: spec["leaderWorkerTemplate"].pop("workerTemplate"),
        "restartPolicy": lambda spec: spec["leaderWorkerTemplate"].update(restartPolicy="Sometimes"),
        "sizes": lambda spec: spec["leaderWorkerTemplate"].update(sizes=2),
        "imagePull": lambda spec: spec["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0].update(
            imagePull="Always"
        ),
    }
    for word, spoil in wrong.items():
        spoilt = copy.deepcopy(good)
        spoil(spoilt["spec"])
        assert any(word in problem for problem in problems(spoilt)), word
