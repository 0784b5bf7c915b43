"""What a picture shows of a step is what its replay and its plan say."""

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.devices import get_device
from ooc_cudnn.engines.target import Target
from ooc_cudnn.functions.tune.rounds import NothingToTuneError
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.report.timeline import (
    CLASS_COLOURS,
    CLASSES,
    course_of,
    draw_step,
    figure_of,
)
from ooc_cudnn.network.search.plan_step import plan_step
from ooc_cudnn.plotting import STREAM_COLOURS
from perfmodel import shipped
from tests.support.colours import check_one_meaning_a_colour

#: Less than everything kept takes.
LIMIT = 2**21


@pytest.fixture
def made():
    net, loss = networks.vgg16(8, 64, classes=10, width=1 / 8)
    target = Target(shipped("titanx"), LIMIT, LIMIT, ("channels_first",), None, overlap=True)
    step = net.training_phases(loss)
    return plan_step("step", step, PlanConstraints(target, {}), policy="offload", micro_batches=1)


def test_memory_and_streams_over_a_step(made):
    course, plan = course_of(made), made.plan
    assert (np.diff(course.begins) >= 0).all()
    assert course.begins[-1] == plan.seconds
    assert course.held.sum(axis=0).max() <= plan.device_bytes
    assert course.held[CLASSES.index("offloaded maps")].any()
    assert not course.held[CLASSES.index("recomputed maps")].any()
    for stream, busy in (("copy_in", plan.copy_in_seconds), ("compute", plan.compute_seconds)):
        spans = [each.stop - each.start for each in course.spans if each.stream == stream]
        assert 0 < busy <= sum(spans) * (1 + 1e-9)
        assert max(each.stop for each in course.spans) <= plan.seconds * (1 + 1e-9)


def test_a_step_is_drawn_as_it_ran(tmp_path):
    pytest.importorskip("matplotlib")
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 8, 8))
    y = net.activation(net.convolution(x, 4, window=3, padding=1))
    loss = net.mean_squared_error(y, net.input("target", y.shape))
    given = {name: np.ones(net.graph.tensors[name].shape, "f4") for name in ("x", "target")}
    step = net.training_step(loss, memory_limit="64KiB")
    with pytest.raises(ValueError, match="has not run yet"):
        step.plot(tmp_path / "step.png")
    with ooc_cudnn.profile() as p:
        step(**given)
        ooc_cudnn.activation_forward(given["x"], mode="tanh")
    ran, other = p.calls
    made = step._prepared(get_device("host"), step._given(get_device("host"), given)).planned
    course = course_of(made, ran.trace)
    assert (np.diff(course.begins[1:]) >= 0).all()
    assert course.begins[-1] == max(each.stop_seconds for each in ran.steps)
    assert "measured" in course.title
    for stream in ("copy_in", "compute", "copy_out"):
        spans = [each.stop - each.start for each in course.spans if each.stream == stream]
        assert ran.trace.busy_seconds(stream) <= sum(spans) * (1 + 1e-9)
    with pytest.raises(NothingToTuneError):
        step.tune(**given)  # plans the step again: what ran is drawn all the same
    step.plot(tmp_path / "step.png", ran)
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="not one of this step"):
        step.plot(tmp_path / "step.png", other)
    with pytest.raises(TypeError, match=r"p\.calls"):
        step.plot(tmp_path / "step.png", p)


def test_a_step_is_drawn(made, tmp_path):
    pytest.importorskip("matplotlib")
    draw_step(made, tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    recomputed = {"recomputing": "recomputed", "recomputed maps": "recomputed"}
    figure = figure_of(course_of(made))
    check_one_meaning_a_colour(figure, lambda label: recomputed.get(label, label))
    colours = {colour for colours in STREAM_COLOURS.values() for colour in colours}
    assert not colours & set(CLASS_COLOURS.values())
    assert len(set(CLASS_COLOURS.values())) == len(CLASSES)
