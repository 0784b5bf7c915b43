"""The paper's figures come out of plans for its Tesla P100 that are replayed on a virtual clock."""

import dataclasses

import pytest

from benchmarks.paper_figures import CHANNEL_GFLOPS, FUSED_OVER_UNFUSED, TABLE_4, Size
from ooc_cudnn.call_planner.planner import make_plan
from ooc_cudnn.functions.call.plan_api import plan_request
from ooc_cudnn.pipeline.simulate import simulate
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.units import resolve_limit
from perfmodel import shipped

#: How far a figure may be off the paper's.
WITHIN = 0.08
FUSED = "convolution_add_activation_forward"


def operands(size, *, features_on_host):
    """Filters, then features: each on the device if it fits what is left of nine tenths of it."""
    room = int(resolve_limit(None, shipped("p100").device_bytes))
    c, features = size.channels, (size.n, size.channels, size.height, size.width)
    specs = []
    for shape in ((c, c, 3, 3), (c,), features, features):
        spec = TensorSpec(shape)
        if spec.nbytes <= room and not (features_on_host and shape == features):
            spec = dataclasses.replace(spec, placement="device")
            room -= spec.nbytes
        specs.append(spec)
    return *specs, room


def replayed(function, room, **arguments):
    request = plan_request(function, machine="p100", memory_limit=room, **arguments)
    plan = make_plan(request)
    return plan, simulate(request, plan).seconds


def gflops(size, *, features_on_host=True):
    w, _, x, y, room = operands(size, features_on_host=features_on_host)
    plan, seconds = replayed("convolution_forward", room, x=x, w=w, out=y, padding=1)
    flops = 2 * size.n * size.channels**2 * 9 * size.height * size.width
    assert plan.device_bytes <= room
    return flops / seconds / 1e9, [spec.placement for _, spec in plan.operands]


def fused_ratio(size):
    w, b, x, y, room = operands(size, features_on_host=True)
    _, fused = replayed(FUSED, room, x=x, w=w, b=b, out=y, padding=1, activation="relu")
    three = (
        replayed("convolution_forward", room, x=x, w=w, out=y, padding=1),
        replayed("add_tensor", room, b=b, y=y),
        replayed("activation_forward", room, x=y, out=y, mode="relu"),
    )
    return fused / sum(seconds for _, seconds in three)


@pytest.mark.parametrize(("size", "paper"), TABLE_4.items())
def test_table_4(size, paper):
    simulated, placements = gflops(size)
    assert simulated == pytest.approx(paper, rel=WITHIN)
    assert placements == ["pinned", "device", "pinned"]


@pytest.mark.parametrize(
    ("channels", "on_host", "paper"),
    [(64, 0, CHANNEL_GFLOPS.least), (2048, 1, CHANNEL_GFLOPS.most), (4096, 2, CHANNEL_GFLOPS.most)],
)
def test_figure_9(channels, on_host, paper):
    simulated, placements = gflops(Size(1, channels, 1024, 1024), features_on_host=False)
    assert placements.count("pinned") == on_host
    assert simulated == pytest.approx(paper, rel=WITHIN)


def test_fusing_saves_what_the_paper_saves():
    held = fused_ratio(Size(1, 256, 1024, 1024))
    assert held == pytest.approx(FUSED_OVER_UNFUSED, rel=WITHIN)
    # three passes over the link become one
    assert fused_ratio(Size(512, 64, 256, 256)) == pytest.approx(1 / 3, rel=0.01)
