"""Ctrl-C and SIGKILL at random moments of `k3 up`: nothing keeps running, and the state stays whole."""

import os
import random
import signal
import subprocess
import time

import pytest

from k3stack.launch.launcher import Launched
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
    command.wait(30)
    deadline = time.monotonic() + 15
    while True:
        runs = bench.store.read().runs  # never half a file
        kept = [run for run in runs if run.ready and run.running]
        over = not bench.left() and not any(run.running for run in runs)
        if kept or over or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    if (
        kept
    ):  # it had come up before, whatever ended the command after that: `bench` ends it, and sees that nothing is left
        assert runs == tuple(kept) and sorted(kept[0].processes()) == sorted(bench.left())
        return
    assert bench.left() == []
    assert number is signal.SIGKILL or runs == ()
    assert not any(run.running for run in runs)


class Moment(Launched):
    """One that is interrupted, again and again, while it is handed over."""

    def release(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
        super().release()


def test_interrupted_while_it_is_handed_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k3stack.launch.up.Launched", Moment)
    assert bench.up("strays").answer == "running"
    (run,) = bench.store.read().runs
    assert run.ready and len(run.processes()) == 3


def test_interrupted_when_it_has_been_handed_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says last is not said, but the endpoint is there, and known."""

    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("k3stack.launch.up.Up", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.up("strays")
    (run,) = bench.store.read().runs
    assert run.ready and run.running and len(run.processes()) == 3


def test_an_impatient_user_interrupts_cleaning_up_in_vain(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second signal comes when the first has just been noticed: before anything was ended."""

    def interrupted(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(os.getpid(), number)

    monkeypatch.setattr("k3stack.launch.up.follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.up("strays")
    assert bench.left() == [] and bench.store.read().runs == ()
