"""The runners of dropout.cu."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_TYPES,
    index_type,
    is_small,
    real_type,
)
from ooc_cudnn.devices.kernels.checks import check, check_packed
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.elementwise import pack_count, walk_fields, walk_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.axes import merged_axes
from ooc_cudnn.operations.elementwise.dropout import Advance, Dropout

#: Packs of a thread, all loaded before the first is used.
UNROLL = 2


def plan_dropout(operation: Dropout, x: DeviceView, y: DeviceView) -> Launch | None:
    """Choose the kernel; None if there is nothing to do."""
    if y.size == 0:
        return None
    indices = DeviceView(0, y.dtype, y.shape, operation.index_strides)
    axes = merged_axes(y.shape, [y.strides, x.strides, indices.strides])
    count = pack_count(axes, [y, x])
    small = is_small([y, x, indices], y.size)
    walk = walk_fields(axes, count)
    types = f"{index_type(small=small)}, {CUDA_TYPES[y.dtype]}"
    return Launch(
        "dropout.cu",
        f"dropout<{types}, {count}, {UNROLL}>",
        grid_of(walk["packs"], BLOCK_THREADS * UNROLL),
        walk_struct(walk, small=small),
    )


def dropout(operation: Dropout, call: Call) -> None:
    """Run `Dropout` on (x, state). Pieces that differ in their place alone share a kernel."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    state = check_packed("state", call.inputs[1], (2,), "int64")
    y = check("y", call.output, operation.shape, operation.dtype)
    anywhere = replace(operation, first=(0,) * len(operation.shape))
    launch(
        anywhere,
        (y, x, state),
        lambda: plan_dropout(operation, x, y),
        (
            np.int64(operation.first_index),
            np.int64(operation.threshold),
            real_type(operation.dtype)(operation.scale),
        ),
        call.stream,
    )


def advance(operation: Advance, call: Call) -> None:
    """Run `Advance` on (state,)."""
    state = check_packed("state", call.inputs[0], (2,), "int64")
    result = check_packed("the state", call.output, (2,), "int64")
    launch(
        operation,
        (result, state),
        lambda: Launch(
            "dropout.cu", "advance<1>", (1,), fill_struct("dropout.cu", "Steps", count=1), (1, 1)
        ),
        (),
        call.stream,
    )


RUNNERS: dict[type, Runner] = {Dropout: dropout, Advance: advance}
