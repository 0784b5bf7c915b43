"""Operands and checks of all contenders of a convolution, and the library's own contenders."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import ooc_cudnn
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.contender import Contender
from ooc_cudnn.bench.contents import Images, filters, poison, verify
from ooc_cudnn.bench.diagnosis import diagnosis, limit_kept, record_calls
from ooc_cudnn.bench.guards import need_host
from ooc_cudnn.bench.placing import allocate_pinned, release_device, to_device
from ooc_cudnn.bench.tuned import tune_call
from ooc_cudnn.settings import current

HostArray = np.ndarray[Any, Any]


@dataclass
class Operands:
    """The operands of one case: `x` and `y` where it puts them, filters and bias on both sides.

    `images` is what `x` holds, known without reading it; `limit` the device memory that the library
    may hold; `pageable` whether `x` and `y` lie in plain NumPy arrays, and not in pinned memory.
    Benchmarks use them, too, with `x` and `y` wherever they like.
    """

    images: Images
    w: HostArray
    b: HostArray
    x: Any
    y: Any
    limit: str
    tf32: bool
    cuda: bool
    pageable: bool = False

    @classmethod
    def of(
        cls, x: Any, y: Any, *, cuda: bool, tf32: bool = True, limit: str = "",
        pageable: bool = False,
    ) -> Operands:  # fmt: skip
        """Fill x with images that all differ; filters and bias are random numbers."""
        images = Images.of(tuple(x.shape))
        w, b = filters(y.shape[1], x.shape[1])
        return cls(images, w, b, images.fill(x), y, limit, tf32, cuda, pageable)

    def __post_init__(self) -> None:
        self.device_w: Any = to_device(self.w, cuda=self.cuda)
        self.device_b: Any = to_device(self.b, cuda=self.cuda)

    def drop(self) -> None:
        """Let go of all memory, though contenders still know the operands."""
        self.x = self.y = self.device_w = self.device_b = None

    @property
    def feature_bytes(self) -> int:
        """Bytes of x and of y together."""
        return int(self.x.nbytes + self.y.nbytes)

    def verified(self, y: Any, *, split: Any = None, fused: bool = True) -> dict[str, Any]:
        """Compare a result, wherever it lies, with sums made by hand; with bias and ReLU or not."""
        b = self.b if fused else None
        return verify(self.images, self.w, b, y, tf32=self.tf32, split=split, relu=fused)


def fused_arguments(x: Any, w: Any, b: Any, y: Any) -> dict[str, Any]:
    """The arguments of `convolution_add_activation_forward` in every case."""
    return {"x": x, "w": w, "b": b, "padding": 1, "activation": "relu", "out": y}


class ConvolutionContender(Contender):
    """One way to convolve.

    `device_share` and `host_share` are what it holds beside the operands, in sizes of x and y
    together: roughly, and at most. `note` is what a reader of its seconds has to know.
    """

    device_share: ClassVar[float] = 0.0
    host_share: ClassVar[float] = 0.0
    note: ClassVar[str] = ""

    def __init__(self, operands: Operands) -> None:
        self.operands = operands

    @property
    def result(self) -> Any:
        """Array that `run` writes: the case's y, if a contender has none of its own."""
        return self.operands.y

    def prepare(self) -> None:
        """Take nothing beside the operands."""

    def check(self) -> Mapping[str, Any] | None:
        """Run on a poisoned result, and look at all of it."""
        poison(self.result)
        self.run()
        return self.operands.verified(self.result)

    def release(self) -> None:
        """Give nothing back."""


class Library(ConvolutionContender):
    """The fused function, out of core under the case's limit."""

    name = OURS
    about = "one call of the library under the memory limit"
    ours = True
    overlap = True

    def prepare(self) -> None:
        with self._settings():
            self._tuned = self.tune()

    def tune(self) -> dict[str, Any]:
        """Measure cuDNN's engines for the call."""
        return tune_call("convolution_add_activation_forward", **self._arguments())

    def run(self) -> None:
        with self._settings():
            self.call()

    def _settings(self) -> AbstractContextManager[Any]:
        o = self.operands
        return ooc_cudnn.settings(memory_limit=o.limit, allow_tf32=o.tf32, overlap=self.overlap)

    def _arguments(self) -> dict[str, Any]:
        o = self.operands
        return fused_arguments(o.x, o.device_w, o.device_b, o.y)

    def call(self) -> None:
        ooc_cudnn.convolution_add_activation_forward(**self._arguments())

    def check(self) -> dict[str, Any]:
        """Look at a run's contents, and at the memory that it held."""
        poison(self.operands.y)
        with record_calls() as calls:
            self.run()
        self._calls = [diagnosis(call) for call in calls]
        contents = self.operands.verified(self.operands.y, split=calls[0].plan.split)
        memory = [limit_kept(call, self.operands.limit) for call in self._calls]
        ok = contents["ok"] and all(kept["ok"] for kept in memory)
        return {**contents, "ok": ok, "memory_limit": memory}

    def details(self) -> dict[str, Any]:
        """Report of each call: its plan, and the seconds that were predicted."""
        return {
            "predicted_seconds": sum(call["predicted_seconds"] for call in self._calls),
            "tuning": self._tuned,
            "calls": self._calls,
        }

    def release(self) -> None:
        """Give back what the library works in: the next contender may need it."""
        release_device(current().device)


class Serial(Library):
    """The same steps, one after the other."""

    name = "serial"
    about = "the same split without overlap"
    overlap = False


class Unfused(Library):
    """Convolution, bias and activation as three calls, with the features on the host between."""

    name = "unfused"
    about = "the library's three functions, one after the other"
    host_share = 1.0

    def prepare(self) -> None:
        need_host(self.operands.y.nbytes, "the features between the functions")
        self._between: Any = allocate_pinned(self.operands.y.shape)
        super().prepare()

    def tune(self) -> dict[str, Any]:
        o = self.operands
        return tune_call("convolution_forward", x=o.x, w=o.device_w, padding=1, out=self._between)

    def call(self) -> None:
        o = self.operands
        ooc_cudnn.convolution_forward(o.x, o.device_w, padding=1, out=self._between)
        ooc_cudnn.add_tensor(o.device_b, self._between)
        ooc_cudnn.activation_forward(self._between, mode="relu", out=o.y)

    def release(self) -> None:
        self._between = None
        super().release()
