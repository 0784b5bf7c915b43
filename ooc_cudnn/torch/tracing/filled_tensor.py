"""A tensor of one number, as an operation that reads nothing: of `zeros_like` and others."""

from __future__ import annotations

from typing import Any

import torch

from ooc_cudnn.torch.tracing.graph import Value


class FilledTensor:
    """Makes a tensor of one number."""

    tags = ()

    def __init__(self, result: Value, device: torch.device, number: Any) -> None:
        self._shape, self._dtype, self._device = result.shape, result.dtype, device
        self._number = number

    def __call__(self, device: torch.device | None = None) -> torch.Tensor:
        """The tensor; on another device than its own, if that is told."""
        device = self._device if device is None else device
        return torch.full(self._shape, self._number, dtype=self._dtype, device=device)

    def __str__(self) -> str:
        return f"full of {self._number}"
