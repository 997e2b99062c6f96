"""What is wrong with commands only together: prefill and decode that cannot read each other's cache, two processes on
one port, nodes of one server that were told different things.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from k3stack.engines.pairs import GroupRule, group_rule
from k3stack.recipe.copied import Copied
from k3stack.recipe.doctor import Diagnosis, Finding, Weight
from k3stack.recipe.meaning import number_of
from k3stack.recipe.pairing import Said, disagreements

__all__ = ["Part", "together"]

_PORTS = {"vllm": 8000, "sglang": 30000, "vllm-router": 30000, "sglang-router": 30000}
_SIDE_CHANNEL, _BOOTSTRAP = 5600, 8998
_SAME_ON_NODES = {
    "vllm": (
        *("model", "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
        *("decode-context-parallel-size", "enable-expert-parallel", "nnodes", "kv-cache-dtype", "quantization"),
        *("max-model-len", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization", "speculative-config"),
    ),
    "sglang": (
        *("model", "tp-size", "pp-size", "dp-size", "attn-dp-size", "ep-size", "dcp-size", "nnodes", "kv-cache-dtype"),
        *("quantization", "context-length", "max-running-requests", "mem-fraction-static", "speculative-algorithm"),
    ),
}
_URL_PORT = re.compile(r"(?:https?://)?(?:\[[^\]]*\]|[^:/\s]+):(\d+)/?$")


@dataclass(frozen=True, slots=True)
class Part:
    """One command of several: what was copied, what the doctor says of it, and its role."""

    copied: Copied
    diagnosis: Diagnosis
    role: str
    name: str

    @property
    def port(self) -> str:
        """Where it answers, as it says, or its program's own."""
        return str(self.diagnosis.settings.get("port", _PORTS.get(self.copied.engine, "")))


def together(parts: Sequence[Part], other_router: bool = False) -> Iterator[Finding]:
    """What is wrong with these commands together.

    Args:
        other_router: somebody else's router is among the commands of the text.
    """
    engines = [one for one in parts if not one.copied.is_router]
    prefills = [one for one in engines if one.role == "prefill"]
    decodes = [one for one in engines if one.role == "decode"]
    found: dict[str, Finding] = {}
    for one in prefills:
        for other in decodes:
            for finding in _pair(one, other):
                found.setdefault(finding.rule, finding)
    yield from found.values()
    routers = [one for one in parts if one.copied.is_router]
    if prefills and decodes and not routers and not other_router:
        yield _of(group_rule("no-router"), "prefill and decode are here and no router")
    for router in routers:
        yield from _router(router, prefills, decodes)
    yield from _machines(parts)
    yield from _nodes(engines)


def _of(rule: GroupRule, what: str) -> Finding:
    weight = Weight.ADVICE if rule.advice else Weight.WRONG
    return Finding(weight, rule.id, what, rule.why, rule.fix, f"{rule.source}, {rule.date}")


# --- prefill and decode ----------------------------------------------------------------------------------------------


def _pair(prefill: Part, decode: Part) -> Iterator[Finding]:
    engine = prefill.copied.engine
    if engine != decode.copied.engine:
        yield _of(group_rule("two-engines"), f"prefill is {engine} and decode is {decode.copied.engine}")
        return
    for found in disagreements(engine, _said(prefill), _said(decode)):
        yield _of(found.rule, found.what)


def _said(part: Part) -> Said:
    found = part.diagnosis
    return Said(found.settings, found.model, found.version, bool(part.copied.image))


# --- the router ------------------------------------------------------------------------------------------------------


def _router(router: Part, prefills: Sequence[Part], decodes: Sequence[Part]) -> Iterator[Finding]:
    if router.copied.line == 0 and not router.copied.host:
        return  # between pods stand services, which may map ports
    for flag, roles in (("prefill", prefills), ("decode", decodes)):
        ports = {port for role in roles for port in _doors(role)}
        asked = re.findall(rf"--{flag}[= ](\S+)(?: (\d+|none))?(?= |$)", " ".join(router.copied.words))
        if not ports or any(not port.isdecimal() for port in ports):
            continue
        for address, bootstrap in asked:
            found = _URL_PORT.search(address)
            if found and found[1] not in ports:
                said = f"the router's --{flag} names port {found[1]} and {flag} listens on {', '.join(sorted(ports))}"
                yield _of(group_rule("router-port"), said)
            if flag == "prefill" and router.copied.engine == "sglang-router":
                yield from _bootstrap(bootstrap, prefills)


def _bootstrap(said: str, prefills: Sequence[Part]) -> Iterator[Finding]:
    ports = {str(one.diagnosis.settings.get("disaggregation-bootstrap-port", _BOOTSTRAP)) for one in prefills}
    if all(port.isdecimal() for port in ports) and said not in ports:
        given = f"bootstrap port {said}" if said.isdecimal() else "no bootstrap port"
        yield _of(
            group_rule("router-bootstrap"), f"the router names {given} and prefill's is {', '.join(sorted(ports))}"
        )


def _doors(part: Part) -> set[str]:
    """The ports under which a role is reached: its own, and those that its container publishes."""
    return {part.port, *_published(part)}


def _published(part: Part) -> set[str]:
    """The ports of its machine under which its container is reached."""
    docker = part.copied.docker
    return {text.split(":")[-2] for text in (docker.publishes if docker else ()) if ":" in text}


# --- one machine -----------------------------------------------------------------------------------------------------


def _machines(parts: Sequence[Part]) -> Iterator[Finding]:
    for one, other in combinations(parts, 2):
        if not one.copied.host or one.copied.host != other.copied.host:
            continue
        names = f"{one.name} and {other.name}"
        if taken := _taken(one) & _taken(other):
            yield _of(group_rule("same-port"), f"{names} listen on port {', '.join(sorted(taken))} of one machine")
        if one.copied.is_router or other.copied.is_router:
            continue
        if _share_side_channel(one, other):
            said = f"{names} have side channel port {_side_channel(one)} on one machine"
            yield _of(group_rule("same-side-channel"), said)
        if _share_gpus(_gpus(one), _gpus(other)):
            yield _of(group_rule("same-gpus"), f"{names} take the same GPUs of one machine")


def _share_side_channel(one: Part, other: Part) -> bool:
    both = all(_nixl(part) and part.copied.shares_ports for part in (one, other))
    return both and _side_channel(one) == _side_channel(other)


def _share_gpus(gpus: frozenset[str] | None, others: frozenset[str] | None) -> bool:
    if gpus is None or others is None:
        return False
    return not gpus or not others or bool(gpus & others)


def _taken(part: Part) -> set[str]:
    """The ports of its machine that a command needs, where it says them."""
    if not part.copied.shares_ports:
        return _published(part)
    return {part.port} if part.port.isdecimal() and not part.diagnosis.settings.get("headless") else set()


def _nixl(part: Part) -> bool:
    transfer = part.diagnosis.settings.get("kv-transfer-config")
    return isinstance(transfer, dict) and str(transfer.get("kv_connector", "")).startswith("Nixl")


def _side_channel(part: Part) -> str:
    return part.copied.environment.get("VLLM_NIXL_SIDE_CHANNEL_PORT", str(_SIDE_CHANNEL))


def _gpus(part: Part) -> frozenset[str] | None:
    """The GPUs that a command is given; empty means from the first one on, None that it is not known."""
    values = part.diagnosis.settings
    if part.copied.docker is not None or values.get("base-gpu-id") or number_of(values, "nnodes") > 1:
        return None
    said = part.copied.environment.get("CUDA_VISIBLE_DEVICES") or part.copied.environment.get("HIP_VISIBLE_DEVICES")
    if said is None:
        return frozenset()
    names = [name.strip() for name in said.split(",")]
    return frozenset(names) if all(name.isdecimal() for name in names) else None


# --- nodes of one server ---------------------------------------------------------------------------------------------


def _nodes(engines: Sequence[Part]) -> Iterator[Finding]:
    servers: dict[tuple[str, str], dict[str, list[Part]]] = {}
    for one in engines:
        values = one.diagnosis.settings
        if number_of(values, "nnodes") > 1 and str(values.get("node-rank", "0")).isdecimal():
            head = str(values.get("master-addr") or values.get("dist-init-addr") or "")
            servers.setdefault((one.copied.engine, one.role), {}).setdefault(head, []).append(one)
    for (engine, role), heads in servers.items():
        nodes = [one for several in heads.values() for one in several]
        if len(heads) > 1 and len({_rank(one) for one in nodes}) == len(nodes):
            said = ", ".join(head or "nothing" for head in heads)
            yield _of(group_rule("nodes-differ"), f"the nodes of {role} differ in the address of rank 0: {said}")
            heads = {"": nodes}
        for several in heads.values():
            if len(several) > 1:
                yield from _server(engine, role, several)


def _rank(part: Part) -> int:
    return number_of(part.diagnosis.settings, "node-rank", 0)


def _server(engine: str, role: str, nodes: Sequence[Part]) -> Iterator[Finding]:
    ranks = [_rank(one) for one in nodes]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        yield _of(group_rule("same-rank"), f"{role} has rank {', '.join(map(str, twice))} more than once")
    for name in _SAME_ON_NODES[engine]:
        said = {one.diagnosis.model if name == "model" else str(one.diagnosis.settings.get(name)) for one in nodes}
        if len(said) > 1 and not any("$" in text for text in said):
            values = ", ".join("nothing" if text == "None" else text for text in sorted(said))
            yield _of(group_rule("nodes-differ"), f"the nodes of {role} differ in --{name}: {values}")
    count = max(number_of(one.diagnosis.settings, "nnodes") for one in nodes)
    missing = sorted(set(range(count)) - set(ranks))
    if missing and not twice:
        ranks_missing = ", ".join(map(str, missing[:8]))
        yield _of(group_rule("missing-node"), f"{role} runs on {count} nodes and rank {ranks_missing} is not here")
