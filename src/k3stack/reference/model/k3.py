"""The whole model: embedding, layers with AttnRes, final mix and head.

Shapes: T tokens of the pass, hidden (7168), vocab (163840).

AttnRes: instead of one residual stream, the finished blocks of 12 layers are kept apart (with the embedding as the
first), and each sub-layer reads a mix of them and of the running sum p, weighted per token (functions.mix):

    x = p in the first layer, else mix(blocks, p; self_attention_res)
    every 12th layer: p joins the blocks, and the sum begins anew
    p = p + Attention( RMSNorm(x; input_layernorm) )
    y = mix(blocks, p; mlp_res)
    p = p + FFN( RMSNorm(y; post_attention_layernorm) )

and after the last layer h = mix(blocks, p; output_attn_res), logits = lm_head( RMSNorm(h; norm) ).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from k3stack.errors import UsageError
from k3stack.reference.batch import Batch, Memory, Output, Trail
from k3stack.reference.model.arithmetic import Arithmetic, by_columns
from k3stack.reference.model.cut import Cut, cut
from k3stack.reference.model.draft import Draft, Drafter
from k3stack.reference.model.functions import mix, rms_norm
from k3stack.reference.model.kda import Kda
from k3stack.reference.model.mla import Mla
from k3stack.reference.model.moe import Dense, LatentMoe, Routing, Situ
from k3stack.reference.model.store import Section, Store
from k3stack.reference.model.vision import ImageLimits, Patches, Vision
from k3stack.spec.config import Config, TextConfig
from k3stack.spec.model import Attention, LayerSpec, ModelSpec

__all__ = ["K3"]


@dataclass(frozen=True, slots=True)
class Mixer:
    """The two vectors of an AttnRes mix, multiplied: norm weight times projection [hidden], wide."""

    score_weight: Tensor

    @classmethod
    def from_section(cls, section: Section, name: str) -> Mixer:
        """The mixer called `name` (self_attention_res, mlp_res, output_attn_res)."""
        return cls(section.tensor(f"{name}_norm.weight") * section.tensor(f"{name}_proj.weight")[0])


class Layer:
    """One decoder layer."""

    def __init__(self, spec: ModelSpec, text: TextConfig, layer: LayerSpec, section: Section) -> None:
        self.opens_block = layer.index % spec.attn_res_block == 0
        self.epsilon = text.rms_norm_eps
        self.wide = section.store.arithmetic.wide
        self.input_norm, self.ffn_norm = (section.weight(f"{n}_layernorm") for n in ("input", "post_attention"))
        self.attention_mixer = Mixer.from_section(section, "self_attention_res")
        self.ffn_mixer = Mixer.from_section(section, "mlp_res")
        place = spec.layers_of(layer.attention).index(layer)
        attention = section.section("self_attn")
        self.attention: Kda | Mla = (
            Kda(spec.kda, attention, place, self.epsilon)
            if layer.attention is Attention.KDA
            else Mla(spec.mla, attention, place, self.epsilon)
        )
        bounds = Situ(text.activation_situ_beta, text.activation_situ_linear_beta)
        self.ffn: Dense | LatentMoe = (
            Dense(section.section("mlp"), bounds)
            if layer.dense
            else LatentMoe(
                spec.moe,
                section.section("block_sparse_moe"),
                bounds,
                Routing(text.moe_renormalize, text.routed_scaling_factor),
                self.epsilon,
            )
        )

    def __call__(self, blocks: list[Tensor], p: Tensor, cut: Cut, memory: Memory) -> Tensor:
        """The running sum after this layer [T, hidden]; `blocks` grows when a block ends here."""
        x = self._mix(blocks, p, self.attention_mixer) if blocks else p
        if self.opens_block:
            blocks.append(p)
        a = self.attention(rms_norm(x, self.input_norm, self.epsilon, self.wide), cut, memory)
        p = a if self.opens_block else p + a
        y = self._mix(blocks, p, self.ffn_mixer)
        return p + self.ffn(rms_norm(y, self.ffn_norm, self.epsilon, self.wide))

    def _mix(self, blocks: list[Tensor], p: Tensor, mixer: Mixer) -> Tensor:
        return mix([*blocks, p], mixer.score_weight, self.epsilon, self.wide)


class K3:
    """Kimi-K3. Made by `load_model`.

    Attributes:
        spec: what it is.
        arithmetic: what it computes in.
        device: where it is.
        image_limits: how large an image may be, for `vision.image_size`.
        draft: guesses blocks of tokens, or None; see draft.py for how to use it.
    """

    def __init__(self, spec: ModelSpec, config: Config, store: Store) -> None:
        text = config.text_config
        self.spec, self.text = spec, text
        self.arithmetic: Arithmetic = store.arithmetic
        self.device = torch.device(store.device)
        self.draft: Drafter | None = None
        model = store.section(f"{spec.prefix}model.")
        self.embedding = model.weight("embed_tokens")
        self.layers = [Layer(spec, text, layer, model.section(f"layers.{layer.index}")) for layer in spec.layers]
        self.output_mixer = Mixer.from_section(model, "output_attn_res")
        self.norm = model.weight("norm")
        self.head = self.embedding if spec.tied_head else store.section(spec.prefix).weight("lm_head")
        self.head = by_columns(self.head)
        self.image_limits = ImageLimits.from_folder(store.source.folder)
        self.vision = None
        if spec.vision is not None and config.vision_config is not None:
            self.vision = Vision(spec.vision, config.vision_config.projector_ln_eps, store)

    @property
    def config(self) -> ModelSpec:
        """The same as `spec`."""
        return self.spec

    def new_memory(self, pages: int, page_tokens: int, slots: int, latent_dtype: torch.dtype | None = None) -> Memory:
        """Empty caches and states.

        Args:
            pages: how many pages all sequences share.
            page_tokens: tokens of a page.
            slots: how many sequences can have states at once.
            latent_dtype: of the latent cache; by default the model's own. float8_e4m3fn has scale 1.0.
        """
        spec, device, wide = self.spec, self.device, self.arithmetic.wide
        kda = spec.kda
        deltas, latents = (len(spec.layers_of(kind)) for kind in (Attention.KDA, Attention.MLA))
        state = (deltas, slots, kda.heads, kda.head_dim, kda.head_dim)
        window = (deltas, slots, kda.conv_kernel - 1, 3 * kda.width)
        cache = (latents, pages, page_tokens, spec.mla.cache_width)
        draft = None
        if isinstance(self.draft, Draft):
            drafts = (self.draft.spec.layers, pages, page_tokens, self.draft.spec.attention.cache_width)
            draft = torch.zeros(drafts, dtype=latent_dtype or self.arithmetic.dtype, device=device)
        return Memory(
            draft=draft,
            latent=torch.zeros(cache, dtype=latent_dtype or self.arithmetic.dtype, device=device),
            recurrent=torch.zeros(state, dtype=wide, device=device),
            conv=torch.zeros(window, dtype=self.arithmetic.dtype, device=device),
        )

    @torch.no_grad()
    def forward(self, batch: Batch, memory: Memory, capture: bool = False) -> Output:
        """One pass over a batch; memory moves on.

        Args:
            batch: tokens and pieces; index tensors may be on any device.
            memory: made by `new_memory`.
            capture: also return what a draft wants to see.

        Raises:
            ValueError: pieces that do not tile the tokens, or too few pages.
        """
        tokens = batch.tokens.to(self.device)
        batch = Batch(tokens, batch.pieces, batch.images)
        parts = cut(batch, memory)
        self._open_trails(parts, memory)
        p = self.embedding[tokens]
        if batch.images is not None:
            p[batch.images.rows.to(self.device)] = batch.images.vectors.to(p)
        blocks: list[Tensor] = []
        captured, wanted = [], self.draft.captures if capture and self.draft else ()
        for index, layer in enumerate(self.layers):
            p = layer(blocks, p, parts, memory)
            if index in wanted:
                captured.append(p)
        mixer = self.output_mixer
        hidden = mix([*blocks, p], mixer.score_weight, self.text.rms_norm_eps, self.arithmetic.wide)
        return Output(hidden, torch.cat(captured, dim=1) if captured else None)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head: hidden [n, hidden] to float32 [n, vocab]."""
        normed = rms_norm(hidden, self.norm, self.text.rms_norm_eps, self.arithmetic.wide)
        return self.arithmetic.linear(normed, self.head).to(self.arithmetic.wide)

    @torch.no_grad()
    def embed_images(self, images: Sequence[Patches]) -> list[Tensor]:
        """The vectors of each image [its tokens, hidden], for `Batch.images`.

        `vision.image_size` says how many tokens an image takes, `vision.patches` prepares it.

        Raises:
            UsageError: a model without a vision tower.
        """
        if self.vision is None:
            raise UsageError("this model has no vision tower", where="images", hint="Load one with a vision_config.")
        return [self.vision(image) for image in images]

    def _open_trails(self, parts: Cut, memory: Memory) -> None:
        """Room for the states after each token, where a piece wants them."""
        for piece in parts.longer:
            if piece.trail:
                memory.trails[piece.slot] = Trail(
                    _per_token(memory.recurrent, piece.length), _per_token(memory.conv, piece.length)
                )


def _per_token(states: Tensor, tokens: int) -> Tensor:
    """Room for a state [D, ...] after each of some tokens: [D, n, ...]."""
    return states.new_empty(len(states), tokens, *states.shape[2:])
