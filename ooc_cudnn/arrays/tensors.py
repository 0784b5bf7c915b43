"""PyTorch tensors at the edge: the memory behind one, and the way back. PyTorch is not imported.

A tensor may say more than its memory does: that its numbers are to be negated or conjugated, that
its gradients are recorded, that it is sparse or has no memory at all.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def is_tensor(array: Any) -> bool:
    """Whether an array is PyTorch's."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def memory_of(tensor: Any, *, name: str, written: bool) -> Any:
    """Return a tensor whose memory holds the numbers, to be handed on by DLPack.

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
    return _resolved(torch, tensor.detach()) if lazily else tensor.detach()


def _resolved(torch: Any, tensor: Any) -> Any:
    """A copy that holds the numbers that a lazy view stands for."""
    made = tensor.resolve_conj().resolve_neg()
    if made.is_cuda:
        # The call may return before the card has read the copy; PyTorch must not lend its memory
        # to others before that.
        import cupy

        pointer = cupy.cuda.get_current_stream().ptr
        made.record_stream(
            torch.cuda.ExternalStream(pointer, device=made.device)
            if pointer
            else torch.cuda.default_stream(made.device)
        )
    return made


def to_tensor(array: Any) -> Any:
    """Return a tensor over an array's memory."""
    torch = sys.modules["torch"]
    if array.dtype.name == "bfloat16":
        return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
