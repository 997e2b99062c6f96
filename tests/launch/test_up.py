"""Up, follow, down and status, with an engine that behaves badly on purpose."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3stack.errors import UnavailableError, UsageError
from k3stack.launch.down import down, status
from k3stack.launch.findings import Findings
from k3stack.launch.process import alive, identity_of, oom_kills
from k3stack.launch.up import Options, Steps, dry_run
from k3stack.launch.verifying import Verified
from tests.cli.run import k3
from tests.launch.starting import Bench, bench

__all__ = ["bench"]


PHASES = ("start", "prepare", "capture", "listen")


def cause(bench: Bench, fake: str, quiet_s: float = 600.0) -> str:
    made = bench.up(fake, quiet_s=quiet_s)
    assert made.answer == "start" and not made.yes and made.url is None
    assert made.followed and made.followed.diagnosis
    assert bench.left() == [] and bench.store.read().runs == ()
    return made.followed.diagnosis.likely.id if made.followed.diagnosis.likely else made.reason


def test_up_status_down(bench: Bench) -> None:
    made = bench.up()
    assert made.answer == "running" and made.followed and made.followed.model == "model"
    assert list(made.followed.phases) == ["start", "load", "prepare", "capture", "listen", "ready"]
    assert {one.quantity: one.reported for one in made.memory}["GPU KV cache size"] == 1_203_112
    assert any("loading weights took" in line for line in bench.lines)
    (told,) = status(bench.store)
    assert told.state == "ready" and told.processes >= 2 and told.good
    with pytest.raises(UsageError, match="runs already"):
        bench.up()
    (stopped,) = down(bench.store)
    assert stopped.was_running and not stopped.left and stopped.seconds < 5
    assert bench.left() == [] and status(bench.store) == ()
    assert bench.ended()["asked"] is True


@pytest.mark.parametrize("phase", ["load", *(pytest.param(one, marks=pytest.mark.slow) for one in PHASES)])
def test_killed_in_each_phase(bench: Bench, phase: str) -> None:
    began = time.monotonic()
    assert cause(bench, f"killed:{phase}") == ("host-oom" if oom_kills() is None else "killed")
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("fake", "wanted"),
    [
        ("die:capture", "too-many-sequences"),
        ("badflag", "unknown-flag"),
        ("stop:load", "stopped"),
        ("refuse", "no-first-token"),
        pytest.param("crash:load", "crashed-natively", marks=pytest.mark.slow),
        pytest.param("quietly:load", "ended-silently", marks=pytest.mark.slow),
        pytest.param("full:load", "disk-full", marks=pytest.mark.slow),
    ],
)
def test_each_is_named(bench: Bench, fake: str, wanted: str) -> None:
    assert cause(bench, fake) == wanted


def test_a_death_is_told_within_two_seconds(bench: Bench) -> None:
    bench.up("die:load")
    assert bench.heard_at("failed after") - float(str(bench.ended()["at"])) < 2


def test_a_core_that_is_killed_is_told_before_the_first_process_sees_it(bench: Bench) -> None:
    """Here the first process never does: at once that it is gone, and why, when nothing more comes."""
    made = bench.up("losecore:load")
    assert made.followed and made.followed.diagnosis and made.followed.diagnosis.likely
    likely = made.followed.diagnosis.likely
    assert likely.id == ("host-oom" if oom_kills() is None else "killed") and "VLLM::EngineCore" in likely.quote
    killed = float(bench.log().rpartition("core killed at ")[2].split()[0])
    assert bench.heard_at("(VLLM::EngineCore) is gone") - killed < 2
    assert bench.heard_at("failed after") - killed < 10
    assert bench.left() == []


@pytest.mark.parametrize(
    "fake",
    [pytest.param(one, marks=pytest.mark.slow) for one in ("losecore-echo", "killworker", "losecore-code")],
)
def test_whose_end_the_others_only_echo(bench: Bench, fake: str) -> None:
    """A part is killed; a worker's broken pipe and the first process's words for it are no causes."""
    assert cause(bench, f"{fake}:load") == ("host-oom" if oom_kills() is None else "killed")


def test_sigkill_is_the_kernels_when_the_kernel_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = iter(range(100))
    monkeypatch.setattr("k3stack.launch.launcher.oom_kills", lambda: next(kills))
    assert cause(bench, "killed:load") == "host-oom"


def test_an_engine_that_dies_while_it_is_checked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object) -> Verified:
        (run,) = bench.store.read().runs
        assert run.process is not None
        os.kill(run.process.pid, signal.SIGKILL)
        return Verified(False, "quick", {"fail": 1}, ("chat",), 0.1, "report.html")

    monkeypatch.setattr("k3stack.launch.up.verify", kill)
    made = bench.up()
    assert made.answer == "checks" and "died while it was checked" in made.reason and made.url is None
    assert bench.left() == [] and bench.store.read().runs == ()


@pytest.mark.slow
def test_a_hang_is_told_and_then_called_stuck(bench: Bench) -> None:
    assert cause(bench, "hang:load", quiet_s=2.5) == "stuck"
    assert any("nothing has moved" in line and "loading weights" in line for line in bench.lines)


@pytest.mark.slow
def test_an_error_is_told_though_the_process_lingers(bench: Bench) -> None:
    assert cause(bench, "linger:load", quiet_s=2.0) == "too-many-sequences"
    assert any(line.startswith("the log says: more requests at once") for line in bench.lines)


@pytest.mark.slow
def test_a_model_without_a_chat_template_is_asked_otherwise(bench: Bench) -> None:
    assert bench.up("notemplate").answer == "running"


def test_the_port_is_taken_before(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", bench.port)):
        made = bench.up()
    assert made.answer == "preflight" and "port" in made.reason and bench.run_ids() == []


def test_the_port_is_taken_after_preflight(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else who answers at our port is not taken for the engine."""
    fake = str(Path(__file__).with_name("fake_engine.py"))
    other = subprocess.Popen([sys.executable, fake, "--port", str(bench.port)])
    try:
        for _ in range(100):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", bench.port)) == 0:
                    break
            time.sleep(0.1)
        monkeypatch.setattr("k3stack.launch.up.preflight", lambda *_: Findings("preflight", ()))
        assert cause(bench, "hang:start") == "port-in-use"
        assert cause(bench, "good") == "port-in-use"
    finally:
        other.terminate()
        other.wait()


@pytest.mark.slow
def test_an_engine_that_is_deaf_and_one_that_leaves_strays(bench: Bench) -> None:
    bench.up("deaf")
    (stopped,) = down(bench.store, grace_s=0.4)
    assert not stopped.left and bench.left() == []
    bench.port += 1
    bench.up("strays")
    assert bench.left()
    (stopped,) = down(bench.store)
    assert not stopped.left and bench.left() == []


def test_a_program_that_is_not_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k3stack.launch.up.preflight", lambda *_: Findings("preflight", ()))
    bench.python.unlink()
    assert cause(bench, "good") == "cannot-start"


def test_a_checkpoint_that_is_broken(bench: Bench) -> None:
    (bench.model / "x.safetensors").unlink()
    made = bench.up()
    assert made.answer == "preflight" and "safetensors" in made.reason


def test_an_engine_that_dies_later_is_told_by_status(bench: Bench) -> None:
    bench.up()
    (run,) = bench.store.read().runs
    assert run.process is not None
    os.kill(run.process.pid, signal.SIGKILL)
    for _ in range(100):
        if not run.running:
            break
        time.sleep(0.1)
    (told,) = status(bench.store)
    assert told.state == "ended" and told.ended == "was ended by SIGKILL" and "out of memory" in str(told.why)
    assert bench.up().answer == "running"  # its name is free again


@pytest.mark.slow
def test_a_supervisor_that_is_killed_takes_the_engine_with_it(bench: Bench) -> None:
    bench.up("strays")
    (run,) = bench.store.read().runs
    assert run.supervisor is not None and run.process is not None
    os.kill(run.supervisor.pid, signal.SIGKILL)
    for _ in range(50):
        if identity_of(run.process.pid) is None:
            break
        time.sleep(0.1)
    assert not alive(run.process)
    (stopped,) = down(bench.store)
    assert not stopped.left
    for pid in bench.left():  # deaf, without mark, session or parent: only a living supervisor holds such a one
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGKILL))]
)
def test_interrupted_while_it_starts(bench: Bench, number: signal.Signals) -> None:
    environment = {**os.environ, "FAKE_PHASE_S": "3"}
    command = subprocess.Popen(bench.command(), env=environment, stderr=subprocess.PIPE, text=True)
    assert command.stderr is not None
    for line in command.stderr:
        if line.startswith("log: "):
            break
    time.sleep(0.3)
    assert bench.left()
    command.send_signal(number)
    command.wait(20)
    command.stderr.close()
    for _ in range(100):
        if not bench.left():
            break
        time.sleep(0.1)
    assert bench.left() == []
    if number is not signal.SIGKILL:  # who is killed forgets nothing, and the next `up` or `down` sees that it is over
        assert bench.store.read().runs == () and command.returncode == 130


def test_a_disk_that_fills_is_named_though_the_log_says_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil._ntuple_diskusage(10**12, 10**12, 0)
    monkeypatch.setattr("k3stack.launch.reasons.shutil.disk_usage", lambda _: full)
    monkeypatch.setattr("k3stack.launch.up.preflight", lambda *_: Findings("preflight", ()))
    assert cause(bench, "quietly:load") == "disk-full"
    assert any(line.endswith("is full") for line in bench.lines)


def test_a_state_that_cannot_be_written_starts_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k3stack.launch.state.write_text", _full)
    with pytest.raises(UnavailableError, match="No space left"):
        bench.up()
    monkeypatch.undo()
    assert bench.left() == []


def _full(path: Path, text: str) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.slow
def test_two_at_once_are_one(bench: Bench) -> None:
    commands = [subprocess.Popen(bench.command(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    codes = sorted(command.wait(30) for command in commands)
    said = b"".join(command.stderr.read() for command in commands if command.stderr)
    for command in commands:
        assert command.stderr is not None
        command.stderr.close()
    assert codes[0] == 0 and all(code in (1, 2) for code in codes[1:]), said.decode()
    assert len(bench.store.read().runs) == 1


def test_the_verbs(bench: Bench) -> None:
    state = ("--state", str(bench.store.folder))
    assert k3("status", *state).code == 1
    assert k3("down", *state).code == 0 and k3("down", "nobody", *state).code == 2
    made = k3(*bench.command("good", "--json")[3:])
    assert made.code == 0 and json.loads(made.out)["answer"] == "running"
    told = k3("status", *state, "--json")
    assert told.code == 0 and json.loads(told.out)[0]["state"] == "ready"
    assert "nothing left" in k3("down", *state).out
    named = k3(*bench.command("good", "--name", "other")[3:])
    ending = re.search(r"end it with: k3 (.+)", named.out)
    assert ending and ending.group(1).split() == ["down", "other", *state]
    assert "nothing left" in k3(*ending.group(1).split()).out
    failed = k3(*bench.command("die:load")[3:])
    assert failed.code == 1 and "state blocks" in failed.out and "log: " in failed.out


def test_a_dry_run_starts_nothing(bench: Bench) -> None:
    made = dry_run(bench.asked("good"), Options(), Steps())
    assert made.answer == "dry run" and "--fake good" in made.command
    ran = k3("up", "kimi-k3", "--hardware", "b300", "--tp", "8", "--pp", "2", "--dry-run")
    assert ran.code == 0 and "rank 1" in ran.out and "k3 preflight --head" in ran.out
    assert bench.run_ids() == []


def test_what_does_not_fit_is_a_verdict(bench: Bench) -> None:
    ran = k3("up", "kimi-k3", "--hardware", "b300", "--gpus", "8", "--context", "1000000", "--concurrency", "4000")
    assert ran.code == 1 and "does not fit" in ran.out + ran.err


def test_state_that_is_damaged_is_named(bench: Bench) -> None:
    bench.store.folder.mkdir(parents=True, exist_ok=True)
    bench.store.path.write_text("{")
    assert k3("status", "--state", str(bench.store.folder)).code == 3
    bench.store.path.unlink()
