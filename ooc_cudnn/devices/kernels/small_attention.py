"""Attention of few queries and keys on a card: attention_small.cu has a matrix in a block.

So windows are computed, whose scores would take longer to write and read than to make. Of other
attention see `attention`; cuDNN has what has no bias first (`devices.cuda.cudnn_attention`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, instance, real_type
from ooc_cudnn.devices.kernels.attention_operands import Operands, bias_type, packed_rows
from ooc_cudnn.devices.kernels.checks import check_packed, workspace_pointer
from ooc_cudnn.devices.kernels.cuda_structs import constant, fill_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.operations.attention.launches import Attention, AttentionBackward, is_on_chip

SOURCE = "attention_small.cu"
THREADS = constant(SOURCE, "SMALL_THREADS")
#: Blocks of a launch, at the most for one bias: several for each multiprocessor of large cards.
BLOCKS = 1024
#: Tensor cores multiply so many elements of a depth at a time.
PRODUCT_DEPTH = 16


def is_small(forward: Attention, *, bias_gradient: bool = False) -> bool:
    """True if a block can hold a matrix of queries, and one of keys."""
    rows = forward.q_shape[3], forward.k_shape[3]
    of_bias = forward.bias_shape[2:] if forward.bias_shape is not None else ()
    return (
        is_on_chip(forward.dtype, rows, (forward.depth, forward.v_depth))
        and forward.group == 1
        and (not bias_gradient or of_bias == rows)
    )


def workspace_bytes(operation: AttentionBackward) -> int:
    """Bytes for what blocks add up of a bias's gradient."""
    if not operation.bias_gradient:
        return 0
    kinds, _, slices = _shares(operation.forward)
    return kinds * slices * math.prod(operation.forward.scores_shape[2:]) * 4


def _shares(forward: Attention) -> tuple[int, int, int]:
    """Biases, matrices that share one, and the blocks that these are spread over."""
    n, heads = forward.scores_shape[:2]
    bias = forward.bias_shape or (1, 1, 1, 1)
    kinds = bias[0] * bias[1]
    members = n * heads // kinds
    return kinds, members, min(members, -(-BLOCKS // kinds))


class _Run:
    """One launch: its operands, and what kernels are told."""

    def __init__(self, forward: Attention, call: Call) -> None:
        self.forward, self.call = forward, call
        self.read = Operands.of(forward, call)
        self.kinds, self.members, self.slices = _shares(forward)

    def numbers(
        self,
        moved: Sequence[DeviceView | None] = (),
        *,
        wide: bool = False,
        wide_keys: bool = False,
    ) -> dict[str, int]:
        """Fields of the kernels' struct; `moved` is what may be moved in wide accesses."""
        forward = self.forward
        images, of_heads, *_ = forward.bias_shape or (1, 1)
        return {
            "members": self.members,
            "slices": self.slices,
            "bias_images": images,
            "bias_heads": of_heads,
            "heads": forward.q_shape[2],
            **self.read.bias_steps,
            "queries": forward.q_shape[3],
            "keys": forward.k_shape[3],
            "depth": forward.depth,
            "first": forward.first,
            "causal": int(forward.causal),
            "aligned": int(all(each.pointer % WIDEST_ACCESS_BYTES == 0 for each in moved if each)),
            "wide": int(wide),
            "wide_keys": int(wide_keys),
        }

    def launch(
        self,
        kernel: str,
        views: Sequence[DeviceView | None],
        moved: Sequence[DeviceView | None],
        *arguments: bool,
        wide: bool,
        wide_keys: bool = False,
    ) -> None:
        """Launch a kernel that has a matrix in a block."""
        forward = self.forward

        def plan() -> Launch | None:
            if not self.members:  # no image
                return None
            numbers = self.numbers(moved, wide=wide, wide_keys=wide_keys)
            depth = -(-forward.depth // PRODUCT_DEPTH) * PRODUCT_DEPTH
            return Launch(
                SOURCE,
                instance(kernel, CUDA_TYPES[forward.dtype], bias_type(forward), depth, *arguments),
                (self.kinds * self.slices,),
                fill_struct(SOURCE, "SmallAttention", **numbers),
                (THREADS, 1),
            )

        scale = real_type(forward.dtype)(forward.scale)
        launch((forward, kernel, self.slices, *arguments), views, plan, (scale,), self.call.stream)


def small_attention(operation: Attention, call: Call) -> None:
    """Run `Attention` on (q, k, v, bias, lse)."""
    run = _Run(operation, call)
    lse = packed_rows("lse", call.inputs[4], operation.lse_shape, operation.lse_dtype)
    y = packed_rows("y", call.output, operation.y_shape, call.output.dtype)
    views = (y, *run.read, lse)
    run.launch("small_attention", views, views[:4], wide=y.dtype != operation.dtype)


def small_attention_backward(operation: AttentionBackward, call: Call) -> None:
    """Run `AttentionBackward` on (q, k, v, bias, y, dy, lse, dk, dv, dbias)."""
    forward = operation.forward
    run = _Run(forward, call)
    dy = packed_rows("dy", call.inputs[5], forward.y_shape, forward.dtype)
    lse = packed_rows("lse", call.inputs[6], forward.lse_shape, forward.lse_dtype)
    dq = packed_rows("dq", call.output, forward.q_shape, call.output.dtype)
    dk = packed_rows("dk", call.inputs[7], forward.k_shape)
    dv = packed_rows("dv", call.inputs[8], forward.v_shape, dk.dtype)
    parts = None
    if operation.bias_gradient:
        pointer = workspace_pointer(call.workspace, workspace_bytes(operation))
        parts = DeviceView(pointer, forward.lse_dtype, (1,), (1,))
    views = (dq, dk, dv, parts, *run.read, lse, dy)
    moved = (dq, dk, dv, run.read.q, run.read.k, run.read.v, dy)
    wide = [each.dtype != forward.dtype for each in (dq, dk)]
    run.launch(
        "small_attention_gradient", views, moved, operation.bias_gradient,
        wide=wide[0], wide_keys=wide[1],
    )  # fmt: skip
    if parts is not None:
        _sum_parts(run, operation, parts)


def _sum_parts(run: _Run, operation: AttentionBackward, parts: DeviceView) -> None:
    shape, view = operation.forward.bias_shape, run.call.inputs[9]
    assert shape is not None
    assert view is not None
    dbias = check_packed("dbias", view, shape, view.dtype)

    def plan() -> Launch:
        return Launch(
            SOURCE,
            instance("small_bias_sums", CUDA_TYPES[dbias.dtype]),
            grid_of(math.prod(shape), BLOCK_THREADS),
            fill_struct(SOURCE, "SmallAttention", **run.numbers()),
        )

    launch((operation, run.slices), (dbias, parts), plan, (), run.call.stream)
