"""Builders of what computes each element, or each site, by itself."""

from __future__ import annotations

from ooc_cudnn.network.builders.base import Builders, builder
from ooc_cudnn.network.builders.normalizations import number
from ooc_cudnn.network.initial import random_state
from ooc_cudnn.network.nodes.activation import Activation
from ooc_cudnn.network.nodes.add import Add
from ooc_cudnn.network.nodes.dropout import Dropout
from ooc_cudnn.network.nodes.softmax import Softmax
from ooc_cudnn.network.tensors import Tensor
from ooc_cudnn.operations import softmax
from ooc_cudnn.operations.activation import check_mode


class ElementwiseBuilders(Builders):
    """Activations, sums and products."""

    @builder
    def activation(
        self, x: Tensor, mode: str = "relu", *, coef: float | None = None, name: str = ""
    ) -> Tensor:
        """Apply an activation to every element, as `activation_forward`."""
        x = self._own(x)
        mode, coef = check_mode(mode, coef)
        return self._add(Activation(name, self._result(name, x.shape, x.dtype), x, mode, coef))

    @builder
    def add(self, a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
        """The sum of two maps of one shape."""
        a = self._own(a, "a")
        b = self._own(b, "b", dtype=a.dtype)
        if a.shape != b.shape:
            raise ValueError(f"b must have the shape of a, {a.shape}, but {b.name} has {b.shape}")
        return self._add(Add(name, self._result(name, a.shape, a.dtype), a, b))

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
