"""Planning a model without data and without a card, and measuring engines for it without data."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer
from torch.nn.parameter import is_lazy as has_no_data

from ooc_cudnn.devices.engines import Measurement
from ooc_cudnn.functions.tune.rounds import Tell
from ooc_cudnn.keywords import explaining
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.runtime.constraints_here import Limit
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.torch.calls import calls_of, forget_calls
from ooc_cudnn.torch.capture.lazy_layers import called_if_lazy, lazy_layers
from ooc_cudnn.torch.capture.stand_ins import fakes_for, parameter_device
from ooc_cudnn.torch.cards import at
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.limit import limited_forward, own_forward, record_call, release
from ooc_cudnn.torch.options import Options
from ooc_cudnn.torch.runtime.ready_model import ReadyModel
from ooc_cudnn.torch.stored import check_scale
from ooc_cudnn.torch.tracing import autocast
from perfmodel import MachineModel


@explaining
def plan(
    model: torch.nn.Module,
    *shapes: Any,
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
    *shapes : tuple of int, Tensor or array
        Of its arguments, (n, c, spatial...), in the dtype of its parameters; or a tensor, fake ones
        included, or an array, for its dtype.
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
    ready = capture_for(
        model, shapes, memory_limit, with_gradients=with_gradients, scale=scale, what="plan"
    )
    specs = specs_of(ready, placement, device_to_plan_for(machine))
    return ready.noted(ready.step.planned_for(specs, machine))


@explaining
def tune(
    model: torch.nn.Module,
    *shapes: Any,
    memory_limit: Limit = None,
    placement: str = "pinned",
    with_gradients: bool = True,
    scale: float | None = None,
    every: bool = False,
    seconds: float = 60.0,
    tell: Tell | None = None,
) -> list[Measurement]:
    """Measure cuDNN's engines for the convolutions of a model, and store what was measured.

    cuDNN's heuristics choose engines without measuring, and some take many times as long as the
    best. Later calls of the model, and what other processes plan, go by the measured seconds. Do it
    once for a model, its shapes, a card and a version of cuDNN. No data are needed. Of `with_loss`
    give what it returned, with the shape of the target.

    Parameters
    ----------
    model : torch.nn.Module
        Under a limit or not, on the card that it is to run on.
    *shapes : tuple of int or Tensor
        As for `plan`.
    memory_limit : int, float or str, optional
        As for `limit`; when left out, that which the model has, or else the setting's.
    placement, with_gradients, scale
        As for `plan`; `scale` is that of the model's limit when left out.
    every, seconds, tell
        As for `Network.training_step`'s `tune`.

    Returns
    -------
    list of Measured
        What was not known before.

    Raises
    ------
    UnsupportedModelError, PlanInfeasibleError
        As `plan`.
    NothingToTuneError, OSError
        As `Network.training_step`'s `tune`.
    """
    limited = limited_forward(model) if _is_module(model) else None
    said: dict[str, Any] = {}
    if limited is not None:
        memory_limit = limited.memory_limit if memory_limit is None else memory_limit
        scale = limited.scale if scale is None else scale
        said = {"strict": limited.strict, "statistics": limited.statistics}
    ready = capture_for(
        model, shapes, memory_limit, with_gradients=with_gradients, scale=scale, what="tune", **said
    )
    forget_calls(model)  # they are planned without it, and hold memory
    on_card = ready.device.type == "cuda"
    specs = specs_of(ready, placement, "device" if on_card else "pinned")
    if on_card:
        specs |= {y.name: TensorSpec(y.shape, y.dtype, "device") for y in ready.step.outputs}
    with at(ready.device):
        return ready.step.tune_for(specs, every=every, seconds=seconds, tell=tell)


def _is_module(model: Any) -> bool:
    return isinstance(model, torch.nn.Module)


def capture_for(
    model: torch.nn.Module,
    shapes: Sequence[Any],
    memory_limit: Limit,
    *,
    with_gradients: bool,
    scale: float | None,
    what: str,
    **said: Any,
) -> ReadyModel:
    """A model captured for arguments of some shapes, as `what` was asked to, and its limit said."""
    if not _is_module(model):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if not shapes:
        raise TypeError(
            f"the shape of an argument is needed, as in {what}(model, (1, 3, 224, 224))"
        )
    check_scale(scale)
    is_lazy = bool(lazy_layers(model))
    model = with_the_same_tensors(model) if is_lazy else model
    held = torch.device(parameter_device(model))
    if held.type == "meta" and autocast.state():
        raise UnsupportedModelError(
            f'{what} under torch.autocast: autocast does nothing for a model on "meta", so single '
            'precision would be planned. Call model.to_empty(device="cpu") first; it takes no '
            "memory until something is written there"
        )
    options = Options(memory_limit, scale=scale, **said)
    with nothing_drawn(held, is_lazy), torch.set_grad_enabled(with_gradients):
        kind, call = record_call(
            model, own_forward(model), tuple(fakes_for(model, shapes)), {}, options
        )
        sizes = tuple(each.shape for each in call.tensors)  # those of fake tensors are never free
        ready, _ = calls_of(model).of(("plan", kind, sizes), call).find(call)
    captured: ReadyModel = ready
    return captured


def nothing_drawn(device: torch.device, enabled: bool) -> AbstractContextManager[None]:
    """Keep random streams as they are, where a capture initialises lazy layers and draws for it."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=enabled)


def with_the_same_tensors(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a model that has the tensors of the model, but for those of lazy layers.

    A capture of it initialises these, and leaves those of the model as they are.
    """
    held = itertools.chain(model.parameters(), model.buffers())
    same = {id(each): each for each in held if not has_no_data(each)}
    another: Any = UninitializedBuffer
    for each in model.buffers():  # PyTorch copies lazy parameters alone
        if has_no_data(each):
            same[id(each)] = another(device=each.device, dtype=each.dtype)
    return called_if_lazy(release(copy.deepcopy(model, same)))


def device_to_plan_for(machine: MachineModel | str | os.PathLike[str] | None) -> str:
    """Return where a model is when it is planned for a machine: on the card, if there is one."""
    return "pinned" if machine == "host" else "device"


def specs_of(ready: ReadyModel, placement: str, held: str) -> dict[str, TensorSpec]:
    """Return the specs of a network's inputs: arguments, and what the model has `held`.

    Where that would be on a card, what it has beside them there counts from now on.
    """
    if held == "device" and ready.device.type != "cuda":
        ready.step.beside_bytes = ready.cast_bytes
    specs = dict[str, TensorSpec]()
    for name, source in ready.lowered.given.items():
        where = placement if source.value.kind == "input" else held
        dtype = ready.lowered.network.graph.tensors[name].dtype
        specs[name] = TensorSpec(source.shape, dtype, where)
    return specs
