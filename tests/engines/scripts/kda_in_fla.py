"""Run by a Python that has fla-core 0.6.0: its own PyTorch forms of Kimi Delta Attention, on given inputs.

PYTHON kda_in_fla.py INPUT.npz OUTPUT.npz
"""

import sys

import numpy as np
import torch
from fla.ops.kda.gate import naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_chunk_kda, naive_recurrent_kda


def main() -> None:
    source, target = sys.argv[1:]
    given = {name: torch.from_numpy(value) for name, value in np.load(source).items()}
    made = {"gate": naive_kda_lowerbound_gate(given["z"], given["A_log"], given["dt_bias"], -5.0)}
    tokens = [given[name][None] for name in ("q", "k", "v", "g", "beta")]
    for name, form in (("recurrent", naive_recurrent_kda), ("chunk", naive_chunk_kda)):
        outputs, state = form(*tokens, scale=1.0, initial_state=given["S"][None], output_final_state=True)
        made[f"{name}_outputs"], made[f"{name}_state"] = outputs[0], state[0]
    np.savez(target, **{name: value.numpy() for name, value in made.items()})


if __name__ == "__main__":
    main()
