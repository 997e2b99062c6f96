"""Patch 2: image placeholders are expanded by vLLM, not by the Hugging Face processor (before vLLM 0.27.0).

K3's processor leaves one placeholder token per image. A vLLM that believes the processor has expanded it already
looks for as many tokens as the image has patches, and finds one.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from .edits import Edits, find
from .patch import CannotApplyError, Finding, Patch, Span, State

__all__ = ["ImagePlaceholders"]

MODULE = "vllm.models.kimi_k3.common.mm_preprocess"
BASE = "vllm.multimodal.processing"
HOOK = "_hf_processor_applies_updates"


class ImagePlaceholders(Patch):
    """vLLM expands K3's image placeholders."""

    number: ClassVar[int] = 2
    switch: ClassVar[str] = "KIMI_K3_FIX_MM_PROMPT_UPDATES"
    title: ClassVar[str] = "image placeholder expansion"
    line: ClassVar[str] = "Kimi-K3 runtime patch: deferred image placeholder expansion to vLLM"
    knowledge: ClassVar[tuple[Span, ...]] = (
        Span("0.27.0", "0.28.0", State.NOT_NEEDED, "K3's processor says so itself"),
        Span("0.29.0", "0.33.0", State.NOT_NEEDED, "vLLM always expands placeholders since 0.29.0"),
    )
    retires: ClassVar[str] = "now, for releases: only development builds before 0.27.0 need it"
    front_end: ClassVar[bool] = True

    def needed(self) -> Finding:
        """Ask K3's processor class who expands."""
        hook = getattr(_processor(), HOOK, None)
        if hook is None:
            return Finding(False, "vLLM always expands placeholders")
        if hook(None, *[None] * (len(inspect.signature(hook).parameters) - 1)):
            return Finding(True, "vLLM believes the processor expanded them")
        return Finding(False, "K3's processor leaves expansion to vLLM")

    def apply(self, edits: Edits) -> None:
        """Answer no for K3's processor."""

        def leaves_it_to_vllm(self: Any, *args: Any, **kwargs: Any) -> bool:
            return False

        edits.replace(_processor(), HOOK, leaves_it_to_vllm)


def _processor() -> Any:
    """K3's multimodal processor: the class of that module that derives from vLLM's base processor."""
    base = find(BASE, "BaseMultiModalProcessor")
    module = find(MODULE)
    for _, cls in inspect.getmembers(module, inspect.isclass):
        if issubclass(cls, base) and cls.__module__ == module.__name__:
            return cls
    raise CannotApplyError(f"{MODULE} defines no multimodal processor")
