"""Some channels of a wider tensor, as where maps are concatenated: what is computed on them there.

cuDNN's graphs are of packed tensors. The kernels of the operations named here take maps of any
strides, so that some channels of a map need no copy to a place of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ooc_cudnn.operations.activation_backward import ActivationBackward
from ooc_cudnn.operations.backward_pooling import PoolingBackward
from ooc_cudnn.operations.batch_normalization import (
    Moments,
    Normalise,
    NormaliseBackward,
    NormaliseSums,
)
from ooc_cudnn.operations.broadcast_gradient import BroadcastSum
from ooc_cudnn.operations.gradient_sums import GradientSums
from ooc_cudnn.operations.launches import Buffer, Launch
from ooc_cudnn.operations.masks import MaskedGradient, SlopeMask
from ooc_cudnn.operations.op_tensor import OpTensor
from ooc_cudnn.operations.pointwise import Pointwise, Relayout
from ooc_cudnn.operations.pooling import Pooling
from ooc_cudnn.operations.pooling_indices import PoolingIndices
from ooc_cudnn.tensor import INTEGERS, TensorSpec, packed_strides, same_strides

#: Operations whose kernels take maps of any strides.
OF_ANY_STRIDES = (
    ActivationBackward, BroadcastSum, GradientSums, MaskedGradient, Moments, Normalise,
    NormaliseBackward, NormaliseSums, OpTensor, Pointwise, Pooling, PoolingBackward,
    PoolingIndices, Relayout, SlopeMask,
)  # fmt: skip


def channels_of_wider(spec: TensorSpec, order: str) -> int:
    """Channels of the packed tensor of which a map is some channels; 0 if it is of none.

    >>> spec = TensorSpec((2, 3, 4, 5), "float32", "device", (160, 1, 40, 8))
    >>> channels_of_wider(spec, "channels_last"), channels_of_wider(spec, "channels_first")
    (8, 0)
    """
    shape, strides = spec.shape, spec.strides
    outside = range(len(shape) - 1, 1, -1) if order == "channels_last" else ()
    for axis in (*outside, 0):
        if len(shape) > 2 and shape[axis] > 1:
            # the first axis that steps over all channels says how many there are
            one = packed_strides((shape[0], 1, *shape[2:]), order)[axis]
            channels = strides[axis] // one
            packed = packed_strides((shape[0], channels, *shape[2:]), order)
            is_wider = channels > shape[1] and same_strides(shape, strides, packed)
            return channels if is_wider else 0
    return 0


def takes_wider(name: str, launches: Iterable[Launch], buffers: Mapping[str, Buffer]) -> bool:
    """Whether all that is launched on an operand takes it where it lies in a wider tensor."""
    touching = [each.operation for each in launches if name in (*each.inputs, each.output)]
    in_parts = any(buffer.block == name for buffer in buffers.values())
    floats = buffers[name].dtype not in INTEGERS
    taken = all(isinstance(each, OF_ANY_STRIDES) for each in touching)
    return bool(touching) and taken and floats and not in_parts
