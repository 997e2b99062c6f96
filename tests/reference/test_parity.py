"""k3 parity: the arithmetic by hand, two checkpoints, and a checkpoint against its own server."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.checkpoint.tiny import write_tiny
from k3stack.errors import InputError, UnavailableError, UsageError
from k3stack.reference.parity import compare
from k3stack.reference.parity.checkpoint import CheckpointSide
from k3stack.reference.parity.compare import divergence
from k3stack.reference.parity.endpoint import EndpointSide
from k3stack.reference.parity.page import write_page
from k3stack.reference.parity.prompts import built_in, read_prompts
from k3stack.reference.parity.side import Key
from k3stack.spec import Scheme
from k3stack.xtml import Segment
from tests.cli.run import k3
from tests.reference.conftest import SHAPE, Served

PROMPTS = {"short": [Segment("<|open|>", special=True), Segment("message")], "other": [Segment("Paris")]}


@given(seed=st.integers(0, 2**32), size=st.integers(2, 9), top=st.integers(1, 9))
def test_the_divergence_is_exact_over_all_tokens_and_a_lower_bound_over_some(seed: int, size: int, top: int) -> None:
    random = np.random.default_rng(seed)
    p, q = (np.exp(random.standard_normal(size)) for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    exact = float((p * np.log(p / q)).sum())
    whole: list[dict[Key, float]] = [dict(enumerate(np.log(each).tolist())) for each in (p, q)]
    assert divergence(whole[0], whole[1])[0] == pytest.approx(exact, abs=1e-9)
    best = [dict(sorted(each.items(), key=lambda item: -item[1])[:top]) for each in whole]
    bound, covered = divergence(best[0], best[1])
    assert -1e-12 <= bound <= exact + 1e-9
    assert covered == pytest.approx(sum(p[key] for key in best[0].keys() & best[1].keys()))


def test_a_checkpoint_agrees_with_itself_and_not_with_another_seed(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_tiny(other, Scheme.MXFP4, seed=1, shape=SHAPE)
    a, again, b = (CheckpointSide(folder) for folder in (tiny, tiny, other))
    same = compare(a, again, PROMPTS, tokens=5, top=0)
    assert (same.agreement, same.mean_kl, same.exact_kl, same.tokens) == (1.0, 0.0, True, 10)
    assert all(each.first_divergence is None for each in same.prompts)
    far = compare(a, b, PROMPTS, tokens=5, top=0)
    assert far.agreement < 0.5 and far.mean_kl > 0.1
    near = compare(a, b, PROMPTS, tokens=5, top=20)
    assert not near.exact_kl and near.mean_kl <= far.mean_kl


def test_a_server_agrees_with_its_checkpoint(served: Served, tiny: Path) -> None:
    folder, server = CheckpointSide(tiny), EndpointSide(served.url)
    for a, b in ((folder, server), (server, folder)):
        found = compare(a, b, PROMPTS, tokens=5)
        assert found.agreement == 1.0 and found.max_kl < 1e-9
    with pytest.raises(UsageError, match="neither side can tokenise"):
        compare(server, server, PROMPTS)


def test_a_server_that_tells_text_is_compared_by_text(
    served: Served, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EndpointSide(served.url)
    post = server._post
    monkeypatch.setattr(server, "_post", lambda path, body: post(path, {**body, "return_tokens_as_token_ids": False}))
    found = compare(CheckpointSide(tiny), server, PROMPTS, tokens=5)
    # Bytes of no whole character are all spelled U+FFFD, so some tokens fall together.
    assert found.agreement > 0.7 and found.tokens == 10


def test_servers_that_cannot_be_compared_are_named(served: Served) -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        EndpointSide("http://127.0.0.1:9")
    with pytest.raises(InputError, match="answers 404"):
        EndpointSide(served.url, model="other").score([1, 2], 1, 5)


def test_the_report_as_a_page(tiny: Path, tmp_path: Path) -> None:
    side = CheckpointSide(tiny)
    found = compare(side, side, {"<b>": PROMPTS["short"]}, tokens=3)
    write_page(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;" in page and "<b>:" not in page and "data:image/png;base64," in page
    write_page(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="neither"):
        write_page(found, tmp_path / "page.txt")


def test_prompts_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"Hello"\n\n{"messages": [{"role": "user", "content": "Hi"}], "thinking": false}\n')
    assert list(read_prompts(path)) == ["line 1", "line 3"]
    path.write_text('"Hello"\n{"x": 1}\n')
    with pytest.raises(InputError, match="line 2"):
        read_prompts(path)
    assert len(built_in()) == 8


def test_the_command_line(tiny: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"Hello"\n')
    ran = k3("parity", str(tiny), str(tiny), "--prompts", str(prompts), "--tokens", "3", "--json", "--max-kl", "0.1")
    assert ran.code == 0
    report = json.loads(ran.out)
    assert report["agreement"] == 1.0 and report["origin"] == "measured" and math.isclose(report["mean_kl"], 0)
    assert k3("parity", str(tiny), "http://127.0.0.1:9", "--top", "0").code == 2
    assert k3("parity", str(tiny), str(tmp_path / "nothing")).code == 3
