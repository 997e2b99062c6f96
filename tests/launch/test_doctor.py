"""`k3 doctor`: a log, an address, a folder."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from k3stack.checkpoint.tiny import write_tiny
from k3stack.spec.schemes import Scheme
from tests.cli.run import k3

LOGS = Path(__file__).with_name("logs")

METRICS = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="k3"} 4.0
vllm:num_requests_waiting{engine="0",model_name="k3"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="k3"} 0.99
vllm:num_preemptions_total{engine="0",model_name="k3"} 0.0
"""


@contextmanager
def endpoint(message: dict[str, Any] | None, metrics: str = "", health: int = 200) -> Iterator[str]:
    """A server that answers as told."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def _send(self, code: int, text: str) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            pages = {"/v1/models": json.dumps({"data": [{"id": "k3"}]}), "/metrics": metrics}
            if self.path == "/health":
                self._send(health, "")
            else:
                self._send(200 if pages.get(self.path) else 404, pages.get(self.path, ""))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = {"choices": [{"message": message}]}
            self._send(200 if message is not None else 500, json.dumps(answer))

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def found(subject: str) -> tuple[int, dict[str, str]]:
    ran = k3("doctor", subject, "--json")
    return ran.code, {one["id"]: one["status"] for one in json.loads(ran.out)["findings"]}


def test_a_log() -> None:
    assert found(str(LOGS / "too-many-sequences.log")) == (1, {"too-many-sequences": "fail"})
    assert found(str(LOGS / "good-vllm.log")) == (0, {"log": "pass"})
    ran = k3("doctor", str(LOGS / "port-in-use.log"))
    assert ran.code == 1 and "the port is taken" in ran.out and "k3 down" in ran.out


def test_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    write_tiny(folder, Scheme.MXFP4, 0)
    code, said = found(str(folder))
    assert code == 0 and said["checkpoint"] == "pass"
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    code, said = found(str(folder))
    assert code == 1 and said["truncated-shard"] == "fail"
    (folder / "config.json").write_text("{")
    assert found(str(folder))[0] == 1


def test_a_good_endpoint() -> None:
    with endpoint({"content": "ready"}) as url:
        code, said = found(url + "/v1/")
    assert code == 0
    assert said == {"health": "pass", "models": "pass", "metrics": "not applicable", "request": "pass"}


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ({"content": "<|open|>response<|sep|>ready"}, "markers"),
        ({"content": "!" * 16}, "exclamation-marks"),
        (None, "request"),
    ],
)
def test_a_bad_answer(message: dict[str, Any] | None, wanted: str) -> None:
    with endpoint(message) as url:
        code, said = found(url)
    assert code == 1 and said[wanted] == "fail"


def test_full_caches_and_dead_engines() -> None:
    with endpoint({"content": "ready"}, METRICS) as url:
        code, said = found(url)
    assert code == 0 and said["cache-full"] == "warn"
    with endpoint({"content": "ready"}, METRICS.replace("0.99", "0.1"), health=503) as url:
        code, said = found(url)
    assert code == 1 and said["health"] == "fail" and said["slots-full"] == "warn"
    assert found("http://127.0.0.1:9") == (1, {"reachable": "fail"})


def test_wrong_use(tmp_path: Path) -> None:
    assert k3("doctor", str(tmp_path / "no")).code == 2
    assert k3("doctor", "parsers", "--help").code == 0
    assert "LOG" in k3("doctor", "--help").out
