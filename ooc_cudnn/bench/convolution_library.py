"""The library's own ways: the fused call, the same without overlap, and three calls."""

from __future__ import annotations

from typing import Any

import ooc_cudnn
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.contents import poison
from ooc_cudnn.bench.convolution_contender import ConvolutionContender
from ooc_cudnn.bench.diagnosis import diagnosis, limit_kept, profiled
from ooc_cudnn.bench.guards import need_host
from ooc_cudnn.bench.placing import pinned, release_device
from ooc_cudnn.settings import current


class Library(ConvolutionContender):
    """The fused function, out of core under the case's limit."""

    name = OURS
    about = "one call of the library under the memory limit"
    ours = True
    overlap = True

    def run(self) -> None:
        operands = self.operands
        with ooc_cudnn.settings(
            memory_limit=operands.limit, allow_tf32=operands.tf32, overlap=self.overlap
        ):
            self.call()

    def call(self) -> None:
        o = self.operands
        ooc_cudnn.convolution_add_activation_forward(
            o.x, o.device_w, o.device_b, padding=1, activation="relu", out=o.y
        )

    def check(self) -> dict[str, Any]:
        """Look at a run's contents, and at the memory that it held."""
        poison(self.operands.y)
        with profiled() as calls:
            self.run()
        self._calls = [diagnosis(call) for call in calls]
        contents = self.operands.verified(self.operands.y, split=calls[0].plan.split)
        memory = [limit_kept(call, self.operands.limit) for call in self._calls]
        ok = contents["ok"] and all(kept["ok"] for kept in memory)
        return {**contents, "ok": ok, "memory_limit": memory}

    def details(self) -> dict[str, Any]:
        """What each call did, and what it was predicted to take."""
        return {
            "predicted_seconds": sum(call["predicted_seconds"] for call in self._calls),
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
        self._between: Any = pinned(self.operands.y.shape)

    def call(self) -> None:
        o = self.operands
        ooc_cudnn.convolution_forward(o.x, o.device_w, padding=1, out=self._between)
        ooc_cudnn.add_tensor(o.device_b, self._between)
        ooc_cudnn.activation_forward(self._between, mode="relu", out=o.y)

    def release(self) -> None:
        self._between = None
        super().release()
