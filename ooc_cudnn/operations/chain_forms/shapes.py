"""More operations as a user writes them for a chain: most of them change extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ooc_cudnn.operations.chain_forms.windows_and_norms import Applied, Incoming, same_dtype
from ooc_cudnn.operations.convolution import transposed as transposed_convolution
from ooc_cudnn.operations.core.operation import Operation
from ooc_cudnn.operations.normalization import local_response
from ooc_cudnn.operations.resampling import arguments as resampling_arguments
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.types import Padding, Sizes, TransposedFilters


@dataclass(frozen=True, eq=False)
class TransposedConvolution(Applied):
    """The data gradient of a convolution, used forward: as torch.nn.functional.conv_transpose2d.

    Parameters
    ----------
    w : array, shape (cX, cY / groups, window...)
    padding, stride, dilation, groups
        Of the convolution from y to x, as for `convolution_forward`.
    output_padding : int or one per spatial axis
        So many rows of y more, at the end; less than the stride.
    """

    names = ("w",)

    w: TransposedFilters | TensorSpec
    padding: Padding = field(default=0, kw_only=True)
    output_padding: Sizes = field(default=0, kw_only=True)
    stride: Sizes = field(default=1, kw_only=True)
    dilation: Sizes = field(default=1, kw_only=True)
    groups: int = field(default=1, kw_only=True)

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        (w,) = specs
        same_dtype(incoming, "w", w)
        return transposed_convolution.TransposedConvolution.of(
            incoming.shape,
            w.shape,
            padding=self.padding,
            output_padding=self.output_padding,
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
            dtype=incoming.dtype,
            allow_tf32=incoming.settings.allow_tf32,
            deterministic=incoming.settings.deterministic,
        )


@dataclass(frozen=True, eq=False)
class Interpolation(Applied):
    """Nearest or linear interpolation, as torch.nn.functional.interpolate.

    Parameters
    ----------
    size, scale_factor : one for all spatial axes, or one each
        One of the two. A factor is used as it is, unless `recompute_scale_factor`.
    mode : str
        nearest or linear (on two axes bilinear, on three trilinear).
    align_corners : bool
        Linear alone: whether the centres of the corner elements meet.
    """

    size: Sizes | None = None
    scale_factor: float | Sequence[float] | None = field(default=None, kw_only=True)
    mode: str = field(default="nearest", kw_only=True)
    align_corners: bool = field(default=False, kw_only=True)
    recompute_scale_factor: bool = field(default=False, kw_only=True)

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        return resampling_arguments.interpolation(
            incoming.shape,
            size=self.size,
            scale_factor=self.scale_factor,
            mode=self.mode,
            align_corners=self.align_corners,
            recompute_scale_factor=self.recompute_scale_factor,
            dtype=incoming.dtype,
        )


@dataclass(frozen=True, eq=False)
class AdaptivePooling(Applied):
    """The mean (mode "average") or the largest ("max") of windows that give an output of a size."""

    output: Sizes
    mode: str = field(default="average", kw_only=True)

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        return resampling_arguments.adaptive_pooling(
            incoming.shape, self.output, mode=self.mode, dtype=incoming.dtype
        )


@dataclass(frozen=True, eq=False)
class Pad(Applied):
    """Padding: so many elements of a value around x; where negative, x is cropped.

    Parameters
    ----------
    padding : int, one per spatial axis, or a (before, after) pair per axis
    value : float
    """

    padding: Padding
    value: float = field(default=0.0, kw_only=True)

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        return resampling_arguments.describe_padding(
            incoming.shape, self.padding, value=self.value, dtype=incoming.dtype
        )


@dataclass(frozen=True, eq=False)
class Crop(Applied):
    """The part of x of `size` that begins at `start`, on every spatial axis."""

    start: Sizes
    size: Sizes

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        return resampling_arguments.describe_crop(
            incoming.shape, self.start, self.size, dtype=incoming.dtype
        )


@dataclass(frozen=True, eq=False)
class LocalResponseNormalization(Applied):
    """Each value by a power of the squares around it, across channels: torch's LocalResponseNorm.

    Parameters
    ----------
    size : int
        Channels in a sum.
    alpha, beta, k : float
        ``x / (k + alpha / size * sum) ** beta``.
    """

    size: int
    alpha: float = field(default=1e-4, kw_only=True)
    beta: float = field(default=0.75, kw_only=True)
    k: float = field(default=1.0, kw_only=True)

    def bind(self, incoming: Incoming, specs: tuple[TensorSpec, ...]) -> Operation:
        return local_response.LocalResponse.of(
            incoming.shape, self.size, self.alpha, self.beta, self.k, incoming.dtype
        )
