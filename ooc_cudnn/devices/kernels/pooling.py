"""The runner of pooling.cu, and the choice of its kernel.

The names of axes are those of pooling.cuh: two outer axes, three spatial ones and the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ooc_cudnn.devices.kernels.arguments import (
    CUDA_TYPES,
    index_type,
    instance,
    is_small,
    three,
)
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.cuda_structs import constant, fill_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of, is_aligned
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.operations.pooling.forward import Pooling


def is_padded(operation: Pooling) -> bool:
    """True if some window reaches beyond x.

    >>> [is_padded(Pooling.of((1, 1, 6, 6), window=2, padding=padding)) for padding in (0, 1)]
    [False, True]
    """
    axes = zip(
        operation.padding, operation.output_shape[2:], operation.stride, operation.window,
        operation.x_shape[2:], strict=True,
    )  # fmt: skip
    return any(
        before > 0 or (sites - 1) * step - before + size > extent
        for (before, _), sites, step, size, extent in axes
    )


def mode_name(operation: Pooling) -> str:
    """The name of a mode in pooling.cuh; without padding both averages have one divisor.

    >>> mode_name(Pooling.of((1, 1, 6, 6), window=2, mode="average_exclude_padding"))
    'AVERAGE_INCLUDE_PADDING'
    """
    if operation.is_max:
        return "MAX"
    return (operation.mode if is_padded(operation) else "average_include_padding").upper()


#: Windows of so many elements are shared by a warp: always where lanes are not contiguous, else
#: where there are too few windows to fill the card.
WARP_TAPS = 32
FEWEST_THREADS = 2**18
#: Elements of x (or words of them) that a thread may hold in registers.
MOST_HELD = 72
SMALL_WINDOW = constant("pooling.cu", "SMALL_WINDOW")


class SixAxes(NamedTuple):
    """A tensor as (a, b, d, h, w, lane).

    That is (n, c, d, h, w, 1), channels-last (1, n, d, h, w, c), images-last (1, c, d, h, w, n).
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def outer_sizes(self) -> dict[str, int]:
        """All sizes but the spatial ones, as the structs of kernels name them."""
        return {"a": self.sizes[0], "b": self.sizes[1], "lanes": self.sizes[5]}


def lane_axis(views: Sequence[DeviceView]) -> int | None:
    """The axis, of n and c, along which the elements of every view lie side by side; None if w.

    >>> shape = (2, 3, 4, 5)
    >>> lane_axis([DeviceView(0, "float32", shape, (60, 1, 15, 3))])
    1
    >>> lane_axis([DeviceView(0, "float32", shape, (1, 40, 10, 2))])
    0
    """
    for axis in (1, 0):
        if all(view.shape[axis] > 1 and view.strides[axis] == 1 for view in views):
            return axis
    return None


def six_axes(views: Sequence[DeviceView], *, lanes: int | None) -> list[SixAxes]:
    """Bring the views, which share n and c, to six axes each; n and c merge where all agree.

    `lanes` is their `lane_axis`.

    >>> view = DeviceView(0, "float32", (2, 3, 4, 5), (60, 20, 5, 1))
    >>> six_axes([view], lanes=None)
    [SixAxes(sizes=(1, 6, 1, 4, 5, 1), strides=(0, 20, 0, 5, 1, 0))]
    """
    n, c = views[0].shape[:2]
    merges = 1 in (n, c) or all(view.strides[0] == c * view.strides[1] for view in views)
    outer_steps: tuple[int, ...]
    axes = []
    for view in views:
        missing = (3 - len(view.shape[2:])) * (1,)
        spatial = missing + view.shape[2:]
        steps = (0,) * len(missing) + view.strides[2:]
        if spatial[-1] == 1:  # never taken; but kernels begin in padding, and step from there
            steps = (*steps[:-1], 1)
        if lanes is not None:
            outer, outer_steps = (1, view.shape[1 - lanes]), (0, view.strides[1 - lanes])
        elif merges:
            outer, outer_steps = (1, n * c), (0, view.strides[1] if c > 1 else view.strides[0])
        else:
            outer, outer_steps = (n, c), view.strides[:2]
        last, step = (1, 0) if lanes is None else (view.shape[lanes], 1)
        # Along an axis of one element no step is taken; that of a view may be too large for an int.
        kept = zip((*outer, *spatial[:-1]), (*outer_steps, *steps[:-1]), strict=True)
        walked = tuple(0 if size == 1 else taken for size, taken in kept)
        axes.append(SixAxes((*outer, *spatial, last), (*walked, steps[-1], step)))
    return axes


def overhang(axes: SixAxes, window: Sequence[int]) -> int:
    """Return the elements that windows may begin before a tensor: kernels step from there.

    >>> overhang(SixAxes((1, 6, 1, 4, 5, 1), (0, 20, 0, 5, 1, 0)), (1, 3, 3))
    18
    """
    return sum(size * step for size, step in zip(window, axes.strides[2:5], strict=True))


def aligned_pack(view: DeviceView, axes: SixAxes, along: int, most: int) -> int:
    """The most elements, a power of two up to `most`, of an aligned access along axis `along`.

    >>> view = DeviceView(4096, "float32", (2, 3, 4, 6), (72, 24, 6, 1))
    >>> aligned_pack(view, six_axes([view], lanes=None)[0], along=4, most=4)
    2
    """
    if axes.sizes[along] > 1 and axes.strides[along] != 1:
        return 1
    steps = [
        step
        for axis, (size, step) in enumerate(zip(axes.sizes, axes.strides, strict=True))
        if size > 1 and axis != along
    ]
    while most > 1 and not is_aligned(view, steps, most):
        most //= 2
    return most


def plan_pooling(operation: Pooling, x: DeviceView, y: DeviceView) -> Launch | None:
    """Choose the kernel of pooling.cu; None if there is nothing to do."""
    check("x", x, operation.x_shape, operation.dtype)
    check("y", y, operation.output_shape, operation.dtype)
    if y.size == 0:
        return None
    lanes = lane_axis([x, y])
    y_axes, x_axes = six_axes([y, x], lanes=lanes)
    window, stride = three(operation.window, 1), three(operation.stride, 1)
    before = three([pair[0] for pair in operation.padding], 0)
    small = is_small([x, y], x.size, y.size, *window, *stride, *before, overhang(x_axes, window))
    index = index_type(small=small)
    types = index, CUDA_TYPES[operation.dtype], mode_name(operation)
    windows = (*window, *stride)
    template: tuple[int, ...]
    taps = math.prod(window)

    rows = None
    if lanes is None:
        rows = _rows(operation, x, y, x_axes, y_axes, window, stride, before)
    threads = BLOCK_THREADS
    if rows is not None:
        name, template = "pool_rows", (*windows, *rows)
        total = math.prod(y_axes.sizes[:4]) * -(-y_axes.sizes[4] // rows.outputs)
    else:
        most = WIDEST_ACCESS_BYTES // x.item_bytes
        while most > y_axes.sizes[5]:
            most //= 2
        count = min(aligned_pack(x, x_axes, 5, most), aligned_pack(y, y_axes, 5, most))
        packs = -(-y_axes.sizes[5] // count)
        total, name = math.prod(y_axes.sizes[:5]) * packs, "pool_windows"
        template = (count, *windows)
        if taps >= WARP_TAPS and (lanes is None or total < FEWEST_THREADS):
            name, threads = "pool_by_warp", BLOCK_THREADS // 32
        else:
            outputs = windows_a_thread(y_axes.sizes, packs, window, stride, count * x.item_bytes)
            unit = lanes is None and x_axes.strides[4] == 1
            padded = is_padded(operation) or y_axes.sizes[5] % count > 0
            template += (outputs, unit, padded)
            total = total // y_axes.sizes[3] * -(-y_axes.sizes[3] // outputs)
    return Launch(
        "pooling.cu",
        instance(name, *types, *template),
        grid_of(total, threads),
        fill_struct(
            *("pooling.cu", f"PoolingGeometry<{index}>"),
            **y_axes.outer_sizes,
            y=y_axes.sizes[2:5],
            x=x_axes.sizes[2:5],
            before=before,
            y_stride=y_axes.strides,
            x_stride=x_axes.strides,
            total=total,
        ),
    )


#: Windows one below the other that a thread may make.
WORKING_SETS = (6, 5, 4, 3, 2)


def windows_a_thread(
    sizes: tuple[int, ...],
    packs: int,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    pack_bytes: int,
) -> int:
    """Windows one below the other that a thread of `pool_windows` makes, of y of `sizes`.

    Where they overlap, the rows that they share are read once and kept in registers: the working
    set that Li et al. expand (section IV.C). As many as registers hold, while there are enough
    threads; what lies side by side the cache has. Single elements are made several at a time in
    any case: finding its place is most of what a thread has to do.

    >>> windows_a_thread((1, 96, 1, 27, 27, 1024), 256, (1, 3, 3), (1, 2, 2), 16)
    2
    >>> windows_a_thread((1, 96, 1, 27, 27, 1024), 256, (1, 2, 2), (1, 2, 2), 16)
    1
    >>> windows_a_thread((1, 96 * 1024, 1, 27, 27, 1), 1, (1, 3, 3), (1, 2, 2), 4)
    6
    """
    words = max(pack_bytes // 4, 1)
    if window[0] > 1 or (window[1] <= stride[1] and words > 1):
        return 1

    def rows(outputs: int) -> int:
        return (outputs - 1) * stride[1] + window[1]

    def groups(outputs: int) -> int:
        return -(-sizes[3] // outputs)

    fitting = [
        outputs
        for outputs in WORKING_SETS
        if outputs <= sizes[3]
        and rows(outputs) * window[2] * words <= MOST_HELD
        and math.prod(sizes[:3]) * groups(outputs) * sizes[4] * packs >= FEWEST_THREADS
    ]
    # Of threads, what each reads and the rest of what it does, as if that were some rows more.
    return min(fitting, key=lambda outputs: groups(outputs) * (rows(outputs) + 4), default=1)


class RowPacks(NamedTuple):
    """The last arguments of the template `pool_rows`."""

    left: int
    outputs: int
    load: int
    store: int


def _rows(
    operation: Pooling,
    x: DeviceView,
    y: DeviceView,
    x_axes: SixAxes,
    y_axes: SixAxes,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    before: tuple[int, ...],
) -> RowPacks | None:
    """Choose how a thread goes along a row; None where `pool_rows` does not serve."""
    contiguous = x_axes.strides[4] == y_axes.strides[4] == 1
    height, width, step, left = window[1], window[2], stride[2], before[2]
    if not contiguous or left < 0 or left >= max(width, 2):
        return None

    def held(outputs: int) -> int:
        return height * (left + outputs * step + max(width - step - left, 0))

    widest = WIDEST_ACCESS_BYTES // x.item_bytes
    load = aligned_pack(x, x_axes, 4, widest)
    # Where packs do not align, neighbouring threads had better read neighbouring elements.
    outputs = widest if load == widest else max(load, 4 // x.item_bytes, 1)
    while outputs > 1 and (outputs // 2 >= y_axes.sizes[4] or held(outputs) > MOST_HELD):
        outputs //= 2
    if held(outputs) > MOST_HELD:
        return None
    if outputs < 4 and window[0] == 1 and height * width <= SMALL_WINDOW and load < widest:
        return None  # narrow accesses: better one below the other
    while outputs * step % load:
        load //= 2
    return RowPacks(left, outputs, load, aligned_pack(y, y_axes, 4, outputs))


def pooling(operation: Pooling, call: Call) -> None:
    """Run `Pooling` on (x,). The output must not overlap x."""
    (x,), output = call.inputs, call.output
    if x is None:
        raise ValueError("x is absent")
    launch(operation, (output, x), lambda: plan_pooling(operation, x, output), (), call.stream)
