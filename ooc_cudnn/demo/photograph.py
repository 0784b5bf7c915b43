"""Data of the demo: an enlarged photograph on disk, and a bank of oriented filters.

The photograph is Grace Hopper's, which matplotlib ships (public domain, 512 x 600 pixels). Bicubic
enlargement adds no detail, so the filters' taps lie half a pixel *of the photograph* apart (the
convolution's dilation): what they respond to is the photograph's edges, at any enlargement.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Pixels enlarged at a time: what bounds the memory that enlarging takes.
BLOCK_PIXELS = 2**20
#: The largest share of a window that a filter's taps span is 2 * RADIUS + 1.
RADIUS = 5
DIRECTIONS = 8

_GREY = (0.299, 0.587, 0.114)
_RED_AGAINST_BLUE_AND_GREEN = (0.5, -0.33, -0.17)


def photograph() -> Array:
    """Return matplotlib's sample photograph: float32, shape (3, 600, 512), values 0 to 1.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed, with the command that installs it.
    """
    try:
        from matplotlib import cbook
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the demo needs {error.name}: run `pip install 'ooc_cudnn[plot]'`", name=error.name
        ) from None
    path = cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)) / np.float32(255)


def enlarged_size(height: int, width: int, megapixels: float) -> tuple[int, int]:
    """Return (height, width) of the same proportions with at least `megapixels`.

    >>> enlarged_size(600, 512, 100)
    (10826, 9238)
    """
    factor = math.sqrt(megapixels * 1e6 / (height * width))
    return math.ceil(height * factor), math.ceil(width * factor)


def enlarge(source: Array, target: Array, progress: Callable[[int], object]) -> None:
    """Enlarge a picture by bicubic interpolation, a block of rows at a time.

    Both are (c, height, width), float32; the target is typically a memmap. `progress` is told how
    many rows are done.
    """
    from PIL import Image

    channels = [Image.fromarray(channel) for channel in source]
    height, width = target.shape[1:]
    pitch = source.shape[1] / height
    step = max(1, BLOCK_PIXELS // width)
    for top in range(0, height, step):
        bottom = min(top + step, height)
        # The interpolation sees beyond the box, so the blocks join without seams.
        box = (0.0, top * pitch, float(source.shape[2]), min(bottom * pitch, source.shape[1]))
        for channel, rows in zip(channels, target[:, top:bottom], strict=True):
            resized = channel.resize((width, bottom - top), Image.Resampling.BICUBIC, box=box)
            np.clip(np.asarray(resized), 0.0, 1.0, out=rows)
        progress(bottom)


def filter_bank() -> tuple[Array, Array]:
    """Return 16 oriented filters and their biases: w (16, 3, 11, 11) and b (16,), float32.

    Derivatives of an elongated Gaussian in 8 directions; the first 8 fine, on brightness, the
    others coarse, on red against green and blue. Each filter's weights sum to zero, their absolute
    values to one. The bias is a threshold that keeps noise out of the maps.
    """
    reach = np.arange(-RADIUS, RADIUS + 1, dtype=np.float64)
    down, right = np.meshgrid(reach, reach, indexing="ij")
    filters = []
    for spread, colours in ((1.2, _GREY), (2.2, _RED_AGAINST_BLUE_AND_GREEN)):
        for direction in range(DIRECTIONS):
            angle = 2 * math.pi * direction / DIRECTIONS
            across = right * math.cos(angle) + down * math.sin(angle)
            along = down * math.cos(angle) - right * math.sin(angle)
            edge = across * np.exp(-(across**2 + (along / 1.8) ** 2) / (2 * spread**2))
            weights = np.multiply.outer(np.array(colours), edge - edge.mean())
            filters.append(weights / np.abs(weights).sum())
    w = np.array(filters, dtype=np.float32)
    return w, np.full(len(w), -0.003, dtype=np.float32)


def allocate(path: str | os.PathLike[str], shape: tuple[int, ...]) -> Array:
    """Return a new float32 array in a ``.npy`` file, mapped for reading and writing."""
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
