"""One convolution on a device with engines: tuned, planned and called."""

import dataclasses

import numpy as np

import ooc_cudnn
from ooc_cudnn import devices
from ooc_cudnn.devices.machines import machine_path
from ooc_cudnn.engines import trials
from ooc_cudnn.functions.tune import tune
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.warnings_once import forget_warnings
from perfmodel import ComputeModel, Line, shipped
from tests.support.clock import Clock
from tests.support.engines_device import EnginesDevice

X, W = TensorSpec((8, 4, 16, 16)), TensorSpec((4, 4, 3, 3))
#: A result of `X` and `W`, and of one of its images.
RESULTS = 8 * 4 * 16 * 16
IMAGE = RESULTS // 8
KIB = 2**10


def tuned(**options):
    options = {"x": X, "w": W, "padding": 1} | options
    return tune.tune("convolution_forward", **options)


def planned(**options):
    options = {"x": X, "w": W, "padding": 1} | options
    return ooc_cudnn.plan("convolution_forward", **options)


def call(random, **settings):
    """The convolution of `X` and `W`: how far it is from the reference."""
    x, w = random.standard_normal(X.shape, "f4"), random.standard_normal(W.shape, "f4")
    with ooc_cudnn.settings(**settings):
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
    expected = Convolution.of(X.shape, W.shape, padding=1).reference(x, w)
    return np.abs(y - expected).max() / np.abs(expected).max()


def numbers(measured):
    return [option.engine.number for option in measured.options]


def engines_maker(monkeypatch, tmp_path):
    """Return what makes the device with given engines, and takes it for the host.

    Its machine model says 1 us a result for all of them, and `launch_seconds` a launch; next to
    nothing for a `free` kind.
    """
    Clock(monkeypatch, look_seconds=1e-12)
    monkeypatch.setattr(trials, "SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(trials, "LARGEST_ERROR", np.inf)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_warnings()

    def made(*engines, free=None, version=91900, launch_seconds=0.0):
        device = EnginesDevice(list(engines), monkeypatch, version=version)
        monkeypatch.setitem(devices._resolved, "host", device)
        known, identity = shipped("host"), device.identity()
        a_result = 2 * 4 * 9 * 8  # flops, of 32 channels
        lines = {
            key: Line(1e-6 / a_result, launch_seconds) if key.startswith("convolution") else line
            for key, line in known.compute.lines.items()
        }
        if free is not None:
            lines |= {key: Line(1e-15, 0.0) for key in lines if key.endswith(free)}
        told = dataclasses.replace(known, compute=ComputeModel(lines), identity=identity)
        told.save(machine_path(identity))
        ooc_cudnn.settings(machine=None, memory_limit=2**19)
        return device

    return made
