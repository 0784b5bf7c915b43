"""Launches that accept a channel slice of a wider tensor (concatenation without a copy).

cuDNN's graphs are of packed tensors. The kernels of operations of `any_strides` take maps of any
strides, so that some channels of a map need no copy to a place of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.tensor import INTEGERS, TensorSpec, packed_strides, same_strides


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
    """True if all that is launched on an operand takes it where it lies in a wider tensor."""
    touching = [launch.operation for launch in launches if name in (*launch.inputs, launch.output)]
    in_parts = any(buffer.block == name for buffer in buffers.values())
    floats = buffers[name].dtype not in INTEGERS
    taken = all(getattr(operation, "any_strides", False) for operation in touching)
    return bool(touching) and taken and floats and not in_parts
