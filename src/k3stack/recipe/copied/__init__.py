"""What somebody copied, taken apart: a command, a script, a compose file, manifests, a batch job, a task.

Every engine and every router in it is found, with its words, its environment and its container. Only the text is
read; nothing is run, and variables are filled only with what the text itself gives them.
"""

from __future__ import annotations

import re

from k3stack.errors import InputError
from k3stack.recipe.copied.dockerfile import in_dockerfile
from k3stack.recipe.copied.documents import in_documents, looks_like_yaml
from k3stack.recipe.copied.programs import in_shell
from k3stack.recipe.copied.values import Copied, Docker

__all__ = ["TYPOGRAPHIC", "Copied", "Docker", "take_all_apart", "take_apart"]

TYPOGRAPHIC = re.compile(
    "(?<=\\s)[\u2013\u2014]{1,2}(?=[a-z][a-z0-9-]+)|(?<=[ =])[\u201c\u201d\u2018\u2019](?=[\\[{])"
    "|(?<=[}\\]])[\u201c\u201d\u2018\u2019]"
)
"""Dashes and quotation marks that a text program put for a flag's hyphens and around JSON."""


_FENCED = re.compile(r"^[ \t]*(```+|~~~+)[^\n]*\n(.*?)^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)


def take_apart(text: str) -> Copied:
    """The first engine in a text.

    Raises:
        InputError: it starts neither vLLM nor SGLang, or cannot be split into words.
    """
    return next(one for one in take_all_apart(text) if not one.is_router)


_MOST = 256
"""Every command is held against every rule: a text of thousands would take minutes, and no deployment has as many."""


def take_all_apart(text: str) -> tuple[Copied, ...]:
    """Every engine and every router in a text, in order.

    Raises:
        InputError: it starts neither vLLM nor SGLang, or cannot be split into words.
    """
    text = _plain(_unfenced(text.replace("\r\n", "\n").lstrip("\ufeff")))
    found = in_dockerfile(text) or (in_documents(text) if looks_like_yaml(text) else [])
    found = found or list(in_shell(text))
    if not any(not one.is_router for one in found):
        raise InputError(
            "neither vLLM nor SGLang is started here",
            where="--from",
            hint="Give the whole command, from `docker run`, `vllm serve` or `sglang serve` on.",
        )
    if len(found) > _MOST:
        raise InputError(
            f"{len(found):,} commands are here, and at most {_MOST} are examined together",
            where="--from",
            hint="Give the commands of one deployment.",
        )
    return tuple(found)


def _plain(text: str) -> str:
    """With plain hyphens and quotation marks, so that the rest can be read."""
    return TYPOGRAPHIC.sub(lambda one: "--" if one[0][0] in "\u2013\u2014" else "'", text)


def _unfenced(text: str) -> str:
    """The code of a page of Markdown; anything else whole. Lines keep their numbers."""
    if not _FENCED.search(text):
        return text
    kept, at = [], 0
    for block in _FENCED.finditer(text):
        kept.append("\n" * text.count("\n", at, block.start(2)))
        kept.append(block[2])
        at = block.end(2)
    return "".join(kept)
