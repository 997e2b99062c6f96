"""What the planner's tests share."""

from k3stack.hardware.table import gpu
from k3stack.plan import Layout, Plan, Workload, make_plan
from k3stack.plan.assess import Job
from k3stack.plan.cache import VllmBlocks, vllm_blocks
from k3stack.plan.plan import plan_job
from k3stack.plan.releases import Release, release
from k3stack.plan.stages import stages
from k3stack.plan.weights import weights_of_stage
from k3stack.spec.published import kimi_k3
from k3stack.values import GIB

K3 = kimi_k3()
DAY0 = release("vllm", "0.1.dev19262+gb6bbf29dd.d20260727")
VLLM = release("vllm", "0.33.0")
SGLANG = release("sglang", "0.5.23")


def plan_for(
    hardware: str,
    layout: Layout,
    workload: Workload | None = None,
    scheme: str = "mxfp4",
    engine: str = "vllm",
    version: str | None = None,
) -> Plan:
    return make_plan(
        K3.with_scheme(scheme), "model", gpu(hardware), layout, workload or Workload(), engine=engine, version=version
    )


def assessed(hardware: str, layout: Layout, workload: Workload, engine: str = "vllm") -> Plan:
    """The plan without the search for changes that would fit: what laws are about, and quick."""
    return plan_job("model", Job(K3, gpu(hardware), layout, workload, release(engine)))


def blocks_for(layout: Layout, workload: Workload, known: Release = VLLM, nvidia: bool = True) -> VllmBlocks:
    return vllm_blocks(K3, layout, workload, known, stages(len(K3.layers), layout.pp, "vllm"), nvidia)


def load_gib(layout: Layout, known: Release = VLLM, stage: int = 0, scheme: str = "mxfp4") -> float:
    found = stages(len(K3.layers), layout.pp, known.engine)[stage]
    parts = weights_of_stage(K3.with_scheme(scheme), layout, known, found)
    return sum(part.rank_bytes for part in parts) / GIB
