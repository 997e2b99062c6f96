"""Run by a Python that has vLLM 0.33.0: run the parts of its K3 that run on a CPU, on given inputs.

    PYTHON layers_in_vllm.py INPUT.npz OUTPUT.npz RENDEZVOUS_FILE

Classes with a PyTorch form are called as they are; the AttnRes kernel runs in Triton's interpreter. Vision weights come
with their names on disk.
"""

import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # vLLM then keeps Triton without a driver

import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402


def activation(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """SiTU of gate and up side by side."""
    from vllm.model_executor.layers.activation import SituAndMul

    return SituAndMul(4.0, 25.0).forward_native(torch.cat([given["gate"], given["up"]], dim=-1))


def routing(given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and experts of sigmoid routing with a bias."""
    from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import grouped_topk

    logits = given["router_logits"]
    return grouped_topk(logits, logits, 4, True, 1, 1, "sigmoid", 1.0, given["router_bias"])


def norm(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """RMSNorm with epsilon 1e-5."""
    from vllm.model_executor.layers.layernorm import RMSNorm

    layer = RMSNorm(given["x"].shape[1], eps=1e-5)
    layer.weight.data.copy_(given["norm_weight"])
    return layer.forward_native(given["x"])


def rotation(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """YaRN rotation as the DSpark draft sets it up."""
    from vllm.model_executor.layers.rotary_embedding.deepseek_scaling_rope import DeepseekScalingRotaryEmbedding

    # The published factor, but few positions: the table would have a million rows.
    rope = DeepseekScalingRotaryEmbedding(
        64, 64, 1024, 50_000.0, False, 32.0, torch.float32, mscale=1, mscale_all_dim=1
    )
    turned, _ = rope.forward_native(given["positions"], given["query"], given["query"])
    return turned


def mixing(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """AttnRes over blocks and a running sum."""
    from vllm.models.kimi_k3.nvidia.ops.attn_res import attn_res

    sources = given["sources"]  # [T, J, d], the running sum last
    blocks = sources[:, :-1].contiguous()
    prefix = sources[:, -1].contiguous()
    return attn_res(prefix, None, blocks, given["mix_norm"], given["mix_proj"], None, blocks.shape[1], -1, 1e-5, 0.0)


def vision(given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Tower and projector on two images."""
    from vllm.model_executor.models.kimi_k25_vit import KimiK25MultiModalProjector, MoonViT3dPretrainedModel
    from vllm.transformers_utils.configs.kimi_k3 import KimiK3VisionConfig

    weights = {name.removeprefix("w:"): value for name, value in given.items() if name.startswith("w:")}
    width, hidden = len(weights["vision_tower.patch_embed.proj.weight"]), len(weights["mm_projector.post_norm.weight"])
    config = KimiK3VisionConfig(
        vt_hidden_size=width,
        vt_intermediate_size=len(weights["vision_tower.encoder.blocks.0.mlp.fc0.weight"]),
        vt_num_attention_heads=int(given["heads"]),
        qkv_hidden_size=len(weights["vision_tower.encoder.blocks.0.wqkv.weight"]) // 3,
        vt_num_hidden_layers=2,
        init_pos_emb_height=16,
        init_pos_emb_width=16,
        text_hidden_size=hidden,
    )
    tower, projector = MoonViT3dPretrainedModel(config), KimiK25MultiModalProjector(config, hidden)
    renamed = {"proj.0": "linear_1", "proj.2": "linear_2"}
    for prefix, module in (("vision_tower.", tower), ("mm_projector.", projector)):
        for name, parameter in module.named_parameters():
            on_disk = name
            for new, old in renamed.items():
                on_disk = on_disk.replace(old, new)
            parameter.data.copy_(weights.pop(prefix + on_disk))
    assert not weights, sorted(weights)
    for module in (*tower.modules(), *projector.modules()):
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)
    grids = given["grids"].tolist()
    return [projector(cells) for cells in tower(given["patches"], grids)]


def sizes(given: dict[str, torch.Tensor]) -> list[list[int]]:
    """What becomes of images of given widths and heights."""
    from vllm.models.kimi_k3.common.mm_preprocess import navit_resize_image

    made = []
    for width, height in given["images"].tolist():
        found = navit_resize_image(width, height, 14, 2, 16384, 512, None)
        made.append([found[key] for key in ("new_width", "new_height", "pad_width", "pad_height", "num_tokens")])
    return made


def main() -> None:
    source, target, rendezvous = sys.argv[1:]
    given = {name: torch.from_numpy(value) for name, value in np.load(source).items()}
    made: dict[str, Any] = {}
    with torch.no_grad(), set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{rendezvous}", 0, "gloo")
        initialize_model_parallel(1)
        made["situ"], made["norm"], made["rotation"] = activation(given), norm(given), rotation(given)
        made["router_weights"], made["router_experts"] = routing(given)
        made["sizes"] = np.array(sizes(given))
        for place, vectors in enumerate(vision(given)):
            made[f"image{place}"] = vectors
        made["mix"] = mixing(given)
    np.savez(target, **{name: np.asarray(value) for name, value in made.items()})


if __name__ == "__main__":
    main()
