"""Adding a bias: one value per output channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.base import Array, Parameter, Shape
from ooc_cudnn.operations.per_element import PerElement


@dataclass(frozen=True)
class AddTensor(PerElement):
    """y = x + b, where b holds one value per channel.

    Source: cudnnAddTensor with a bias of shape (1, cY, 1, 1).
    """

    shape: Shape
    dtype: str = "float32"

    name = "add_tensor"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The bias b, one value per channel."""
        return (Parameter("b", (self.shape[1],)),)

    def reference(self, x: Array, *parameters: Array) -> Array:
        """Add in float64."""
        (b,) = parameters
        return x.astype(np.float64) + b.astype(np.float64).reshape(-1, *[1] * (x.ndim - 2))
