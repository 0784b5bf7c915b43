"""The public functions: each is declared once, thin, and says what is asked for, not how.

They stand in the order in which lists show them.

>>> from ooc_cudnn.functions.call.decorator import FUNCTIONS
>>> set(FUNCTIONS) == set(__all__)
True
"""

# isort: off
from ooc_cudnn.functions.api.convolution import convolution_forward
from ooc_cudnn.functions.api.convolution_backward import (
    convolution_backward_bias,
    convolution_backward_data,
    convolution_backward_filter,
)
from ooc_cudnn.functions.api.elementwise import activation_backward, activation_forward, add_tensor
from ooc_cudnn.functions.api.pooling import pooling_backward, pooling_forward
from ooc_cudnn.functions.api.softmax import softmax_backward, softmax_forward
from ooc_cudnn.functions.api.batch_normalization import (
    batch_normalization_backward,
    batch_normalization_forward_inference,
    batch_normalization_forward_training,
)
from ooc_cudnn.functions.api.fused import (
    convolution_add_activation_backward,
    convolution_add_activation_forward,
    convolution_add_activation_pooling_forward,
)
from ooc_cudnn.functions.api.chain import chain_forward

__all__ = [
    "activation_backward",
    "activation_forward",
    "add_tensor",
    "batch_normalization_backward",
    "batch_normalization_forward_inference",
    "batch_normalization_forward_training",
    "chain_forward",
    "convolution_add_activation_backward",
    "convolution_add_activation_forward",
    "convolution_add_activation_pooling_forward",
    "convolution_backward_bias",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "pooling_backward",
    "pooling_forward",
    "softmax_backward",
    "softmax_forward",
]
