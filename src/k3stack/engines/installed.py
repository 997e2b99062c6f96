"""Asking a real engine: the one installed here, in another environment, or in an image.

Its parser answers; nothing is served.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from k3stack.errors import UnavailableError

__all__ = ["Answer", "ask", "find_python", "take_snapshot"]

_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine's parser said.

    Attributes:
        by: who answered, with its version.
        errors: one for each command; None where it was taken.
    """

    by: str
    errors: tuple[str | None, ...]


def find_python(engine: str) -> str | None:
    """The Python that has this engine: our own, or that of the `vllm` or `sglang` command on the path."""
    try:
        importlib.metadata.version(engine)
    except importlib.metadata.PackageNotFoundError:
        command = shutil.which(engine)
        beside = Path(command).resolve().parent / "python" if command else None
        return str(beside) if beside is not None and beside.exists() else None
    return sys.executable


def ask(engine: str, commands: Sequence[Sequence[str]], python: str | None = None, image: str | None = None) -> Answer:
    """Let an engine's own parser read commands.

    Args:
        commands: the words behind `vllm serve` or `sglang serve`.
        python: of the environment that has the engine.
        image: of a container that has it; needs docker.

    Raises:
        UnavailableError: the engine is not there, or its parser cannot be made.
    """
    said = _run(engine, "parse", json.dumps([list(words) for words in commands]), python, image)
    where = f"in {image}" if image else f"in {python}"
    return Answer(f"the parser of {engine} {said['version']} {where}", tuple(said["errors"]))


def take_snapshot(engine: str, python: str | None = None, image: str | None = None) -> dict[str, Any]:
    """Everything that the release accepts, as `releases.from_data` and `releases.pack` take it.

    Raises:
        UnavailableError: the engine is not there, or its parser cannot be made.
    """
    return _run(engine, "snapshot", "", python, image)


def _run(engine: str, wanted: str, given: str, python: str | None, image: str | None) -> dict[str, Any]:
    with as_file(files("k3stack.engines").joinpath("probe.py")) as probe:
        command = _command(probe, python, image)
        try:
            ran = subprocess.run(
                [*command, wanted, engine], input=given, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = error.strerror if isinstance(error, OSError) else f"no answer in {_SECONDS} s"
            raise _not_asked(engine, image or command[0], said or str(error)) from error
    if ran.returncode:
        # docker ends with advice about itself.
        lines = [line for line in ran.stderr.splitlines() if line.strip() and not line.startswith("Run 'docker")]
        raise _not_asked(engine, image or command[0], lines[-1] if lines else "it said nothing")
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def _not_asked(engine: str, where: str, said: str) -> UnavailableError:
    hint = f"Check that `{where}` has {engine}."
    return UnavailableError(f"{engine} cannot be asked: {said}", where=where, hint=hint)


def _command(probe: Path, python: str | None, image: str | None) -> list[str]:
    if image is None:
        return [python or sys.executable, str(probe)]
    mount = f"{probe.resolve()}:/probe.py:ro"
    return [
        "docker",
        "run",
        "--rm",
        "-i",
        "--network",
        "none",
        "--entrypoint",
        "python3",
        "-v",
        mount,
        image,
        "/probe.py",
    ]
