"""Pieces of images and rows for the baselines that split by hand: what is read, what is written.

The arithmetic is that of one 3x3 convolution with padding 1, and nobody else's: baselines share
nothing with the library's own splitting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

HALO_ROWS = 1


class Band(NamedTuple):
    """Rows [top, bottom) of images [first, last), of an output as high as its input."""

    first: int
    last: int
    top: int
    bottom: int

    def read_rows(self, height: int) -> tuple[int, int]:
        """The input's rows behind it.

        Examples
        --------
        >>> Band(0, 1, 0, 4).read_rows(8), Band(0, 1, 4, 8).read_rows(8)
        ((0, 5), (3, 8))
        """
        return max(self.top - HALO_ROWS, 0), min(self.bottom + HALO_ROWS, height)

    def read(self, x: Any) -> Any:
        """What it reads of x: a view."""
        begin, end = self.read_rows(x.shape[2])
        return x[self.first : self.last, :, begin:end]

    def written(self, y: Any) -> Any:
        """What it writes of y: a view."""
        return y[self.first : self.last, :, self.top : self.bottom]

    def gather(self, x: Any, buffer: Any) -> None:
        """Copy its input to a packed buffer two rows higher, with zeros outside the image."""
        begin, end = self.read_rows(x.shape[2])
        above = begin - (self.top - HALO_ROWS)
        if above:
            buffer[:, :, :above] = 0
        buffer[:, :, above : above + end - begin] = self.read(x)
        buffer[:, :, above + end - begin :] = 0

    def scatter(self, buffer: Any, y: Any) -> None:
        self.written(y)[...] = buffer


def bands(images: int, height: int, d_n: int, d_h_y: int) -> Iterator[Band]:
    """Cut images and rows into pieces of at most `d_n` images and `d_h_y` rows.

    Examples
    --------
    >>> [(*band,) for band in bands(3, 8, 2, 8)]
    [(0, 2, 0, 8), (2, 3, 0, 8)]
    """
    for first in range(0, images, d_n):
        for top in range(0, height, d_h_y):
            yield Band(first, min(first + d_n, images), top, min(top + d_h_y, height))


def byte_ranges(
    shape: tuple[int, ...], first: int, last: int, top: int, bottom: int
) -> Iterator[tuple[int, int]]:
    """Offset and bytes of each packed part of a float32 tensor's images and rows.

    Examples
    --------
    >>> list(byte_ranges((2, 2, 4, 8), 1, 2, 0, 4))
    [(256, 256)]
    >>> list(byte_ranges((2, 2, 4, 8), 0, 1, 1, 3))
    [(32, 64), (160, 64)]
    """
    row = 4 * shape[3]
    plane = shape[2] * row
    if (top, bottom) == (0, shape[2]):
        image = shape[1] * plane
        yield first * image, (last - first) * image
        return
    for index in range(first * shape[1], last * shape[1]):
        yield index * plane + top * row, (bottom - top) * row
