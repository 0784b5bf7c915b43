"""Inputs whose every image differs, and outputs checked against sums made by hand in float64.

Inputs are slices of one pool of random numbers, each plane from an offset of its own: filling costs
a copy, and a piece computed from another image's data, or written to another's place, is wrong. The
reference reads the pool and never the array the library was given, so inputs that were overwritten
show too. It is a plain sum of products in NumPy and shares no code with the library.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Offsets of planes in the pool: multiples of one prime modulo another, so no two are alike.
_STEP, _SPAN = 4_099, 4_194_301

#: Largest error of an output over the sum of |x| |w| behind it, and of all samples over their norm.
#: TF32 rounds each factor to 2**-11, so a product is off by 2**-10 at most.
TOLERANCES = {True: (2.0**-9, 1e-3), False: (2e-6, 2e-6)}


@dataclass(frozen=True)
class Images:
    """A tensor (n, c, h, w) of random numbers, known without holding it."""

    shape: tuple[int, int, int, int]
    pool: Array

    @classmethod
    def of(cls, shape: tuple[int, int, int, int], seed: int = 0) -> Images:
        """Return the tensor of a shape and a seed."""
        if shape[0] * shape[1] > _SPAN:
            raise ValueError(f"{shape[0] * shape[1]} planes cannot all differ")
        size = shape[2] * shape[3] + _SPAN
        return cls(shape, np.random.default_rng(seed).standard_normal(size, dtype=np.float32))

    def _offsets(self, image: int) -> Array:
        planes = image * self.shape[1] + np.arange(self.shape[1])
        return planes * _STEP % _SPAN

    def fill(self, array: Any) -> Any:
        """Write the tensor to a NumPy array (several threads) or a CuPy array."""
        if tuple(array.shape) != self.shape:
            raise ValueError(f"array has shape {array.shape}, not {self.shape}")
        pool: Any = self.pool
        if not isinstance(array, np.ndarray):
            import cupy

            pool = cupy.asarray(pool)
        size = self.shape[2] * self.shape[3]

        def plane(index: int) -> None:
            image, channel = divmod(index, self.shape[1])
            offset = index * _STEP % _SPAN
            array[image, channel] = pool[offset : offset + size].reshape(self.shape[2:])

        _each(plane, self.shape[0] * self.shape[1], threads=isinstance(array, np.ndarray))
        return array

    def window(self, image: int, row: int, column: int, size: int) -> Array:
        """The values (c, size, size) from a corner on, zero outside, in float64."""
        _, _, height, width = self.shape
        rows, columns = np.arange(row, row + size), np.arange(column, column + size)
        inside = ((rows >= 0) & (rows < height))[:, None] & ((columns >= 0) & (columns < width))
        places = np.clip(rows, 0, height - 1)[:, None] * width + np.clip(columns, 0, width - 1)
        values = self.pool[self._offsets(image)[:, None, None] + places].astype(np.float64)
        return np.where(inside, values, 0.0)


def fill(x: Array) -> None:
    """Write normal numbers: blocks of one pool, each begun elsewhere in it."""
    pool = np.random.default_rng(1).standard_normal(2**22 + 4096, dtype=np.float32)
    flat = x.reshape(-1)

    def block(start: int) -> None:
        part = flat[start : start + 2**22]
        offset = start // 2**22 * 37 % 4096
        part[...] = pool[offset : offset + len(part)]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(block, range(0, len(flat), 2**22)))


def filters(c_y: int, c_x: int) -> tuple[Array, Array]:
    """Random filters of 3x3, scaled so that outputs are near 1, and a bias."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((c_y, c_x, 3, 3)) / math.sqrt(c_x * 9)
    return w.astype(np.float32), rng.standard_normal(c_y).astype(np.float32)


def poison(array: Any) -> None:
    """Fill an output with NaN, so that an element that is not written shows."""
    planes = array.shape[0] * array.shape[1]
    _each(
        lambda at: array[divmod(at, array.shape[1])].fill(np.nan),
        planes,
        threads=isinstance(array, np.ndarray),
    )


def unwritten(array: Any) -> int:
    """Count the planes (image, channel) of an output that still hold a NaN: it survives `min`."""
    smallest: list[Any] = []
    planes, on_host = array.shape[0] * array.shape[1], isinstance(array, np.ndarray)
    _each(
        lambda at: smallest.append(array[divmod(at, array.shape[1])].min()), planes, threads=on_host
    )
    if on_host:
        return int(np.isnan(smallest).sum())
    import cupy

    return int(cupy.isnan(cupy.stack(smallest)).sum())


def _each(function: Any, count: int, *, threads: bool) -> None:
    if not threads:
        for index in range(count):
            function(index)
        return
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for _ in pool.map(function, range(count)):
            pass


def points(
    shape: Sequence[int], split: Any = None, *, random: int = 96
) -> list[tuple[int, int, int]]:
    """Sites (image, row, column) to look at: corners, both sides of piece borders, and random."""
    count, _, height, width = shape
    rng = np.random.default_rng(2)
    images, rows = {0, count - 1}, {0, height - 1}
    if split is not None:
        for size, extent, positions in ((split.n, count, images), (split.h_y, height, rows)):
            borders = list(range(size, extent, size))
            keep = {0, len(borders) // 2, len(borders) - 1} if borders else set()
            for index in keep:
                positions |= {borders[index] - 1, borders[index]}
    sites = {
        (image, row, column)
        for image in images
        for row in rows
        for column in (0, width // 2, width - 1)
    }
    for _ in range(random):
        sites.add(tuple(int(rng.integers(extent)) for extent in (count, height, width)))  # type: ignore[arg-type]
    return sorted(sites)


def rounding_of_sums(count: int) -> float:
    """Error of sums of so many random products in float32, as a share of their norm.

    Added one after the other, the k-th sum is as large as sqrt(k) products and is rounded to
    2**-24 of that at most: a third of its square in the mean, so u**2 K**2 / 6 over K of them.
    In parts, as fast algorithms add, it is less.

    Examples
    --------
    >>> f"{rounding_of_sums(64 * 9):.1e} {rounding_of_sums(4096 * 9):.1e}"
    '5.8e-07 4.7e-06'
    """
    return 2.0**-24 * math.sqrt(count / 6.0)


def _products(w: Array, patches: Array, bias: Array) -> tuple[Array, Array]:
    """The outputs (sites, cY) of patches (sites, cX rW sW), and sums of the products' sizes."""
    matrix = w.reshape(len(w), -1).astype(np.float64)
    outputs = patches @ matrix.T + bias
    np.abs(matrix, out=matrix)
    return outputs, np.abs(patches) @ matrix.T + np.abs(bias)


def verify(
    images: Images,
    w: Array,
    b: Array | None,
    output: Any,
    *,
    tf32: bool,
    split: Any = None,
    relu: bool = True,
) -> dict[str, Any]:
    """Check a padded convolution of stride 1 (+ bias, ReLU) at samples, all channels of each.

    Also look for elements that were never written. Returns numbers and "ok".
    """
    size = w.shape[2]
    sites = points(output.shape, split)
    patches, actual = [], []
    highest = 0
    for image, row, column in sites:
        patches.append(images.window(image, row - size // 2, column - size // 2, size).ravel())
        values = output[image, :, row, column]
        actual.append(np.asarray(values if isinstance(values, np.ndarray) else values.get()))
        place = ((image + 1) * output.shape[1] - 1) * output.shape[2] * output.shape[3]
        highest = max(highest, place + row * output.shape[3] + column)
    bias = np.zeros(w.shape[0]) if b is None else b.astype(np.float64)
    want, scale = _products(w, np.array(patches), bias)
    if relu:
        np.maximum(want, 0, out=want)
    got = np.array(actual, np.float64)
    each_tolerance, norm_tolerance = TOLERANCES[tf32]
    norm_tolerance = max(norm_tolerance, 2.0 * rounding_of_sums(w[0].size))
    error = float(np.max(np.abs(got - want) / scale)) if np.isfinite(got).all() else math.inf
    norm = float(np.linalg.norm(got - want) / np.linalg.norm(want))
    missing = unwritten(output)
    return {
        "ok": bool(error <= each_tolerance and norm <= norm_tolerance and not missing),
        "sites": len(sites),
        "values": int(want.size),
        "norm_error": norm,
        "norm_tolerance": norm_tolerance,
        "largest_error_over_sum_of_products": error,
        "tolerance_of_each": each_tolerance,
        "planes_with_unwritten_elements": missing,
        "highest_element": int(highest),
    }
