"""Masks as bits on the host, byte by byte of the mask."""

from __future__ import annotations

import numpy as np

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host.chunks import (
    Array,
    Box,
    Inputs,
    Runner,
    arithmetic_dtype,
    chunks,
    kept_where,
)
from ooc_cudnn.operations.elementwise.activation_bitmask import (
    BITS,
    PASSES,
    MaskedGradient,
    SlopeMask,
)


def slope_mask(operation: SlopeMask, inputs: Inputs, output: Array, workspace: Array) -> None:
    """A bit an element: whether its slope is 1."""
    (x,) = inputs
    dtype = arithmetic_dtype(operation.dtype)
    for box in chunks(output, _most()):
        bits = PASSES[operation.mode](
            x[_elements(box, x)].astype(dtype, copy=False), operation.coef
        )
        output[box] = np.packbits(bits, axis=-1, bitorder="little")


def masked_gradient(
    operation: MaskedGradient, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """dx = dy where the bit is 1, else dy * slope, or 0."""
    mask, dy = inputs
    dtype = arithmetic_dtype(operation.dtype)
    for box in chunks(mask, _most()):
        place = _elements(box, dy)
        gradient = dy[place].astype(dtype)
        bits = np.unpackbits(mask[box], axis=-1, count=gradient.shape[-1], bitorder="little")
        if operation.slope is None:
            result = kept_where(bits == 1, gradient)
        else:
            result = np.where(bits == 1, gradient, gradient * dtype.type(operation.slope))
        np.copyto(output[place], result, casting="unsafe")


def _most() -> int:
    """Bytes of a mask that are worked on at a time."""
    return max(1, host_chunks.CHUNK_ELEMENTS // BITS)


def _elements(box: Box, tensor: Array) -> Box:
    """The elements whose bits are in a box of the mask."""
    last = box[-1]
    return (*box[:-1], slice(last.start * BITS, min(last.stop * BITS, tensor.shape[-1])))


RUNNERS: dict[type, Runner] = {SlopeMask: slope_mask, MaskedGradient: masked_gradient}
