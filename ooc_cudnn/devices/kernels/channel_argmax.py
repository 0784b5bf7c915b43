"""The runner of channel_argmax.cu: which channel is the largest at each site."""

from __future__ import annotations

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_INTEGERS,
    CUDA_TYPES,
    index_type,
    is_small,
)
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.elementwise import pack_count, walk_fields
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.axes import merged_axes
from ooc_cudnn.operations.softmax.channel_argmax import ChannelArgmax


def plan_channel_argmax(operation: ChannelArgmax, x: DeviceView, y: DeviceView) -> Launch | None:
    """Choose the kernel; None if there is nothing to do."""
    if x.size == 0:
        return None
    # the first channel of each site: the others follow it in steps of one stride
    first = DeviceView(x.pointer, x.dtype, y.shape, x.strides)
    axes = merged_axes(y.shape, [first.strides, y.strides])
    count = pack_count(axes, [first, y])
    if x.strides[1] % count:  # the packs of other channels begin elsewhere
        count = 1
    walk = walk_fields(axes, count)
    index = index_type(small=is_small([x, y], x.size, x.strides[1]))
    types = f"{index}, {CUDA_TYPES[x.dtype]}, {CUDA_INTEGERS[y.dtype]}"
    return Launch(
        "channel_argmax.cu",
        f"channel_argmax<{types}, {count}>",
        grid_of(walk["packs"], BLOCK_THREADS),
        fill_struct(
            *("channel_argmax.cu", f"Sites<{index}>"),
            walk=walk,
            channels=x.shape[1],
            step=x.strides[1],
        ),
    )


def channel_argmax(operation: ChannelArgmax, call: Call) -> None:
    """Run `ChannelArgmax` on (x,)."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    y = check("y", call.output, operation.output_shape, operation.labels)
    launch(operation, (x, y), lambda: plan_channel_argmax(operation, x, y), (), call.stream)


RUNNERS: dict[type, Runner] = {ChannelArgmax: channel_argmax}
