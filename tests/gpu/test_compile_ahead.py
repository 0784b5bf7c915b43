"""A first step compiles its kernels side by side before it launches any."""

from __future__ import annotations

import threading

import numpy as np

import ooc_cudnn
from ooc_cudnn.devices.kernels import compiling, launch


def test_a_first_step_compiles_ahead(cuda_device, random, monkeypatch):
    net = ooc_cudnn.Network(seed=1)
    h = net.input("images", (4, 8, 20, 20))
    for _ in range(2):
        h = net.activation(net.batch_normalization(net.convolution(h, 16, window=3, padding=1)))
    h = net.linear(net.global_average(net.pooling(h, window=2)), 10)
    loss = net.softmax_cross_entropy(h, net.input("labels", (4,), "int64"))
    inputs = {
        "images": random.standard_normal((4, 8, 20, 20), "f4"),
        "labels": random.integers(0, 10, 4),
    }
    known, compiled = {}, []
    function = compiling.function

    def noted(device, source, expression, struct_bytes=0):
        if not compiling.is_compiled(device, source, expression):
            compiled.append((source, expression, threading.current_thread()))
        return function(device, source, expression, struct_bytes)

    monkeypatch.setattr(compiling, "function", noted)
    monkeypatch.setattr(compiling, "_compiled", known)
    monkeypatch.setattr(launch, "_prepared", {})
    with ooc_cudnn.settings(memory_limit="1GiB", progress=False):
        step = net.training_step(loss)
        first = step(**inputs)
        beside = [name for *name, thread in compiled if thread is not threading.main_thread()]
        assert len(beside) > 5
        assert len(compiled) - len(beside) <= 3, "copies of what cuDNN wants otherwise"
        assert np.isclose(step(**inputs), first)
