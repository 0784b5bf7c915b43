"""Run cuDNN's functions on tensors larger than GPU memory."""

from ooc_cudnn.functions.convolution import (
    convolution_add_activation_forward,
    convolution_forward,
)
from ooc_cudnn.memory.functions import empty, malloc, memcpy, pin, placement, zeros
from ooc_cudnn.profiling import profile
from ooc_cudnn.settings import settings
