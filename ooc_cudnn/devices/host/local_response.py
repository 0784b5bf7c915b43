"""Local response normalization on the host: boxes of sites, each with all its channels."""

from __future__ import annotations

import numpy as np

from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner, arithmetic_dtype
from ooc_cudnn.devices.host.softmax import boxes_of_sites
from ooc_cudnn.operations.normalization.local_response import LocalResponse, LocalResponseBackward


def local_response(
    operation: LocalResponse, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """y = x / s ** beta."""
    (x,) = inputs
    for n, _, *spatial in boxes_of_sites(x):
        box = (n, slice(None), *spatial)
        part = x[box].astype(arithmetic_dtype(operation.dtype))
        np.copyto(output[box], operation.made(part), casting="unsafe")


def local_response_backward(
    operation: LocalResponseBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """dx = dy / s ** beta - 2 alpha beta / size * x * sum(dy x / s ** (beta + 1))."""
    x, dy = inputs
    dtype = arithmetic_dtype(operation.dtype)
    for n, _, *spatial in boxes_of_sites(x):
        box = (n, slice(None), *spatial)
        own, others = operation.terms(x[box].astype(dtype), dy[box].astype(dtype))
        np.copyto(output[box], own - others, casting="unsafe")


RUNNERS: dict[type, Runner] = {
    LocalResponse: local_response,
    LocalResponseBackward: local_response_backward,
}
