"""What `benchmarks.layouts` measures: the convolutions of Li et al., of VGG-16 and ResNet-50, and
five networks as chains of convolutions and poolings.

A linear layer is a convolution of one site: it reads a map flattened, as it lies in NCHW.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.pooling.forward import Pooling

Operation = Convolution | Pooling
#: Whether float32 may be computed as TF32, by precision.
PRECISIONS = {"tf32": ("float32", True), "strict": ("float32", False), "float16": ("float16", True)}


class Layer(NamedTuple):
    """A convolution; `pad` is on every side."""

    n: int
    c_x: int
    c_y: int
    extent: int
    window: int
    stride: int = 1
    pad: int = 0

    def of(self, precision: str) -> Convolution:
        dtype, allow_tf32 = PRECISIONS[precision]
        return Convolution.of(
            (self.n, self.c_x, self.extent, self.extent),
            (self.c_y, self.c_x, self.window, self.window),
            padding=self.pad, stride=self.stride, dtype=dtype, allow_tf32=allow_tf32,
        )  # fmt: skip


#: Table 1 of Li et al. Extents of the next layers tell the padding, which the table does not have.
PAPER = {
    "CV1": Layer(128, 1, 16, 28, 5, 1, 2), "CV2": Layer(128, 16, 16, 14, 5, 1, 2),
    "CV3": Layer(128, 3, 64, 24, 5, 1, 2), "CV4": Layer(128, 64, 64, 12, 5, 1, 2),
    "CV5": Layer(64, 3, 96, 224, 3, 2, 1), "CV6": Layer(64, 96, 256, 55, 5, 2, 0),
    "CV7": Layer(64, 256, 384, 13, 3, 1, 1), "CV8": Layer(64, 384, 384, 13, 3, 1, 1),
    "CV9": Layer(32, 3, 64, 224, 3, 1, 1), "CV10": Layer(32, 128, 256, 56, 3, 1, 1),
    "CV11": Layer(32, 256, 512, 28, 3, 1, 1), "CV12": Layer(32, 512, 512, 14, 3, 1, 1),
}  # fmt: skip


def _vgg16() -> Iterator[Layer]:
    for c_x, c_y, extent in (
        (3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56),
        (256, 256, 56), (256, 512, 28), (512, 512, 28), (512, 512, 14),
    ):  # fmt: skip
        yield Layer(64, c_x, c_y, extent, 3, 1, 1)


def _resnet50() -> Iterator[Layer]:
    yield Layer(64, 3, 64, 224, 7, 2, 3)
    before = 64
    for narrow, extent, stride in ((64, 56, 1), (128, 28, 2), (256, 14, 2), (512, 7, 2)):
        wide, came = 4 * narrow, extent * stride
        yield Layer(64, before, narrow, came, 1)
        yield Layer(64, narrow, narrow, came, 3, stride, 1)
        yield Layer(64, narrow, wide, extent, 1)
        yield Layer(64, before, wide, came, 1, stride)
        yield Layer(64, wide, narrow, extent, 1)
        if stride > 1:
            yield Layer(64, narrow, narrow, extent, 3, 1, 1)
        before = wide


def named(network: str, layers: Iterator[Layer]) -> dict[str, Layer]:
    return {
        f"{network} {layer.c_x}>{layer.c_y}, {layer.extent}, {layer.window}x{layer.window}"
        f"{f'/{layer.stride}' if layer.stride > 1 else ''}": layer
        for layer in layers
    }  # fmt: skip


LAYERS = {**PAPER, **named("VGG-16", _vgg16()), **named("ResNet-50", _resnet50())}

#: Of the profile by which the rule is calibrated: images at 256 channels, channels at 64 images.
PROFILE = (
    *(Layer(n, 256, 384, 13, 3, 1, 1) for n in (16, 32, 64, 128, 256)),
    *(Layer(64, c, 384, 13, 3, 1, 1) for c in (1, 3, 16, 32, 64, 128)),
)

# Networks ----------------------------------------------------------------------------------------


class Net:
    """A chain that is built operation by operation."""

    def __init__(self, precision: str, n: int, channels: int, extent: int) -> None:
        self.precision, self.shape = precision, (n, channels, extent, extent)
        self.operations: list[Operation] = []

    def convolution(self, c_y: int, window: int, stride: int = 1, pad: int = 0) -> Net:
        n, c_x, extent, _ = self.shape
        made = Layer(n, c_x, c_y, extent, window, stride, pad).of(self.precision)
        return self._then(made)

    def pooling(self, window: int, stride: int, pad: int = 0) -> Net:
        dtype = PRECISIONS[self.precision][0]
        return self._then(
            Pooling.of(self.shape, window=window, stride=stride, padding=pad, dtype=dtype)
        )

    def linear(self, *features: int) -> Net:
        self.shape = (self.shape[0], math.prod(self.shape[1:]), 1, 1)
        for each in features:
            self.convolution(each, 1)
        return self

    def _then(self, operation: Operation) -> Net:
        self.operations.append(operation)
        self.shape = operation.output_shape  # type: ignore[assignment]
        return self


def networks(precision: str, *, quick: bool = False) -> dict[str, tuple[Operation, ...]]:
    """The networks of Li et al.'s Table 1, with its batches; AlexNet in one tower.

    >>> [chain[-1].output_shape for chain in networks("tf32").values()]
    [(128, 10, 1, 1), (128, 10, 1, 1), (128, 1000, 1, 1), (64, 1000, 1, 1), (32, 1000, 1, 1)]
    """
    if quick:
        small = Net(precision, 4, 1, 12).convolution(4, 5, pad=2).pooling(2, 2)
        return {
            "small": tuple(small.convolution(6, 3, pad=1).pooling(3, 2, 1).linear(8, 5).operations)
        }
    lenet = Net(precision, 128, 1, 28).convolution(16, 5, pad=2).pooling(2, 2)
    lenet.convolution(16, 5, pad=2).pooling(2, 2).linear(100, 10)
    cifar = Net(precision, 128, 3, 24).convolution(64, 5, pad=2).pooling(3, 2, 1)
    cifar.convolution(64, 5, pad=2).pooling(3, 2, 1).linear(384, 10)
    alexnet = Net(precision, 128, 3, 227).convolution(96, 11, 4).pooling(3, 2)
    alexnet.convolution(256, 5, pad=2).pooling(3, 2)
    zfnet = Net(precision, 64, 3, 224).convolution(96, 7, 2, 1).pooling(3, 2, 1)
    zfnet.convolution(256, 5, 2).pooling(3, 2, 1)
    for net in (alexnet, zfnet):
        net.convolution(384, 3, pad=1).convolution(384, 3, pad=1).convolution(256, 3, pad=1)
        net.pooling(3, 2).linear(4096, 4096, 1000)
    vgg = Net(precision, 32, 3, 224)
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            vgg.convolution(channels, 3, pad=1)
        vgg.pooling(2, 2)
    vgg.linear(4096, 4096, 1000)
    found = {"LeNet": lenet, "CIFAR": cifar, "AlexNet": alexnet, "ZFNet": zfnet, "VGG-16": vgg}
    return {name: tuple(net.operations) for name, net in found.items()}
