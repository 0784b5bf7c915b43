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

    The first 8 maps belong to the 8 directions of the fine filters; each filter is drawn small in
    the corner of its map. `margin` is the share of the width to leave out at every border of the
    maps, where the filters see the padding.
    """
    from matplotlib.figure import Figure

    colours = hues()
    tiles = _cropped(shrink(maps, TILE), margin)
    edges: Any = 0
    for one, colour in zip(maps[:DIRECTIONS], colours, strict=True):
        edges = edges + _cropped(shrink(one[None], 4 * TILE), margin)[0, ..., None] * colour

    # six rows of tiles: four under each large picture
    inches, high = TILE / 100, tiles.shape[1] / tiles.shape[2]
    figure = Figure(
        figsize=(DIRECTIONS * inches, 6 * inches * high + 0.8), dpi=100, facecolor=BACKGROUND,
        layout="constrained",
    )  # fmt: skip
    grid = figure.add_gridspec(6, DIRECTIONS)

    def show(axes: Any, picture: Array, title: str = "") -> Any:
        axes.imshow((np.clip(picture, 0, 1) * 255).astype(np.uint8), aspect="auto")
        axes.set_axis_off()
        axes.set_title(title, color=FOREGROUND, fontsize=12, loc="left")
        return axes

    large = figure.add_subplot(grid[:4, :4]), figure.add_subplot(grid[:4, 4:])
    show(large[0], shrink(photograph, 4 * TILE).transpose(1, 2, 0), captions[0])
    show(large[1], _stretched(edges, quantile=0.997, gamma=0.6), captions[1])
    for index, tile in enumerate(tiles):
        row, column = divmod(index, DIRECTIONS)
        tinted = _stretched(tile, quantile=0.985, gamma=0.55)[..., None]
        axes = show(figure.add_subplot(grid[4 + row, column]),
                    tinted * (0.35 + 0.65 * colours[column]))  # fmt: skip
        show(axes.inset_axes((0, 0.8, 0.2, 0.2)), _icon(filters[index]))
    figure.supxlabel(
        f"All {len(maps)} feature maps with their filters: {DIRECTIONS} directions, fine on "
        f"brightness (above), coarse on red against green and blue (below)",
        color=FOREGROUND, fontsize=12,
    )  # fmt: skip
    figure.savefig(path)


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
