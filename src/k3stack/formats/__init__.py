"""Numbers as bytes: E2M1, E8M0, E4M3, BF16, and the MXFP4, NVFP4 and FP8 128x128 layouts. Bit-exact, NumPy only.

Every `encode` rounds to nearest, ties to even, and says what it does with NaN and infinity; every `decode` accepts all
byte values. Sources: OCP Microscaling Formats 1.0 (E2M1, E8M0), OCP FP8 1.0 (E4M3), the layouts as K3's checkpoints
store them.
"""

from k3stack.formats import bf16, e2m1, e4m3, e8m0, fp8_block, mxfp4, nvfp4

__all__ = ["bf16", "e2m1", "e4m3", "e8m0", "fp8_block", "mxfp4", "nvfp4"]
