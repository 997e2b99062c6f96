"""`k3 up`: plan, recipe, preflight, launch, follow, verify, report; one straight line that can be stopped anywhere.

Whatever ends it early (a refusal, a dead engine, Ctrl-C, SIGKILL) leaves nothing running and no entry in the state.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from k3stack.checkpoint.mark import is_random
from k3stack.errors import UnavailableError, UsageError
from k3stack.hardware.machine import look, plannable
from k3stack.launch.chosen import Asked, Chosen, choose
from k3stack.launch.findings import Findings, Status
from k3stack.launch.follow import Followed, Patience, death, follow
from k3stack.launch.launcher import GRACE_S, Launched
from k3stack.launch.memory import Memory, compare_memory
from k3stack.launch.parts import Parts
from k3stack.launch.preflight import preflight, wanted_for
from k3stack.launch.recognise import Diagnosis
from k3stack.launch.start import PATCHES, Start, node_commands, start_of
from k3stack.launch.state import Run, Store, own_identity
from k3stack.launch.verifying import Verified, verify
from k3stack.signals import interruptible, undisturbed

__all__ = ["Options", "Steps", "Up", "dry_run", "up"]

NAME = "k3"


@dataclass(frozen=True, slots=True)
class Options:
    """How to go along the line.

    Attributes:
        name: under which the state knows the endpoint.
        level: of the checks: quick, full, soak; None checks nothing.
        weights: trained or random; None lets the endpoint say.
        skip_preflight: go on although preflight fails.
        keep_failed: leave the endpoint running when a check fails.
    """

    name: str = NAME
    docker: bool = False
    level: str | None = "quick"
    weights: str | None = None
    skip_preflight: bool = False
    keep_failed: bool = True
    patience: Patience = field(default_factory=Patience)
    grace_s: float = GRACE_S


@dataclass(frozen=True, slots=True)
class Up:
    """What came of it.

    Attributes:
        answer: verified, running (nothing was checked), plan, nodes, preflight, start or checks: where it ended.
        reason: why it did not come to be verified.
        command: what was started.
        nodes: for several nodes, what to run where.
    """

    answer: str
    reason: str = ""
    engine: str = ""
    model: str = ""
    command: str = ""
    left_out: tuple[str, ...] = ()
    preflight: Findings | None = None
    followed: Followed | None = None
    memory: tuple[Memory, ...] = ()
    verified: Verified | None = None
    url: str | None = None
    log: str | None = None
    nodes: tuple[tuple[str, str], ...] = ()

    @property
    def yes(self) -> bool:
        """Whether the endpoint runs and nothing was found wrong."""
        if self.answer == "dry run":
            return self.preflight is None or self.preflight.good
        return self.answer in ("verified", "running", "nodes")


@dataclass(frozen=True, slots=True)
class Steps:
    """Who is told what happens.

    Attributes:
        line: what stays on the screen.
        status: what is drawn over.
        found: preflight's findings, as soon as they are there.
    """

    line: Callable[[str], None] = lambda _: None
    status: Callable[[str], None] = lambda _: None
    found: Callable[[Findings], None] = lambda _: None


def dry_run(asked: Asked, options: Options, steps: Steps) -> Up:
    """Everything up to the start, which is only said."""
    chosen, ended = _chosen(asked, options, steps)
    if ended is not None:
        return ended
    start = start_of(asked, chosen, options.docker, "RUN")
    found = _preflight(asked, chosen, options, start)
    steps.found(found)
    return Up(
        "dry run", _first_failure(found), chosen.engine, chosen.model, start.text(),
        chosen.left_out, found, url=start.url,
    )  # fmt: skip


def up(asked: Asked, options: Options, store: Store, steps: Steps) -> Up:
    """Take a checkpoint to a verified endpoint.

    Raises:
        K3Error: what was asked makes no sense, or the name is taken.
    """
    chosen, ended = _chosen(asked, options, steps)
    if ended is not None:
        return ended
    _free_name(store, options.name)
    steps.status("preflight")
    run_id = f"{options.name}-{secrets.token_hex(4)}"
    start = start_of(asked, chosen, options.docker, run_id, store.folder / "runs" / run_id)
    found = _preflight(asked, chosen, options, start)
    steps.found(found)
    if not found.good and not options.skip_preflight:
        reason = _first_failure(found)
        return Up("preflight", reason, chosen.engine, chosen.model, start.text(), chosen.left_out, found)
    with _claimed(store, options, chosen, start, run_id) as (run, folder):
        return _start(asked, chosen, options, store, steps, start, found, run, folder)


def _chosen(asked: Asked, options: Options, steps: Steps) -> tuple[Chosen, Up | None]:
    """What to start, and the end of the line if that is already here."""
    here = plannable(look(measure=False))
    chosen = choose(asked, here)
    if chosen.engine == "reference" and here is None and asked.engine is None:
        steps.line("no GPU that k3stack knows is here: the reference engine serves")
    for one in chosen.left_out:
        steps.line(one)
    about: dict[str, Any] = {"engine": chosen.engine, "model": chosen.model, "left_out": chosen.left_out}
    if chosen.fit is not None:
        steps.line(f"plan: {chosen.fit.reason}")
        if chosen.fit.lowered:
            steps.line(f"plan: {chosen.fit.lowered}")
        if not chosen.fit.yes:
            return chosen, Up("plan", chosen.fit.reason, **about)
    if chosen.deployment is not None:
        for note in chosen.deployment.notes:
            steps.line(f"note: {note}")
        if chosen.deployment.several_nodes:
            return chosen, Up("nodes", nodes=node_commands(chosen.deployment, options.docker), **about)
    return chosen, None


def _preflight(asked: Asked, chosen: Chosen, options: Options, start: Start) -> Findings:
    wanted = replace(wanted_for(asked, chosen, options.docker), host=start.host, port=start.port)
    return preflight(wanted, chosen.deployment, asked.python)


def _first_failure(found: Findings) -> str:
    failed = [one for one in found.findings if one.status is Status.FAIL]
    return f"{failed[0].title}: {failed[0].measured}. {failed[0].fix}" if failed else ""


@contextmanager
def _claimed(store: Store, options: Options, chosen: Chosen, start: Start, run_id: str) -> Iterator[tuple[Run, Path]]:
    """The name in the state, from before the start; gone again when the block fails, or is interrupted before the end.

    Raises:
        UsageError: an endpoint of this name runs already.
    """
    with interruptible():
        folder = store.run_folder(run_id)
        run = Run(
            name=options.name,
            id=run_id,
            engine=chosen.engine,
            model=chosen.model,
            url=start.url,
            folder=str(folder),
            log=str(folder / "engine.log"),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            owner=own_identity(),
            container=start.container,
        )
        try:
            with store.change() as change:
                _free_name(store, options.name)
                change.state = change.state.with_run(run)
            yield run, folder
        except BaseException:
            with undisturbed():
                _forget(store, run_id, unless_ready=True)  # interrupted when it had been handed over: it goes on
            raise


def _free_name(store: Store, name: str) -> None:
    """Refuse a name that an endpoint has.

    Raises:
        UsageError: it has.
    """
    known = store.read().run(name)
    if known is not None and known.running:
        hint = f"Stop it with `k3 down {name}`, or give this one another --name."
        raise UsageError(f"runs already, at {known.url}", where=name, hint=hint)


def _forget(store: Store, run_id: str, unless_ready: bool = False) -> None:
    """Take a run out of the state; on a full disk it stays there, as one of which nothing runs, and hides no reason."""
    with suppress(UnavailableError), store.change() as change:
        if not (unless_ready and any(one.id == run_id and one.ready for one in change.state.runs)):
            change.state = change.state.without(run_id)


def _start(
    asked: Asked,
    chosen: Chosen,
    options: Options,
    store: Store,
    steps: Steps,
    start: Start,
    found: Findings,
    run: Run,
    folder: Path,
) -> Up:
    """Launch, follow, verify; hands the engine over, or ends it."""
    if start.patched:
        from k3stack.patches.export import export

        export(folder / PATCHES)
    launched = Launched(start, run.id, folder, Path(run.log), options.grace_s)
    memory: list[Memory] = []
    handed_over = False
    try:
        launched.begin()
        _remember(store, run, launched, False)
        steps.line(f"started: {start.text()}")
        steps.line(f"log: {run.log}")
        size = sum(one.stat().st_size for one in Path(asked.where).glob("*.safetensors")) or None
        followed = follow(
            launched, options.patience, size, steps.line, steps.status, _memory_teller(chosen, memory, steps)
        )
        about: dict[str, Any] = {
            "engine": chosen.engine, "model": chosen.model, "command": start.text(), "left_out": chosen.left_out,
            "preflight": found, "followed": followed, "memory": tuple(memory), "log": run.log,
        }  # fmt: skip
        if not followed.ready:
            steps.line(f"failed after {followed.seconds:.1f} s: {_why(followed)}")  # cleaning up takes a moment
            return Up("start", _why(followed), **about)
        _remember(store, run, launched, False)
        first = followed.first_token_s or 0.0
        steps.line(f"ready after {followed.seconds:.1f} s at {start.url}, first token in {first:.2f} s")
        verified, died = _verify(launched, start, followed, _with_weights(options, asked.where), folder, steps)
        if died is not None:
            reason = f"it died while it was checked: {_why(replace(followed, diagnosis=died))}"
            steps.line(reason)
            return Up("checks", reason, verified=verified, **about)
        good = verified is None or verified.passed
        if good or options.keep_failed:
            with undisturbed():
                _remember(store, run, launched, True, verified.page if verified else None)
                launched.release()
                handed_over = True
        answer = "running" if verified is None else "verified" if verified.passed else "checks"
        failed = verified.failed if verified else ()
        reason = "" if good else f"{len(failed)} checks failed: {', '.join(failed)}"
        return Up(answer, reason, verified=verified, url=start.url if handed_over else None, **about)
    finally:
        if not handed_over:
            with undisturbed():
                steps.status("stopping")
                left = launched.end()
                _forget(store, run.id)
                if left:
                    steps.line(f"could not be ended: {', '.join(map(str, left))}")


def _verify(
    launched: Launched, start: Start, followed: Followed, options: Options, folder: Path, steps: Steps
) -> tuple[Verified | None, Diagnosis | None]:
    """What the checks say, and why the engine died meanwhile, if it did: then they say nothing."""
    parts = Parts(launched)
    parts.look()
    try:
        verified = verify(start.url, followed.model, options, folder, steps)
    except UnavailableError:
        died = death(launched, parts, suspected=True)
        if died is None:
            raise
        return None, died
    return verified, death(launched, parts, suspected=verified is not None and not verified.passed)


def _with_weights(options: Options, where: str) -> Options:
    """A tiny checkpoint's answers are judged as those of random weights: engines do not tell, its mark does."""
    return replace(options, weights="random") if options.weights is None and is_random(Path(where)) else options


def _remember(store: Store, run: Run, launched: Launched, ready: bool, report: str | None = None) -> None:
    with store.change() as change:
        change.state = change.state.with_run(
            replace(
                run,
                owner=(launched.supervisor or run.owner) if ready else run.owner,
                supervisor=launched.supervisor,
                process=launched.engine,
                ready=ready,
                report=report,
            )
        )


def _memory_teller(chosen: Chosen, memory: list[Memory], steps: Steps) -> Callable[[str], None]:
    """Told the log at each phase; tells each predicted figure beside the reported one, once."""

    def tell(log: str) -> None:
        told = {one.quantity for one in memory}
        for one in compare_memory(log, chosen.spec, chosen.engine):
            if one.quantity not in told:
                memory.append(one)
                steps.line(f"memory: {one}")

    return tell


def _why(followed: Followed) -> str:
    diagnosis = followed.diagnosis
    if diagnosis is None:
        return "it did not become ready"
    if diagnosis.likely is not None and (not diagnosis.likely.symptom or diagnosis.first_error is None):
        cause = diagnosis.likely
        return f"{cause.title} ({cause.quote}). {cause.cause} {cause.fix}"
    ended = f"the process {diagnosis.ended}" if diagnosis.ended else "it ended"
    where = f" (in {diagnosis.part.name}). {diagnosis.part.advice}" if diagnosis.part else ""
    return f"{ended} in the phase: {diagnosis.phase}. First error: {diagnosis.first_error}{where}"
