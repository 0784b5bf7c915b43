"""Runs resampling.cu, interpolation.cu and gather_*.cu, and chooses the former's kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ooc_cudnn.devices.kernels import gather, interpolation
from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, instance, real_type, three
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.kernels.pooling import lane_axis, six_axes
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.resampling.axis_windows import AxisWindows, Nearest, Windows
from ooc_cudnn.operations.resampling.forward import Ranges, Resampling, ResamplingBackward

#: Of each kind of axes its `Kind` in resampling.cu, and one that is not there.
KINDS: dict[type, tuple[str, AxisWindows]] = {
    Nearest: ("NEAREST", Nearest(1, 1, 1.0)),
    Windows: ("WINDOWS", Windows(1, 1, 1)),
}
#: Operands of the struct `Resampling`.
MOST_OPERANDS = 3


def _axis(windows: AxisWindows) -> dict[str, float]:
    """The struct `Axis`."""
    fields = {"extent": windows.extent, "count": windows.count}
    if isinstance(windows, Nearest):
        one = dict.fromkeys(("step", "per", "reach"), 1)
        return {**fields, **one, "before": 0, "after": 0, "scale": float(np.float32(windows.scale))}
    assert isinstance(windows, Windows)
    names = ("step", "per", "reach", "before", "after")
    return {**fields, **{name: getattr(windows, name) for name in names}, "scale": 0.0}


def _starts(ranges: Ranges) -> tuple[int, ...]:
    return three([start for start, _ in ranges], 0)


def plan(
    forward: Resampling,
    name: str,
    makes: Ranges,
    result: DeviceView,
    operands: Sequence[tuple[DeviceView, Ranges]],
) -> Launch | None:
    """Choose a kernel that makes a part from parts; None if there is nothing to do."""
    if result.size == 0:
        return None
    views = [result, *(view for view, _ in operands)]
    out, *read = six_axes(views, lanes=lane_axis(views))
    kinds = {type(windows) for windows in forward.windows}
    if len(kinds) > 1:
        raise ValueError(f"axes of several kinds have no kernel: {forward.windows}")
    kind, missing_axis = KINDS[kinds.pop()]
    missing = MOST_OPERANDS - len(operands)
    axes = [*[missing_axis] * (3 - len(forward.windows)), *forward.windows]
    template: tuple[str | int, ...] = () if name == "resample_max_gradient" else (kind,)
    template += (forward.is_max,) if name == "resample" else ()
    total = math.prod(out.sizes)
    return Launch(
        "resampling.cu",
        instance(name, CUDA_TYPES[forward.dtype], *template),
        grid_of(total, BLOCK_THREADS),
        fill_struct(
            *("resampling.cu", "Resampling"),
            **out.outer_sizes,
            made=out.sizes[2:5],
            first=_starts(makes),
            begins=[*(_starts(ranges) for _, ranges in operands), *[(0,) * 3] * missing],
            result=out.strides,
            operand=[*(each.strides for each in read), *[(0,) * 6] * missing],
            axis=list(map(_axis, axes)),
            total=total,
        ),
    )


def resampling(operation: Resampling, call: Call) -> None:
    """Run `Resampling` on (x,). The output must not overlap x."""
    x = check("x", call.inputs[0], operation.input_shape, operation.dtype)
    y = check("y", call.output, operation.output_shape, operation.dtype)
    makes, reads = operation.makes, operation.reads
    is_linear = interpolation.is_linear(operation)

    def planned() -> Launch | None:
        if is_linear or gather.is_gather(operation):
            chosen = interpolation if is_linear else gather
            return chosen.plan(operation, makes, y, x, reads, backward=False)
        return plan(operation, "resample", makes, y, [(x, reads)])

    scalars = () if is_linear else (real_type(operation.dtype)(operation.value),)
    launch(operation, (y, x), planned, scalars, call.stream)


def resampling_backward(operation: ResamplingBackward, call: Call) -> None:
    """Run `ResamplingBackward` on (y, dy, x), or of sums on (dy,)."""
    forward = operation.forward
    dx = check("dx", call.output, operation.output_shape, operation.dtype)
    known = {"y": forward.makes, "dy": forward.makes, "x": forward.reads}
    name = "resample_max_gradient" if forward.is_max else "resample_gradient"
    names = tuple(known) if forward.is_max else ("dy",)
    shapes = {"x": forward.input_shape}
    makes = operation.makes
    parts = [
        (check(own, view, shapes.get(own, forward.output_shape), operation.dtype), known[own])
        for own, view in zip(names, call.inputs, strict=True)
    ]
    is_gather, is_linear = gather.is_gather(forward), interpolation.is_linear(forward)

    def planned() -> Launch | None:
        if is_linear or is_gather:
            ((dy, outputs),) = parts
            chosen = interpolation if is_linear else gather
            return chosen.plan(forward, makes, dx, dy, outputs, backward=True)
        return plan(forward, name, makes, dx, parts)

    scalars = (real_type(operation.dtype)(0),) if is_gather else ()
    launch(operation, (dx, *(view for view, _ in parts)), planned, scalars, call.stream)


RUNNERS: dict[type, Runner] = {Resampling: resampling, ResamplingBackward: resampling_backward}
