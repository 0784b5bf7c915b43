"""A convolution with its bias and ReLU as one launch: its engines are measured as any other's."""

import dataclasses

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices.tuning_database import forget_tables, tables_of
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.functions.tune.tune import tune
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution
from ooc_cudnn.tensor import TensorSpec
from tests.support.fake_cudnn import FakeEngine
from tests.support.tuned import KIB, W, X

CALL = "convolution_add_activation_forward"
SPECS = {"x": X, "w": W, "b": TensorSpec((4,))}
ENGINES = FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * KIB)


@pytest.fixture
def device(make):
    """It computes with channels last."""
    made = make(*map(dataclasses.replace, ENGINES))
    made.layouts = lambda dtype: ("channels_last",)
    return made


def planned():
    forget_calls()
    return ooc_cudnn.plan(CALL, **SPECS, padding=1, activation="relu")


def called(random):
    """How far the call is from its reference."""
    x, w, b = (random.standard_normal(spec.shape, "f4") for spec in SPECS.values())
    y = getattr(ooc_cudnn, CALL)(x, w, b, padding=1, activation="relu")
    (launched,) = (each.operation for each in tables_of(ooc_cudnn.devices.get_device("host")))
    forward = dataclasses.replace(launched.forward, x_shape=X.shape)
    expected = FusedConvolution(forward, "relu").reference(x, w, b)
    return np.abs(y - expected).max() / np.abs(expected).max()


def test_its_engines_are_measured_stored_and_used(device, random):
    plan = planned()
    assert plan.algorithms == ("eng100, fused",)
    assert "eng100, fused" in plan.explain()
    (found,) = tune(CALL, **SPECS, padding=1, activation="relu")
    assert isinstance(found.operation, FusedConvolution)
    assert [option.engine.number for option in found.options] == [101, 100]
    forget_tables()
    (read,) = tables_of(device)
    assert read == dataclasses.replace(found, is_stored=True)
    tuned = planned()
    assert tuned.algorithms == ("eng101, fused (measured)",)
    assert tuned.compute_seconds == pytest.approx(plan.compute_seconds / 3, rel=0.1)
    assert called(random) < 1e-5


def test_what_no_engine_does_at_once_is_measured_alone(device):
    device.cudnn.fuses = False
    assert planned().algorithms == ("eng100",)
    (found,) = tune(CALL, **SPECS, padding=1, activation="relu")
    assert found.operation.name == "convolution_forward"
    assert planned().algorithms == ("eng101 (measured)",)
