"""Runs in SGLang's Python: resolve and validate commands as a launch on a given GPU would, without one.

Reads a JSON list of {"sm", "words", "variables"}; writes a list of errors, null where a command is taken. SGLang has
a switch of its own for what the machine is, so all of its checks for K3 run as they do on the GPU.
"""

import argparse
import contextlib
import json
import os
import sys


def main() -> None:
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        answers = [_resolve(**case) for case in json.load(sys.stdin)]
    json.dump(answers, out)


def _resolve(sm: int, words: list[str], variables: dict[str, str]) -> str | None:
    from sglang.srt.runtime_context import override_platform
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    before = dict(os.environ)
    os.environ.update(variables)
    blackwell = sm in (100, 103)
    facts = {"is_cuda": True, "is_hip": False, "device_sm": sm, "is_sm90": sm == 90, "is_sm100": blackwell}
    try:
        with override_platform(**facts, is_blackwell=blackwell, is_sm100_or_sm110=blackwell):
            arguments = parser.parse_args(words)
            arguments._radix_eviction_policy_explicitly_set = False
            server = ServerArgs.from_cli_args(arguments)
            server.resolve_once()
            server.check_server_args()
    except (SystemExit, Exception) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        os.environ.clear()
        os.environ.update(before)
    return None


if __name__ == "__main__":
    main()
