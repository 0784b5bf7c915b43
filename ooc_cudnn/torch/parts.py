"""A model's modules, and where they hold their tensors: looked up once, not in each call."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch


class Parts:
    """The modules of a model as they were found, and what they are asked in each call."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = tuple(model.modules())
        self._children = [(each._modules, dict(each._modules)) for each in self._modules]
        self._holders: dict[str, tuple[dict[str, Any], str]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            for held in (module._parameters, module._buffers):
                for name in held:
                    self._holders[f"{path}.{name}" if path else name] = held, name

    @property
    def are_the_same(self) -> bool:
        """Whether no module was put in, taken out or replaced since."""
        return all(now == before for now, before in self._children)

    def tensor(self, name: str) -> torch.Tensor:
        """A parameter or a buffer, as it is now."""
        held, key = self._holders[name]
        found: torch.Tensor = held[key]
        return found

    def state(self) -> Hashable:
        """What a capture depends on: which modules train, which parameters ask for gradients.

        >>> model = torch.nn.Linear(2, 2)
        >>> parts = Parts(model)
        >>> before = parts.state()
        >>> _ = model.eval()
        >>> parts.state() == before
        False
        """
        training = tuple([module.training for module in self._modules])
        asking = tuple(
            [
                each is not None and each.requires_grad
                for module in self._modules
                for each in module._parameters.values()
            ]
        )
        return training, asking, self._device()

    def _device(self) -> torch.device | None:
        for module in self._modules:
            for each in module._parameters.values():
                if each is not None:
                    return each.device
        return None
