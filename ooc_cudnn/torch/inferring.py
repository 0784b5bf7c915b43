"""`infer`: a model on a whole image of any size, to any array; and the shape that it makes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ooc_cudnn.arrays.operands import Wrapped
from ooc_cudnn.network.in_blocks import BlockPlan, Under, planned_in_blocks
from ooc_cudnn.network.inferring import ForwardStep
from ooc_cudnn.network.terms import Limit
from ooc_cudnn.telling import warn_once
from ooc_cudnn.tensor import TensorSpec, numpy_dtype
from ooc_cudnn.torch.call import ReadyModel
from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.torch.capture import Call, Captures, Options
from ooc_cudnn.torch.cards import empty_there
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.function import tensor_of
from ooc_cudnn.torch.graph import Value
from ooc_cudnn.torch.limit import called, own_forward
from ooc_cudnn.torch.lowered_value import LoweredValue
from ooc_cudnn.torch.planning import specs_of, where_held
from ooc_cudnn.torch.ranks import within_ddp
from ooc_cudnn.torch.stand_ins import fakes_for
from ooc_cudnn.torch.stored import check_scale
from perfmodel import MachineModel

#: What may be made of scores before they leave the card.
REDUCTIONS = ("argmax",)


def infer(
    model: torch.nn.Module,
    *inputs: Any,
    out: Any = None,
    memory_limit: Limit = None,
    reduce: str | None = None,
    scale: float | None = None,
) -> Any:
    """Run a model forward, exactly, on inputs of any size, wherever they and the result lie.

    No windows whose seams show: the result is that of the whole image. Where its maps do not fit,
    the result is made in blocks, each with all that its sites see.

    The first call captures the model and plans; later ones alike use that. `release` drops it.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation, usually: ``model.eval()``. Of one in training a warning says so.
    *inputs : Tensor or array
        NumPy arrays, memmaps and pinned memory are read piece by piece.
    out : array, optional
        Where to write the result: any placement, of `output_shape` and the result's dtype.
    memory_limit : int, float or str, optional
        As for `limit`.
    reduce : str, optional
        "argmax": labels in place of scores, as ``scores.argmax(1)``; the axis of classes may be
        kept in `out`. Scores never leave the card.
        Labels are of `out`'s dtype: uint8, uint16, int32 or int64; uint8 where it is left out.
    scale : float, optional
        As for `limit`.

    Returns
    -------
    Tensor, tree of tensors, or `out`

    Raises
    ------
    TypeError, ValueError
        If `out` has not the result's shape or dtype, or is given for several results; if there are
        more classes than labels have numbers; if `scale` is no finite number.
    UnsupportedModelError, PlanInfeasibleError
        As for `limit`.

    Examples
    --------
    >>> import numpy as np, torch, ooc_cudnn, ooc_cudnn.torch as ooc
    >>> model, image = torch.nn.Conv2d(3, 2, 3).eval(), np.ones((1, 3, 64, 64), "float32")
    >>> result = np.empty(ooc.output_shape(model, image.shape), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     ooc.infer(model, image, out=result, memory_limit="64KiB") is result
    ...     labels = ooc.infer(model, image, memory_limit="64KiB", reduce="argmax")
    True
    >>> labels.shape, labels.dtype, bool((labels.numpy() == result.argmax(1)).all())
    (torch.Size([1, 62, 62]), torch.uint8, True)
    """
    for at, each in enumerate(inputs):
        if not isinstance(each, torch.Tensor) and getattr(each, "dtype", None) is None:
            raise TypeError(
                f"argument {at} must be a tensor or an array, not {type(each).__name__}"
            )
    asked = "uint8" if out is None else str(out.dtype).removeprefix("torch.")
    run = _Inference(model, out, reduce)
    with torch.no_grad():
        captures, call = _captures(model, inputs, memory_limit, reduce, asked, scale)
        made = captures(call, run)
    if out is not None:
        return out
    return made if run.made is None else run.made


class _Inference:
    """Runs what was captured of a model, block by block where that takes less time.

    Attributes
    ----------
    made : Tensor, optional
        Where the model makes one result, that, or its labels.
    """

    def __init__(self, model: torch.nn.Module, out: Any, reduce: str | None) -> None:
        self._model, self._out, self._reduce = within_ddp(model), out, reduce
        self.made: torch.Tensor | None = None

    def __call__(self, ready: ReadyModel, tensors: Sequence[Any]) -> list[Any]:
        """Run it; return what the captured graph returns."""
        if ready.training and self._model.training:
            warn_once(
                f"{type(self._model).__name__} is in training mode: what it makes depends on the "
                "other images or on chance, and running statistics change; call model.eval() first"
            )
        one = len(ready.lowered.results) == 1 and isinstance(ready.step, ForwardStep)
        out, reduce = self._out, self._reduce
        if not one:
            if out is not None:
                raise TypeError("out is given, but the model makes several results")
            return ready(tensors)
        with_classes = out
        if out is not None:
            _check_out(out, ready, reduce)
            if reduce and out.ndim < len(ready.lowered.outputs[0].shape):
                with_classes = out[:, None]
            if not _is_the_networks(ready):  # what PyTorch makes of it
                tensor_of(out).copy_(ready(tensors)[0])
                return [out]
        made = _empty(ready) if out is None else with_classes
        if not ready.in_blocks(tensors, made):
            (made,) = ready(tensors, with_classes)
        if out is not None:
            return [out]
        made = tensor_of(made)
        self.made = made if reduce is None else made[:, 0]
        return [self.made]


def plan_infer(
    model: torch.nn.Module,
    *shapes: Sequence[int] | torch.Tensor,
    memory_limit: Limit = None,
    machine: MachineModel | str | os.PathLike[str] | None = None,
    placement: str = "disk",
    reduce: str | None = None,
    scale: float | None = None,
) -> BlockPlan:
    """Plan `infer`: in how many blocks, how long, how much memory. Nothing is computed or read.

    Parameters
    ----------
    model, memory_limit, reduce, scale
        As for `infer`.
    *shapes : tuple of int or Tensor
        Of its arguments, in the dtype of its parameters; or a tensor, fake ones included, for
        another dtype.
    machine : MachineModel or str, optional
        The machine to predict for ("h200"); the one at hand when left out.
    placement : str
        Where the arguments will be: "device", "pinned", "pageable" or "disk".

    Returns
    -------
    BlockPlan
        Its `explain` is for a person to read.

    Raises
    ------
    TypeError
        If the model makes several results.
    UnsupportedModelError, PlanInfeasibleError
        As for `limit`.

    Examples
    --------
    >>> import torch, ooc_cudnn.torch as ooc
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.Conv2d(32, 2, 3)).eval()
    >>> plan = ooc.plan_infer(model, (1, 3, 65536, 65536), memory_limit="2GiB", machine="h200")
    >>> plan.count > 1, plan.device_bytes <= 2**31
    (True, True)
    """
    with torch.no_grad():
        fakes = fakes_for(model, shapes)
        captures, call = _captures(model, fakes, memory_limit, reduce, "uint8", scale)
        ready, _ = captures.find(call)
        if len(ready.lowered.outputs) != 1 or not isinstance(ready.step, ForwardStep):
            raise TypeError("the model makes several results: those are not planned in blocks")
        specs = specs_of(ready, placement, where_held(machine))
        given = {name: Wrapped(None, spec, 0) for name, spec in specs.items()}
        step = ready.lowered.network.forward_phases(*ready.lowered.outputs)
        return planned_in_blocks(step, Under(memory_limit, given, machine))


def _captures(
    model: torch.nn.Module,
    inputs: Sequence[Any],
    memory_limit: Limit,
    reduce: str | None,
    labels: str,
    scale: float | None,
) -> tuple[Captures, Call]:
    """What runs a model on inputs, and the call."""
    if reduce is not None and reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be None or {', '.join(REDUCTIONS)}, not {reduce!r}")
    check_scale(scale)
    options = Options(memory_limit, scale=scale, labels=labels if reduce else "")
    kind, call = called(model, own_forward(model), tuple(inputs), {}, options)
    return calls_of(model).of(("infer", kind), call), call


def _is_the_networks(ready: ReadyModel) -> bool:
    """Whether the one result is the network's, as it is there."""
    held = ready.lowered.results[0]
    return isinstance(held, LoweredValue) and held.is_plain and bool(held.axes)


def _check_out(out: Any, ready: ReadyModel, reduce: str | None) -> None:
    """Refuse an array of another shape or dtype than the one result, or than its labels."""
    (scores,) = ready.graph.outputs
    n, *rest = scores.shape or (1,)
    labels = [(n, *rest[1:]), (n, 1, *rest[1:])]
    wanted, shape = labels if reduce else [tuple(scores.shape)], tuple(out.shape)
    if shape not in wanted:
        hint = '. It is that of labels: give reduce="argmax" for them' * (shape in labels)
        said = " or ".join(map(str, wanted))
        raise ValueError(f"out must have shape {said}, not {shape}{hint}")
    dtype, own = (str(each.dtype).removeprefix("torch.") for each in (scores, out))
    if not reduce and own != dtype:
        raise TypeError(f"out must be {dtype}, not {own}")


def _empty(ready: ReadyModel) -> Any:
    """An array for the one result: on the card if the model is."""
    (y,) = ready.lowered.outputs
    if ready.device.type == "cuda":
        return empty_there(TensorSpec(y.shape, y.dtype, "device"), ready.device)
    return np.empty(y.shape, numpy_dtype(y.dtype))


def output_shape(
    model: torch.nn.Module, *shapes: Sequence[int]
) -> tuple[int, ...] | tuple[tuple[int, ...], ...]:
    """The shape that a model makes of arguments of some shapes (of each, where there are several).

    Nothing is computed, and no memory taken.

    Examples
    --------
    >>> import torch, ooc_cudnn.torch as ooc
    >>> ooc.output_shape(torch.nn.Conv2d(3, 8, 3), (1, 3, 65536, 65536))
    (1, 8, 65534, 65534)
    """
    with torch.no_grad():
        captures, call = _captures(model, fakes_for(model, shapes), None, None, "", None)
        ready, _ = captures.find(call)
    found = tuple(each.shape for each in ready.graph.outputs if isinstance(each, Value))
    if not found:
        raise UnsupportedModelError(f"{type(model).__name__} returns no tensor")
    return found[0] if len(found) == 1 else found
