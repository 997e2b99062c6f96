"""K3's text model a second time, as short as it gets: float64, token by token, nothing cached, grouped or batched.

It shares no code with the package but the number formats; tensors come through the safetensors library.
"""

import json
import math
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from k3stack.formats import fp8_block, mxfp4, nvfp4


class Transcript:
    """A tiny checkpoint, decoded to float64."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.text = config["text_config"]
        self.raw: dict[str, Tensor] = {}
        for path in folder.glob("*.safetensors"):
            with safe_open(path, framework="pt") as file:
                self.raw |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping

    def get(self, name: str) -> Tensor:
        raw = self.raw[f"language_model.{name}"] if f"language_model.{name}" in self.raw else self.raw[name]
        return raw.double()

    def matrix(self, module: str) -> Tensor:
        """A weight matrix in whichever encoding it has."""
        parts = {k.rpartition(".")[2]: v for k, v in self.raw.items() if k.startswith(f"language_model.{module}.")}
        scale = parts.get("weight_scale")
        if scale is None:
            return parts["weight"].double()
        packed = parts.get("weight_packed", parts.get("weight"))
        assert packed is not None
        codes = packed.view(torch.uint8).numpy()
        if "weight_scale_2" in parts or "weight_global_scale" in parts:
            second = parts["weight_scale_2"] if "weight_scale_2" in parts else 1 / parts["weight_global_scale"]
            made = nvfp4.dequantize(codes, scale.view(torch.uint8).numpy(), float(second))
        elif scale.dtype is torch.uint8:
            made = mxfp4.dequantize(codes, scale.numpy())
        else:
            made = fp8_block.dequantize(codes, scale.float().numpy())
        return torch.from_numpy(made).double()

    def norm(self, x: Tensor, name: str, epsilon: float = 1e-5) -> Tensor:
        return x / math.sqrt(float((x * x).mean()) + epsilon) * self.get(f"{name}.weight")

    def mix(self, sources: list[Tensor], name: str) -> Tensor:
        proj = self.get(f"{name}_proj.weight")[0]
        scores = torch.stack([(self.norm(v, f"{name}_norm") * proj).sum() for v in sources])
        return torch.einsum("j,jd->d", scores.softmax(0), torch.stack(sources))

    def situ(self, gate: Tensor, up: Tensor) -> Tensor:
        return 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)

    def mlp(self, x: Tensor, here: str) -> Tensor:
        gate, up, down = (self.matrix(f"{here}.{name}_proj") for name in ("gate", "up", "down"))
        return down @ self.situ(gate @ x, up @ x)

    def moe(self, x: Tensor, here: str) -> Tensor:
        scores = torch.sigmoid(self.get(f"{here}.gate.weight") @ x)
        biased = scores + self.get(f"{here}.gate.e_score_correction_bias")
        chosen = sorted(range(len(scores)), key=lambda e: -float(biased[e]))[: self.text["num_experts_per_token"]]
        total = sum(float(scores[e]) for e in chosen)
        z = self.matrix(f"{here}.routed_expert_down_proj") @ x
        y = torch.zeros_like(z)
        for e in chosen:
            w1, w2, w3 = (self.matrix(f"{here}.experts.{e}.{name}") for name in ("w1", "w2", "w3"))
            y = y + scores[e] / total * (w2 @ self.situ(w1 @ z, w3 @ z))
        routed = self.matrix(f"{here}.routed_expert_up_proj") @ self.norm(y, f"{here}.routed_expert_norm")
        return routed + self.mlp(x, f"{here}.shared_experts")

    def kda(self, xs: list[Tensor], here: str) -> list[Tensor]:
        H, K = self.text["linear_attn_config"]["num_heads"], self.text["linear_attn_config"]["head_dim"]
        streams = {}
        for name in "qkv":
            projected = [self.matrix(f"{here}.{name}_proj") @ x for x in xs]
            weight = self.get(f"{here}.{name}_conv1d.weight")[:, 0]
            padded = [torch.zeros_like(projected[0])] * 3 + projected
            sums = [sum(weight[:, j] * padded[t + j] for j in range(4)) for t in range(len(xs))]
            streams[name] = [(s * torch.sigmoid(s)).view(H, K) for s in map(torch.as_tensor, sums)]
        S, made = torch.zeros(H, K, K, dtype=torch.float64), []
        A, dt_bias = self.get(f"{here}.A_log")[:H].exp(), self.get(f"{here}.dt_bias").view(H, K)
        for t, x in enumerate(xs):
            q, k, v = (streams[name][t] for name in "qkv")
            q = q / (q.square().sum(1, keepdim=True) + 1e-6).sqrt() / math.sqrt(K)
            k = k / (k.square().sum(1, keepdim=True) + 1e-6).sqrt()
            beta = torch.sigmoid(self.matrix(f"{here}.b_proj") @ x)
            z = (self.matrix(f"{here}.f_b_proj") @ (self.matrix(f"{here}.f_a_proj") @ x)).view(H, K) + dt_bias
            g = -5 * torch.sigmoid(A[:, None] * z)
            out = []
            for h in range(H):
                decayed = g[h].exp()[:, None] * S[h]
                S[h] = decayed + torch.outer(k[h], beta[h] * (v[h] - decayed.T @ k[h]))
                out.append(self.norm(S[h].T @ q[h], f"{here}.o_norm"))
            gate = torch.sigmoid(self.matrix(f"{here}.g_proj") @ x)
            made.append(self.matrix(f"{here}.o_proj") @ (torch.cat(out) * gate))
        return made

    def mla(self, xs: list[Tensor], here: str) -> list[Tensor]:
        H, c = self.text["num_attention_heads"], self.text["kv_lora_rank"]
        keys, values, made = [], [], []
        for x in xs:
            low = self.norm(self.matrix(f"{here}.q_a_proj") @ x, f"{here}.q_a_layernorm")
            q = (self.matrix(f"{here}.q_b_proj") @ low).view(H, 192)
            latent = self.matrix(f"{here}.kv_a_proj_with_mqa") @ x
            kv = self.matrix(f"{here}.kv_b_proj") @ self.norm(latent[:c], f"{here}.kv_a_layernorm")
            keys.append(torch.cat([kv.view(H, 256)[:, :128], latent[c:].expand(H, -1)], dim=1))
            values.append(kv.view(H, 256)[:, 128:])
            scores = torch.einsum("hd,thd->ht", q, torch.stack(keys)) / math.sqrt(192)
            seen = torch.einsum("ht,thd->hd", scores.softmax(1), torch.stack(values)).flatten()
            gate = torch.sigmoid(self.matrix(f"{here}.g_proj") @ x)
            made.append(self.matrix(f"{here}.o_proj") @ (seen * gate))
        return made

    def logits(self, tokens: list[int], vectors: dict[int, Tensor] | None = None) -> Tensor:
        """float64 [T, vocab]; `vectors` take the place of embeddings in their rows."""
        embedding = self.get("model.embed_tokens.weight")
        ps = [embedding[token] for token in tokens]
        for row, vector in (vectors or {}).items():
            ps[row] = vector.double()
        blocks: list[list[Tensor]] = [[] for _ in tokens]
        for layer in range(self.text["num_hidden_layers"]):
            here = f"model.layers.{layer}"
            xs = [self.mix([*b, p], f"{here}.self_attention_res") if b else p for b, p in zip(blocks, ps, strict=True)]
            xs = [self.norm(x, f"{here}.input_layernorm") for x in xs]
            is_kda = layer + 1 in self.text["linear_attn_config"]["kda_layers"]
            attended = (self.kda if is_kda else self.mla)(xs, f"{here}.self_attn")
            if layer % self.text["attn_res_block_size"] == 0:
                blocks = [[*b, p] for b, p in zip(blocks, ps, strict=True)]
                ps = attended
            else:
                ps = [p + a for p, a in zip(ps, attended, strict=True)]
            for t, p in enumerate(ps):
                y = self.norm(self.mix([*blocks[t], p], f"{here}.mlp_res"), f"{here}.post_attention_layernorm")
                ffn = self.mlp(y, f"{here}.mlp") if layer == 0 else self.moe(y, f"{here}.block_sparse_moe")
                ps[t] = p + ffn
        head = self.get("lm_head.weight")
        last = [self.mix([*b, p], "model.output_attn_res") for b, p in zip(blocks, ps, strict=True)]
        return torch.stack([head @ self.norm(h, "model.norm") for h in last])
