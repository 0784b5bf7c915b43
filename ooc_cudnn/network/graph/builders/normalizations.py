"""Builders of normalizations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc_cudnn.network.graph.builders.base import Builders, builder
from ooc_cudnn.network.graph.initializers import ones, zeros
from ooc_cudnn.network.graph.nodes.batch_normalization import BatchNormalization
from ooc_cudnn.network.graph.nodes.group_normalization import GroupNormalization
from ooc_cudnn.network.graph.nodes.local_response import LocalResponseNormalization
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.core.window_arguments import is_int
from ooc_cudnn.operations.normalization.local_response import LocalResponse
from ooc_cudnn.tensor import ACCUMULATOR


def number(value: object, name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least:g} to {most:g}, not {value!r}")
    return float(value)


class NormalizationBuilders(Builders):
    """Normalizations."""

    @builder
    def batch_normalization(
        self,
        x: Tensor,
        *,
        epsilon: float = 1e-5,
        exponential_average_factor: float = 0.1,
        scale: Any = None,
        bias: Any = None,
        running_mean: Any = None,
        running_variance: Any = None,
        ranks: Any = None,
        name: str = "",
    ) -> Tensor:
        """Normalise each channel: in training by the whole batch, in inference by running averages.

        Parameters
        ----------
        x : Tensor, shape (n, c, up to 3 spatial axes)
        epsilon : float
            Added to the variance.
        exponential_average_factor : float
            Weight of a step in the running averages, ``old + factor * (new - old)``; updated once
            a step. Any finite number, as in PyTorch.
        scale, bias : array or parameter, optional
            Shape (c,); ones and zeros where left out.
        running_mean, running_variance : array or Tensor, optional
            Shape (c,); zeros and ones where left out. Those of another node are shared: each node
            updates them, in order.
        ranks : Ranks, optional
            Processes that train together (`cross_rank.Ranks`): in training, statistics are
            those of the images of all. Each must run the same steps in the same order.
        """
        x = self._own(x)
        epsilon = number(epsilon, "epsilon", 0)
        factor = number(exponential_average_factor, "exponential_average_factor")
        shape, dtype = x.shape[1:2], ACCUMULATOR[x.dtype]
        return self._add(
            BatchNormalization(
                name,
                self._result(name, x.shape, x.dtype),
                x,
                self._parameter(name, "scale", shape, dtype, ones, scale),
                self._parameter(name, "bias", shape, dtype, zeros, bias),
                self._running_statistics(name, "running_mean", shape, dtype, zeros, running_mean),
                self._running_statistics(
                    name, "running_variance", shape, dtype, ones, running_variance
                ),
                epsilon,
                factor,
                ranks,
            )
        )

    @builder
    def local_response_normalization(
        self,
        x: Tensor,
        size: int,
        *,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 1.0,
        name: str = "",
    ) -> Tensor:
        """``x / (k + alpha / size * s) ** beta``, s the sum of squares of `size` channels around.

        As torch.nn.LocalResponseNorm. (AlexNet's paper has no ``/ size``: its alpha times size.)
        """
        x = self._own(x)
        operation = LocalResponse.of(x.shape, size, alpha, beta, k, x.dtype)
        y = self._result(name, x.shape, x.dtype)
        return self._add(LocalResponseNormalization(name, y, x, operation))

    @builder
    def group_normalization(
        self,
        x: Tensor,
        groups: int,
        *,
        epsilon: float = 1e-5,
        scale: Any = None,
        bias: Any = None,
        name: str = "",
    ) -> Tensor:
        """Normalise each group of channels of each image by its own mean and variance.

        Parameters
        ----------
        x : Tensor, shape (n, c, up to 3 spatial axes)
        groups : int
            Of neighbouring channels, of which c is a multiple.
        epsilon : float
            Added to the variance.
        scale, bias : array or parameter, optional
            Shape (c,); ones and zeros where left out.
        """
        x = self._own(x)
        if not is_int(groups):
            raise TypeError(f"groups must be an int, not {groups!r}")
        if groups < 1 or x.shape[1] % groups:
            raise ValueError(f"{x.shape[1]} channels cannot be put in {groups} equal groups")
        return self._normalization(name, x, int(groups), epsilon, scale, bias)

    @builder
    def instance_normalization(
        self,
        x: Tensor,
        *,
        epsilon: float = 1e-5,
        scale: Any = None,
        bias: Any = None,
        name: str = "",
    ) -> Tensor:
        """Normalise each channel of each image by itself, in inference as in training.

        Parameters
        ----------
        x : Tensor, shape (n, c, up to 3 spatial axes)
        epsilon, scale, bias
            As for `group_normalization`.
        """
        x = self._own(x)
        return self._normalization(name, x, x.shape[1], epsilon, scale, bias)

    @builder
    def layer_normalization(
        self,
        x: Tensor,
        *,
        over: str = "channels",
        epsilon: float = 1e-5,
        scale: Any = None,
        bias: Any = None,
        name: str = "",
    ) -> Tensor:
        """Normalise each site over its channels, or each image over all that it has.

        Parameters
        ----------
        x : Tensor, shape (n, c, up to 3 spatial axes)
        over : str
            "channels": each site by itself, as PyTorch's LayerNorm(c) does with channels last.
            "image": all channels and sites together, scaled by channel, as GroupNorm(1, c).
        epsilon, scale, bias
            As for `group_normalization`.
        """
        x = self._own(x)
        if over not in ("channels", "image"):
            raise ValueError(f"over must be channels or image, not {over!r}")
        return self._normalization(name, x, int(over == "image"), epsilon, scale, bias)

    def _normalization(
        self, name: str, x: Tensor, groups: int, epsilon: float, scale: Any, bias: Any
    ) -> Tensor:
        epsilon = number(epsilon, "epsilon", 0)
        shape, dtype = x.shape[1:2], ACCUMULATOR[x.dtype]
        return self._add(
            GroupNormalization(
                name,
                self._result(name, x.shape, x.dtype),
                x,
                self._parameter(name, "scale", shape, dtype, ones, scale),
                self._parameter(name, "bias", shape, dtype, zeros, bias),
                groups,
                epsilon,
            )
        )
