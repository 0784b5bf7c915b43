"""Runners of op_tensor.cu and activation_backward.cu, and the choice of their kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_TYPES,
    index_type,
    instance,
    is_small,
    real_type,
)
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.cuda_structs import constant, fill_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of, is_aligned
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.memory.axes import MergedAxes, merged_axes
from ooc_cudnn.operations.core.activation_modes import needs_x
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward, PreluBackward
from ooc_cudnn.operations.elementwise.binary import OpTensor, wide_shape

#: Packs of a thread, all loaded before the first is used. An activation's gradient loads up to
#: three operands for each and needs the registers.
UNROLL_OP_TENSOR = 4
UNROLL_ACTIVATION = 2


#: Of the struct `Walk`.
OUTER_AXES = constant("strided.cuh", "OUTER_AXES")


def is_packable(
    axes: MergedAxes, operand: int, view: DeviceView, count: int, beside: Sequence[int] = ()
) -> bool:
    """True if every pack of `count` elements of the operand is one aligned access (or several).

    `beside` are steps that a kernel takes beside those of the walk.
    """
    steps = (*axes.strides[operand], *beside)
    return axes.inner_strides[operand] == 1 and is_aligned(view, steps, count)


def walk_fields(axes: MergedAxes, count: int) -> dict[str, Any]:
    """The struct `Walk` of strided.cuh, for packs of `count` elements."""
    missing = OUTER_AXES - len(axes.sizes)
    row_packs = -(-axes.inner // count)
    return {
        "size": (1,) * missing + axes.sizes,
        "inner": axes.inner,
        "stride": [(0,) * missing + steps for steps in axes.strides],
        "inner_stride": axes.inner_strides,
        "first": missing,
        "row_packs": row_packs,
        "packs": row_packs * math.prod(axes.sizes),
    }


def walk_struct(walk: dict[str, Any], *, small: bool) -> np.ndarray:
    """Fill the struct `Walk`."""
    kind = f"Walk<{index_type(small=small)}, {len(walk['inner_stride'])}>"
    return fill_struct("strided.cuh", kind, **walk)


def pack_count(axes: MergedAxes, views: Sequence[DeviceView | None]) -> int:
    """Elements of a pack: the widest access that suits every view (operands from the first on)."""
    present = [(operand, view) for operand, view in enumerate(views) if view is not None]
    count = WIDEST_ACCESS_BYTES // present[0][1].item_bytes
    while count > 1 and (
        count > axes.inner
        or not all(is_packable(axes, operand, view, count) for operand, view in present)
    ):
        count //= 2
    return count


def broadcast(view: DeviceView, axes: int) -> DeviceView:
    """An operand with so many axes; it does not step along those of extent 1."""
    shape = wide_shape(view.shape, axes)
    steps = (0, *view.strides, *[0] * (axes - 2)) if len(view.shape) == 1 else view.strides
    strides = tuple(0 if extent == 1 else step for extent, step in zip(shape, steps, strict=True))
    return DeviceView(view.pointer, view.dtype, shape, strides)


def plan_op_tensor(
    operation: OpTensor, a: DeviceView | None, b: DeviceView, c: DeviceView
) -> Launch | None:
    """Choose the kernel of c = op(alpha_a * a, alpha_b * b); None if there is nothing to do."""
    check("c", c, operation.shape, operation.dtype)
    b = broadcast(check("b", b, operation.b_shape, operation.dtype), len(c.shape))
    if a is not None:
        check("a", a, operation.shape, operation.dtype)
    if c.size == 0:
        return None
    whole = [c.strides, a.strides if a else c.strides]
    axes = merged_axes(c.shape, [*whole, b.strides])
    count = pack_count(axes, [c, a])
    flat = merged_axes(c.shape, whole)
    flat_count = 1 if flat.sizes else pack_count(flat, [c, a])
    walked = count  # elements of a step of the walk
    if flat_count > count and axes.inner > 1:
        spread, count, walked = "CARRIED", flat_count, 1
    elif axes.inner_strides[2] == 0:
        spread = "CONSTANT"
    else:
        spread = "PACKED" if count > 1 and is_packable(axes, 2, b, count) else "STRIDED"
    small = is_small([a, b, c], c.size)
    types = index_type(small=small), CUDA_TYPES[operation.dtype]
    template = (operation.op.upper(), a is not None, spread, count, UNROLL_OP_TENSOR)
    walk = walk_fields(axes, walked)
    packs = -(-walk["packs"] * walked // count)
    return Launch(
        "op_tensor.cu",
        instance("op_tensor", *types, *template),
        grid_of(packs, BLOCK_THREADS * UNROLL_OP_TENSOR),
        walk_struct(walk, small=small),
    )


def op_tensor(operation: OpTensor, call: Call) -> None:
    """Run `OpTensor` on (a, b). With op "add" and alpha_a 0, a is not read."""
    (a, b), output = call.inputs, call.output
    if operation.op == "add" and operation.alpha_a == 0:
        a = None
    elif a is None:
        raise ValueError(f"a is absent, which op {operation.op!r} with alpha_a needs")
    if b is None:
        raise ValueError("b is absent")
    real = real_type(operation.dtype)
    launch(
        operation,
        (output, a, b),
        lambda: plan_op_tensor(operation, a, b, output),
        (real(operation.alpha_a), real(operation.alpha_b)),
        call.stream,
    )


def plan_activation_backward(
    operation: ActivationBackward,
    y: DeviceView,
    dy: DeviceView,
    x: DeviceView | None,
    dx: DeviceView,
) -> Launch | None:
    """Choose the kernel of dx = dy * f'(x); None if there is nothing to do."""
    for name, view in (("dx", dx), ("y", y), ("dy", dy), ("x", x)):
        if view is not None:
            check(name, view, operation.shape, operation.dtype)
    return _plan_gradient(operation, operation.mode.upper(), [dx, y, dy, x], [dx, y, dy, x])


def _plan_gradient(
    operation: ActivationBackward | PreluBackward,
    mode: str,
    views: Sequence[DeviceView | None],
    packed: Sequence[DeviceView | None],
) -> Launch | None:
    """A kernel of activation_backward.cu on (dx, y, dy, x), of which some are read in packs."""
    dx = views[0]
    assert dx is not None
    if dx.size == 0:
        return None
    axes = merged_axes(dx.shape, [(view or dx).strides for view in views])
    count = pack_count(axes, packed)
    small = is_small(views, dx.size)
    types = index_type(small=small), CUDA_TYPES[operation.dtype]
    template = (mode, views[3] is not None, count, UNROLL_ACTIVATION)
    walk = walk_fields(axes, count)
    return Launch(
        "activation_backward.cu",
        instance("activation_backward", *types, *template),
        grid_of(walk["packs"], BLOCK_THREADS * UNROLL_ACTIVATION),
        walk_struct(walk, small=small),
    )


def activation_backward(operation: ActivationBackward, call: Call) -> None:
    """Run `ActivationBackward` on (y, dy, x); x is not read where y tells the slope."""
    (y, dy, *rest), output = call.inputs, call.output
    x = rest[0] if rest and needs_x(operation.mode, operation.coef) else None
    if y is None or dy is None or (x is None and needs_x(operation.mode, operation.coef)):
        raise ValueError(f"{operation.mode} with coef {operation.coef} lacks one of y, dy and x")
    real = real_type(operation.dtype)
    launch(
        operation,
        (output, y, dy, x),
        lambda: plan_activation_backward(operation, y, dy, x, output),
        (real(operation.coef),),
        call.stream,
    )


def plan_prelu_backward(
    operation: PreluBackward, x: DeviceView, dy: DeviceView, w: DeviceView, dx: DeviceView
) -> Launch | None:
    """Choose the kernel of dx = dy * slope(x, w); None if there is nothing to do."""
    for name, view in (("dx", dx), ("x", x), ("dy", dy)):
        check(name, view, operation.shape, operation.dtype)
    w = broadcast(check("w", w, operation.w_shape, operation.dtype), len(dx.shape))
    return _plan_gradient(operation, "PRELU", [dx, x, dy, w], [dx, x, dy])


def prelu_backward(operation: PreluBackward, call: Call) -> None:
    """Run `PreluBackward` on (x, dy, w)."""
    (x, dy, w), output = call.inputs, call.output
    if x is None or dy is None or w is None:
        raise ValueError("prelu_backward lacks one of x, dy and w")
    launch(
        operation,
        (output, x, dy, w),
        lambda: plan_prelu_backward(operation, x, dy, w, output),
        (real_type(operation.dtype)(0.0),),
        call.stream,
    )


RUNNERS: dict[type, Runner] = {
    OpTensor: op_tensor,
    ActivationBackward: activation_backward,
    PreluBackward: prelu_backward,
}
