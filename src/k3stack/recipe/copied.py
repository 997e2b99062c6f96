"""A command that somebody copied: `vllm serve ...`, `sglang serve ...`, or either inside `docker run ...`, taken apart.

Only the text is read; nothing is run, and variables are not looked up.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from k3stack.errors import InputError

__all__ = ["Copied", "Docker", "take_apart"]

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_IMAGES = (("vllm", re.compile(r"(^|/)(vllm|kimi).*vllm|vllm/|vllm-openai")), ("sglang", re.compile(r"sglang")))
_BARE = set(
    "--rm -d --detach -i -t -it -ti --interactive --tty --privileged --init --read-only -P --publish-all".split()
)


@dataclass(frozen=True, slots=True)
class Docker:
    """What `docker run` was told.

    Attributes:
        publishes: values of --publish.
    """

    image: str
    host_network: bool
    host_ipc: bool
    shared_memory: bool
    publishes: tuple[str, ...]
    mounts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """The parts of a copied command.

    Attributes:
        words: what the engine is given, behind `vllm serve` or `sglang serve`.
        environment: variables with the values that the command gives them; passed-through ones are absent.
    """

    engine: str
    words: tuple[str, ...]
    environment: dict[str, str]
    docker: Docker | None


def take_apart(text: str) -> Copied:
    """Find the engine, its words, its environment and its container in a command.

    Raises:
        InputError: it starts neither vLLM nor SGLang, or cannot be split into words.
    """
    environment: dict[str, str] = {}
    for words in _commands(text):
        words = _leading(words, environment)
        if words and words[0] in ("docker", "podman", "nerdctl") and "run" in words[:3]:
            return _docker(words[words.index("run") + 1 :], environment)
        found = _engine(words, environment)
        if found is not None:
            return Copied(found[0], tuple(found[1]), environment, None)
    raise InputError(
        "neither vLLM nor SGLang is started here",
        where="--from",
        hint="Give the whole command, from `docker run`, `vllm serve` or `sglang serve` on.",
    )


def _commands(text: str) -> Iterator[list[str]]:
    joined = re.sub(r"\\\s*\n", " ", text)
    for line in joined.splitlines():
        bare = line.strip().removeprefix("$ ")
        if not bare or bare.startswith("#"):
            continue
        try:
            lexer = shlex.shlex(bare, posix=True, punctuation_chars=";&|")
            lexer.whitespace_split = True
            lexer.commenters = ""
            words = list(lexer)
        except ValueError as error:
            raise InputError(
                f"the command cannot be read: {error}", where="--from", hint="Check its quotes."
            ) from error
        yield from _split(words)


def _split(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for text in words:
        if text and set(text) <= set(";&|"):
            yield part
            part = []
        else:
            part.append(text)
    yield part


def _leading(words: list[str], environment: dict[str, str]) -> list[str]:
    """Drop `export`, `env`, `exec`, `set --` and assignments in front, keeping the assignments."""
    while words:
        if words[:2] == ["set", "--"]:  # our own scripts put a command together so
            words = words[2:]
            continue
        assigned = _ASSIGNMENT.fullmatch(words[0])
        if assigned:
            environment[assigned[1]] = assigned[2]
        elif words[0] not in ("export", "env", "exec", "sudo", "nohup", "time"):
            break
        words = words[1:]
    return words


def _engine(words: list[str], environment: dict[str, str]) -> tuple[str, list[str]] | None:
    """The engine and the words behind the program, if these words start one."""
    if not words:
        return None
    program = words[0].rpartition("/")[2]
    if program in ("vllm", "sglang") and words[1:2] == ["serve"]:
        return program, words[2:]
    if program.startswith("python") and words[1:2] == ["-m"] and len(words) > 2:
        if words[2].startswith("sglang.launch_server"):
            return "sglang", words[3:]
        if words[2].startswith("vllm.entrypoints"):
            return "vllm", words[3:]
    if program in ("bash", "sh") and words[1:2] in (["-c"], ["-lc"]) and len(words) > 2:
        parts = (_leading(part, environment) for part in _commands(words[2]))
        return next((found for part in parts if (found := _engine(part, environment))), None)
    return None


def _docker(words: list[str], environment: dict[str, str]) -> Copied:
    options, rest = _options(words)
    if not rest:
        raise InputError("docker run names no image", where="--from", hint="Give the whole command.")
    for text in (*options.get("-e", []), *options.get("--env", [])):
        name, equals, value = text.partition("=")
        if equals:
            environment[name] = value
    image, inner = rest[0], rest[1:]
    network = [*options.get("--network", []), *options.get("--net", [])]
    docker = Docker(
        image=image,
        host_network="host" in network,
        host_ipc="host" in options.get("--ipc", []),
        shared_memory="--shm-size" in options,
        publishes=(*options.get("-p", []), *options.get("--publish", [])),
        mounts=(*options.get("-v", []), *options.get("--volume", []), *options.get("--mount", [])),
    )
    entry = options.get("--entrypoint", [])
    found = _engine([*entry, *inner], environment)
    if found is None:
        engine = next((engine for engine, pattern in _IMAGES if pattern.search(image)), None)
        if engine is None:
            raise InputError(f"{image} is no image of vLLM or SGLang that is known", where="--from")
        found = engine, inner  # the image's own entry point starts the engine
    return Copied(found[0], tuple(found[1]), environment, docker)


def _options(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    found: dict[str, list[str]] = {}
    while words and words[0].startswith("-"):
        name, equals, value = words[0].partition("=")
        words = words[1:]
        if name in _BARE or (equals and name.startswith("--")):
            found.setdefault(name, []).append(value)
        else:
            found.setdefault(name, []).append(words[0] if words else "")
            words = words[1:]
    return found, words
