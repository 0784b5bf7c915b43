"""What can be seen of a model, its inputs and its outputs after a call, and how two sights differ.

A sight is a dict: of each place ("output[1]", "c.weight.grad", "losses[0]") what is there.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import types

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin

#: What numbers may be off: of the number itself, and of the largest of its tensor.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
#: Below which a number of a tensor is noise: a bias's gradient before batch normalization is.
NOISE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
#: The same of a gradient, as a share of the largest of all gradients.
NOISE_OF_GRADIENTS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2}
#: What every module has, and what says that it is under a limit or compiled.
_OF_ALL_MODULES = {*vars(nn.Module()), "_compiled_call_impl"} - {"training"}
_BY_NAME = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    type,
)


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor as it was at one time. `values` is None where only its kind is looked at."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    requires_grad: bool
    is_parameter: bool
    values: torch.Tensor | None


def of_tensor(tensor, *, values=True):
    """A tensor as it is now."""
    return Tensor(
        tuple(tensor.shape),
        tensor.dtype,
        tensor.device.type,
        tensor.requires_grad,
        isinstance(tensor, nn.Parameter),
        tensor.detach().clone() if values else None,
    )


class Sight:
    """Looks at values: `found` has a description of each place, `tensors` the tensors there."""

    def __init__(self, *, values=True):
        self.values, self.found, self.tensors, self._on_the_way = values, {}, {}, set()

    def look(self, place, value):
        """Note a value, and what it consists of."""
        if id(value) in self._on_the_way:  # a part that knows the whole
            self.found[place] = f"{type(value).__qualname__}, seen already"
            return
        self._on_the_way.add(id(value))
        self._look(place, value)
        self._on_the_way.discard(id(value))

    def _look(self, place, value):
        kind = type(value).__qualname__
        if isinstance(value, torch.Tensor):
            self._tensor(place, value)
        elif isinstance(value, np.ndarray):
            self.found[place] = of_tensor(torch.from_numpy(value.copy()), values=self.values)
        elif isinstance(value, nn.Module):
            self.module(f"{place}.", value)
        elif value is None or isinstance(value, bool | int | float | str):
            self.found[place] = (kind, value)
        elif isinstance(value, dict):
            self.found[place] = (kind, f"keys {list(map(str, value))}")
            for key, each in value.items():
                self.look(f"{place}[{key!r}]", each)
        elif isinstance(value, list | tuple | collections.deque):
            self.found[place] = (kind, f"{len(value)} items")
            for at, each in enumerate(value):
                self.look(f"{place}[{at}]", each)
        elif isinstance(value, _BY_NAME):
            self.found[place] = (kind, getattr(value, "__qualname__", repr(value)))
        elif hasattr(value, "__dict__") and not isinstance(value, torch._C.Generator):
            self.found[place] = (kind, f"attributes {list(vars(value))}")
            for name, each in vars(value).items():
                self.look(f"{place}.{name}", each)
        elif isinstance(value, set | frozenset | torch.dtype | torch.device | slice | complex):
            self.found[place] = (kind, repr(value))
        else:
            self.found[place] = kind

    def _tensor(self, place, tensor):
        if isinstance(tensor, UninitializedTensorMixin):
            self.found[place] = type(tensor).__qualname__
            return
        self.found[place], self.tensors[place] = of_tensor(tensor, values=self.values), tensor
        if tensor.is_leaf or tensor.retains_grad:
            gradient = tensor.grad
            self.found[f"{place}.grad"] = (
                None if gradient is None else of_tensor(gradient, values=self.values)
            )

    def module(self, place, module):
        """Note all attributes, parameters and buffers of a module, and of its parts."""
        self._on_the_way.add(id(module))
        own = {
            name: value
            for name, value in vars(module).items()
            if name not in _OF_ALL_MODULES and not _is_the_librarys(value)
        }
        for name, value in {**own, **module._parameters, **module._buffers}.items():
            self.look(f"{place}{name}", value)
        for name, part in module._modules.items():
            if id(part) not in self._on_the_way and part is not None:
                self.found[f"{place}{name}"] = type(part).__qualname__
                self.module(f"{place}{name}.", part)
        self._on_the_way.discard(id(module))

    def note_overlaps(self, of):
        """Note which of the tensors under a name lie in the memory of which others."""
        self.found["memory that is shared"] = sorted(
            f"{one} and {other}"
            for one in self.tensors
            if one.startswith(of)
            for other in self.tensors
            if (not other.startswith(of) or one < other)
            if overlap(self.tensors[one], self.tensors[other])
        )


def _is_the_librarys(value):
    return type(value).__module__.partition(".")[0] == "ooc_cudnn"


def overlap(one, other):
    """Whether an element of one tensor is one of the other, too."""
    if one is other or one.numel() == 0 or other.numel() == 0:
        return one is other and one.numel() > 0
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    return not _places(one).isdisjoint(_places(other))


def _places(tensor):
    numbers = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    taken = numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    width = tensor.element_size()
    return {int(at) * width for at in taken.reshape(-1)}


def differences(ours, eager, computed_in=None):
    """Say of each place where two sights differ how: sentences, none if they are the same."""
    said = []
    largest = max(
        (_largest(each.values) for place, each in eager.items() if _is_gradient(place, each)),
        default=0.0,
    )
    for place in [*eager, *(place for place in ours if place not in eager)]:
        if place not in ours:
            said.append(f"{place} is missing, and {_short(eager[place])} in eager")
        elif place not in eager:
            said.append(f"{place} is {_short(ours[place])}, and missing in eager")
        elif why := _difference(
            ours[place], eager[place], largest if place.endswith(".grad") else 0.0, computed_in
        ):
            said.append(f"{place}: {why}")
    return said


def _is_gradient(place, what):
    return place.endswith(".grad") and isinstance(what, Tensor) and what.values is not None


def _largest(values):
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _difference(ours, eager, largest_gradient, computed_in):
    if isinstance(ours, Tensor) and isinstance(eager, Tensor):
        kinds = [dataclasses.replace(each, values=None) for each in (ours, eager)]
        if kinds[0] != kinds[1]:
            return f"{_short(ours)}, and {_short(eager)} in eager"
        return (
            None
            if eager.values is None
            else _off(ours.values, eager.values, largest_gradient, computed_in)
        )
    if isinstance(eager, tuple) and isinstance(eager[1], float) and isinstance(ours, tuple):
        if ours[0] == eager[0] and _is_near(ours[1], eager[1]):
            return None
    elif ours == eager and type(ours) is type(eager):
        return None
    return f"{_short(ours)}, and {_short(eager)} in eager"


def _is_near(ours, eager):
    both_nan = math.isnan(ours) and math.isnan(eager)
    return both_nan or math.isclose(ours, eager, rel_tol=1e-4, abs_tol=1e-5)


def _off(ours, eager, largest_gradient, computed_in):
    if eager.numel() == 0:
        return None
    if not eager.dtype.is_floating_point:
        return None if torch.equal(ours, eager) else "other values"
    dtype = computed_in or eager.dtype
    tolerance, noise = TOLERANCES.get(dtype, 0.1), NOISE.get(dtype, 1e-2)
    noise = max(noise, NOISE_OF_GRADIENTS.get(dtype, 5e-2) * largest_gradient)
    ours, eager = ours.double(), eager.double()
    off = max(noise, tolerance * _largest(eager))
    near = torch.isclose(ours, eager, tolerance, off, equal_nan=True)
    if bool(near.all()):
        return None
    at = tuple(int(i) for i in (~near).nonzero()[0])
    count = int((~near).sum())
    return f"{count} of {near.numel()} values differ: {ours[at]:.6g}, {eager[at]:.6g} in eager"


def _short(what):
    if isinstance(what, Tensor):
        graded = ", requires_grad" if what.requires_grad else ""
        parameter = "a parameter" if what.is_parameter else "a tensor"
        return f"{parameter} {what.shape} of {what.dtype}{graded}"
    return " ".join(map(str, what)) if isinstance(what, tuple) else str(what)
