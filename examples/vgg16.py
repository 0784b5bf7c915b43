"""VGG-16, forward and backward, whatever the memory of the card: the paper's example.

Parameters and feature maps are allocated by `ooc_cudnn.empty`, on the device as long as it has room
and in pinned host memory from then on; every function takes any mix of the two. The gradients of
feature maps are needed only until the layer below has used them, so two buffers of the largest size
serve all layers (section 6.4 of the ooc_cuDNN paper).

    python -m examples.vgg16 --batch 128 --memory-limit 8GiB
    python -m examples.vgg16 --batch 2 --image 64 --channels-scale 0.0625 --memory-limit 1MiB

A fully connected layer is a convolution whose window is its whole input.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

import ooc_cudnn
from examples.vgg16_layers import (
    Convolution,
    GradientPool,
    LogSoftmax,
    MaxPooling,
    Parameter,
    shaped,
)
from examples.vgg16_report import Report

#: Channels of the 3x3 convolutions; each group is followed by a 2x2 pooling.
GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
#: Units of the two hidden fully connected layers.
HIDDEN = 4096
Layer = Convolution | MaxPooling | LogSoftmax
#: Watches one call: (name of the layer, "forward" or "backward") -> context manager.
Watch = Callable[[str, str], AbstractContextManager[object]]


class VGG16:
    """The network for batches of one size, with all the memory that it needs.

    Parameters
    ----------
    batch, image, classes : int
        Images in a batch, their height and width (32 or more) and the number of classes.
    dtype : str
        "float16", "float32" or "float64".
    order : str
        Memory order of maps and filters, "channels_first" or "channels_last".
    channels_scale : float
        What the numbers of channels and hidden units are multiplied by: less than 1 for tiny nets.
    seed : int
        Of the initial parameters (He initialisation).
    device_share : float
        What the network's arrays may take of the memory limit; the rest is for the pieces of those
        that did not fit.
    watch : callable, optional
        Called as ``watch(layer, direction)`` around each call, for a context manager.
    """

    def __init__(
        self,
        batch: int,
        image: int = 224,
        classes: int = 1000,
        *,
        dtype: str = "float32",
        order: str = "channels_first",
        channels_scale: float = 1.0,
        seed: int = 0,
        device_share: float = 0.5,
        watch: Watch = lambda layer, direction: nullcontext(),
    ) -> None:
        smallest = 2 ** len(GROUPS)
        if batch < 1 or classes < 1 or image < smallest or not channels_scale > 0:
            raise ValueError(
                f"batch={batch} and classes={classes} must be at least 1, image={image} at least "
                f"{smallest} (it is halved {len(GROUPS)} times), channels_scale={channels_scale} "
                "above 0"
            )
        if not 0 < device_share <= 1:
            raise ValueError(f"device_share={device_share} must be above 0 and at most 1")
        self.images_shape = (batch, 3, image, image)
        self.dtype, self.order, self.watch = np.dtype(dtype), order, watch
        self._random = np.random.default_rng(seed)
        # What a call may hold on the device here and now.
        spec = ooc_cudnn.TensorSpec((1, 1, 1, 1), placement="pageable")
        room = ooc_cudnn.plan("convolution_forward", x=spec, w=spec).memory_limit
        with ooc_cudnn.settings(memory_limit=max(int(room * device_share), 1)):
            self.parameters: dict[str, Parameter] = {}
            self.layers, shapes = self._build(classes, channels_scale)
            elements = max(math.prod(shape) for shape in (self.images_shape, *shapes))
            self.gradient_pool = GradientPool(elements, self.dtype, order)
            self.maps = [ooc_cudnn.empty(shape, self.dtype, order) for shape in shapes]
        self.images: Any = None

    def _build(
        self, classes: int, channels_scale: float
    ) -> tuple[list[Layer], list[tuple[int, ...]]]:
        """Make every layer; return them with the shapes of the maps that they give."""
        layers: list[Layer] = []
        shapes: list[tuple[int, ...]] = []
        n, c, side, _ = self.images_shape

        def scaled(count: int) -> int:
            return max(1, round(count * channels_scale))

        for group, counts in enumerate(GROUPS, start=1):
            for index, count in enumerate(counts, start=1):
                layers.append(self._convolution(f"conv{group}_{index}", scaled(count), c, window=3))
                c = scaled(count)
                shapes.append((n, c, side, side))
            layers.append(MaxPooling(f"pool{group}"))
            side //= 2
            shapes.append((n, c, side, side))
        for name, count in (("fc6", scaled(HIDDEN)), ("fc7", scaled(HIDDEN)), ("fc8", classes)):
            activation = "identity" if name == "fc8" else "relu"
            layers.append(self._convolution(name, count, c, window=side, activation=activation))
            c, side = count, 1
            shapes.append((n, c, 1, 1))
        layers.append(LogSoftmax("softmax"))
        shapes.append(shapes[-1])
        return layers, shapes

    def _convolution(
        self, name: str, c_y: int, c_x: int, *, window: int, activation: str = "relu"
    ) -> Convolution:
        """Make a convolution: padded to keep the size for a 3x3 group, else over all of x."""
        shape = (c_y, c_x, window, window)
        deviation = math.sqrt(2 / math.prod(shape[1:]))
        initial = self._random.standard_normal(shape, np.float32) * np.float32(deviation)
        w = Parameter(initial.astype(self.dtype), self.order)
        b = Parameter(np.zeros(c_y, self.dtype), self.order)
        self.parameters[f"{name}.w"], self.parameters[f"{name}.b"] = w, b
        return Convolution(name, w, b, 1 if name.startswith("conv") else 0, activation)

    def forward(self, images: Any) -> Any:
        """Return the logarithms of the classes' probabilities, shape (batch, classes, 1, 1).

        Raises
        ------
        ValueError, TypeError
            If the images have another shape or dtype than the network was made for.
        """
        if tuple(images.shape) != self.images_shape:
            raise ValueError(
                f"images must have shape {self.images_shape}, not {tuple(images.shape)}"
            )
        if images.dtype != self.dtype:
            raise TypeError(f"images must be {self.dtype}, not {images.dtype}")
        x = self.images = images
        for layer, y in zip(self.layers, self.maps, strict=True):
            with self.watch(layer.name, "forward"):
                layer.forward(x, y)
            x = y
        return x

    def loss(self, labels: Any) -> float:
        """Return the mean cross entropy of the last `forward`."""
        labels = self._checked(labels)
        probabilities = np.empty(self.maps[-1].shape, self.dtype)
        ooc_cudnn.memcpy(probabilities, self.maps[-1])
        return float(-probabilities[np.arange(len(labels)), labels, 0, 0].mean(dtype=np.float64))

    def backward(self, labels: Any) -> dict[str, Any]:
        """Return the gradients of the mean cross entropy: of the images and of each parameter.

        Parameters
        ----------
        labels : array of int, shape (batch,)
            The right class of each image.

        Returns
        -------
        dict
            "images", "conv1_1.w", "conv1_1.b", ... -> array. They are overwritten by the next
            `backward`.
        """
        labels = self._checked(labels)
        gradient = np.zeros(self.maps[-1].shape, self.dtype)
        gradient[np.arange(len(labels)), labels] = -1 / len(labels)
        dy = self.gradient_pool.take(gradient.shape)
        ooc_cudnn.memcpy(dy, gradient)
        inputs = (self.images, *self.maps)
        for at in reversed(range(len(self.layers))):
            layer = self.layers[at]
            with self.watch(layer.name, "backward"):
                dy = layer.backward(inputs[at], self.maps[at], dy, self.gradient_pool)
        return {"images": dy, **{name: p.gradient for name, p in self.parameters.items()}}

    def descend(self, rate: float) -> None:
        """Take one step of gradient descent on every parameter, after `backward`."""
        for parameter in self.parameters.values():
            parameter.descend(rate)

    def _checked(self, labels: Any) -> np.ndarray[Any, Any]:
        """Return the labels as an array, or say what is wrong with them."""
        if self.images is None:
            raise ValueError("there is nothing to go backward from: call forward(images) first")
        found = np.asarray(labels)
        if found.dtype.kind not in "iu":
            raise TypeError(f"labels must be integers, not {found.dtype}")
        n, classes = self.maps[-1].shape[:2]
        if found.shape != (n,):
            raise ValueError(f"labels must have shape ({n},), one per image, not {found.shape}")
        if found.min() < 0 or found.max() >= classes:
            raise ValueError(
                f"labels must be from 0 to {classes - 1}, not {found.min()} to {found.max()}"
            )
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on random images, and print what ran where."""
    parser = argparse.ArgumentParser(prog="examples.vgg16", description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8, help="images in a batch (%(default)s)")
    parser.add_argument("--image", type=int, default=224, help="height and width (%(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--channels-scale", type=float, default=1.0, help="below 1 for tiny nets")
    parser.add_argument("--dtype", choices=("float16", "float32", "float64"), default="float32")
    parser.add_argument(
        "--order", choices=("channels_first", "channels_last"), default="channels_first"
    )
    parser.add_argument("--memory-limit", help='device memory: bytes, "8GiB", "50%%"')
    parser.add_argument("--device", help="cuda, cuda:1 or host; where it works when left out")
    parser.add_argument("--steps", type=int, default=1, help="training steps (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, not {options.steps}")
    chosen = {"device": options.device, "memory_limit": options.memory_limit}
    with ooc_cudnn.settings(**{name: value for name, value in chosen.items() if value is not None}):
        _train(options)
    return 0


def _train(options: argparse.Namespace) -> None:
    report = Report()
    network = VGG16(
        options.batch,
        options.image,
        options.classes,
        dtype=options.dtype,
        order=options.order,
        channels_scale=options.channels_scale,
    )
    random = np.random.default_rng(1)
    flat = random.standard_normal(math.prod(network.images_shape), np.float32)
    images = shaped(flat.astype(options.dtype), network.images_shape, options.order)
    labels = random.integers(options.classes, size=options.batch)
    steps = []
    with ooc_cudnn.pin(images):
        for step in range(options.steps):
            if step == options.steps - 1:  # to be recorded, each call is waited for
                network.watch = report.watch
            begin = time.perf_counter()
            network.forward(images)
            loss = network.loss(labels)
            network.backward(labels)
            network.descend(options.rate)
            steps.append({"loss": loss, "seconds": time.perf_counter() - begin})
            if not options.json:
                print(f"step {step + 1}: loss {loss:.4f}, {steps[-1]['seconds']:.3f} s")
    if options.json:
        print(json.dumps({"options": vars(options), "steps": steps, "calls": report.to_json()}))
    else:
        print(f"\nthe calls of the last step\n\n{report.table()}")


if __name__ == "__main__":
    raise SystemExit(main())
