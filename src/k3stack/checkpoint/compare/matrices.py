"""Comparing one weight matrix in two checkpoints: equal, converted by a known rule, in other codes, or different."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from k3stack.checkpoint.compare.store import Store
from k3stack.checkpoint.convert.attention import AttentionScale, quantize_attention
from k3stack.checkpoint.convert.experts import recode, scale_2, shared_top, sharing
from k3stack.formats import nvfp4
from k3stack.spec.schemes import Encoding

__all__ = ["Comparison", "Match", "compare_matrix"]

ROWS = 512
"""Rows decoded at a time; a multiple of 128."""


class Match(StrEnum):
    """How a tensor of one checkpoint stands to that of the other."""

    EQUAL = "equal"
    CONVERTED = "converted by rule"
    OTHER_CODES = "equal in other codes"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for one matrix or tensor.

    Attributes:
        match: EQUAL: every value. CONVERTED: not every value, but exactly what converting A gives. OTHER_CODES: every
            value, though not the bytes that converting A gives (-0 for +0, the scale of a block of zeros).
        blocks, differing: blocks of 16 (of 128 x 128 for FP8, of 1 for plain tensors), and those with another value.
        max_error: largest absolute difference.
        error, weight: sums of squared differences and of squared values of A.
        note: what is wrong beside the values, in words.
    """

    match: Match
    blocks: int = 1
    differing: int = 0
    max_error: float = 0.0
    error: float = 0.0
    weight: float = 0.0
    note: str = ""


def compare_matrix(a: Store, b: Store, module: str, how_a: Encoding, how_b: Encoding) -> Comparison:
    """Compare the matrix `module`, stored as `how_a` in A and as `how_b` in B."""
    if how_a is how_b and _same_bytes(a, b, module, how_a):
        return Comparison(Match.EQUAL, _blocks(a, module, how_a))
    if how_a is Encoding.MXFP4 and how_b in _NVFP4:
        return _converted_expert(a, b, module, how_b)
    if how_b is Encoding.MXFP4 and how_a in _NVFP4:
        return _by_value(a, b, module, how_a, how_b)
    if how_a is Encoding.BF16 and how_b is Encoding.FP8_BLOCK_MODELOPT:
        return _rounded_attention(a, b, module)
    return _by_value(a, b, module, how_a, how_b)


_NVFP4 = (Encoding.NVFP4_MODELOPT, Encoding.NVFP4_CT)
_WEIGHT = {Encoding.MXFP4: "weight_packed", Encoding.NVFP4_CT: "weight_packed"}


def _weight_name(module: str, encoding: Encoding) -> str:
    return f"{module}.{_WEIGHT.get(encoding, 'weight')}"


def _shape(store: Store, module: str, encoding: Encoding) -> tuple[int, int]:
    out, into = store.raw(_weight_name(module, encoding)).shape
    return out, into * (2 if encoding in (Encoding.MXFP4, *_NVFP4) else 1)


def _blocks(store: Store, module: str, encoding: Encoding) -> int:
    out, into = _shape(store, module, encoding)
    if encoding in (Encoding.FP8_BLOCK_MODELOPT, Encoding.FP8_BLOCK_CT):
        return -(-out // 128) * -(-into // 128)
    return out * -(-into // 16)


def _same_bytes(a: Store, b: Store, module: str, encoding: Encoding) -> bool:
    names = [f"{module}.{part.suffix}" for part in encoding.parts(*_shape(a, module, encoding))]
    return all(a.bytes_of(name) == b.bytes_of(name) for name in names)


def _converted_expert(a: Store, b: Store, module: str, how_b: Encoding) -> Comparison:
    """MXFP4 against NVFP4: what converting gives, byte for byte; decoded only where it is something else."""
    packed, scale = a.raw(f"{module}.weight_packed"), a.raw(f"{module}.weight_scale")
    top = shared_top(*(a.raw(f"{mate}.weight_scale") for mate in sharing(module)))
    made = recode(packed, scale, top)
    same_codes = a.bytes_of(f"{module}.weight_packed") if made.packed is None else made.packed.tobytes()
    note = _input_scale_note(b, module, how_b)
    as_converted = (
        b.second_scale(module, how_b) == float(scale_2(top))
        and b.bytes_of(f"{module}.weight_scale") == made.scale.tobytes()
        and b.bytes_of(_weight_name(module, how_b)) == same_codes
    )
    if as_converted and made.blocks.lossless == made.blocks.total:
        match = Match.EQUAL if not note else Match.DIFFERENT
        return Comparison(match, made.blocks.total * 2, note=note)
    by_value = _by_value(a, b, module, Encoding.MXFP4, how_b)
    if note:
        match = Match.DIFFERENT
    elif as_converted:
        match = Match.CONVERTED
    else:
        codes = packed if made.packed is None else made.packed
        given = nvfp4.dequantize(codes, made.scale, scale_2(top))
        same = np.array_equal(given, b.rows(module, how_b, 0, given.shape[0]))
        match = Match.OTHER_CODES if same else Match.DIFFERENT
    return _relabelled(by_value, match, note)


def _input_scale_note(store: Store, module: str, encoding: Encoding) -> str:
    name = "input_scale" if encoding is Encoding.NVFP4_MODELOPT else "input_global_scale"
    value = store.number(f"{module}.{name}")
    return "" if value == 1.0 else f"{name} is {value!r}, not 1.0"


def _rounded_attention(a: Store, b: Store, module: str) -> Comparison:
    """BF16 against block FP8: never equal, but exactly what one of the rounding rules gives, or different."""
    words, weight = a.raw(f"{module}.weight"), b.bytes_of(f"{module}.weight")
    scale = b.bytes_of(f"{module}.weight_scale")
    by_value = _by_value(a, b, module, Encoding.BF16, Encoding.FP8_BLOCK_MODELOPT)
    for how in AttentionScale:
        made = quantize_attention(words, how)
        if made.scale.tobytes() == scale and made.weight.tobytes() == weight:
            match = Match.EQUAL if by_value.differing == 0 else Match.CONVERTED
            return _relabelled(by_value, match, f"rounded as {how}")
    return _relabelled(by_value, Match.OTHER_CODES if by_value.differing == 0 else Match.DIFFERENT, "")


def _by_value(a: Store, b: Store, module: str, how_a: Encoding, how_b: Encoding) -> Comparison:
    out, into = _shape(a, module, how_a)
    blocks = differing = 0
    error = weight = worst = 0.0
    for begin in range(0, out, ROWS):
        end = min(out, begin + ROWS)
        left, right = a.rows(module, how_a, begin, end), b.rows(module, how_b, begin, end)
        wrong = ~((left == right) | (np.isnan(left) & np.isnan(right)))
        by_block = np.logical_or.reduceat(wrong, np.arange(0, into, 16), axis=1)
        blocks += by_block.size
        differing += int(by_block.sum())
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.where(wrong, right - left, 0.0)
            error += float(np.square(difference).sum())
            weight += float(np.square(left).sum())
            worst = max(worst, float(np.abs(difference).max(initial=0.0)))
    match = Match.DIFFERENT if differing else Match.OTHER_CODES if how_a is how_b else Match.EQUAL
    return Comparison(match, blocks, differing, worst, error, weight)


def _relabelled(found: Comparison, match: Match, note: str) -> Comparison:
    return Comparison(match, found.blocks, found.differing, found.max_error, found.error, found.weight, note)
