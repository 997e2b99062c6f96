"""Runs in SGLang's Python: resolve and validate commands as a launch on a given GPU would, without one.

Reads, a line at a time, JSON lists of {"sm", "words", "variables"}; writes a line for each, a list of {"error",
"found"}: error null where a command is taken, found the kernels that SGLang settled on. SGLang has a switch of its own
for what the machine is, so all of its checks for K3 run as they do on the GPU.
"""

import argparse
import contextlib
import json
import os
import sys


def main() -> None:
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin:
            print(json.dumps([_resolve(**case) for case in json.loads(line)]), file=out, flush=True)


def _resolve(sm: int, words: list[str], variables: dict[str, str]) -> dict[str, object]:
    from sglang.srt.runtime_context import override_platform
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        with override_platform(**_facts(sm)):
            arguments = parser.parse_args(words)
            arguments._radix_eviction_policy_explicitly_set = False
            server = ServerArgs.from_cli_args(arguments)
            server.resolve_once()
            server.check_server_args()
            return {"error": None, "found": _kernels(server)}
    except (SystemExit, Exception) as error:
        return {"error": f"{type(error).__name__}: {error}", "found": {}}
    finally:
        os.environ.clear()
        os.environ.update(before)


def _facts(sm: int) -> dict[str, object]:
    """What SGLang's probes would say on this GPU (sglang/srt/utils/common.py)."""
    datacentre = sm in (100, 103)
    return {
        "is_cuda": True,
        "is_hip": False,
        "device_sm": sm,
        "is_sm90": sm == 90,
        "is_sm100": datacentre,
        "is_sm100_or_sm110": datacentre,
        "is_sm120": sm in (120, 121),
        "is_blackwell": sm >= 100,
    }


def _kernels(server: object) -> dict[str, object]:
    from sglang.srt.arg_groups.overrides import resolved_view

    view = resolved_view(server)
    return {"attention": view.attention_backend, "experts": view.moe_runner_backend}


if __name__ == "__main__":
    main()
