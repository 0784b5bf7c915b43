"""Operations as a user writes them for a chain: with the arrays they are applied with.

Each binds itself to the shape of the tensor that flows in, and gives the pure description that is
planned, and the arrays that go with it.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from ooc_cudnn.operations.convolution import forward as convolution
from ooc_cudnn.operations.core.operation import Operation, Shape
from ooc_cudnn.operations.elementwise import activation
from ooc_cudnn.operations.elementwise import binary as op_tensor
from ooc_cudnn.operations.normalization.batch_launches import Normalise
from ooc_cudnn.operations.normalization.layer_in_chain import NormaliseSites
from ooc_cudnn.operations.pooling.forward import Pooling as Pool
from ooc_cudnn.operations.resampling.arguments import any_pooling
from ooc_cudnn.operations.resampling.forward import Resampling
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.types import Array, ChannelStatistics, ChannelVector, Filters, Padding, Sizes


class Incoming(NamedTuple):
    """The tensor that flows into an operation, and the settings in force."""

    shape: Shape
    dtype: str
    settings: Settings


class Applied(ABC):
    """An operation and its arrays, a dataclass."""

    #: The fields that hold its arrays: what its description calls its parameters, in their order.
    names: ClassVar[tuple[str, ...]] = ()

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays it is applied with."""
        return tuple(getattr(self, name) for name in self.names)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Everything else that shapes it."""
        others = [value for name, value in vars(self).items() if name not in self.names]
        return (type(self).__name__, *others)

    @abstractmethod
    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        """Describe it, applied to a tensor; raises on what does not fit."""


def same_dtype(incoming: Incoming, name: str, spec: TensorSpec) -> None:
    """Raise TypeError unless an array of an operation has the type of the tensor that flows in."""
    if spec.dtype != incoming.dtype:
        raise TypeError(f"{name} must be {incoming.dtype} like x, not {spec.dtype}")


@dataclass(frozen=True, eq=False)
class Convolution(Applied):
    """Cross-correlation with the filters w, as `convolution_forward`.

    Parameters
    ----------
    w : array, shape (cY, cX / groups, window...)
    padding, stride, dilation, groups
        As for `convolution_forward`.
    """

    names = ("w",)

    w: Filters | TensorSpec
    padding: Padding = field(default=0, kw_only=True)
    stride: Sizes = field(default=1, kw_only=True)
    dilation: Sizes = field(default=1, kw_only=True)
    groups: int = field(default=1, kw_only=True)

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> convolution.Convolution:
        (w,) = specs
        same_dtype(incoming, "w", w)
        return convolution.Convolution.of(
            incoming.shape,
            w.shape,
            padding=self.padding,
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
            dtype=incoming.dtype,
            allow_tf32=incoming.settings.allow_tf32,
            deterministic=incoming.settings.deterministic,
        )


@dataclass(frozen=True, eq=False)
class Activation(Applied):
    """An activation, as `activation_forward`."""

    mode: str = "relu"
    coef: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        activation.check_mode(self.mode, self.coef)

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        mode, coef = activation.check_mode(self.mode, self.coef)
        return activation.Activation(incoming.shape, mode, coef, incoming.dtype)


@dataclass(frozen=True, eq=False)
class PRelu(Applied):
    """PReLU: x where x > 0, else w * x.

    Parameters
    ----------
    w : array, shape (c,) or (1,)
        A slope for each channel, or one for all.
    """

    names = ("w",)

    w: ChannelVector | TensorSpec

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        (w,) = specs
        same_dtype(incoming, "w", w)
        if w.shape not in ((1,), incoming.shape[1:2]):
            raise ValueError(f"w must have shape ({incoming.shape[1]},) or (1,), not {w.shape}")
        return op_tensor.OpTensor(incoming.shape, w.shape, incoming.dtype, "prelu")


@dataclass(frozen=True, eq=False)
class Pooling(Applied):
    """Pooling, as `pooling_forward`; `ceil_mode` as PyTorch has it."""

    window: Sizes
    mode: str = field(default="max", kw_only=True)
    padding: Padding = field(default=0, kw_only=True)
    stride: Sizes | None = field(default=None, kw_only=True)
    ceil_mode: bool = field(default=False, kw_only=True)

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Pool | Resampling:
        return any_pooling(
            incoming.shape,
            window=self.window,
            mode=self.mode,
            padding=self.padding,
            stride=self.stride,
            ceil_mode=self.ceil_mode,
            dtype=incoming.dtype,
        )


@dataclass(frozen=True, eq=False)
class OpTensor(Applied):
    """``op(alpha_a * x, alpha_b * b)`` with a second tensor b, broadcast: cudnnOpTensor.

    Parameters
    ----------
    op : str
        add, multiply, minimum or maximum.
    b : array
        As many axes as x, every extent x's or 1; or shape (c,).
    alpha_a, alpha_b : float
    """

    names = ("b",)

    op: str
    b: Array | TensorSpec
    alpha_a: float = field(default=1.0, kw_only=True)
    alpha_b: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if self.op not in op_tensor.OPS:
            raise ValueError(f"op must be one of {', '.join(op_tensor.OPS)}, not {self.op!r}")
        for name in ("alpha_a", "alpha_b"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise TypeError(f"{name} must be a number, not {value!r}")
            if not math.isfinite(value):
                raise ValueError(f"{name} must be finite, not {value!r}")

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        (b,) = specs
        same_dtype(incoming, "b", b)
        op_tensor.check_broadcast(b.shape, incoming.shape, "what it meets")
        return op_tensor.OpTensor(
            incoming.shape, b.shape, incoming.dtype, self.op, self.alpha_a, self.alpha_b
        )


@dataclass(frozen=True, eq=False)
class AddTensor(Applied):
    """Add b, broadcast: a bias of shape (c,) or (1, c, 1...), or any tensor that broadcasts."""

    names = ("b",)

    b: ChannelVector | TensorSpec

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        """A bias, if there is one value per channel; else the sum of two tensors."""
        (b,) = specs
        same_dtype(incoming, "b", b)
        if b.shape == (incoming.shape[1],):
            return op_tensor.AddTensor(incoming.shape, incoming.dtype)
        op_tensor.check_broadcast(b.shape, incoming.shape, "what it meets")
        return op_tensor.OpTensor(incoming.shape, b.shape, incoming.dtype)


@dataclass(frozen=True, eq=False)
class BatchNormalization(Applied):
    """Inference by given statistics, as `batch_normalization_forward_inference`."""

    names = ("scale", "bias", "mean", "variance")

    scale: ChannelStatistics | TensorSpec
    bias: ChannelStatistics | TensorSpec
    mean: ChannelStatistics | TensorSpec
    variance: ChannelStatistics | TensorSpec
    epsilon: float = field(default=1e-5, kw_only=True)

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        made = Normalise(incoming.shape, incoming.dtype, float(self.epsilon))
        _check_vectors(made, specs)
        return made


@dataclass(frozen=True, eq=False)
class LayerNormalization(Applied):
    """Normalise each site by mean and variance of its channels: LayerNorm(c) with channels last.

    Parameters
    ----------
    scale, bias : array, shape (c,)
        float32; float64 for float64 x.
    epsilon : float
        Added to the variance; not negative.
    """

    names = ("scale", "bias")

    scale: ChannelStatistics | TensorSpec
    bias: ChannelStatistics | TensorSpec
    epsilon: float = field(default=1e-5, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, bool) or not isinstance(self.epsilon, numbers.Real):
            raise TypeError(f"epsilon must be a number, not {self.epsilon!r}")
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise ValueError(f"epsilon must not be negative, not {self.epsilon!r}")

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        made = NormaliseSites(incoming.shape, incoming.dtype, float(self.epsilon))
        _check_vectors(made, specs)
        return made


def _check_vectors(operation: Operation, specs: tuple[TensorSpec, ...]) -> None:
    """Raise unless the vectors of a normalization are of its channels, in the type of sums."""
    for parameter, spec in zip(operation.parameters, specs, strict=True):
        if spec.shape != parameter.shape:
            raise ValueError(
                f"{parameter.name} must have shape {parameter.shape}, not {spec.shape}"
            )
        if spec.dtype != parameter.dtype:
            raise TypeError(f"{parameter.name} must be {parameter.dtype}, not {spec.dtype}")
