"""A device with several engines for a convolution: the host's, with cuDNN's part of a GPU."""

import ctypes
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np

from ooc_cudnn.devices.cuda import convolutions, cudnn_forms
from ooc_cudnn.devices.cuda.convolutions import Convolutions
from ooc_cudnn.devices.cuda.device import CudaDevice
from ooc_cudnn.devices.engine_check_database import try_to_save_verdicts, verdicts_of
from ooc_cudnn.devices.host.device import HostDevice, _array
from ooc_cudnn.devices.host.elementwise import pointwise as host_pointwise
from ooc_cudnn.devices.tuning_database import tables_of, try_to_save_tables
from ooc_cudnn.operations.convolution.gradients import AnyConvolution
from ooc_cudnn.operations.core.pointwise import Pointwise
from tests.support.fake_cudnn import fake_cudnn
from tests.support.fake_runtime import Stream


def copied(destination, source, stream=None):
    """Copy from one view to another, whatever their types and orders: as our kernels do."""
    np.copyto(_array(destination), _array(source), casting="same_kind")


def passed(
    destination, value, *, shift=None, mode="identity", old=None, beta=0.0, stream=None
):  # fmt: skip
    """A bias and an activation, or an addition, as our kernel makes them."""
    shape, dtype = value.shape, destination.dtype
    made = Pointwise(shape, value.dtype, dtype, mode, beta=beta, has_shift=shift is not None)
    shift, old = (None if each is None else _array(each) for each in (shift, old))
    host_pointwise(made, (_array(value), None, shift, old), _array(destination), None)


def zeros(address, nbytes, count, step, stream):
    """Fill runs of bytes with zeros."""
    for at in range(count if nbytes else 0):
        ctypes.memset(address + at * step, 0, nbytes)


class EnginesDevice(HostDevice):
    """Its convolutions run by the library's own part for cuDNN, on a `cudnn` with given engines."""

    index = 0
    _cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda index: nullcontext()))

    def __init__(self, engines, monkeypatch, *, fuses=True, version=91900):
        super().__init__()
        self.name = "fake"
        self.told = {"gpu": "Fake 9000", "driver": "1", "cudnn": str(version)}
        self.cudnn = fake_cudnn(engines, fuses=fuses, version=version)
        monkeypatch.setitem(sys.modules, "cudnn", self.cudnn)
        self.convolutions = Convolutions(
            partial(tables_of, self),
            partial(try_to_save_tables, self),
            partial(verdicts_of, self),
            partial(try_to_save_verdicts, self),
        )
        for name in ("relayout", "pointwise"):
            monkeypatch.setattr(cudnn_forms, name, copied)
        monkeypatch.setattr(cudnn_forms, "fill_zero", zeros)
        monkeypatch.setattr(convolutions, "pointwise", passed)

    def identity(self):
        return self.told

    def layouts(self, dtype):
        return ("channels_first",)

    @property
    def engines(self):
        return self.convolutions

    def workspace(self, launches, budget_bytes, *, sparing=0):
        ours = [each for each in launches if isinstance(each[0].operation, AnyConvolution)]
        others = [each for each in launches if each not in ours]
        answers = (
            CudaDevice.workspace(self, ours, budget_bytes, sparing=sparing),
            super().workspace(others, budget_bytes),
        )
        if None in answers:
            return None
        return max(answer[0] for answer in answers), answers[0][1] + answers[1][1]

    def run(self, launch, views, workspace, stream):
        if isinstance(launch.operation, AnyConvolution):
            CudaDevice.run(self, launch, views, workspace, Stream(0))
        else:
            super().run(launch, views, workspace, stream)
