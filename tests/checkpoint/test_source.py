"""Where a checkpoint is: a folder, the built-in values, a hub served on loopback."""

import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3stack.checkpoint.inspect import inspect
from k3stack.checkpoint.scan import Looked
from k3stack.checkpoint.source import HubSource, open_source
from k3stack.errors import UnavailableError, UsageError
from tests.cli.run import k3
from tests.paths import K3, needs_shared


@needs_shared
def test_moonshots_files_without_a_shard() -> None:
    report = inspect(open_source(str(K3)))
    assert report.looked is Looked.INDEX
    assert report.sound and report.release
    assert report.sizes.file_bytes == 1_560_936_091_448


@pytest.mark.slow
@needs_shared
def test_a_planted_name_in_moonshots_index_is_found(tmp_path: Path) -> None:
    import gzip

    index = json.loads(gzip.decompress((K3 / "model.safetensors.index.json.gz").read_bytes()))
    del index["weight_map"]["language_model.model.layers.50.block_sparse_moe.experts.7.w2.weight_scale"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_bytes((K3 / "config.json").read_bytes())
    report = inspect(open_source(str(tmp_path)))
    assert [fault.kind.value for fault in report.faults] == ["missing scale"]
    assert not report.release


def test_the_built_in_values_are_the_release() -> None:
    report = inspect(open_source("kimi-k3"))
    assert report.release and report.sound and report.looked is Looked.INDEX


@pytest.mark.parametrize("where", ["no/such/folder", "nothing", "../x", "-x/y", "a b/c", ""])
def test_neither_folder_nor_hub_id(where: str) -> None:
    with pytest.raises(UsageError):
        open_source(where)


class Hub:
    """As much of a model hub as reading in place needs: tree, resolve with ranges, 404."""

    def __init__(self, folder: Path) -> None:
        self.sent_bytes = 0
        self.authorizations: set[str | None] = set()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                hub.authorizations.add(self.headers.get("Authorization"))
                path = self.path.split("?")[0]
                if found := re.fullmatch(r"/api/models/org/tiny/tree/[^/]+/?", path):
                    listing = [
                        {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": "0" * 40}
                        for p in sorted(folder.iterdir())
                    ]
                    return self.reply(json.dumps(listing).encode(), "application/json")
                if re.fullmatch(r"/api/models/org/tiny(/revision/[^/]+)?", path):
                    info = {"id": "org/tiny", "modelId": "org/tiny", "sha": "0" * 40, "siblings": [], "tags": []}
                    return self.reply(json.dumps(info).encode(), "application/json")
                if re.fullmatch(r"/api/models/org/tiny/paths-info/[^/]+", path):
                    return self.reply(b"[]", "application/json")
                if found := re.fullmatch(r"/org/tiny/resolve/[^/]+/([\w.-]+)", path):
                    return self.file(folder / found[1])
                return self.reply(b'{"error": "Repository not found"}', "application/json", 404, RepoNotFound=True)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length).decode()
                paths = re.findall(r"[\w.-]+\.(?:json|safetensors)", body)
                listing = [
                    {"type": "file", "path": name, "size": (folder / name).stat().st_size, "oid": "0" * 40}
                    for name in paths
                    if (folder / name).exists()
                ]
                self.reply(json.dumps(listing).encode(), "application/json")

            def file(self, path: Path) -> None:
                data = path.read_bytes()
                wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if wanted is None:
                    return self.reply(data, "application/octet-stream")
                begin, end = int(wanted[1]), int(wanted[2]) + 1
                return self.reply(data[begin:end], "application/octet-stream", 206)

            def reply(self, body: bytes, kind: str, status: int = 200, RepoNotFound: bool = False) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", '"0"')
                self.send_header("X-Repo-Commit", "0" * 40)
                if RepoNotFound:
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.end_headers()
                if self.command != "HEAD":
                    hub.sent_bytes += len(body)
                    self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hub(pristine: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    import huggingface_hub.constants as constants

    served = Hub(pristine("mxfp4"))
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield served
    served.server.shutdown()
    served.server.server_close()


def test_a_hub_is_inspected_by_its_headers_alone(hub: Hub, pristine: Callable[[str], Path]) -> None:
    report = inspect(HubSource("org/tiny"))
    assert report.sound and report.looked is Looked.HEADERS
    assert report.read_bytes == report.sizes.file_bytes
    folder = pristine("mxfp4")
    headers = sum(shard.header_bytes for shard in report.sizes.shards)
    documents = sum((folder / name).stat().st_size for name in ("config.json", "model.safetensors.index.json"))
    assert hub.sent_bytes < headers + documents + 20_000
    assert hub.sent_bytes < report.sizes.file_bytes / 100


def test_a_repository_that_is_not_there(hub: Hub) -> None:
    with pytest.raises(UnavailableError, match=r"no repository|cannot be read"):
        inspect(HubSource("org/other"))


def test_a_hub_that_cannot_be_reached_is_a_clear_error(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the hub's library tries again for 24 s
    hub.server.shutdown()
    hub.server.server_close()
    with pytest.raises(UnavailableError, match="cannot be read from the hub"):
        inspect(HubSource("org/tiny"))


def test_offline_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ran = k3("inspect", "moonshotai/Kimi-K3")
    assert ran.code == 3
    assert "moonshotai/Kimi-K3" in ran.err and "HF_HUB_OFFLINE" in ran.err
    assert "Traceback" not in ran.err
