"""Ctrl-C and SIGKILL at random moments of `k3 up`: nothing keeps running, and the state stays whole."""

import os
import random
import signal
import subprocess
import time

import pytest

from tests.launch.starting import Bench, bench

__all__ = ["bench"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(12))
def test_interrupted_at_a_random_moment(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    number = chance.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    environment = {**os.environ, "FAKE_PHASE_S": "0.3"}
    command = subprocess.Popen(
        bench.command("strays"), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(chance.uniform(0.05, 4.0))
    for _ in range(chance.choice([1, 1, 3])):  # an impatient user presses it again
        command.send_signal(number)
        time.sleep(chance.uniform(0, 0.3))
    code = command.wait(30)
    runs = bench.store.read().runs  # never half a file
    if code == 0 or (number is signal.SIGKILL and any(run.ready for run in runs)):  # it had come up before
        assert len(runs) == 1
        return  # `bench` ends it, and sees that nothing is left
    deadline = time.monotonic() + 15
    while (bench.left() or any(run.running for run in runs)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert bench.left() == []
    assert number is signal.SIGKILL or runs == ()
    assert not any(run.running for run in runs)
