"""YAML as people write it: scripts as blocks, nothing by reference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

__all__ = ["yaml_documents"]


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # the same text, in a tenth of the time
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def yaml_documents(notes: Iterable[str], *documents: dict[str, Any]) -> str:
    """Notes as comments, then the documents."""
    comments = "".join(f"# {note}\n" for note in notes)
    return comments + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000)
