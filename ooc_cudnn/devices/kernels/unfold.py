"""Runner of unfold.cu: columns that a window sees, as channels."""

from __future__ import annotations

import math
from typing import Any

from ooc_cudnn.devices.kernels.arguments import WORDS, instance
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Launch, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.tensor import packed_strides


def unfold_columns(
    destination: DeviceView,
    value: DeviceView,
    *,
    window: int,
    stride: int,
    before: int,
    stream: Any = None,
) -> None:
    """Copy to each site the columns that a window sees of it, one behind the other, as channels.

    Parameters
    ----------
    destination : DeviceView
        Of shape (n, channels, ..., columns), packed channels-last at multiples of 16 bytes. Its
        channels fill 16 bytes or a multiple: those behind ``window * c`` become zeros.
    value : DeviceView
        Of shape (n, c, ..., w) and the same type, packed channels-last.
    window, stride, before : int
        Columns of the window, its stride, and the zeros before the first column.
    """
    launch(
        ("unfold_columns", window, stride, before),
        (destination, value),
        lambda: plan_unfold(destination, value, window, stride, before),
        (),
        stream,
    )


def plan_unfold(
    destination: DeviceView, value: DeviceView, window: int, stride: int, before: int
) -> Launch | None:
    """Validate the operands of `unfold_columns`, and choose its kernel; None if nothing is to do.

    Raises
    ------
    ValueError
        If types, shapes or memory orders do not fit.
    """
    (images, channels, *outer, columns), (n, c, *rows, width) = destination.shape, value.shape
    if (images, outer) != (n, rows) or destination.dtype != value.dtype or channels < window * c:
        raise ValueError(
            f"{destination.dtype} {destination.shape} does not hold windows of {window} columns of "
            f"{value.dtype} {value.shape}"
        )
    count = WIDEST_ACCESS_BYTES // value.item_bytes
    for name, view in (("destination", destination), ("value", value)):
        if view.strides != packed_strides(view.shape, "channels_last"):
            raise ValueError(f"{name} has strides {view.strides}, not packed channels-last")
    if channels % count or destination.pointer % WIDEST_ACCESS_BYTES:
        raise ValueError(f"{channels} channels of {destination.dtype} are no whole packs")
    if destination.size == 0:
        return None
    site_packs = channels // count
    row_packs = columns * site_packs
    packs = images * math.prod(outer) * row_packs
    return Launch(
        "unfold.cu",
        instance("unfold_columns", WORDS[value.item_bytes], count),
        grid_of(packs, BLOCK_THREADS),
        fill_struct(
            "unfold.cu", "Columns", packs=packs, row_packs=row_packs, site_packs=site_packs,
            width=width * c, step=stride * c, before=before * c, taps=window * c,
        ),
    )  # fmt: skip
