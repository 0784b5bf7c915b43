"""Arrays that are read and written region by region: Zarr's, HDF5's, those of other byte orders.

No framework is imported that the user has not imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_cudnn.arrays.operands import ArrayRef, array_ref
from ooc_cudnn.devices.base import Device
from ooc_cudnn.tensor import TensorSpec, dtype_name

#: Packages whose arrays give NumPy's arrays of their regions, and take them.
PACKAGES = ("zarr", "h5py")


class Store:
    """An array in regions: what is read is in memory then, in this machine's byte order.

    Parameters
    ----------
    array : array
        Of Zarr or HDF5, or NumPy's in any byte order.
    without : int, optional
        An axis of extent 1 that this has, and the array has not.

    Examples
    --------
    >>> big = Store(np.arange(6, dtype=">i2").reshape(2, 3))
    >>> big.dtype, big[:, 1:].tolist()
    (dtype('int16'), [[1, 2], [4, 5]])
    >>> Store(np.zeros((2, 3)), without=1).shape
    (2, 1, 3)
    """

    def __init__(self, array: Any, without: int | None = None) -> None:
        self.array, self._without = array, without
        self.dtype: np.dtype[Any] = np.dtype(array.dtype).newbyteorder("=")
        shape = tuple(map(int, array.shape))
        if without is not None:
            shape = (*shape[:without], 1, *shape[without:])
        self.shape = shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def with_axis(self, axis: int) -> Store:
        """The same array with one more axis, of extent 1."""
        return Store(self.array, axis)

    def __getitem__(self, region: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Read a region."""
        found = np.asarray(self.array[self._without_axis(region)]).astype(self.dtype)
        return found if self._without is None else np.expand_dims(found, self._without)

    def __setitem__(self, region: tuple[slice, ...], made: Any) -> None:
        """Write a region."""
        array = np.asarray(made)
        if self._without is not None:
            array = array.squeeze(self._without)
        self.array[self._without_axis(region)] = array

    def _without_axis(self, region: tuple[slice, ...]) -> tuple[slice, ...]:
        if self._without is None:
            return region
        return (*region[: self._without], *region[self._without + 1 :])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """All of it."""
        return self[(slice(None),) * self.ndim].astype(dtype or self.dtype, copy=False)

    def reshape(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """All of it, in another shape."""
        return np.asarray(self).reshape(shape)

    def check_writable(self, name: str) -> None:
        """Raise ValueError if it cannot be written."""
        array = self.array
        closed = getattr(array, "read_only", False) is True  # Zarr's
        file = getattr(array, "file", None)  # HDF5's
        if isinstance(array, np.ndarray):
            closed = not array.flags.writeable
        elif file is not None:
            closed = file.mode == "r"
        if closed:
            raise ValueError(f"{name} is read-only (open it with mode 'r+')")


def regional(array: Any) -> Any:
    """An array as a `Store`, if only its regions can be had; any other as it is."""
    is_theirs = type(array).__module__.partition(".")[0] in PACKAGES and hasattr(array, "shape")
    is_foreign = isinstance(array, np.ndarray) and not array.dtype.isnative
    return Store(array) if is_theirs or is_foreign else array


def room_for(out: Any, region: tuple[slice, ...]) -> Any:
    """Return memory for a region of a result: the region itself, or new memory for a `Store`."""
    if not isinstance(out, Store):
        return out[region]
    extents = (len(range(*each.indices(n))) for each, n in zip(region, out.shape, strict=True))
    return np.empty(tuple(extents), out.dtype)


def read_whole(array: Any) -> Any:
    """All of a `Store` in memory; any other array as it is."""
    return np.asarray(array) if isinstance(array, Store) else array


def wrap_regional(array: Any, device: Device, *, name: str, written: bool = False) -> ArrayRef:
    """An operand as by `array_ref`; a `Store` lies on the disk, and has no address."""
    if not isinstance(array, Store):
        return array_ref(array, device, name=name, written=written)
    if written:
        array.check_writable(name)
    dtype = dtype_name(array.dtype, name=f"{name}: dtype", integers=True)
    return ArrayRef(None, TensorSpec(array.shape, dtype, "disk"), 0)
