"""Bounds of a convolution: its bytes over the link, and its arithmetic on data of the device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import ooc_cudnn
from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.convolution_contender import ConvolutionContender, Operands, fused_arguments
from ooc_cudnn.bench.diagnosis import diagnosis, record_calls
from ooc_cudnn.bench.direct import DirectBiasActivation, DirectConvolution
from ooc_cudnn.bench.guards import free_device_bytes, need_device
from ooc_cudnn.bench.limits import Link
from ooc_cudnn.bench.placing import allocate_on_device, free_cupy
from ooc_cudnn.bench.tuned import tune_call
from ooc_cudnn.units import DEFAULT_LIMIT_FRACTION


class CopyLimit(ConvolutionContender):
    """Raw copies of x to the device and of as many bytes as y has back, both ways at once."""

    name = "copy_limit"
    about = "raw copies of the same bytes, both ways at once"
    bounds = True

    def prepare(self) -> None:
        operands = self.operands
        self._copies: Any = Link(cuda=operands.cuda).copies((operands.x,), (operands.y,))

    def run(self) -> None:
        self._copies()

    def check(self) -> None:
        """Copies have no contents to check: what comes back is NaN."""

    def release(self) -> None:
        self._copies = None


class OnDevice(ConvolutionContender):
    """Something that runs on features and a result in device memory; the link has no part in it."""

    bounds = True
    order = "channels_first"

    def __init__(self, operands: Operands) -> None:
        super().__init__(operands)
        self.x: Any = None
        self.y: Any = None

    def prepare(self) -> None:
        operands = self.operands
        if operands.cuda:
            need_device(operands.feature_bytes, "x and y in core")
        self.x = allocate_on_device(operands.x.shape, cuda=operands.cuda, order=self.order)
        self.y = allocate_on_device(operands.y.shape, cuda=operands.cuda, order=self.order)
        operands.images.fill(self.x)

    @property
    def result(self) -> Any:
        return self.y

    def release(self) -> None:
        self.x = self.y = None
        free_cupy(cuda=self.operands.cuda)


class InCore(OnDevice):
    """The library's own call where everything fits: on tensor cores in the layout they like."""

    name = "in_core"
    about = "the library's call with everything on the device"
    ours = True
    device_share = 1.0

    def prepare(self) -> None:
        """Put everything on the device, channels last where products may be rounded."""
        operands = self.operands
        self.order = "channels_last" if operands.tf32 and operands.cuda else "channels_first"
        super().prepare()
        self.w = allocate_on_device(operands.w.shape, cuda=operands.cuda, order=self.order)
        self.w[...] = operands.device_w
        # The host device counts users' own arrays, too.
        self._limit = (
            int(DEFAULT_LIMIT_FRACTION * free_device_bytes()) if operands.cuda else "64GiB"
        )

        with self._settings():
            self._tuned = tune_call("convolution_add_activation_forward", **self._arguments())

    def run(self) -> None:
        with self._settings():
            ooc_cudnn.convolution_add_activation_forward(**self._arguments())

    def _settings(self) -> AbstractContextManager[Any]:
        return ooc_cudnn.settings(memory_limit=self._limit, allow_tf32=self.operands.tf32)

    def _arguments(self) -> dict[str, Any]:
        return fused_arguments(self.x, self.w, self.operands.device_b, self.y)

    def details(self) -> dict[str, Any]:
        with record_calls() as calls:
            self.run()
        found = diagnosis(calls[0])
        seconds = found["predicted_seconds"]
        return {"predicted_seconds": seconds, "tuning": self._tuned, "calls": [found]}

    def release(self) -> None:
        self.w = None
        super().release()


class PlainCudnn(OnDevice):
    """cuDNN's first plan for the whole tensors, and the bias and ReLU kernel after it."""

    name = "cudnn"
    about = "cuDNN called by hand on the whole tensors, on the device (NCHW)"
    device_share = 2.0

    def prepare(self) -> None:
        operands = self.operands
        if not operands.cuda:
            raise Unavailable("cuDNN needs an NVIDIA GPU")
        super().prepare()
        self._convolution: Any = DirectConvolution(
            self.x, operands.device_w, self.y, tf32=operands.tf32
        )
        self._pointwise: Any = DirectBiasActivation(self.y, operands.device_b)

    def run(self) -> None:
        self._convolution()
        self._pointwise()

    def details(self) -> dict[str, Any]:
        convolution = self._convolution
        return {"engine": convolution.engine, "workspace_bytes": convolution.workspace_bytes}

    def release(self) -> None:
        self._convolution = self._pointwise = None
        super().release()
