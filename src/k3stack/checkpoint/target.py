"""From WHERE and a scheme to what is planned: the model's spec, and what an engine would be told to load."""

from __future__ import annotations

from k3stack.checkpoint.source import BuiltInSource, open_source
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme

__all__ = ["PUBLISHED", "target"]

PUBLISHED = {
    Scheme.MXFP4: "moonshotai/Kimi-K3",
    Scheme.NVFP4_MIXED: "nvidia/Kimi-K3-NVFP4",
    Scheme.NVFP4_EXPERTS: "RedHatAI/Kimi-K3-NVFP4",
    Scheme.FP8_BLOCK: "RedHatAI/Kimi-K3-FP8-BLOCK",
}
"""Who publishes Kimi-K3 in which scheme."""


def target(where: str, scheme: Scheme | None = None) -> tuple[ModelSpec, str]:
    """The spec to plan for and the name of the weights.

    Args:
        where: a folder, a hub id, or the built-in kimi-k3.
        scheme: plan for this scheme instead of the one config.json declares.

    Raises:
        ConfigError, CheckpointError, UnavailableError, UsageError: as reading config.json does.
    """
    source = open_source(where)
    spec = ModelSpec.from_config(source.config())
    asked = spec if scheme is None else spec.with_scheme(scheme)
    if asked.scheme is spec.scheme and not isinstance(source, BuiltInSource):
        return asked, where
    return asked, PUBLISHED.get(asked.scheme, f"your {asked.scheme} checkpoint")
