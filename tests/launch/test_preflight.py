"""Preflight: every check on facts made by hand, the probes on this machine, and the verb."""

import json
import os
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from k3stack.checkpoint.tiny import write_tiny
from k3stack.errors import UnavailableError, UsageError
from k3stack.hardware.disk import Disk
from k3stack.hardware.machine import FoundGpu, Machine
from k3stack.launch import probes, probes_gpu
from k3stack.launch.checks import CHECKS, run_checks
from k3stack.launch.facts import (
    CheckpointSeen,
    ClockSeen,
    EngineSeen,
    Facts,
    GpuLinks,
    GpuProcess,
    HeadSeen,
    HubSeen,
    ImageSeen,
    LimitsSeen,
    PatchesSeen,
    PortSeen,
    RdmaPort,
    Wanted,
)
from k3stack.launch.findings import Status
from k3stack.launch.preflight import observe, preflight
from k3stack.launch.rendezvous import parse_address, reach, wait_for
from k3stack.ports import free_port, holder_of, listeners
from k3stack.spec.schemes import Scheme
from tests.cli.run import k3

GIB = 2**30
B300 = FoundGpu(0, "NVIDIA B300 SXM6 AC", 268 * GIB, 267 * GIB, "b300")

GOOD = Facts(
    wanted=Wanted(
        version="0.33.0", gpu="b300", gpus=8, nodes=2, model="/m", model_bytes=10**12, patches=("mla-gate-scales",),
        rack=True, head="10.0.0.1:29500",
    ),
    gpus=tuple(replace(B300, index=index) for index in range(8)),
    driver="580.95.05",
    processes=(),
    links=tuple(GpuLinks(index, 18, 18, "completed") for index in range(8)),
    imex=True,
    ram_bytes=2 * 10**12,
    ram_free_bytes=10**12,
    weights_disk=Disk("/m", 10**13, 10**12, 5e9),
    cache_disk=Disk("/c", 10**13, 10**12, None),
    limits=LimitsSeen(1_048_576, None, 64 * GIB, 60 * GIB),
    port=PortSeen(8000, True),
    checkpoint=CheckpointSeen("hub", said="96 shards", to_download_bytes=0),
    engine=EngineSeen("0.33.0", "/usr/bin/python3", "the snapshot of vllm 0.33.0"),
    patches=PatchesSeen(),
    image=ImageSeen("vllm/vllm-openai:v0.33.0", "amd64", "amd64"),
    hub=HubSeen(True, False),
    clock=ClockSeen(True),
    head=HeadSeen("10.0.0.1:29500", True, "", 0.0002, 0.001),
    rdma=(RdmaPort("mlx5_0", 1, "ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)"),),
    peermem=True,
)  # fmt: skip


def status(facts: Facts, name: str) -> Status:
    return next(one for one in run_checks(facts) if one.id == name).status


def test_a_good_machine_passes_every_check() -> None:
    found = run_checks(GOOD)
    assert len(found) == len(CHECKS) == len({one.id for one in found})
    assert {one.status for one in found} == {Status.PASS}


BAD = [
    ("gpus", {"gpus": ()}, "fail"),
    ("gpus", {"gpus": GOOD.gpus[:4]}, "fail"),
    ("gpus", {"gpus": tuple(replace(one, known="h200", name="NVIDIA H200") for one in GOOD.gpus)}, "fail"),
    ("driver", {"driver": "575.57.08"}, "fail"),
    ("driver", {"driver": None}, "fail"),
    ("gpu-memory", {"gpus": (replace(B300, free_bytes=100 * GIB), *GOOD.gpus[1:])}, "fail"),
    ("gpu-memory", {"gpus": GOOD.gpus[:4]}, "pass"),
    ("gpu-processes", {"processes": (GpuProcess(3, 77, "VLLM::Worker_TP3", 130 * GIB),)}, "warn"),
    ("gpu-processes", {"processes": None}, "not applicable"),
    ("nvlink", {"links": (GpuLinks(0, 17, 18, "completed"),)}, "fail"),
    ("nvlink", {"links": (GpuLinks(0, 18, 18, "in progress"),)}, "fail"),
    ("nvlink", {"links": (GpuLinks(0, 0, 0, None),)}, "warn"),
    ("imex", {"imex": False}, "fail"),
    ("host-memory", {"ram_free_bytes": 10**9}, "warn"),
    ("shared-memory", {"limits": replace(GOOD.limits or LimitsSeen(0, 0, 0, 0), shm_free_bytes=64 * 2**20)}, "fail"),
    ("shared-memory", {"limits": replace(GOOD.limits or LimitsSeen(0, 0, 0, 0), shm_free_bytes=2 * GIB)}, "warn"),
    ("open-files", {"limits": LimitsSeen(1024, None, None, None)}, "fail"),
    ("open-files", {"limits": LimitsSeen(20_000, None, None, None)}, "warn"),
    ("locked-memory", {"limits": LimitsSeen(None, 65_536, None, None)}, "warn"),
    ("port", {"port": PortSeen(8000, False, "Address already in use", "python (pid 9)")}, "fail"),
    ("checkpoint", {"checkpoint": CheckpointSeen("folder", faults=("missing shard: x",) * 5)}, "fail"),
    ("checkpoint", {"checkpoint": CheckpointSeen("folder", error="has no config.json")}, "fail"),
    ("checkpoint", {"checkpoint": CheckpointSeen("folder", known=False, said="llama")}, "not applicable"),
    ("disk-space", {"checkpoint": CheckpointSeen("hub", to_download_bytes=10**13)}, "fail"),
    ("disk-space", {"cache_disk": Disk("/c", 10**12, 5 * 10**9, None)}, "warn"),
    ("read-rate", {"weights_disk": Disk("/m", 10**13, 10**12, 1e8)}, "warn"),
    ("engine", {"engine": EngineSeen(None, "no Python here has it")}, "fail"),
    ("engine", {"engine": EngineSeen("0.31.0", "/x", "y")}, "warn"),
    ("flags", {"engine": EngineSeen("0.33.0", "/x", "y", ("server: unknown flag --foo",))}, "fail"),
    ("patches", {"patches": PatchesSeen(cannot=("the MLA gate",))}, "fail"),
    ("patches", {"patches": PatchesSeen(warnings=("VLLM_PLUGINS hides it",))}, "warn"),
    ("patches", {"patches": PatchesSeen(unknown="not in the tables")}, "warn"),
    ("image", {"image": ImageSeen("i", "amd64", "arm64")}, "fail"),
    ("image", {"image": ImageSeen("i", None, "arm64")}, "warn"),
    ("image", {"image": ImageSeen("i", None, "arm64", "docker is not installed here")}, "fail"),
    ("hub", {"hub": HubSeen(False, False)}, "warn"),
    ("hub", {"hub": HubSeen(True, True), "checkpoint": CheckpointSeen("hub", to_download_bytes=5)}, "fail"),
    ("clock", {"head": HeadSeen("h:1", True, "", 0.1, 5.0)}, "warn"),
    ("clock", {"head": HeadSeen("h:1", True, "", 0.1, -300.0)}, "fail"),
    ("clock", {"head": None, "clock": ClockSeen(False)}, "warn"),
    ("head", {"head": HeadSeen("h:1", False, "Connection refused")}, "fail"),
    ("head", {"head": None}, "warn"),
    ("rdma", {"rdma": ()}, "warn"),
    ("rdma", {"peermem": False}, "warn"),
]


@pytest.mark.parametrize(("name", "change", "wanted"), BAD, ids=[f"{at}-{row[0]}" for at, row in enumerate(BAD)])
def test_what_is_wrong_is_found_with_its_fix(name: str, change: dict[str, object], wanted: str) -> None:
    found = {one.id: one for one in run_checks(replace(GOOD, **change))}  # type: ignore[arg-type]
    assert found[name].status.value == wanted
    if wanted in ("warn", "fail"):
        assert found[name].fix.endswith(".") and found[name].measured


def test_every_check_can_fail_or_warn() -> None:
    assert {row[0] for row in BAD if row[2] in ("warn", "fail")} == {one.id for one in run_checks(GOOD)}


def test_nothing_is_asked_of_a_machine_for_the_reference_engine() -> None:
    found = run_checks(Facts(Wanted(engine="reference")))
    assert {one.status for one in found} == {Status.NOT_APPLICABLE}


def test_what_nvidia_smi_prints() -> None:
    apps = "GPU-aa, 4242, /usr/bin/python3, 131072\nGPU-bb, 4243, a, b, [N/A]\nnoise\n"
    assert probes_gpu.parse_processes(apps, "0, GPU-aa\n1, GPU-bb\n") == (
        GpuProcess(0, 4242, "/usr/bin/python3", 131_072 * 2**20),
        GpuProcess(1, 4243, "a,b", None),
    )
    status_text = "GPU 0: H200 (UUID: GPU-aa)\n\t Link 0: 26 GB/s\n\t Link 1: <inactive>\nGPU 1: H200 (UUID: GPU-bb)\n"
    assert probes_gpu.parse_nvlink_status(status_text) == (GpuLinks(0, 1, 2, None), GpuLinks(1, 0, 0, None))


def test_a_port_and_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        seen = probes.port_seen("127.0.0.1", port)
        assert not seen.free and "in use" in seen.error and f"pid {os.getpid()}" in seen.holder
        assert os.getpid() in listeners(port)
    assert probes.port_seen("127.0.0.1", port).free and holder_of(port) == ""
    assert not probes.port_seen("192.0.2.1", port).free


def test_the_read_rate_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(2**20))
    assert probes.file_read_rate(path) is None
    path.write_bytes(bytes(2**24))
    rate = probes.file_read_rate(path)
    assert rate is not None and rate > 1e6


def test_checkpoints_as_preflight_sees_them(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    write_tiny(folder, Scheme.MXFP4, 0)
    seen = probes.checkpoint_seen(str(folder))
    assert seen and not seen.faults and seen.error is None and seen.size_bytes
    sorted(folder.glob("*.safetensors"))[0].unlink()
    seen = probes.checkpoint_seen(str(folder))
    assert seen and "missing shard" in seen.faults[0]
    (folder / "config.json").write_text('{"model_type": "llama"}')
    seen = probes.checkpoint_seen(str(folder))
    assert seen and not seen.known and "llama" in seen.said
    assert (seen := probes.checkpoint_seen(str(tmp_path))) and seen.error and "config.json" in seen.error
    assert (seen := probes.checkpoint_seen("no such")) and seen.error


def test_without_a_network_the_hub_is_told_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    seen = probes.checkpoint_seen("someone/some-model")
    assert seen and seen.error and "cannot be reached" in seen.error


def test_the_token_is_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    seen = probes.hub_seen()
    assert seen.token and "hf_secret" not in repr(seen)


def test_an_engine_that_is_not_there() -> None:
    assert probes.engine_seen(None, "vllm", sys.executable, False).version is None
    assert probes.engine_seen(None, "vllm", "/no/such/python", False).version is None


def test_the_whole_of_it_takes_seconds(tmp_path: Path) -> None:
    found = preflight(Wanted(engine="reference", port=free_port()))
    assert found.good and found.seconds < 10


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, port = tmp_path / "tiny", str(free_port())
    write_tiny(folder, Scheme.MXFP4, 0)
    ran = k3("preflight", str(folder), "--port", port, "--json")
    assert ran.code == 0 and {one["id"] for one in json.loads(ran.out)["findings"]} >= {"port", "checkpoint"}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ran = k3("preflight", "kimi-k3", "--hardware", "b300", "--port", port, "--quiet")
    assert ran.code == 1 and "vllm is installed" in ran.out and "GPUs: none" in ran.out
    assert k3("preflight", str(folder), "--tp", "x").code == 2
    assert k3("preflight", str(folder), "--engine", "vllm").code in (1, 2)


def test_ranks_find_the_head() -> None:
    port = free_port()
    came: list[str] = []
    head = threading.Thread(target=lambda: came.extend(wait_for("127.0.0.1", port, 1, 20.0)))
    head.start()
    seen = HeadSeen("", False)
    for _ in range(100):
        seen = reach(f"127.0.0.1:{port}")
        if seen.reachable:
            break
        time.sleep(0.05)
    head.join(20)
    assert seen.clock_offset_s is not None and abs(seen.clock_offset_s) < 1
    assert seen.round_trip_s is not None and len(came) == 1


def test_a_head_that_is_not_there_and_one_that_says_nothing() -> None:
    assert not reach(f"127.0.0.1:{free_port()}").reachable
    with socket.create_server(("127.0.0.1", 0)) as server:
        seen = reach(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=0.2)
        assert seen.reachable and seen.clock_offset_s is None
    with pytest.raises(UnavailableError, match="0 of 2 ranks"):
        wait_for("127.0.0.1", free_port(), 2, 0.1)


@pytest.mark.parametrize("text", ["host", "host:", ":80", "host:0", "host:99999", "host:x"])
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


def test_only_what_is_of_the_usable_gpus_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine((replace(B300, index=1),), "580.95.05", 1, 1, 1, (), ())
    monkeypatch.setattr("k3stack.launch.preflight.look", lambda *_: machine)
    links = (GpuLinks(0, 0, 18, "completed"), GpuLinks(1, 18, 18, "completed"))
    monkeypatch.setattr(probes_gpu, "gpu_links", lambda: links)
    held = tuple(GpuProcess(gpu, 7, "python", 1) for gpu in (0, -1))
    monkeypatch.setattr(probes_gpu, "gpu_processes", lambda: held)
    facts = observe(Wanted(engine="reference"))
    assert facts.links == links[1:] and facts.processes == held[1:], "a process of an unknown GPU is kept"
    monkeypatch.setattr(probes_gpu, "gpu_processes", lambda: None)
    assert observe(Wanted(engine="reference")).processes is None
