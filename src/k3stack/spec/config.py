"""Reading config.json: every field that shapes the model is checked, nothing is guessed.

Accepted are the multimodal wrapper (`text_config`, `vision_config`) and the bare text config. What counts is the
fields, never a repository's name: any model with K3's architecture fields is read, whatever it is called. A field
that is unknown, missing or contradicts another one is a `ConfigError` that names it. Fields that transformers
writes into every config and that shape nothing here (generation defaults, label maps) are listed in `INERT` and
skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from k3stack.errors import ConfigError, next_step
from k3stack.files import json_value
from k3stack.values import first_fault

__all__ = [
    "Config",
    "LinearAttentionConfig",
    "TextConfig",
    "VisionConfig",
    "as_object",
    "checked",
    "parse_config",
    "read_config",
    "read_object",
]

Count = Annotated[int, Field(strict=True, gt=0)]
CountOrNone = Annotated[int, Field(strict=True, ge=0)]
TokenId = Annotated[int, Field(strict=True, ge=0)]

INERT = frozenset(
    """
    add_cross_attention architectures auto_map bad_words_ids begin_suppress_tokens chunk_size_feed_forward
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id id2label is_decoder is_encoder_decoder label2id length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions
    output_hidden_states output_scores prefix problem_type pruned_heads remove_invalid_values
    repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens task_specific_params
    temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torchscript
    transformers_version typical_p use_bfloat16 use_cache initializer_range head_dim rope_theta rope_scaling
    rope_parameters ignore_index
    """.split()
)
"""Fields that shape no tensor and no memory. `head_dim` and the `rope_*` fields are here because K3's attention
has its own head sizes and no rotation (`mla_use_nope`); engines derive and ignore them."""


_AGAIN = "Correct it, or download it again."


class _Part(BaseModel):
    """A section of config.json: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


M = TypeVar("M", bound=BaseModel)
P = TypeVar("P", bound=_Part)


class LinearAttentionConfig(_Part):
    """`text_config.linear_attn_config`: Kimi Delta Attention. Layer numbers count from one."""

    num_heads: Count
    head_dim: Count
    short_conv_kernel_size: Count
    gate_lower_bound: float
    use_full_rank_gate: Literal[True]
    full_attn_layers: list[Count]
    kda_layers: list[Count]


class TextConfig(_Part):
    """`text_config`, or the whole of a bare text config."""

    model_type: str
    dtype: Literal["bfloat16"]
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Count
    intermediate_size: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    q_lora_rank: Count
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    mla_use_nope: Literal[True]
    mla_use_output_gate: Literal[True]
    linear_attn_config: LinearAttentionConfig
    num_experts: Count
    num_experts_per_token: Count
    num_shared_experts: Count
    moe_intermediate_size: Count
    routed_expert_hidden_size: Count
    latent_moe_use_norm: Literal[True]
    first_k_dense_replace: CountOrNone
    moe_layer_freq: Literal[1]
    moe_router_activation_func: Literal["sigmoid"]
    moe_renormalize: bool
    routed_scaling_factor: float
    topk_method: Literal["noaux_tc"]
    use_grouped_topk: bool
    num_expert_group: Literal[1]
    topk_group: Literal[1]
    hidden_act: Literal["situ"]
    activation_situ_beta: float
    activation_situ_linear_beta: float
    attn_res_block_size: Count
    rms_norm_eps: float
    max_position_embeddings: Count
    num_nextn_predict_layers: Literal[0]
    tie_word_embeddings: bool
    bos_token_id: TokenId
    eos_token_id: TokenId
    pad_token_id: TokenId
    quantization_config: dict[str, Any] | None = None


class VisionConfig(_Part):
    """`vision_config`: the MoonViT tower and its projector."""

    patch_size: Count
    init_pos_emb_height: Count
    init_pos_emb_width: Count
    init_pos_emb_time: Count
    pos_emb_type: Literal["divided_fixed"]
    pos_emb_interpolation_mode: Literal["bilinear"]
    vt_hidden_size: Count
    vt_intermediate_size: Count
    vt_num_attention_heads: Count
    vt_num_hidden_layers: Count
    qkv_hidden_size: Count
    norm_type: Literal["rmsnorm"]
    mlp_type: Literal["mlp2"]
    attn_bias: Literal[False]
    linear_bias: Literal[False]
    patch_embed_proj_bias: Literal[False]
    activation_func: Literal["gelu_pytorch_tanh"]
    merge_kernel_size: Annotated[list[Count], Field(min_length=2, max_length=2)]
    merge_type: Literal["sd2_tpool"]
    mm_projector_type: Literal["patchmergerv2"]
    mm_hidden_size: Count
    projector_hidden_act: Literal["gelu"]
    projector_ln_eps: float
    text_hidden_size: Count


class Config(_Part):
    """config.json. A bare text config has only `text_config` set here, and `multimodal` is false."""

    multimodal: bool
    text_config: TextConfig
    vision_config: VisionConfig | None = None
    quantization_config: dict[str, Any] | None = None
    media_placeholder_token_id: TokenId | None = None


_WRAPPER_KEYS = frozenset(
    """
    model_type dtype torch_dtype bos_token_id eos_token_id pad_token_id media_placeholder_token_id
    image_placeholder tie_word_embeddings text_config vision_config quantization_config
    """.split()
)


def read_config(path: Path) -> Config:
    """Read and check a config.json.

    Raises:
        ConfigError: not there, not JSON, or a field is unknown, missing or contradictory.
    """
    return parse_config(read_object(path), where=path)


def read_object(path: Path) -> Mapping[str, Any]:
    """The JSON object in a config.json, its fields not looked at yet.

    Raises:
        ConfigError: not there, not JSON, or no object.
    """
    try:
        data = json_value(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError("is not there", where=path, hint="Point at a folder that holds config.json.") from error
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", where=path, hint=next_step(error)) from error
    except ValueError as error:
        raise ConfigError(f"is not JSON that can be read ({error})", where=path, hint=_AGAIN) from error
    return as_object(data, path)


def as_object(data: Any, where: str | Path) -> Mapping[str, Any]:
    """The same data, which must be a JSON object.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(data, Mapping):
        raise ConfigError("is not a JSON object", where=where, hint=_AGAIN)
    return data


def checked(kind: type[M], fields: Mapping[str, Any], where: str) -> M:
    """A section of a config.

    Args:
        where: the file and, behind a colon, what stands before the names of these fields.

    Raises:
        ConfigError: names the first field that is unknown, missing or wrong, and its value.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = where + first_fault(error)[0]
        if first["type"] == "extra_forbidden":
            raise _unknown(name) from error
        if first["type"] == "missing":
            raise ConfigError("is missing", where=name) from error
        raise ConfigError(f"is {first['input']!r}: {first['msg'].lower()}", where=name) from error


def parse_config(data: Any, *, where: str | Path = "config.json") -> Config:
    """Check a config that was read already; see the module's docstring.

    Args:
        data: the JSON object of the multimodal wrapper, or of a text config.
        where: what to call the file in errors.

    Raises:
        ConfigError: a field is unknown, missing or contradictory.
    """
    data = as_object(data, where)
    multimodal = "text_config" in data
    text = data["text_config"] if multimodal else data
    prefix = "text_config." if multimodal else ""
    vision = data.get("vision_config")
    if not isinstance(text, Mapping):
        raise ConfigError("must be an object", where=f"{where}: text_config")
    if multimodal:
        unknown = [key for key in data if key not in _WRAPPER_KEYS and not _inert(key)]
        if unknown:
            raise _unknown(f"{where}: {unknown[0]}")
        if not isinstance(vision, Mapping):
            raise ConfigError("is missing, or no object", where=f"{where}: vision_config")
        _agree_with_text(data, text, where)
    text_part = _part(TextConfig, text, f"{where}: {prefix}")
    config = Config(
        multimodal=multimodal,
        text_config=text_part,
        vision_config=_part(VisionConfig, vision, f"{where}: vision_config.") if multimodal else None,
        quantization_config=data.get("quantization_config") if multimodal else None,
        media_placeholder_token_id=data.get("media_placeholder_token_id") if multimodal else None,
    )
    _check(config, str(where), prefix)
    return config


def _inert(key: str) -> bool:
    return key in INERT or key.startswith("_")


def _unknown(where: str) -> ConfigError:
    return ConfigError(
        "is a field this version does not know, so its effect on shapes and memory is unknown",
        where=where,
        hint="If it changes nothing, remove it; otherwise a newer k3stack is needed.",
    )


def _part(kind: type[P], data: Any, where: str) -> P:
    fields = {key: value for key, value in data.items() if not _inert(key)}
    if kind is TextConfig and "torch_dtype" in fields:  # the older spelling of the same field
        fields.setdefault("dtype", fields.pop("torch_dtype"))
    return checked(kind, fields, where)


def _agree_with_text(data: Mapping[str, Any], text: Mapping[str, Any], where: str | Path) -> None:
    """The wrapper repeats some text fields; both must say the same."""
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype"):
        if key in data and key in text and data[key] != text[key]:
            raise ConfigError(f"is {data[key]!r} but text_config.{key} is {text[key]!r}", where=f"{where}: {key}")


def _check(config: Config, where: str, prefix: str) -> None:
    """Contradictions between fields that are each fine alone."""
    text, linear, vision = config.text_config, config.text_config.linear_attn_config, config.vision_config

    def refuse(field: str, what: str) -> ConfigError:
        return ConfigError(what, where=f"{where}: {field}")

    layers = list(range(1, text.num_hidden_layers + 1))
    if sorted(linear.kda_layers + linear.full_attn_layers) != layers:
        wrong = set(linear.kda_layers) & set(linear.full_attn_layers)
        wrong = wrong or set(layers) ^ (set(linear.kda_layers) | set(linear.full_attn_layers))
        raise refuse(
            f"{prefix}linear_attn_config.kda_layers",
            f"and full_attn_layers must name each of 1..{text.num_hidden_layers} once; "
            f"wrong at {sorted(wrong)[:5] or 'a repeated number'}",
        )
    if text.num_key_value_heads != text.num_attention_heads:
        raise refuse(
            f"{prefix}num_key_value_heads",
            f"is {text.num_key_value_heads} but MLA has one per attention head ({text.num_attention_heads})",
        )
    if text.num_experts_per_token > text.num_experts:
        raise refuse(f"{prefix}num_experts_per_token", f"is more than num_experts ({text.num_experts})")
    if text.first_k_dense_replace > text.num_hidden_layers:
        raise refuse(f"{prefix}first_k_dense_replace", f"is more than the {text.num_hidden_layers} layers")
    for name in ("moe_intermediate_size", "routed_expert_hidden_size"):
        if getattr(text, name) % 32:
            raise refuse(f"{prefix}{name}", "is no multiple of 32, the group of MXFP4 scales")
    if vision is not None:
        if vision.text_hidden_size != text.hidden_size:
            raise refuse(
                "vision_config.text_hidden_size",
                f"is {vision.text_hidden_size} but {prefix}hidden_size is {text.hidden_size}",
            )
        if vision.mm_hidden_size != vision.vt_hidden_size:
            raise refuse(
                "vision_config.mm_hidden_size",
                f"is {vision.mm_hidden_size} but vt_hidden_size is {vision.vt_hidden_size}",
            )
        if vision.qkv_hidden_size % vision.vt_num_attention_heads:
            raise refuse("vision_config.qkv_hidden_size", "is no multiple of vt_num_attention_heads")
    if config.quantization_config is not None and text.quantization_config is not None:
        raise refuse("quantization_config", "stands at the top and in text_config; one of them must go")
