"""vDNN's Titan X with either kind of convolution algorithms, and Torch's memory on it.

The shipped profile computes at the fastest algorithms' rate. What those of least memory take, and
what the fastest take besides, no paper states; both are derived here from what vDNN reports:

- **Least memory** (implicit matrix products, no workspace). `conv (m)` loses 55 % to the oracle on
  average: it takes 1 / 0.45 times as long. Its copies hide behind convolutions so slow, and these
  are 70 to 80 % of the oracle's time; so they take (1 / 0.45 - 0.25) / 0.75 = 2.63 times as long.
- **Workspace of the fastest**: as many bytes as x and y of the layer. With that, the baselines of
  AlexNet, VGG-16 at three batches and VGG-416 come out within 12 % of the five that are stated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.vdnn_figures import CONV_M, CONVOLUTION_SHARE, LOSSES
from ooc_cudnn.network.graph.nodes.activation import Activation
from ooc_cudnn.network.graph.nodes.convolution import Convolution
from ooc_cudnn.network.network import Network
from ooc_cudnn.operations.convolution.gradients import AnyConvolution, forward_of
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.tensor import ITEM_BYTES
from perfmodel import Line, MachineModel, shipped

MACHINE = "titanx"
#: What plans say of the algorithms of a task.
FASTEST, LEAST_MEMORY = "fastest", "least memory"


def _least_memory_factor() -> float:
    share = sum(CONVOLUTION_SHARE) / 2
    return (1 / (1 - LOSSES[CONV_M].mean) - (1 - share)) / share


#: How many times as long convolutions take with the algorithms of least memory.
LEAST_MEMORY_FACTOR = _least_memory_factor()


def machine(algorithms: str) -> MachineModel:
    """The card with the fastest algorithms ("p"), or with those of least memory ("m").

    Examples
    --------
    >>> key = "convolution/float32/channels_first"
    >>> fast, least = (machine(which).compute.lines[key] for which in "pm")
    >>> round(least.alpha / fast.alpha, 2)
    2.63
    """
    model = shipped(MACHINE)
    if algorithms == "p":
        return model
    slow = {
        key: _slower(line) if key.startswith("convolution") else line
        for key, line in model.compute.lines.items()
    }
    return replace(model, name=f"{MACHINE}-m", compute=replace(model.compute, lines=slow))


def _slower(line: Line) -> Line:
    factor = LEAST_MEMORY_FACTOR
    terms = {name: rate * factor for name, rate in line.terms.items()}
    return replace(line, alpha=line.alpha * factor, terms=terms)


def workspace(
    launches: Sequence[tuple[Launch, Mapping[str, Buffer]]], budget_bytes: int | None
) -> tuple[int, tuple[str, ...]] | None:
    """The workspace of the fastest algorithms, as `Device.workspace`: None if it does not fit."""
    needed = max(
        (
            _workspace_bytes(forward_of(launch.operation))
            for launch, _ in launches
            if isinstance(launch.operation, AnyConvolution)
        ),
        default=0,
    )
    if budget_bytes is not None and needed > budget_bytes:
        return None
    return needed, (FASTEST,) if needed else ()


def workspace_if_it_fits(
    launches: Sequence[tuple[Launch, Mapping[str, Buffer]]], budget_bytes: int | None
) -> tuple[int, tuple[str, ...]] | None:
    """The same, and where it does not fit the algorithms of least memory."""
    return workspace(launches, budget_bytes) or (0, (LEAST_MEMORY,))


def _workspace_bytes(forward: object) -> int:
    """As much as x and y."""
    elements = math.prod(forward.x_shape) + math.prod(forward.output_shape)  # type: ignore[attr-defined]
    return int(elements * ITEM_BYTES[forward.dtype])  # type: ignore[attr-defined]


def baseline_bytes(net: Network, *, with_weights: bool = True) -> int:
    """Torch's memory: every layer's result, two gradients, weights and theirs, one workspace.

    Activations are in place, concatenations are copies. Of gradients there are as many buffers as
    live at once, two, each as large as the largest map; of workspace there is one, as large as any
    layer's.
    """
    maps = [tensor.nbytes for tensor in net.graph.tensors.values() if tensor.kind == "input"]
    needed = [0]
    for node in net.graph.nodes.values():
        if isinstance(node, Convolution):
            needed.append(_workspace_bytes(node.operation))
        if not isinstance(node, Activation):
            maps.append(node.y.nbytes)
    weights = sum(tensor.nbytes for tensor in net.parameters.tensors.values())
    return sum(maps) + 2 * max(maps) + 2 * weights * with_weights + max(needed)
