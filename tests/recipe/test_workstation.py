"""RTX PRO 6000 and DGX Spark: no vendor names them for K3, so every selection is refused with a reason or says so.

tests/engines/test_workstation.py asks the engines themselves.
"""

from dataclasses import replace

import pytest

from k3stack.engines.check import broken_rules
from k3stack.engines.reading import read
from k3stack.engines.releases import release
from k3stack.hardware.table import gpu
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.recipe.build import build
from k3stack.recipe.choice import CARD, Choice, Feature, Serving, refused
from k3stack.recipe.doctor import diagnose
from k3stack.recipe.wanted import Wanted, choose
from k3stack.spec.schemes import Scheme

HARDWARE = ["rtx-pro-6000", "dgx-spark"]
WIDE = Layout(tp=32, ep=True)


def choice(engine: str, hardware: str, **more: object) -> Choice:
    version = {"vllm": "0.33.0", "sglang": "0.5.23"}[engine]
    made = Choice(engine, version, gpu(hardware), Scheme.MXFP4, WIDE, Workload(kv_dtype=KvDtype.BF16))
    return replace(made, **more)  # type: ignore[arg-type]


def against(made: Choice) -> set[str]:
    return {refusal.reason.rule for refusal in refused(made)}


FP8 = Workload(kv_dtype=KvDtype.FP8)
PAIR = {"serving": Serving.DISAGGREGATED, "prefill": WIDE}

REFUSED = [
    ("vllm", {"workload": FP8}, "vllm-fp8-cache-workstation"),
    ("vllm", {"workload": Workload(kv_dtype=KvDtype.FP8_DS_MLA)}, "vllm-packed-cache"),
    ("vllm", {"layout": Layout(tp=32, dcp=8)}, "vllm-dcp-blackwell"),
    ("vllm", {"layout": Layout(tp=8, dp=4)}, "vllm-spread-workstation"),
    ("vllm", {"layout": Layout(tp=4, dp=8, ep=True)}, "vllm-spread-workstation"),
    ("vllm", PAIR, "vllm-pd-hardware"),
    ("vllm", {"scheme": Scheme.NVFP4_MIXED, "version": "0.28.0"}, "vllm-nvfp4-workstation"),
    ("vllm", {"scheme": Scheme.NVFP4_MIXED, "version": CARD}, "vllm-nvfp4-workstation"),
    ("sglang", {"scheme": Scheme.NVFP4_MIXED}, "sglang-nvfp4-hardware"),
    ("sglang", {"layout": Layout(tp=32, dcp=8)}, "sglang-dcp-hopper"),
    ("sglang", {"features": (Feature.DFLASH,)}, "sglang-dflash"),
    ("sglang", PAIR, "sglang-pd-workstation"),
]


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize(("engine", "changed", "rule"), REFUSED)
def test_what_these_gpus_cannot_do_is_refused(
    engine: str, changed: dict[str, object], rule: str, hardware: str
) -> None:
    assert rule in against(choice(engine, hardware, **changed))
    assert rule not in against(choice(engine, hardware))


def test_the_fp8_cache_is_the_only_thing_against_it() -> None:
    """So that what is said instead works: the same with a BF16 cache."""
    for hardware in HARDWARE:
        assert against(choice("vllm", hardware, workload=FP8)) == {"vllm-fp8-cache-workstation"}


@pytest.mark.parametrize(
    ("hardware", "few", "enough"),
    [("rtx-pro-6000", Layout(tp=8, pp=2), Layout(tp=8, pp=3)), ("dgx-spark", Layout(tp=12), Layout(tp=8, pp=2))],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_too_few_to_hold_the_weights_is_refused(engine: str, hardware: str, few: Layout, enough: Layout) -> None:
    floor = f"{engine}-floor-" + {"rtx-pro-6000": "24", "dgx-spark": "spark"}[hardware]
    assert floor in against(choice(engine, hardware, layout=few))
    assert not refused(choice(engine, hardware, layout=enough))


OFFERED = [
    ("vllm", {}),
    ("vllm", {"features": (Feature.DSPARK,)}),
    ("vllm", {"features": (Feature.TEXT_ONLY,)}),
    ("vllm", {"layout": Layout(tp=8, pp=4)}),
    ("vllm", {"scheme": Scheme.NVFP4_MIXED}),
    ("vllm", {"scheme": Scheme.NVFP4_EXPERTS}),
    ("vllm", {"version": "0.27.1"}),
    ("sglang", {}),
    ("sglang", {"workload": FP8}),
    ("sglang", {"features": (Feature.DSPARK, Feature.HICACHE)}),
    ("sglang", {"layout": Layout(tp=8, pp=4)}),
]


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize(("engine", "changed"), OFFERED)
def test_what_is_offered_says_that_nobody_ran_it(engine: str, changed: dict[str, object], hardware: str) -> None:
    made = build(choice(engine, hardware, **changed))
    name = {"rtx-pro-6000": "RTX PRO 6000", "dgx-spark": "DGX Spark"}[hardware]
    own = [note for note in made.notes if name in note and "that is all we know" in note]
    assert len(own) == 1, made.notes
    words = " ".join(made.roles[0].command.words())
    for datacentre in ("TOKENSPEED", "TRTLLM", "FLASHINFER", "flashinfer", "cutedsl", "flashmla", "FLASHMLA"):
        assert datacentre not in words.replace("--disable-flashinfer-autotune", "")
    assert made.roles[0].command.flag("moe-runner-backend") == ("marlin" if engine == "sglang" else None)


@pytest.mark.parametrize("hardware", ["b200", "b300", "gb200", "gb300", "h200"])
def test_the_notes_stay_on_their_gpus(hardware: str) -> None:
    for engine, layout in (("vllm", Layout(tp=16)), ("sglang", Layout(tp=16, ep=True))):
        notes = " ".join(build(choice(engine, hardware, layout=layout)).notes)
        assert "that is all we know" not in notes


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_is_left_open_becomes_something_that_is_allowed(engine: str, hardware: str) -> None:
    made = choose(Wanted(gpu(hardware), engine))
    assert not refused(made)
    assert made.workload.kv_dtype is KvDtype.BF16
    assert made.layout == (Layout(tp=8, pp=3) if hardware == "rtx-pro-6000" else Layout(tp=8, pp=2))


COPIED = [
    ("--kv-cache-dtype fp8", "vllm-check-workstation-cache"),
    ("--attention-backend TOKENSPEED_MLA", "vllm-check-blackwell-decode"),
    ("--attention-backend FLASHMLA", "vllm-check-workstation-decode"),
    ("--attention-config.mla_prefill_backend TRTLLM_RAGGED", "vllm-check-blackwell-prefill"),
    ("--moe-backend flashinfer_trtllm", "vllm-check-workstation-moe"),
    ("--enable-expert-parallel --moe-backend deep_gemm_mega_moe", "vllm-check-workstation-moe"),
]


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize(("words", "rule"), COPIED)
def test_kernels_of_other_gpus_are_found_in_a_copied_command(words: str, rule: str, hardware: str) -> None:
    kind = gpu(hardware)
    facts = {"version": "0.33.0", "architecture": kind.architecture, "gpu": kind.id, "scheme": "mxfp4"}
    given = ["moonshotai/Kimi-K3", "--tensor-parallel-size", "32", *words.split()]
    values = read(release("vllm", "0.33.0"), given).values()
    assert rule in {broken.rule.id for broken in broken_rules("vllm", facts, values, {})}
    on_blackwell = {**facts, "architecture": "sm103", "gpu": "b300"}
    assert rule not in {broken.rule.id for broken in broken_rules("vllm", on_blackwell, values, {})}


@pytest.mark.parametrize("hardware", [*HARDWARE, "h200"])
@pytest.mark.parametrize("runner", ["", "--moe-runner-backend marlin", "--moe-runner-backend flashinfer_trtllm"])
def test_nvfp4_on_sglang_is_not_sent_to_kernels_of_other_gpus(hardware: str, runner: str) -> None:
    """Only data-centre Blackwell has its experts; elsewhere the way out is MXFP4, with Marlin."""
    command = f"sglang serve --model-path nvidia/Kimi-K3-NVFP4 --trust-remote-code --tp-size 8 --pp-size 4 {runner}"
    found = {one.rule: one for one in diagnose(command, gpu(hardware)).findings}
    assert "mxfp4" in found["sglang-nvfp4-hardware"].fix and "marlin" in found["sglang-nvfp4-hardware"].fix
    assert not {"sglang-check-nvfp4", "sglang-nvfp4-moe"} & set(found)
    assert not any("flashinfer_trtllm" in one.fix for one in found.values())
    on_blackwell = {one.rule for one in diagnose(command, gpu("b300")).findings}
    assert ("sglang-check-nvfp4" in on_blackwell) is (runner != "--moe-runner-backend flashinfer_trtllm")
    unsaid = {one.rule for one in diagnose(command).findings}
    assert ("sglang-check-nvfp4" in unsaid) is (runner != "--moe-runner-backend flashinfer_trtllm")


def test_a_draft_with_spread_experts_is_refused_where_vllm_stops() -> None:
    """Found with these GPUs, true of all: 0.30.0 alone checks the draft for experts."""
    drafted = {"features": (Feature.DSPARK,)}
    for hardware in ("rtx-pro-6000", "b200"):
        for version in ("0.29.0", "0.30.0", "0.31.0"):
            said = against(choice("vllm", hardware, version=version, **drafted))
            assert ("vllm-dspark-experts" in said) is (version == "0.30.0")
        assert not against(choice("vllm", hardware, version="0.30.0", layout=Layout(tp=32), **drafted))


def test_mi300_is_refused_for_what_its_kernels_cannot_do() -> None:
    made = Choice("vllm", "0.33.0", gpu("mi325x"), Scheme.MXFP4, Layout(tp=8), Workload(kv_dtype=KvDtype.BF16))
    said = {refusal.reason.rule: refusal.reason.why for refusal in refused(made)}
    assert "no MXFP4 expert kernel with SiTU for gfx942" in said["vllm-no-mi300"]
