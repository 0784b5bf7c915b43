"""Runners of image_softmax.cu: softmax over all elements of each image, sweep by sweep.

Few huge images are shared by many blocks, whose parts a second launch joins; of many small ones
each block has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES
from ooc_cudnn.devices.kernels.checks import check, check_packed, workspace_pointer
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.group_walk import (
    ELEMENTWISE_BLOCKS,
    REDUCTION_BLOCKS,
    GroupWalk,
    walk_images,
)
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.softmax.channels import (
    ImageMaximum,
    ImageProductSum,
    ImageSoftmax,
    ImageSoftmaxBackward,
)


def parts_bytes(images: int) -> int:
    """Room for what each part of each image gives, where images have more than one part."""
    return 16 * REDUCTION_BLOCKS if images < REDUCTION_BLOCKS else 0


def _plan(walk: GroupWalk, kernel: str, *arguments: str | int) -> Launch | None:
    if walk.groups == 0:
        return None
    return walk.launch("image_softmax.cu", kernel, *arguments, with_columns=False)


def image_state(
    operation: Hashable,
    what: str,
    task: str,
    operands: tuple[DeviceView | None, ...],
    call: Call,
) -> None:
    """Reduce each image to its numbers of the state, the call's output: "peaks" or "sums"."""
    state, stream = call.output, call.stream
    operand = next(view for view in operands if view is not None)
    images, columns = state.shape
    walk = walk_images([view or operand for view in operands], REDUCTION_BLOCKS)
    parts = state.pointer
    if walk.parts > 1:
        parts = workspace_pointer(call.workspace, 8 * columns * walk.parts * images)
    arguments = (CUDA_TYPES[operand.dtype], *((task,) if what == "sums" else ()))
    launch(
        (operation, walk),
        operands,
        lambda: _plan(walk, f"image_{what}", *arguments),
        (parts,),
        stream,
    )
    if walk.parts > 1:
        launch(
            (operation, walk, "join"),
            (state,),
            lambda: Launch(
                "image_softmax.cu",
                f"join_image_{what}<{BLOCK_THREADS}>",
                grid_of(images),
                fill_struct("image_softmax.cu", "ImageParts", images=images, parts=walk.parts),
            ),
            (parts,),
            stream,
        )


def image_outcomes(
    operation: Hashable,
    task: str,
    views: tuple[DeviceView, DeviceView, DeviceView | None],
    state: DeviceView,
    stream: Any,
) -> None:
    """Run the second sweep, on (result, first, second)."""
    output, first, second = views

    def plan() -> Launch | None:
        if output.size == 0:
            return None
        walk = walk_images([output, first, second or first], ELEMENTWISE_BLOCKS)
        return _plan(walk, "image_outcomes", CUDA_TYPES[output.dtype], task)

    launch((operation, "outcomes"), (*views, state), plan, (), stream)


def image_maximum(operation: ImageMaximum, call: Call) -> None:
    """Run `ImageMaximum` on (x,)."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    check_packed("the state", call.output, operation.output_shape, "float64")
    image_state(operation, "peaks", "ACCURATE", (x,), call)


def image_softmax(operation: ImageSoftmax, call: Call) -> None:
    """Run `ImageSoftmax` on (x, state)."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    state = check_packed("the state", call.inputs[1], (operation.shape[0], 2), "float64")
    check("y", call.output, operation.shape, operation.dtype)
    image_outcomes(
        operation, operation.algorithm.upper(), (call.output, x, None), state, call.stream
    )


def image_product_sum(operation: ImageProductSum, call: Call) -> None:
    """Run `ImageProductSum` on (y, dy); for "log" y is not read."""
    task = f"{operation.algorithm.upper()}_BACKWARD"
    dy = check("dy", call.inputs[1], operation.shape, operation.dtype)
    y = None
    if task == "ACCURATE_BACKWARD":
        y = check("y", call.inputs[0], operation.shape, operation.dtype)
    check_packed("the sums", call.output, operation.output_shape, "float64")
    image_state(operation, "sums", task, (y, dy), call)


def image_softmax_backward(operation: ImageSoftmaxBackward, call: Call) -> None:
    """Run `ImageSoftmaxBackward` on (y, dy, sums)."""
    y = check("y", call.inputs[0], operation.shape, operation.dtype)
    dy = check("dy", call.inputs[1], operation.shape, operation.dtype)
    sums = check_packed("the sums", call.inputs[2], (operation.shape[0], 1), "float64")
    check("dx", call.output, operation.shape, operation.dtype)
    image_outcomes(
        operation,
        f"{operation.algorithm.upper()}_BACKWARD",
        (call.output, y, dy),
        sums,
        call.stream,
    )


RUNNERS: dict[type, Runner] = {
    ImageMaximum: image_maximum,
    ImageSoftmax: image_softmax,
    ImageProductSum: image_product_sum,
    ImageSoftmaxBackward: image_softmax_backward,
}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    ImageMaximum: lambda operation: parts_bytes(operation.shape[0]),
    ImageProductSum: lambda operation: parts_bytes(operation.shape[0]),
}
