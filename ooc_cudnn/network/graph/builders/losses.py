"""Builders of losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooc_cudnn.network.graph.builders.base import Builders, builder
from ooc_cudnn.network.graph.initializers import ones
from ooc_cudnn.network.graph.nodes.losses import (
    REDUCTIONS,
    ElementLoss,
    SoftmaxClassSums,
    SoftmaxCrossEntropy,
    TotalLoss,
)
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.window_arguments import is_int
from ooc_cudnn.operations.elementwise.binary import check_broadcast
from ooc_cudnn.operations.losses.launches import SIGMOID, SQUARED
from ooc_cudnn.tensor import ACCUMULATOR, INTEGERS


class LossBuilders(Builders):
    """Losses, each one number of float64: what `training_step` starts from; and what makes such."""

    @builder
    def softmax_cross_entropy(
        self,
        x: Tensor,
        labels: Tensor,
        *,
        weights: Any = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        name: str = "",
    ) -> Tensor:
        """The cross entropy of softmax(x) and labels, as PyTorch's ``cross_entropy``.

        Parameters
        ----------
        x : Tensor, shape (n, classes, up to 3 spatial axes)
            Logits.
        labels : Tensor, shape (n, spatial axes...)
            An input of integers. One that is no class, and is not ignored, makes the loss NaN.
        weights : array or Tensor, shape (classes,), optional
            Of the classes; float32, with logits of float64 float64.
        label_smoothing : float
            The share of the target that is spread evenly over all classes, from 0 to 1.
        ignore_index : int
            Labels that do not count.
        reduction : str
            "mean", by the sum of the weights of all labels that count; or "sum".
        """
        x = self._own(x)
        if len(x.shape) not in (2, 3, 4, 5):
            raise ValueError(f"x must have shape (n, classes, up to 3 axes), not {x.shape}")
        n, classes, *sites = x.shape
        target = self._labels(labels, (n, *sites))
        _check_reduction(reduction)
        smoothing = float(label_smoothing)
        if not 0 <= smoothing <= 1:
            raise ValueError(f"label_smoothing must be from 0 to 1, not {label_smoothing!r}")
        if not is_int(ignore_index):
            raise TypeError(f"ignore_index must be an int, not {ignore_index!r}")
        of_classes = self._constant(name, "weights", weights, (classes,), ACCUMULATOR[x.dtype])
        y = self._result(name, (1,), "float64")
        return self._add(
            SoftmaxCrossEntropy(
                name, y, x, target, of_classes, smoothing, int(ignore_index), reduction
            )
        )

    @builder
    def softmax_class_sums(self, x: Tensor, labels: Tensor, *, name: str = "") -> Tensor:
        """Sums that a soft Dice loss is made of.

        With p = softmax(x) over the classes, and t = 1 for the class of a label, 0 for the others:
        the sums over the positions of each image of p * t, then of p, then of t, each for all
        classes. They are added up in float64.

        Parameters
        ----------
        x : Tensor, shape (n, classes, up to 3 spatial axes)
            Logits.
        labels : Tensor, shape (n, 1, spatial axes...)
            An input of integers. One that is no class makes the sums of p NaN.

        Returns
        -------
        Tensor, shape (n, 3 * classes)
            Float32, or float64 of logits in float64.
        """
        x = self._own(x)
        if len(x.shape) not in (2, 3, 4, 5):
            raise ValueError(f"x must have shape (n, classes, up to 3 axes), not {x.shape}")
        n, classes, *sites = x.shape
        target = self._labels(labels, (n, 1, *sites))
        y = self._result(name, (n, 3 * classes), ACCUMULATOR[x.dtype])
        return self._add(SoftmaxClassSums(name, y, x, target))

    @builder
    def sigmoid_cross_entropy(
        self,
        x: Tensor,
        target: Tensor,
        *,
        weight: Any = None,
        positive_weight: Any = None,
        reduction: str = "mean",
        name: str = "",
    ) -> Tensor:
        """The cross entropy of sigmoid(x) and a target, as ``binary_cross_entropy_with_logits``.

        Parameters
        ----------
        x, target : Tensor, one shape
            Logits, and what they should be, from 0 to 1. The target has no gradient.
        weight, positive_weight : array or Tensor, optional
            Of elements, and of what is positive: (c,), or the shape of x with any extent 1.
        reduction : str
            "mean" over all elements, or "sum".
        """
        x, target = self._pair(x, target, reduction)
        of_elements = self._constant(name, "weight", weight, x.shape, x.dtype)
        positive = self._constant(name, "positive_weight", positive_weight, x.shape, x.dtype)
        y = self._result(name, (1,), "float64")
        return self._add(ElementLoss(name, y, x, target, of_elements, positive, SIGMOID, reduction))

    @builder
    def mean_squared_error(
        self, x: Tensor, target: Tensor, *, reduction: str = "mean", name: str = ""
    ) -> Tensor:
        """The mean, or with ``reduction="sum"`` the sum, of (x - target)^2, as ``mse_loss``."""
        x, target = self._pair(x, target, reduction)
        y = self._result(name, (1,), "float64")
        return self._add(ElementLoss(name, y, x, target, None, None, SQUARED, reduction))

    @builder
    def total_loss(
        self, losses: Sequence[Tensor], factors: Sequence[float] = (), *, name: str = ""
    ) -> Tensor:
        """The sum of several losses, each times a factor (1 when left out).

        Examples
        --------
        GoogLeNet's auxiliary heads count 0.3 each.

        >>> import ooc_cudnn
        >>> net = ooc_cudnn.Network()
        >>> x, labels = net.input("x", (8, 10)), net.input("labels", (8,), "int64")
        >>> heads = [net.softmax_cross_entropy(net.linear(x, 10), labels) for _ in range(3)]
        >>> net.total_loss(heads, (1.0, 0.3, 0.3)).shape
        (1,)
        """
        if isinstance(losses, Tensor) or not isinstance(losses, Sequence) or not losses:
            raise TypeError(f"losses must be a list of tensors, not {losses!r}")
        terms = tuple(self._own(loss, "losses", dtype="float64") for loss in losses)
        for loss in terms:
            if loss.shape != (1,):
                raise ValueError(f"losses must have shape (1,), but {loss.name} has {loss.shape}")
        scales = tuple(map(float, factors)) or (1.0,) * len(terms)
        if len(scales) != len(terms):
            raise ValueError(f"there are {len(terms)} losses and {len(scales)} factors")
        return self._add(TotalLoss(name, self._result(name, (1,), "float64"), terms, scales))

    def _labels(self, labels: Tensor, shape: Shape) -> Tensor:
        """Labels, which must be integers of this shape."""
        target = self.graph.check_own(labels, "labels")
        if target.dtype not in INTEGERS:
            raise TypeError(
                f"labels must be one of {', '.join(INTEGERS)}, but {target.name} is {target.dtype}"
            )
        if target.shape != shape:
            raise ValueError(
                f"labels must have shape {shape}, but {target.name} has {target.shape}"
            )
        return target

    def _pair(self, x: Tensor, target: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
        x = self._own(x)
        target = self._own(target, "target", dtype=x.dtype)
        if len(x.shape) not in (2, 3, 4, 5):
            raise ValueError(f"x must have shape (n, c, up to 3 spatial axes), not {x.shape}")
        if target.shape != x.shape:
            raise ValueError(
                f"target must have shape {x.shape}, like x, but {target.name} has {target.shape}"
            )
        _check_reduction(reduction)
        return x, target

    def _constant(
        self, node: str, said: str, weights: Any, whole: Shape, dtype: str
    ) -> Tensor | None:
        """Weights: a tensor, or an array that the network keeps beside its running statistics."""
        if weights is None:
            return None
        shape = tuple(getattr(weights, "shape", ()))
        if shape != (whole[1 if len(whole) > 1 else 0],):
            if len(whole) == 1:
                raise ValueError(f"{said} must have shape {whole}, not {shape}")
            check_broadcast(shape, whole, f"{said}: x")
        if isinstance(weights, Tensor):
            return self._own(weights, said, dtype=dtype)
        return self._running_statistics(node, said, shape, dtype, ones, weights)


def _check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, not {reduction!r}")
