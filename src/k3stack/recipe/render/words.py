"""Words of a command line as shell text, with the places that only a running node can fill as shell variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from k3stack.recipe.deployment import Command, Deployment, Role

__all__ = ["LISTEN", "PATCH_FOLDER", "join", "listening", "places", "used", "word"]

LISTEN = "${K3_LISTEN:-127.0.0.1}"
"""Where the clients' door listens when a container or node has the host's network: loopback, unless told otherwise."""

PATCH_FOLDER = "/k3-patches"

_PLACE = re.compile(r"\{(rank|head|self|dp_start|listen|prefill|decode\d+)\}")


def places(role: Role) -> dict[str, str]:
    """The shell expression for every place, for the scripts that we write."""
    return {
        "rank": "${rank}",
        "head": "${K3_HEAD}",
        "self": "${K3_ADDRESS}",
        "dp_start": f"$((rank * {role.local_replicas}))",
        "listen": LISTEN,
        "prefill": "${K3_PREFILL}",
        **{f"decode{door}": f"${{K3_DECODE_{door}}}" for door in range(64)},
    }


def word(text: str, filled: Mapping[str, str]) -> str:
    """One word, quoted; a place becomes a variable inside double quotes."""
    if not _PLACE.search(text):
        return shlex.quote(text)
    parts = _PLACE.split(text)
    quoted = "".join(
        filled[part] if index % 2 else re.sub(r'([\\"$`])', r"\\\1", part) for index, part in enumerate(parts)
    )
    return f'"{quoted}"'


def join(words: Iterable[str], filled: Mapping[str, str], indent: str = "  ") -> str:
    """Words as one command over several lines, a flag and its values on each."""
    lines: list[str] = []
    for text in words:
        if text.startswith("--") or not lines:
            lines.append(word(text, filled))
        else:
            lines[-1] += " " + word(text, filled)
    return f" \\\n{indent}".join(lines)


def listening(deployment: Deployment, role: Role, words: list[str]) -> list[str]:
    """The words with the clients' door bound to `{listen}`, where the network is the host's."""
    if role is not deployment.endpoint and role.name != deployment.endpoint.name:
        return words
    return ["{listen}" if text == "0.0.0.0" and words[at - 1] == "--host" else text for at, text in enumerate(words)]


def used(command: Command) -> frozenset[str]:
    """The places that a command and its environment have."""
    texts = [*command.words(worker=True), *(variable.value for variable in command.environment)]
    return frozenset(place for text in texts if "{" in text for place in _PLACE.findall(text))
