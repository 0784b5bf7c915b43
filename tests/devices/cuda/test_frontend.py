"""The library on each version of cudnn-frontend that it is to run with."""

import re
from pathlib import Path

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.functions.tune import tune
from ooc_cudnn.operations.convolution.forward import Convolution
from tests.support import engines_device
from tests.support.fake_cudnn import FakeEngine
from tests.support.fake_frontends import VERSIONS, frontend
from tests.support.tuned import call, engines_maker, numbers, planned, tuned

PACKAGE = Path(ooc_cudnn.__file__).parent


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make the device with given engines, on a version of the frontend."""
    made = engines_maker(monkeypatch, tmp_path)

    def on(version, *engines):
        monkeypatch.setattr(
            engines_device, "fake_cudnn", lambda engines, **_: frontend(version, engines)
        )
        return made(*engines)

    return on


@pytest.mark.parametrize("version", VERSIONS)
def test_a_call_and_its_gradients(make, random, version):
    make(version, FakeEngine(100, 1e-6), FakeEngine(101, 2e-6))
    assert planned().algorithms == ("eng100",)
    assert call(random) < 1e-6
    x = random.standard_normal((2, 4, 9, 7), "f4")
    w = random.standard_normal((6, 2, 3, 2), "f4")
    geometry = {"padding": ((1, 0), (0, 1)), "stride": 2, "groups": 2}
    forward = Convolution.of(x.shape, w.shape, **geometry)
    y = ooc_cudnn.convolution_forward(x, w, **geometry)
    np.testing.assert_allclose(y, forward.reference(x, w), rtol=1e-4, atol=1e-5)
    b = random.standard_normal(6, "f4")
    y = ooc_cudnn.convolution_add_activation_forward(x, w, b, **geometry)
    expected = np.maximum(forward.reference(x, w) + b.reshape(1, -1, 1, 1), 0.0)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("version", ["1.28", "1.32"])
def test_engines_are_measured(make, version):
    make(version, FakeEngine(100, 3e-6), FakeEngine(101, 1e-6, 8 * 2**10))
    (measured,) = tuned()
    assert numbers(measured) == [101, 100]
    assert planned().algorithms == ("eng101 (measured)",)


def test_the_oldest_does_not_say_which_engines_there_are(make, random):
    make("1.16", FakeEngine(100, 3e-6))
    with pytest.raises(tune.NothingToTuneError, match=r"nvidia-cudnn-frontend 1\.28"):
        tuned()
    assert call(random) < 1e-6


@pytest.mark.parametrize("name", ["frost_conv[TILE_M=128]", "backend_heuristics"])
def test_engines_that_are_not_cudnns_are_passed_over(make, random, name):
    """Nobody has looked for their faults, and they are compiled by a stack of their own."""
    other = FakeEngine(20_800, 1e-7, plan_name=name)
    make("1.32", other, FakeEngine(100, 3e-6))
    assert planned().algorithms == ("eng100",)
    assert call(random) < 1e-6
    (measured,) = tuned()
    assert numbers(measured) == [100]
    assert other.launched == 0


def test_one_place_imports_it():
    """Where versions differ, one file has to know."""
    importing = re.compile(r"^\s*(?:import cudnn\b|from cudnn\b)|import_module\(\"cudnn\"", re.M)
    found = [p for p in PACKAGE.rglob("*.py") if importing.search(p.read_text(encoding="utf-8"))]
    assert found == []
