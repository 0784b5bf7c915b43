"""Attention on a card: products by cuBLAS, and attention.cu for rows of scores between them.

Scores of some heads at a time, or of some queries of one head, lie in the workspace: few enough
that a card's cache holds them from one launch to the next. Heads that share keys lie one after the
other in memory, so they are one matrix of queries: all operands are packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.devices.kernels import products
from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, instance, real_type
from ooc_cudnn.devices.kernels.attention_operands import Operands, bias_type, packed_rows
from ooc_cudnn.devices.kernels.checks import check, check_packed, workspace_pointer
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.kernels.pointwise import pointwise
from ooc_cudnn.devices.kernels.products import Matrices
from ooc_cudnn.devices.kernels.relayout import relayout
from ooc_cudnn.devices.kernels.small_attention import (
    is_small,
    small_attention,
    small_attention_backward,
    workspace_bytes,
)
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.operations.attention.heads import Heads
from ooc_cudnn.operations.attention.launches import Attention, AttentionBackward
from ooc_cudnn.tensor import ITEM_BYTES, packed_strides

SOURCE = "attention.cu"
#: Scores that are made at a time: 16 MiB of float32.
SCORES_AT_ONCE = 2**22
#: Of one product: the most that grids of cuBLAS's kernels have along an axis.
MATRICES_AT_ONCE = 2**16 - 1
#: Rows of scores begin at a multiple of so many elements: as tensor cores take them.
ROW_ELEMENTS = 8
#: Keys from which a block has a row, not a warp.
LONG_ROW = 1024
#: Elements of a bias's gradient that a block sums up: `ELEMENTS` in the kernel.
BIAS_ELEMENTS = 32


class _Part(NamedTuple):
    """Some matrices of queries with all of their rows, or some rows of one."""

    first_matrix: int
    matrices: int
    first_row: int
    rows: int


class _Sizes(NamedTuple):
    """Numbers and extents of matrices of an operation."""

    matrices: int
    rows: int
    keys: int
    depth: int
    v_depth: int
    step: int

    @classmethod
    def of(cls, operation: Attention) -> _Sizes:
        n, depth, key_heads, keys = operation.k_shape
        rows = operation.group * operation.q_shape[3]
        step = -(-keys // ROW_ELEMENTS) * ROW_ELEMENTS
        return cls(n * key_heads, rows, keys, depth, operation.v_depth, step)

    @property
    def at_once(self) -> tuple[int, int]:
        """Matrices, and rows of each, whose scores are made at a time."""
        if self.rows * self.step > SCORES_AT_ONCE:
            return 1, max(SCORES_AT_ONCE // self.step, 1)
        most = min(SCORES_AT_ONCE // (self.rows * self.step), MATRICES_AT_ONCE)
        return min(most, self.matrices), self.rows

    @property
    def scores(self) -> int:
        """Elements of the scores that are made at a time."""
        matrices, rows = self.at_once
        return matrices * rows * self.step

    @property
    def are_rows_cut(self) -> bool:
        """True if the rows of a matrix come in several parts."""
        return self.at_once[1] < self.rows

    def parts(self) -> Iterator[_Part]:
        """All parts, in order."""
        matrices, rows = self.at_once
        for matrix in range(0, self.matrices, matrices):
            for row in range(0, self.rows, rows):
                count = min(matrices, self.matrices - matrix)
                yield _Part(matrix, count, row, min(rows, self.rows - row))


class _Workspace:
    """Buffers in the workspace, one behind the other: so many elements of a type each."""

    def __init__(self, sizes: dict[str, tuple[str, int]]) -> None:
        self.offsets, self.dtypes, self.nbytes = dict[str, int](), dict[str, str](), 0
        for name, (dtype, elements) in sizes.items():
            self.offsets[name], self.dtypes[name] = self.nbytes, dtype
            self.nbytes += align(elements * ITEM_BYTES[dtype])

    def pointers(self, workspace: tuple[int, int]) -> dict[str, int]:
        """Address of each operand."""
        start = workspace_pointer(workspace, self.nbytes)
        return {name: start + offset for name, offset in self.offsets.items()}


def _forward_buffers(operation: Attention) -> _Workspace:
    sizes, wide = _Sizes.of(operation), operation.lse_dtype
    buffers = {"scores": (wide, sizes.scores)}
    if operation.dtype != wide:
        buffers["weights"] = (operation.dtype, sizes.scores)
    return _Workspace(buffers)


def _backward_buffers(operation: AttentionBackward) -> _Workspace:
    forward = operation.forward
    sizes, wide = _Sizes.of(forward), forward.lse_dtype
    buffers = {"scores": (wide, sizes.scores), "dweights": (wide, sizes.scores)}
    if forward.dtype != wide:
        buffers |= dict.fromkeys(("weights", "dscores"), (forward.dtype, sizes.scores))
        if sizes.are_rows_cut:
            depths = {"dk": sizes.depth, "dv": sizes.v_depth}
            buffers |= {name: (wide, sizes.keys * depth) for name, depth in depths.items()}
    if operation.bias_gradient:
        assert forward.bias_shape is not None
        buffers["dbias"] = (wide, math.prod(forward.bias_shape))
    return _Workspace(buffers)


class _Run:
    """One launch: what its parts share."""

    def __init__(self, operation: Attention, call: Call, buffers: _Workspace) -> None:
        self.operation, self.call = operation, call
        self.sizes = _Sizes.of(operation)
        pointers = buffers.pointers(call.workspace)
        self.pointers = {"weights": pointers["scores"], **pointers}
        if "dweights" in pointers:
            self.pointers = {"dscores": pointers["dweights"], **self.pointers}
        self.read = Operands.of(operation, call)

    def scores(self, name: str, part: _Part, dtype: str = "") -> Matrices:
        """A buffer of scores as matrices."""
        sizes, wide = self.sizes, self.operation.lse_dtype
        apart = part.rows * sizes.step
        pointer = self.pointers[name]
        return Matrices(pointer, dtype or wide, part.rows, sizes.keys, sizes.step, apart)

    def queries(self, view: DeviceView, part: _Part) -> Matrices:
        """Rows of queries that a part has of a packed tensor."""
        depth = view.shape[3]
        start = (part.first_matrix * self.sizes.rows + part.first_row) * depth * view.item_bytes
        apart = self.sizes.rows * depth
        return Matrices(view.pointer + start, view.dtype, part.rows, depth, depth, apart)

    def keys(self, view: DeviceView, part: _Part) -> Matrices:
        """Keys, values or their gradients of a part's matrices."""
        rows, depth = view.shape[2:]
        start = part.first_matrix * rows * depth * view.item_bytes
        return Matrices(view.pointer + start, view.dtype, rows, depth, depth, rows * depth)

    def multiply(
        self, part: _Part, left: Matrices, right: Matrices, result: Matrices, **told: Any
    ) -> None:
        """Multiply the matrices of a part."""
        tf32, stream = self.operation.allow_tf32, self.call.stream
        told |= {"allow_tf32": tf32, "stream": stream}
        products.multiply(left, right, result, part.matrices, **told)

    def rows(self, part: _Part) -> dict[str, int]:
        """Fields of the kernels' struct."""
        operation, sizes = self.operation, self.sizes
        return {
            "rows": part.matrices * part.rows,
            "of_matrix": part.rows,
            "first_matrix": part.first_matrix,
            "first_row": part.first_row,
            "key_heads": operation.k_shape[2],
            "group": operation.group,
            "queries": operation.q_shape[3],
            "keys": sizes.keys,
            "step": sizes.step,
            "first": operation.first,
            "causal": int(operation.causal),
            **self.read.bias_steps,
            "depth": sizes.v_depth,
        }

    def launch_rows(self, kernel: str, part: _Part, views: list[DeviceView | None]) -> None:
        """Launch a kernel on rows of scores."""
        operation = self.operation

        def plan() -> Launch:
            lanes = BLOCK_THREADS if self.sizes.keys > LONG_ROW else 32
            return Launch(
                SOURCE,
                instance(kernel, CUDA_TYPES[operation.dtype], bias_type(operation), lanes),
                grid_of(part.matrices * part.rows, BLOCK_THREADS // lanes),
                fill_struct(SOURCE, "ScoreRows", **self.rows(part)),
            )

        scale = real_type(operation.dtype)(operation.scale)
        launch((operation, kernel, part), views, plan, (scale,), self.call.stream)

    def buffer(self, name: str, dtype: str) -> DeviceView:
        """A buffer of the workspace, whatever its extents: kernels know these."""
        return DeviceView(self.pointers[name], dtype, (1,), (1,))


def attention(operation: Attention, call: Call) -> None:
    """Run `Attention` on (q, k, v, bias, lse)."""
    if is_small(operation):
        small_attention(operation, call)
        return
    run = _Run(operation, call, _forward_buffers(operation))
    wide = operation.lse_dtype
    lse = packed_rows("lse", call.inputs[4], operation.lse_shape, wide)
    y = packed_rows("y", call.output, operation.y_shape, call.output.dtype)
    views = [run.buffer("weights", operation.dtype), run.buffer("scores", wide), run.read.bias, lse]
    for part in run.sizes.parts():
        q, k = run.queries(run.read.q, part), run.keys(run.read.k, part)
        run.multiply(part, q, k, run.scores("scores", part), turned=(False, True))
        run.launch_rows("attention_weights", part, views)
        weights = run.scores("weights", part, operation.dtype)
        run.multiply(part, weights, run.keys(run.read.v, part), run.queries(y, part))


def attention_backward(operation: AttentionBackward, call: Call) -> None:
    """Run `AttentionBackward` on (q, k, v, bias, y, dy, lse, dk, dv, dbias)."""
    forward = operation.forward
    if is_small(forward, bias_gradient=operation.bias_gradient):
        small_attention_backward(operation, call)
        return
    dtype, wide = forward.dtype, forward.lse_dtype
    run = _Run(forward, call, _backward_buffers(operation))
    y, dy = (
        packed_rows(name, view, forward.y_shape, dtype)
        for name, view in zip(("y", "dy"), call.inputs[4:6], strict=True)
    )
    lse = packed_rows("lse", call.inputs[6], forward.lse_shape, wide)
    dq = packed_rows("dq", call.output, forward.q_shape, call.output.dtype)
    dk = packed_rows("dk", call.inputs[7], forward.k_shape)
    dv = packed_rows("dv", call.inputs[8], forward.v_shape)
    views = [
        *(run.buffer(name, dtype) for name in ("weights", "dscores")),
        *(run.buffer(name, wide) for name in ("scores", "dweights")),
        *(run.read.bias, lse, y, dy),
    ]
    for part in run.sizes.parts():
        q, k, v = (
            run.queries(run.read.q, part),
            run.keys(run.read.k, part),
            run.keys(run.read.v, part),
        )
        rows = run.queries(dy, part)
        run.multiply(part, q, k, run.scores("scores", part), turned=(False, True))
        run.multiply(part, rows, v, run.scores("dweights", part), turned=(False, True))
        run.launch_rows("attention_gradient", part, views)
        weights, dscores = (run.scores(name, part, dtype) for name in ("weights", "dscores"))
        scaled = {"factor": forward.scale}
        run.multiply(part, dscores, k, run.queries(dq, part), **scaled)
        _add_rows(run, part, "dk", dk, (dscores, q), **scaled)
        _add_rows(run, part, "dv", dv, (weights, rows))
        if operation.bias_gradient:
            _sum_bias(run, operation, part, call)


def _add_rows(
    run: _Run, part: _Part, name: str, view: DeviceView, factors: tuple[Matrices, Matrices],
    **told: Any,
) -> None:  # fmt: skip
    """A gradient of keys or values: of rows that come in several parts a sum, rounded once."""
    target = run.keys(view, part)
    wide = run.operation.lse_dtype
    if run.sizes.are_rows_cut and view.dtype != wide:
        target = target._replace(pointer=run.pointers[name], dtype=wide)
    told |= {"turned": (True, False), "adds": part.first_row > 0}
    run.multiply(part, *factors, target, **told)
    if target.dtype != view.dtype and part.first_row + part.rows == run.sizes.rows:
        shape = (1, target.rows, target.columns)
        of_matrix = run.keys(view, part)
        strides = packed_strides(shape)
        pointwise(
            DeviceView(of_matrix.pointer, view.dtype, shape, strides),
            DeviceView(target.pointer, wide, shape, strides),
            stream=run.call.stream,
        )


def _sum_bias(run: _Run, operation: AttentionBackward, part: _Part, call: Call) -> None:
    """Add up what a part gives of the bias's gradient."""
    forward = operation.forward
    shape = forward.bias_shape
    assert shape is not None
    view = call.inputs[9]
    assert view is not None
    dbias = check_packed("dbias", view, shape, view.dtype)
    sums = run.buffer("dbias", forward.lse_dtype)
    dscores = run.buffer("dscores", forward.dtype)
    extents = dict(zip(("images", "heads", "queries", "keys"), shape, strict=True))

    def plan() -> Launch:
        types = CUDA_TYPES[forward.dtype], CUDA_TYPES[dbias.dtype]
        return Launch(
            SOURCE,
            instance("attention_bias_sums", *types),
            grid_of(math.prod(shape), BIAS_ELEMENTS),
            fill_struct(SOURCE, "BiasSums", rows=run.rows(part), **extents),
            (BIAS_ELEMENTS, BLOCK_THREADS // BIAS_ELEMENTS),
        )

    sizes = run.sizes
    first = part.first_matrix == 0 and part.first_row == 0
    is_last_row = part.first_row + part.rows == sizes.rows
    last = is_last_row and part.first_matrix + part.matrices == sizes.matrices
    launch(
        (operation, part),
        (dbias, sums, dscores),
        plan,
        (np.int32(first), np.int32(last)),
        call.stream,
    )


def heads(operation: Heads, call: Call) -> None:
    """Run `Heads` on (x,): a copy between views of one shape."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    y = check("y", call.output, operation.to, operation.dtype)
    relayout(_as_heads(y, operation), _as_heads(x, operation), call.stream)


def _as_heads(view: DeviceView, operation: Heads) -> DeviceView:
    """Channels or heads as (n, depth, heads, sites)."""
    if len(view.shape) == 4:
        return view
    n, of_heads, depth, sites = operation.common_shape
    image, channel, site = view.strides
    strides = (image, channel, depth * channel, site)
    return DeviceView(view.pointer, view.dtype, (n, depth, of_heads, sites), strides)


def _forward_bytes(operation: Attention) -> int:
    return 0 if is_small(operation) else _forward_buffers(operation).nbytes


def _backward_bytes(operation: AttentionBackward) -> int:
    if is_small(operation.forward, bias_gradient=operation.bias_gradient):
        return workspace_bytes(operation)
    return _backward_buffers(operation).nbytes


RUNNERS: dict[type, Runner] = {
    Attention: attention,
    AttentionBackward: attention_backward,
    Heads: heads,
}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    Attention: _forward_bytes,
    AttentionBackward: _backward_bytes,
}
