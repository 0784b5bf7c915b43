"""A chain: operations run back to back on one piece while it is on the device.

A chain says along which axes it may be cut and where, and which region of each operand a piece
needs (`partition.py`), and what to launch on that piece (`lowering.py`). A fused function
is a chain; a plain function is a chain of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.chain.lowering import ChainBuilder
from ooc_cudnn.operations.chain.partition import ChainPieces
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.transposed import TransposedConvolution
from ooc_cudnn.operations.core.call import Piece, Read, Rounding, random_range
from ooc_cudnn.operations.core.operation import Array
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.resampling.forward import Resampling

#: Rows of a patch that `verify` looks at, and channels.
PATCH_ROWS = 2
PATCH_CHANNELS = 4


@dataclass(frozen=True)
class Chain(ChainPieces):
    """Operations from x to y, and ``y = alpha * result + beta * y`` at the end."""

    builder = ChainBuilder

    def build(self, build: ChainBuilder) -> None:
        """Run every operation on the piece, elementwise ones fused where they follow each other."""
        build.chained()

    # Checking ---------------------------------------------------------------------------------

    def patch(self, random: np.random.Generator) -> Piece:
        """A few rows of one image; a few channels, where these may be cut."""
        whole = self.extents
        channels = (0, whole.c_y)
        if self.channels_may_be_cut:
            first = int(random.integers(whole.c_y))
            group = whole.c_y // (self.convolution.groups if self.convolution else 1)
            channels = (first, min((first // group + 1) * group, first + PATCH_CHANNELS))
        n = int(random.integers(whole.n))
        rows = random_range(random, whole.h_y, PATCH_ROWS)
        return Piece((n, n + 1), channels, rows, (0, whole.c_x))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        value = read("x", self.region("x", piece))
        size = np.abs(value)
        for index, operation in enumerate(self.operations):
            parameters = [
                read(name, self.region(name, piece)) for name in self.parameter_names[index]
            ]
            step = self.on_piece(index, piece)
            if isinstance(operation, Activation):
                value = step.reference(value)
                # What the activation enlarges errors by; the other modes' slope is about 1.
                slope = abs(operation.coef) if operation.mode in ("elu", "leaky_relu") else 1.0
                size = np.maximum(max(1.0, slope) * size, np.abs(value))
            else:
                value = step.reference(value, *parameters)
                size = step.magnitude(size, *parameters)
        return {"y": (value, size)}

    def rounding(self) -> Rounding:
        terms, arithmetic = 1, self.dtype
        for operation in self.operations:
            if isinstance(operation, Convolution):
                terms = max(terms, int(np.prod(operation.w_shape[1:])))
                arithmetic = operation.precision
            elif isinstance(operation, TransposedConvolution):
                forward = operation.forward
                count = forward.w_shape[0] // forward.groups * int(np.prod(forward.window))
                terms, arithmetic = max(terms, count), forward.precision
            elif isinstance(operation, Resampling) and not operation.is_max:
                terms = max(terms, operation.run_elements)
            elif isinstance(operation, Pooling) and not operation.is_max:
                terms = max(terms, int(np.prod(operation.window)))
        return Rounding(terms, arithmetic, len(self.operations))
