"""`infer`: a model on a whole image of any size, to any array; and the shape that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ooc_cudnn.network.inferring import ForwardStep
from ooc_cudnn.network.terms import Limit
from ooc_cudnn.torch.call import ReadyModel
from ooc_cudnn.torch.capture import capture, fake_like
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.graph import Value
from ooc_cudnn.torch.limit import own_forward


def infer(model: torch.nn.Module, *inputs: Any, out: Any = None, memory_limit: Limit = None) -> Any:
    """Run a model forward, exactly, on inputs of any size, wherever they and the result lie.

    No windows, no overlap: the result is that of the whole image.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation, usually: ``model.eval()``.
    *inputs : Tensor or array
        NumPy arrays, memmaps and pinned memory are read piece by piece.
    out : array, optional
        Where to write the result: any placement, of `output_shape` and the result's dtype.
    memory_limit : int, float or str, optional
        As for `limit`.

    Returns
    -------
    Tensor, tree of tensors, or `out`

    Raises
    ------
    TypeError, ValueError
        If `out` has not the result's shape or dtype, or is given for several results.
    UnsupportedModelError, PlanInfeasibleError
        As for `limit`.

    Examples
    --------
    >>> import numpy as np, torch, ooc_cudnn, ooc_cudnn.torch as ooc
    >>> model, image = torch.nn.Conv2d(3, 2, 3).eval(), np.ones((1, 3, 64, 64), "float32")
    >>> result = np.empty(ooc.output_shape(model, image.shape), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     ooc.infer(model, image, out=result, memory_limit="64KiB") is result
    True
    """
    with torch.no_grad(), own_forward(model) as forward:
        ready = ReadyModel(
            model,
            forward,
            fake_like(inputs, _device_of(model)),
            {},
            memory_limit,
            frozenset(),
            with_gradients=False,
        )
        if out is None:
            return ready(inputs)
        if len(ready.lowered.results) != 1 or not isinstance(ready.step, ForwardStep):
            raise TypeError("out is given, but the model makes several results")
        ready(inputs, out)
        return out


def output_shape(
    model: torch.nn.Module, *shapes: Sequence[int]
) -> tuple[int, ...] | tuple[tuple[int, ...], ...]:
    """The shape that a model makes of arguments of some shapes (of each, where there are several).

    Nothing is computed, and no memory taken.

    Examples
    --------
    >>> import torch, ooc_cudnn.torch as ooc
    >>> ooc.output_shape(torch.nn.Conv2d(3, 8, 3), (1, 3, 65536, 65536))
    (1, 8, 65534, 65534)
    """
    first = next(model.parameters(), None)
    dtype = torch.get_default_dtype() if first is None else first.dtype
    asked = [torch.empty(tuple(each), dtype=dtype, device="meta") for each in shapes]
    with torch.no_grad(), own_forward(model) as forward:
        graph = capture(model, forward, fake_like(asked, _device_of(model)), {})
    found = tuple(each.shape for each in graph.outputs if isinstance(each, Value))
    if not found:
        raise UnsupportedModelError(f"{type(model).__name__} returns no tensor")
    return found[0] if len(found) == 1 else found


def _device_of(model: torch.nn.Module) -> Any:
    held = next(model.parameters(), None)
    return "cpu" if held is None else held.device
