"""transformers' kimi_linear on the same work, for benchmarks/reference.py. Run by an environment that has transformers.

Reads a line of JSON from stdin for each measurement and answers with one.
"""

import json
import sys
import time

import torch
from transformers import KimiLinearConfig, KimiLinearForCausalLM, __version__


def build(sizes: dict) -> KimiLinearForCausalLM:
    torch.manual_seed(0)
    layers = sizes["layers"]
    config = KimiLinearConfig(
        vocab_size=sizes["vocabulary"],
        hidden_size=sizes["hidden"],
        intermediate_size=sizes["dense_width"],
        moe_intermediate_size=sizes["expert_width"],
        num_hidden_layers=layers,
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["heads"],
        # K3's experts work at half the width, so fewer of these make a model of the same size.
        num_local_experts=sizes["experts"] * 5 // 8,
        num_experts_per_tok=sizes["experts_per_token"],
        n_shared_experts=2,
        layer_types=["full_attention" if layer in sizes["mla"] else "linear_attention" for layer in range(layers)],
        mlp_layer_types=["dense"] + ["sparse"] * (layers - 1),
        linear_num_heads=sizes["heads"],
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=None,
        attn_implementation="sdpa",
    )
    return KimiLinearForCausalLM(config).float().eval()


@torch.inference_mode()
def generate(model: KimiLinearForCausalLM, batch: int, prompt: int, count: int) -> list[float]:
    """Seconds of each pass: the prompt's, then one for each further token."""
    tokens = torch.randint(0, 256, (batch, prompt), generator=torch.Generator().manual_seed(1))
    cache, times = None, []
    for _ in range(count):
        began = time.perf_counter()
        output = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, tokens = output.past_key_values, output.logits[:, -1:].argmax(-1)
        times.append(time.perf_counter() - began)
    return times


def main() -> None:
    torch.set_num_threads(1)
    model = build(json.loads(sys.stdin.readline()))
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"version": __version__, "parameters": parameters}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        print(json.dumps(generate(model, ask["batch"], ask["prompt"], ask["count"])), flush=True)


if __name__ == "__main__":
    main()
