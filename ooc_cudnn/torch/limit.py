"""`limit` and `release`: a model's forward under a memory limit, and as it was."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from ooc_cudnn.activity import activity
from ooc_cudnn.keywords import explaining
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.runtime.constraints_here import Limit
from ooc_cudnn.settings import current
from ooc_cudnn.torch.calls import calls_of, forget_calls
from ooc_cudnn.torch.capture.capture import Call, is_captured_by_us
from ooc_cudnn.torch.capture.refusals import check_arguments, check_model, check_modes
from ooc_cudnn.torch.capture.stand_ins import StandIns, containers_in, is_array, torch_dtype
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.options import Options
from ooc_cudnn.torch.runtime.ranks import STATISTICS, unwrap_ddp
from ooc_cudnn.torch.runtime.ready_model import ReadyModel
from ooc_cudnn.torch.stored import check_scale
from ooc_cudnn.torch.tracing.overlaps import overlapping_pairs
from ooc_cudnn.units import parse_limit

M = TypeVar("M", bound=torch.nn.Module)
#: A text of so many bytes lacks its unit.
MEANT_IN_GIB = range(2, 256)


@explaining
def limit(
    model: M,
    memory_limit: Limit = None,
    *,
    strict: bool = False,
    statistics: str = "rank",
    scale: float | None = None,
) -> M:
    """Let a model compute within a limit of device memory. Returns at once.

    It stays the same object: parameters, state_dict, hooks, train and eval are as before. Its
    `forward` is replaced, and its `extra_repr`: printed, it says the limit. At its first call with
    arguments of some shapes the model is captured and planned, which takes seconds.

    Parameters
    ----------
    model : torch.nn.Module
        In DistributedDataParallel or not: what is limited is the model within.
    memory_limit : int, float or str, optional
        Device memory that the library may hold: bytes, a share of the card's (0.5), or text
        ("8GiB"). The setting's when left out.
    strict : bool
        Whether an operation that the library has not is an error. Else PyTorch computes it, some
        images at a time and within the limit; `plan.explain` names each.
    statistics : str
        Of which images batch normalization takes mean and variance in training, where several
        processes train together (torch.distributed): "rank", of its own, as PyTorch does; or
        "global", of those of all. Then every rank must run the same steps. torch.nn.SyncBatchNorm
        takes them over its process group in any case.
    scale : float, optional
        Takes images as they are stored: every argument of uint8, int8, uint16 or int16 crosses the
        link as it is, and is brought to the dtype of the model's parameters and multiplied by this
        on the card (1 / 255), before the model reads it.

    Returns
    -------
    Module
        The model.

    Raises
    ------
    TypeError, ValueError
        If it is no module, or that is no limit; or of another `statistics`; if `scale` is no
        finite number; at a call, if the model itself does not take its arguments.
    UnsupportedModelError
        If a part of it is refused (FSDP, parameters that are sparse or complex); at the first
        call, if the model cannot be captured.
    UnsupportedOperationError
        At the first call, if an operation can be made neither by the library nor by PyTorch for it:
        one that updates running statistics, or draws random numbers that several parts read.
    RanksError
        At a call, or its backward, if statistics are over all ranks and another one has failed.

    Examples
    --------
    >>> import torch, ooc_cudnn, ooc_cudnn.torch as ooc
    >>> model = ooc.limit(torch.nn.Conv2d(3, 8, 3), "64KiB")
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     y = model(torch.ones(2, 3, 16, 16))
    ...     y.sum().backward()
    >>> y.shape, model.bias.grad[0]
    (torch.Size([2, 8, 14, 14]), tensor(392.))
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if memory_limit is not None:
        limit_bytes = parse_limit(memory_limit, name="memory_limit")
        if isinstance(memory_limit, str) and limit_bytes in MEANT_IN_GIB:
            raise ValueError(
                f"memory_limit={memory_limit!r} is {limit_bytes} bytes: for GiB give "
                f"'{limit_bytes}GiB'"
            )
    if statistics not in STATISTICS:
        raise ValueError(f"statistics must be rank or global, not {statistics!r}")
    check_scale(scale)
    with activity("loading TorchDynamo", current().progress):
        importlib.import_module("torch._dynamo")
    inner = unwrap_ddp(model)
    check_model(inner)
    if isinstance(_forward_of_class(inner), property):
        raise UnsupportedModelError(
            f"{type(inner).__name__}.forward is a property, which cannot be replaced: make it a "
            "method"
        )
    forget_calls(inner)
    limited = Limited(inner, memory_limit, strict=strict, statistics=statistics, scale=scale)
    inner.forward, inner.__dict__["extra_repr"] = limited, DescribedLimit(limited)
    return model


def release(model: M) -> M:
    """Undo `limit`: the model computes as PyTorch does. What `infer` keeps is dropped, too."""
    forget_calls(model)
    own = limited_forward(model)
    if own is not None:
        own.undo()
    return model


class DescribedLimit:
    """The `extra_repr` of a model under a limit: its own, and a line on the limit."""

    def __init__(self, limited: Limited) -> None:
        self.limited = limited

    def __call__(self) -> str:
        """Return what is printed of the model beside its parts."""
        limited = self.limited
        own = limited.described_before or partial(type(limited.model).extra_repr, limited.model)
        return "\n".join(filter(None, (own(), f"under a limit: {limited.summary}")))


def limited_forward(model: torch.nn.Module) -> Limited | None:
    """The forward of a model that is under a limit; Accelerate makes a method of it."""
    own = unwrap_ddp(model).__dict__.get("forward")
    own = own.__func__ if isinstance(own, MethodType) else own
    return own if isinstance(own, Limited) else None


class Limited:
    """The forward of a model under a limit. It is copied and pickled with the model."""

    def __init__(
        self,
        model: torch.nn.Module,
        memory_limit: Limit,
        *,
        strict: bool = False,
        statistics: str = "rank",
        scale: float | None = None,
    ) -> None:
        own = limited_forward(model)
        self.model, self.memory_limit, self.strict = model, memory_limit, strict
        self.statistics, self.scale = statistics, scale
        #: What the user had put in place of the class's forward.
        self.before: Any = model.__dict__.get("forward") if own is None else own.before
        #: And in place of the class's `extra_repr`.
        described = model.__dict__.get("extra_repr")
        self.described_before: Any = described if own is None else own.described_before
        self.last: ReadyModel | None = None
        self._is_method = isinstance(_forward_of_class(model), FunctionType)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "last": None}

    def undo(self) -> None:
        """Put the model's own forward back."""
        for name, before in (("forward", self.before), ("extra_repr", self.described_before)):
            if before is None:
                self.model.__dict__.pop(name, None)
            else:
                self.model.__dict__[name] = before

    @property
    def summary(self) -> str:
        """A line: the plan of the last call, or the limit that the next is planned under."""
        if self.plan is not None:
            return self.plan.summary
        asked = "of the settings" if self.memory_limit is None else f"{self.memory_limit}"
        return f"memory_limit {asked}, not planned yet"

    def __repr__(self) -> str:
        return f"<forward of {type(self.model).__name__} under a limit: {self.summary}>"

    @property
    def plan(self) -> NetworkPlan | None:
        """Plan of the last call."""
        return None if self.last is None else self.last.plan

    @property
    def options(self) -> Options:
        """Options that plans are made by."""
        return Options(self.memory_limit, self.strict, self.statistics, self.scale)

    @property
    def own(self) -> Callable[..., Any]:
        """The forward that the model has without a limit, and without what is around this one."""
        return _bound(self.model, self.before)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the model; as a part of a model under a limit, be captured with it."""
        if args and args[0] is self.model:  # as a method of the model
            args = args[1:]
        if is_captured_by_us():  # TorchDynamo traces this: it makes no methods of its own
            if self.before is not None:
                return self.before(*args, **kwargs)
            if self._is_method:
                return type(self.model).forward(self.model, *args, **kwargs)
            return type(self.model).forward(*args, **kwargs)
        return self._run(args, kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the model's forward: trainers look what it takes."""
        return inspect.signature(self.own)

    @property
    def __code__(self) -> CodeType:
        """TorchDynamo looks at that of a `torch.fx.GraphModule`."""
        code: CodeType = self.own.__code__
        return code

    # A compiled function breaks its graph here, and goes on behind it. As `torch.compiler.disable`,
    # which would import TorchDynamo at once.
    @torch._disable_dynamo
    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kind, call = record_call(self.model, self.own, args, kwargs, self.options)

        def run(ready: ReadyModel, tensors: Sequence[Any]) -> Any:
            self.last = ready
            return ready(tensors, late_state=call.late_state)

        result = calls_of(self.model).of(kind, call)(call, run)
        call.give_back(result)
        return result


def record_call(
    model: torch.nn.Module,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Options,
) -> tuple[Hashable, Call]:
    """A call as it is captured, and of which kind it is.

    Arrays, tensors that are not where the model is, and images as they are stored have stand-ins.
    """
    leaves: list[Any]
    structure: Hashable
    if kwargs or any(type(each) is not torch.Tensor for each in args):
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
    else:
        leaves, structure = list(args), None
    places = {at for at, leaf in enumerate(leaves) if is_array(leaf)}
    if not places and all(isinstance(leaf, int | float | str | None) for leaf in leaves):
        remedy = "give tensors or NumPy arrays, torch.as_tensor(...) of lists, say"
        if not leaves:
            remedy = "limit a module whose forward takes as an argument what this one begins with"
        raise UnsupportedModelError(f"{type(model).__name__} was called without a tensor: {remedy}")
    check_modes()
    check_arguments(model, [leaves[at] for at in sorted(places)])
    standing = StandIns(model, options.scale)
    filled = [standing(leaf) if at in places else leaf for at, leaf in enumerate(leaves)]
    kind = (
        structure,
        tuple(
            _seen(filled[at], leaf) if at in places else repr(leaf)
            for at, leaf in enumerate(leaves)
        ),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple(each for hooks in _HOOKS_OF_ALL for each in hooks.items()),
        overlapping_pairs([leaf for leaf in filled if isinstance(leaf, torch.Tensor)]),
    )
    containers: list[tuple[Any, Any]] = []
    if any(one is not other for one, other in zip(filled, leaves, strict=True)):
        # else what is changed is theirs
        if structure is None:
            args = tuple(filled)
        else:
            original = args, kwargs
            args, kwargs = pytree.tree_unflatten(filled, structure)
            containers = containers_in(original, (args, kwargs))
    return kind, Call(model, forward, args, kwargs, options, standing.real, containers)


#: Hooks of all modules there are. Guards look at those of a module.
_HOOKS_OF_ALL = tuple(
    getattr(torch.nn.modules.module, f"_global_{kind}_hooks")
    for kind in ("forward", "forward_pre", "backward", "backward_pre")
)


def _seen(stand_in: torch.Tensor, given: Any) -> Hashable:
    """The properties of an argument that a capture depends on; guards compare its sizes."""
    return (
        stand_in.dim(), stand_in.dtype, stand_in.device, stand_in.requires_grad,
        stand_in is given, torch_dtype(given),
    )  # fmt: skip


def own_forward(model: torch.nn.Module) -> Callable[..., Any]:
    """The forward that a model has without a limit."""
    model, own = unwrap_ddp(model), limited_forward(model)
    return _bound(model, model.__dict__.get("forward") if own is None else own.before)


def _bound(model: torch.nn.Module, held: Any) -> Callable[..., Any]:
    """A forward that a model was given, or else that of its class, bound to it."""
    if held is not None:
        return held
    of_class = _forward_of_class(model)
    binds = getattr(type(of_class), "__get__", None)
    return of_class if binds is None else binds(of_class, model, type(model))


def _forward_of_class(model: torch.nn.Module) -> Any:
    """Return the attribute of the class: a function, a staticmethod, any callable."""
    return next(vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind))
