"""Steps of MO-SOS's two networks on its Tesla P40, planned by a policy and replayed."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from benchmarks import mo_sos_machine as p40
from ooc_cudnn import networks
from ooc_cudnn.engines.target import Target
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.lowering.lower import peak_live_bytes
from ooc_cudnn.network.network import Network
from ooc_cudnn.network.passes.fuse_activation_gradients import fuse_activation_gradients
from ooc_cudnn.network.policies.policy import keep
from ooc_cudnn.network.search.mo_sos.plan import CANDIDATES, canonicalize_whole_maps
from ooc_cudnn.network.search.plan_step import plan_step
from ooc_cudnn.tensor import TensorSpec
from perfmodel import MachineModel

VGG, UNET = "VGG-19", "U-Net"
#: Networks, their batches and the extent of an image, as in the paper.
CASES = {VGG: (144, 227), UNET: (120, 256)}


class Replay(NamedTuple):
    """A step under one policy.

    `peak_bytes` is what the card must have, weights and all. `offloaded_bytes` leave and come back,
    `remade_bytes` are made again.
    """

    seconds: float
    compute_seconds: float
    peak_bytes: int
    offloaded_bytes: int
    remade_bytes: int


@cache
def trained(name: str) -> tuple[Network, Tensor]:
    """A network, and its loss."""
    batch, image = CASES[name]
    if name == VGG:
        return networks.vgg19(batch=batch, image=image)
    return padded_unet(batch, image)


def padded_unet(batch: int, image: int, width: int = 64) -> tuple[Network, Tensor]:
    """A U-Net whose convolutions pad, as those for the Data Science Bowl's images of 256 x 256.

    >>> padded_unet(2, 32, width=4)[1].shape
    (1,)
    """
    net = Network()
    x = net.input("images", (batch, 3, image, image))
    labels = net.input("labels", (batch, image, image), "int64")
    kept = []
    for level in range(5):
        if level:
            x = net.pooling(x, window=2, name=f"down{level}.pool")
        x = _pair(net, x, width * 2**level, f"down{level}")
        kept.append(x)
    for level in reversed(range(4)):
        features = width * 2**level
        x = net.transposed_convolution(x, features, window=2, stride=2, name=f"up{level}.up")
        x = net.concatenate([kept[level], x], name=f"up{level}.join")
        x = _pair(net, x, features, f"up{level}")
    logits = net.convolution(x, 2, window=1, name="logits")
    return net, net.softmax_cross_entropy(logits, labels, name="loss")


def _pair(net: Network, x: Tensor, channels: int, name: str) -> Tensor:
    for at in (1, 2):
        x = net.convolution(x, channels, window=3, padding=1, name=f"{name}.conv{at}")
        x = net.activation(x, name=f"{name}.relu{at}")
    return x


@cache
def _machine(name: str) -> MachineModel:
    net, loss = trained(name)
    return p40.machine([_whole(name), net.training_phases(loss)])


@cache
def _whole(name: str) -> Step:
    """The step that MO-SOS takes."""
    net, loss = trained(name)
    return canonicalize_whole_maps(fuse_activation_gradients(net.training_phases(loss)))


def _constraints(name: str, limit: int, *, may_cut: bool) -> PlanConstraints:
    """The card with the weights on it.

    Calls may be cut so that there is room for the fastest algorithms, as the library does where
    engines were measured; or they take the fastest one that fits beside them as they are.
    """
    weights = {
        each: TensorSpec(tensor.shape, tensor.dtype, "device")
        for each, tensor in trained(name)[0].parameters.tensors.items()
    }
    room = limit - sum(spec.nbytes for spec in weights.values())
    ask = p40.ask if may_cut else None
    target = Target(
        _machine(name), room, room, ("channels_first",), ask, overlap=True, options=p40.options
    )
    return PlanConstraints(target, weights)


@cache
def keep_all(name: str) -> int:
    """Bytes of a step that keeps everything: weights, their gradients, the most of all others.

    So it is in the paper's (14), without workspace.
    """
    step = _whole(name)
    weights = trained(name)[0].parameters.tensors
    held = {base: stays for base, stays in keep(step).items() if base not in weights}
    return peak_live_bytes(step, held) + 2 * sum(each.nbytes for each in weights.values())


def replayed(name: str, policy: str, ratio: float) -> Replay | None:
    """Plan a step by a policy, with a share of what it takes to keep all; None if it cannot."""
    limit = int(ratio * keep_all(name))
    constraints = _constraints(name, limit, may_cut=policy not in CANDIDATES)
    net, loss = trained(name)
    try:
        lowered = plan_step(name, net.training_phases(loss), constraints, policy=policy)
    except PlanInfeasibleError:
        return None
    plan = lowered.plan
    by_fate = {
        fate: sum(each.nbytes for each in plan.fates if each.fate == fate)
        for fate in ("offloaded", "recomputed")
    }
    return Replay(
        plan.seconds,
        plan.compute_seconds,
        plan.device_bytes + limit - constraints.target.room_bytes,
        by_fate["offloaded"],
        by_fate["recomputed"],
    )
