"""The state: whole at any moment, safe against two at once, and never fooled by a pid that was used again."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from k3stack.errors import InputError, UnavailableError
from k3stack.launch.down import down, status
from k3stack.launch.process import Identity, alive, children_of, identity_of, kill_all, processes_of
from k3stack.launch.state import Run, State, Store, default_folder
from k3stack.values import dump, load

GONE = Identity(2**22, 1)
RUN = Run("k3", "id-1", "vllm", "m", "http://127.0.0.1:1", "/no/folder", "/no/log", "2026-11-29", GONE)


def test_runs_survive_json_and_a_run_replaces_its_namesake() -> None:
    state = State().with_run(RUN).with_run(replace(RUN, name="other", id="id-2", process=GONE))
    assert load(State, dump(state)) == state
    assert state.with_run(replace(RUN, id="id-3")).run("k3") == replace(RUN, id="id-3")
    assert state.without("id-1").runs == (state.runs[1],)


def test_a_pid_that_was_used_again_is_not_taken_for_the_run(tmp_path: Path) -> None:
    """`down` must leave alone whoever has the pid now: here, this very test."""
    mine = identity_of(os.getpid())
    assert mine is not None and alive(mine) and not alive(replace(mine, started=mine.started - 1))
    old = replace(mine, started=mine.started - 1)
    store = Store(tmp_path)
    with store.change() as change:
        change.state = change.state.with_run(replace(RUN, owner=old, supervisor=old, process=old))
    (told,) = status(store)
    assert told.state == "ended" and told.processes == 0
    (stopped,) = down(store)
    assert not stopped.was_running and not stopped.left and store.read().runs == ()


def test_changes_of_many_processes_are_all_kept(tmp_path: Path) -> None:
    code = """
import sys
from dataclasses import replace
from pathlib import Path
from k3stack.launch.state import Store
from tests.launch.test_state import RUN
store = Store(Path(sys.argv[1]))
for number in range(5):
    with store.change() as change:
        name = f"{sys.argv[2]}-{number}"
        change.state = change.state.with_run(replace(RUN, name=name, id=name))
"""
    started = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(one)]) for one in range(3)]
    while any(one.poll() is None for one in started):
        Store(tmp_path).read()  # a reader never sees half a file
        time.sleep(0.01)
    assert all(one.returncode == 0 for one in started)
    assert len(Store(tmp_path).read().runs) == 15


def test_nothing_is_written_when_the_block_fails(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(RuntimeError), store.change() as change:
        change.state = change.state.with_run(RUN)
        raise RuntimeError
    assert store.read() == State() and not store.path.exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": [{"name": "x"}]}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    store.path.write_text(text)
    with pytest.raises(InputError, match=r"state\.json"):
        store.read()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError), Store(tmp_path / "file" / "x").change():
        pass


def test_a_run_whose_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UnavailableError, match="cannot be made") as caught:
        Store(tmp_path).run_folder("one")
    assert caught.value.hint is not None and "--state" in caught.value.hint


def test_a_folder_is_the_same_for_processes_that_work_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store(Path("here")).run_folder("one") == tmp_path / "here" / "runs" / "one"


def test_folders_of_old_runs_go(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.change() as change:
        change.state = change.state.with_run(replace(RUN, id="kept"))
    for number in ["kept", *map(str, range(14))]:
        (tmp_path / "runs" / number).mkdir(parents=True)
    store.run_folder("new")
    left = {one.name for one in (tmp_path / "runs").iterdir()}
    assert {"kept", "new"} <= left and len(left) == 12


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert default_folder() == Path("/x/k3stack")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_folder() == Path.home() / ".local/state/k3stack"


def test_a_process_is_found_by_mark_by_session_and_by_parent() -> None:
    code = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], env={}).wait()"
    )
    started = subprocess.Popen([sys.executable, "-c", code], env={"K3STACK_RUN": "mark-1"}, start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while len(children_of(started.pid)) < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        (child,) = children_of(started.pid)
        leader = identity_of(started.pid)
        assert set(processes_of("mark-1")) == {started.pid, child}
        assert set(processes_of("other", engine=leader)) == {started.pid, child}
        assert processes_of("other", supervisor=leader) == (child,)
        assert processes_of("other") == ()
        assert kill_all(lambda: processes_of("mark-1"), 5.0) == ()
    finally:
        started.kill()
        started.wait()


def test_the_file_is_json_that_people_can_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.change() as change:
        change.state = change.state.with_run(RUN)
    assert json.loads(store.path.read_text())["runs"][0]["name"] == "k3"
