"""Dropout on the host, chunk by chunk: the numbers of a chunk are made where it is written."""

from __future__ import annotations

import numpy as np

from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner, arithmetic_dtype, chunks
from ooc_cudnn.operations.elementwise.dropout import Advance, Dropout


def dropout(operation: Dropout, inputs: Inputs, output: Array, workspace: Array) -> None:
    """y = x times 1 / (1 - p), or 0."""
    x, state = inputs
    dtype = arithmetic_dtype(operation.dtype)
    for box in chunks(output):
        result = x[box].astype(dtype)
        result *= operation.factors(box, state).astype(dtype)
        np.copyto(output[box], result, casting="unsafe")


def advance(operation: Advance, inputs: Inputs, output: Array, workspace: Array) -> None:
    """The next offset."""
    output[...] = inputs[0] + np.array([0, 1])


RUNNERS: dict[type, Runner] = {Dropout: dropout, Advance: advance}
