"""Engines that are checked before they are used, on a card, as if nobody had searched its cuDNN."""

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices import engine_verdicts, get_device
from ooc_cudnn.devices.engine_check_database import forget_verdicts, verdicts_of, verdicts_path
from ooc_cudnn.doctor.engine_search import SECONDS, search_engines, searched_kinds
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import AddedBackwardData

cp = pytest.importorskip("cupy")


@pytest.fixture
def device(monkeypatch, tmp_path):
    """The card, with a cuDNN that nobody has searched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engine_verdicts, "SEARCHED", ())
    forget_verdicts()
    forget_calls()
    yield get_device("cuda")
    forget_verdicts()
    forget_calls()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_call_checks_what_it_uses_once(device, dtype):
    random = np.random.default_rng(0)
    x, w = random.standard_normal((4, 16, 33, 31)), random.standard_normal((24, 16, 3, 3))
    x, w = x.astype(dtype), w.astype(dtype)
    geometry = {"padding": ((1, 0), (0, 1)), "stride": 2}
    expected = Convolution.of(x.shape, w.shape, **geometry).reference(x, w)
    for _ in range(2):
        y = ooc_cudnn.convolution_forward(cp.asarray(x), cp.asarray(w), **geometry)
        assert abs(cp.asnumpy(y) - expected).max() < 2e-2 * abs(expected).max()
        found = verdicts_of(device).items()
        assert found
        assert any(verdict.is_right for _, verdict in found)
        written = verdicts_path(device).stat().st_mtime_ns
    forget_verdicts()
    forget_calls()
    ooc_cudnn.convolution_forward(cp.asarray(x), cp.asarray(w), **geometry)
    assert verdicts_path(device).stat().st_mtime_ns == written


def test_the_search_ends_in_time(device):
    found = search_engines(device, 2**28)
    assert found.left == 0
    assert found.seconds < SECONDS
    checked = {row.function for row in found.rows if row.checks}
    # all engines of an added gradient are compiled at run time: a call checks them
    searched = {kind.function for kind in searched_kinds()}
    assert checked | {AddedBackwardData.name} == searched
    assert verdicts_of(device).is_searched
