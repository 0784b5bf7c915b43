"""A model of PyTorch under limits beside the same model as PyTorch runs it."""

from __future__ import annotations

import copy

import torch
from torch.utils import _pytree as pytree

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.errors import PlanInfeasibleError

#: Of the largest value; of gradients, that of the model.
TOLERANCE = 1e-11
PLENTY = "4GiB"
SHARES = (1 / 4, 1 / 20)


class Result:
    """What a call of a model and its backward made."""

    def __init__(self, model, args):
        torch.manual_seed(1)
        inputs = [arg.detach().clone() for arg in args]
        for each in inputs:
            each.requires_grad_(each.dtype.is_floating_point)
        made = model(*inputs)
        self.outputs = [each for each in pytree.tree_leaves(made) if torch.is_tensor(each)]
        self.structure = pytree.tree_structure(made)
        torch.manual_seed(1)
        total = sum(
            (each * torch.randn(each.shape, dtype=each.dtype)).sum() for each in self.outputs
        )
        if total.requires_grad:
            total.backward()
        self.gradients = {name: each.grad for name, each in model.named_parameters()}
        self.gradients |= {f"input {at}": each.grad for at, each in enumerate(inputs)}
        self.buffers = {name: each.clone() for name, each in model.named_buffers()}


def close(found, expected, what, least=0.0, tolerance=TOLERANCE):
    """Assert that two tensors agree, by the largest of the second, or `least` if that is more."""
    assert (found is None) == (expected is None), what
    if found is None:
        return
    assert found.shape == expected.shape, what
    assert found.dtype == expected.dtype, what
    if not expected.dtype.is_floating_point:
        assert torch.equal(found, expected), what
        return
    scale = max(float(expected.detach().abs().max()) if expected.numel() else 0.0, least, 1e-300)
    error = float((found - expected).detach().abs().max()) / scale
    assert error <= tolerance, f"{what}: off by {error:.3g} of {scale:.3g}"


def same(found, expected, tolerance=TOLERANCE):
    """Assert that two results agree: outputs, gradients, buffers."""
    assert found.structure == expected.structure
    for at, (one, other) in enumerate(zip(found.outputs, expected.outputs, strict=True)):
        close(one, other, f"output {at}", tolerance=tolerance)
    sizes = [float(g.abs().max()) for g in expected.gradients.values() if g is not None]
    # some are 0 but for rounding: that of a bias before batch normalization
    least = max(sizes, default=0.0)
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient, f"gradient of {name}", least, tolerance)
    # a mean behind a convolution of what was normalised is 0 but for rounding, too
    sizes = [float(b.abs().max()) for b in expected.buffers.values() if b.is_floating_point()]
    for name, buffer in expected.buffers.items():
        close(found.buffers[name], buffer, name, max(sizes, default=0.0), tolerance)


def under(model, args, memory_limit):
    """What a copy of a model makes under a limit, or under the least that there is a plan for."""
    own = ooc.limit(copy.deepcopy(model), memory_limit)
    with ooc_cudnn.settings(device="host", machine="host"):
        try:
            found = Result(own, args)
        except PlanInfeasibleError as error:
            own = ooc.limit(copy.deepcopy(model), error.smallest_bytes)
            found = Result(own, args)
    assert own.forward.plan.device_bytes <= own.forward.plan.memory_limit
    return found, own.forward.plan


def check(model, *args, shares=SHARES, tolerance=TOLERANCE):
    """Compare a model under shares of what it takes to keep all with itself as PyTorch runs it."""
    expected = Result(copy.deepcopy(model), args)
    found, plan = under(model, args, PLENTY)
    same(found, expected, tolerance)
    limits = []
    for share in shares:
        found, under_limit = under(model, args, int(share * plan.device_bytes))
        same(found, expected, tolerance)
        limits.append(under_limit.memory_limit)
    return limits
