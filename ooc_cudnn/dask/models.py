"""PyTorch models on dask arrays: captured once, each block of the result a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np

from ooc_cudnn.dask.chunks import as_dask
from ooc_cudnn.dask.networks import lazily_forward
from ooc_cudnn.keywords import explaining


@explaining
def infer(
    model: Any, *inputs: Any, reduce: str | None = None, scale: float | None = None
) -> da.Array:
    """Run a PyTorch model forward on dask arrays, lazily: `ooc_cudnn.torch.infer` in blocks.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation: ``model.eval()``. Its parameters are taken as they are now.
    *inputs : dask array
        Chunked along images and any spatial axis, in the model's dtype.
    reduce : str, optional
        "argmax": labels in place of scores, as ``scores.argmax(1)``, of the first of uint8, uint16
        and int32 that has a number for every class.
    scale : float, optional
        As for `ooc_cudnn.torch.limit`: chunks of integers are multiplied by it where the model
        runs. They travel as they are stored.

    Returns
    -------
    dask array
        Of NumPy arrays, chunked as the first input is.

    Raises
    ------
    UnsupportedModelError
        As `ooc_cudnn.torch.infer`; if the model makes several results, or what PyTorch itself must
        run on them; if it draws random numbers, or changes what it holds.
    TypeError, ValueError
        If `reduce` or `scale` is none of what they may be; if the model does not take the inputs;
        if chunks cut images that a layer needs whole: it is named.

    Examples
    --------
    >>> import dask.array as da, torch, ooc_cudnn.dask as ooc
    >>> slide = da.zeros((1, 3, 64, 64), chunks=(1, 3, 32, 32), dtype="float32")
    >>> ooc.infer(torch.nn.Conv2d(3, 2, 3).eval(), slide).shape
    (1, 2, 62, 62)
    >>> ooc.infer(torch.nn.Conv2d(3, 2, 3).eval(), slide, reduce="argmax").dtype
    dtype('uint8')
    """
    import torch

    from ooc_cudnn.torch.errors import UnsupportedModelError
    from ooc_cudnn.torch.inferring import capture_for_inference, check_evaluation
    from ooc_cudnn.torch.lowering.labels import LEAST
    from ooc_cudnn.torch.lowering.lower import LoweredValue

    arrays = [as_dask(each, f"input {at}") for at, each in enumerate(inputs)]
    with torch.no_grad():
        captures, call = capture_for_inference(model, arrays, None, reduce, LEAST, scale)
        ready, tensors = captures.find(call)
        check_evaluation(model, ready)
        _check_blocks(model, ready)
        lowered = ready.lowered
        held = ready.lasting(tensors)
    name = type(model).__name__
    results = lowered.results
    if len(results) != 1 or not isinstance(results[0], LoweredValue) or lowered.after:
        raise UnsupportedModelError(
            f"{name} does not end in one map of the network's: give a part of it that does"
        )
    values = {value: arrays[int(value.source)] for value in ready.graph.inputs}
    values |= _cast(lowered.before, values)
    chunked = {
        each: values[given.value].reshape(given.shape)
        for each, given in lowered.inputs.items()
        if given.value in values
    }
    plain = {each: tensor.detach().cpu().numpy().copy() for each, tensor in held.items()}
    # What is the model's own and meets its maps: one chunk each. The maps come first, for blocks
    # of the result follow the chunks of the first.
    chunked |= {each: as_dask(plain.pop(each), each) for each in lowered.inputs if each in plain}
    step = lowered.network.forward_phases(results[0].tensor)
    for own in (lowered.network.parameters, lowered.network.running):  # constants of operations
        plain |= {
            each: np.array(own[each]) for each in own if each in step.touched and each not in plain
        }
    result = lazily_forward(step, chunked, plain)
    return result[:, 0] if reduce else result.transpose(results[0].axes)


def _check_blocks(model: Any, ready: Any) -> None:
    """Refuse what blocks, each made by itself when it is asked for, cannot do as one call does."""
    from ooc_cudnn.torch.errors import UnsupportedModelError
    from ooc_cudnn.torch.tracing.normalizing import is_statistics_update

    name = type(model).__name__
    of_python = (each for each in ready.graph.given if each.name.startswith("random_value_"))
    if ready.draws or any(of_python):
        raise UnsupportedModelError(
            f"{name} draws random numbers in evaluation, and blocks cannot draw those of one call: "
            "give them as an input, or use ooc_cudnn.torch.infer"
        )
    written = {write.target for write in ready.graph.writes}
    written |= {
        value
        for operation in ready.graph.operations
        if is_statistics_update(operation)
        for value in operation.reads
        if value.kind == "buffer"
    }
    if written:
        held = ", ".join(
            sorted(f"input {e.source}" if e.kind == "input" else e.source for e in written)
        )
        raise UnsupportedModelError(
            f"{name} changes {held} in forward, and blocks, each made when it is asked for, do "
            "not: leave that as it is in evaluation, or use ooc_cudnn.torch.infer"
        )


def _cast(before: Sequence[Any], values: Mapping[Any, da.Array]) -> dict[Any, da.Array]:
    """Inputs in types that the network has, where theirs are none: chunk by chunk."""
    return {
        made: values[operation.reads[0]].map_blocks(
            _by_pytorch, operation.function, dtype=str(made.dtype).removeprefix("torch.")
        )
        for operation in before
        for made in operation.results
        if operation.reads[0] in values
    }


def _by_pytorch(chunk: Any, function: Any) -> Any:
    import torch

    return function(torch.from_numpy(np.ascontiguousarray(chunk))).numpy()
