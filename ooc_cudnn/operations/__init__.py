"""The operations that chains are made of, with their arrays; what `chain_forward` takes.

The pure descriptions behind them, one file each, are in this package's modules.
"""

from ooc_cudnn.operations.chain_forms.shapes import (
    AdaptivePooling,
    Crop,
    Interpolation,
    LocalResponseNormalization,
    Pad,
    TransposedConvolution,
)
from ooc_cudnn.operations.chain_forms.windows_and_norms import (
    Activation,
    AddTensor,
    BatchNormalization,
    Convolution,
    LayerNormalization,
    OpTensor,
    Pooling,
    PRelu,
)

__all__ = [
    "Activation",
    "AdaptivePooling",
    "AddTensor",
    "BatchNormalization",
    "Convolution",
    "Crop",
    "Interpolation",
    "LayerNormalization",
    "LocalResponseNormalization",
    "OpTensor",
    "PRelu",
    "Pad",
    "Pooling",
    "TransposedConvolution",
]
