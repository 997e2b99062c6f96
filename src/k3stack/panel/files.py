"""The page's own files: what ships in the package, and the few scripts that are made from data.

The page consists of classic scripts, not modules: browsers do not load modules from a file, and an exported site must
open from one. Strings and facts reach it as calls, `K3.strings("en", {...})`, for the same reason.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

__all__ = ["LANGUAGES", "POLICY", "SCRIPTS", "call", "page", "strings"]

LANGUAGES = ("en", "zh")

SCRIPTS = (
    *("base.js", "layouts.js", "rows.js", "memory.js", "command.js"),
    *("more.js", "link.js", "paper.js", "main.js"),
)
"""In the order in which the page loads them; `source.js`, where answers come from, stands before the last."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
"""The content security policy: nothing inline, nothing from elsewhere."""


@lru_cache(maxsize=32)
def page(name: str) -> str:
    """One of the page's files."""
    return files("k3stack.panel").joinpath("page").joinpath(name).read_text(encoding="utf-8")


def strings(language: str) -> str:
    """The script that gives the page its words in one language, and the rules' sentences where they are translated."""
    words = call("strings", language, json.loads(page(f"{language}.json")))
    if language == "en":
        return words
    return words + call("sentences", language, json.loads(page(f"{language}.sentences.json")))


def call(name: str, *values: Any) -> str:
    """A script that hands values to the page."""
    words = ",".join(json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values)
    # In a string, these two end a line for some readers of JavaScript.
    return f"K3.{name}({words});\n".replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
