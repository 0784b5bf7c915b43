"""Fake tensors that stand for what a call is made with: no data, and no memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ooc_cudnn.torch.capture.refusals import check_tensor
from ooc_cudnn.torch.stored import STORED_DTYPES, scaled_dtype


class StandIns:
    """Gives what Dynamo is to see of arguments: a tensor where the model is, of its dtype.

    Parameters
    ----------
    model : Module
    scale : float, optional
        As for `limit`.

    Attributes
    ----------
    real : dict
        Of each stand-in, by its `id`, what it stands for.
    """

    def __init__(self, model: torch.nn.Module, scale: float | None) -> None:
        self.real: dict[int, Any] = {}
        held = _first_tensor(model)
        self._device = None if held is None else held.device
        self._model, self._scale = model, scale
        self._mode: Any = None

    def __call__(self, given: Any) -> Any:
        """A stand-in, or what is given itself."""
        is_tensor = isinstance(given, torch.Tensor)
        dtype = torch_dtype(given)
        if self._scale is not None and dtype in STORED_DTYPES:
            dtype = scaled_dtype(self._model)
        device = self._device or (given.device if is_tensor else torch.device("cpu"))
        if is_tensor and given.device == device and dtype == given.dtype:
            return given.as_subclass(torch.Tensor) if type(given) is not torch.Tensor else given
        fake = self._fake(given, dtype, device)
        self.real[id(fake)] = given
        return fake

    def _fake(self, array: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        from torch._subclasses.fake_tensor import FakeTensorMode

        if self._mode is None:
            self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        follows = isinstance(array, torch.Tensor) and array.requires_grad
        with self._mode, torch.inference_mode(False):
            return torch.empty(array.shape, dtype=dtype, device=device, requires_grad=follows)


def containers_in(given: Any, standing: Any) -> list[tuple[Any, Any]]:
    """Lists and dictionaries that a call is given, each with what stands for it, alike in shape."""
    if type(given) not in pytree.SUPPORTED_NODES:
        return []
    flatten = pytree.SUPPORTED_NODES[type(given)].flatten_fn
    containers = [(given, standing)] if isinstance(given, dict | list | deque) else []
    for pair in zip(flatten(given)[0], flatten(standing)[0], strict=True):
        containers += containers_in(*pair)
    return containers


def give_back(containers: Sequence[tuple[Any, Any]], real: Mapping[int, Any]) -> None:
    """Do to a user's lists and dictionaries what forward has done to those that stood for them."""
    theirs = {id(standing): given for given, standing in containers} | dict(real)
    for container, standing in containers:
        if isinstance(container, dict):
            now = {key: theirs.get(id(each), each) for key, each in standing.items()}
            if [(key, id(each)) for key, each in container.items()] != [
                (key, id(each)) for key, each in now.items()
            ]:
                container.clear()
                container.update(now)
        else:
            values = [theirs.get(id(each), each) for each in standing]
            if [*map(id, container)] != [*map(id, values)]:
                container.clear()
                container.extend(values)


def _first_tensor(model: torch.nn.Module) -> torch.Tensor | None:
    """The first parameter of a model, or else its first buffer."""
    waiting = [model]
    while waiting:  # `parameters()` takes several times as long to the first
        part = waiting.pop()
        for each in part._parameters.values():
            if each is not None:
                return each
        waiting += filter(None, reversed(part._modules.values()))
    return next(model.buffers(), None)


def fake_like(tensors: Sequence[Any], device: Any) -> list[torch.Tensor]:
    """Tensors without memory of these shapes and dtypes, which pass for tensors on a device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return [
            torch.empty(t.shape, dtype=torch_dtype(t), device=device, requires_grad=_asks(t))
            for t in tensors
        ]


def _asks(array: Any) -> bool:
    return isinstance(array, torch.Tensor) and array.requires_grad


def fakes_for(
    model: torch.nn.Module, shapes: Sequence[Sequence[int] | torch.Tensor]
) -> list[torch.Tensor]:
    """Fake arguments of a model: of shapes, in the dtype of its parameters; or like arrays."""
    for position, shape in enumerate(shapes):
        if isinstance(shape, torch.Tensor):
            check_tensor(f"argument {position}", shape)
    first = next(model.parameters(), None)
    dtype = torch.get_default_dtype() if first is None else first.dtype
    asked = [
        each if is_array(each) else torch.empty(tuple(each), dtype=dtype, device="meta")
        for each in shapes
    ]
    return fake_like(asked, parameter_device(model))


def parameter_device(model: torch.nn.Module) -> Any:
    """Return the device of a model's first parameter; the CPU where it has none."""
    first = next(model.parameters(), None)
    return "cpu" if first is None else first.device


def torch_dtype(array: Any) -> torch.dtype:
    """PyTorch's dtype of a tensor, or of a NumPy array.

    >>> torch_dtype(np.zeros(1, "uint8"))
    torch.uint8
    """
    if isinstance(array, torch.Tensor):
        return array.dtype
    return torch.from_numpy(np.empty(1, np.dtype(array.dtype).newbyteorder("="))).dtype


def is_array(each: Any) -> bool:
    """True if it is a tensor, or what has a shape and a dtype as arrays have; no NumPy scalar.

    >>> is_array(np.zeros(1)), is_array((1, 3)), is_array(np.float64(1))
    (True, False, False)
    """
    return hasattr(each, "shape") and hasattr(each, "dtype") and not isinstance(each, np.generic)
