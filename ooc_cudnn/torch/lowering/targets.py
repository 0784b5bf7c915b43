"""Labels of a loss that lie on the host: one that is no class is an error, as in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from ooc_cudnn.network.graph.nodes.losses import SoftmaxClassSums, SoftmaxCrossEntropy
from ooc_cudnn.torch.lowering.lower import LoweredGraph
from ooc_cudnn.torch.tracing.graph import Value


class Classes(NamedTuple):
    """Range of labels: 0 to `number` - 1, or `ignored`, if there is such a label."""

    number: int
    ignored: int | None


def targets_of(lowered: LoweredGraph) -> tuple[tuple[Value, Classes], ...]:
    """The labels among what a network is given, and what each may be."""
    return tuple(
        (
            lowered.inputs[node.labels.name].value,
            Classes(node.x.shape[1], getattr(node, "ignore_index", None)),
        )
        for node in lowered.network.graph.nodes_before(lowered.outputs)
        if isinstance(node, SoftmaxCrossEntropy | SoftmaxClassSums)
        and node.labels.name in lowered.inputs
    )


def check_targets(targets: tuple[tuple[Value, Classes], ...], found: Mapping[Value, Any]) -> None:
    """Refuse labels on the host that are no classes. Those on a card are not looked at.

    There the step would have to wait for what the card is at.

    Raises
    ------
    IndexError
        With the label.
    """
    for value, classes in targets:
        labels = found.get(value)
        if isinstance(labels, torch.Tensor):
            labels = labels.detach().numpy() if labels.device.type == "cpu" else None
        if isinstance(labels, np.ndarray):
            check_labels(labels, classes)


def check_labels(labels: np.ndarray[Any, Any], classes: Classes) -> None:
    """Refuse labels (n, sites...) that are no classes.

    >>> check_labels(np.array([0, 9, -100]), Classes(10, -100))
    >>> check_labels(np.array([0, 10]), Classes(10, 255))
    Traceback (most recent call last):
    ...
    IndexError: the target has a label 10, and the model 10 classes: labels are 0 to 9, or 255 ...
    """
    if not labels.size or (labels.min() >= 0 and labels.max() < classes.number):
        return  # most often, and no other array was made
    for part in labels if labels.ndim > 1 else (labels,):  # of a file, an image
        wrong = (part < 0) | (part >= classes.number)
        others = ""
        if classes.ignored is not None:
            wrong &= part != classes.ignored
            others = f", or {classes.ignored} (ignore_index) for what does not count"
        if wrong.any():
            raise IndexError(
                f"the target has a label {part[wrong][0]}, and the model {classes.number} classes: "
                f"labels are 0 to {classes.number - 1}{others}"
            )
