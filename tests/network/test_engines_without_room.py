"""Phases whose fastest engine finds no room for its workspace: what runs was measured, too."""

from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices.engines import NO_TENSOR_CORES, Engine, Measurement, Option
from ooc_cudnn.devices.tuning_database import tables_of
from ooc_cudnn.engines.choose import SLOWER, slowness_of
from ooc_cudnn.engines.target import make_request
from ooc_cudnn.network.lowering.call_plans import CallKind
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.filter_gradient import FilterGradientCall
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import ConvolutionBackwardFilter
from ooc_cudnn.operations.elementwise.binary import AddTensor
from ooc_cudnn.tensor import TensorSpec, packed_strides
from tests.network.runtime.test_engine_tuning import QUICK, algorithms, inputs, network
from tests.support.fake_cudnn import FakeEngine, NumericalNote
from tests.support.tuned import KIB, engines_maker

FORWARD = Convolution.of((1, 8, 64, 64), (8, 8, 3, 3), padding=1)
#: As the layers of volumes have it: the fastest engine re-lays both operands in its workspace.
FASTEST, SPARING = (
    Option(1e-3, 512 * KIB, Engine(102), "eng102"),
    Option(9e-3, 0, Engine(101), "eng101"),
)
FIRST = Option(3e-3, 0, Engine(100), "eng100")


@pytest.fixture
def make(monkeypatch, tmp_path):
    return engines_maker(monkeypatch, tmp_path)


def measured(layout, *options):
    operation = ConvolutionBackwardFilter(replace(FORWARD, layout=layout), "float32")
    return Measurement(operation.work(), options, operation)


def planned(device, *tables, limit=2**20, call=None, lacking="", **told):
    """The plan of a call, or a filter gradient, on maps channels last, and how slow it is."""
    device.layouts = lambda dtype: ("channels_first", "channels_last")
    for each in tables:
        tables_of(device).add(each)
    call = call or FilterGradientCall(FORWARD)
    specs = {
        name: TensorSpec(
            operand.shape,
            placement="device",
            strides=packed_strides(operand.shape, "channels_last") if operand.shape[1:] else (),
        )
        for name, operand in call.operands.items()
    }
    net, loss = network()
    with ooc_cudnn.settings(memory_limit=limit, **told):
        target = constraints_for(None, None, net.training_step(loss)._step, {}).target
    request = make_request(
        "dw", call, specs, target.machine, limit, target.layouts, overlap=True,
        aligned=dict.fromkeys(specs, True),
    )  # fmt: skip
    request, plan = CallKind(request, target).plan("dw", limit)
    plan = replace(plan, algorithms=tuple(name + lacking for name in plan.algorithms))
    return plan, slowness_of(request, plan, target)


def test_with_room_the_fastest_engine_runs(make):
    device = make(
        *(FakeEngine(number, 1e-8) for number in (100, 101)), FakeEngine(102, 1e-8, 512 * KIB)
    )
    plan, slowness = planned(device, measured("channels_last", FASTEST, SPARING))
    assert (plan.layout, plan.algorithms) == ("channels_last", ("eng102 (measured)",))
    assert slowness == 1.0


@pytest.mark.parametrize("sparing", [(SPARING,), ()])
def test_an_order_that_was_not_measured_is_not_preferred(make, sparing):
    """On an H100, 422 ms were taken where a machine's line said 6, and 6.5 were measured."""
    engines = FakeEngine(100, 1e-8), FakeEngine(101, 1e-8), FakeEngine(102, 1e-8, 512 * KIB)
    device = make(*engines, free="tf32/channels_first/backward_filter")
    plan, _ = planned(device, measured("channels_last", FASTEST, *sparing), limit=400 * KIB)
    assert plan.layout == "channels_last"
    assert plan.algorithms == (("eng101 (measured)",) if sparing else ("eng100",))


def test_without_room_the_order_that_is_measured_to_be_faster_is_taken(make):
    """Not the one whose fastest engine would be, and what it takes is said to be."""
    device = make(
        *(FakeEngine(number, 1e-8) for number in (100, 101)), FakeEngine(102, 1e-8, 512 * KIB)
    )
    tables = measured("channels_last", FASTEST, SPARING), measured("channels_first", FIRST)
    plan, slowness = planned(device, *tables, limit=400 * KIB)
    assert (plan.layout, plan.algorithms) == ("channels_first", ("eng100 (measured)",))
    assert slowness == 1.0


def test_without_room_a_plan_takes_as_long_as_its_engine(make):
    device = make(
        *(FakeEngine(number, 1e-8) for number in (100, 101)), FakeEngine(102, 1e-8, 512 * KIB)
    )
    plan, slowness = planned(device, measured("channels_last", FASTEST, SPARING), limit=200 * KIB)
    assert plan.algorithms == ("eng101 (measured)",)
    assert slowness == pytest.approx(9.0, rel=0.01)


@pytest.mark.parametrize("images", [1, 8])
@pytest.mark.parametrize("launch_seconds", [0.0, 2e-3])
def test_without_room_for_the_whole_it_is_cut(make, images, launch_seconds):
    """On an H200, a data gradient of one volume took 420 ms in one piece, and 7.5 in 32 of rows.

    Pieces are taken that cost more to launch, too, where the engine for the whole costs far more.
    """
    device = make(
        FakeEngine(101, 1e-8), FakeEngine(102, 1e-8, workspace_of_row=8 * KIB),
        launch_seconds=launch_seconds,
    )  # fmt: skip
    whole = replace(FORWARD, x_shape=(images, 8, 64, 64), layout="channels_last")
    options = (
        Option(0.033 * images, 512 * KIB * images, Engine(102), "eng102"),
        Option(1.6 * images, 0, Engine(101), "eng101"),
    )
    plan, slowness = planned(
        device, Measurement(whole.work(), options, whole), limit=300 * KIB,
        call=Chain((replace(whole, layout="channels_first"),), "float32"),
    )  # fmt: skip
    assert plan.algorithms == ("eng102 (measured)",)
    assert plan.pieces > images
    assert slowness == 1.0


def test_a_part_that_was_measured_to_be_faster_is_taken_along_rows(make):
    """What the heuristics choose for the whole may be 50 times as slow as what they do for less."""
    device = make(FakeEngine(101, 1e-8))
    whole = replace(FORWARD, layout="channels_last")
    part = replace(whole, x_shape=(1, 8, 8, 64))
    tables = (
        Measurement(each.work(), (Option(seconds, 0, Engine(101), "eng101"),), each)
        for each, seconds in ((whole, 1.6), (part, 0.004))
    )
    plan, _ = planned(device, *tables, call=Chain((FORWARD,), "float32"))
    assert plan.pieces > 1
    assert plan.compute_seconds < 0.1


def test_a_fused_launch_is_priced_by_its_convolution_alone_not_by_another_order(make):
    """On an H200, matrix products of a ViT were predicted 22 times too slow: channels first was."""
    device = make(FakeEngine(100, 1e-8))
    both = Chain((FORWARD, AddTensor((1, 8, 64, 64), "float32")), "float32")
    tables = (
        Measurement(operation.work(), (Option(seconds, 0, Engine(100), "eng100"),), operation)
        for layout, seconds in (("channels_last", 0.03), ("channels_first", 0.7))
        for operation in (replace(FORWARD, layout=layout),)
    )
    plan, slowness = planned(device, *tables, call=both)
    assert (plan.layout, plan.algorithms) == ("channels_last", ("eng100, fused",))
    assert plan.compute_seconds < 0.05
    assert slowness == pytest.approx(1.0, rel=0.01)


def test_a_step_is_predicted_by_the_engines_that_it_has_room_for(make, random):
    make(FakeEngine(100, 3e-5), FakeEngine(101, 1e-5, 400 * KIB))
    net, loss = network()
    given, seconds = inputs(random, net), []
    for limit, number in ((2**20, 101), (256 * KIB, 100)):
        with ooc_cudnn.settings(memory_limit=limit):
            step = net.training_step(loss, **QUICK)
            if number == 101:
                step.tune(**given)
            step(**given)
        assert algorithms(step) == {f"eng{number} (measured)"}
        seconds.append(step.plan.compute_seconds)
    assert seconds[1] == pytest.approx(3.0 * seconds[0], rel=0.2)


TENSOR_CORES = (NumericalNote.TENSOR_CORE,)


@pytest.mark.parametrize("notes", [TENSOR_CORES, ()])
@pytest.mark.parametrize("limit", [2**20, 400 * KIB])
@pytest.mark.parametrize("told", [{}, {"machine": "h200"}])
def test_without_tensor_cores_for_want_of_workspace_it_is_slow(make, notes, limit, told):
    """Where none has them, as in strict float32, nothing says that more room would help."""
    device = make(FakeEngine(102, 1e-8, 512 * KIB, notes=notes), FakeEngine(101, 1e-8))
    plan, slowness = planned(device, limit=limit, **told)
    if limit == 2**20:
        assert (plan.algorithms, slowness) == (("eng102",), 1.0)
    elif notes:
        assert plan.algorithms == ("eng101, no tensor cores",)
        assert slowness == SLOWER[NO_TENSOR_CORES]
    else:
        assert (plan.algorithms, slowness) == (("eng101",), 1.0)


@pytest.mark.parametrize("slower", SLOWER.items())
def test_what_lacks_for_want_of_workspace_is_slow(make, slower):
    """On an H200, gradients in slabs of R3D-18 that were not split took 1.5 to 2.4 ms, not 0.45."""
    lacking, times = slower
    plan, slowness = planned(make(FakeEngine(100, 1e-8)), lacking=lacking)
    assert plan.algorithms == (f"eng100{lacking}",)
    assert slowness == times


@pytest.mark.parametrize("told", [{}, {"deterministic": True}])
def test_it_is_cut_where_pieces_have_room_for_tensor_cores(make, told):
    """On an H200, twelve launches of nnU-Net took 2.6 s in 54 KiB of workspace, or none.

    Plans that do not depend on timings know it, too.
    """
    device = make(
        FakeEngine(102, 1e-8, workspace_of_row=8 * KIB, notes=TENSOR_CORES), FakeEngine(101, 1e-8)
    )
    whole = replace(FORWARD, x_shape=(8, 8, 64, 64), layout="channels_last")
    call = Chain((replace(whole, layout="channels_first"),), "float32")
    plan, slowness = planned(device, limit=300 * KIB, call=call, **told)
    assert plan.algorithms == ("eng102",)
    assert plan.pieces > 8
    assert slowness == 1.0


@pytest.mark.parametrize(("times", "number"), [(3, 100), (30, 101)])
def test_tensors_make_room_for_an_engine_that_is_far_faster(make, random, times, number):
    """On an H200, maps that were kept beside it left a data gradient 54 KiB: 420 ms, not 7.5."""
    make(FakeEngine(100, times * 1e-6), FakeEngine(101, 1e-6, 400 * KIB))
    net, loss = network()
    given = inputs(random, net)
    with ooc_cudnn.settings(memory_limit=2**20):
        step = net.training_step(loss, **QUICK)
        step.tune(**given)
        step(**given)
        expected = {name: np.array(each) for name, each in step.gradients.items()}
    assert algorithms(step) == {"eng101 (measured)"}
    with ooc_cudnn.settings(memory_limit=420 * KIB):
        step = net.training_step(loss, **QUICK)
        step(**given)
    assert f"eng{number} (measured)" in algorithms(step)
    left = step.plan.bytes_out - KIB - sum(each.nbytes for each in expected.values())
    assert (left > 0) == (number == 101)
    for name, gradient in expected.items():
        np.testing.assert_allclose(step.gradients[name], gradient, rtol=1e-4, atol=1e-6)
