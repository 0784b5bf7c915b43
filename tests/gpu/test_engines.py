"""Engines measured on the card: what is tuned is right, is used, and is read again.

Each problem takes seconds: every engine id of cuDNN is built and launched.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.call_planner.planner import distinct_launches
from ooc_cudnn.devices.engines import Engine, Measurement, Option
from ooc_cudnn.devices.tuning_database import engines_path, forget_tables, tables_of
from ooc_cudnn.engines.accuracy import Checks
from ooc_cudnn.functions.tune.tune import tune
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    AnyConvolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from ooc_cudnn.pipeline.exactness import ExpectedResult, compute
from ooc_cudnn.pipeline.program import Task
from ooc_cudnn.tensor import TensorSpec

X, W = (16, 64, 32, 32), (64, 64, 3, 3)
FORWARD = Convolution.of(X, W, padding=1)
#: The function, what it takes, and what it is to make.
PROBLEMS = {
    "forward": ({"x": X, "w": W}, FORWARD),
    "backward_data": ({"w": W, "dy": X}, ConvolutionBackwardData(FORWARD, "float32")),
    "backward_filter": ({"x": X, "dy": X}, ConvolutionBackwardFilter(FORWARD, "float32")),
}
SHAPES = {"backward_data": {"input_shape": X}, "backward_filter": {"filter_shape": W}}
#: Largest errors of results, as a share of the largest.
ERRORS = {"tf32": 3e-3, "strict": 5e-6}


@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize("direction", PROBLEMS)
def test_tuned_engines_are_right_and_used(cuda_device, random, direction, precision):
    shapes, operation = PROBLEMS[direction]
    function, options = f"convolution_{direction}", {**SHAPES.get(direction, {}), "padding": 1}
    with ooc_cudnn.settings(allow_tf32=precision == "tf32"):
        specs = {name: TensorSpec(shape, placement="pinned") for name, shape in shapes.items()}
        found = tune(function, memory_limit="1GiB", **specs, **options)
        assert found
        for measured in found:
            for option in measured.options:
                print(measured.work.kind, option)
                assert 0 < option.error < ERRORS[precision]
        arrays = [random.standard_normal(shape, "f4") for shape in shapes.values()]
        expected = operation.reference(*arrays)
        for limit in ("1GiB", "12MiB", "4MiB"):  # whole, by images, and by rows
            with ooc_cudnn.settings(memory_limit=limit), ooc_cudnn.profile() as seen:
                result = getattr(ooc_cudnn, function)(*arrays, **options)
            error = np.abs(result - expected).max() / np.abs(expected).max()
            assert error < ERRORS[precision], (limit, seen.calls[0].plan.algorithms)
            if limit == "1GiB":
                assert any("measured" in name for name in seen.calls[0].plan.algorithms)
    assert engines_path(cuda_device).exists()
    known = set(tables_of(cuda_device))
    forget_tables()
    assert set(tables_of(cuda_device)) == known


def test_an_engine_that_cannot_is_passed_over(cuda_device, random):
    """No engine has that number: cuDNN's heuristics choose."""
    operation = Convolution.of(X, W, padding=1, allow_tf32=False)
    option = Option(1e-6, 0, Engine(9999), "eng9999", 1e-7)
    tables_of(cuda_device).add(Measurement(operation.work(), (option,), operation))
    with ooc_cudnn.settings(allow_tf32=False), ooc_cudnn.profile() as seen:
        x, w = random.standard_normal(X, "f4"), random.standard_normal(W, "f4")
        y = ooc_cudnn.convolution_forward(x, w, padding=1)
    assert not any("measured" in name for name in seen.calls[0].plan.algorithms)
    expected = operation.reference(x, w)
    assert np.abs(y - expected).max() < ERRORS["strict"] * np.abs(expected).max()


def is_one_without_engines(task, known):
    """Whether all engines that were measured are wrong with the padding of a task's pieces."""
    launches = distinct_launches(task.request, task.plan)
    operations = [launch.operation for launch, _ in launches]
    convolutions = [each for each in operations if isinstance(each, AnyConvolution)]
    return any(known.nearest(each) and not known.options(each) for each in convolutions)


@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize("machine", [None, "h200"])  # by measured seconds, or by a named machine's
@pytest.mark.filterwarnings("ignore:.*not calibrated|the machine model asked for")
def test_a_tuned_step_is_right_and_uses_its_engines(cuda_device, random, precision, machine):
    net = ooc_cudnn.Network(seed=1)
    h = net.input("images", (16, 3, 32, 32))
    for channels in (32, 64):
        h = net.activation(net.convolution(h, channels, window=3, padding=1))
    loss = net.softmax_cross_entropy(
        net.linear(net.global_average(h), 10), net.input("labels", (16,), "int64")
    )
    inputs = {
        "images": random.standard_normal((16, 3, 32, 32), "f4"),
        "labels": random.integers(0, 10, 16),
    }
    with ooc_cudnn.settings(allow_tf32=precision == "tf32", machine=machine, memory_limit="1GiB"):
        step = net.training_step(loss)
        value = step(**inputs)
        gradients = step.gradients
        found = step.tune(**inputs)
        assert found
        assert step(**inputs) == pytest.approx(value, rel=ERRORS[precision])
        (ready,) = step._ready.values()
        tasks = [item for item in ready.planned.lowered.program.items if isinstance(item, Task)]
        known = tables_of(cuda_device)
        for task in tasks:
            if task.name.startswith("convolution") and not is_one_without_engines(task, known):
                engines = [name for name in task.plan.algorithms if name.startswith("eng")]
                assert all(name.endswith("(measured)") for name in engines), task.name
        assert any("(measured)" in name for task in tasks for name in task.plan.algorithms)
        for name, gradient in gradients.items():
            largest = np.abs(gradient).max()
            assert np.abs(step.gradients[name] - gradient).max() <= 4 * ERRORS[precision] * largest
        assert step.tune(**inputs) == []


HALVES = {
    "maps": ((8, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
    "strided": ((8, 64, 28, 28), (128, 64, 3, 3), {"padding": 1, "stride": 2}),
    "linear": ((8, 256, 28, 28), (64, 256, 1, 1), {}),
    "volumes": ((2, 32, 12, 28, 28), (32, 32, 3, 3, 3), {"padding": 1}),
    "images": ((8, 3, 56, 56), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    "classes": ((8, 64, 56, 56), (2, 64, 1, 1), {}),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", HALVES)
def test_gradients_of_small_filters_are_split_and_right(cuda_device, name, dtype):
    """Engines set as no heuristics set them, and with channels of zeros; sums stay float32."""
    x, w, how = HALVES[name]
    forward = replace(Convolution.of(x, w, dtype=dtype, **how), layout="channels_last")
    operation = ConvolutionBackwardFilter(forward, "float32")
    engines = cuda_device.engines
    chosen = engines.chosen(operation)
    assert "SPLIT_K_SLC" in chosen.knobs
    assert chosen.form == {"images": "unfolded", "classes": "padded"}.get(name, "")
    found = engines.candidates(operation, every=False, compiled=False)
    split = [each for each in found if "SPLIT_K_SLC" in each.knobs]
    assert len(split) > 1
    with cuda_device.arena.lock:
        checks = Checks(cuda_device, engines, 2**30)
        found = {engine: checks.of(operation, engine, borders=True) for engine in split}
        # what splits the sum of a small problem too often computes none, and is not admitted by
        # `tune`: the choice must be right for the problem itself
        expected = ExpectedResult.of(operation)
        with engines.forced(operation, chosen) as built:
            result = compute(cuda_device, operation, expected.inputs, built[0], 2**30)
    assert expected.compared(result).relative < 1e-5
    for engine, errors in found.items():
        assert errors is None or errors.error.relative < 1e-5, engine
    engines.forget_built()
