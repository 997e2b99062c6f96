"""Run by a Python that has SGLang 0.5.23: read a checkpoint's quantisation config and look up module names in it.

    PYTHON parse_in_sglang.py FOLDER NAME...

Prints one JSON object: for config.json and hf_quant_config.json, the algorithm SGLang resolves for each name.
"""

import json
import sys
from pathlib import Path

from sglang.srt.layers.quantization.modelopt_quant import ModelOptMixedPrecisionConfig


def main() -> None:
    """Parse both files and resolve the names."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    found = {"method": ModelOptMixedPrecisionConfig.override_quantization_method(config, None)}
    for file, content in (
        ("config.json", config),
        ("hf_quant_config.json", json.loads((folder / "hf_quant_config.json").read_text())),
    ):
        parsed = ModelOptMixedPrecisionConfig.from_config(content)
        found[file] = {name: parsed.resolve_quant_algo(name) for name in names}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
