"""The networks that are timed, in PyTorch as its users would write them, on given parameters."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.contenders.torch_convolution import release_torch

#: (what holds the parameters and inputs by the library's names, those inputs) -> the loss.
Twin = Callable[["Tensors"], Any]


class Tensors:
    """Parameters and inputs of a step, by the library's names, as PyTorch's tensors on a device."""

    def __init__(self, torch: Any, arrays: Mapping[str, Any], device: str, *, last: bool) -> None:
        self.torch, self.functional = torch, importlib.import_module("torch.nn.functional")
        self.device, self._last = device, last
        self.tensors = {name: self.placed(array) for name, array in arrays.items()}
        for tensor in self.tensors.values():
            tensor.requires_grad_()

    def placed(self, array: Any) -> Any:
        """Copy an array to the device; windows and images channels last, where that is faster."""
        tensor = self.torch.from_numpy(array).to(self.device, non_blocking=True)
        if self._last and tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=self.torch.channels_last)
        return tensor

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]

    # The layers of the twins ------------------------------------------------------------------

    def convolution(self, x: Any, name: str, **geometry: Any) -> Any:
        function = self.functional.conv3d if x.ndim == 5 else self.functional.conv2d
        return function(x, self[f"{name}.w"], self.tensors.get(f"{name}.b"), **geometry)

    def convolution_relu(self, x: Any, name: str, **geometry: Any) -> Any:
        return self.functional.relu(self.convolution(x, name, **geometry), inplace=True)

    def linear(self, x: Any, name: str) -> Any:
        return self.functional.linear(x.flatten(1), self[f"{name}.w"], self[f"{name}.b"])

    def normalised(self, x: Any, name: str, norm: str, **geometry: Any) -> Any:
        """A convolution and batch norm."""
        return self.norm(self.convolution(x, name, **geometry), norm)

    def norm(self, x: Any, name: str) -> Any:
        """Batch norm by the statistics of the batch."""
        scale, bias = self[f"{name}.scale"], self[f"{name}.bias"]
        return self.functional.batch_norm(x, None, None, scale, bias, training=True)


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def vgg16_features(t: Tensors, x: Any, through: Callable[..., Any] = called) -> Any:
    def group(x: Any, number: int, count: int) -> Any:
        for at in range(1, count + 1):
            x = t.convolution_relu(x, f"conv{number}_{at}", padding=1)
        return t.functional.max_pool2d(x, 2)

    for number, count in enumerate((2, 2, 3, 3, 3), 1):
        x = through(group, x, number, count)
    return x


def vgg16(t: Tensors, images: Any, labels: Any, through: Callable[..., Any] = called) -> Any:
    x = vgg16_features(t, images, through)
    for name in ("fc6", "fc7"):
        x = t.functional.relu(t.linear(x, name), inplace=True)
    return t.functional.cross_entropy(t.linear(x, "logits"), labels)


def features(t: Tensors, images: Any, targets: Any) -> Any:
    return t.functional.mse_loss(vgg16_features(t, images), targets)


def resnet50(t: Tensors, images: Any, labels: Any, through: Callable[..., Any] = called) -> Any:
    relu = t.functional.relu

    def block(x: Any, name: str, stride: int, index: int) -> Any:
        y = relu(t.normalised(x, f"{name}.conv1", f"{name}.bn1"), inplace=True)
        y = t.normalised(y, f"{name}.conv2", f"{name}.bn2", stride=stride, padding=1)
        y = t.normalised(relu(y, inplace=True), f"{name}.conv3", f"{name}.bn3")
        if index == 0:
            side = f"{name}.downsample"
            x = t.normalised(x, f"{side}.0", f"{side}.1", stride=stride)
        return relu(y + x, inplace=True)

    x = relu(t.normalised(images, "conv1", "bn1", stride=2, padding=3), inplace=True)
    x = t.functional.max_pool2d(x, 3, 2, 1)
    for group, count in enumerate((3, 4, 6, 3), 1):
        for index in range(count):
            stride = 2 if group > 1 and index == 0 else 1
            x = through(block, x, f"layer{group}.{index}", stride, index)
    return t.functional.cross_entropy(t.linear(x.mean((2, 3)), "logits"), labels)


def googlenet(t: Tensors, images: Any, labels: Any) -> Any:
    """Without dropout; with the two further classifiers."""
    functional, relu = t.functional, t.convolution_relu

    def halved(x: Any) -> Any:
        return functional.max_pool2d(x, 3, 2, ceil_mode=True)

    def module(x: Any, name: str) -> Any:
        name = f"inception_{name}"
        branches = [
            relu(x, f"{name}.1x1"),
            relu(relu(x, f"{name}.3x3_reduce"), f"{name}.3x3", padding=1),
            relu(relu(x, f"{name}.5x5_reduce"), f"{name}.5x5", padding=2),
            relu(functional.max_pool2d(x, 3, 1, 1), f"{name}.pool_proj"),
        ]
        return t.torch.cat(branches, 1)

    def side(x: Any, name: str) -> Any:
        x = relu(functional.avg_pool2d(x, 5, 3), f"{name}.conv")
        x = functional.relu(t.linear(x, f"{name}.fc"), inplace=True)
        return functional.cross_entropy(t.linear(x, f"{name}.logits"), labels)

    x = halved(relu(images, "conv1", stride=2, padding=3))
    x = relu(functional.local_response_norm(x, 5), "conv2_reduce")
    x = halved(functional.local_response_norm(relu(x, "conv2", padding=1), 5))
    x = halved(module(module(x, "3a"), "3b"))
    x = module(x, "4a")
    first = side(x, "loss_4a")
    for name in ("4b", "4c", "4d"):
        x = module(x, name)
    second = side(x, "loss_4d")
    x = module(module(halved(module(x, "4e")), "5a"), "5b").mean((2, 3))
    main = functional.cross_entropy(t.linear(x, "logits"), labels)
    return main + 0.3 * first + 0.3 * second


def densenet121(t: Tensors, images: Any, labels: Any) -> Any:
    functional = t.functional

    def rectified(x: Any, name: str) -> Any:
        return functional.relu(t.norm(x, name), inplace=True)

    x = t.convolution(images, "features.conv0", stride=2, padding=3)
    x = functional.max_pool2d(rectified(x, "features.norm0"), 3, 2, 1)
    for block, count in enumerate((6, 12, 24, 16), 1):
        for layer in range(1, count + 1):
            name = f"features.denseblock{block}.denselayer{layer}"
            y = t.convolution(rectified(x, f"{name}.norm1"), f"{name}.conv1")
            y = t.convolution(rectified(y, f"{name}.norm2"), f"{name}.conv2", padding=1)
            x = t.torch.cat([x, y], 1)
        if block < 4:
            name = f"features.transition{block}"
            x = t.convolution(rectified(x, f"{name}.norm"), f"{name}.conv")
            x = functional.avg_pool2d(x, 2)
    x = rectified(x, "features.norm5").mean((2, 3))
    return functional.cross_entropy(t.linear(x, "logits"), labels)


def unet(t: Tensors, images: Any, labels: Any) -> Any:
    """Without dropout."""
    functional = t.functional

    def pair(x: Any, name: str) -> Any:
        return t.convolution_relu(t.convolution_relu(x, f"{name}.conv1"), f"{name}.conv2")

    x, kept = images, []
    for level in range(5):
        x = pair(functional.max_pool2d(x, 2) if level else x, f"down{level}")
        kept.append(x)
    for level in (3, 2, 1, 0):
        up = f"up{level}.up"
        x = functional.conv_transpose2d(x, t[f"{up}.w"], t[f"{up}.b"], stride=2)
        border = (kept[level].shape[2] - x.shape[2]) // 2
        side = kept[level][:, :, border:-border, border:-border]
        x = pair(t.torch.cat([side, x], 1), f"up{level}")
    return functional.cross_entropy(t.convolution(x, "logits"), labels)


def unet_3d(t: Tensors, images: Any, labels: Any) -> Any:
    functional = t.functional
    stages = sum(name.endswith(".1.conv.w") for name in t.tensors if name.startswith("encoder"))

    def stage(x: Any, name: str, stride: int = 1) -> Any:
        for number in (1, 2):
            part = f"{name}.{number}"
            x = t.convolution(x, f"{part}.conv", padding=1, stride=stride if number == 1 else 1)
            scale, bias = t[f"{part}.norm.scale"], t[f"{part}.norm.bias"]
            x = functional.instance_norm(x, None, None, scale, bias)
            x = functional.leaky_relu(x, inplace=True)
        return x

    x, kept = images, []
    for level in range(stages):
        x = stage(x, f"encoder{level}", 2 if level else 1)
        kept.append(x)
    for level in reversed(range(stages - 1)):
        up = f"decoder{level}.up"
        x = functional.conv_transpose3d(x, t[f"{up}.w"], t[f"{up}.b"], stride=2)
        x = stage(t.torch.cat([x, kept[level]], 1), f"decoder{level}")
    return functional.cross_entropy(t.convolution(x, "logits"), labels)


class TorchNetwork:
    """A step of a twin: loss and gradients, whole or in micro-batches (of networks that allow it).

    Images come from the host in each step, and gradients stay on the device.
    """

    def __init__(self, torch: Any, twin: Any, arrays: Mapping[str, Any], *, cuda: bool) -> None:
        self.torch, self.twin, self.cuda = torch, twin, cuda
        self.tensors = Tensors(torch, arrays, "cuda" if cuda else "cpu", last=cuda)

    def step(self, *inputs: Any, micro: int | None = None) -> float:
        """Return the loss; gradients are those of this step alone."""
        for tensor in self.tensors.tensors.values():
            tensor.grad = None
        whole = len(inputs[0])
        micro = micro or whole
        losses = []
        for start in range(0, whole, micro):
            part = [self.tensors.placed(each[start : start + micro]) for each in inputs]
            loss = self.twin(self.tensors, *part) * (len(part[0]) / whole)
            loss.backward()
            losses.append(loss.detach())
        return sum(float(loss) for loss in losses)

    def gradients(self) -> dict[str, Any]:
        """Gradients by name, as arrays of the host."""
        found = self.tensors.tensors.items()
        return {name: tensor.grad.cpu().contiguous().numpy() for name, tensor in found}

    def release(self) -> None:
        self.tensors.tensors.clear()
        release_torch(cuda=self.cuda)
