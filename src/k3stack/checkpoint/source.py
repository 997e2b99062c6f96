"""Where a checkpoint is: a folder, a model hub (headers by range requests), or the values that ship with k3stack.

All three answer the same four questions; nothing here interprets what it reads.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any

from k3stack.errors import CheckpointError, UnavailableError, UsageError, next_step
from k3stack.files import json_value

__all__ = ["BUILT_IN", "BuiltInSource", "FolderSource", "HubSource", "Source", "open_source"]

BUILT_IN = "kimi-k3"
"""The name under which the published values of Kimi-K3 can be asked without any file."""

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"


_AGAIN = "Download it again."


class Source(ABC):
    """Where a checkpoint is."""

    local = False
    """Whether reading the payload costs no download."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def document(self, name: str) -> bytes | None:
        """The content of a small file, or None when it is not there.

        Raises:
            CheckpointError, UnavailableError: it is there and cannot be read.
        """

    @abstractmethod
    def shard_sizes(self) -> dict[str, int]:
        """The safetensors files that are there, with their bytes."""

    @abstractmethod
    def read(self, shard: str, begin: int, end: int) -> bytes:
        """The bytes [begin, end) of a shard, fewer where it ends before.

        Raises:
            CheckpointError, UnavailableError: they cannot be read.
        """

    def config(self) -> Any:
        """The parsed config.json.

        Raises:
            CheckpointError: it is not there or no JSON object.
        """
        data = self.document(CONFIG)
        if data is None:
            raise CheckpointError(
                "has no config.json", where=self.name, hint="Point at the folder that holds config.json and the shards."
            )
        where = f"{self.name}/{CONFIG}"
        config = _json(data, where)
        if not isinstance(config, dict):
            raise CheckpointError("is not a JSON object", where=where, hint=_AGAIN)
        return config

    def index(self) -> tuple[dict[str, str], int | None] | None:
        """The index's weight map and its `total_size`, or None when there is no index.

        Raises:
            CheckpointError: it is there and cannot be read as an index.
        """
        data, where = self.document(INDEX), f"{self.name}/{INDEX}"
        if data is None:
            packed = self.document(INDEX + ".gz")
            if packed is None:
                return None
            try:
                data = gzip.decompress(packed)
            except (OSError, EOFError, zlib.error) as error:
                what = f"is not gzip that can be read ({error})"
                raise CheckpointError(what, where=where + ".gz", hint=_AGAIN) from error
        parsed = _json(data, where)
        weights = parsed.get("weight_map") if isinstance(parsed, dict) else None
        if not isinstance(weights, dict) or not all(isinstance(shard, str) for shard in weights.values()):
            raise CheckpointError("must map tensor names to file names", where=f"{where}: weight_map", hint=_AGAIN)
        metadata = parsed.get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        return weights, total if isinstance(total, int) else None


def _json(data: bytes, where: str) -> Any:
    try:
        return json_value(data)
    except ValueError as error:
        raise CheckpointError(f"is not JSON that can be read ({error})", where=where, hint=_AGAIN) from error


class FolderSource(Source):
    """A folder on disk."""

    local = True

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder

    def document(self, name: str) -> bytes | None:
        """The content of a file in the folder."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise CheckpointError(what, where=self.folder / name, hint=next_step(error)) from error

    def shard_sizes(self) -> dict[str, int]:
        """All *.safetensors files of the folder."""
        return {path.name: path.stat().st_size for path in sorted(self.folder.glob("*.safetensors")) if path.is_file()}

    def read(self, shard: str, begin: int, end: int) -> bytes:
        """Part of a shard."""
        try:
            with (self.folder / shard).open("rb") as file:
                file.seek(begin)
                return file.read(end - begin)
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise CheckpointError(what, where=self.folder / shard, hint=next_step(error)) from error


class HubSource(Source):
    """A repository on the Hugging Face hub, read in place: nothing but small files and headers is transferred.

    Authentication is huggingface_hub's own (HF_TOKEN or a stored login); nothing here sees the token.
    """

    def __init__(self, repository: str, revision: str | None = None) -> None:
        super().__init__(repository)
        self.repository, self.revision = repository, revision

    @cached_property
    def _files(self) -> dict[str, int]:
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        with self._clear_errors():
            tree = HfApi().list_repo_tree(self.repository, revision=self.revision)
            return {item.path: item.size for item in tree if isinstance(item, RepoFile)}

    @cached_property
    def _system(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem(skip_instance_cache=True, use_listings_cache=False)

    def _clear_errors(self) -> _HubErrors:
        return _HubErrors(self.repository)

    def _bytes(self, name: str, begin: int, end: int) -> bytes:
        at = f"@{self.revision}" if self.revision else ""
        with self._clear_errors(), self._system.open(f"{self.repository}{at}/{name}", "rb", cache_type="none") as file:
            file.seek(begin)
            data: bytes = file.read(end - begin)
            return data

    def document(self, name: str) -> bytes | None:
        """A small file of the repository."""
        size = self._files.get(name)
        return None if size is None else self._bytes(name, 0, size)

    def shard_sizes(self) -> dict[str, int]:
        """The repository's *.safetensors files."""
        return {name: size for name, size in sorted(self._files.items()) if name.endswith(".safetensors")}

    def read(self, shard: str, begin: int, end: int) -> bytes:
        """Part of a shard, by an HTTP range request."""
        return self._bytes(shard, begin, end)


class _HubErrors:
    """Turns the many ways in which a hub fails into one error that says what to do."""

    def __init__(self, repository: str) -> None:
        self.repository = repository

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

        if isinstance(error, RepositoryNotFoundError):
            raise UnavailableError(
                "is no repository that can be seen on the hub",
                where=self.repository,
                hint="Check its name; a gated or private one needs HF_TOKEN.",
            ) from error
        if isinstance(error, (HfHubHTTPError, OfflineModeIsEnabled, OSError)) or (error and _is_of_http_client(error)):
            raise UnavailableError(
                f"cannot be read from the hub: {_first_line(error)}",
                where=self.repository,
                hint="Check the network and HF_HUB_OFFLINE, or point at a folder with config.json and the index.",
            ) from error


def _is_of_http_client(error: BaseException) -> bool:
    """Whether an error is the hub client's HTTP library's own; which library that is has changed over its releases."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "requests")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class BuiltInSource(Source):
    """Kimi-K3 as published: config.json and index made from the values that ship with k3stack; no shards."""

    def __init__(self) -> None:
        super().__init__(f"{BUILT_IN} (built in)")

    def document(self, name: str) -> bytes | None:
        """config.json; the index is made on demand."""
        return json.dumps(self.config()).encode() if name == CONFIG else None

    def config(self) -> Any:
        """The published config.json."""
        from k3stack.spec.published import kimi_k3_config

        return kimi_k3_config()

    def index(self) -> tuple[dict[str, str], int | None]:
        """The published index."""
        from k3stack.spec.published import kimi_k3_index

        made = kimi_k3_index()
        return made["weight_map"], made["metadata"]["total_size"]

    def shard_sizes(self) -> dict[str, int]:
        """Nothing."""
        return {}

    def read(self, shard: str, begin: int, end: int) -> bytes:
        """Never possible."""
        raise CheckpointError("has no shards", where=self.name)


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def open_source(where: str, revision: str | None = None) -> Source:
    """The source that `where` names: a folder, the built-in `kimi-k3`, or a hub id such as moonshotai/Kimi-K3.

    Raises:
        UsageError: it is none of these.
    """
    path = Path(where)
    if where and path.is_dir():
        return FolderSource(path)
    if where and path.is_file():
        raise UsageError("is a file", where=where, hint="Point at the folder that holds config.json and the shards.")
    if where == BUILT_IN:
        return BuiltInSource()
    if _HUB_ID.fullmatch(where) and not where.startswith("."):
        return HubSource(where, revision)
    raise UsageError(
        "is no folder here and no hub id",
        where=where or "WHERE",
        hint=f"Give a folder with config.json, an id like moonshotai/Kimi-K3, or {BUILT_IN} for the published values.",
    )
