"""Planning a model without data and without a card."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from ooc_cudnn.network.plan import NetworkPlan
from ooc_cudnn.network.terms import Limit
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.torch.call import ReadyModel
from ooc_cudnn.torch.capture import fakes_for
from ooc_cudnn.torch.limit import own_forward
from ooc_cudnn.torch.stored import check_scale, of_stored
from perfmodel import MachineModel


def plan(
    model: torch.nn.Module,
    *shapes: Sequence[int] | torch.Tensor,
    memory_limit: Limit = None,
    machine: MachineModel | str | os.PathLike[str] | None = None,
    placement: str = "pinned",
    with_gradients: bool = True,
    scale: float | None = None,
) -> NetworkPlan:
    """Plan a training step of a model (or forward alone): no data, no memory and no card needed.

    Parameters
    ----------
    model : torch.nn.Module
        On any device, "meta" included; in training or evaluation, as it is.
    *shapes : tuple of int or Tensor
        Of its arguments, (n, c, spatial...), in the dtype of its parameters; or a tensor, fake ones
        included, for another dtype.
    memory_limit : int, float or str, optional
        As for `limit`.
    machine : MachineModel or str, optional
        The machine to predict for ("h200"); the one at hand when left out.
    placement : str
        Where the arguments will be: "device", "pinned", "pageable" or "disk".
    with_gradients : bool
        Whether there is a backward; else as under ``torch.no_grad()``.
    scale : float, optional
        As for `limit`.

    Returns
    -------
    NetworkPlan
        Its `explain` is a table that a person reads.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be captured, or PyTorch cannot compute an operation within a plan.
    PlanInfeasibleError
        If the memory limit admits no plan, with the smallest that would.

    Examples
    --------
    >>> import torch, ooc_cudnn.torch as ooc
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU())
    >>> found = ooc.plan(model, (256, 3, 512, 512), memory_limit="2GiB", machine="h200")
    >>> found.device_bytes <= 2**31 < 256 * 64 * 510 * 510 * 4
    True
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if not shapes:
        raise TypeError("the shape of an argument is needed, as in plan(model, (1, 3, 224, 224))")
    check_scale(scale)
    with own_forward(model) as forward:
        ready = ReadyModel(
            model,
            of_stored(model, forward, scale),
            fakes_for(model, shapes),
            {},
            memory_limit,
            frozenset(),
            with_gradients=with_gradients,
        )
    return ready.noted(ready.step.planned_for(specs_of(ready, placement, machine), machine))


def specs_of(
    ready: ReadyModel, placement: str, machine: MachineModel | str | os.PathLike[str] | None
) -> dict[str, TensorSpec]:
    """How what a network is given lies: arguments as said, all else on the card if there is one."""
    specs = dict[str, TensorSpec]()
    for name, given in ready.lowered.given.items():
        is_argument = given.value.kind == "input"
        where = placement if is_argument else "pinned" if machine == "host" else "device"
        held = ready.lowered.network.graph.tensors[name]
        specs[name] = TensorSpec(given.shape, held.dtype, where)
    return specs
