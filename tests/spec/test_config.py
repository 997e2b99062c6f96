"""config.json: what is refused, and that the error names the field."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from k3stack.errors import ConfigError
from k3stack.spec import ModelSpec
from k3stack.spec.published import kimi_k3_config


def changed(path: str, value: Any) -> dict[str, Any]:
    config = deepcopy(kimi_k3_config())
    *parents, last = path.split(".")
    holder = config
    for parent in parents:
        holder = holder[parent]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text_config.hidden_size", ...),
        ("text_config.hidden_size", "7168"),
        ("text_config.hidden_size", 0),
        ("text_config.hidden_size", True),
        ("text_config.hidden_act", "silu"),
        ("text_config.num_nextn_predict_layers", 1),
        ("text_config.num_key_value_heads", 8),
        ("text_config.num_experts_per_token", 897),
        ("text_config.moe_intermediate_size", 3073),
        ("text_config.linear_attn_config.kda_layers", [1, 2, 3]),
        ("text_config.linear_attn_config.use_full_rank_gate", False),
        ("text_config.quantization_config.quant_method", "gptq"),
        ("text_config.quantization_config.config_groups.group_0.weights.group_size", 16),
        ("vision_config", ...),
        ("vision_config.text_hidden_size", 4096),
        ("vision_config.merge_kernel_size", [2]),
        ("eos_token_id", 1),
        ("text_config.sliding_window", 4096),
        ("vision_config.qk_norm", True),
        ("mtp_config", {}),
    ],
)
def test_the_error_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelSpec.from_config(changed(field, value))
    assert field in str(caught.value)


def test_unknown_field_says_that_its_effect_is_unknown() -> None:
    with pytest.raises(ConfigError, match="does not know"):
        ModelSpec.from_config(changed("text_config.sliding_window", 4096))


def test_quantization_declared_twice_is_refused() -> None:
    config = changed("quantization_config", {"quant_method": "modelopt_mixed"})
    with pytest.raises(ConfigError, match="stands at the top and in text_config"):
        ModelSpec.from_config(config)


def test_another_name_with_the_same_fields_just_works() -> None:
    config = deepcopy(kimi_k3_config())
    config["model_type"] = "kimi_k31"
    config["architectures"] = ["KimiK31ForConditionalGeneration"]
    config["text_config"]["_name_or_path"] = "moonshotai/Kimi-K3.1"
    config["text_config"]["num_hidden_layers"] = 97
    linear = config["text_config"]["linear_attn_config"]
    linear["kda_layers"] += [94, 95, 96]
    linear["full_attn_layers"] += [97]
    config["transformers_version"] = "5.1.0"
    spec = ModelSpec.from_config(config)
    assert len(spec.layers) == 97
    assert [layer.attention for layer in spec.layers[-4:]] == ["kda", "kda", "kda", "mla"]


def test_older_spelling_of_dtype() -> None:
    config = deepcopy(kimi_k3_config())
    config["torch_dtype"] = config.pop("dtype")
    config["text_config"]["torch_dtype"] = config["text_config"].pop("dtype")
    assert ModelSpec.from_config(config) == ModelSpec.from_config(kimi_k3_config())


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "null", '{"text_config": 3}', '{"model_type": "llama"}'])
def test_broken_files_are_config_errors(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        ModelSpec.from_config(tmp_path)
    assert "config.json" in str(caught.value)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Point at a folder"):
        ModelSpec.from_config(tmp_path)


def test_path_and_mapping_agree(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(kimi_k3_config()))
    assert ModelSpec.from_config(tmp_path / "config.json") == ModelSpec.from_config(kimi_k3_config())
