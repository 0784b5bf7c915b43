"""The demo's picture: the photograph, its edges in colour, and every feature map."""

from __future__ import annotations

import colorsys
import math
import os
from typing import Any

import numpy as np

from ooc_cudnn.demo.photograph import DIRECTIONS

Array = np.ndarray[Any, Any]

BACKGROUND, FOREGROUND = "#101014", "#d8d8e0"
#: Width of a feature map in the picture, in pixels; the two large pictures are four times as wide.
TILE = 210
_BLOCK_ELEMENTS = 2**22


def shrink(source: Array, width: int) -> Array:
    """Return a smaller copy by averaging square blocks, reading a few rows at a time.

    Parameters
    ----------
    source : array, shape (c, h, w)
        Typically a memmap.
    width : int
        About how wide the result is to be: at least this, if the source is.

    Examples
    --------
    >>> shrink(np.arange(16.0).reshape(1, 4, 4), 2).tolist()
    [[[2.5, 4.5], [10.5, 12.5]]]
    """
    block = max(1, source.shape[2] // width)
    channels, height, columns = source.shape[0], source.shape[1] // block, source.shape[2] // block
    result = np.empty((channels, height, columns), np.float32)
    rows = max(1, _BLOCK_ELEMENTS // (block * source.shape[2]))
    for channel in range(channels):
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            part = source[channel, top * block : bottom * block, : columns * block]
            blocks = part.reshape(bottom - top, block, columns, block)
            result[channel, top:bottom] = blocks.mean((1, 3))
    return result


def hues() -> Array:
    """Return one colour a direction, shape (8, 3), once around the colour circle."""
    colours = [colorsys.hsv_to_rgb(k / DIRECTIONS, 0.8, 1.0) for k in range(DIRECTIONS)]
    return np.array(colours, dtype=np.float32)


def feature_sheet(
    photograph: Array,
    maps: Array,
    filters: Array,
    path: str | os.PathLike[str],
    *,
    captions: tuple[str, str],
    margin: float = 0.0,
) -> None:
    """Draw the photograph, its edges in colour and all feature maps into one PNG.

    Parameters
    ----------
    photograph : array, shape (3, h, w)
        Values 0 to 1.
    maps : array, shape (16, h', w')
        The first 8 belong to the 8 directions of the fine filters.
    filters : array, shape (16, 3, k, k)
        Drawn small in the corners of their maps.
    path : path
        Where to write.
    captions : pair of str
        Below the photograph and below its edges.
    margin : float
        Share of the width to leave out at every border of the maps, where the filters see the
        padding.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = hues()
    tiles = _cropped(shrink(maps, TILE), margin)
    edges: Any = 0
    for one, colour in zip(maps[:DIRECTIONS], colours, strict=True):
        edges = edges + _cropped(shrink(one[None], 4 * TILE), margin)[0, ..., None] * colour

    gap, caption = 6, 40
    tile_height = round(TILE * tiles.shape[1] / tiles.shape[2])
    large_width, large_height = 4 * TILE + 3 * gap, 4 * tile_height + 3 * gap
    width = 8 * TILE + 9 * gap
    height = 2 * tile_height + large_height + 4 * gap + 2 * caption
    figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor=BACKGROUND)
    FigureCanvasAgg(figure)

    def show(picture: Array, left: float, top: float, wide: float, high: float) -> None:
        box = (left / width, 1 - (top + high) / height, wide / width, high / height)
        axes = figure.add_axes(box)
        pixels = (np.clip(picture, 0, 1) * 255).astype(np.uint8)
        axes.imshow(pixels, aspect="auto", interpolation="antialiased")
        axes.set_axis_off()

    def write(text: str, left: float, top: float) -> None:
        figure.text(
            left / width, 1 - (top + caption / 2) / height, text, color=FOREGROUND, fontsize=12,
            va="center",
        )  # fmt: skip

    pictures = (
        shrink(photograph, 4 * TILE).transpose(1, 2, 0),
        _stretched(edges, quantile=0.997, gamma=0.6),
    )
    for column, picture in enumerate(pictures):
        left = gap + column * (large_width + gap)
        show(picture, left, gap, large_width, large_height)
        write(captions[column], left + 2, gap + large_height)
    icon = round(TILE * 0.2)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, DIRECTIONS)
        left = gap + column * (TILE + gap)
        top = gap + large_height + caption + row * (tile_height + gap)
        tint = 0.35 + 0.65 * colours[index % DIRECTIONS]
        show(
            _stretched(tile, quantile=0.985, gamma=0.55)[..., None] * tint,
            left,
            top,
            TILE,
            tile_height,
        )
        show(_icon(filters[index]), left, top, icon, icon)
    write(
        f"All {len(maps)} feature maps with their filters: {DIRECTIONS} directions, fine on "
        f"brightness (above), coarse on red against green and blue (below)",
        gap + 2,
        gap + large_height + caption + 2 * (tile_height + gap) - gap,
    )
    figure.savefig(path, facecolor=BACKGROUND)


def _cropped(maps: Array, margin: float) -> Array:
    border = math.ceil(margin * maps.shape[2])
    inner = slice(border, -border or None)
    return maps[:, inner, inner]


def _stretched(picture: Array, *, quantile: float, gamma: float) -> Array:
    """Scale to 0 to 1, the brightest few cut off, dark parts lifted."""
    top = float(np.quantile(picture, quantile)) or 1.0
    return np.clip(picture / top, 0, 1) ** gamma


def _icon(weights: Array) -> Array:
    """A filter as a colour picture: grey is zero."""
    return 0.5 + 0.5 * weights.transpose(1, 2, 0) / np.abs(weights).max()
