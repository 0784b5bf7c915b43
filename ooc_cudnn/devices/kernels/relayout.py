"""Runners of relayout.cu: copies between any two layouts, and rows of zeros."""

from __future__ import annotations

from typing import Any

from ooc_cudnn.devices.kernels import compiling
from ooc_cudnn.devices.kernels.arguments import WORDS, boolean, geometry
from ooc_cudnn.devices.kernels.launch import Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import (
    BLOCK_THREADS,
    LARGEST_GRID,
    LARGEST_GRID_YZ,
    Rows,
    block_shape,
    common_rows,
    grid_of,
    pack_size,
    packs_a_thread,
    transpose_tile,
)
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.memory.axes import merged_axes

_WORDS_OF_FILL = {**WORDS, 16: "uint4"}


def relayout(destination: DeviceView, value: DeviceView, stream: Any = None) -> None:
    """Copy `value` to `destination`, of the same type and shape, between any two layouts.

    Bit for bit. The two must not overlap. Fast between channels-first and channels-last, and where
    the innermost axes agree; correct for any other strides.
    """
    views = (destination, value)
    launch("relayout", views, lambda: plan_relayout(destination, value), (), stream)


def fill_zero(
    pointer: int, width_bytes: int, count: int, pitch_bytes: int, stream: Any = None
) -> None:
    """Zero `count` rows of `width_bytes` bytes that begin `pitch_bytes` bytes apart.

    Fastest where address, width and pitch are multiples of 16 bytes.
    """
    if width_bytes < 0 or count < 0:
        raise ValueError(f"width_bytes is {width_bytes} and count {count}; neither may be negative")
    if count > 1 and pitch_bytes < width_bytes:
        raise ValueError(f"pitch_bytes is {pitch_bytes}, less than width_bytes {width_bytes}")
    if width_bytes == 0 or count == 0:
        return
    if count == 1 or pitch_bytes == width_bytes:
        width_bytes, count = width_bytes * count, 1
        pitch_bytes = width_bytes
    joint = pointer | width_bytes | pitch_bytes | WIDEST_ACCESS_BYTES
    word = joint & -joint  # the largest power of two that divides all
    width = width_bytes // word
    expression = f"fill_zero<{_WORDS_OF_FILL[word]}>"
    compiling.function(compiling.current_device(), "relayout.cu", expression)(
        grid_of(width * count, BLOCK_THREADS),
        (BLOCK_THREADS,),
        (pointer, width, count, pitch_bytes // word),
        stream=stream,
    )


def plan_relayout(destination: DeviceView, value: DeviceView) -> Launch | None:
    """Validate the operands of `relayout` and choose its kernel; None if there is nothing to do."""
    if value.shape != destination.shape or value.dtype != destination.dtype:
        raise ValueError(
            f"value is {value.dtype} {value.shape} and destination is {destination.dtype} "
            f"{destination.shape}; a relayout keeps type and shape"
        )
    if destination.size == 0:
        return None
    if not (destination.flattens and value.flattens):
        return _plan_copy(destination, value, merged_rows(destination, value))
    sizes, to = destination.flat()
    _, source = value.flat()
    transposes = sizes[1] > 1 and sizes[2] > 1
    if transposes and source[2] == 1 and to[1] == 1 and source[1] != 1:
        return _plan_transpose(destination, value, from_channels_first=True)
    if transposes and source[1] == 1 and to[2] == 1 and source[2] != 1:
        return _plan_transpose(destination, value, from_channels_first=False)

    return _plan_copy(destination, value, common_rows(sizes, [to, source], keep_channel=False))


def merged_rows(destination: DeviceView, value: DeviceView) -> Rows:
    """Rows of a copy between views whose spatial axes do not flatten into one.

    Rows of a taller tensor, say, that lie along another axis than the first: the axes outside of
    them are as in the taller one, and merge.

    >>> taller = DeviceView(4096, "float32", (2, 3, 4, 2, 5), (420, 140, 35, 5, 1))  # 2 of 7 rows
    >>> packed = DeviceView(8192, "float32", (2, 3, 4, 2, 5), (120, 40, 10, 5, 1))
    >>> merged_rows(taller, packed).sizes
    (1, 24, 10)

    Raises
    ------
    ValueError
        If more than three axes are left.
    """
    axes = merged_axes(destination.shape, [destination.strides, value.strides])
    missing = 2 - len(axes.sizes)
    if missing < 0:
        raise ValueError(
            f"strides {destination.strides} and {value.strides} of shape {destination.shape} lie "
            "too scattered for one copy"
        )
    outer, middle = (1,) * missing + axes.sizes
    strides = tuple(
        (*(0,) * missing, *steps, inner)
        for steps, inner in zip(axes.strides, axes.inner_strides, strict=True)
    )
    contiguous = all(step == 1 for step in axes.inner_strides)
    return Rows((outer, middle, axes.inner), strides, False, contiguous)  # type: ignore[arg-type]


def _plan_copy(destination: DeviceView, value: DeviceView, rows: Rows) -> Launch:
    """Plan a copy of rows of packs."""
    item = destination.item_bytes
    count = pack_size(rows, [destination, value])
    unroll = packs_a_thread(count * item)
    outer, middle, inner = rows.sizes
    blocks = block_shape(outer * middle, -(-inner // count), unroll)
    return Launch(
        "relayout.cu",
        f"copy_strided<{WORDS[item]}, {count}, {unroll}, {boolean(blocks.unroll_rows)}, "
        f"{boolean(rows.contiguous)}>",
        grid_of(blocks.tiles),
        geometry(*rows.numbers, blocks.tiles, blocks.column_tiles),
        blocks.block,
    )


def _plan_transpose(
    destination: DeviceView, value: DeviceView, *, from_channels_first: bool
) -> Launch:
    (n, c, s), (to_n, to_c, to_s) = destination.flat()
    _, (source_n, source_c, source_s) = value.flat()
    item = destination.item_bytes
    tile_c, tile_s = transpose_tile(c, s, item)
    # p is contiguous in value, q in destination, as in relayout.cu.
    if from_channels_first:
        size_p, size_q, tile_p, tile_q = s, c, tile_s, tile_c
        value_q, destination_p = source_c, to_s
    else:
        size_p, size_q, tile_p, tile_q = c, s, tile_c, tile_s
        value_q, destination_p = source_s, to_c

    def pack(tile: int, pointer: int, *steps: int) -> int:
        count = WIDEST_ACCESS_BYTES // item
        while tile % count or pointer % (count * item) or any(step % count for step in steps):
            count //= 2
        return count

    load = pack(tile_p, value.pointer, value_q, source_n if n > 1 else 0)
    store = pack(tile_q, destination.pointer, destination_p, to_n if n > 1 else 0)
    return Launch(
        "relayout.cu",
        f"transpose<{WORDS[item]}, {tile_p}, {tile_q}, {load}, {store}, "
        f"{boolean(from_channels_first)}>",
        (
            min(-(-s // tile_s), LARGEST_GRID),
            min(-(-c // tile_c), LARGEST_GRID_YZ),
            min(n, LARGEST_GRID_YZ),
        ),
        geometry(n, size_p, size_q, source_n, value_q, to_n, destination_p),
    )
