"""Write docs/troubleshooting.md from the known failures: what the log says, why, what to do, with source and date."""

from pathlib import Path

from k3stack.launch.knowledge import Failure, failures

PAGE = Path(__file__).with_name("troubleshooting.md")

HEAD = """# When it fails

    k3 doctor LOG                  what a log says: the first cause, not the last error
    k3 doctor FOLDER               what the logs of several ranks, nodes or pods say together
    kubectl logs POD | k3 doctor - the same from a pipe
    k3 doctor http://HOST:PORT     health, models, metrics and one small request
    k3 doctor FOLDER               what is wrong with a checkpoint, where it holds one

A log may be as it is: packed (gzip, bzip2, xz), very long, in colours, as JSON lines (VLLM_LOGGING_CONFIG, Docker's own
files), and with what Docker, kubectl, journalctl, srun --label, mpirun --tag-output or pdsh write before each line.

`k3 up` uses the same knowledge. Exit code 1 means that a fault was found. A failure that is not known is not
guessed at: its first error is quoted, with the part of the engine that it was raised in and what to try there. An error
of one request, after which a server went on, is a warning. This page is written from
`src/k3stack/launch/data/failures.yaml` by `docs/write_troubleshooting.py`; do not edit it by hand.

An engine's log ends with the echoes of a failure (`EngineDeadError`, "Engine core initialization failed", "one child
failed"). The cause stands further up, in the first traceback of a worker.
"""

ENGINES = {"any": "vLLM and SGLang", "vllm": "vLLM", "sglang": "SGLang"}


def write() -> str:
    """The page's text."""
    known = failures()
    parts = [HEAD, f"\n{len(known)} failures are known.\n"]
    for engine, title in ENGINES.items():
        parts.append(f"\n## {title}\n")
        parts += [_entry(one) for one in known if one.engine == engine]
    return "".join(parts)


def _entry(one: Failure) -> str:
    words = dict.fromkeys(wording.text for wording in one.wording)
    said = " or ".join(f"`{text}`" for text in words)
    lines = [f"\n### {one.title[0].upper()}{one.title[1:]}\n\n`{one.id}`."]
    if said:
        lines.append(f" The log says {said}.")
    lines.append(f" {_plain(one.cause)}\n\n{_plain(one.fix)}\n\nSource: {one.source}, {one.date}.\n")
    return "".join(lines)


def _plain(text: str) -> str:
    """The text without the places that a log's own words fill."""
    import re

    return re.sub(r"\{\w+\|([^}]*)\}", r"\1", text)


if __name__ == "__main__":
    PAGE.write_text(write())
