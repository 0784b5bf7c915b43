"""What the table says of a split is what the replay of its very steps says."""

from dataclasses import replace

import pytest

from ooc_cudnn.call_planner.planner import make_plan
from ooc_cudnn.functions.call.plan_api import plan_request
from ooc_cudnn.pipeline.simulate import simulate
from ooc_cudnn.settings import settings
from ooc_cudnn.tensor import TensorSpec
from perfmodel import Split

IMAGE = TensorSpec((1, 64, 4096, 4096), placement="pinned")
FILTERS = TensorSpec((64, 64, 3, 3), placement="pinned")


@pytest.fixture(scope="module")
def request_():
    return plan_request(
        "convolution_forward", x=IMAGE, w=FILTERS, padding=1, out=IMAGE, machine="h200",
        memory_limit="1GiB",
    )  # fmt: skip


@pytest.mark.parametrize(
    "split",
    [
        Split(1, 16, 22, 171),  # three regions of x stay in three slots, for four passes
        Split(1, 8, 22, 171),
        Split(1, 4, 22, 86),
        Split(1, 16, 32, 171),  # two regions in three slots: half of the next come in meanwhile
        Split(1, 32, 64, 86),  # one region in three slots
        Split(1, 64, 64, 128),
    ],
)
def test_a_ring_full_of_what_stays_has_no_slot_to_copy_ahead(request_, split):
    plan = make_plan(request_, split=split)
    assert plan.seconds == pytest.approx(simulate(request_, plan).seconds, rel=0.08)


def test_the_first_result_leaves_when_its_sum_is_whole():
    image = TensorSpec((3, 64, 1024, 1024), placement="pinned")
    with settings(allow_tf32=False):
        request = plan_request(
            "convolution_forward", x=replace(image, placement="device"), out=image, padding=1,
            w=replace(FILTERS, placement="device"), machine="h200", memory_limit="2GiB",
        )  # fmt: skip
    for c_x in (64, 32, 8):
        plan = make_plan(request, split=Split(1, 64, c_x, 1024))
        assert plan.seconds == pytest.approx(simulate(request, plan).seconds, rel=0.02)
