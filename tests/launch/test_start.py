"""What is started: a process, a container, or the commands for several nodes; as data, nothing is run."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from k3stack.checkpoint.tiny import write_tiny
from k3stack.errors import NotKnownError, UsageError
from k3stack.hardware.table import gpu
from k3stack.launch.chosen import Asked, Chosen, choose, is_kimi
from k3stack.launch.start import node_commands, start_of
from k3stack.plan.layout import KvDtype
from k3stack.spec.schemes import Scheme

B300 = (gpu("b300"), 8)


def chosen(**more: object) -> tuple[Asked, Chosen]:
    asked = replace(Asked("kimi-k3", engine="vllm", version="0.33.0"), **more)  # type: ignore[arg-type]
    return asked, choose(asked, B300)


def test_a_process_listens_on_loopback_and_takes_further_words() -> None:
    start = start_of(*chosen(extra=("--enable-log-requests",), port=9000))
    words = list(start.words)
    assert words[words.index("--host") + 1] == "127.0.0.1" and words[words.index("--port") + 1] == "9000"
    assert words[-1] == "--enable-log-requests" and "moonshotai/Kimi-K3" in words
    assert start.url == "http://127.0.0.1:9000" and start.model == "kimi-k3"
    assert not any("{" in word and "}" in word and '"' not in word for word in words)


def test_patches_are_put_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    start = start_of(*chosen(scheme="nvfp4-mixed"), folder=tmp_path)
    assert start.patched and start.environment["PYTHONPATH"] == str(tmp_path / "patches")
    monkeypatch.setenv("PYTHONPATH", "/engine")  # where the engine itself may lie
    both = start_of(*chosen(scheme="nvfp4-mixed"), folder=tmp_path).environment["PYTHONPATH"]
    assert both == f"{tmp_path / 'patches'}{os.pathsep}/engine"
    held = start_of(*chosen(scheme="nvfp4-mixed"), docker=True, folder=tmp_path)
    assert held.patched and held.environment["K3_PATCH_DIR"] == str(tmp_path / "patches")


def test_the_first_image_is_no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("K3_PATCH_DIR", raising=False)
    card = chosen(scheme="nvfp4-mixed", version="kimi-k3")
    with pytest.raises(UsageError, match="an image"):
        start_of(*card)
    with pytest.raises(UsageError, match="K3_PATCH_DIR"):
        start_of(*card, docker=True)
    monkeypatch.setenv("K3_PATCH_DIR", "/patches")
    assert not start_of(*card, docker=True).patched


def test_a_container_has_a_name_by_which_it_can_be_ended() -> None:
    start = start_of(*chosen(port=9001), docker=True, run="k3-1")
    assert start.container == "k3-k3-1" and "docker run --rm --name k3-k3-1" in start.words[2]
    assert "127.0.0.1:9001:8000" in start.words[2]


@pytest.mark.slow
def test_a_container_really_is_started_and_ended_by_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker is a script here that keeps what it was told."""
    from k3stack.launch.launcher import Launched

    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" = run ] && exec sleep 60\nexit 0\n')
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    launched = Launched(start_of(*chosen(), docker=True, run="x"), "x", tmp_path, tmp_path / "log", 1.0)
    launched.begin()
    while not (tmp_path / "calls").exists():
        pass
    assert launched.end() == ()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith("run --rm --name k3-x") and calls[-1] == "rm --force k3-x"


def test_several_nodes_are_told_in_order() -> None:
    asked, made = chosen(tp=8, pp=2)
    assert made.deployment is not None
    with pytest.raises(UsageError, match="several nodes"):
        start_of(asked, made)
    told = dict(node_commands(made.deployment, docker=True))
    places = list(told)
    assert places.index("server, rank 1") < places.index("server, rank 0")
    assert told["check, node 0"].startswith("k3 preflight --wait-for 1")
    assert told["server, rank 1"].endswith("server 1") and "K3_HEAD=" in told["server, rank 1"]


def test_without_a_gpu_the_reference_engine_serves(tmp_path: Path) -> None:
    asked = Asked("kimi-k3")
    made = choose(asked, None)
    assert made.engine == "reference" and made.deployment is None and "not applicable" in made.left_out[0]
    assert "serve" in start_of(asked, made).words
    with pytest.raises(NotKnownError, match="no GPU"):
        choose(replace(asked, engine="vllm"), None)


def test_another_model_goes_plainly(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert not is_kimi(str(tmp_path)) and is_kimi("kimi-k3")
    asked = Asked(str(tmp_path), engine="sglang", python="/x/python", context=100, tp=2)
    words = start_of(asked, choose(asked, None)).words
    assert (
        words[:3] == ("/x/python", "-m", "sglang.launch_server")
        and "--context-length" in words
        and "--tp-size" in words
    )
    with pytest.raises(UsageError, match="reference"):
        choose(Asked(str(tmp_path)), None)
    with pytest.raises(UsageError, match="docker"):
        start_of(asked, choose(asked, None), docker=True)


def test_a_tiny_kimi_k3_starts_with_the_recipe_on_one_gpu(tmp_path: Path) -> None:
    """Floors on GPUs speak of Kimi-K3's own size; a tiny one has its own context, and on Hopper a BF16 cache."""
    write_tiny(tmp_path / "tiny", Scheme.MXFP4)
    made = choose(Asked(str(tmp_path / "tiny"), engine="vllm"), (gpu("h200"), 1))
    assert made.deployment is not None
    command = made.deployment.roles[0].command
    assert command.flag("max-model-len") == 4096 and command.flag("kv-cache-dtype") == "auto"
    with pytest.raises(NotKnownError, match="at least 16 GPUs"):
        choose(Asked("kimi-k3", engine="vllm"), (gpu("h200"), 1))
    with pytest.raises(NotKnownError, match="FP8 prefill queries"):
        choose(Asked(str(tmp_path / "tiny"), engine="vllm", kv_dtype=KvDtype.FP8), (gpu("h200"), 1))


def test_a_plan_that_does_not_fit_has_no_deployment() -> None:
    _, made = chosen(context=1_000_000, concurrency=4_000)
    assert made.fit is not None and not made.fit.yes and made.deployment is None
