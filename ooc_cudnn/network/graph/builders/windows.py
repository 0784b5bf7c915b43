"""Builders of what slides windows: convolutions and poolings."""

from __future__ import annotations

import math
from typing import Any

from ooc_cudnn.network.graph.builders.base import Builders, builder
from ooc_cudnn.network.graph.initializers import he, zeros
from ooc_cudnn.network.graph.nodes.channel_mean import ChannelMean
from ooc_cudnn.network.graph.nodes.convolution import Convolution
from ooc_cudnn.network.graph.nodes.global_pooling import GlobalAverage, GlobalMax
from ooc_cudnn.network.graph.nodes.pooling import Pooling
from ooc_cudnn.network.graph.nodes.reshape import Reshape
from ooc_cudnn.network.graph.nodes.transposed_convolution import TransposedConvolution
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.convolution import forward as convolution
from ooc_cudnn.operations.convolution import transposed as transposed_convolution
from ooc_cudnn.operations.core.window_arguments import is_int, padding_pairs, per_axis
from ooc_cudnn.operations.elementwise.reshape import flatten
from ooc_cudnn.operations.pooling.global_average import of_all_sites
from ooc_cudnn.operations.resampling.arguments import (
    adaptive_pooling,
    any_pooling,
    zeros_around,
)
from ooc_cudnn.types import Padding, Sizes


class WindowBuilders(Builders):
    """Convolutions and poolings."""

    @builder
    def convolution(
        self,
        x: Tensor,
        channels: int,
        *,
        window: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        w: Any = None,
        b: Any = None,
        name: str = "",
    ) -> Tensor:
        """Cross-correlation with filters w, plus b.

        Parameters
        ----------
        x : Tensor, shape (n, cX, 1 to 3 spatial axes)
        channels : int
            Of the result.
        window, stride, padding, dilation, groups
            As for `convolution_forward`.
        bias : bool
            Whether there is a b.
        w, b : array or parameter, optional
            Initial values, shapes (channels, cX / groups, window...) and (channels,), or parameters
            that are shared. Without: drawn after He, and zeros.
        """
        x = self._own(x)
        axes = len(x.shape) - 2
        if not is_int(channels) or channels < 1:
            raise ValueError(f"channels must be a positive int, not {channels!r}")
        if axes not in (1, 2, 3):
            raise ValueError(f"x must have 1 to 3 spatial axes, but {x.name} has shape {x.shape}")
        if not is_int(groups) or groups < 1 or x.shape[1] % groups:
            raise ValueError(f"groups must divide cX={x.shape[1]}, not {groups!r}")
        x, padding = self._unpadded(x, padding)
        sizes = per_axis(window, axes, name="window", least=1)
        w_shape = (int(channels), x.shape[1] // groups, *sizes)
        operation = convolution.Convolution.of(
            x.shape,
            w_shape,
            padding=padding,
            stride=stride,
            dilation=dilation,
            groups=groups,
            dtype=x.dtype,
        )
        filters = self._parameter(name, "w", w_shape, x.dtype, he(math.prod(w_shape[1:])), w)
        vector = None
        if _has_bias(bias, b):
            vector = self._parameter(name, "b", w_shape[:1], x.dtype, zeros, b)
        y = self._result(name, operation.output_shape, x.dtype)
        return self._add(Convolution(name, y, x, filters, vector, operation))

    def _unpadded(self, x: Tensor, padding: Padding) -> tuple[Tensor, Padding]:
        """Zeros that a node has put around x become padding: then they are nowhere in memory."""
        node = self.graph.nodes.get(x.name)
        around = zeros_around(node.operation) if isinstance(node, Pooling) else None
        if not isinstance(node, Pooling) or around is None:
            return x, padding
        pairs = padding_pairs(padding, len(around))
        both = zip(around, pairs, strict=True)
        return node.x, tuple((a[0] + b[0], a[1] + b[1]) for a, b in both)

    @builder
    def linear(
        self,
        x: Tensor,
        features: int,
        *,
        bias: bool = True,
        w: Any = None,
        b: Any = None,
        name: str = "",
    ) -> Tensor:
        """Every feature from all of an image: y = w x + b, of shape (n, features).

        Parameters
        ----------
        x : Tensor, shape (n, c, up to 3 spatial axes)
            Maps are flattened first; of each site by itself it is a `convolution` of window 1.
        features : int
        bias : bool
            Whether there is a b.
        w, b : array or parameter, optional
            As for `convolution`; shapes (features, elements of an image) and (features,).

        Notes
        -----
        A convolution of window 1 on images of one site.
        """
        x = self._own(x)
        if not is_int(features) or features < 1:
            raise ValueError(f"features must be a positive int, not {features!r}")
        if len(x.shape) not in (2, 3, 4, 5):
            raise ValueError(f"x must have shape (n, c, up to 3 spatial axes), not {x.shape}")
        n, elements = flatten(x.shape)
        w_shape = (int(features), elements)
        operation = convolution.Convolution.of((n, elements, 1), (*w_shape, 1), dtype=x.dtype)
        filters = self._parameter(name, "w", w_shape, x.dtype, he(elements), w)
        vector = None
        if _has_bias(bias, b):
            vector = self._parameter(name, "b", w_shape[:1], x.dtype, zeros, b)
        if math.prod(x.shape[2:]) > 1:
            flat = f"{name}.x"
            x = self._add(Reshape(flat, self._result(flat, (n, elements), x.dtype), x))
        y = self._result(name, (n, int(features)), x.dtype)
        return self._add(Convolution(name, y, x, filters, vector, operation))

    @builder
    def pooling(
        self,
        x: Tensor,
        *,
        window: Sizes,
        mode: str = "max",
        padding: Padding = 0,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
        name: str = "",
    ) -> Tensor:
        """The largest or mean value of each window, as `pooling_forward`.

        With `ceil_mode` with one window more where some of x is left, as in PyTorch.
        """
        x = self._own(x)
        operation = any_pooling(
            x.shape,
            window=window,
            mode=mode,
            padding=padding,
            stride=stride,
            ceil_mode=ceil_mode,
            dtype=x.dtype,
        )
        y = self._result(name, operation.output_shape, x.dtype)
        return self._add(Pooling(name, y, x, operation))

    @builder
    def adaptive_pooling(
        self, x: Tensor, output: Sizes, *, mode: str = "average", name: str = ""
    ) -> Tensor:
        """The mean (or, with mode "max", the largest) of windows that give an output of a size."""
        x = self._own(x)
        operation = adaptive_pooling(x.shape, output, mode=mode, dtype=x.dtype)
        y = self._result(name, operation.output_shape, x.dtype)
        return self._add(Pooling(name, y, x, operation))

    @builder
    def global_average(self, x: Tensor, *, name: str = "") -> Tensor:
        """The mean of each channel of each image, shape (n, c, 1...)."""
        x = self._own(x)
        y = self._result(name, of_all_sites(_spatial(x).shape, x.dtype).output_shape, x.dtype)
        return self._add(GlobalAverage(name, y, x))

    @builder
    def channel_mean(self, x: Tensor, *, name: str = "") -> Tensor:
        """The mean of each site over its channels, shape (n, 1, spatial)."""
        x = self._own(x)
        y = self._result(name, (x.shape[0], 1, *x.shape[2:]), x.dtype)
        return self._add(ChannelMean(name, y, x))

    @builder
    def global_max(self, x: Tensor, *, name: str = "") -> Tensor:
        """The largest value of each channel of each image, shape (n, c, 1...)."""
        x = self._own(x)
        y = self._result(name, of_all_sites(_spatial(x).shape, x.dtype).output_shape, x.dtype)
        return self._add(GlobalMax(name, y, x))

    @builder
    def transposed_convolution(
        self,
        x: Tensor,
        channels: int,
        *,
        window: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        w: Any = None,
        b: Any = None,
        name: str = "",
    ) -> Tensor:
        """The data gradient of a convolution, used forward, plus b: torch.nn.ConvTranspose2d.

        Parameters
        ----------
        x : Tensor, shape (n, cX, 1 to 3 spatial axes)
        channels : int
            Of the result.
        window, stride, padding, dilation, groups
            Of the convolution from the result to x.
        output_padding : int or one per spatial axis
            So many rows more at the end of the result; less than the stride.
        bias : bool
            Whether there is a b.
        w, b : array or parameter, optional
            Initial values, shapes (cX, channels / groups, window...) and (channels,), or parameters
            that are shared. Without: drawn after He, and zeros.
        """
        x = self._own(x)
        axes = len(_spatial(x).shape) - 2
        if not is_int(channels) or channels < 1:
            raise ValueError(f"channels must be a positive int, not {channels!r}")
        if not is_int(groups) or groups < 1 or x.shape[1] % groups or channels % groups:
            raise ValueError(
                f"groups must divide cX={x.shape[1]} and channels={channels}, not {groups!r}"
            )
        if b is not None and not bias:
            raise ValueError("b must be left out where bias is False")
        sizes = per_axis(window, axes, name="window", least=1)
        w_shape = (x.shape[1], int(channels) // groups, *sizes)
        operation = transposed_convolution.TransposedConvolution.of(
            x.shape,
            w_shape,
            padding=padding,
            output_padding=output_padding,
            stride=stride,
            dilation=dilation,
            groups=groups,
            dtype=x.dtype,
        )
        fan_in = x.shape[1] // groups * math.prod(sizes)
        filters = self._parameter(name, "w", w_shape, x.dtype, he(fan_in), w)
        vector = None
        if bias:
            vector = self._parameter(name, "b", (int(channels),), x.dtype, zeros, b)
        y = self._result(name, operation.output_shape, x.dtype)
        return self._add(TransposedConvolution(name, y, x, filters, vector, operation.forward))


def _spatial(x: Tensor) -> Tensor:
    """Return x, which must have 1 to 3 spatial axes."""
    if len(x.shape) - 2 not in (1, 2, 3):
        raise ValueError(f"x must have 1 to 3 spatial axes, but {x.name} has shape {x.shape}")
    return x


def _has_bias(bias: object, b: Any) -> bool:
    if not isinstance(bias, bool):
        raise TypeError(f"bias must be True or False, not {bias!r}")
    if b is not None and not bias:
        raise ValueError("b must be left out where bias is False")
    return bias
