"""Tensors on a card: the device and the stream that PyTorch uses, and results in its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.settings import settings


@contextmanager
def at(device: torch.device) -> Iterator[None]:
    """Compute on the card that tensors are on, in the order of PyTorch's current stream there.

    Tensors on the host are computed on by the device of the settings.
    """
    if device.type != "cuda":
        yield
        return
    import cupy

    index = torch.cuda.current_device() if device.index is None else device.index
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(index))
        stack.enter_context(settings(device=f"cuda:{index}"))
        stack.enter_context(cupy.cuda.Device(index))
        pointer = torch.cuda.current_stream(index).cuda_stream
        if pointer:
            stack.enter_context(cupy.cuda.ExternalStream(pointer, index))
        yield


def results_there(outputs: Sequence[Tensor], device: torch.device) -> dict[str, Any]:
    """Tensors of PyTorch for outputs of a network on a card; none for those on the host."""
    if device.type != "cuda":
        return {}
    return {
        output.name: torch.empty(output.shape, dtype=getattr(torch, output.dtype), device=device)
        for output in outputs
    }


def packed_there(gradient: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The gradient of an output as backward takes it."""
    return gradient.detach().to(device).contiguous()
