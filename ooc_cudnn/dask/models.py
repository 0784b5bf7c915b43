"""PyTorch models on dask arrays: captured once, each block of the result a task."""

from __future__ import annotations

from typing import Any

import dask.array as da

from ooc_cudnn.dask.chunks import as_dask
from ooc_cudnn.dask.networks import lazily_forward


def infer(model: Any, *inputs: Any) -> da.Array:
    """Run a PyTorch model forward on dask arrays, lazily: `ooc_cudnn.torch.infer` in blocks.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation: ``model.eval()``. Its parameters are taken as they are now.
    *inputs : dask array
        Chunked along images and any spatial axis, in the model's dtype.

    Returns
    -------
    dask array
        Of NumPy arrays, chunked as the first input is.

    Raises
    ------
    UnsupportedModelError
        As `ooc_cudnn.torch.infer`; if the model makes several results, or what PyTorch itself must
        run on them.
    ValueError
        If chunks cut images that a layer needs whole; it is named.

    Examples
    --------
    >>> import dask.array as da, torch, ooc_cudnn.dask as ooc
    >>> slide = da.zeros((1, 3, 64, 64), chunks=(1, 3, 32, 32), dtype="float32")
    >>> ooc.infer(torch.nn.Conv2d(3, 2, 3).eval(), slide).shape
    (1, 2, 62, 62)
    """
    import torch

    from ooc_cudnn.torch.call import ReadyModel
    from ooc_cudnn.torch.capture import device_of, fake_like
    from ooc_cudnn.torch.errors import UnsupportedModelError
    from ooc_cudnn.torch.limit import own_forward
    from ooc_cudnn.torch.lower import LoweredValue

    arrays = [as_dask(each, f"input {at}") for at, each in enumerate(inputs)]
    with torch.no_grad(), own_forward(model) as forward:
        ready = ReadyModel(
            model,
            forward,
            fake_like(arrays, device_of(model)),
            {},
            None,
            frozenset(),
            with_gradients=False,
        )
        lowered, lasting = ready.lowered, ready.lasting()
    name = type(model).__name__
    results = lowered.results
    if len(results) != 1 or not isinstance(results[0], LoweredValue) or lowered.after:
        raise UnsupportedModelError(
            f"{name} does not end in one map of the network's: give a part of it that does"
        )
    if not results[0].is_plain:
        raise UnsupportedModelError(f"{name} permutes the axes of its result: do that with dask's")
    values = dict(zip(ready.graph.inputs, arrays, strict=True))
    chunked = {each: values[given.value] for each, given in lowered.inputs.items()}
    plain = {each: tensor.detach().cpu().numpy().copy() for each, tensor in lasting.items()}
    return lazily_forward(lowered.network.forward_phases(results[0].tensor), chunked, plain)
