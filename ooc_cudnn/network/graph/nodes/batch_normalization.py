"""Batch normalization: by the batch's statistics in training, by running ones in inference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor, extents, whole_region
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.normalization.batch_launches import Normalise
from ooc_cudnn.operations.normalization.batch_two_phase import (
    BatchNormalizationDataCall,
    ChannelMomentsCall,
    ChannelSumsCall,
    ChannelVectorsCall,
    ParameterGradientsCall,
)
from ooc_cudnn.operations.normalization.channel_reduction import SAVED, STATES
from ooc_cudnn.operations.normalization.cross_rank import CrossRankCall
from ooc_cudnn.tensor import ACCUMULATOR


@dataclass(frozen=True)
class BatchNormalization(Node):
    """y = scale * (x - mean) / sqrt(variance + epsilon) + bias.

    Moments of x stand between what makes x and what reads y, and the sums over dy between what
    makes dy and what reads dx: each is a phase of its own, and all else is elementwise. Running
    statistics are updated once a step, by `factor`. Moments of a concatenation are those of its
    parts. With `ranks` (`cross_rank.Ranks`) moments and sums are those of the images of all
    of them; gradients of scale and bias are of one's own, as those of all parameters are.
    """

    x: Tensor
    scale: Tensor
    bias: Tensor
    running_mean: Tensor
    running_variance: Tensor
    epsilon: float
    factor: float
    ranks: Any = None

    def _saved(self, emit: Forward | Backward) -> dict[str, Tensor]:
        shape, dtype = (self.x.shape[1],), ACCUMULATOR[self.x.dtype]
        return {name: emit.saved(name, shape, dtype) for name in SAVED}

    def _state(self, emit: Forward | Backward, what: str, kind: str) -> Tensor:
        return emit.saved(what, (STATES[kind], self.x.shape[1]), "float64")

    def forward(self, emit: Forward) -> None:
        shape, dtype = self.x.shape, self.x.dtype
        binds = {"x": self.x, "scale": self.scale, "bias": self.bias, "y": self.y}
        running = {"running_mean": self.running_mean, "running_variance": self.running_variance}
        if not emit.is_training:
            chain = Chain((Normalise(shape, dtype, self.epsilon),), dtype)
            mean, variance = running.values()
            emit.phase("forward", chain, **binds, mean=mean, variance=variance)
            return
        moments = moments_of(emit, self.x)
        if self.ranks is not None:
            rank_moments, moments = moments, self._state(emit, "moments of all ranks", "moments")
            call = CrossRankCall.of(self.ranks.moments(self.name, shape[1]), "moments", shape[1])
            emit.phase("moments over ranks", call, x0=rank_moments, y=moments)
        vectors = ChannelVectorsCall(shape[1], dtype, epsilon=self.epsilon)
        emit.phase("statistics", vectors, moments=moments, **self._saved(emit))
        averages = ChannelVectorsCall(shape[1], dtype, running=True, factor=self.factor)
        emit.phase("running statistics", averages, moments=moments, **running)
        mean, inverse = self._saved(emit).values()
        normalise = Chain((Normalise(shape, dtype),), dtype)
        emit.phase("forward", normalise, **binds, mean=mean, inverse_deviation=inverse)

    def backward(self, emit: Backward, dy: Tensor) -> None:
        shape, dtype = self.x.shape, self.x.dtype
        reads = {"x": self.x, "dy": dy, **self._saved(emit)}
        sums = self._state(emit, "sums", "sums")
        add_up = ChannelSumsCall(shape, dtype, emit.settings.deterministic)
        emit.phase("sums", add_up, **reads, sums=sums)
        parameters = ParameterGradientsCall(shape[1], dtype)
        makes = {"dscale": self.scale, "dbias": self.bias}
        emit.gradient("parameter gradients", parameters, {"sums": sums}, **makes)
        if self.ranks is not None and emit.wants(self.x):
            rank_sums, sums = sums, self._state(emit, "sums of all ranks", "sums")
            moments = self._state(emit, "moments of all ranks", "moments")
            elements = math.prod(shape) // shape[1]
            merging = self.ranks.sums(self.name, shape[1], elements)
            call = CrossRankCall.of(merging, "sums", shape[1], "moments")
            emit.phase("sums over ranks", call, x0=rank_sums, x1=moments, y=sums)
        reads |= {"scale": self.scale, "sums": sums}
        emit.gradient("data gradient", BatchNormalizationDataCall(shape, dtype), reads, dx=self.x)


def moments_of(emit: Forward, x: Tensor) -> Tensor:
    """The moments of each channel of a map, and phases for those that are not known yet.

    What is known of a map that lies in x is known of these channels of x: its moments become a view
    of those of x.
    """
    name, channels = f"{x.name}.moments", x.shape[1]
    if name in emit.tensors:
        return emit.tensors[name]
    moments = emit.known(Tensor(name, (STATES["moments"], channels), "float64", "statistics"))
    known = 0
    for (start, stop), part in (*_known_within(emit, x), ((channels, channels), None)):
        if known < start:
            _gather(emit, x, moments, (known, start))
        if part is not None:
            region = (whole_region(moments.shape)[0], (start, stop))
            emit.tensors[part.name] = replace(part, of=name, region=region)
        known = stop
    return moments


def _gather(emit: Forward, x: Tensor, moments: Tensor, channels: Range) -> None:
    """Emit the phase that finds the moments of some channels."""
    what = "moments"
    if channels != (0, x.shape[1]):
        what = f"moments of channels {channels[0]} to {channels[1]}"
        views = []
        for tensor in (x, moments):
            images, _, *sites = whole_region(tensor.shape)
            region = (images, channels, *sites)
            name = f"{tensor.name}.from_{channels[0]}"
            views.append(emit.view(tensor, extents(region), region, name))
        x, moments = views
    call = ChannelMomentsCall(x.shape, x.dtype, emit.settings.deterministic)
    emit.phase(what, call, x=x, moments=moments)


def _known_within(emit: Forward, x: Tensor) -> list[tuple[Range, Tensor]]:
    """Channels of maps that lie in x with all images, in order, and the moments of each."""
    place, known = emit.place(emit.known(x).name), list[tuple[Range, Tensor]]()
    for name in list(emit.tensors):
        state = emit.tensors.get(f"{name}.moments")
        if state is None or state.of or name == x.name:
            continue
        other = emit.place(name)
        if other.base != place.base or len(other.region) != len(place.region):
            continue
        (first, last), (start, stop) = place.region[1], other.region[1]
        apart = [a != b for a, b in zip(place.region, other.region, strict=True)]
        if first <= start and stop <= last and not any((apart[0], *apart[2:])):
            known.append(((start - first, stop - first), state))
    known.sort(key=lambda each: each[0])
    return [
        each
        for at, each in enumerate(known)
        if all(before[1] <= each[0][0] for before, _ in known[:at])
    ]
