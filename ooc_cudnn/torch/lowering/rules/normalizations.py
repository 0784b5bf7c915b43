"""Normalizations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.tensor import ACCUMULATOR
from ooc_cudnn.torch.lowering.lower import (
    GraphLowering,
    LoweredValue,
    UnsupportedPatternError,
    rule,
)
from ooc_cudnn.torch.tracing.graph import Value

#: What sums are held wider than.
HALVES = frozenset(name for name, wide in ACCUMULATOR.items() if name != wide)


@rule("batch_norm")
def batch_normalization(
    to: GraphLowering,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> LoweredValue:
    x, name = to.plain(input), to.name()
    lasting = {"running_mean": running_mean, "running_variance": running_var}
    if any(isinstance(each, LoweredValue) for each in (weight, bias, *lasting.values())):
        raise UnsupportedPatternError(
            "a vector of it depends on the inputs: multiply by that, or add it, behind F.batch_norm"
        )
    if training and running_mean is not None and not math.isfinite(momentum):
        raise UnsupportedPatternError(f"of momentum {momentum}: set a finite number")
    if not training and to.training:
        if x.dtype in HALVES:
            raise UnsupportedPatternError("of half precision by running statistics, with gradients")
        return _by_running_statistics(to, x, (running_mean, running_var, weight, bias), eps)
    running = {
        role: None
        if value is None
        else to.statistics(value, f"{name}.{role}", ACCUMULATOR[x.dtype])
        for role, value in lasting.items()
    }
    y = to.net.batch_normalization(
        x,
        epsilon=eps,
        exponential_average_factor=momentum if training and running_mean is not None else 0.0,
        ranks=to.ranks(),
        name=name,
        **_vectors(to, x, weight, bias),
        **running,
    )
    for role, value in lasting.items():
        if isinstance(value, Value):
            to.now_lasting(value, f"{name}.{role}")
    _frozen(to, name, weight, bias)
    return LoweredValue.of(y)


def _by_running_statistics(
    to: GraphLowering, x: Tensor, vectors: tuple[Value | None, ...], epsilon: float
) -> LoweredValue:
    """One factor and one summand a channel, which PyTorch makes: so they have gradients."""

    def factor(mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
        found = (variance + epsilon).rsqrt()
        return found if weight is None else weight * found

    def summand(mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
        found = -mean * factor(mean, variance, weight, bias)
        return found if bias is None else bias + found

    shape = [1, x.shape[1], *(1 for _ in x.shape[2:])]
    scale, shift = (
        to.given(to.made_before(each.__name__, each, *vectors), shape) for each in (factor, summand)
    )
    product = to.net.multiply(x, scale, name=to.name("scale"))
    return LoweredValue.of(to.net.add(product, shift, name=to.name()))


def _vectors(to: GraphLowering, x: Tensor, weight: Any, bias: Any) -> dict[str, Any]:
    """Scale and bias, in the type that sums are held in."""
    dtype = getattr(torch, ACCUMULATOR[x.dtype])
    return {
        name: None if value is None else to.parameter(to.widened(value, dtype))
        for name, value in (("scale", weight), ("bias", bias))
    }


def _frozen(to: GraphLowering, name: str, weight: Any, bias: Any) -> None:
    if weight is None:
        to.net.freeze(f"{name}.scale")
    if bias is None:
        to.net.freeze(f"{name}.bias")


@rule("group_norm")
def group_normalization(
    to: GraphLowering,
    input: Any,
    num_groups: int,
    weight: Any,
    bias: Any,
    eps: float,
    cudnn_enabled: bool,
) -> LoweredValue:
    x, name = to.plain(input), to.name()
    vectors = _vectors(to, x, weight, bias)
    made = to.net.group_normalization(x, num_groups, epsilon=eps, name=name, **vectors)
    _frozen(to, name, weight, bias)
    return LoweredValue.of(made)


@rule("instance_norm")
def instance_normalization(
    to: GraphLowering,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> LoweredValue:
    if running_mean is not None:
        raise UnsupportedPatternError("with running statistics")
    x, name = to.plain(input, least=3), to.name()
    y = to.net.instance_normalization(x, epsilon=eps, name=name, **_vectors(to, x, weight, bias))
    _frozen(to, name, weight, bias)
    return LoweredValue.of(y)


@rule("layer_norm")
def layer_normalization(
    to: GraphLowering,
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any,
    bias: Any,
    eps: float,
    cudnn_enable: bool,
) -> LoweredValue:
    if not isinstance(input, LoweredValue) or len(normalized_shape) != 1 or input.axes[-1] != 1:
        raise UnsupportedPatternError(f"over {list(normalized_shape)}: over channels there is one")
    name = to.name()
    vectors = _vectors(to, input.tensor, weight, bias)
    y = to.net.layer_normalization(input.tensor, epsilon=eps, name=name, **vectors)
    _frozen(to, name, weight, bias)
    return LoweredValue(y, input.axes)


@rule("local_response_norm")
def local_response(to: GraphLowering, **arguments: Any) -> LoweredValue:
    raise UnsupportedPatternError("local response normalization")
