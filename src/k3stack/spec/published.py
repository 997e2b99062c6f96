"""Kimi-K3 as published: its config and index made anew from the values in data/kimi-k3.yaml."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

from k3stack.spec.declare import declare
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme
from k3stack.spec.sizes import measure
from k3stack.spec.tensors import tensors

__all__ = [
    "kimi_k3",
    "kimi_k3_config",
    "kimi_k3_index",
    "names_digest",
    "published_facts",
    "smaller_than_published",
]


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    loaded = yaml.safe_load(files("k3stack.spec").joinpath("data/kimi-k3.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def published_facts() -> dict[str, Any]:
    """What is published of the release: tensors, shards, payload and file bytes, digest of the sorted names."""
    return dict(_data()["published"])


def kimi_k3_config() -> dict[str, Any]:
    """config.json of moonshotai/Kimi-K3, less the generation defaults that shape nothing."""
    config = dict(_data()["config"])
    text = dict(config["text_config"])
    linear = dict(text["linear_attn_config"])
    full = set(linear["full_attn_layers"])
    linear["kda_layers"] = [number for number in range(1, text["num_hidden_layers"] + 1) if number not in full]
    text["linear_attn_config"] = linear
    config["text_config"] = text
    return declare(config, ModelSpec.from_config(config).with_scheme(Scheme.MXFP4))


@lru_cache
def kimi_k3(scheme: Scheme = Scheme.MXFP4) -> ModelSpec:
    """The spec of Kimi-K3 as published, or stored another way; the same object every time, so that caches know it."""
    return ModelSpec.from_config(kimi_k3_config()).with_scheme(scheme)


def smaller_than_published(spec: ModelSpec) -> bool:
    """Whether a model has Kimi-K3's architecture at a smaller size, as tiny checkpoints have."""
    whole = kimi_k3()
    return spec.hidden < whole.hidden or len(spec.layers) < len(whole.layers)


def kimi_k3_index() -> dict[str, Any]:
    """The weight index of moonshotai/Kimi-K3, made from the spec."""
    spec = kimi_k3()
    weights = {tensor.name: tensor.shard for tensor in tensors(spec)}
    return {"metadata": {"total_size": measure(spec).payload_bytes}, "weight_map": weights}


def names_digest(names: Iterable[str]) -> str:
    """SHA-256 of the sorted names joined by line feeds: equal for two indexes with the same tensors."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()
