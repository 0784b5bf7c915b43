"""Linear layers on the host: images of one site as the sites of one image, in one product.

Else each image would be a product of its own, of a matrix and a vector: ten times as long. Not in
`deterministic`, where an image's result must not depend on those beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner
from ooc_cudnn.operations.convolution.forward import Convolution


def join_sites(forward: Convolution) -> Convolution:
    """The same on the sites of one image, where each image has one site; else as it is.

    >>> join_sites(Convolution.of((8, 3, 1, 1), (5, 3, 1, 1))).x_shape
    (1, 3, 8)
    """
    shapes = (forward.x_shape, forward.w_shape, forward.output_shape)
    if (
        forward.deterministic
        or forward.x_shape[0] == 1
        or any(math.prod(shape[2:]) != 1 for shape in shapes)
        or any(pair != (0, 0) for pair in forward.padding)
    ):
        return forward
    n, c = forward.x_shape[:2]
    return replace(
        forward,
        x_shape=(1, c, n),
        w_shape=(*forward.w_shape[:2], 1),
        padding=((0, 0),),
        stride=(1,),
        dilation=(1,),
    )


def of_forward(operation: Any) -> Any:
    """A convolution joined, or a gradient of one that is."""
    if isinstance(operation, Convolution):
        return join_sites(operation)
    return replace(operation, forward=join_sites(operation.forward))


def run_joined(run: Runner, filters: int) -> Runner:
    """A runner that takes images of one site together.

    Of its inputs and its output, the one at `filters` is the filters, or their gradient.
    """

    def joined_run(operation: Any, inputs: Inputs, output: Array, workspace: Array) -> None:
        joined, arrays = of_forward(operation), [*inputs, output]
        if joined != operation:
            arrays = [array[(..., *[0] * (array.ndim - 2))] for array in arrays]
            arrays = [
                array[..., np.newaxis] if at == filters else array.T[np.newaxis]
                for at, array in enumerate(arrays)
            ]
        run(joined, tuple(arrays[:-1]), arrays[-1], workspace)

    return joined_run


def sizing(ask: Callable[[Any], int]) -> Callable[[Any], int]:
    """The scratch bytes of what is joined."""
    return lambda operation: ask(of_forward(operation))
