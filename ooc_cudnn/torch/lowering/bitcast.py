"""Bitcasts: values of dtypes that the network has not, in integers that it holds."""

from __future__ import annotations

from typing import Any

import torch

from ooc_cudnn.tensor import ITEM_BYTES
from ooc_cudnn.torch.tracing.graph import Value

#: Bytes of an element to the integers that hold its bits in the network.
STORED_AS = {1: torch.uint8, 2: torch.uint16, 4: torch.int32, 8: torch.int64}


def store_bits(given: Any) -> Any:
    """A tensor's or an array's bits in integers that the network holds: booleans, int8, float8.

    >>> import numpy as np
    >>> store_bits(torch.tensor([True, False])), store_bits(np.array([-1], "int16"))
    (tensor([1, 0], dtype=torch.uint8), array([65535], dtype=uint16))
    """
    held = STORED_AS[given.dtype.itemsize]
    if isinstance(given, torch.Tensor):
        return given.view(held)
    return given.view(str(held).removeprefix("torch."))


def as_it_was(value: Value, tensor: torch.Tensor) -> torch.Tensor:
    """Return a value's tensor in the value's own type; `verify` hands it in float64."""
    if str(value.dtype).removeprefix("torch.") not in ITEM_BYTES:
        if tensor.dtype == value.dtype:
            return tensor
        return tensor.to(STORED_AS[value.dtype.itemsize]).view(value.dtype)
    if value.dtype.is_floating_point and tensor.dtype == torch.float64:
        return tensor
    return tensor.to(value.dtype)
