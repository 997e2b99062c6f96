"""A two-node recipe really starts: two network namespaces, `vllm` replaced by a program that says what it was given."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3stack.hardware.table import gpu
from k3stack.plan.layout import Layout
from k3stack.recipe.build import build
from k3stack.recipe.choice import Choice
from k3stack.recipe.render import Form, render
from k3stack.spec.schemes import Scheme

HEAD, OTHER = "10.77.0.1", "10.77.0.2"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """Two namespaces joined by a cable."""
    if not shutil.which("ip") or os.geteuid() != 0:
        pytest.skip("making network namespaces needs root and iproute2")
    names = [f"k3t{os.getpid()}{letter}" for letter in "ab"]
    if run("ip", "netns", "add", names[0]).returncode:
        pytest.skip("network namespaces are not allowed here")
    try:
        run("ip", "netns", "add", names[1])
        ends = [f"v{os.getpid()}{letter}" for letter in "ab"]
        if run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]).returncode:
            pytest.skip("virtual cables are not allowed here")
        for name, end, address in zip(names, ends, (HEAD, OTHER), strict=True):
            run("ip", "link", "set", end, "netns", name)
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
            run("ip", "-n", name, "link", "set", end, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            run("ip", "netns", "del", name)


STUB = """#!/bin/sh
# Stands in for the engine: says what it was given, and meets the other rank where it was told to.
echo "$@"
echo "VLLM_HOST_IP=$VLLM_HOST_IP"
head=$(echo "$@" | sed 's/.*--master-addr \\([^ ]*\\).*/\\1/')
exec python3 - "$head" "$VLLM_HOST_IP" <<'END'
import socket, sys, time
head, own = sys.argv[1:]
if head == own:
    door = socket.create_server((own, 29501))
    door.settimeout(20)
    met, who = door.accept()
    print("met", who[0])
    met.sendall(own.encode())
else:
    for _ in range(100):
        try:
            met = socket.create_connection((head, 29501), timeout=20)
            break
        except OSError:
            time.sleep(0.1)
    print("met", met.recv(64).decode())
END
"""


def test_both_ranks_of_a_two_node_recipe_find_each_other(nodes: list[str], tmp_path: Path) -> None:
    choice = Choice("vllm", "0.33.0", gpu("b200"), Scheme.MXFP4, Layout(tp=16))
    script = tmp_path / "serve.sh"
    script.write_text(render(build(choice), Form.SHELL))
    stub = tmp_path / "bin" / "vllm"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(0o755)
    environment = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "K3_HEAD": HEAD}
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", node, "sh", str(script), "server", str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, node in enumerate(nodes)
    ]
    said = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    for rank, (out, _) in enumerate(said):
        words = out.splitlines()[0].split()
        assert words[:2] == ["serve", "moonshotai/Kimi-K3"]
        assert words[words.index("--node-rank") + 1] == str(rank)
        assert words[words.index("--nnodes") + 1] == "2"
        assert words[words.index("--master-addr") + 1] == HEAD
        assert words[words.index("--tensor-parallel-size") + 1] == "16"
        assert ("--headless" in words) == (rank == 1)
        assert f"VLLM_HOST_IP={(HEAD, OTHER)[rank]}" in out
    assert f"met {OTHER}" in said[0][0] and f"met {HEAD}" in said[1][0]
