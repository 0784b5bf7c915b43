"""Builders of what computes each element, or each site, by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc_cudnn.network.graph.builders.base import Builders, builder
from ooc_cudnn.network.graph.builders.normalizations import number
from ooc_cudnn.network.graph.initializers import constant, random_state, zeros
from ooc_cudnn.network.graph.nodes.activation import Activation
from ooc_cudnn.network.graph.nodes.arithmetic import Add, Divide, Multiply
from ooc_cudnn.network.graph.nodes.cast import Cast
from ooc_cudnn.network.graph.nodes.channel_argmax import ChannelArgmax
from ooc_cudnn.network.graph.nodes.detach import Detach
from ooc_cudnn.network.graph.nodes.dropout import Dropout
from ooc_cudnn.network.graph.nodes.images import Images
from ooc_cudnn.network.graph.nodes.prelu import PRelu
from ooc_cudnn.network.graph.nodes.softmax import Softmax
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.elementwise.activation import check_mode, coef_in
from ooc_cudnn.operations.elementwise.cast_scale import STORED
from ooc_cudnn.operations.softmax import channels as softmax
from ooc_cudnn.operations.softmax.channel_argmax import ArgmaxCall
from ooc_cudnn.tensor import ACCUMULATOR, dtype_name, rounded_to


class ElementwiseBuilders(Builders):
    """Activations, sums and products, dropout, stored images."""

    @builder
    def activation(
        self, x: Tensor, mode: str = "relu", *, coef: float | None = None, name: str = ""
    ) -> Tensor:
        """Apply an activation to every element, as `activation_forward`."""
        x = self._own(x)
        mode, coef = check_mode(mode, coef)
        coef = coef_in(x.dtype, mode, coef)
        return self._add(Activation(name, self._result(name, x.shape, x.dtype), x, mode, coef))

    @builder
    def prelu(
        self, x: Tensor, *, per_channel: bool = False, w: Any = None, name: str = ""
    ) -> Tensor:
        """PReLU: x where x > 0, else w * x, with a slope w that is learnt.

        Parameters
        ----------
        per_channel : bool
            Whether each channel has a slope of its own.
        w : array or parameter, optional
            Shape (c,) per channel, else (1,). Without: 0.25, as in PyTorch.
        """
        x = self._own(x)
        shape = x.shape[1:2] if per_channel else (1,)
        slope = self._parameter(name, "w", shape, x.dtype, constant(0.25), w)
        return self._add(PRelu(name, self._result(name, x.shape, x.dtype), x, slope))

    @builder
    def add(self, a: Tensor, b: Tensor | float, *, name: str = "") -> Tensor:
        """a + b: two maps of one shape, or a map and what is broadcast to it.

        Parameters
        ----------
        a : Tensor, shape (n, c, spatial...)
        b : Tensor or float
            Of the shape of a; one value per channel, (c,) or (1, c, 1...); per image, (n, 1, 1...);
            per channel of an image, (n, c) or (n, c, 1...); per site of an image, (n, 1,
            spatial...); or one in all: (1,), (1, 1, 1...), or a number. Half types compute with a
            number in float32, as PyTorch does: it is not rounded to them.
        """
        return self._add(Add(name, *self._combined(name, a, b)))

    @builder
    def multiply(self, a: Tensor, b: Tensor | float, *, name: str = "") -> Tensor:
        """a * b: two maps of one shape, or a map and what is broadcast to it, as for `add`."""
        return self._add(Multiply(name, *self._combined(name, a, b)))

    @builder
    def divide(self, a: Tensor, b: Tensor | float, *, name: str = "") -> Tensor:
        """a / b, b as for `add`: not a times 1 / b, which is rounded, and may be infinite."""
        return self._add(Divide(name, *self._combined(name, a, b)))

    def _combined(
        self, name: str, a: Tensor, b: Tensor | float
    ) -> tuple[Tensor, Tensor, Tensor, Shape, float]:
        """The result, both operands, the shape as which the second is broadcast, and its factor."""
        a, factor = self._own(a, "a"), 1.0
        if _is_number(b):
            exact = rounded_to(ACCUMULATOR[a.dtype], float(b))  # type: ignore[arg-type]
            value = rounded_to(a.dtype, exact)
            if not (value == exact or math.isnan(exact)):
                value, factor = 1.0, exact
            b = self._running_statistics(name, "constant", (1,), a.dtype, constant(value))
        b = self._own(b, "b", dtype=a.dtype)
        ones = (1,) * (len(a.shape) - 2)
        images, channels = a.shape[:2]
        shapes = {
            a.shape: a.shape,
            (channels,): (channels,),
            (images, channels): (images, channels, *ones),
            (1,): (1,),
            **{
                shape: shape
                for shape in (
                    (1, channels, *ones), (images, 1, *ones), (images, channels, *ones),
                    (images, 1, *a.shape[2:]), (1, 1, *ones),
                )
            },
        }  # fmt: skip
        if b.shape not in shapes:
            raise ValueError(
                f"b must have the shape of a, {a.shape}, or one value per channel, per image, per "
                f"channel or site of an image, or in all, but {b.name} has {b.shape}"
            )
        return self._result(name, a.shape, a.dtype), a, b, shapes[b.shape], factor

    @builder
    def dropout(
        self, x: Tensor, p: float = 0.5, *, per_channel: bool = False, name: str = ""
    ) -> Tensor:
        """Drop elements (or, `per_channel`, channels of an image) in training; others grow.

        Parameters
        ----------
        x : Tensor, shape (n, c, up to 3 spatial axes)
        p : float
            The probability that one is dropped; what is kept is divided by 1 - p.

        Notes
        -----
        Random numbers are Philox's, by the element's index in the whole tensor: the same however a
        step is cut. Seed and count of steps are among the running statistics.
        """
        x = self._own(x)
        p = number(p, "p", 0, 1)
        state = self._running_statistics(name, "state", (2,), "int64", random_state)
        y = self._result(name, x.shape, x.dtype)
        return self._add(Dropout(name, y, x, state, p, bool(per_channel)))

    @builder
    def image(
        self,
        x: Tensor,
        *,
        mean: float | Sequence[float] = 0.0,
        scale: float | Sequence[float] = 1.0,
        dtype: str = "float32",
        name: str = "",
    ) -> Tensor:
        """Stored images as maps: (x - mean) * scale. They cross the link as integers.

        Parameters
        ----------
        x : Tensor, shape (n, c, up to 3 spatial axes)
            An input of uint8, int8, uint16 or int16.
        mean, scale : float, or one per channel
        dtype : str
            Of the result.
        """
        x = self.graph.check_own(x, "x")
        dtype = dtype_name(dtype)
        vectors = []
        for said, value in (("mean", mean), ("scale", scale)):
            array = np.asarray(value, ACCUMULATOR[dtype]).reshape(-1)
            if array.shape not in ((1,), x.shape[1:2]) or not np.isfinite(array).all():
                raise ValueError(f"{said} must be a finite number, or one per channel, not {value}")
            vector = self._running_statistics(
                name, said, array.shape, array.dtype.name, zeros, array
            )
            vectors.append(vector)
        if x.dtype not in STORED:
            raise TypeError(f"x must be one of {', '.join(STORED)}, but {x.name} is {x.dtype}")
        return self._add(Images(name, self._result(name, x.shape, dtype), x, *vectors))

    @builder
    def argmax(self, x: Tensor, *, dtype: str = "uint8", name: str = "") -> Tensor:
        """The number of the largest channel of each site, as torch.argmax: labels, not scores.

        Parameters
        ----------
        x : Tensor, shape (n, c, up to 3 spatial axes)
        dtype : str
            Of the result, of shape (n, 1, spatial...): "uint8", "int8", "uint16", "int16",
            "int32" or "int64".
        """
        x = self._own(x)
        ArgmaxCall(x.shape, x.dtype, dtype)  # refuses what it cannot hold
        y = self._result(name, (x.shape[0], 1, *x.shape[2:]), dtype)
        return self._add(ChannelArgmax(name, y, x))

    @builder
    def cast(self, x: Tensor, dtype: str, *, name: str = "") -> Tensor:
        """The numbers of x in another floating dtype, rounded; the gradient is x's dtype again."""
        x = self._own(x)
        return self._add(Cast(name, self._result(name, x.shape, dtype_name(dtype)), x))

    @builder
    def detach(self, x: Tensor, *, name: str = "") -> Tensor:
        """x itself, and no gradient goes back through it."""
        x = self._own(x)
        return self._add(Detach(name, self._result(name, x.shape, x.dtype), x))

    @builder
    def softmax(
        self, x: Tensor, *, algorithm: str = "accurate", mode: str = "channel", name: str = ""
    ) -> Tensor:
        """Softmax over the channels of each site or over whole images, as `softmax_forward`."""
        x = self._own(x)
        for said, value, allowed in (
            ("algorithm", algorithm, softmax.ALGORITHMS),
            ("mode", mode, softmax.MODES),
        ):
            if value not in allowed:
                raise ValueError(f"{said} must be one of {', '.join(allowed)}, not {value!r}")
        return self._add(Softmax(name, self._result(name, x.shape, x.dtype), x, algorithm, mode))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
