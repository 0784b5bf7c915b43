"""Losses: one number, of shape (1,) and float64 whatever the data; and sums that they are made of.

Each row of each image gives a number, or some, and these are added up in one order: the loss is the
same to the last bit, however the batch is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.row_axis import height
from ooc_cudnn.operations.losses.calls import (
    CrossEntropyCall,
    CrossEntropyGradientCall,
    ElementLossCall,
    ElementLossGradientCall,
    LabelWeightsCall,
    TotalCall,
)
from ooc_cudnn.operations.losses.class_sums import (
    ClassSumsCall,
    ClassSumsGradientCall,
    RowTotalsCall,
)
from ooc_cudnn.operations.losses.launches import SQUARED

REDUCTIONS = ("mean", "sum")


def _given(**operands: Tensor | None) -> dict[str, Tensor]:
    """The operands that are there."""
    return {name: tensor for name, tensor in operands.items() if tensor is not None}


@dataclass(frozen=True)
class _Loss(Node):
    """A loss of x and what it is compared with."""

    x: Tensor

    @property
    def rows(self) -> Shape:
        """The shape of one number for each row of each image."""
        return self.x.shape[0], height(self.x.shape)

    def total(
        self, emit: Forward, losses: Tensor, scale: float = 1.0, divisor: Tensor | None = None
    ) -> None:
        """Add the losses of all rows up."""
        call = TotalCall(self.rows, scale, divisor is not None)
        emit.phase("loss", call, **_given(losses=losses, divisor=divisor, loss=self.y))


@dataclass(frozen=True)
class SoftmaxCrossEntropy(_Loss):
    """The cross entropy of softmax(x) and labels, as PyTorch's ``cross_entropy`` has it.

    A mean divides by the sum of the labels' weights in the whole batch: phases of their own make
    it of the labels alone.
    """

    labels: Tensor
    weights: Tensor | None
    smoothing: float
    ignore_index: int
    reduction: str

    @property
    def _shared(self) -> tuple[Shape, str, str, bool, int]:
        """The arguments that all its calls share."""
        weighted = self.weights is not None
        return self.x.shape, self.x.dtype, self.labels.dtype, weighted, self.ignore_index

    def _divisor(self, emit: Forward | Backward) -> Tensor | None:
        return emit.saved("divisor", (1,), "float64") if self.reduction == "mean" else None

    def forward(self, emit: Forward) -> None:
        of_labels = _given(labels=self.labels, weights=self.weights)
        divisor = self._divisor(emit)
        if divisor is not None:
            counts = emit.saved("label_weights", self.rows, "float64")
            call = LabelWeightsCall(*self._shared)
            emit.phase("label weights", call, **of_labels, losses=counts)
            emit.phase("divisor", TotalCall(self.rows, of_batch=True), losses=counts, loss=divisor)
        losses = emit.saved("losses", self.rows, "float64")
        entropy = CrossEntropyCall(*self._shared, self.smoothing)
        emit.phase("forward", entropy, x=self.x, **of_labels, losses=losses)
        self.total(emit, losses, divisor=divisor)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        divisor = self._divisor(emit)
        call = CrossEntropyGradientCall(*self._shared, self.smoothing, divided=divisor is not None)
        reads = _given(x=self.x, labels=self.labels, weights=self.weights, divisor=divisor, dy=dy)
        emit.gradient("data gradient", call, reads, dx=self.x)


@dataclass(frozen=True)
class SoftmaxClassSums(_Loss):
    """Sums over the positions of each image of softmax(x) and labels, class by class."""

    labels: Tensor

    @property
    def differentiable_inputs(self) -> tuple[Tensor, ...]:
        return (self.x,)

    @property
    def _shared(self) -> tuple[Shape, str, str]:
        return self.x.shape, self.x.dtype, self.labels.dtype

    def forward(self, emit: Forward) -> None:
        call = ClassSumsCall(*self._shared)
        rows = (*self.rows, *call.of_row)
        sums = emit.saved("row_sums", rows, "float64")
        emit.phase("forward", call, x=self.x, labels=self.labels, losses=sums)
        totals = RowTotalsCall(rows, self.y.dtype)
        emit.phase("sums", totals, losses=sums, loss=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        call = ClassSumsGradientCall(*self._shared)
        emit.gradient("data gradient", call, _given(x=self.x, labels=self.labels, dy=dy), dx=self.x)


@dataclass(frozen=True)
class ElementLoss(_Loss):
    """A loss of x and a target, element by element: of squares, or the entropy of sigmoid(x).

    The weights, shaped to be broadcast, are of elements and of what is positive.
    """

    target: Tensor
    weight: Tensor | None
    positive: Tensor | None
    mode: str
    reduction: str

    @property
    def _shared(self) -> tuple[Shape, str, str, Shape | None, Shape | None]:
        """The arguments that both calls share."""
        weight, positive = self._wide(self.weight), self._wide(self.positive)
        return self.x.shape, self.x.dtype, self.mode, weight, positive

    def _wide(self, weights: Tensor | None) -> Shape | None:
        """The shape in which weights are broadcast: one value per channel has one axis."""
        if weights is None:
            return None
        if len(weights.shape) > 1:
            return weights.shape
        return (1, *weights.shape, *[1] * (len(self.x.shape) - 2))

    @property
    def _scale(self) -> float:
        return 1 / math.prod(self.x.shape) if self.reduction == "mean" else 1.0

    def forward(self, emit: Forward) -> None:
        losses = emit.saved("losses", self.rows, "float64")
        reads = _given(x=self.x, target=self.target, weight=self.weight, positive=self.positive)
        emit.phase("forward", ElementLossCall(*self._shared), **reads, losses=losses)
        self.total(emit, losses, self._scale)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        call = ElementLossGradientCall(*self._shared, self._scale)
        reads = _given(
            x=self.x, target=self.target, weight=self.weight, positive=self.positive, dy=dy
        )
        emit.gradient("data gradient", call, reads, dx=self.x)
        if self.mode != SQUARED and emit.wants(self.target):
            raise ValueError(f"{self.name}: its target, {self.target.name}, has no gradient here")
        reads |= {"x": self.target, "target": self.x}  # squares are the same for both
        emit.gradient("target gradient", call, reads, dx=self.target)


@dataclass(frozen=True)
class TotalLoss(Node):
    """The sum of losses, each times a factor: the main head's and those of auxiliary ones."""

    losses: tuple[Tensor, ...]
    factors: tuple[float, ...]

    def forward(self, emit: Forward) -> None:
        for at, (loss, factor) in enumerate(zip(self.losses, self.factors, strict=True)):
            call = TotalCall((1, 1), factor, of_batch=True, beta=1.0 if at else 0.0)
            emit.phase(f"loss {at}", call, losses=loss, loss=self.y)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        for at, (loss, factor) in enumerate(zip(self.losses, self.factors, strict=True)):
            call = TotalCall((1, 1), factor, of_batch=True)
            emit.gradient(f"gradient {at}", call, {"losses": dy}, loss=loss)
