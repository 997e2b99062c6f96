"""The spec against what is published of Kimi-K3: names, shapes, order, bytes."""

import gzip
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from k3stack.spec import Component, DType, ModelSpec, Scheme, families, measure, tensors
from k3stack.spec.declare import ATTENTION_MODULES, declare, exclude_modules, quantized_layers
from k3stack.spec.published import kimi_k3, kimi_k3_config, kimi_k3_index, names_digest, published_facts
from k3stack.spec.tensors import shard_count
from tests.paths import K3, needs_shared


def test_release_to_the_byte() -> None:
    sizes = measure(kimi_k3())
    assert sizes.tensors == 497_220
    assert sizes.payload_bytes == 1_560_860_324_864
    assert sizes.file_bytes == 1_560_936_091_448
    assert sizes.parameters == 2_779_931_837_184
    assert round(sizes.active_parameters / 1e9, 2) == 104.19
    assert len(sizes.shards) == 96


@pytest.mark.parametrize(
    ("scheme", "count", "payload_bytes"),
    [
        ("nvfp4-mixed", 992_508, 1_609_777_087_808),
        ("nvfp4-experts", 991_812, 1_645_947_954_176),  # RedHatAI/Kimi-K3-NVFP4: 1645.9 GB published
        ("fp8-block", 497_683, 2_819_870_867_584),  # RedHatAI/Kimi-K3-FP8-BLOCK: 2820 GB published
        ("bf16", 249_924, 5_559_885_919_232),
    ],
)
def test_other_schemes(scheme: str, count: int, payload_bytes: int) -> None:
    sizes = measure(kimi_k3().with_scheme(scheme))
    assert (sizes.tensors, sizes.payload_bytes) == (count, payload_bytes)
    assert sizes.parameters == 2_779_931_837_184


def test_nvfp4_mixed_file_bytes_as_predicted() -> None:
    assert measure(kimi_k3().with_scheme("nvfp4-mixed")).file_bytes == 1_609_918_090_976


def test_nvfp4_mixed_counts_what_nvidia_reports() -> None:
    found = list(families(kimi_k3().with_scheme("nvfp4-mixed")))
    experts = sum(f.count for f in found if f.name.endswith(".weight_scale_2"))
    attention = sum(
        f.count for f in found if f.component in (Component.KDA, Component.MLA) and f.name.endswith("weight_scale")
    )
    assert (experts, attention) == (247_296, 696)
    assert sum(f.parameters for f in found if f.dtype is DType.F8_E4M3) == 36_179_705_856  # the hub's dtype counter


def test_the_built_in_index_is_moonshots() -> None:
    index, published = kimi_k3_index(), published_facts()
    assert len(index["weight_map"]) == published["tensors"]
    assert index["metadata"]["total_size"] == published["payload_bytes"]
    assert names_digest(index["weight_map"]) == published["sorted_names_sha256"]


@needs_shared
def test_names_and_shards_equal_the_real_index() -> None:
    real = json.loads(gzip.decompress((K3 / "model.safetensors.index.json.gz").read_bytes()))
    assert kimi_k3_index() == {"metadata": real["metadata"], "weight_map": real["weight_map"]}


@needs_shared
def test_shapes_dtypes_and_order_equal_the_real_headers() -> None:
    real = json.loads((K3 / "layer_headers.json").read_text())["shards"]
    for shard, header in real.items():
        ours = sorted((t for t in tensors(kimi_k3()) if t.shard == shard), key=lambda t: (t.dtype.rank, t.name))
        in_file_order = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        assert [t.name for t in ours] == [name for name, _ in in_file_order]
        for tensor, (_, entry) in zip(ours, in_file_order, strict=True):
            assert (list(tensor.shape), tensor.dtype.value) == (entry["shape"], entry["dtype"])
            assert tensor.size_bytes == entry["data_offsets"][1] - entry["data_offsets"][0]


@needs_shared
def test_the_built_in_spec_is_the_real_configs() -> None:
    assert ModelSpec.from_config(K3 / "config.json") == kimi_k3()
    assert ModelSpec.from_config(K3) == kimi_k3()


def test_text_only_config_has_no_vision_and_no_prefix() -> None:
    spec = ModelSpec.from_config(kimi_k3_config()["text_config"])
    assert spec.vision is None
    assert spec.scheme is Scheme.MXFP4
    names = {tensor.name for tensor in tensors(spec) if tensor.layer in (None, 0)}
    assert "model.layers.0.self_attn.A_log" in names and "lm_head.weight" in names
    assert shard_count(spec) == 94
    vision = sum(p.parameters for p in measure(kimi_k3()).components if "vision" in p.component)
    assert measure(spec).parameters == 2_779_931_837_184 - vision


def test_dtype_order_is_the_librarys() -> None:
    """safetensors itself writes one tensor of every dtype it knows; the order must be ours."""
    kinds: dict[str, Any] = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64}
    kinds |= {"BOOL": np.bool_, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
    kinds |= {"F8_E8M0": ml_dtypes.float8_e8m0fnu}
    for bits in (8, 16, 32, 64):
        kinds |= {f"I{bits}": np.dtype(f"int{bits}"), f"U{bits}": np.dtype(f"uint{bits}")}
    assert set(kinds) == {dtype.value for dtype in DType}
    blob = save({name: np.zeros(1, kind) for name, kind in sorted(kinds.items())})
    header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    written = sorted(header, key=lambda name: header[name]["data_offsets"])
    assert written == [dtype.value for dtype in sorted(DType, key=lambda dtype: dtype.rank)]


def test_declared_scheme_round_trips_for_every_scheme() -> None:
    config, spec = kimi_k3_config(), kimi_k3()
    for scheme in Scheme:
        declared = ModelSpec.from_config(declare(config, spec.with_scheme(scheme)))
        assert declared == spec.with_scheme(scheme)


def test_modelopt_names_every_alias() -> None:
    layers = quantized_layers(kimi_k3())
    assert len(layers) == 3342
    assert len([n for n, e in layers.items() if e["quant_algo"] == "NVFP4"]) == 92 * 6
    assert sum(len(ATTENTION_MODULES[layer.attention]) for layer in kimi_k3().layers) == 696
    for name in (
        "language_model.model.layers.1.block_sparse_moe.experts",
        "layers.1.mlp.experts",
        "language_model.model.layers.0.self_attn.in_proj_qkvgfab",
        "language_model.model.layers.3.self_attn.fused_qkv_a_proj_with_mqa",
    ):
        assert name in layers
    assert "layers.0.mlp.*" in exclude_modules(kimi_k3())
