"""PyTorch tensors at the edge: the memory behind one, and the way back. PyTorch is not imported.

A tensor may say more than its memory does: that its numbers are to be negated or conjugated, that
its gradients are recorded, that it is sparse or has no memory at all.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from ooc_cudnn.tensor import numpy_dtype


def is_tensor(array: Any) -> bool:
    """True if an array is PyTorch's."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def memory_of(tensor: Any, *, name: str, written: bool) -> Any:
    """Return a tensor whose memory holds the numbers.

    Parameters
    ----------
    written : bool
        Whether it is to be written: then the memory must be that of `tensor` itself.

    Raises
    ------
    TypeError
        If there is no such memory: sparse, quantized and meta tensors.
    ValueError
        If writing to the memory would not be writing to the tensor.
    """
    torch: Any = sys.modules["torch"]
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
        raise TypeError(f"{name} is {kind}; make it dense first: {name}.to_dense()")
    if tensor.is_quantized:
        raise TypeError(f"{name} is quantized; make it a plain one first: {name}.dequantize()")
    if tensor.is_meta:
        raise TypeError(f"{name} is on PyTorch's meta device and has no data")
    lazily = [
        word
        for word, is_set in (("negative", tensor.is_neg()), ("conjugate", tensor.is_conj()))
        if is_set
    ]
    if written:
        if lazily:
            raise ValueError(
                f"{name} is a {lazily[0]} view: what is written to its memory is not what it "
                f"would hold; give a tensor of its own, and copy it: view.copy_({name})"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} requires gradients, and this write would not be recorded; give "
                f"{name}.detach(), or call under torch.no_grad()"
            )
    return _resolved(torch, tensor.detach()) if lazily else tensor


def _resolved(torch: Any, tensor: Any) -> Any:
    """A copy that holds the numbers that a lazy view stands for."""
    copy = tensor.resolve_conj().resolve_neg()
    if copy.is_cuda:
        # The call may return before the card has read the copy; PyTorch must not lend its memory
        # to others before that.
        import cupy

        pointer = cupy.cuda.get_current_stream().ptr
        copy.record_stream(
            torch.cuda.ExternalStream(pointer, device=copy.device)
            if pointer
            else torch.cuda.default_stream(copy.device)
        )
    return copy


@lru_cache
def torch_dtype_as_numpy(dtype: Any) -> np.dtype[Any] | None:
    """PyTorch's dtype as NumPy has it; None if it does not."""
    try:
        return numpy_dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        return None


def on_one_stream(index: int) -> bool:
    """True if PyTorch and CuPy are on one stream of a card: then neither waits for the other."""
    import cupy

    torch: Any = sys.modules["torch"]
    theirs = torch._C._cuda_getCurrentRawStream(index)
    return bool(theirs == cupy.cuda.get_current_stream(index).ptr)


def array_over(tensor: Any, *, name: str) -> Any:
    """Return the NumPy or CuPy array over a tensor's memory.

    Raises
    ------
    TypeError
        If that is neither the host's nor a card's.
    """
    torch: Any = sys.modules["torch"]
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name} is on PyTorch's device {tensor.device}; CPU or CUDA is needed")
    if tensor.is_cuda:
        array = _on_card(tensor)
        if array is not None:
            return array
        import cupy as module
    else:
        module = np
    tensor = tensor.detach()  # DLPack refuses one whose gradients are recorded
    if tensor.dtype == torch.bfloat16:
        return module.from_dlpack(tensor.view(torch.int16)).view(numpy_dtype("bfloat16"))
    return module.from_dlpack(tensor)


def _on_card(tensor: Any) -> Any:
    """The array by its address; None where PyTorch's stream has to be waited for, as DLPack does.

    DLPack takes the host longer than a small kernel takes the card.
    """
    import cupy

    index, dtype = tensor.get_device(), torch_dtype_as_numpy(tensor.dtype)
    if dtype is None or not tensor.numel() or not on_one_stream(index):
        return None
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    memory = cupy.cuda.UnownedMemory(start, storage.nbytes(), tensor, index)
    place = cupy.cuda.MemoryPointer(memory, tensor.data_ptr() - start)
    strides = tuple([stride * dtype.itemsize for stride in tensor.stride()])
    return cupy.ndarray(tuple(tensor.shape), dtype, place, strides)


def to_tensor(array: Any) -> Any:
    """Return a tensor over an array's memory."""
    torch: Any = sys.modules["torch"]
    is_brain = _is_brain(array.dtype)
    plain = array.view(np.int16) if is_brain else array
    if not isinstance(plain, np.ndarray) and on_one_stream(plain.device.id):
        plain = plain.__dlpack__(stream=-1)  # nobody has to wait
    tensor = torch.utils.dlpack.from_dlpack(plain)
    return tensor.view(torch.bfloat16) if is_brain else tensor


@lru_cache
def _is_brain(dtype: np.dtype[Any]) -> bool:
    """True if a dtype is bfloat16; NumPy takes microseconds to spell the name of one."""
    return dtype.name == "bfloat16"
