"""vDNN's static policies: what it offloads, and when it fetches that again.

Rhu et al., "vDNN: Virtualized deep neural networks for scalable, memory-efficient neural network
design", MICRO 2016, down to its prefetch window (`prefetches`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ooc_cudnn.network.ir.live_ranges import LiveRanges, keep_all
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.policies.offload import idle_phases, offload_maps
from ooc_cudnn.operations.convolution.filter_gradient import FilterGradientCall
from ooc_cudnn.operations.pooling.gradient import PoolingGradientCall


def vdnn_all(step: Step) -> LiveRanges:
    """The inputs of all layers of feature extraction leave: of convolutions and of pooling."""
    return offload_maps(step, prefetches(step, (FilterGradientCall, PoolingGradientCall)))


def vdnn_conv(step: Step) -> LiveRanges:
    """The inputs of convolutions leave, whose time hides the copies best."""
    return offload_maps(step, prefetches(step, (FilterGradientCall,)))


def vdnn_none(step: Step) -> LiveRanges:
    """Policy by which nothing leaves: what the dynamic policy tries first."""
    return keep_all(step)


def prefetches(step: Step, readers: tuple[type, ...]) -> dict[str, int]:
    """Find what vDNN offloads, and the phase of backward with which it fetches each again.

    Offloaded is the input x of the layers whose gradient is one of `readers`, but for those of the
    classifier. When backward of a layer starts, the layers before it are looked at in turn: the
    first whose input is still to be fetched is fetched meanwhile; a convolution that needs nothing
    ends the search. So nothing is fetched more than one convolution ahead (section 3.3, figure 10).
    """
    gaps = idle_phases(step, step.uses)
    layers = _layers(step)
    inputs = {layer: _input(step, phases, readers) for layer, phases in layers.items()}
    pending = {name for name in inputs.values() if name in gaps}
    fetches = dict[str, int]()
    order = list(layers)  # as backward goes
    for index, layer in enumerate(order):
        start = layers[layer][0]
        if inputs[layer] in pending:  # nobody fetched it before
            fetches[inputs[layer]] = gaps[inputs[layer]][1]
            pending.discard(inputs[layer])
        for earlier in order[index + 1 :]:
            if inputs[earlier] in pending:
                fetches[inputs[earlier]] = start
                pending.discard(inputs[earlier])
                break
            if _is_convolution(step, layers[earlier]):
                break
    return fetches


def _layers(step: Step) -> dict[str, list[int]]:
    """The phases of backward of each node, in the order in which backward comes to them."""
    layers = dict[str, list[int]]()
    for at, phase in enumerate(step.phases):
        if phase.is_backward:
            layers.setdefault(phase.node, []).append(at)
    return layers


def _input(step: Step, phases: Iterable[int], readers: tuple[type, ...]) -> str:
    """The map that a layer of feature extraction reads; "" for other layers.

    Backward of a pooling need not read it: then it is what forward reads.
    """
    for index in phases:
        phase = step.phases[index]
        if isinstance(phase.call, readers) and not _is_classifier(phase):
            of_node = (each.binds for each in step.phases if each.node == phase.node)
            x = next((binds["x"] for binds in (phase.binds, *of_node) if "x" in binds), "")
            return step.base(x) if x else ""
    return ""


def _is_classifier(phase: Phase) -> bool:
    """True if a layer is a fully connected one: its window is all of the image."""
    call = phase.call
    return isinstance(call, FilterGradientCall) and math.prod(call.operands["dy"].shape[2:]) == 1


def _is_convolution(step: Step, phases: Iterable[int]) -> bool:
    return any(isinstance(step.phases[at].call, FilterGradientCall) for at in phases)
