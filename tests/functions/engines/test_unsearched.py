"""Engines of a version of cuDNN that nobody has searched: each is checked before it is used."""

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices import engine_check_database
from ooc_cudnn.devices.cuda import convolutions
from ooc_cudnn.devices.engine_check_database import forget_verdicts, verdicts_of, verdicts_path
from ooc_cudnn.devices.engine_verdicts import Verdict
from ooc_cudnn.devices.tuning_database import forget_tables
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from ooc_cudnn.pipeline import check_engines
from ooc_cudnn.warnings_once import forget_warnings
from tests.network.runtime.test_engine_tuning import QUICK, inputs, network
from tests.support.fake_cudnn import BehaviorNote, FakeEngine
from tests.support.told import labels_told
from tests.support.tuned import KIB, call, planned, tuned

UNSEARCHED = 92800
BARRED = r"engine eng100 of cuDNN 9\.28\.0 computes wrong results.*the next one is taken"
GEOMETRY = {"padding": ((1, 0), (0, 1)), "groups": 2, "stride": 2}
FORWARD = Convolution.of((3, 4, 17, 16), (6, 2, 3, 3), **GEOMETRY)


def off(found, expected):
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def computed(random, function, **changed):
    """How far a function with padding on one side, groups and strides is from float64."""
    geometry = GEOMETRY | changed
    x = random.standard_normal(FORWARD.x_shape, "f4")
    w = random.standard_normal(FORWARD.w_shape, "f4")
    forward = Convolution.of(x.shape, w.shape, **geometry)
    dy = random.standard_normal(forward.output_shape, "f4")
    if function == "forward":
        return off(ooc_cudnn.convolution_forward(x, w, **geometry), forward.reference(x, w))
    if function == "fused":
        b = random.standard_normal(6, "f4")
        y = ooc_cudnn.convolution_add_activation_forward(x, w, b, **geometry)
        return off(y, np.maximum(forward.reference(x, w) + b.reshape(1, -1, 1, 1), 0.0))
    if function == "data":
        dx = ooc_cudnn.convolution_backward_data(w, dy, input_shape=x.shape, **geometry)
        return off(dx, ConvolutionBackwardData(forward, "float32").reference(w, dy))
    dw = ooc_cudnn.convolution_backward_filter(x, dy, filter_shape=w.shape, **geometry)
    return off(dw, ConvolutionBackwardFilter(forward, "float32").reference(x, dy))


def another_process():
    """What was not stored is gone."""
    forget_verdicts()
    forget_calls()
    forget_tables()


@pytest.mark.parametrize("function", ["forward", "fused", "data", "filter"])
def test_an_engine_that_is_wrong_where_padding_is_uneven_is_barred(make, random, function):
    wrong, right = FakeEngine(100, 1e-8, uneven_error=0.1), FakeEngine(101, 2e-8)
    make(wrong, right, version=UNSEARCHED)
    with pytest.warns(UserWarning, match=BARRED):
        assert computed(random, function) < 1e-5
    launched = wrong.launched
    assert computed(random, function) < 1e-5  # and it is said once
    assert wrong.launched == launched
    assert right.launched > 0


def test_it_is_still_used_where_it_is_right(make, random):
    wrong, right = FakeEngine(100, 1e-8, uneven_error=0.1), FakeEngine(101, 2e-8)
    make(wrong, right, version=UNSEARCHED)
    assert computed(random, "forward", padding=1) < 1e-5
    assert right.launched == 0


def test_each_engine_is_checked_once_for_a_kind(make, random, monkeypatch):
    """Not for each size of it, nor in later processes."""
    engine = FakeEngine(100, 1e-8)
    device = make(engine, version=UNSEARCHED)
    judged = []
    judge = device.convolutions.judge
    monkeypatch.setattr(
        device.convolutions, "judge", lambda *told: judged.append(told[0].kind) or judge(*told)
    )
    assert call(random) < 1e-6
    assert len(judged) == 1
    for _ in range(2):
        assert call(random) < 1e-6
        x = random.standard_normal((4, 6, 20, 24), "f4")
        w = random.standard_normal((9, 6, 2, 3), "f4")
        ooc_cudnn.convolution_forward(x, w, padding=(0, 1))
        another_process()
    assert len(judged) == 1
    computed(random, "forward")
    computed(random, "data")
    assert len(set(judged)) == len(judged) == 3


def test_nothing_is_checked_on_a_searched_version(make, random):
    engine = FakeEngine(100, 1e-8, uneven_error=0.1)
    device = make(engine)
    assert device.engines.known_by is None
    assert computed(random, "forward") > 0.01
    assert not verdicts_path(device).exists()


def test_verdicts_are_of_one_cudnn_one_card_and_one_version_of_the_library(
    make, random, monkeypatch
):
    wrong, right = FakeEngine(100, 1e-8, uneven_error=0.1), FakeEngine(101, 2e-8)
    device = make(wrong, right, version=UNSEARCHED)
    with pytest.warns(UserWarning, match=BARRED):
        computed(random, "forward")
    paths = {verdicts_path(device)}
    launched = wrong.launched
    another_process()
    make(wrong, right, version=UNSEARCHED)
    assert computed(random, "forward") < 1e-5
    assert wrong.launched == launched
    for change in ("cudnn", "gpu", "library"):
        device = make(wrong, right, version=UNSEARCHED + (change == "cudnn"))
        if change == "gpu":
            device.told["gpu"] = "Fake 9001"
        if change == "library":
            monkeypatch.setattr(engine_check_database, "__version__", "0.2.0")
        paths.add(verdicts_path(device))
        another_process()
        forget_warnings()
        with ooc_cudnn.settings(machine="host"), pytest.warns(UserWarning, match="engine eng100"):
            assert computed(random, "forward") < 1e-5
    assert len(paths) == 4


def test_an_engine_that_was_measured_is_checked_too(make, random):
    """Tuning checks at one size, and what it stored may be of another process."""
    fast = FakeEngine(100, 1e-6, 8 * KIB)
    make(fast, FakeEngine(101, 3e-6), version=UNSEARCHED)
    tuned()
    assert planned().algorithms == ("eng100 (measured)",)
    fast.error = 0.1
    with pytest.warns(UserWarning, match=BARRED):
        assert call(random) < 1e-6
    assert planned().algorithms == ("eng101 (measured)",)


def test_an_engine_that_fails_is_barred(make, random):
    make(FakeEngine(100, 1e-6, fails=True), FakeEngine(101, 3e-6), version=UNSEARCHED)
    with pytest.warns(UserWarning, match=rf"{BARRED}.*it fails"):
        assert call(random, deterministic=True) < 1e-6


def test_a_result_that_is_not_finite_is_wrong(make, random):
    device = make(FakeEngine(100, 1e-6, error=np.nan), FakeEngine(101, 3e-6), version=UNSEARCHED)
    with pytest.warns(UserWarning, match=rf"{BARRED}.*not finite"):
        assert call(random) < 1e-6
    another_process()
    assert [v.is_right for _, v in verdicts_of(device).items()] == [False, True]


def test_where_all_engines_are_wrong_the_librarys_own_kernel_computes(make, random, monkeypatch):
    def direct(operation, asked):
        from ooc_cudnn.devices.host.device import _array

        inputs = [_array(view) for view in asked.inputs]
        _array(asked.output)[...] = operation.reference(*inputs)

    monkeypatch.setattr(convolutions.convolution_direct, "run", direct)
    make(FakeEngine(100, 1e-6, error=0.1), version=UNSEARCHED)
    with pytest.warns(UserWarning, match=BARRED):
        assert call(random) < 1e-6


def test_an_engine_that_cannot_be_checked_is_the_last_that_is_taken(make, random):
    """It computes no problem that is small enough."""
    many, right = FakeEngine(100, 1e-8, least_images=64), FakeEngine(101, 3e-8)
    x = random.standard_normal((64, 4, 16, 16), "f4")
    w = random.standard_normal((4, 4, 3, 3), "f4")
    expected = Convolution.of(x.shape, w.shape, padding=1).reference(x, w)
    for engines, taken in (((many, right), right), ((many,), many)):
        device = make(*engines, version=UNSEARCHED)
        another_process()
        before = many.launched
        with ooc_cudnn.settings(memory_limit=2**23):
            assert off(ooc_cudnn.convolution_forward(x, w, padding=1), expected) < 1e-5
        assert (many.launched > before) == (taken is many)
        assert Verdict(None) in [verdict for _, verdict in verdicts_of(device).items()]


def test_without_room_it_is_checked_another_time(make, random, monkeypatch):
    device = make(FakeEngine(100, 1e-8), version=UNSEARCHED)
    x, w = random.standard_normal((1, 1, 3, 3), "f4"), random.standard_normal((1, 1, 3, 3), "f4")
    with monkeypatch.context() as at:
        at.setattr(check_engines, "compute", lambda *_: None)
        with pytest.warns(UserWarning, match=r"no room to check engine eng100 .*doctor --engines"):
            ooc_cudnn.convolution_forward(x, w)
        assert verdicts_of(device).items() == []
        ooc_cudnn.convolution_forward(x, w)
    forget_calls()
    ooc_cudnn.convolution_forward(x, w)
    assert [verdict.is_right for _, verdict in verdicts_of(device).items()] == [True]


def test_where_there_is_no_room_for_the_problem_of_the_kind_a_piece_is_enough(make, random):
    wrong, right = FakeEngine(100, 1e-8, uneven_error=0.1), FakeEngine(101, 2e-8)
    device = make(wrong, right, version=UNSEARCHED)
    with ooc_cudnn.settings(memory_limit=12 * KIB), pytest.warns(UserWarning, match=BARRED):
        assert computed(random, "forward") < 1e-5
    assert device.arena.peak_bytes <= 12 * KIB


@pytest.mark.parametrize("limit", [2**19, 48 * KIB])
def test_a_step_of_a_network_is_computed_by_right_engines(make, random, limit):
    """Cut along rows, its pieces have padding on one side."""
    net, loss = network()
    given = inputs(random, net)
    found = []
    for version in (91900, UNSEARCHED):
        error = 0.1 if version == UNSEARCHED else 0.0
        engines = FakeEngine(100, 1e-8, error=error or 1e-8), FakeEngine(101, 2e-8)
        make(*engines, version=version)
        with ooc_cudnn.settings(memory_limit=limit, allow_tf32=False):
            step = net.training_step(loss, **QUICK)
            if version == UNSEARCHED:
                with pytest.warns(UserWarning, match=BARRED):
                    value = step(**given)
            else:
                value = step(**given)
            found.append((value, dict(step.gradients)))
    (value, gradients), (again, same) = found
    np.testing.assert_allclose(again, value, rtol=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(same[name], gradient, rtol=1e-4, atol=1e-6)


def test_after_a_search_what_is_compiled_at_run_time_alone_is_checked(make, random):
    """The search leaves it out: each takes a second."""
    plain = FakeEngine(100, 1e-8, uneven_error=0.1)
    compiled = FakeEngine(100, 1e-8, uneven_error=0.1, behavior=(BehaviorNote.RUNTIME_COMPILATION,))
    for engine, error in ((plain, 0.01), (compiled, 0.0)):
        device = make(engine, FakeEngine(101, 2e-8), version=UNSEARCHED)
        another_process()
        verdicts_of(device).finish_search()
        if error:
            assert computed(random, "forward") > error
        else:
            with pytest.warns(UserWarning, match=BARRED):
                assert computed(random, "forward") < 1e-5


def test_checking_and_measuring_are_told_of(make, random, monkeypatch):
    make(FakeEngine(100, 1e-8), FakeEngine(101, 2e-8), version=UNSEARCHED)
    told = labels_told(monkeypatch)
    tables = []
    with ooc_cudnn.settings(progress="auto"):
        call(random)
        assert any(label.startswith("checking engine ") for label in told)
        tuned(tell=tables.append)
    assert "measuring engines" in told
    assert tables
