"""The router of a disaggregated deployment: it sends prompts to prefill and answers from decode."""

from __future__ import annotations

from k3stack.engines.releases import latest
from k3stack.recipe.deployment import Command, Flag, Reason, Role

__all__ = ["ROUTER_PORT", "router"]

ROUTER_PORT = 8000

_VLLM = Reason("vllm-router", "Pairs each request's prefill with a decode replica.", "recipe, pd_cluster", "2026-08-21")
_SGLANG = Reason("sglang-router", "Pairs each request's prefill with a decode server.", "panel", "2026-09-16")
_PATIENT = Reason(
    "sglang-router-patience",
    "A long prompt or a long start is not an outage: without these the router drops healthy servers.",
    "panel",
    "2026-09-16",
)
_TIMEOUT = Reason(
    "router-timeout",
    "K3 thinks for long; the router's own limit is 1,800 s.",
    "router_args.py; Moonshot client advice",
    "2026-11-29",
)
_DOOR = Reason("router-door", "The one door for clients; renderers bind it to 127.0.0.1.", "k3stack", "2026-11-29")

_UV_IMAGE = "ghcr.io/astral-sh/uv:python3.12-bookworm-slim"


def router(engine: str, prefill: Role, decode: Role) -> Role:
    """The router's role for two roles of an engine."""
    made = _vllm(prefill, decode) if engine == "vllm" else _sglang(prefill, decode)
    door = (
        Flag("host", "0.0.0.0", _DOOR),
        Flag("port", ROUTER_PORT, _DOOR),
        Flag("request-timeout-secs", 3600, _TIMEOUT),
    )
    command = Command("", (*made.flags, *door), (), made.program, made.image_program)
    return Role("router", command, gpus=0, port=ROUTER_PORT, image=_UV_IMAGE if engine == "vllm" else "")


def _vllm(prefill: Role, decode: Role) -> Command:
    flags = (
        Flag("policy", "round_robin", _VLLM),
        Flag("vllm-pd-disaggregation", True, _VLLM),
        Flag("prefill", [f"http://{{prefill}}:{prefill.port}"], _VLLM),
        *(Flag("decode", f"http://{{decode{door}}}:{decode.port}", _VLLM) for door in range(decode.doors)),
        Flag("intra-node-data-parallel-size", decode.local_replicas, _VLLM),
    )
    package = f"vllm-router=={latest('vllm-router')}"
    return Command("", flags, (), ("vllm-router",), ("uvx", package))


def _sglang(prefill: Role, decode: Role) -> Command:
    bootstrap = str(prefill.command.flag("disaggregation-bootstrap-port"))
    flags = (
        Flag("pd-disaggregation", True, _SGLANG),
        Flag("prefill", [f"http://{{prefill}}:{prefill.port}", bootstrap], _SGLANG),
        *(Flag("decode", f"http://{{decode{door}}}:{decode.port}", _SGLANG) for door in range(decode.doors)),
        Flag("disable-circuit-breaker", True, _PATIENT),
        Flag("health-check-interval-secs", 999_999, _PATIENT),
    )
    return Command("", flags, (), ("python3", "-m", "sglang_router.launch_router"))
