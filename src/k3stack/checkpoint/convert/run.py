"""The whole conversion: check the source, convert the shards of this part, and finish when all are done."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3stack import __version__
from k3stack.checkpoint.convert.attention import AttentionScale
from k3stack.checkpoint.convert.experts import sharing
from k3stack.checkpoint.convert.files import shares_blocks
from k3stack.checkpoint.convert.finish import ConversionReport, finish, read_report
from k3stack.checkpoint.convert.journal import Identity, Journal, digest_source
from k3stack.checkpoint.convert.proof import DigestKind
from k3stack.checkpoint.convert.shard import ShardJob, ShardResult, convert_shard
from k3stack.checkpoint.inspect import inspect
from k3stack.checkpoint.scan import Depth
from k3stack.checkpoint.source import FolderSource
from k3stack.errors import CheckpointError, K3Error, UnavailableError, UsageError
from k3stack.spec.declare import ATTENTION_MODULES
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme
from k3stack.spec.sizes import measure

__all__ = ["Conversion", "ConversionPlan", "Outcome"]

Report = Callable[[int, "int | None", str], None]
TARGETS = (Scheme.NVFP4_MIXED, Scheme.NVFP4_EXPERTS)


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion will do, for `--dry-run`.

    Attributes:
        shards: files of this part that are still to be converted.
        write_bytes: bytes this part still writes, about (computed).
        free_bytes: free on the target's file system (read).
    """

    source: str
    target: str
    scheme: Scheme
    attention_scale: AttentionScale
    shards: tuple[str, ...]
    already_done: int
    read_bytes: int
    write_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did. `report` is there when it finished the checkpoint."""

    target: str
    converted: int
    resumed: int
    remaining: int
    report: ConversionReport | None


class Conversion:
    """A conversion of a folder into another.

    Args:
        source: folder of an MXFP4 checkpoint.
        target: folder to make; may hold the same conversion, unfinished.
        scheme: nvfp4-mixed or nvfp4-experts.
        attention_scale: how FP8 tile scales are chosen (nvfp4-mixed only).
        digest: how source shards are digested for the report.

    Raises:
        UsageError: the folders or the scheme make no sense.
        CheckpointError: the source has faults, or the target holds something else.
    """

    def __init__(
        self,
        source: Path,
        target: Path,
        scheme: Scheme,
        attention_scale: AttentionScale = AttentionScale.POW2,
        digest: DigestKind = DigestKind.XXH3_128,
    ) -> None:
        if scheme not in TARGETS:
            raise UsageError(f"{scheme} is not supported", where="--to", hint=f"Choose {' or '.join(TARGETS)}.")
        if not source.is_dir():
            raise UsageError("is no folder", where=source, hint="Download the checkpoint first.")
        _keep_apart(source, target)
        self.source, self.target, self.scheme = source, target, scheme
        self.attention_scale, self.digest = attention_scale, digest
        self.spec = self._checked_spec()
        self.shards = sorted(path.name for path in source.glob("*.safetensors"))
        self.elsewhere = _elsewhere(FolderSource(source).index())
        self.journal = Journal(target)

    def _checked_spec(self) -> ModelSpec:
        report = inspect(FolderSource(self.source), Depth.HEADERS)
        if report.scheme is not Scheme.MXFP4:
            raise UsageError(f"is {report.scheme}, not mxfp4", where=self.source)
        if report.faults:
            fault = report.faults[0]
            raise CheckpointError(
                f"has {fault.kind}: {fault.where} {fault.what}",
                where=self.source,
                hint=f"See all faults with: k3 inspect {self.source}",
            )
        if not report.shards_found:
            raise CheckpointError("has no shards", where=self.source, hint="Download the *.safetensors files.")
        return ModelSpec.from_config(self.source)

    def plan(self, part: tuple[int, int] = (1, 1)) -> ConversionPlan:
        """What `run` would do; writes nothing."""
        mine = self._part(part)
        todo = [shard for shard in mine if self.journal.done(self.source, shard) is None]
        read = sum((self.source / shard).stat().st_size for shard in todo)
        whole_read = sum((self.source / shard).stat().st_size for shard in self.shards)
        whole_written = measure(self.spec.with_scheme(self.scheme)).file_bytes
        return ConversionPlan(
            source=str(self.source),
            target=str(self.target),
            scheme=self.scheme,
            attention_scale=self.attention_scale,
            shards=tuple(todo),
            already_done=len(mine) - len(todo),
            read_bytes=read,
            write_bytes=whole_written * read // whole_read,
            free_bytes=shutil.disk_usage(_existing(self.target)).free,
        )

    def run(self, jobs: int = 1, part: tuple[int, int] = (1, 1), report: Report = lambda *_: None) -> Outcome:
        """Convert the shards of this part, and finish if it is the only part.

        Args:
            jobs: shards at once.
            part: (I, N): every N-th shard, beginning with the I-th; several machines share a folder this way.
            report: told (done bytes, total bytes, what).

        Raises:
            CheckpointError: source and target do not go together, or reading back found a difference.
            UnavailableError: the disk is full or cannot be written; what is done stays done.
        """
        done = read_report(self.target)
        identity = self._identity()
        if done is not None and not self.journal.exists:
            if done.source_identity != identity.source or done.scheme is not self.scheme:
                raise CheckpointError(
                    "holds another finished conversion", where=self.target, hint="Choose another folder."
                )
            return Outcome(str(self.target), 0, len(self.shards), 0, done)
        with _write_errors(self.target):
            self._open(identity)
            plan = self.plan(part)
            if plan.free_bytes < plan.write_bytes:
                raise UnavailableError(
                    f"has {plan.free_bytes:,} bytes free, the conversion still writes {plan.write_bytes:,}",
                    where=self.target,
                    hint="Free some space, then run the same command again; it resumes.",
                )
            _sweep(self.target, plan.shards)
            for result in self._convert(plan, jobs, report):
                self.journal.record(result)
            remaining = len(self.shards) - len(self._part(part))
            made = self.finish() if part == (1, 1) else None
        return Outcome(str(self.target), len(plan.shards), plan.already_done, remaining, made)

    def finish(self) -> ConversionReport:
        """Write index, config.json, report and the other files; only when every shard is done.

        Raises:
            CheckpointError: shards are missing; names the first and how many.
        """
        identity = self._identity()
        if not self.journal.exists:
            done = read_report(self.target)
            if done is not None and done.source_identity == identity.source:
                return done
            raise CheckpointError(
                "holds no conversion", where=self.target, hint="Run the parts first: k3 convert --part I/N"
            )
        self.journal.open(identity)
        results, missing = [], []
        for shard in self.shards:
            result = self.journal.done(self.source, shard)
            if result is None:
                missing.append(shard)
            else:
                results.append(result)
        if missing:
            raise CheckpointError(
                f"{len(missing)} of {len(self.shards)} shards are not converted yet, first {missing[0]}",
                where=self.target,
                hint="Run the remaining parts, then --finish again.",
            )
        with _write_errors(self.target):
            made = finish(self.source, self.target, self.spec.with_scheme(self.scheme), identity, results)
            self.journal.close()
        return made

    def _identity(self) -> Identity:
        source = digest_source(self.source, self.shards)
        return Identity(source, self.scheme, self.attention_scale, self.digest, __version__)

    def _part(self, part: tuple[int, int]) -> list[str]:
        number, parts = part
        if not 1 <= number <= parts:
            raise UsageError(f"must be I/N with 1 <= I <= N, not {number}/{parts}", where="--part")
        return self.shards[number - 1 :: parts]

    def _open(self, identity: Identity) -> None:
        if self.target.exists() and not self.journal.exists:
            strangers = [path.name for path in self.target.iterdir() if not path.name.startswith(".k3-convert")]
            if strangers:
                raise CheckpointError(
                    f"holds other files ({strangers[0]}, ...)", where=self.target, hint="Choose an empty or new folder."
                )
        self.target.mkdir(parents=False, exist_ok=True)
        self.journal.open(identity)

    def _convert(self, plan: ConversionPlan, jobs: int, report: Report) -> Iterator[ShardResult]:
        work = [self._job(shard) for shard in plan.shards]
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            report(done, plan.read_bytes, "")

        if jobs <= 1 or len(work) <= 1:
            for job in work:
                yield convert_shard(job, advance)
            return
        context = multiprocessing.get_context("spawn")
        counter = context.Value("q", 0)
        with ProcessPoolExecutor(min(jobs, len(work)), context, _begin_worker, (counter, os.getpid())) as pool:
            waiting: set[Future[ShardResult]] = {pool.submit(_work, job) for job in work}
            try:
                while waiting:
                    finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                    report(counter.value, plan.read_bytes, "")
                    for future in finished:
                        yield future.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _job(self, shard: str) -> ShardJob:
        mixed = self.scheme is Scheme.NVFP4_MIXED
        modules = (
            f"{self.spec.prefix}model.layers.{layer.index}.self_attn.{module}"
            for layer in self.spec.layers
            for module in ATTENTION_MODULES[layer.attention]
        )
        return ShardJob(
            source=str(self.source),
            target=str(self.target),
            shard=shard,
            scheme=self.scheme,
            attention_scale=self.attention_scale,
            attention=frozenset(modules) if mixed else frozenset(),
            elsewhere=self.elsewhere.get(shard, {}),
            share=shares_blocks(self.source / shard, self.target),
            digest=self.digest,
        )


def _elsewhere(index: tuple[dict[str, str], int | None] | None) -> dict[str, dict[str, str]]:
    """By shard, the scales its experts need and another shard holds: none where experts are kept together."""
    weights = {} if index is None else index[0]
    found: dict[str, dict[str, str]] = {}
    for name, shard in weights.items():
        if not name.endswith(".weight_packed"):
            continue
        module = name.removesuffix(".weight_packed")
        for scale in (f"{mate}.weight_scale" for mate in sharing(module)):
            if weights.get(scale, shard) != shard:
                found.setdefault(shard, {})[scale] = weights[scale]
    return found


_counter: Any = None


def _begin_worker(counter: Any, parent: int) -> None:
    """Set up a worker: it counts bytes for everybody, and dies with its parent, even when that is killed."""
    global _counter
    _counter = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the pool
    set_death_signal = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if set_death_signal is not None:
        set_death_signal(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _work(job: ShardJob) -> ShardResult:
    def advance(count: int) -> None:
        with _counter.get_lock():
            _counter.value += count

    return convert_shard(job, advance)


def _keep_apart(source: Path, target: Path) -> None:
    here, there = source.resolve(), target.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise UsageError(f"is not apart from the source {source}", where=target, hint="Choose a folder beside it.")
    if not target.parent.is_dir():
        raise UsageError("its parent folder is not there", where=target, hint=f"Make it: mkdir -p {target.parent}")


def _existing(path: Path) -> Path:
    return path if path.exists() else path.parent


def _sweep(target: Path, shards: tuple[str, ...]) -> None:
    """Remove what a killed run left under temporary names, for the shards that are about to be made."""
    mine = set(shards)
    for path in target.glob(".*.part"):
        if path.name[1:].rpartition(".safetensors.")[0] + ".safetensors" in mine:
            path.unlink(missing_ok=True)


@contextmanager
def _write_errors(target: Path) -> Iterator[None]:
    """Turn a full or read-only disk into an error that says what to do."""
    try:
        yield
    except K3Error:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise UnavailableError(
            f"cannot be written: {error.strerror or error}",
            where=target,
            hint="Free some space, then run the same command again; it resumes." if full else "Check its permissions.",
        ) from error
