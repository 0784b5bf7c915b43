"""Lazy layers: TorchDynamo initialises them while it traces, and gives the random stream back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

#: The method by which TorchDynamo, too, has a layer initialised by what it is called with.
_INITIALIZE = "_infer_parameters"


def lazy_layers(model: torch.nn.Module) -> list[Any]:
    """The layers of a model that are initialised when they are called.

    >>> lazy_layers(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LazyLinear(2)))
    [LazyLinear(in_features=0, out_features=2, bias=True)]
    """
    modules = (each for each in model.modules() if isinstance(each, LazyModuleMixin))
    return [each for each in modules if hasattr(each, "_initialize_hook")]


class CalledAsALayer(torch.nn.Module):
    """A model that calls another: a lazy layer is initialised by its call, not by its forward."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Any:
        """Call it."""
        return self.model(*args)


def called_if_lazy(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model; one around it, where it is a lazy layer itself that was not called yet."""
    return CalledAsALayer(model) if model in lazy_layers(model) else model


@contextmanager
def lazy_layers_drawing(model: torch.nn.Module) -> Iterator[None]:
    """Let random streams go on behind what lazy layers draw, as in a call without a capture."""
    layers = lazy_layers(model)
    states: dict[torch.device, torch.Tensor] = {}

    def initialize(layer: Any, *arguments: Any) -> None:
        del layer.__dict__[_INITIALIZE]
        layer._infer_parameters(layer, *arguments)
        held = itertools.chain(layer.parameters(), layer.buffers())
        for device in {torch.device("cpu"), *(each.device for each in held)}:
            if device.type == "cpu":
                states[device] = torch.get_rng_state()
            elif device.type == "cuda":
                states[device] = torch.cuda.get_rng_state(device)

    for layer in layers:
        layer.__dict__[_INITIALIZE] = initialize
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop(_INITIALIZE, None)
        for device, state in states.items():
            if device.type == "cpu":
                torch.set_rng_state(state)
            else:
                torch.cuda.set_rng_state(state, device)
