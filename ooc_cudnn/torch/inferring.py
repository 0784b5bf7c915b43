"""`infer`: a model on a whole image of any size, to any array; and the shape that it makes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from ooc_cudnn.arrays.operands import ArrayRef, LocatedArray, check_writable
from ooc_cudnn.arrays.stores import Store, read_whole, regional, room_for
from ooc_cudnn.arrays.tensors import is_tensor
from ooc_cudnn.keywords import explaining
from ooc_cudnn.network.runtime.constraints_here import Limit
from ooc_cudnn.network.runtime.inference import ForwardStep
from ooc_cudnn.network.tiled.infer import TilePlan, TilingConstraints, plan_tiles
from ooc_cudnn.tensor import TensorSpec, numpy_dtype
from ooc_cudnn.torch.autograd.function import tensor_of
from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.torch.capture.capture import Call, Captures
from ooc_cudnn.torch.capture.lazy_layers import called_if_lazy, lazy_layers
from ooc_cudnn.torch.capture.stand_ins import fakes_for, parameter_device
from ooc_cudnn.torch.cards import empty_there
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.limit import own_forward, record_call
from ooc_cudnn.torch.lowering.lowered_value import LoweredValue
from ooc_cudnn.torch.options import Options
from ooc_cudnn.torch.planning import (
    device_to_plan_for,
    nothing_drawn,
    specs_of,
    with_the_same_tensors,
)
from ooc_cudnn.torch.runtime.empty import EmptyModel
from ooc_cudnn.torch.runtime.ranks import unwrap_ddp
from ooc_cudnn.torch.runtime.ready_model import ReadyModel
from ooc_cudnn.torch.stored import check_scale
from ooc_cudnn.torch.tracing.graph import Value
from perfmodel import MachineModel

#: What may be made of scores before they leave the card.
REDUCTIONS = ("argmax",)
NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


@explaining
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
        In evaluation: ``model.eval()``.
    *inputs : Tensor or array
        NumPy arrays, memmaps and pinned memory are read piece by piece; arrays of Zarr and HDF5,
        and of other byte orders (">f4": FITS, TIFF), block by block, or whole where there is one.
    out : array, optional
        Where to write the result: any placement, of `output_shape` and the result's dtype; an
        array of Zarr or HDF5; or the path of a ``.npy`` file or a ``.zarr`` folder, which is made
        (or made anew).
    memory_limit : int, float or str, optional
        As for `limit`.
    reduce : str, optional
        "argmax": labels in place of scores, as ``scores.argmax(1)``; the axis of classes may be
        kept in `out`. Scores never leave the card.
        Labels are of `out`'s dtype, of 8 bits to int64; uint8 where it is left out.
    scale : float, optional
        As for `limit`.

    Returns
    -------
    Tensor, tree of tensors, or `out`; of a path, the `numpy.memmap` of the file, or Zarr's array

    Raises
    ------
    TypeError, ValueError
        If `out` has not the result's shape or dtype, or is given for several results; if there are
        more classes than labels have numbers; if `scale` is no finite number.
    UnsupportedModelError, PlanInfeasibleError
        As for `limit`; and if the model is in training mode, and that changes what it does.

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
    for index, array in enumerate(inputs):
        if not isinstance(array, torch.Tensor) and getattr(array, "dtype", None) is None:
            is_path = isinstance(array, str | os.PathLike)
            advice = (
                "numpy.load(path, mmap_mode='r'), tifffile.memmap(path), or what else reads it as "
                "an array (docs/files.md)"
                if is_path
                else "torch.as_tensor(...) of it, or numpy.asarray(...), in the model's dtype"
            )
            raise TypeError(
                f"argument {index} must be a tensor or an array, not {type(array).__name__}: give "
                f"{advice}"
            )
    return infer_call(model, inputs, {}, out, memory_limit, reduce, scale)


def infer_call(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    memory_limit: Limit,
    reduce: str | None,
    scale: float | None,
) -> Any:
    """Run `infer` on a call of a model: its arguments by name, too, and such as are no arrays."""
    args, out = tuple(map(regional, args)), _as_target(out)
    is_path = isinstance(out, Path)
    asked = "uint8" if out is None or is_path else str(out.dtype).removeprefix("torch.")
    model = called_if_lazy(model)
    run = _Inference(model, out, reduce)
    with torch.no_grad():
        captures, call = capture_for_inference(
            model, args, memory_limit, reduce, asked, scale, kwargs
        )
        outputs = captures(call, run)
    if out is None:
        return outputs
    if not run.has_written:
        raise TypeError(f"out is given, but {type(model).__name__} computes no tensor to write")
    return _given_back(run.out)


class _Inference:
    """Runs what was captured of a model, block by block where that takes less time.

    Attributes
    ----------
    out
        What was given to write to; of a path, the file.
    has_written : bool
        Whether that was written to.
    """

    def __init__(self, model: torch.nn.Module, out: Any, reduce: str | None) -> None:
        self._model, self.out, self._reduce = model, out, reduce
        self.has_written = False

    def __call__(self, ready: ReadyModel, tensors: Sequence[Any]) -> list[Any]:
        """Run it; return what the captured graph returns."""
        if isinstance(ready, EmptyModel):
            return ready(tensors)
        check_evaluation(self._model, ready)
        one = len(ready.lowered.results) == 1 and ready.pausing is None
        out, reduce = self.out, self._reduce
        if not one:
            if out is not None:
                raise TypeError("out is given, but the model makes several results")
            return ready([read_whole(each) for each in tensors])
        if out is not None:
            out = self.out = _file(out, ready, reduce) if isinstance(out, Path) else out
            _check_out(out, ready, reduce)
            self.has_written = True
        with_classes = out
        if reduce and out is not None and out.ndim < len(ready.lowered.outputs[0].shape):
            with_classes = out.with_axis(1) if isinstance(out, Store) else out[:, None]
        if not _is_the_networks(ready):  # what PyTorch makes of it
            (result,) = ready([read_whole(each) for each in tensors])
            if out is not None:
                _put(result, out)
                return [out]
        else:
            result = _empty(ready) if out is None else with_classes
            if not ready.in_blocks(tensors, result):
                room = with_classes
                if isinstance(with_classes, Store):
                    room = room_for(with_classes, (slice(None),) * with_classes.ndim)
                (result,) = ready([read_whole(each) for each in tensors], room)
                if isinstance(with_classes, Store):
                    _put(room, with_classes)
        if out is not None:
            return [out]
        result = tensor_of(result)
        return [result if reduce is None else result[:, 0]]


@explaining
def plan_infer(
    model: torch.nn.Module,
    *shapes: Any,
    memory_limit: Limit = None,
    machine: MachineModel | str | os.PathLike[str] | None = None,
    placement: str = "disk",
    reduce: str | None = None,
    scale: float | None = None,
) -> TilePlan:
    """Plan `infer`: in how many blocks, how long, how much memory. Nothing is computed or read.

    Parameters
    ----------
    model, memory_limit, reduce, scale
        As for `infer`.
    *shapes : tuple of int, Tensor or array
        Of its arguments, in the dtype of its parameters; or a tensor, fake ones included, or an
        array, for its dtype.
    machine : MachineModel or str, optional
        The machine to predict for ("h200"); the one at hand when left out.
    placement : str
        Where the arguments will be: "device", "pinned", "pageable" or "disk".

    Returns
    -------
    TilePlan
        Its `explain` is for a person to read.

    Raises
    ------
    TypeError
        If the model makes several results.
    UnsupportedModelError, PlanInfeasibleError
        As for `infer`.

    Examples
    --------
    >>> import torch, ooc_cudnn.torch as ooc
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.Conv2d(32, 2, 3)).eval()
    >>> plan = ooc.plan_infer(model, (1, 3, 65536, 65536), memory_limit="2GiB", machine="h200")
    >>> plan.count > 1, plan.device_bytes <= 2**31
    (True, True)
    """
    with torch.no_grad():
        ready = _captured_for(model, shapes, memory_limit, reduce, scale)
        check_evaluation(model, ready)
        if not isinstance(ready.step, ForwardStep) or len(ready.lowered.outputs) != 1:
            raise TypeError("the model makes several results: those are not planned in blocks")
        specs = specs_of(ready, placement, device_to_plan_for(machine))
        refs = {name: ArrayRef(None, spec, 0) for name, spec in specs.items()}
        step = ready.lowered.network.forward_phases(*ready.lowered.outputs)
        return plan_tiles(step, TilingConstraints(memory_limit, refs, machine))


def _as_target(out: Any) -> Any:
    """The target that `infer` writes to: an array, a `Store`, or a path of a file to make."""
    if isinstance(out, str | os.PathLike):
        if not os.fspath(out).endswith((".npy", ".zarr")):
            raise ValueError(
                "out must be an array, or the path of a .npy file or a .zarr folder, not "
                f"{os.fspath(out)!r}: of HDF5 give the array, opened to be written"
            )
        return Path(out)
    if out is None or (hasattr(out, "dtype") and hasattr(out, "shape")):
        return regional(out)
    raise TypeError(
        "out must be an array, or the path of a .npy file or a .zarr folder, not "
        f"{type(out).__name__}"
    )


def _file(path: Path, ready: ReadyModel, reduce: str | None) -> Any:
    """A new file for the one result, of scores or of labels."""
    (scores,) = ready.graph.outputs
    shape, dtype = tuple(scores.shape), str(scores.dtype).removeprefix("torch.")
    if reduce:
        shape, dtype = (shape[0], *shape[2:]), "uint8"
    if dtype == "bfloat16":
        raise TypeError(f"out: such files cannot hold bfloat16, which {path.name} would be of")
    if path.suffix == ".zarr":
        import zarr

        return regional(zarr.create_array(path, shape=shape, dtype=dtype, overwrite=True))
    return np.lib.format.open_memmap(path, "w+", dtype, shape)


def _put(made: Any, out: Any) -> None:
    """Write all of a result."""
    if isinstance(out, Store):
        out[(slice(None),) * out.ndim] = made.numpy(force=True) if is_tensor(made) else made
    else:
        tensor_of(out).copy_(tensor_of(made))  # a model may return its input, an array


def _given_back(out: Any) -> Any:
    return out.array if isinstance(out, Store) else out


def check_reduction(reduce: str | None) -> None:
    """Raise ValueError if it is none of `REDUCTIONS`, nor None."""
    if reduce is not None and reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be None or {', '.join(REDUCTIONS)}, not {reduce!r}")


def check_evaluation(model: torch.nn.Module, ready: ReadyModel) -> None:
    """Refuse a model in training mode, where that changes what it computes or what it keeps.

    Raises
    ------
    UnsupportedModelError
        With what to call.
    """
    if ready.training and unwrap_ddp(model).training:
        raise UnsupportedModelError(
            f"{type(model).__name__} is in training mode: what it makes depends on the other "
            "images or on chance, and its running statistics would change; call model.eval() first"
        )


def capture_for_inference(
    model: torch.nn.Module,
    inputs: Sequence[Any],
    memory_limit: Limit,
    reduce: str | None,
    labels: str,
    scale: float | None,
    kwargs: Mapping[str, Any] = NO_KEYWORDS,
) -> tuple[Captures, Call]:
    """Capture a model for inference: what runs it on inputs, and the call.

    Parameters
    ----------
    labels : str
        The dtype of labels, where the result is to be reduced to them.
    """
    check_reduction(reduce)
    check_scale(scale)
    options = Options(memory_limit, scale=scale, labels=labels if reduce else "")
    kind, call = record_call(model, own_forward(model), tuple(inputs), dict(kwargs), options)
    call.in_inference_mode = True  # where `enable_grad` in forward asks for nothing
    return calls_of(model).of(("infer", kind), call), call


def _captured_for(
    model: torch.nn.Module,
    shapes: Sequence[Any],
    memory_limit: Limit,
    reduce: str | None,
    scale: float | None,
) -> ReadyModel:
    """A model captured for inference on arguments of some shapes; it stays as it is."""
    is_lazy = bool(lazy_layers(model))
    fakes, held = fakes_for(model, shapes), torch.device(parameter_device(model))
    model = with_the_same_tensors(model) if is_lazy else model
    with nothing_drawn(held, is_lazy):
        captures, call = capture_for_inference(model, fakes, memory_limit, reduce, "uint8", scale)
        ready, _ = captures.find(call)
    captured: ReadyModel = ready
    return captured


def _is_the_networks(ready: ReadyModel) -> bool:
    """True if the one result is the network's, as it is there."""
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
    dtype, actual = (str(each.dtype).removeprefix("torch.") for each in (scores, out))
    if not reduce and actual != dtype:
        raise TypeError(f"out must be {dtype}, not {actual}")
    if isinstance(out, Store):
        out.check_writable("out")
    elif isinstance(out, np.ndarray):
        if min(out.strides, default=0) < 0:
            raise ValueError("out has a negative stride: flip it afterwards, PyTorch has none")
        check_writable(LocatedArray(out, "", 0), name="out")


def _empty(ready: ReadyModel) -> Any:
    """An array for the one result: on the card if the model is."""
    (y,) = ready.lowered.outputs
    if ready.device.type == "cuda":
        return empty_there(TensorSpec(y.shape, y.dtype, "device"), ready.device)
    return np.empty(y.shape, numpy_dtype(y.dtype))


def output_shape(
    model: torch.nn.Module, *shapes: Any
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
        ready = _captured_for(model, shapes, None, None, None)
    results = tuple(each.shape for each in ready.graph.outputs if isinstance(each, Value))
    if not results:
        raise UnsupportedModelError(f"{type(model).__name__} returns no tensor")
    return results[0] if len(results) == 1 else results
