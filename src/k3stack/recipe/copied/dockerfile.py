"""The engine that an image starts, by its Dockerfile: ENTRYPOINT and CMD, with what ENV sets."""

from __future__ import annotations

import json
import re
import shlex

from k3stack.errors import InputError
from k3stack.recipe.copied.programs import in_container
from k3stack.recipe.copied.values import Copied

__all__ = ["in_dockerfile"]

_LINE = re.compile(r"^[ \t]*(FROM|ENV|ENTRYPOINT|CMD)[ \t]+(.*)$", re.MULTILINE)


def in_dockerfile(text: str) -> list[Copied]:
    """The engine of a Dockerfile's last stage; empty where the text is none."""
    joined = re.sub(r"\\[ \t]*\n", " ", text)
    lines = _LINE.findall(joined)
    if not lines or lines[0][0] != "FROM":
        return []
    image, given = "", dict[str, str]()
    words: dict[str, list[str]] = {}
    for name, rest in lines:
        if name == "FROM":
            image, given, words = rest.split()[0], {}, {}
        elif name == "ENV":
            given |= dict(one.split("=", 1) for one in _split(rest) if "=" in one)
        else:
            words[name] = _listed(rest)
    started = [*words.get("ENTRYPOINT", []), *words.get("CMD", [])]
    try:
        return list(in_container(started, given, image, None, entry="ENTRYPOINT" in words)) if started else []
    except InputError:
        return []


def _listed(rest: str) -> list[str]:
    """Words in JSON's form, or a line for a shell."""
    try:
        found = json.loads(rest)
    except ValueError:
        return ["sh", "-c", rest]
    return [str(word) for word in found] if isinstance(found, list) else []


def _split(rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError:
        return rest.split()
