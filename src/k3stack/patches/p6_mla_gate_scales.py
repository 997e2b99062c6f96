"""Patch 6: the output gate of every MLA layer is read with the wrong block scales (vLLM 0.29.0 and later).

vLLM packs the rows of `fused_qkv_a_g_proj` without gaps: q_a [0, 1536), kv_a [1536, 2112), gate from row 2112.
Row 2112 is 16.5 blocks of 128, but the scales are loaded one block row after another, with kv_a's last half block
taking a whole row. A block kernel scales row n by scale row n // 128, so the first half of each gate block gets
the scales of the block before it. Nothing fails: the number of scale rows happens to fit.

The repair gives every shard a start on the block grid: 64 zero rows behind kv_a after loading, and those 64
columns dropped from the output. Weights and scales keep their bytes. Where the zero rows go is the only change in
work: vLLM already adds 64 zero rows at the end of this matrix, and already copies the output once to cut them off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .edits import Edits, find, require_parameters
from .patch import CannotApplyError, Finding, Patch, Pull, Span, State
from .projections import SMALL, Geometry, fused_names

__all__ = ["MlaGateScales", "RowGrid", "put_on_grid"]

LINEAR = "vllm.model_executor.layers.linear"
CLASS = "KimiK3MergedQKVGateLinear"


@dataclass(frozen=True, slots=True)
class RowGrid:
    """Where each shard's rows start once every shard starts on a block boundary.

    Args:
        widths: rows of each shard, in order, on this rank.
        block: rows of one scale block.
    """

    widths: tuple[int, ...]
    block: int

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each shard."""
        starts = [0]
        for width in self.widths[:-1]:
            starts.append(starts[-1] + -(-width // self.block) * self.block)
        return tuple(starts)

    @property
    def rows(self) -> int:
        """All rows, dead ones included."""
        return self.starts[-1] + -(-self.widths[-1] // self.block) * self.block

    @property
    def live(self) -> tuple[tuple[int, int], ...]:
        """The row ranges [from, to) that hold weights, neighbours joined."""
        ranges: list[tuple[int, int]] = []
        for start, width in zip(self.starts, self.widths, strict=True):
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], start + width)
            else:
                ranges.append((start, start + width))
        return tuple(ranges)

    @property
    def packed_is_aligned(self) -> bool:
        """Whether rows packed without gaps would start every shard on a block boundary anyway."""
        return len(self.live) == 1

    def scale_starts(self) -> tuple[int, ...]:
        """The scale row at which vLLM's loader puts each shard: its packed first row, in blocks, rounded up."""
        starts, row = [], 0
        for width in self.widths:
            starts.append(-(-row // self.block))
            row += width
        return tuple(starts)

    def check_scales(self, scale_rows: int) -> None:
        """Check that the loader's scale rows are this grid's.

        Raises:
            ValueError: they are not; such a layer cannot be served correctly, with or without this patch.
        """
        mine = tuple(start // self.block for start in self.starts)
        if self.scale_starts() != mine or scale_rows * self.block < self.rows:
            raise ValueError(
                f"shards of {self.widths} rows need scale rows {mine}, vLLM loads them at {self.scale_starts()} "
                f"of {scale_rows}: block-FP8 weights of these sizes would be scaled wrongly"
            )


class MlaGateScales(Patch):
    """Rows of the MLA gate on the block grid."""

    number: ClassVar[int] = 6
    switch: ClassVar[str] = "KIMI_K3_FIX_MLA_GATE_SCALES"
    title: ClassVar[str] = "MLA gate block scales"
    line: ClassVar[str] = (
        "Kimi-K3 runtime patch: aligned the MLA output gate with its FP8 block scales in fused_qkv_a_g_proj"
    )
    knowledge: ClassVar[tuple[Span, ...]] = (
        Span("0.27.0", "0.28.0", State.NOT_NEEDED, "the gate is a projection of its own"),
        Span("0.29.0", "0.33.0", State.APPLIED, "vllm#54015 merged the gate into a block-FP8 projection"),
    )
    upstream: ClassVar[tuple[Pull, ...]] = (Pull("vllm#54015", "merged, brought it"), Pull("vllm#52997", "open"))
    retires: ClassVar[str] = "when a release starts the gate on a block boundary, or keeps it apart; none does yet"

    def needed(self) -> Finding:
        """Load a small block-FP8 gate through vLLM's loaders and compare it with the checkpoint."""
        if not any({"kv_a_proj_with_mqa", "g_proj"} <= set(names) for names in fused_names().values()):
            return Finding(False, "the gate is a projection of its own")
        return self.compare(SMALL, (1, 2, 4))

    def compare(self, size: Geometry, degrees: Sequence[int]) -> Finding:
        """The finding at a geometry, for the last rank of each tensor-parallel degree."""
        from .bench import bench
        from .projections import gate

        for tp in degrees:
            with bench(tp, tp - 1):
                wrong = gate(size, tp, tp - 1)
            if wrong:
                return Finding(True, f"TP {tp}: {wrong[0]}")
        return Finding(False, "gate rows have their own scales")

    def apply(self, edits: Edits) -> None:
        """Wrap the constructor of the merged projection: one class, so no copy of it can be missed."""
        cls = find(LINEAR, CLASS)
        for name in ("tp_size", "output_sizes"):
            require_attribute_use(cls, name)
        require_parameters(cls.__init__, "q_lora_rank", "kv_lora_rank")
        original = cls.__init__

        def build(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            put_on_grid(self)

        edits.replace(cls, "__init__", build)


def require_attribute_use(cls: Any, name: str) -> None:
    """Check that a layer class still keeps the attribute `name` that `put_on_grid` reads.

    Raises:
        CannotApplyError: none of its constructors mentions it.
    """
    for base in cls.__mro__:
        code = getattr(vars(base).get("__init__"), "__code__", None)
        if code is not None and name in code.co_names:
            return
    raise CannotApplyError(f"{cls.__module__}.{cls.__name__} no longer sets {name}")


def put_on_grid(layer: Any) -> None:
    """Make a freshly built layer insert its dead rows after loading and drop them from its output.

    Layers without block scales (BF16, or scaled per tensor or per row) stay as they are.
    """
    block = getattr(layer, "weight_block_size", None)
    scale = getattr(layer, "weight_scale", None)
    scale = getattr(layer, "weight_scale_inv", None) if scale is None else scale
    if block is None or scale is None or block[0] == 1:
        return
    grid = RowGrid(tuple(size // layer.tp_size for size in layer.output_sizes), block[0])
    if grid.packed_is_aligned:
        return
    grid.check_scales(scale.shape[0])
    method = layer.quant_method
    if hasattr(method, "output_padding"):  # 0.29 pads and trims inside the method; the grid does both here
        method.output_padding, method.logical_output_size = 0, grid.rows
    method.process_weights_after_loading = _inserting(method.process_weights_after_loading, grid)
    method.apply = _dropping(method.apply, grid)


def _inserting(process: Callable[..., Any], grid: RowGrid) -> Callable[..., Any]:
    def process_weights_after_loading(layer: Any) -> Any:
        weight = layer.weight.data
        if weight.shape[0] == sum(grid.widths):
            spread = weight.new_zeros(grid.rows, weight.shape[1])
            row = 0
            for start, width in zip(grid.starts, grid.widths, strict=True):
                spread[start : start + width].copy_(weight[row : row + width])
                row += width
            find("vllm.model_executor.utils", "replace_parameter")(layer, "weight", spread)
        return process(layer)

    return process_weights_after_loading


def _dropping(apply: Callable[..., Any], grid: RowGrid) -> Callable[..., Any]:
    def apply_and_drop(layer: Any, x: Any, bias: Any = None) -> Any:
        import torch

        output = apply(layer, x, None)
        output = torch.cat([output[..., start:stop] for start, stop in grid.live], dim=-1)
        return output if bias is None else output.add_(bias)

    return apply_and_drop
