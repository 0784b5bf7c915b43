"""Losses: one number each, for a model and its loss in one plan."""

from __future__ import annotations

from typing import Any

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.torch.lowering.lower import (
    GraphLowering,
    LoweredValue,
    UnsupportedPatternError,
    rule,
)

#: ATen's numbers of what is done with the losses of all elements.
_REDUCTIONS = {1: "mean", 2: "sum"}


def _reduced(reduction: int) -> str:
    if reduction not in _REDUCTIONS:
        raise UnsupportedPatternError("with reduction 'none': a loss is one number")
    return _REDUCTIONS[reduction]


def _target(target: Any) -> Tensor:
    if not isinstance(target, LoweredValue) or not target.is_plain:
        raise UnsupportedPatternError("the target is to be an argument, as it is")
    return target.tensor


@rule("cross_entropy_loss")
def cross_entropy(
    to: GraphLowering,
    self: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> LoweredValue:
    weights = None if weight is None else to.given(weight)
    loss = to.net.softmax_cross_entropy(
        to.plain(self),
        _target(target),
        weights=weights,
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
        reduction=_reduced(reduction),
        name=to.name("loss"),
    )
    return LoweredValue(loss, ())


@rule("binary_cross_entropy_with_logits")
def sigmoid_cross_entropy(
    to: GraphLowering, self: Any, target: Any, weight: Any, pos_weight: Any, reduction: int
) -> LoweredValue:
    weights = {"weight": weight, "positive_weight": pos_weight}
    loss = to.net.sigmoid_cross_entropy(
        to.plain(self),
        _target(target),
        reduction=_reduced(reduction),
        name=to.name("loss"),
        **{
            name: to.given(each, [1] * (len(self.shape) - len(each.shape)) + list(each.shape))
            for name, each in weights.items()
            if each is not None  # a vector lies along the last axis, the network's along channels
        },
    )
    return LoweredValue(loss, ())


@rule("mse_loss")
def mean_squared_error(to: GraphLowering, self: Any, target: Any, reduction: int) -> LoweredValue:
    loss = to.net.mean_squared_error(
        to.plain(self), _target(target), reduction=_reduced(reduction), name=to.name("loss")
    )
    return LoweredValue(loss, ())
