"""The public functions on dask arrays: the same names, arguments and results, lazily.

Each asks the plain function's own description, so arguments, checks and messages are the same. What
is written in place has no meaning for dask arrays: there is no `out`, and so no `beta`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import dask.array as da

from ooc_cudnn.dask.lazily import (
    describe_operands,
    drop_scaling,
    lazily,
    map_blocks,
    scaled_to,
    sum_blocks,
)
from ooc_cudnn.functions.call.arguments import check_scaling
from ooc_cudnn.functions.call.decorator import FUNCTIONS
from ooc_cudnn.functions.call.spec import Description

#: Arguments of the plain functions that say where to write.
WRITTEN = ("out", "beta", "running_mean", "running_variance")


def on_dask(name: str) -> Callable[..., Any]:
    """Make the function on dask arrays of a plain one; what it decorates makes the result.

    That is handed the arguments by name, all of them.
    """
    describe = FUNCTIONS[name]
    signature = inspect.signature(describe)
    dask_signature = signature.replace(
        parameters=[
            each
            for each in signature.parameters.values()
            if each.name not in WRITTEN or (name, each.name) == ("add_tensor", "beta")
        ],
        return_annotation=Any,
    )

    def decorate(make: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(describe)
        def called(*args: Any, **kwargs: Any) -> Any:
            for operand in WRITTEN:
                if kwargs.get(operand) is not None and operand not in dask_signature.parameters:
                    raise TypeError(
                        f"{name} on dask arrays takes no {operand}: they are not written in place. "
                        "Use the array it returns; da.to_zarr and da.store write it"
                    )
            bound = dask_signature.bind(*args, **kwargs)
            bound.apply_defaults()
            check_scaling(bound.arguments)
            return make(**bound.arguments)

        called.__signature__ = dask_signature  # type: ignore[attr-defined]
        called.__doc__ = _documented(name, inspect.getdoc(describe) or "")
        return called

    return decorate


def _documented(name: str, text: str) -> str:
    first, _, _ = text.partition("\n")
    return (
        f"{first}\n\n`ooc_cudnn.{name}` on dask arrays, lazily: arguments, dtypes and errors are "
        "the same.\n\nReturns\n-------\ndask array, or a tuple of them\n"
    )


def described_as(name: str, **arguments: Any) -> Description:
    """The description of a call with these arguments."""
    return FUNCTIONS[name](**arguments)


def _plain(name: str) -> Callable[..., Any]:
    def make(**arguments: Any) -> da.Array:
        return lazily(name, described_as(name, **arguments))

    return on_dask(name)(make)


convolution_forward = _plain("convolution_forward")
convolution_backward_data = _plain("convolution_backward_data")
activation_forward = _plain("activation_forward")
activation_backward = _plain("activation_backward")
pooling_forward = _plain("pooling_forward")
pooling_backward = _plain("pooling_backward")
batch_normalization_forward_inference = _plain("batch_normalization_forward_inference")
convolution_add_activation_forward = _plain("convolution_add_activation_forward")
convolution_add_activation_pooling_forward = _plain("convolution_add_activation_pooling_forward")
chain_forward = _plain("chain_forward")


@on_dask("add_tensor")
def add_tensor(*, b: Any, y: Any, alpha: float, beta: float) -> da.Array:
    """A new array in place of y."""
    return lazily("add_tensor", described_as("add_tensor", b=b, y=y, alpha=alpha, beta=beta, out=y))


def _whole_images(array: Any) -> Any:
    """An array whose images are a chunk each."""
    if isinstance(array, da.Array) and array.ndim > 1:
        return array.rechunk(dict.fromkeys(range(1, array.ndim), -1))
    return array


def _softmax(name: str) -> Callable[..., Any]:
    def make(**arguments: Any) -> da.Array:
        if arguments["mode"] == "instance":
            arrays = (each for each in ("x", "y", "dy") if each in arguments)
            arguments |= {each: _whole_images(arguments[each]) for each in arrays}
        arrays_of, call = describe_operands(name, described_as(name, **arguments))
        return map_blocks(name, call, arrays_of)

    return on_dask(name)(make)


softmax_forward = _softmax("softmax_forward")
softmax_backward = _softmax("softmax_backward")


def _sum(name: str) -> Callable[..., Any]:
    def make(**arguments: Any) -> da.Array:
        arrays, call = describe_operands(name, described_as(name, **arguments))
        result = call.operands[call.results[0]]
        finish = scaled_to(call.alpha, result.dtype)
        return sum_blocks(
            name, drop_scaling(call), arrays, finish, shape=result.shape, dtype=result.dtype
        )

    return on_dask(name)(make)


convolution_backward_filter = _sum("convolution_backward_filter")
convolution_backward_bias = _sum("convolution_backward_bias")


@on_dask("convolution_add_activation_backward")
def convolution_add_activation_backward(
    *, x: Any, w: Any, y: Any, dy: Any, activation: str, coef: float | None, alpha: float,
    **geometry: Any,
) -> tuple[da.Array, da.Array, da.Array]:  # fmt: skip
    """The three gradients, of one gradient of the activation."""
    name = "convolution_add_activation_backward"
    options = {"activation": activation, "coef": coef, **geometry}
    arrays, call = describe_operands(name, described_as(name, x=x, w=w, y=y, dy=dy, **options))
    z = activation_backward(arrays["y"], arrays["dy"], mode=activation, coef=coef)
    shapes = {name: call.operands[name].shape for name in ("x", "w")}
    scaled = {**geometry, "alpha": alpha}
    return (
        convolution_backward_data(arrays["w"], z, input_shape=shapes["x"], **scaled),
        convolution_backward_filter(arrays["x"], z, filter_shape=shapes["w"], **scaled),
        convolution_backward_bias(z, alpha=alpha),
    )
