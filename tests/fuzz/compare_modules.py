"""What a program saw, and whether two runs of it saw the same.

Structures, shapes, dtypes, None and integers are compared as they are. Floating numbers may be off
by rounding. Where they are off by more than usual, PyTorch itself says how much that is: by its own
run in float64, and by runs on numbers that are each moved a little.
"""

from __future__ import annotations

import math
import types
from dataclasses import dataclass, field

import torch
from torch import nn

#: What every module has; what else is in `vars` is the user's.
INTERNAL = {
    *vars(nn.Module()),
    *("forward", "extra_repr", "_compiled_call_impl", "_is_full_backward_hook"),
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: Units of rounding that a value may be off at once, by its own largest; and where PyTorch is
#: asked, by the largest of all.
AT_ONCE = {torch.float64: 64, torch.float32: 64, torch.float16: 2, torch.bfloat16: 2}
AT_LEAST = {torch.float64: 64, torch.float32: 32, torch.float16: 4, torch.bfloat16: 4}
#: How many times what PyTorch itself is off.
TIMES = 4


@dataclass
class Seen:
    """What one run of a program saw, each leaf by its path; and where it kept to no rule."""

    leaves: dict = field(default_factory=dict)

    def add(self, path, value):
        """Take a value apart."""
        if type(value) in (torch.Tensor, nn.Parameter):
            self.leaves[path] = value.detach().clone()
            # under no_grad PyTorch says of a view of a leaf that it needs one, and gives it none
            needs = value.requires_grad and not (value.is_leaf and value._is_view())
            self.leaves[f"{path}: needs a gradient"] = needs
            if value.is_leaf and needs and type(value) is torch.Tensor:
                self.add(f"{path}: gradient", value.grad)
        elif isinstance(value, dict):
            self.leaves[path] = f"{type(value).__name__} of {list(map(str, value))}"
            for key, each in value.items():
                self.add(f"{path}[{key!r}]", each)
        elif isinstance(value, list | tuple):
            self.leaves[path] = f"{type(value).__name__} of {len(value)}"
            for at, each in enumerate(value):
                self.add(f"{path}[{at}]", each)
        elif isinstance(value, types.SimpleNamespace):
            self.add(path, vars(value))
        elif value is None or isinstance(value, bool | int | float | str | torch.dtype):
            self.leaves[path] = value
        else:
            self.leaves[path] = f"a {type(value).__name__}"

    def add_model(self, model):
        """Take parameters, gradients, buffers and attributes of all its modules."""
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.add(f"parameter {name}", parameter)
            self.add(f"gradient of {name}", parameter.grad)
        for name, buffer in model.named_buffers(remove_duplicate=False):
            self.add(f"buffer {name}", buffer)
        for name, module in model.named_modules():
            own = {key: value for key, value in vars(module).items() if not is_internal(key)}
            self.leaves[f"attributes of {name}"] = sorted(own)
            self.leaves[f"training of {name}"] = module.training
            for hooks in HOOKS:
                self.leaves[f"{hooks} of {name}"] = len(getattr(module, hooks))
            for key, value in own.items():
                if not isinstance(value, nn.Module):
                    self.add(f"attribute {f'{name}.' if name else ''}{key}", value)


def is_internal(name):
    """Whether an attribute is every module's, or this library's own."""
    return name in INTERNAL or name.startswith("_ooc_cudnn")


def category(path):
    return "gradient" if "grad" in path else "value"


class Judge:
    """Compares with what PyTorch saw.

    Parameters
    ----------
    expected : Seen
    unit : torch.dtype
        The one of the fewest bits that the program computes in.
    exact : callable
        Runs the program in float64; what that saw.
    varied : callable
        What PyTorch sees for numbers that are moved a little, some times.
    """

    def __init__(self, expected, unit, exact, varied):
        self.expected, self.unit = expected.leaves, unit
        self._run_exact, self._run_varied = exact, varied
        self._references = None
        self.largest = {"gradient": 0.0, "value": 0.0}
        for path, leaf in self.expected.items():
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                kind = category(path)
                self.largest[kind] = max(self.largest[kind], largest(leaf))

    def references(self):
        if self._references is None:
            self._references = (
                self._run_exact().leaves,
                [each.leaves for each in self._run_varied()],
            )
        return self._references

    def differences(self, found):
        """What is wrong, a line each."""
        found, wrong = found.leaves, []
        for path in {**self.expected, **found}:
            if path not in found or path not in self.expected:
                where = "missing" if path not in found else "new"
                if category(path) == "gradient" or ":" not in path:
                    wrong.append(f"{path} is {where}")
            elif told := self.difference(path, self.expected[path], found[path]):
                wrong.append(f"{path}: {told}")
        return wrong

    def difference(self, path, expected, found):
        """What is wrong with one leaf; None if nothing is."""
        if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
            return None if same_plain(expected, found) else f"{shown(found)}, not {shown(expected)}"
        for what in ("shape", "dtype"):
            mine, eager = getattr(found, what), getattr(expected, what)
            if mine != eager:
                return f"{what} {mine}, not {eager}"
        if torch.equal(expected, found) or not expected.numel():
            return None
        right = as_numbers(expected)
        off = gaps(right, as_numbers(found))
        own = largest(expected)
        unit = max((self.unit, expected.dtype), key=lambda kind: roughness(kind))
        if off <= AT_ONCE[unit] * roughness(unit) * own:
            return None
        if self.forgiven(path, right, as_numbers(found), unit):
            return None
        at = torch.where(gap_of(right, as_numbers(found)).isnan(), math.inf,
                         gap_of(right, as_numbers(found))).argmax()  # fmt: skip
        return (
            f"off by {off:.3g}, the largest is {own:.3g} "
            f"({found.reshape(-1)[at].item()!r}, not {expected.reshape(-1)[at].item()!r})"
        )

    def forgiven(self, path, right, found, unit):
        """Whether PyTorch is off as much, in float64 or where its numbers are moved."""
        exact, varied = self.references()
        moved = [
            as_numbers(each[path]) for each in varied if isinstance(each.get(path), torch.Tensor)
        ]
        moved = [each for each in moved if each.shape == right.shape]
        floor = AT_LEAST[unit] * roughness(unit) * self.largest[category(path)]
        # What PyTorch makes finite and not finite for such numbers is uncertain.
        certain = torch.isfinite(right)
        steady = torch.ones_like(certain)
        for each in moved:
            steady &= torch.isfinite(each) == certain
        agree = (right == found) | (right.isnan() & found.isnan())
        agree |= ~certain & ~torch.isfinite(found) & self.overflows(path, right)
        if not bool((agree | torch.isfinite(right) & torch.isfinite(found) | ~steady).all()):
            return False
        compared = certain & steady & torch.isfinite(found)
        if not compared.any():
            return True
        spread = max((gaps(right[compared], each[compared]) for each in moved), default=0.0)
        if gaps(right[compared], found[compared]) <= TIMES * spread + floor:
            return True
        best = exact.get(path)
        if not isinstance(best, torch.Tensor) or best.shape != right.shape:
            return False
        best = as_numbers(best)
        compared &= torch.isfinite(best)
        eager = gaps(right[compared], best[compared])
        if eager > 0.05 * max(largest(best), 1e-300):  # float64 is another program
            return False
        return gaps(found[compared], best[compared]) <= TIMES * eager + floor

    def overflows(self, path, right):
        """Where float64 is finite: whether the type's own overflow is an infinity or NaN is a
        matter of the order of a sum."""
        exact = self.references()[0].get(path)
        if not isinstance(exact, torch.Tensor) or as_numbers(exact).shape != right.shape:
            return torch.zeros_like(right, dtype=torch.bool)
        return torch.isfinite(as_numbers(exact))


def as_numbers(tensor):
    return tensor.double() if not tensor.is_complex() else torch.view_as_real(tensor).double()


def roughness(kind):
    """The unit of rounding of a dtype; of integers none that matters."""
    return torch.finfo(kind).eps if kind.is_floating_point else 0.0


def largest(tensor):
    tensor = as_numbers(tensor)
    tensor = tensor[torch.isfinite(tensor)]
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def gap_of(one, other):
    """How far apart elements are; infinite numbers that are equal, and NaN and NaN, not at all."""
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, (one - other).abs())


def gaps(one, other):
    if not one.numel():
        return 0.0
    apart = gap_of(one, other)
    return math.inf if apart.isnan().any() else float(apart.max())


def same_plain(one, other):
    if isinstance(one, float) and type(other) is float:
        return (
            one == other
            or (math.isnan(one) and math.isnan(other))
            or math.isclose(one, other, rel_tol=1e-6)
        )
    return type(one) is type(other) and one == other


def shown(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of {tuple(value.shape)}"
    return repr(value)
