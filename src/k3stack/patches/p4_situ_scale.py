"""Patch 4: the TRT-LLM NVFP4 MoE kernel gets SiTU's GEMM1 scale twice (vLLM 0.27 and 0.28).

The kernel multiplies GEMM1's raw result by a = g1_alphas before the activation, and the activation's result by
c = g1_scale_c, where a2 is the scale of GEMM2's input:

    SwiGLU   y = silu(a x_g) * x_u * c          the up half is linear, so its dequantisation waits in c = a / a2
    SiTU     y = situ(a x_g, a x_u) * c         both halves go through tanh, so both are dequantised: c = 1 / a2

These releases pass a / a2 for SiTU too, and the routed experts' output comes out a times too small. In
nvidia/Kimi-K3-NVFP4 a is a power of two far below 1: the experts all but vanish.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from .edits import Edits, find, require_parameters
from .patch import Finding, Patch, Pull, Span, State

__all__ = ["SituScale", "build_experts"]

MODULE = "vllm.model_executor.layers.fused_moe.experts.trtllm_nvfp4_moe"
BASE = "TrtLlmNvFp4ExpertsBase"
ACTIVATION = "vllm.model_executor.layers.fused_moe.activation"


class SituScale(Patch):
    """SiTU's output scale without the GEMM1 scale."""

    number: ClassVar[int] = 4
    switch: ClassVar[str] = "KIMI_K3_NVFP4_SITU_G1_SCALE"
    title: ClassVar[str] = "SiTU output scale in the TRT-LLM NVFP4 MoE"
    line: ClassVar[str] = (
        "Kimi-K3 runtime patch: removed the duplicate SiTU g1_alphas fold from TRTLLM NVFP4 g1_scale_c"
    )
    knowledge: ClassVar[tuple[Span, ...]] = (
        Span("0.27.0", "0.28.0", State.APPLIED, "g1_scale_c = a / a2 for SiTU"),
        Span("0.29.0", "0.33.0", State.NOT_NEEDED, "upstream since 0.29.0"),
    )
    upstream: ClassVar[tuple[Pull, ...]] = (Pull("vllm#53132", "merged"),)
    retires: ClassVar[str] = "when 0.28 is no longer served"

    def needed(self) -> Finding:
        """Build vLLM's experts class with known scales, run its post-load step, and read both scales back."""
        import torch

        a = torch.tensor([2.0**-5, 2.0**-7])
        a2 = torch.tensor([0.5, 0.25])
        before, after = build_experts(a, a2)
        if torch.equal(before, 1 / a2) and torch.equal(after, 1 / a2):
            return Finding(False, "g1_scale_c is 1 / a2 for SiTU")
        return Finding(True, "g1_scale_c holds g1_alphas, which the kernel applies too")

    def apply(self, edits: Edits) -> None:
        """Correct the scale where it is computed: when the experts are built, and after loading."""
        cls = find(MODULE, BASE)
        init, process = cls.__init__, cls.process_weights_after_loading
        require_parameters(init, "moe_config", "quant_config")
        require_parameters(process, "layer")

        def build(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            if _is_gated_situ(self):
                self.g1_scale_c = _output_scale(self)

        def process_weights_after_loading(self: Any, layer: Any) -> None:
            process(self, layer)
            if _is_gated_situ(self):
                # In place: expert load balancing moves this very parameter between ranks.
                layer.g1_scale_c.data.copy_(_output_scale(self))

        edits.replace(cls, "__init__", build)
        edits.replace(cls, "process_weights_after_loading", process_weights_after_loading)


def _is_gated_situ(experts: Any) -> bool:
    return bool(experts.moe_config.is_act_and_mul and experts.is_situ)


def _output_scale(experts: Any) -> Any:
    """1 / a2 per expert, in the shape that g1_scale_c has."""
    return experts.quant_config.a2_gscale.expand_as(experts.g1_scale_c).clone()


def build_experts(a: Any, a2: Any) -> tuple[Any, Any]:
    """g1_scale_c of vLLM's real class for gated SiTU experts, before and after its post-load step.

    Args:
        a: [experts] GEMM1's dequantisation scale, input scale times weight scale.
        a2: [experts] the scale of GEMM2's input.
    """
    import torch

    experts = a.shape[0]
    quantised = SimpleNamespace(
        g1_alphas=a.clone(), a2_gscale=1 / a2, gemm1_clamp_limit=None, gemm1_alpha=None, gemm1_beta=None
    )
    config = SimpleNamespace(
        routing_method=None,
        experts_per_token=1,
        intermediate_size_per_partition=128,
        hidden_dim=128,
        hidden_dim_unpadded=None,
        num_local_experts=experts,
        num_experts=experts,
        moe_parallel_config=SimpleNamespace(ep_rank=0),
        is_act_and_mul=True,
        activation=find(ACTIVATION, "MoEActivation").SITU,
        activation_situ_beta=4.0,
        activation_situ_linear_beta=25.0,
    )
    layer = torch.nn.Module()
    # The input scale is 1 in this checkpoint, so the post-load product leaves a as it is.
    layer.w13_weight_scale_2 = torch.nn.Parameter(quantised.g1_alphas, requires_grad=False)
    layer.w13_input_scale = torch.ones(experts)
    layer.w2_weight_scale_2 = torch.nn.Parameter(torch.ones(experts), requires_grad=False)
    layer.w2_input_scale = a2
    edits = Edits()
    try:
        # The class asks which accelerator to use; asking would create a CUDA context in processes that fork.
        edits.add(torch.accelerator, "current_device_index", lambda: "cpu")
        built = find(MODULE, BASE)(config, quantised)
        before = built.g1_scale_c.clone()
        built.process_weights_after_loading(layer)
    finally:
        edits.undo()
    return before, built.g1_scale_c.detach().clone()
