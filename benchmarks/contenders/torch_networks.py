"""A step of a network in PyTorch, by its twin (`examples.twins`), on given parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.contenders.torch_convolution import release_torch


class Tensors:
    """Parameters and inputs of a step, by the library's names, as PyTorch's tensors on a device."""

    def __init__(self, torch: Any, arrays: Mapping[str, Any], device: str, *, last: bool) -> None:
        self.torch, self.training = torch, True
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
