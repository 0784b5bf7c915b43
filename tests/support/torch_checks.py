"""A model of PyTorch under limits beside the same model as PyTorch runs it."""

from __future__ import annotations

import copy
import sys

import torch
from torch.utils import _pytree as pytree

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.errors import PlanInfeasibleError

#: Of the largest value; of gradients, that of the model.
TOLERANCE = 1e-11
#: Of a loss in single precision; or so many times what PyTorch's own is off.
FOLLOWED, TIMES_ITS_OWN = 1e-4, 4
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


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


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
    """Compare a model under shares of what it takes to keep all with itself as PyTorch runs it.

    What it makes under each limit is the same as under the one before, too.
    """
    expected = Result(copy.deepcopy(model), args)
    before, plan = under(model, args, PLENTY)
    same(before, expected, tolerance)
    limits = []
    for share in shares:
        found, under_limit = under(model, args, int(share * plan.device_bytes))
        same(found, expected, tolerance)
        same(found, before, TOLERANCE)
        before = found
        limits.append(under_limit.memory_limit)
    return limits


def losses(model, x, steps, rate=0.01):
    """Those of steps of SGD, which bring all outputs towards what is drawn once."""
    optimizer, found, wanted = torch.optim.SGD(model.parameters(), rate), [], []
    for _ in range(steps):
        made = [each for each in pytree.tree_leaves(model(x)) if torch.is_tensor(each)]
        if not wanted:
            random = torch.Generator().manual_seed(1)
            wanted = [torch.randn(y.shape, generator=random).to(y.dtype) for y in made]
        optimizer.zero_grad()
        loss = sum((y - t).square().mean() for y, t in zip(made, wanted, strict=True))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def followed(model, x, steps=20, share=SHARES[0]):
    """Train a model in single precision under a share of what keeps all, beside PyTorch.

    The judge is PyTorch in double precision. Its own losses in single precision are off that, too:
    where a channel has few sites, batch normalization makes much of rounding.
    """
    with ooc_cudnn.settings(device="host", machine="host"):
        limit = int(share * ooc.plan(model, x, memory_limit=PLENTY).device_bytes)
        found = losses(ooc.limit(copy.deepcopy(model), limit), x, steps)
    exact = losses(copy.deepcopy(model).double(), x.double(), steps)
    own, ours = (
        max(abs(a - b) / b for a, b in zip(each, exact, strict=True))
        for each in (losses(model, x, steps), found)
    )
    assert ours <= max(FOLLOWED, TIMES_ITS_OWN * own), f"{found} are off {exact}: {ours:.3g}"
    assert exact[-1] < exact[0]
    return ours, own


def held(model):
    """What modules hold beside parameters, buffers and parts: numbers, text, lists, tensors."""
    kinds = bool | int | float | str | list | tuple | torch.Tensor | None
    return {
        f"{path}.{name}": each
        for path, module in model.named_modules()
        for name, each in vars(module).items()
        if not name.startswith("_") and isinstance(each, kinds)
    }


def followed_in_calls(model, *args, calls=2, memory_limit=PLENTY, tolerance=TOLERANCE):
    """Call a model under a limit as often as itself: all that is left is the same each time.

    Outputs, gradients, buffers, and what modules hold beside. Returns the one under the limit.
    """
    own = ooc.limit(copy.deepcopy(model), memory_limit)
    for _ in range(calls):
        same(Result(own, args), Result(model, args), tolerance)
        found, expected = held(own), held(model)
        assert found.keys() == expected.keys()
        for name, each in expected.items():
            if isinstance(each, torch.Tensor):
                close(found[name], each, name, tolerance=tolerance)
                assert found[name].requires_grad == each.requires_grad, name
            else:
                assert found[name] == each, name
                assert type(found[name]) is type(each), name
    return own


def modes():
    """What of PyTorch's state a call must leave as it was, and where errors are printed."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        torch._ops._len_torch_dispatch_stack_pre_dispatch(),
        torch.compiler.is_compiling(),
        torch.get_default_dtype(),
        sys.stderr,
        sys.stdout,
    )
