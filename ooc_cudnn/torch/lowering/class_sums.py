"""Sums of a softmax and of one-hot labels, class by class: what soft Dice losses are made of.

Written out, shares and one-hot labels are as large as the scores. Where what a sum adds up is their
product, or one of them, the network has it as one of the sums of a node of scores and labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ooc_cudnn.tensor import INTEGERS
from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value
from ooc_cudnn.torch.tracing.permutations import PERMUTES, permutation

#: Where a sum stands among those of a node.
PRODUCTS, SHARES, LABELS = range(3)
_CASTS = ("_to_copy", "to", "alias", "contiguous")
_SOFTMAX = ("softmax", "softmax_under_autocast")
_ZEROS = ("zeros", "zeros_like", "new_zeros")


class ClassSums(NamedTuple):
    """A sum over the positions of each image.

    Attributes
    ----------
    which : int
        `PRODUCTS`, `SHARES` or `LABELS`.
    scores : Value
        Of shape (n, classes, sites...).
    labels : Value
        Of shape (n, 1, sites...) or (n, sites...), integers.
    classes : tuple of int
        From which class to before which it is made.
    """

    which: int
    scores: Value
    labels: Value
    classes: tuple[int, int]


class _Summed(NamedTuple):
    """Scores and labels that a sum adds up, as far as it names them itself.

    `shape` is that of all classes, of which those of `classes` are added up.
    """

    scores: Value | None
    labels: Value | None
    classes: tuple[int, int]
    shape: tuple[int, ...]


def split_batch_sums(graph: Graph) -> Graph:
    """The same graph with class sums over a batch in two: of each image, and over the images."""
    found = _matches(graph, of_batch=True)
    if not found:
        return graph
    operations: list[Operation] = []
    for operation in graph.operations:
        operations += _in_two(operation) if operation in found else (operation,)
    return replace(graph, operations=tuple(operations))


def find_class_sums(graph: Graph) -> dict[Operation, ClassSums]:
    """Find the class sums over the positions of each image.

    A sum of products names scores and labels; a sum of shares or of labels goes with a sum of
    products of the same ones.
    """
    return _matches(graph, of_batch=False)


def _matches(graph: Graph, *, of_batch: bool) -> dict[Operation, ClassSums]:
    summing = [each for each in graph.operations if _axes(each) is not None]
    if not summing:
        return {}
    makers = {value: each for each in graph.operations for value in each.results if value}
    before = {value: each for each in graph.before for value in each.results if value}
    summed = {each: _summed(each, makers, before) for each in summing}
    products = [each for each in summed.values() if each and each.scores and each.labels]
    found: dict[Operation, ClassSums] = {}
    for operation, own in summed.items():
        if own is None or (0 in (_axes(operation) or ())) != of_batch:
            continue
        which = PRODUCTS if own in products else SHARES if own.scores else LABELS
        for product in products:
            same = product.labels == own.labels if which == LABELS else product.scores == own.scores
            if same and own.shape == product.shape and (which != PRODUCTS or product == own):
                assert product.scores is not None
                assert product.labels is not None
                found[operation] = ClassSums(which, product.scores, product.labels, own.classes)
                break
    return found


def _axes(operation: Operation) -> set[int] | None:
    """The axes of a sum over all positions, and perhaps over images; None of anything else."""
    if operation.name != "sum":
        return None
    told = operation.arguments
    (value, *_), dims, (result,) = operation.reads, told.get("dim"), operation.results
    count = len(value.shape)
    if not dims or told.get("keepdim") or result is None or count < 3:
        return None
    axes, positions = {dim % count for dim in dims}, {*range(2, count)}
    is_taken = result.dtype.is_floating_point and axes in (positions, positions | {0})
    return axes if is_taken else None


def _in_two(operation: Operation) -> tuple[Operation, Operation]:
    (value, *_), (result,) = operation.reads, operation.results
    assert result is not None
    of_images = replace(result, name=f"{result.name}.of_images", shape=value.shape[:2])
    dtype = operation.arguments.get("dtype")

    def summed(x: Value, axes: list[int], y: Value) -> Operation:
        told = {"self": x, "dim": axes, "keepdim": False, "dtype": dtype}
        return replace(
            operation, function=torch.ops.aten.sum.dim_IntList, args=(x, axes),
            kwargs={} if dtype is None else {"dtype": dtype}, arguments=told, results=(y,),
        )  # fmt: skip

    positions = [*range(2, len(value.shape))]
    return summed(value, positions, of_images), summed(of_images, [0], result)


def _summed(
    operation: Operation, makers: Mapping[Value, Operation], before: Mapping[Value, Operation]
) -> _Summed | None:
    (value, *_) = operation.reads
    maker = makers.get(value)
    is_product = maker is not None and maker.name == "mul"
    parts = [*maker.arguments.values()] if maker is not None and is_product else [value]
    if any(isinstance(part, Value) and part.shape != value.shape for part in parts):
        return None  # one is broadcast
    factors = [_factor(each, makers, before) for each in parts]
    if len(factors) == 1:
        return factors[0]
    first, second = factors
    if first is None or second is None or first[2:] != second[2:]:
        return None
    if (first.scores is None) == (second.scores is None):
        return None
    return first._replace(
        scores=first.scores or second.scores, labels=first.labels or second.labels
    )


def _factor(
    value: Any, makers: Mapping[Value, Operation], before: Mapping[Value, Operation]
) -> _Summed | None:
    """Follow a value to scores by a softmax over classes, or to labels by a scatter or one_hot."""
    if not isinstance(value, Value):
        return None
    classes, axes, is_last = (0, value.shape[1]), len(value.shape), False
    while value in makers:
        operation = makers[value]
        told, (source, *_) = operation.arguments, operation.reads
        if operation.name in _CASTS:
            if source.shape != value.shape or _rounds(value.dtype, source.dtype):
                return None
        elif operation.name in PERMUTES and not is_last:
            is_last = permutation(operation, axes) == [0, axes - 1, *range(1, axes - 1)]
            if not is_last:
                return None
        elif is_last:
            is_taken = operation.name == "one_hot" and _are_integers(source)
            n, *sites, count = value.shape
            return _Summed(None, source, classes, (n, count, *sites)) if is_taken else None
        elif operation.name == "slice" and told["dim"] % axes == 1 and told["step"] == 1:
            start, size = int(told["start"] or 0), source.shape[1]
            start = min(max(start + size * (start < 0), 0), size)
            classes = (start + classes[0], start + classes[1])
        elif operation.name in _SOFTMAX:
            is_of_classes = told["dim"] % axes == 1
            return _Summed(source, None, classes, source.shape) if is_of_classes else None
        elif operation.name == "scatter":
            is_one_hot = told["dim"] % axes == 1 and told.get("value") == 1
            labels, zeros = told["index"], before.get(told["self"])
            is_of_zeros = zeros is not None and zeros.name in _ZEROS
            is_taken = is_one_hot and is_of_zeros and _are_labels(labels, value.shape)
            is_taken = is_taken and told.get("reduce") is None
            return _Summed(None, labels, classes, value.shape) if is_taken else None
        else:
            return None
        value = source
    return None


def _rounds(to: torch.dtype, of: torch.dtype) -> bool:
    """True if a cast of shares changes what is added up."""
    return of.is_floating_point and torch.promote_types(to, of) != to


def _are_labels(labels: Any, shape: Sequence[int]) -> bool:
    """True if there is a label for each position of what they are scattered to."""
    is_one_each = isinstance(labels, Value) and labels.shape == (shape[0], 1, *shape[2:])
    return is_one_each and _are_integers(labels)


def _are_integers(labels: Value) -> bool:
    return str(labels.dtype).removeprefix("torch.") in INTEGERS
