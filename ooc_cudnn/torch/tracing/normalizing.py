"""Running statistics that normalizations update: by the network, or explicitly.

A network updates those of batch normalization by itself, in buffers as they are given. Where
forward reads them afterwards, or has changed them before, and for instance normalization, they are
values that PyTorch computes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.tracing.graph import Operation, Value
from ooc_cudnn.torch.tracing.recorder_protocol import Recorder

#: Where ATen's normalizations have running_mean, running_var, whether they train, and momentum.
STATISTICS = {"aten::batch_norm": (3, 4, 5, 6), "aten::instance_norm": (3, 4, 5, 6)}


class Update(NamedTuple):
    """A step of an average.

    Attributes
    ----------
    x : Value
        What is normalized.
    of : int
        0 of means, 1 of variances.
    momentum : float
    of_images : bool
        Whether statistics are of each image, and averaged over images.
    """

    x: Value
    of: int
    momentum: float
    of_images: bool


_LOST = (
    "running statistics are a view of another tensor, or made in forward: take a clone, mean = "
    "self.mean[t].clone(), and write it back behind, self.mean[t] = mean; for none pass None"
)


class KeptStatistics:
    """A normalization that updates running statistics."""

    def __init__(self, name: str, args: tuple[Any, ...]) -> None:
        self._args, self._of_images = args, name == "aten::instance_norm"
        *self._places, _, self._momentum = STATISTICS[name]
        self._is_the_networks = False

    def _without(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        told = list(args)
        for place in self._places:
            told[place] = None
        return tuple(told)

    def given(self, args: tuple[Any, ...], recorder: Recorder) -> tuple[Any, ...]:
        """Its arguments, with buffers that the network updates, where it can."""
        tensors, memories = [args[place] for place in self._places], recorder.memories
        if self._of_images or not all(map(memories.knows, tensors)):
            return self._without(args)
        if memories.read(args[0]) not in recorder.of_inputs:  # PyTorch runs it before the call
            return self._without(args)
        seen = [memories.seen(each) for each in tensors]
        values = [each.value for each in seen]
        plain = all(v.kind == "buffer" for v in values) and not any(
            each.written or each.base or each.at != each.memory.writes for each in seen
        )
        if not plain:
            return self._without(args)
        self._is_the_networks = True
        told = list(args)
        for place, value in zip(self._places, values, strict=True):
            told[place] = value
        return tuple(told)

    def note(self, recorder: Recorder, x: Value) -> None:
        """Note that the statistics are no longer what they were.

        Raises
        ------
        UnsupportedModelError
            If they are a view of another tensor, or one that forward makes: what is written there
            would be lost.
        """
        memories = recorder.memories
        for of, place in enumerate(self._places):
            tensor = self._args[place]
            if not memories.knows(tensor) or memories.seen(tensor).base is not None:
                raise UnsupportedModelError(f"{_LOST}\n  {recorder.where}")
            seen = memories.seen(tensor)
            momentum = float(self._args[self._momentum])
            seen.pending.append(Update(x, of, momentum, self._of_images))
            seen.written = seen.written or not self._is_the_networks
            seen.memory.writes += 1  # views of it are read anew
            seen.at = seen.memory.writes


def kept_statistics_of(func: Any, args: tuple[Any, ...]) -> KeptStatistics | None:
    """Return an operation's update of running statistics; None if it has none.

    Raises
    ------
    UnsupportedModelError
        If it updates them in a way of its own.
    """
    name = func._schema.name
    if name == "aten::batch_norm_update_stats":
        raise UnsupportedModelError(
            "torch.batch_norm_update_stats changes running statistics without saying so: update "
            "them by functional.batch_norm(x, mean, var, training=True), or by torch.var_mean"
        )
    if name not in STATISTICS:
        return None
    mean, _, trains, _ = STATISTICS[name]
    if len(args) <= trains or not args[trains] or args[mean] is None:
        return None
    return KeptStatistics(name, args)


def is_statistics_update(operation: Operation) -> bool:
    """True if an operation updates running statistics in the network."""
    told = operation.arguments
    return (
        operation.name == "batch_norm"
        and bool(told.get("training"))
        and told.get("running_mean") is not None
    )


def update_statistics(recorder: Recorder, value: Value, update: Update) -> Value:
    """Running statistics a step further, as operations that PyTorch runs."""
    with torch.no_grad():
        x = recorder.detached(update.x)
        wide = torch.promote_types(x.dtype, value.dtype)
        channels = value.shape[0]
        function = _OfImages.made if update.of_images else _OfBatch.made
        statistics = recorder.one(function, "statistics", (x, wide), (2, channels), wide, once=True)
        args = (value, statistics, update.of, update.momentum)
        return recorder.one(_moved, "running", args, value.shape, value.dtype)


class _OfBatch:
    @staticmethod
    def made(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Means and variances of channels over all images, (2, channels)."""
        rows = x.to(dtype).transpose(0, 1).reshape(x.shape[1], -1)
        return torch.stack([rows.mean(1), rows.var(1)])


class _OfImages:
    @staticmethod
    def made(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The same of each image, averaged over images."""
        rows = x.to(dtype).flatten(2)
        return torch.stack([rows.mean(2).mean(0), rows.var(2).mean(0)])


def _moved(
    running: torch.Tensor, statistics: torch.Tensor, of: int, momentum: float
) -> torch.Tensor:
    """A running average with a new number: (1 - momentum) old + momentum new."""
    new = statistics[of].to(running.device)
    return (running.to(new.dtype) * (1 - momentum) + new * momentum).to(running.dtype)
