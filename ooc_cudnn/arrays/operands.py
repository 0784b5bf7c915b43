"""Users' arrays at the edge: everything is accepted here and made uniform once.

NumPy (pageable, pinned, `numpy.memmap`), CuPy and whatever speaks DLPack become an `ArrayRef`: the
NumPy or CuPy array over the same memory, its spec and its address. No framework is imported that
the user has not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.arrays.pinning import unlock_dropped
from ooc_cudnn.arrays.tensors import (
    array_over,
    is_tensor,
    memory_of,
    on_one_stream,
    to_tensor,
    torch_dtype_as_numpy,
)
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.host.device import HostDeviceArray
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.files import array_span, bases, share_bytes
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import TensorSpec, dtype_name, memory_order
from ooc_cudnn.types import Array

_CUDA, _CPU = 2, 1  # DLPack's device types


class ArrayRef(NamedTuple):
    """An operand: what holds its memory, its spec and address, and the way back.

    `array` is NumPy's or CuPy's, or PyTorch's tensor on a card; of a result that is being made on
    the device, its memory. `restore` turns a NumPy or CuPy result into what the user's framework
    calls a tensor.
    """

    array: Any
    spec: TensorSpec
    pointer: int
    restore: Callable[[Any], Any] | None = None

    @property
    def plain(self) -> Any:
        """The array as NumPy or CuPy has it."""
        return array_over(self.array, name="array") if is_tensor(self.array) else self.array

    def view(self) -> DeviceView:
        """The operand as device memory."""
        return DeviceView(self.pointer, self.spec.dtype, self.spec.shape, self.spec.strides)

    def span(self) -> tuple[int, int]:
        """Lowest byte address and one past the highest."""
        low, high = _span(self.spec)
        return self.pointer + low, self.pointer + high


@lru_cache(maxsize=4096)
def _span(spec: TensorSpec) -> tuple[int, int]:
    reach = [(e - 1) * s * spec.itemsize for e, s in zip(spec.shape, spec.strides, strict=True)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + spec.itemsize


@lru_cache(maxsize=4096)
def _spec(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, placement: str
) -> TensorSpec:
    name = dtype_name(dtype, integers=True)
    item = dtype.itemsize
    if any(stride % item for stride in strides):
        raise ValueError(f"strides {strides} (bytes) must be multiples of the element size {item}")
    elements = tuple(stride // item for stride in strides)
    # The stride of an axis of extent 1 is never taken; give it the packed value. That of a single
    # channel says the memory order.
    if len(shape) > 2 and shape[1] == 1 and memory_order(shape, elements) == "channels_last":
        fixed = [*_fixed(shape[:1] + shape[2:], elements[:1] + elements[2:])]
        return TensorSpec(shape, name, placement, (fixed[0], 1, *fixed[1:]))
    return TensorSpec(shape, name, placement, _fixed(shape, elements))


def _fixed(shape: tuple[int, ...], elements: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in which those of axes of extent 1 are packed."""
    step, fixed = 1, list(elements)
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            fixed[axis] = step
        step = max(step, fixed[axis] * shape[axis])
    return tuple(fixed)


class LocatedArray(NamedTuple):
    """Any array: the NumPy or CuPy array over its memory, where that is, and the way back."""

    array: Any
    placement: str
    pointer: int
    restore: Callable[[Any], Any] | None = None


def array_ref(array: Any, device: Device, *, name: str, written: bool = False) -> ArrayRef:
    """Accept a user's array as an operand; `written`, as a result.

    Raises
    ------
    TypeError, ValueError
        If it is no array, is empty, its dtype is not supported, or it lives on a device that is
        not the one in use.
    """
    if is_tensor(array) and array.is_cuda:
        taken = _by_address(array, device, name=name, written=written)
        if taken is not None:
            return taken
    plain, placement, pointer, restore = locate(array, device, name=name, written=written)
    if plain.ndim == 0 or 0 in plain.shape:
        raise ValueError(f"{name} must not be empty, but has shape {tuple(plain.shape)}")
    if not plain.dtype.isnative:
        raise TypeError(
            f"{name} must be in native byte order, not {plain.dtype}: give "
            f"{name}.astype({plain.dtype.name!r})"
        )
    try:
        spec = _spec(tuple(plain.shape), tuple(plain.strides), plain.dtype, placement)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    return ArrayRef(plain, spec, pointer, restore)


def _by_address(tensor: Any, device: Device, *, name: str, written: bool) -> ArrayRef | None:
    """A tensor on the card in use, on whose stream nobody has to wait; None of any other.

    An array of CuPy's over it would take the host longer than a small kernel takes the card.
    """
    index, dtype = tensor.get_device(), torch_dtype_as_numpy(tensor.dtype)
    if dtype is None or not tensor.numel() or not tensor.ndim or device.name != f"cuda:{index}":
        return None
    held = memory_of(tensor, name=name, written=written)
    if not on_one_stream(index):
        return None
    spec = _spec_on_card(held.shape, held.stride(), dtype)
    return ArrayRef(held, spec, held.data_ptr(), to_tensor)


@lru_cache(maxsize=4096)
def _spec_on_card(shape: Any, steps: tuple[int, ...], dtype: np.dtype[Any]) -> TensorSpec:
    strides = tuple(step * dtype.itemsize for step in steps)
    return _spec(tuple(shape), strides, dtype, "device")


def locate(array: Any, device: Device, *, name: str, written: bool = False) -> LocatedArray:
    """Say where an array of any dtype lives, to be read or, if `written`, to be written.

    Raises
    ------
    TypeError
        If it is no array, or lives on a device that is not the one in use.
    ValueError
        If it is a tensor that cannot be written in its own memory.
    """
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array; fill it first: {name}.filled(...)")
        pointer = array.__array_interface__["data"][0]
        return LocatedArray(array, _host_placement(array, pointer, device), pointer)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        if device.kind != "cuda" or device.name != f"cuda:{array.device.id}":
            raise TypeError(
                f"{name} is a CuPy array on cuda:{array.device.id}, but the device in use is "
                f"{device.name}; set device='cuda:{array.device.id}', or pass host arrays"
            )
        return LocatedArray(array, "device", array.data.ptr)
    return _from_dlpack(array, device, name, written=written)


def address_of(array: Any) -> int:
    """The address of an array's first element, wherever it lives."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    return int(array.data_ptr() if is_tensor(array) else array.data.ptr)


def placement(array: Array) -> str:
    """Return where an array lives: "device", "pinned", "pageable" or "disk".

    Examples
    --------
    >>> import numpy, ooc_cudnn
    >>> ooc_cudnn.placement(numpy.zeros(3, "float32"))
    'pageable'
    """
    device = get_device(current().device)
    return locate(array, device, name="array").placement


def _host_placement(array: np.ndarray[Any, Any], pointer: int, device: Device) -> str:
    """Placement of a NumPy array: "device" (the host device's), "disk", "pinned" or "pageable"."""
    for base in bases(array):
        if isinstance(base, HostDeviceArray) and device.kind == "host":
            return "device"
        if isinstance(base, np.memmap):
            return "disk"
    unlock_dropped()
    low, high = (pointer, pointer + array.nbytes) if array.flags.forc else array_span(array)
    return "pinned" if device.is_pinned(low, high - low) else "pageable"


def _from_dlpack(array: Any, device: Device, name: str, *, written: bool) -> LocatedArray:
    if is_tensor(array):
        plain = array_over(memory_of(array, name=name, written=written), name=name)
        return locate(plain, device, name=name)._replace(restore=to_tensor)
    try:
        kind, _ = array.__dlpack_device__()
    except AttributeError:
        is_dask = type(array).__module__.startswith("dask.")
        hint = "; ooc_cudnn.dask has the functions on dask arrays" if is_dask else ""
        raise TypeError(
            f"{name} must be a NumPy or CuPy array or speak DLPack, not {type(array).__name__}"
            f"{hint}"
        ) from None
    if kind not in (_CPU, _CUDA, 3):  # 3: pinned host memory
        raise TypeError(f"{name} lives on a device of DLPack type {kind}; CPU or CUDA is needed")
    if kind == _CUDA:
        import cupy as module
    else:
        module = np
    return locate(module.from_dlpack(array), device, name=name)


def check_writable(wrapped: ArrayRef | LocatedArray, *, name: str = "out") -> None:
    """Raise ValueError if an array cannot be written to."""
    if isinstance(wrapped.array, np.ndarray) and not wrapped.array.flags.writeable:
        mapped = isinstance(wrapped.array, np.memmap)
        hint = "open the memmap with mode 'r+'" if mapped else "give an array that can be written"
        raise ValueError(f"{name} is read-only ({hint})")
    array = wrapped.plain if isinstance(wrapped, ArrayRef) else wrapped.array
    if any(s == 0 and e > 1 for e, s in zip(array.shape, array.strides, strict=True)):
        raise ValueError(f"{name} is a broadcast view: several of its elements share memory")


def check_apart(inputs: dict[str, ArrayRef], out: ArrayRef, *, name: str = "out") -> None:
    """Raise ValueError if the output shares memory, or bytes of a file, with an input."""
    on_device = out.spec.placement == "device"
    low, high = out.span()
    for other, wrapped in inputs.items():
        if (wrapped.spec.placement == "device") != on_device:
            continue
        first, last = wrapped.span()
        if first < high and low < last and _share(wrapped.array, out.array):
            raise ValueError(f"{name} overlaps {other} in memory; give {name} memory of its own")
        if wrapped.spec.placement == out.spec.placement == "disk" and share_bytes(
            wrapped.array, out.array
        ):
            raise ValueError(f"{name} overlaps {other} in the file; give {name} bytes of its own")


def _share(one: Any, other: Any) -> bool:
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return True
    try:
        return np.shares_memory(one, other, max_work=10**5)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
