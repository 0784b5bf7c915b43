"""Cache of array descriptors (address, strides), rebuilt only when an array moves."""

from __future__ import annotations

from typing import Any

import torch

from ooc_cudnn.arrays.operands import ArrayRef, array_ref
from ooc_cudnn.devices.base import Device


class TensorRefs:
    """Wraps parameters and buffers of a model for the engine, call after call.

    What it keeps are addresses and specs; it keeps no memory alive.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, ArrayRef]] = {}

    def __call__(self, name: str, tensor: torch.Tensor, device: Device) -> ArrayRef:
        """A tensor, wrapped.

        Raises
        ------
        TypeError, ValueError
            As `array_ref`.
        """
        where = (
            tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device,
            tensor.is_neg(), device.name,
        )  # fmt: skip
        known = self._known.get(name)
        if known is not None and known[0] == where:
            if tensor.is_cuda:
                return known[1]
            if tensor.dtype != torch.bfloat16:
                return known[1]._replace(array=tensor.detach().numpy())
        ref = array_ref(tensor, device, name=name)
        if tensor.is_neg():  # a copy, which holds what a lazy view stands for
            return ref
        kept = ref._replace(array=None, restore=None)
        self._known[name] = where, kept
        return kept if tensor.is_cuda else ref
