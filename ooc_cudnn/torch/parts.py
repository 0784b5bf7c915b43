"""A model's modules, and where they hold their tensors: looked up once, not in each call."""

from __future__ import annotations

from collections.abc import Hashable
from operator import is_
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
        #: Attributes that forward itself sets: no capture depends on them.
        self._set_by_forward = frozenset[tuple[int, str]]()
        self._look()

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
        """What a capture depends on: modules' attributes, what their tensors are.

        Attributes are numbers, strings and tuples of them, such as a momentum or a stride, and
        which modules train; of tensors shapes, dtypes, and which ask for gradients.

        >>> model = torch.nn.Linear(2, 2)
        >>> parts = Parts(model)
        >>> before = parts.state()
        >>> _ = model.eval()
        >>> parts.state() == before
        False
        """
        tensors = tuple(
            [
                each if each is None else (each.shape, each.dtype, each.requires_grad)
                for module in self._modules
                for held in (module._parameters, module._buffers)
                for each in held.values()
            ]
        )
        if not self._are_as_seen:
            self._look()
        return self._attributes, tensors, self._device()

    def forward_has_run(self) -> None:
        """Note that forward has run since `state`, and nothing else: it has set what differs."""
        before = dict(self._attributes)
        self._look()
        after = dict(self._attributes)
        self._set_by_forward |= {
            key for key in before.keys() | after.keys() if before.get(key) != after.get(key)
        }
        self._look()

    @property
    def _are_as_seen(self) -> bool:
        """Whether all attributes are the same objects as when they were looked at."""
        for module, seen in zip(self._modules, self._seen, strict=True):
            now = module.__dict__
            if len(now) != len(seen) or not all(map(is_, now.values(), seen)):
                return False
        return True

    def _look(self) -> None:
        self._seen = [tuple(module.__dict__.values()) for module in self._modules]
        self._attributes = frozenset(
            ((at, name), (type(value), value))
            for at, module in enumerate(self._modules)
            for name, value in module.__dict__.items()
            if is_plain(value) and (at, name) not in self._set_by_forward
        )

    def _device(self) -> torch.device | None:
        for module in self._modules:
            for each in module._parameters.values():
                if each is not None:
                    return each.device
        return None


def is_plain(value: Any) -> bool:
    """Whether it is a number, a string, none, or a tuple of such."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
