"""From a rule's source, as people write it, to the page where it can be read."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["address"]

_RECIPES = "https://github.com/vllm-project/recipes"
_REPOSITORIES = {
    "vllm": "vllm-project/vllm",
    "sglang": "sgl-project/sglang",
    "recipes": "vllm-project/recipes",
}
_KNOWN = (
    (re.compile(r"https?://\S+"), lambda found: found[0]),
    (re.compile(r"(?:github\.com|huggingface\.co)/[\w./#@-]+"), lambda found: f"https://{found[0]}"),
    (
        re.compile(r"vLLM (\d[\w.]*): (vllm/[\w./-]+\.py)"),
        lambda found: f"https://github.com/vllm-project/vllm/blob/v{found[1]}/{found[2]}",
    ),
    (re.compile(r"vLLM (\d[\w.]*):"), lambda found: f"https://github.com/vllm-project/vllm/tree/v{found[1]}"),
    (
        re.compile(r"SGLang (\d[\w.]*): (sglang/[\w./-]+\.py)"),
        lambda found: f"https://github.com/sgl-project/sglang/blob/v{found[1]}/python/{found[2]}",
    ),
    (re.compile(r"SGLang (\d[\w.]*):"), lambda found: f"https://github.com/sgl-project/sglang/tree/v{found[1]}"),
    (
        re.compile(r"\b(vllm|sglang|recipes)#(\d+)"),
        lambda found: f"https://github.com/{_REPOSITORIES[found[1]]}/issues/{found[2]}",
    ),
    (
        re.compile(r"\b([A-Za-z][\w-]*/[A-Za-z][\w.-]*)#(\d+)"),
        lambda found: f"https://github.com/{found[1]}/issues/{found[2]}",
    ),
    (re.compile(r"model card"), lambda found: "https://huggingface.co/nvidia/Kimi-K3-NVFP4"),
    (re.compile(r"RedHatAI/[\w.-]+"), lambda found: f"https://huggingface.co/{found[0]}"),
    (
        re.compile(r"\bpanel\b|SGLang cookbook"),
        lambda found: (
            "https://github.com/sgl-project/sglang/blob/main/docs/cookbook/autoregressive/Moonshotai/Kimi-K3.mdx"
        ),
    ),
    (
        re.compile(r"vllm-project/recipes taxonomy\.yaml"),
        lambda found: f"{_RECIPES}/blob/8959cf64/taxonomy.yaml",
    ),
    (
        re.compile(r"\brecipe\b"),
        lambda found: f"{_RECIPES}/blob/8959cf64/models/moonshotai/Kimi-K3.yaml",
    ),
    (re.compile(r"NVIDIA/srt-slurm-recipes"), lambda found: f"https://github.com/{found[0]}"),
    (re.compile(r"docs\.(?:vllm|sglang)\.\w+"), lambda found: f"https://{found[0]}"),
)


@lru_cache(maxsize=4096)
def address(source: str) -> str:
    """Where a source can be read; empty for our own reasoning and for what is not on the web."""
    for pattern, link in _KNOWN:
        found = pattern.search(source)
        if found is not None:
            return link(found).rstrip(".,;)")
    return ""
