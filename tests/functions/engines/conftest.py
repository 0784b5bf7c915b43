"""The device with engines that a test says."""

import dataclasses

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import devices
from ooc_cudnn.devices.machines import machine_path
from ooc_cudnn.functions import trials
from ooc_cudnn.telling import forget_warnings
from perfmodel import ComputeModel, Line, shipped
from tests.support.clock import Clock
from tests.support.engines_device import EnginesDevice


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make the device with given engines; its machine model says 1 us a result for all of them."""
    Clock(monkeypatch, look_seconds=1e-12)
    monkeypatch.setattr(trials, "SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(trials, "LARGEST_ERROR", np.inf)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_warnings()

    def made(*engines):
        device = EnginesDevice(list(engines), monkeypatch)
        monkeypatch.setitem(devices._resolved, "host", device)
        known, identity = shipped("host"), device.identity()
        a_result = 2 * 4 * 9 * 8  # flops, of 32 channels
        lines = {
            key: Line(1e-6 / a_result, 0.0) if key.startswith("convolution") else line
            for key, line in known.compute.lines.items()
        }
        told = dataclasses.replace(known, compute=ComputeModel(lines), identity=identity)
        told.save(machine_path(identity))
        ooc_cudnn.settings(machine=None, memory_limit=2**19)
        return device

    return made
