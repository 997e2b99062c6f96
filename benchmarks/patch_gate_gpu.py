"""The MLA gate bug and its repair on a GPU, with real vLLM 0.29 or later: before and after, and what it costs.

    python benchmarks/patch_gate_gpu.py model DIR              write a tiny Kimi-K3 checkpoint (NVFP4 + FP8_PB_WO)
    python benchmarks/patch_gate_gpu.py accuracy DIR PATCHES   gate error with the patches off and on
    python benchmarks/patch_gate_gpu.py ranks DIR PATCHES      the same on two GPUs, in each worker of TP 2
    python benchmarks/patch_gate_gpu.py cost                   four ways to lay out the fused projection, timed

PATCHES is a folder from `k3 patches export`. The checkpoint's gate has row blocks of different size (powers of two
from 1/8 to 8); with equal blocks neighbouring scales would be nearly the same and the bug would hide.
Needs vLLM, PyTorch and safetensors in this Python, and one GPU that runs vLLM's block-FP8 kernels.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOCK = 128
HIDDEN, HEADS, Q_LORA, KV_LORA, ROPE, HEAD = 1024, 16, 256, 512, 64, 128
LATENT, EXPERT, EXPERTS, LAYERS, MLA_LAYER = 512, 256, 8, 4, 3


# ---------------------------------------------------------------------------------------------- the checkpoint
def block_fp8(weight: Any) -> tuple[Any, Any]:
    """E4M3 weights and float32 scales [row blocks, 1, column blocks, 1]: amax / 448 of each 128 x 128 block."""
    import torch

    rows, columns = weight.shape
    padded = torch.zeros(-(-rows // BLOCK) * BLOCK, columns)
    padded[:rows] = weight
    tiles = padded.view(-1, BLOCK, columns // BLOCK, BLOCK)
    scale = tiles.abs().amax(dim=(1, 3), keepdim=True) / 448
    quantised = (tiles / scale).view(-1, columns)[:rows].to(torch.float8_e4m3fn)
    return quantised, scale


def dequantised(weight: Any, scale: Any) -> Any:
    """Float32 [rows, columns]."""
    wide = scale.flatten(1).view(scale.shape[0], scale.shape[2])
    wide = wide.repeat_interleave(BLOCK, 0)[: weight.shape[0]].repeat_interleave(BLOCK, 1)
    return weight.float() * wide


def write_model(folder: Path) -> None:
    """A text-only Kimi-K3 of four layers: KDA, KDA, KDA, MLA; the first dense, the others with 8 experts."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    tensors: dict[str, Any] = {}
    fp8_modules: list[str] = []

    def plain(name: str, *shape: int, dtype: Any = torch.bfloat16, spread: float = 0.02) -> None:
        tensors[name] = (torch.randn(*shape) * spread).to(dtype)

    def ones(name: str, *shape: int, dtype: Any = torch.bfloat16) -> None:
        tensors[name] = torch.ones(*shape, dtype=dtype)

    def fp8(name: str, rows: int, columns: int, sizes: Any = None) -> None:
        weight = torch.randn(rows, columns) * 0.02
        weight = weight if sizes is None else weight * sizes[:, None]
        tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"] = block_fp8(weight)
        fp8_modules.append(name)

    width = HEADS * HEAD
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
            ones(f"{at}.{norm}.weight", HIDDEN)
        for mix in ("self_attention_res_proj", "mlp_res_proj"):
            plain(f"{at}.{mix}.weight", 1, HIDDEN)
        attention = f"{at}.self_attn"
        if layer == MLA_LAYER:
            exponents = torch.tensor([-3.0, 3, -1, 1, -2, 2, 0]).repeat(width // BLOCK)[: width // BLOCK]
            gate_sizes = torch.exp2(exponents).repeat_interleave(BLOCK)
            fp8(f"{attention}.q_a_proj", Q_LORA, HIDDEN)
            fp8(f"{attention}.q_b_proj", HEADS * (HEAD + ROPE), Q_LORA)
            fp8(f"{attention}.kv_a_proj_with_mqa", KV_LORA + ROPE, HIDDEN)
            fp8(f"{attention}.kv_b_proj", HEADS * 2 * HEAD, KV_LORA)
            fp8(f"{attention}.g_proj", width, HIDDEN, gate_sizes)
            ones(f"{attention}.q_a_layernorm.weight", Q_LORA)
            ones(f"{attention}.kv_a_layernorm.weight", KV_LORA)
        else:
            for name in ("q_proj", "k_proj", "v_proj", "g_proj"):
                fp8(f"{attention}.{name}", width, HIDDEN)
            fp8(f"{attention}.b_proj", HEADS, HIDDEN)
            fp8(f"{attention}.f_a_proj", HEAD, HIDDEN)
            fp8(f"{attention}.f_b_proj", width, HEAD)
            for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
                plain(f"{attention}.{name}.weight", width, 1, 4, dtype=torch.float32, spread=0.3)
            plain(f"{attention}.A_log", HEADS, dtype=torch.float32)
            plain(f"{attention}.dt_bias", width, dtype=torch.float32)
            ones(f"{attention}.o_norm.weight", HEAD, dtype=torch.float32)
        fp8(f"{attention}.o_proj", HIDDEN, width)
        if layer == 0:
            for name, shape in (("gate", (2048, HIDDEN)), ("up", (2048, HIDDEN)), ("down", (HIDDEN, 2048))):
                plain(f"{at}.mlp.{name}_proj.weight", *shape)
            continue
        moe = f"{at}.block_sparse_moe"
        plain(f"{moe}.gate.weight", EXPERTS, HIDDEN)
        tensors[f"{moe}.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
        plain(f"{moe}.routed_expert_down_proj.weight", LATENT, HIDDEN)
        plain(f"{moe}.routed_expert_up_proj.weight", HIDDEN, LATENT)
        ones(f"{moe}.routed_expert_norm.weight", LATENT)
        for name, shape in (
            ("gate", (2 * EXPERT, HIDDEN)),
            ("up", (2 * EXPERT, HIDDEN)),
            ("down", (HIDDEN, 2 * EXPERT)),
        ):
            plain(f"{moe}.shared_experts.{name}_proj.weight", *shape)
        for expert in range(EXPERTS):
            for name, rows, columns in (("w1", EXPERT, LATENT), ("w3", EXPERT, LATENT), ("w2", LATENT, EXPERT)):
                one = f"{moe}.experts.{expert}.{name}"
                tensors[f"{one}.weight"] = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
                tensors[f"{one}.weight_scale"] = torch.full((rows, columns // 16), 2.0).to(torch.float8_e4m3fn)
                tensors[f"{one}.weight_scale_2"] = torch.tensor(2.0**-8)
                tensors[f"{one}.input_scale"] = torch.tensor(1.0)
    plain("model.embed_tokens.weight", 2048, HIDDEN, spread=1.0)
    plain("lm_head.weight", 2048, HIDDEN)
    ones("model.norm.weight", HIDDEN)
    ones("model.output_attn_res_norm.weight", HIDDEN)
    plain("model.output_attn_res_proj.weight", 1, HIDDEN)

    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_config(fp8_modules), indent=1))
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    print(f"{len(tensors)} tensors, {size_bytes:,} bytes in {folder}")


def _config(fp8_modules: list[str]) -> dict[str, Any]:
    layers: dict[str, Any] = {name: {"quant_algo": "FP8_PB_WO"} for name in fp8_modules}
    for layer in range(1, LAYERS):
        for bank in ("block_sparse_moe.experts", "mlp.experts"):
            layers[f"model.layers.{layer}.{bank}"] = {"quant_algo": "NVFP4", "group_size": 16}
    ignore = [
        "*block_sparse_moe.gate*",
        "*routed_expert_*",
        "*shared_experts*",
        "*_conv1d*",
        "*o_norm*",
        "*layernorm*",
    ]
    ignore += ["*_res_proj*", "*_res_norm*", "model.layers.0.mlp.*", "lm_head"]
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "vocab_size": 2048,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 2048,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": Q_LORA,
        "kv_lora_rank": KV_LORA,
        "qk_nope_head_dim": HEAD,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": HEAD,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "num_experts": EXPERTS,
        "num_experts_per_token": 2,
        "num_shared_experts": 2,
        "moe_intermediate_size": EXPERT,
        "routed_expert_hidden_size": LATENT,
        "latent_moe_use_norm": True,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": True,
        "routed_scaling_factor": 1.0,
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 12,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "linear_attn_config": {
            "num_heads": HEADS,
            "head_dim": HEAD,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "use_full_rank_gate": True,
            "full_attn_layers": [MLA_LAYER + 1],
            "kda_layers": [n + 1 for n in range(LAYERS) if n != MLA_LAYER],
        },
        "quantization_config": {
            "quant_method": "modelopt_mixed",
            "quant_algo": "MIXED_PRECISION",
            "producer": {"name": "modelopt", "version": "0.45.0"},
            "group_size": 16,
            "quantized_layers": layers,
            "ignore": ignore,
        },
    }


# ------------------------------------------------------------------------------------------------- the accuracy
def accuracy(folder: Path, patches: Path) -> None:
    """Run the engine with the patches off, on, and on in an engine process of its own; print errors and tokens."""
    off, on = {"K3_PATCHES": "off"}, {"K3_PATCHES": "strict"}
    inside, apart = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    _compare(
        folder,
        patches,
        "_measure",
        {
            "patches off": off | inside,
            "patches on": on | inside,
            "patches on, engine in its own process": on | apart,
        },
    )


def ranks(folder: Path, patches: Path) -> None:
    """Run the engine on two GPUs, patches off and on; print the errors in each of its two workers."""
    ours = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # the measuring function goes to the workers
    runs = {"TP 2, patches off": {"K3_PATCHES": "off"}, "TP 2, patches on": {"K3_PATCHES": "strict"}}
    _compare(folder, patches, "_measure_ranks", {title: extra | ours for title, extra in runs.items()})


def _compare(folder: Path, patches: Path, step: str, runs: dict[str, dict[str, str]]) -> None:
    for title, extra in runs.items():
        path = os.pathsep.join(filter(None, [str(patches), os.environ.get("PYTHONPATH")]))
        environ = {**os.environ, **extra, "PYTHONPATH": path, "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        command = [sys.executable, __file__, step, str(folder)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        print(f"== {title} (exit code {done.returncode})")
        shown = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if _worth_showing(line)]
        print(
            "\n".join(
                shown if done.returncode == 0 else done.stdout.splitlines()[-60:] + done.stderr.splitlines()[-40:]
            )
        )
        log = os.environ.get("LOG_DIR")
        if log:
            (Path(log) / f"{title.replace(' ', '-').replace(',', '')}.log").write_text(done.stdout + done.stderr)
        sys.stdout.flush()


def _worth_showing(line: str) -> bool:
    return any(word in line for word in ("Kimi-K3 runtime patch", "RESULT", "FP8 linear", "Selected", "kernel for"))


def measure(folder: Path) -> None:
    """In the engine: the fused projection's output against the dequantised checkpoint, by kind of row."""
    engine = _engine(folder)
    _generate(engine)
    gc.unfreeze()  # the engine has frozen its objects, which hides them from the next line
    layers = [o for o in gc.get_objects() if type(o).__name__ == "KimiK3MergedQKVGateLinear"]
    if layers:  # else the model lives in another process; the tokens above are the proof
        print("\n".join(f"RESULT {line}" for line in _errors(folder, layers[0], 0, 1)))


def measure_ranks(folder: Path) -> None:
    """In each worker of an engine on two GPUs: the same, for the rows that the worker has."""
    engine = _engine(folder, 2)
    _generate(engine)
    for rank, lines in enumerate(engine.collective_rpc(_errors_of_worker, args=(str(folder),))):
        print("\n".join(f"RESULT rank {rank}: {line}" for line in lines))


def _engine(folder: Path, tp: int = 1) -> Any:
    from vllm import LLM

    return LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=1024,
        gpu_memory_utilization=0.2,
        kv_cache_memory_bytes=2**29,
        tensor_parallel_size=tp,
        disable_custom_all_reduce=tp > 1,
        kernel_config={"linear_backend": "triton", "enable_flashinfer_autotune": False},
    )


def _generate(engine: Any) -> None:
    from vllm import SamplingParams

    prompt: Any = {"prompt_token_ids": list(range(3, 67))}
    answer = engine.generate(
        [prompt], SamplingParams(max_tokens=16, temperature=0.0, detokenize=False, prompt_logprobs=0)
    )
    total = sum(next(iter(token.values())).logprob for token in answer[0].prompt_logprobs[1:])
    print("RESULT tokens", list(answer[0].outputs[0].token_ids), "prompt log-probability", round(total, 4))


def _errors_of_worker(worker: Any, folder: str) -> list[str]:
    """Runs in a worker: the errors of its share of the projection, and its pid."""
    from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

    found = [m for m in worker.get_model().modules() if type(m).__name__ == "KimiK3MergedQKVGateLinear"]
    rank, size = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    return [f"pid {os.getpid()}, TP rank {rank} of {size}", *_errors(Path(folder), found[0], rank, size)]


def _errors(folder: Path, layer: Any, rank: int, size: int) -> list[str]:
    """Relative errors of one rank's projection: q_a and kv_a whole, its share of the gate's rows."""
    import torch
    from safetensors import safe_open

    device = torch.device("cuda", torch.cuda.current_device())
    with safe_open(folder / "model.safetensors", "pt", device=str(device)) as file:
        at = f"model.layers.{MLA_LAYER}.self_attn"
        q_a, kv_a, whole_gate = (
            dequantised(file.get_tensor(f"{at}.{name}.weight"), file.get_tensor(f"{at}.{name}.weight_scale"))
            for name in ("q_a_proj", "kv_a_proj_with_mqa", "g_proj")
        )
    width = HEADS * HEAD // size
    parts = [q_a, kv_a, whole_gate[rank * width : (rank + 1) * width]]
    torch.manual_seed(1)
    x = torch.randn(256, HIDDEN, device=device, dtype=torch.bfloat16)
    with torch.inference_mode():
        output = layer(x)[0].float()
    expected = x.float() @ torch.cat(parts).T
    gate_from = Q_LORA + KV_LORA + ROPE
    gate = torch.arange(width, device=device)
    lines = []
    for name, rows in (
        ("q_a rows", slice(0, Q_LORA)),
        ("kv_a rows", slice(Q_LORA, gate_from)),
        ("gate rows, first half of each block", gate_from + gate[gate % BLOCK < 64]),
        ("gate rows, second half of each block", gate_from + gate[gate % BLOCK >= 64]),
    ):
        error = (output[:, rows] - expected[:, rows]).norm() / expected[:, rows].norm()
        lines.append(f"relative error {name}: {error.item():.4f}")
    first = gate_from + gate[gate % BLOCK < 64].view(-1, 64)
    worst = ((output[:, first] - expected[:, first]).norm(dim=(0, 2)) / expected[:, first].norm(dim=(0, 2))).tolist()
    return [*lines, "per gate block, first half: " + " ".join(f"{error:.3f}" for error in worst)]


# ----------------------------------------------------------------------------------------------------- the cost
def cost() -> None:
    """Time one fused projection at K3's true sizes, laid out in four ways, in CUDA graphs, runs interleaved."""
    import torch

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Triton block-FP8 kernel")
    print("median microseconds")
    print("tp tokens | as shipped (wrong) | dead rows inside | permuted | gate apart | ratios to as shipped")
    for tp in (1, 8):
        for tokens in (1, 16, 128, 1024, 8192):
            ways = _ways(tp, tokens)
            times: dict[str, list[float]] = {name: [] for name in ways}
            graphs = {name: _graph(way) for name, way in ways.items()}
            for _ in range(15):
                for name, graph in graphs.items():
                    times[name].append(_microseconds(graph))
            medians = [statistics.median(times[name]) for name in ways]
            ratios = [
                statistics.median(b / a for a, b in zip(times["shipped"], t, strict=True)) for t in times.values()
            ]
            print(
                f"{tp:2} {tokens:6} | "
                + " | ".join(f"{m:8.1f}" for m in medians)
                + " | "
                + " ".join(f"{r:.3f}" for r in ratios[1:])
            )


def _ways(tp: int, tokens: int) -> dict[str, Callable[[], Any]]:
    import torch
    from vllm.model_executor.layers.quantization.utils.fp8_utils import (
        per_token_group_quant_fp8,
        w8a8_triton_block_scaled_mm,
    )

    hidden, latent, gate = 7168, 2112, 12288 // tp
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)

    def matrix(rows: int) -> tuple[Any, Any]:
        weight = torch.randn(rows, hidden, device="cuda").to(torch.float8_e4m3fn)
        return weight, torch.rand(-(-rows // BLOCK), hidden // BLOCK, device="cuda") + 0.5

    whole, a, g = matrix(latent + gate + 64), matrix(latent + 64), matrix(gate)

    def multiply(q: Any, s: Any, weight: tuple[Any, Any]) -> Any:
        return w8a8_triton_block_scaled_mm(q, weight[0], s, weight[1], [BLOCK, BLOCK], torch.bfloat16)

    def product(weight: tuple[Any, Any]) -> Any:
        q, s = per_token_group_quant_fp8(x, BLOCK)
        return multiply(q, s, weight)

    def shipped() -> Any:
        return product(whole)[..., : latent + gate].contiguous()

    def inside() -> Any:
        output = product(whole)
        return torch.cat([output[..., :latent], output[..., latent + 64 :]], dim=-1)

    def permuted() -> Any:  # q_a, gate, kv_a, tail
        output = product(whole)
        return torch.cat(
            [output[..., :1536], output[..., 1536 + gate : latent + gate], output[..., 1536 : 1536 + gate]], -1
        )

    def apart() -> Any:
        q, s = per_token_group_quant_fp8(x, BLOCK)
        return multiply(q, s, a)[..., :latent].contiguous(), multiply(q, s, g)

    return {"shipped": shipped, "inside": inside, "permuted": permuted, "apart": apart}


def _graph(way: Callable[[], Any]) -> Any:
    import torch

    for _ in range(3):
        way()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            way()
    return graph


def _microseconds(graph: Any) -> float:
    import torch

    event: Any = torch.cuda.Event
    start, stop = event(enable_timing=True), event(enable_timing=True)
    start.record()
    graph.replay()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) * 100  # ten runs in one graph, milliseconds to microseconds


def main() -> None:
    match sys.argv[1:]:
        case ["model", folder]:
            write_model(Path(folder))
        case ["accuracy", folder, patches]:
            accuracy(Path(folder), Path(patches))
        case ["ranks", folder, patches]:
            ranks(Path(folder), Path(patches))
        case ["cost"]:
            cost()
        case ["_measure", folder]:
            measure(Path(folder))
        case ["_measure_ranks", folder]:
            measure_ranks(Path(folder))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
