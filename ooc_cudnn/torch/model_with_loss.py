"""A model with its loss in one plan: `with_loss`. For outputs that are large themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ooc_cudnn.network.runtime.constraints_here import Limit
from ooc_cudnn.torch.limit import limit


class WithLoss(torch.nn.Module):
    """A model whose forward returns a loss: its last arguments are the targets."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss, self.targets = model, loss, targets_of(loss)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of what the model makes of all arguments but the targets, and these."""
        inputs, targets = args[: -self.targets], args[-self.targets :]
        found: torch.Tensor = self.loss(self.model(*inputs, **kwargs), *targets)
        return found


def targets_of(loss: Callable[..., Any]) -> int:
    """Count the arguments that a loss needs behind the model's output.

    >>> targets_of(torch.nn.MSELoss()), targets_of(torch.nn.GaussianNLLLoss())
    (1, 2)
    """
    try:
        taken = inspect.signature(getattr(loss, "forward", loss)).parameters.values()
    except (TypeError, ValueError):  # one written in C says nothing
        return 1
    needed = [
        each
        for each in taken
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return max(1, len(needed) - 1)


def with_loss(
    model: torch.nn.Module, loss: Callable[..., torch.Tensor], memory_limit: Limit = None
) -> torch.nn.Module:
    """Return a module under a limit that computes a model and its loss, in one plan.

    Parameters
    ----------
    model : torch.nn.Module
        It stays as it is; its parameters are those that gradients are made of.
    loss : callable
        Takes the model's output and a target, or as many as it has parameters without a default
        (``torch.nn.GaussianNLLLoss`` takes a target and variances). What it returns is what the
        module returns. Cross entropies, ``torch.nn.MSELoss`` and the sums of soft Dice losses are
        computed by the library, others by PyTorch. Labels may be moved and cast before
        (``labels[:, 0].long()``).
    memory_limit : int, float or str, optional
        As for `limit`.

    Returns
    -------
    Module
        It is called with the model's arguments and the target or targets. A target on the host
        that has a label that is no class is an IndexError; of one on the card the loss is NaN.

    Examples
    --------
    >>> import torch, ooc_cudnn, ooc_cudnn.torch as ooc
    >>> model = torch.nn.Conv2d(3, 8, 3)
    >>> step = ooc.with_loss(model, torch.nn.CrossEntropyLoss(), "64KiB")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     loss = step(torch.ones(2, 3, 16, 16), torch.zeros(2, 14, 14, dtype=torch.int64))
    ...     loss.backward()
    >>> loss.shape, model.weight.grad.shape
    (torch.Size([]), torch.Size([8, 3, 3, 3]))
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if not callable(loss):
        raise TypeError(f"loss must be a module or a function, not {type(loss).__name__}")
    return limit(WithLoss(model, loss), memory_limit)
