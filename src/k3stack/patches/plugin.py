"""The entry point `vllm.general_plugins`: vLLM calls `register` in every process it starts."""

from __future__ import annotations

from .hook import install

__all__ = ["register"]


def register() -> None:
    """Wait for Kimi-K3's model in this process. Costs nothing for any other model."""
    install()
