"""The networks that vDNN trained: those that ship, and AlexNet as it did.

The conventional ones had the shapes of the convnet-benchmarks reference models: AlexNet is there
the one of a single tower, without local response normalization.
"""

from __future__ import annotations

from functools import cache

from benchmarks.vdnn_figures import Case
from ooc_cudnn import networks
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.network.passes.compress_activations import compress_activations
from ooc_cudnn.network.passes.fuse_chains import fuse_chains
from ooc_cudnn.network.passes.inplace_gradients import share_gradient_memory


@cache
def trained(case: Case) -> tuple[Network, Tensor]:
    """A network, and its loss."""
    if case.network == "alexnet":
        return one_tower_alexnet(case.batch)
    made: tuple[Network, Tensor] = getattr(networks, case.network)(batch=case.batch)
    return made


def network(case: Case) -> Network:
    """A network."""
    return trained(case)[0]


@cache
def step_of(case: Case, *, saves_little: bool) -> Step:
    """A step of training: as the library has it, or as vDNN's cuDNN had it.

    Ours saves a bit of each ReLU's result and a byte of each maximum, where that is all that
    backward needs. In 2016 backward of either read the maps.
    """
    net, loss = trained(case)
    step = net.training_phases(loss)
    return share_gradient_memory(fuse_chains(compress_activations(step) if saves_little else step))


def one_tower_alexnet(batch: int) -> tuple[Network, Tensor]:
    """Krizhevsky's "one weird trick" (2014): 64, 192, 384, 256 and 256 channels.

    >>> net, loss = one_tower_alexnet(2)
    >>> sum(tensor.nbytes for tensor in net.parameters.tensors.values()) // 4
    61100840
    """
    net = Network()
    x, labels = net.input("images", (batch, 3, 224, 224)), net.input("labels", (batch,), "int64")
    for channels, window, stride, padding, pooled in (
        (64, 11, 4, 2, True),
        (192, 5, 1, 2, True),
        (384, 3, 1, 1, False),
        (256, 3, 1, 1, False),
        (256, 3, 1, 1, True),
    ):
        x = net.convolution(x, channels, window=window, stride=stride, padding=padding)
        x = net.activation(x)
        x = net.pooling(x, window=3, stride=2) if pooled else x
    for features in (4096, 4096):
        x = net.activation(net.linear(x, features))
    return net, net.softmax_cross_entropy(net.linear(x, 1000), labels)
