"""A small program that behaves like vLLM while it starts, and badly on purpose. Standard library only.

`--fake` says how: good, or what goes wrong, as `die:load` or `hang:capture`. The lines are vLLM's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

D = "11-20 09:14:01"
PHASES: dict[str, list[str]] = {
    "start": [f"(APIServer pid=1) INFO {D} [model.py:744] Resolved architecture: KimiK3ForConditionalGeneration"],
    "load": [
        f"(EngineCore pid=2) INFO {D} [gpu_model_runner.py:4979] Starting to load model X...",
        "(Worker_TP0 pid=3) Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 4.0it/s]",
    ],
    "prepare": [f"(EngineCore pid=2) INFO {D} [x.py:1] Model loading took 0.01 GiB memory and 0.1 seconds"],
    "capture": [
        f"(EngineCore pid=2) INFO {D} [gpu_worker.py:730] Available KV cache memory: 8.61 GiB",
        f"(EngineCore pid=2) INFO {D} [kv_cache_utils.py:1] GPU KV cache size: 1,203,112 tokens",
    ],
    "listen": [f"(APIServer pid=1) INFO {D} [entry.py:139] Starting vLLM server on http://127.0.0.1:8000"],
}
BLOCKS = "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (161)."
ERROR = f"(EngineCore pid=2) ERROR {D} [core.py:1300] {BLOCKS}"
DIED = f"(EngineCore pid=2) ERROR {D} [multiproc_executor.py:381] Worker proc X died unexpectedly (exit code: -9)."
SYMPTOM = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."


def say(line: str) -> None:
    print(line, flush=True)


def misbehave(how: str) -> None:
    match how:
        case "die":
            say(ERROR)
            say(SYMPTOM)
            sys.exit(1)
        case "quietly":
            sys.exit(3)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            time.sleep(600)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "linger":
            say(ERROR)
            time.sleep(600)
        case "full":
            raise OSError(28, "No space left on device", "/cache/x")
        case "losecore" | "losecore-echo" | "losecore-code":
            time.sleep(2)  # who follows has begun to look by then
            core = subprocess.Popen(
                ["VLLM::EngineCore", "-c", "import time; time.sleep(600)"], executable=sys.executable
            )
            time.sleep(1)
            core.kill()
            say(f"core killed at {time.time()}")
            core.wait()
            if how != "losecore":
                say(f"(Worker pid=3) ERROR {D} [multiproc_executor.py:953] BrokenPipeError: [Errno 32] Broken pipe")
                say(f"{SYMPTOM} Failed core proc(s): {{'EngineCore': -9}}" if how == "losecore-code" else SYMPTOM)
                sys.exit(1)
            time.sleep(600)  # vLLM's first process takes its time to see it
        case "killworker":
            os.kill(WORKERS[0].pid, signal.SIGKILL)
            WORKERS[0].wait()
            say(DIED)
            sys.exit(1)


WORKERS: list[subprocess.Popen[bytes]] = []
SLEEPER = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"


def spawn_worker() -> None:
    WORKERS.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))


def spawn_stray() -> None:
    """A child that nobody waits for: its own session, no environment, no parent, deaf to SIGTERM."""
    stray = f"subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], env={{}}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", f"import subprocess, sys; {stray}"], check=True)


class Handler(BaseHTTPRequestHandler):
    how = "good"

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, code: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, {"data": [{"id": "fake"}]})
        else:
            self._send(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.how == "refuse":
            self._send(500, {"error": "no"})
        elif self.how == "notemplate" and "chat" in self.path:
            self._send(400, {"error": "no chat template"})
        else:
            self._send(200, {"choices": [{"message": {"content": "x"}, "text": "x"}]})


class Server(ThreadingHTTPServer):
    allow_reuse_address = True


def main() -> None:
    words = sys.argv[1:]
    how, _, where = (words[words.index("--fake") + 1] if "--fake" in words else "good").partition(":")
    port = int(words[words.index("--port") + 1])
    if how == "badflag":
        say("usage: vllm serve [model_tag] [options]")
        say("vllm serve: error: unrecognized arguments: --no-such-flag")
        sys.exit(2)
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    spawn_worker()
    if how == "strays":
        spawn_stray()
    try:
        server = Server(("127.0.0.1", port), Handler)
    except OSError as error:
        say(f"OSError: [Errno {error.errno}] {error.strerror}")
        sys.exit(1)
    server.socket.close()  # vLLM binds first and listens when it is ready
    for phase, lines in PHASES.items():
        for line in lines:
            say(line)
        if where == phase:
            misbehave(how)
        time.sleep(float(os.environ.get("FAKE_PHASE_S", "0.05")))
    Handler.how = how
    server = Server(("127.0.0.1", port), Handler)
    say("(APIServer pid=1) INFO:     Application startup complete.")
    try:
        server.serve_forever()
    finally:
        for worker in WORKERS:
            with contextlib.suppress(ProcessLookupError):
                worker.terminate()


if __name__ == "__main__":
    main()
