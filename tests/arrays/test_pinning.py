"""`pin`."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ooc_cudnn
from tests.support.points import Pressed


def test_pin():
    x = np.zeros((3, 4, 5), "f4")
    pinned = ooc_cudnn.pin(x.transpose(2, 0, 1))
    assert ooc_cudnn.placement(x) == "pinned"
    pinned.close()
    pinned.close()
    assert ooc_cudnn.placement(x) == "pageable"
    with ooc_cudnn.pin(x[::-1, :, ::-1]) as same:
        assert same.shape == x.shape
        assert ooc_cudnn.placement(x) == "pinned"
    with pytest.raises(ZeroDivisionError), ooc_cudnn.pin(x):
        1 / 0  # noqa: B018
    assert ooc_cudnn.placement(x) == "pageable"
    ooc_cudnn.pin(x)
    gc.collect()
    assert ooc_cudnn.placement(x) == "pageable"
    with pytest.raises(ValueError, match="without holes"):
        ooc_cudnn.pin(x[:, ::2])
    with pytest.raises(TypeError, match="NumPy array, not list"):
        ooc_cudnn.pin([1.0])


def test_pinning_twice_is_refused_and_keeps_the_first():
    array = np.zeros((4, 4), "f4")
    with ooc_cudnn.pin(array):
        with pytest.raises(ValueError, match="pinned already"):
            ooc_cudnn.pin(array)
        assert ooc_cudnn.placement(array) == "pinned"
    assert ooc_cudnn.placement(array) == "pageable"


def test_dropping_a_pin_runs_no_python():
    """Where Python code runs because an object is gone, Ctrl-C is swallowed."""
    pinned, other = ooc_cudnn.pin(np.zeros(9, "f4")), object()
    with Pressed() as of_another:
        other = None
    with Pressed() as of_a_pin:
        pinned = None
    assert pinned is other is None
    assert of_a_pin.visited == of_another.visited
