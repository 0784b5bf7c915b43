"""Every module of torch.nn at small size through `limit`: as eager, or refused by name."""

import copy
import inspect

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from tests.support.torch_checks import close

pytestmark = pytest.mark.usefixtures("fewest_plans")

LINE, MAP, VOLUME, VECTORS, WORDS = (2, 4, 9), (2, 4, 6, 8), (1, 4, 4, 6, 5), (3, 4), (3, 5, 4)
SHAPES = {1: LINE, 2: MAP, 3: VOLUME}


def per_axes(name, *given, **how):
    """A module for each number of spatial axes, of that shape."""
    return {
        f"{name}{axes}d": (lambda axes=axes: getattr(nn, f"{name}{axes}d")(*given, **how), shape)
        for axes, shape in SHAPES.items()
        if hasattr(nn, f"{name}{axes}d")
    }


def padding(name, *given):
    """A padding for each number of spatial axes."""
    made = {}
    for axes, shape in SHAPES.items():
        kind = getattr(nn, f"{name}{axes}d")
        made[f"{name}{axes}d"] = lambda kind=kind, axes=axes: kind((1, 2) * axes, *given), shape
    return made


def plain(*names, shape=MAP):
    return {name: (getattr(nn, name), shape) for name in names}


class Unpooled(nn.Module):
    """A maximum pooling, and the module that undoes it by the indices."""

    def __init__(self, axes):
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{axes}d")(2, return_indices=True)
        self.unpool = getattr(nn, f"MaxUnpool{axes}d")(2)

    def forward(self, x):
        return self.unpool(*self.pool(x))


#: Of each module how it is made, and the shapes of what it reads.
COMPUTED = {
    **plain("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh",
            "Identity", "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "SELU",
            "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Softmax2d", "Tanh",
            "Tanhshrink", "Flatten"),
    **per_axes("Conv", 4, 3, 3), **per_axes("ConvTranspose", 4, 3, 2, stride=2),
    **per_axes("MaxPool", 2), **per_axes("AvgPool", 2), **per_axes("AdaptiveAvgPool", 2),
    **per_axes("AdaptiveMaxPool", 2), **per_axes("LPPool", 2, 2), **per_axes("BatchNorm", 4),
    **per_axes("InstanceNorm", 4, affine=True), **padding("ConstantPad", 0.5),
    **padding("ZeroPad"), **padding("ReflectionPad"), **padding("ReplicationPad"),
    **padding("CircularPad"),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), MAP),
    "GLU": (lambda: nn.GLU(1), MAP),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), MAP),
    "LayerNorm": (lambda: nn.LayerNorm(8), MAP),
    "RMSNorm": (lambda: nn.RMSNorm(8), MAP),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(3), MAP),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), MAP),
    "Softmax": (lambda: nn.Softmax(1), MAP),
    "Softmin": (lambda: nn.Softmin(1), MAP),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), MAP),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), MAP),
    "Threshold": (lambda: nn.Threshold(0.1, 0.5), MAP),
    "Unfold": (lambda: nn.Unfold(2), MAP),
    "Fold": (lambda: nn.Fold((4, 5), (2, 2)), (2, 8, 12)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 2)), MAP),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), MAP),
    "UpsamplingBilinear2d": (lambda: nn.UpsamplingBilinear2d(scale_factor=2), MAP),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(scale_factor=2), MAP),
    "Linear": (lambda: nn.Linear(4, 3), VECTORS),
    "Bilinear": (lambda: nn.Bilinear(4, 4, 3), VECTORS, VECTORS),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(1), MAP, MAP),
    "PairwiseDistance": (lambda: nn.PairwiseDistance(), VECTORS, VECTORS),
    "Sequential": (lambda: nn.Sequential(nn.Conv2d(4, 3, 1), nn.ReLU()), MAP),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), *[WORDS] * 3),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), WORDS,
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(4, 2, 8, 0.0, batch_first=True), WORDS, WORDS,
    ),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 1
        ),
        WORDS,
    ),
    "TransformerDecoder": (
        lambda: nn.TransformerDecoder(
            nn.TransformerDecoderLayer(4, 2, 8, 0.0, batch_first=True), 1
        ),
        WORDS, WORDS,
    ),
    "Transformer": (
        lambda: nn.Transformer(4, 2, 1, 1, 8, 0.0, batch_first=True), WORDS, WORDS,
    ),
    "RNNCell": (lambda: nn.RNNCell(4, 4), VECTORS, VECTORS),
    "GRUCell": (lambda: nn.GRUCell(4, 4), VECTORS, VECTORS),
    "LSTMCell": (lambda: nn.LSTMCell(4, 4), VECTORS),
    "RNN": (lambda: nn.RNN(4, 4, batch_first=True), WORDS),
    "GRU": (lambda: nn.GRU(4, 4, batch_first=True), WORDS),
    "LSTM": (lambda: nn.LSTM(4, 4, batch_first=True), WORDS),
    "Embedding": (lambda: nn.Embedding(7, 4), "numbers"),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(7, 4), "numbers"),
    **{
        f"MaxUnpool{axes}d": (lambda axes=axes: Unpooled(axes), shape)
        for axes, shape in {1: (2, 4, 8), 2: MAP, 3: (1, 4, 4, 6, 2)}.items()
    },
}  # fmt: skip
#: They draw numbers in training; `test_operations` has how many are dropped. Here: in evaluation.
DRAWING = {
    "AlphaDropout": (nn.AlphaDropout, MAP),
    "Dropout": (nn.Dropout, MAP),
    "Dropout1d": (nn.Dropout1d, LINE),
    "Dropout2d": (nn.Dropout2d, MAP),
    "Dropout3d": (nn.Dropout3d, VOLUME),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout, MAP),
    "RReLU": (nn.RReLU, MAP),
}
#: No forward of their own, or one over several processes, or numbers drawn in evaluation, too.
#: CrossMapLRN2d is an autograd.Function, with a backward of its own.
OTHERS = {
    "Container", "CrossMapLRN2d", "DataParallel", "FractionalMaxPool2d", "FractionalMaxPool3d",
    "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "RNNBase",
    "RNNCellBase", "SyncBatchNorm",
}  # fmt: skip


def results(model, inputs):
    inputs = [each.clone().requires_grad_(each.is_floating_point()) for each in inputs]
    made = model(*inputs)
    leaves = [each for each in torch.utils._pytree.tree_leaves(made) if torch.is_tensor(each)]
    floating = [each for each in leaves if each.requires_grad]
    if floating:
        sums = [(y * torch.linspace(1, 2, y.numel()).reshape(y.shape)).sum() for y in floating]
        sum(sums).backward()
    return [
        *leaves, *(each.grad for each in inputs),
        *(each.grad for each in model.parameters()), *model.buffers(),
    ]  # fmt: skip


def read_by(shapes):
    torch.manual_seed(1)
    return [
        torch.randint(0, 7, (3, 5)) if each == "numbers" else torch.randn(each).double()
        for each in shapes
    ]


def test_every_module_is_here():
    kinds = {
        name
        for name, each in vars(nn).items()
        if inspect.isclass(each) and issubclass(each, nn.Module) and "Loss" not in name
    }
    lazy = {name for name in kinds if name.startswith("Lazy")}
    assert kinds - lazy == COMPUTED.keys() | DRAWING.keys() | OTHERS


@pytest.mark.parametrize("name", sorted(COMPUTED))
def test_a_module_is_that_of_eager(name):
    compare(name, *COMPUTED[name])


@pytest.mark.parametrize("name", sorted(DRAWING))
def test_a_module_in_evaluation_is_that_of_eager(name):
    make, shape = DRAWING[name]
    compare(name, lambda: nn.Sequential(nn.Tanh(), make()).eval(), shape)


def compare(name, make, *shapes):
    """Outputs, every gradient and buffers."""
    torch.manual_seed(0)
    model = make().double()
    inputs = read_by(shapes)
    expected = results(copy.deepcopy(model), inputs)
    found = results(ooc.limit(model, "1MiB"), inputs)
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        close(one, other, f"number {at}", tolerance=1e-7 if name == "Hardsigmoid" else 1e-11)
