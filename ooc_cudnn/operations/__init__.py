"""The operations that chains are made of: pure descriptions, one file each."""

from ooc_cudnn.operations.activation import Activation
from ooc_cudnn.operations.bias import AddTensor
from ooc_cudnn.operations.convolution import Convolution

__all__ = ["Activation", "AddTensor", "Convolution"]
