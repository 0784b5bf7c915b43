"""The runners of local_response*.cu: which of the three kernels, and on how many elements a thread.

Where channels lie side by side `local_response_lanes` has a pack of them in each lane; elsewhere
`local_response_walk` has a pack of sites in each thread, and walks along their channels. Both are
compiled for the window, and may write dx where dy lies. One of more than `WIDEST_WINDOW` channels
is `local_response_wide`'s, which may not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_TYPES,
    index_type,
    instance,
    is_small,
    real_type,
)
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct, largest
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import (
    BLOCK_THREADS,
    Rows,
    common_rows,
    grid_of,
    pack_size,
)
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.operations.normalization.local_response import (
    WIDEST_WINDOW,
    LocalResponse,
    LocalResponseBackward,
)

#: Of `Beta` in local_response.cuh: the powers that need no logarithm.
BETAS = {0.5: "HALF", 0.75: "THREE_QUARTERS", 1.0: "ONE"}

# Of local_response_lanes.cu.
LANES = 32  # of a warp
#: Packs of a thread forward.
UNROLL = 2

# Of local_response_walk.cu. A thread keeps a window of a few tensors in registers.
#: Registers of a window of one tensor.
FORWARD_REGISTERS, BACKWARD_REGISTERS = 40, 20
#: So many threads keep the memory busy; where sites give fewer, channels are cut.
WALKING_THREADS = 2**18
#: A segment has so many times the channels that it reads beside its own, at the least, ...
SEGMENT_WINDOWS = 8
#: ... and so many.
SHORTEST_SEGMENT = 16


@dataclass(frozen=True)
class Taps:
    """The channels in a sum that there can be, and its beta."""

    before: int
    behind: int
    beta: str

    @classmethod
    def of(cls, operation: LocalResponse) -> Taps:
        most = max(operation.shape[1] - 1, 0)
        before, behind = min(operation.before, most), min(operation.behind, most)
        return cls(before, behind, BETAS.get(operation.beta, "ANY"))

    @property
    def window(self) -> int:
        return self.before + 1 + self.behind


def plan(
    operation: LocalResponse, x: DeviceView, dy: DeviceView | None, result: DeviceView
) -> Launch | None:
    """Choose the kernel; None if there is nothing to do. It is the gradient's where dy is there."""
    if result.size == 0:
        return None
    taps = Taps.of(operation)
    views = [result, x] if dy is None else [result, x, dy]
    if taps.window > WIDEST_WINDOW:
        return _plan_wide(taps, views)
    size, _ = result.flat()
    strides, in_place = [view.flat()[1] for view in views], is_in_place(result, dy)
    rows = common_rows(size, strides, keep_channel=True)
    if rows.inner_is_channel:
        lanes = _plan_lanes(taps, rows, views, in_place=in_place)
        if lanes is not None:
            return lanes
        rows = Rows(size, tuple(strides), inner_is_channel=False, contiguous=False)
    return _plan_walk(taps, rows, views, in_place=in_place)


def is_in_place(result: DeviceView, dy: DeviceView | None) -> bool:
    """True if dx lies where dy does."""
    return dy is not None and dy.pointer == result.pointer


def _plan_lanes(
    taps: Taps, rows: Rows, views: list[DeviceView], *, in_place: bool
) -> Launch | None:
    """None where a block would have to have all channels of a site, and has no room for them."""
    count = pack_size(rows, views)
    outer, middle, channels = rows.sizes
    row_packs = -(-channels // count)
    packs = outer * middle * row_packs
    arguments = [count]
    if len(views) == 2:
        arguments.append(UNROLL)
        of_block = BLOCK_THREADS * UNROLL
    else:
        shared = -(-taps.before // count) + -(-taps.behind // count)  # lanes of two warps
        of_block = BLOCK_THREADS // LANES * (LANES - shared)
    if in_place:
        of_block -= of_block % row_packs
        if of_block == 0:
            return None
    fields = {"packs": packs, "of_block": of_block, "in_place": int(in_place)}
    kind = ("local_response_lanes", "Lanes")
    return _launch(kind, taps, views, arguments, packs, of_block, rows, row_packs, fields)


def _plan_walk(taps: Taps, rows: Rows, views: list[DeviceView], *, in_place: bool) -> Launch:
    registers = FORWARD_REGISTERS if len(views) == 2 else BACKWARD_REGISTERS
    most = registers // taps.window // max(1, views[0].item_bytes // 4)
    widest = WIDEST_ACCESS_BYTES // views[0].item_bytes
    count = pack_size(rows, views, min(widest, 2 ** max(0, most.bit_length() - 1)))
    outer, channels, sites = rows.sizes
    row_packs = -(-sites // count)
    packs = outer * row_packs
    segments, length = (1, channels) if in_place else segment_channels(channels, packs, taps.window)
    blocks = -(-packs // BLOCK_THREADS) * segments
    fields = {"packs": packs, "segments": segments, "length": length, "blocks": blocks}
    kind = ("local_response_walk", "Columns")
    return _launch(kind, taps, views, [count], blocks, 1, rows, row_packs, fields)


def segment_channels(channels: int, packs: int, window: int) -> tuple[int, int]:
    """Into how many segments channels are cut, and how long each is, but for the last.

    >>> segment_channels(192, 100_000, 5), segment_channels(192, 10**6, 5)
    ((3, 64), (1, 192))
    >>> segment_channels(64, 100, 5)
    (2, 32)
    """
    shortest = max(SHORTEST_SEGMENT, SEGMENT_WINDOWS * (window - 1))
    wanted = -(-WALKING_THREADS // packs)
    length = max(-(-channels // wanted), min(shortest, channels))
    return -(-channels // length), length


def _launch(
    kind: tuple[str, str], taps: Taps, views: list[DeviceView], counts: list[int], work: int,
    of_a_block: int, rows: Rows, row_packs: int, fields: dict[str, int],
) -> Launch:  # fmt: skip
    (kernel, struct), operands = kind, len(views)
    walked = {"size": rows.sizes, "stride": rows.strides, "row_packs": row_packs}
    fill = partial(fill_struct, f"{kernel}.cu", rows=walked, **fields)
    wide = fill(f"{struct}<long long, {operands}>")
    small = is_small(views, largest(wide))
    name = kernel + ("_backward" if operands == 3 else "")
    types = index_type(small=small), CUDA_TYPES[views[0].dtype]
    return Launch(
        f"{kernel}.cu",
        instance(name, *types, taps.before, taps.behind, taps.beta, *counts),
        grid_of(work, of_a_block),
        fill(f"{struct}<int, {operands}>") if small else wide,
    )


def _plan_wide(taps: Taps, views: list[DeviceView]) -> Launch:
    """A thread for each element."""
    size, strides = views[0].flat()
    total = math.prod(size)
    result, x, dy = (views[index].flat()[1] for index in (0, 1, -1))
    last = int(size[1] > 1 and strides[1] == 1)
    name = "local_response_wide" + ("_backward" if len(views) == 3 else "")
    return Launch(
        "local_response_wide.cu",
        f"{name}<{CUDA_TYPES[views[0].dtype]}, {taps.beta}>",
        grid_of(total, BLOCK_THREADS),
        fill_struct(
            *("local_response_wide.cu", "LocalResponse"),
            size=size,
            result=result,
            x=x,
            dy=dy,
            before=taps.before,
            behind=taps.behind,
            channels_last=last,
            total=total,
        ),
    )


def _run(
    operation: LocalResponse, x: DeviceView, dy: DeviceView | None, result: DeviceView, call: Call
) -> None:
    real = real_type(operation.dtype)
    numbers = (operation.alpha / operation.size, operation.beta, operation.k)
    launch(
        (operation, dy is None, is_in_place(result, dy)),
        (result, x) if dy is None else (result, x, dy),
        lambda: plan(operation, x, dy, result),
        tuple(real(number) for number in numbers),
        call.stream,
    )


def local_response(operation: LocalResponse, call: Call) -> None:
    """Run `LocalResponse` on (x,). The output must not overlap x."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    y = check("y", call.output, operation.shape, operation.dtype)
    _run(operation, x, None, y, call)


def local_response_backward(operation: LocalResponseBackward, call: Call) -> None:
    """Run `LocalResponseBackward` on (x, dy).

    The output must not overlap x. It may be dy, where windows are no wider than `WIDEST_WINDOW`.
    """
    forward = operation.forward
    x = check("x", call.inputs[0], forward.shape, forward.dtype)
    dy = check("dy", call.inputs[1], forward.shape, forward.dtype)
    dx = check("dx", call.output, forward.shape, forward.dtype)
    _run(forward, x, dy, dx, call)


RUNNERS: dict[type, Runner] = {
    LocalResponse: local_response,
    LocalResponseBackward: local_response_backward,
}
