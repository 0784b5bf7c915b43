"""VGG-16 in PyTorch with the library's initial weights, as its users would write it."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.contenders.torch_convolution import release_torch
from benchmarks.contenders.training_network import Array, Layer, Network
from benchmarks.contenders.training_reference import Outcome
from ooc_cudnn.bench.contender import Unavailable

Group = Callable[[Any], Any]
#: Images of a micro-batch: as many as keep the card busy.
MICRO_BATCH = 128


def load_torch(*, cuda: bool) -> Any:
    """Return PyTorch, or raise `Unavailable` where it is missing or sees no card."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise Unavailable(f"PyTorch is not installed: {error}") from error
    if cuda and not torch.cuda.is_available():
        raise Unavailable(f"PyTorch {torch.__version__} sees no GPU")
    return torch


@contextmanager
def precision(torch: Any, *, tf32: bool) -> Iterator[None]:
    """Allow TF32 or enforce strict float32; let cuDNN time its engines, as for fixed shapes."""
    wanted = (
        (torch.backends.cudnn, "allow_tf32", tf32),
        (torch.backends.cuda.matmul, "allow_tf32", tf32),
        (torch.backends.cudnn, "benchmark", True),
    )
    before = [getattr(flags, name) for flags, name, _ in wanted]
    try:
        for flags, name, value in wanted:
            setattr(flags, name, value)
        yield
    finally:
        for (flags, name, _), value in zip(wanted, before, strict=True):
            setattr(flags, name, value)


@contextmanager
def out_of_memory_as(torch: Any, kind: type[Exception]) -> Iterator[None]:
    """Turn PyTorch's out-of-memory error into one of another kind.

    The frames that it passed are emptied: they hold tensors, and the next contender needs their
    memory while the error is still being looked at.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)
        raise kind(" ".join(str(error).split())) from error


class TorchNetwork:
    """The layers of a network as functions of parameters on a device.

    Filters and maps are channels-last where TF32 is allowed: tensor cores want it, and in strict
    float32 cuDNN's kernels are several times slower with it. Each of `groups` ends with a pooling;
    the last one holds the fully connected layers.
    """

    def __init__(self, torch: Any, network: Network, device: str, *, channels_last: bool) -> None:
        self.torch, self.network, self.device = torch, network, device
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.parameters = {
            name: torch.from_numpy(weight).to(device, copy=True)
            for name, weight in network.weights.items()
        }
        for layer in network.layers:
            if layer.kind == "convolution":
                name = f"{layer.name}.w"
                self.parameters[name] = self._laid_out(self.parameters[name])
        for parameter in self.parameters.values():
            parameter.requires_grad_()
        self.groups = [self._function(layers) for layers in self._grouped()]

    def _grouped(self) -> list[list[Layer]]:
        groups: list[list[Layer]] = [[]]
        for layer in self.network.layers:
            if layer.kind != "softmax":  # is part of the loss
                groups[-1].append(layer)
            if layer.kind == "pooling":
                groups.append([])
        return groups

    def _function(self, layers: Sequence[Layer]) -> Group:
        functional = self.torch.nn.functional

        def group(x: Any) -> Any:
            for layer in layers:
                if layer.kind == "pooling":
                    x = functional.max_pool2d(x, 2)
                    continue
                w, b = (self.parameters[f"{layer.name}.{part}"] for part in "wb")
                if layer.kind == "convolution":
                    x = functional.conv2d(x, w, b, padding=layer.padding)
                else:
                    x = functional.linear(x.flatten(1), w, b)
                if layer.relu:
                    x = functional.relu(x, inplace=True)
            return x

        return group

    def images(self, images: Array) -> Any:
        """Copy images to the device, in the network's memory order there."""
        placed = self.torch.from_numpy(images).to(self.device, non_blocking=True)
        return self._laid_out(placed)

    def _laid_out(self, tensor: Any) -> Any:
        return tensor.contiguous(memory_format=self.memory_format)

    def loss(
        self,
        x: Any,
        labels: Array,
        *,
        reduction: str = "mean",
        through: Callable[[Group, Any], Any] = lambda group, x: group(x),
    ) -> Any:
        """Return the cross entropy of images on the device; `through` runs each group."""
        for group in self.groups:
            x = through(group, x)
        target = self.torch.from_numpy(labels).to(self.device)
        return self.torch.nn.functional.cross_entropy(x, target, reduction=reduction)

    def accumulate(self, images: Array, labels: Array, micro: int) -> float:
        """Add the gradients of the mean loss, `micro` images at a time; return the loss."""
        total = self.torch.zeros((), device=self.device)
        for start in range(0, len(labels), micro):
            part = slice(start, start + micro)
            x = self.images(images[part])
            loss = self.loss(x, labels[part], reduction="sum") / len(labels)
            loss.backward()
            total += loss.detach()
        return float(total)

    def descend(self, rate: float) -> None:
        with self.torch.no_grad():
            for parameter in self.parameters.values():
                parameter.sub_(parameter.grad, alpha=rate)

    def reset(self) -> None:
        """Put the initial weights back, and forget gradients."""
        self.forget_gradients()
        with self.torch.no_grad():
            for name, weight in self.network.weights.items():
                self.parameters[name].copy_(self.torch.from_numpy(weight))

    def forget_gradients(self) -> None:
        """Drop all gradients, so that the next ones are new."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def gradients(self) -> dict[str, Array]:
        return {name: _on_host(p.grad) for name, p in self.parameters.items()}

    def weights(self) -> dict[str, Array]:
        return {name: _on_host(p.detach()) for name, p in self.parameters.items()}

    def saved_bytes(self, batch: int) -> list[int]:
        """Return the bytes of each tensor that autograd would save for a batch.

        Counted for one image and for two: what is saved grows by as much with every further one.
        """
        one, two = (self._saved_bytes_of(count) for count in (1, 2))
        return [a + (b - a) * (batch - 1) for a, b in zip(one, two, strict=True)]

    def _saved_bytes_of(self, count: int) -> list[int]:
        found: list[int] = []

        def pack(tensor: Any) -> Any:
            found.append(tensor.nbytes)
            return tensor

        images = np.zeros((count, *self.network.image_shape), np.float32)
        with self.torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.loss(self.images(images), np.zeros(count, np.int64))
        return found


def _on_host(tensor: Any) -> Array:
    """A copy that the device's memory is not needed for: tensors on the host are shared."""
    return np.array(tensor.cpu().contiguous().numpy())


def reference(
    network: Network, images: Array, labels: Array, *, cuda: bool, micro: int = MICRO_BATCH
) -> Outcome:
    """Return the loss and gradients of a step, by PyTorch in strict float32 and micro-batches."""
    torch = load_torch(cuda=cuda)
    with precision(torch, tf32=False), out_of_memory_as(torch, MemoryError):
        made = TorchNetwork(torch, network, "cuda" if cuda else "cpu", channels_last=False)
        found = Outcome(made.accumulate(images, labels, micro), made.gradients())
    del made
    release_torch(cuda=cuda)
    return found
