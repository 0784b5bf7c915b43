"""One call of a model under autograd: forward when it is called, backward when its turn comes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from ooc_cudnn.network.pausing import Paused, PausingStep
from ooc_cudnn.settings import current, settings
from ooc_cudnn.settings_table import SETTINGS
from ooc_cudnn.torch.cards import at, packed_there, results_there


class Request:
    """What a call hands to autograd's function beside tensors: lists that it fills.

    Parameters
    ----------
    step : PausingStep
    names : sequence of str
        In the network, of the tensors that gradients are made of.
    others : mapping
        What else the network is given, by name.
    inputs : collection of str
        Those of all names that are inputs of the network; the others are parameters and running
        statistics.
    device : torch.device
        Where outputs are to be.
    """

    def __init__(
        self,
        step: PausingStep,
        names: Sequence[str],
        others: Mapping[str, Any],
        inputs: Collection[str],
        device: torch.device,
    ) -> None:
        self.step, self.names, self.others = step, tuple(names), dict(others)
        self.device = device
        self.inputs, self.running = frozenset(inputs), dict[str, Any]()

    def forward(self, tensors: Sequence[Any]) -> Paused:
        """Run forward on tensors in the order of the names."""
        arrays = {**self.others, **dict(zip(self.names, tensors, strict=True))}
        lasting = {name: each for name, each in arrays.items() if name not in self.inputs}
        with at(self.device):
            out = results_there(self.step.outputs, self.device)
            return self.step.run({name: arrays[name] for name in self.inputs}, lasting, out)

    def versions(self) -> dict[str, int]:
        """How often each tensor that forward read, and autograd does not watch, was changed."""
        return {
            name: each._version
            for name, each in self.others.items()
            if isinstance(each, torch.Tensor)
            and name not in self.running
            and not each.is_inference()
        }

    def check_unchanged(self, versions: Mapping[str, int]) -> None:
        """Raise RuntimeError, as PyTorch does, if a tensor was changed in place since."""
        for name, version in self.versions().items():
            if version != versions[name]:
                raise RuntimeError(
                    f"{name} has been modified by an inplace operation between forward and "
                    f"backward: it is at version {version}; expected version {versions[name]}. "
                    f"Change it after backward, or give the model a clone"
                )


class Call(torch.autograd.Function):
    """Forward of a network's step; its backward is the step's."""

    @staticmethod
    def forward(ctx: Any, request: Request, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run forward, on tensors in the order of the request's names."""
        ctx.request = request
        ctx.settings = {each.name: getattr(current(), each.name) for each in SETTINGS}
        ctx.paused = paused = request.forward(tensors)
        request.running = dict(paused.running)
        ctx.versions = request.versions()
        outputs = tuple(tensor_of(each) for each in paused.outputs)
        ctx.save_for_backward(*tensors, *outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Run backward; a second time (retain_graph) after forward, which kept nothing for it."""
        request = ctx.request
        tensors = ctx.saved_tensors[: len(request.names)]  # raises if one was changed since
        request.check_unchanged(ctx.versions)
        with settings(**ctx.settings), at(request.device):
            paused = ctx.paused if ctx.paused is not None else request.forward(tensors)
            ctx.paused = None
            made = paused.backward([packed_there(each, request.device) for each in gradients])
        return (None, *_apart([made.get(name) for name in request.names], tensors))


def _apart(gradients: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients as tensors that share no memory: their owners may change them in place."""
    found: list[torch.Tensor | None] = []
    taken = set[int]()
    for gradient, tensor in zip(gradients, tensors, strict=True):
        if gradient is None:
            found.append(None)
            continue
        made = tensor_of(gradient)
        start = made.untyped_storage().data_ptr()
        if start in taken:
            made = made.clone()
        taken.add(start)
        found.append(made.to(tensor.device))
    return found


def tensor_of(array: Any) -> torch.Tensor:
    """A tensor on an array's memory; what it is already is handed on."""
    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    return torch.from_dlpack(array)
