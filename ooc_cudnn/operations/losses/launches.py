"""Launches of losses: one number for each row of each image, and gradients.

A row's number is made of that row alone, in float64 and in one order; so a loss is the same however
the batch is cut. `Total` adds the numbers up, image after image and row after row.

A label that is no class makes everything it touches NaN: nothing is read for it, and nobody can
take the loss for a right one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.row_axis import height
from ooc_cudnn.tensor import ITEM_BYTES
from perfmodel import Work, pass_work

#: A loss of two tensors, element by element.
SQUARED, SIGMOID = "squared", "sigmoid"


def row_sums(sites: Array) -> Array:
    """(n, rows) from (n, rows, ...), or from (n,): each row's sum, in one order."""
    n, rows = sites.shape[0], height(sites.shape, 1)
    return np.asarray(np.ascontiguousarray(sites).reshape(n, rows, -1).sum(axis=2))


@dataclass(frozen=True)
class LabelWeights:
    """(n, rows) float64 from (labels, weights): the sum of the weights of each row's labels.

    1 each where weights are absent; 0 of labels that are ignored.

    Parameters
    ----------
    shape, labels_dtype : tuple of int, str
        Of the labels: (n, sites...).
    dtype : str
        Of the logits; weights have the type of its sums.
    """

    shape: Shape
    labels_dtype: str
    classes: int
    ignore_index: int
    dtype: str

    name = "label_weights"

    @property
    def output_shape(self) -> Shape:
        return (self.shape[0], height(self.shape, 1))

    def work(self) -> Work:
        """One read."""
        count = math.prod(self.shape)
        return pass_work(
            f"pointwise/{self.dtype}/losses",
            device_bytes=float(count * ITEM_BYTES[self.labels_dtype]),
            elements=count,
            problem=self.name,
        )

    def of_sites(self, labels: Array, weights: Array | None) -> tuple[Array, Array]:
        """The class of each label, 0 if it is none, and its weight."""
        labels = labels.astype(np.int64)
        known = (labels >= 0) & (labels < self.classes)
        classes = np.where(known, labels, 0)
        factors = np.ones(()) if weights is None else weights.astype(np.float64)[classes]
        factors = np.where(known, factors, np.nan)
        return classes, np.where(labels == self.ignore_index, 0.0, factors)

    def reference(self, labels: Array, weights: Array | None) -> Array:
        """Compute it plainly."""
        return row_sums(self.of_sites(labels, weights)[1])


@dataclass(frozen=True)
class _CrossEntropy(OneShape):
    """A launch on logits (n, classes, sites...) and labels (n, sites...)."""

    shape: Shape
    dtype: str
    labels_dtype: str
    smoothing: float
    ignore_index: int

    name = ""

    @property
    def labels(self) -> LabelWeights:
        """Its labels, with their weights."""
        n, classes, *sites = self.shape
        return LabelWeights((n, *sites), self.labels_dtype, classes, self.ignore_index, self.dtype)

    def over(self, count: int) -> Work:
        """Count the reads and writes of the logits."""
        problem = f"{self.name}; {self.shape[1]} channels"
        return self.passes("/softmax", count, exponentials=1, problem=problem)

    def of_sites(
        self, x: Array, labels: Array, weights: Array | None
    ) -> tuple[Array, Array, Array, Array]:
        """x less its maximum; each label's class, and what it counts; what every class counts.

        (1 - smoothing) * w[label], shape (n, 1, sites...), and smoothing / classes * w.
        """
        x = x.astype(np.float64)
        classes, weight = (each[:, np.newaxis] for each in self.labels.of_sites(labels, weights))
        every = np.ones(self.shape[1]) if weights is None else weights.astype(np.float64)
        even = self.smoothing / self.shape[1] * every.reshape(-1, *[1] * (x.ndim - 2))
        return x - x.max(axis=1, keepdims=True), classes, (1 - self.smoothing) * weight, even


@dataclass(frozen=True)
class CrossEntropy(_CrossEntropy):
    """(n, rows) float64 from (x, labels, weights): the cross entropy of softmax(x), each row's sum.

    Of a site with the label y, l = log(sum(exp(x))) - x over the classes, and C of them:

        (1 - smoothing) * w[y] * l[y] + smoothing / C * sum(w * l)

    Source: torch.nn.functional.cross_entropy; that the sum is not yet divided is its "sum".
    """

    name = "softmax_cross_entropy"

    @property
    def output_shape(self) -> Shape:
        return (self.shape[0], height(self.shape))

    def work(self) -> Work:
        """Two reads."""
        return self.over(2)

    def reference(self, x: Array, labels: Array, weights: Array | None) -> Array:
        """Compute it plainly in float64."""
        shifted, classes, weight, even = self.of_sites(x, labels, weights)
        logs = np.log(np.exp(shifted).sum(axis=1, keepdims=True)) - shifted
        losses = weight * np.take_along_axis(logs, classes, 1)
        if self.smoothing:
            losses = losses + (even * logs).sum(axis=1, keepdims=True)
        return row_sums(np.where(labels == self.ignore_index, 0.0, losses[:, 0]))


@dataclass(frozen=True)
class CrossEntropyBackward(_CrossEntropy):
    """dx from (x, labels, weights, divisor, dy): ``factor * (softmax(x) * total - target)``.

    The target is what each class counts in `CrossEntropy`, the total their sum. The factor is scale
    * dy / divisor, the last two (1,) float64; a divisor that is absent is 1. 0 where the label is
    ignored.
    """

    scale: float

    name = "softmax_cross_entropy_backward"

    def work(self) -> Work:
        """Three reads and a write."""
        return self.over(4)

    def reference(
        self, x: Array, labels: Array, weights: Array | None, divisor: Array | None, dy: Array
    ) -> Array:
        """Compute it plainly in float64."""
        shifted, classes, weight, even = self.of_sites(x, labels, weights)
        power = np.exp(shifted)
        softmax = power / power.sum(axis=1, keepdims=True)
        dx = softmax * (weight + even.sum()) - even
        np.put_along_axis(dx, classes, np.take_along_axis(dx, classes, 1) - weight, 1)
        dx *= self.scale * dy[0] / (1.0 if divisor is None else divisor[0])
        return np.where(labels[:, np.newaxis] == self.ignore_index, 0.0, dx)


@dataclass(frozen=True)
class _ClassSums(OneShape):
    """A launch on logits (n, classes, sites...) and labels (n, 1, sites...).

    Of a site, p are its logits' softmax, and t is 1 for the class of its label, 0 for the others.
    """

    shape: Shape
    dtype: str
    labels_dtype: str

    name = ""

    @property
    def labels_shape(self) -> Shape:
        """The shape of the labels."""
        n, _, *sites = self.shape
        return (n, 1, *sites)

    def over(self, count: int) -> Work:
        """Count the reads and writes of the logits."""
        problem = f"{self.name}; {self.shape[1]} channels"
        return self.passes("/softmax", count, exponentials=2, problem=problem)

    def of_sites(self, x: Array, labels: Array) -> tuple[Array, Array]:
        """Return p, NaN where the label is no class, and t."""
        x, labels = x.astype(np.float64), labels.astype(np.int64)
        classes = np.arange(self.shape[1]).reshape(-1, *[1] * (x.ndim - 2))
        power = np.exp(x - x.max(axis=1, keepdims=True))
        is_class = (labels >= 0) & (labels < self.shape[1])
        p = np.where(is_class, power / power.sum(axis=1, keepdims=True), np.nan)
        return p, (labels == classes).astype(np.float64)


@dataclass(frozen=True)
class ClassSums(_ClassSums):
    """(n, rows, 3 * classes) float64 from (x, labels): each row's sums of p * t, of p and of t.

    Each for all classes, one after the other: what a soft Dice loss is made of.
    """

    name = "softmax_class_sums"

    @property
    def output_shape(self) -> Shape:
        n, classes = self.shape[:2]
        return (n, height(self.shape), 3 * classes)

    def work(self) -> Work:
        """Two reads."""
        return self.over(2)

    def reference(self, x: Array, labels: Array) -> Array:
        """Compute it plainly in float64."""
        p, t = self.of_sites(x, labels)
        n, rows = self.output_shape[:2]
        sums = [each.reshape(n, p.shape[1], rows, -1).sum(axis=3) for each in (p * t, p, t)]
        return np.concatenate(sums, axis=1).swapaxes(1, 2)


@dataclass(frozen=True)
class ClassSumsBackward(_ClassSums):
    """dx from (x, labels, dy): ``p * (g - sum(p * g))`` over the classes, g = a * t + b.

    a and b are of dy (n, 3 * classes) what belongs to the sums of p * t and of p; the sums of t
    have no gradient. dy has the type of sums.
    """

    name = "softmax_class_sums_backward"

    @property
    def dy_shape(self) -> Shape:
        """The shape of dy."""
        return (self.shape[0], 3 * self.shape[1])

    def work(self) -> Work:
        """Three reads and a write."""
        return self.over(4)

    def reference(self, x: Array, labels: Array, dy: Array) -> Array:
        """Compute it plainly in float64."""
        p, t = self.of_sites(x, labels)
        of_class = (len(dy), 3, self.shape[1], *[1] * (x.ndim - 2))
        a, b, _ = np.moveaxis(dy.astype(np.float64).reshape(of_class), 1, 0)
        g = a * t + b
        return np.asarray(p * (g - (p * g).sum(axis=1, keepdims=True)))


@dataclass(frozen=True)
class _ElementLoss(OneShape):
    """A launch on x and a target of its shape; weights are broadcast, each extent x's or 1.

    mode "squared": (x - t)^2, as torch.nn.functional.mse_loss. "sigmoid": the cross entropy of
    sigmoid(x), w * ((1 - t) * x + (1 + (p - 1) * t) * log(1 + exp(-x))), with the weights w and, of
    what is positive, p, as binary_cross_entropy_with_logits.
    """

    shape: Shape
    dtype: str
    mode: str
    weight_shape: Shape | None = None
    positive_shape: Shape | None = None

    name = ""

    def over(self, count: int) -> Work:
        """Count the reads and writes of x."""
        exponentials = int(self.mode == SIGMOID)
        return self.passes("/losses", count, exponentials=exponentials, problem=self.name)

    def positives(self, t: Array, positive: Array | None) -> Array:
        """Factor of log(1 + exp(-x)): 1, or 1 + (p - 1) * t."""
        return np.ones(()) if positive is None else 1 + (positive.astype(np.float64) - 1) * t


@dataclass(frozen=True)
class ElementLoss(_ElementLoss):
    """(n, rows) float64 from (x, target, weight, positive): each row's sum of losses."""

    name = "element_loss"

    @property
    def output_shape(self) -> Shape:
        return (self.shape[0], height(self.shape))

    def work(self) -> Work:
        """Two reads."""
        return self.over(2)

    def reference(
        self, x: Array, target: Array, weight: Array | None, positive: Array | None
    ) -> Array:
        """Compute it plainly in float64."""
        x, t = x.astype(np.float64), target.astype(np.float64)
        if self.mode == SQUARED:
            losses = np.square(x - t)
        else:
            logs = np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)
            losses = (1 - t) * x + self.positives(t, positive) * logs
            losses = losses if weight is None else weight * losses
        # rows in the place of channels
        return row_sums(losses.swapaxes(1, 2) if x.ndim > 2 else losses[:, np.newaxis])


@dataclass(frozen=True)
class ElementLossBackward(_ElementLoss):
    """dx from (x, target, weight, positive, dy): scale * dy times the slope of the loss in x."""

    scale: float = 1.0

    name = "element_loss_backward"

    def work(self) -> Work:
        """Two reads and a write."""
        return self.over(3)

    def reference(
        self, x: Array, target: Array, weight: Array | None, positive: Array | None, dy: Array
    ) -> Array:
        """Compute it plainly in float64."""
        x, t = x.astype(np.float64), target.astype(np.float64)
        scale = self.scale * dy[0]
        if self.mode == SQUARED:
            return np.asarray(2 * scale * (x - t))
        dx = self.positives(t, positive) / (1 + np.exp(-x)) - (
            t if positive is None else positive * t
        )
        return np.asarray(scale * (dx if weight is None else weight * dx))


@dataclass(frozen=True)
class Total:
    """(1,) float64 from (values, divisor): scale times the sum of values (n, rows), in their order.

    Divided by the divisor (1,) where there is one.
    """

    shape: Shape
    scale: float

    name = "total"

    @property
    def output_shape(self) -> Shape:
        return (1,)

    def work(self) -> Work:
        """One read."""
        count = math.prod(self.shape)
        return pass_work("pointwise/float64/statistics", device_bytes=8.0 * count, elements=count)

    def reference(self, values: Array, divisor: Array | None) -> Array:
        """Compute it plainly in float64."""
        total = np.ascontiguousarray(values).reshape(-1).sum()
        return np.atleast_1d(self.scale * total / (1.0 if divisor is None else divisor[0]))


@dataclass(frozen=True)
class RowTotals:
    """(n, k) from (values,): the sums of values (n, rows, k) float64 over the rows, in order."""

    shape: Shape
    dtype: str

    name = "row_totals"

    @property
    def output_shape(self) -> Shape:
        return (self.shape[0], self.shape[2])

    def work(self) -> Work:
        """One read."""
        count = math.prod(self.shape)
        return pass_work("pointwise/float64/statistics", device_bytes=8.0 * count, elements=count)

    def reference(self, values: Array) -> Array:
        """Compute it plainly in float64."""
        return np.asarray(values.sum(axis=1))
