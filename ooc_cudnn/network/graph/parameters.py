"""The arrays that live between steps: parameters and running statistics, by name."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from typing import Any

import numpy as np

from ooc_cudnn.network.graph.initializers import Initial
from ooc_cudnn.network.ir.tensor import Tensor


class Parameters(MutableMapping[str, Any]):
    """Name to array, in the order of making. Arrays are the user's: to change, or to replace.

    What is not given is drawn when it is first asked for: to plan a network, none of it has to be.
    Each draws from a seed of its own, so its value depends on the seed and its place alone.

    Parameters
    ----------
    seed : int
        Of what is drawn.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.tensors: dict[str, Tensor] = {}
        self._initial: dict[str, Initial] = {}
        self._arrays: dict[str, Any] = {}

    def declare(self, tensor: Tensor, initial: Initial, given: Any = None) -> None:
        """Add one, with its array or what makes it."""
        self.tensors[tensor.name], self._initial[tensor.name] = tensor, initial
        if given is not None:
            try:
                self[tensor.name] = given
            except (TypeError, ValueError):
                self.forget(tensor.name)
                raise

    def forget(self, name: str) -> None:
        """Take one out again: the node it was for could not be made."""
        for each in (self.tensors, self._initial, self._arrays):
            each.pop(name, None)

    def is_made(self, name: str) -> bool:
        """True if its array is there, and not still to be drawn."""
        return name in self._arrays

    def __getitem__(self, name: str) -> Any:
        if name not in self._arrays:
            tensor = self._known(name)
            index = list(self.tensors).index(name)
            random = np.random.default_rng((self._seed, index))
            drawn = self._initial[name](random, tensor.shape, tensor.dtype)
            self._arrays.setdefault(name, drawn)  # another thread may have been first
        return self._arrays[name]

    def __setitem__(self, name: str, array: Any) -> None:
        """Replace an array by another one of its shape and dtype, of any framework, anywhere."""
        self._check(self._known(name), array)
        # A torch.nn.Parameter: its memory alone, which PyTorch's optimizers go on to change.
        self._arrays[name] = array.detach() if getattr(array, "requires_grad", False) else array

    def _known(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise KeyError(f"{name!r} is none of {', '.join(self.tensors) or 'no names'}")
        return self.tensors[name]

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"{name!r} belongs to the network and cannot be taken out of it")

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def checked(self) -> Mapping[str, Any]:
        """Every array, as it is now.

        Raises
        ------
        TypeError, ValueError
            If one has changed its shape or dtype since it was set.
        """
        for name in self:
            self._check(self.tensors[name], self[name])
        return dict(self)

    @staticmethod
    def _check(tensor: Tensor, array: Any) -> None:
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise TypeError(f"{tensor.name} must be an array, not {array!r}")
        shape, dtype = tuple(array.shape), _name_of(array.dtype)
        if shape != tensor.shape:
            raise ValueError(f"{tensor.name} must have shape {tensor.shape}, not {shape}")
        if dtype != tensor.dtype:
            raise TypeError(f"{tensor.name} must be {tensor.dtype}, not {dtype}")


@lru_cache(256)
def _name_of(dtype: Hashable) -> str:
    """The name of any framework's dtype; NumPy takes its time to spell one."""
    return str(dtype).removeprefix("torch.")
