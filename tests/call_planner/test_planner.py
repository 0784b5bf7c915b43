"""The planner: limits, rings, workspace, pieces that are too large, what stays in place."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_cudnn.call_planner import planner
from ooc_cudnn.call_planner import request as limits
from ooc_cudnn.call_planner.axes import Axes
from ooc_cudnn.call_planner.search import Search
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.call.plan_api import plan_request
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.filter_gradient import FilterGradientCall
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.binary import AddTensor
from ooc_cudnn.tensor import TensorSpec, packed_strides
from perfmodel import Split, shipped
from tests.support.forced import Forced


def forced(x, w, *, limit=2**30, placement="pageable", dtype="float32", fused=False, **geometry):
    convolution = Convolution.of(x, w, dtype=dtype, **geometry)
    operations, shape = (convolution,), convolution.output_shape
    if fused:
        operations += (AddTensor(shape, dtype), Activation(shape, "relu", 0.0, dtype))
    chain = Chain(operations, dtype)
    specs = {name: TensorSpec(op.shape, dtype, placement) for name, op in chain.operands.items()}
    return Forced(chain, specs, limit=limit)


def test_everything_on_the_device_stays_there():
    plan = forced((8, 16, 32, 32), (16, 16, 3, 3), placement="device", padding=1).plan()
    assert plan.in_core
    assert (plan.bytes_in, plan.bytes_out, plan.pieces) == (0, 0, 1)
    assert plan.device_bytes == plan.workspace_bytes + -plan.workspace_bytes % 256


def test_all_that_fits_is_loaded_once():
    made = forced((8, 16, 32, 32), (16, 16, 3, 3), padding=1)
    plan = made.plan()
    sizes = {name: spec.nbytes for name, spec in plan.operands}
    assert plan.bytes_out == sizes["y"]
    assert sizes["x"] + sizes["w"] <= plan.bytes_in <= 1.3 * (sizes["x"] + sizes["w"])


@settings(max_examples=20)
@given(st.integers(256, 300_000), st.booleans())
def test_any_limit(limit, fused):
    made = forced((4, 12, 24, 20), (10, 12, 3, 3), limit=limit, padding=1, fused=fused)
    try:
        plan = made.plan()
    except PlanInfeasibleError as error:
        least = error.smallest_bytes
    else:
        assert plan.device_bytes <= limit
        least = plan.device_bytes
        # A plan for exactly this much exists, too: this one.
    made.limit = least
    assert made.plan().device_bytes <= least


def test_more_memory_is_never_predicted_slower():
    seconds = [
        forced((4, 12, 24, 20), (10, 12, 3, 3), limit=limit, padding=1).plan().seconds
        for limit in (4_000, 16_000, 64_000, 256_000, 10**7)
    ]
    for less, more in itertools.pairwise(seconds):
        assert more <= less * 1.001


def test_too_large_for_one_piece_whatever_the_memory():
    x = (1, 64, 4096, 8192)  # 2**31 elements
    plan = forced(x, (64, 64, 3, 3), limit=2**50, padding=1, placement="device").plan()
    elements = 64 * min(plan.split.h_y + 2, 4096) * 8192
    assert elements <= limits.LARGEST_PIECE_ELEMENTS
    assert plan.pieces > 1
    many = forced((200_000, 1, 2), (1, 1, 1), limit=2**50).plan()
    assert many.split.n <= limits.LARGEST_BATCH
    # no piece of a single image beside one of all others
    assert forced((2**16, 1, 2), (1, 1, 1), limit=2**50).plan().split.n in (2**15, 21846, 2**14)
    with pytest.raises(PlanInfeasibleError):
        forced(x, (64, 64, 3, 3), limit=2**50).plan(Split(n=1, c_y=64, c_x=64, h_y=4096))


def test_one_row_that_is_too_large_has_no_plan():
    made = forced((1, 1, 1, 2**31), (1, 1, 1, 1), limit=2**50)
    with pytest.raises(PlanInfeasibleError):
        made.plan()


class Workspace:
    """A device whose algorithms want much, or make do with little; it remembers what was asked."""

    def __init__(self, preferred, least):
        self.preferred, self.least, self.asked = preferred, least, []

    def __call__(self, launches, budget):
        self.asked.append(budget)
        if budget is None:
            return self.preferred, ("preferred",)
        if self.preferred <= budget:
            return self.preferred, ("preferred",)
        return (self.least, ("least",)) if self.least <= budget else None


@pytest.mark.parametrize("limit", [30_000, 100_000, 400_000])
def test_workspace_is_counted(limit):
    made = forced((4, 12, 24, 20), (10, 12, 3, 3), limit=limit, padding=1)
    preferred = planner.make_plan(made.request(), Workspace(10_000, 1_000))
    assert preferred.algorithms == ("preferred",)
    assert preferred.workspace_bytes == 10_000
    assert preferred.device_bytes <= limit
    assert ("workspace", 10_240) in preferred.memory
    without = planner.make_plan(made.request(), None)
    assert without.workspace_bytes == 0


def test_workspace_beyond_the_limit_gives_way_to_less():
    made = forced((4, 12, 24, 20), (10, 12, 3, 3), limit=30_000, padding=1)
    plan = planner.make_plan(made.request(), Workspace(10**9, 1_000))
    assert plan.algorithms == ("least",)
    assert plan.device_bytes <= 30_000
    with pytest.raises(PlanInfeasibleError):
        planner.make_plan(made.request(), Workspace(10**9, 10**9))


def test_what_lies_on_the_device_is_cut_for_its_workspace():
    """In place the whole takes no memory; it was cut into 65,536 pieces of one number each."""
    forward = Convolution.of((2, 256, 1), (256, 256, 1), dtype="float64")
    call = FilterGradientCall(forward)
    specs = {n: TensorSpec(op.shape, op.dtype, "device") for n, op in call.operands.items()}
    made = Forced(call, specs, limit=700_000)
    plan = planner.make_plan(made.request(), made.device.workspace)
    assert plan.device_bytes <= 700_000
    assert plan.pieces <= 128


@pytest.mark.parametrize(
    "workspace", [Workspace(5_000, 5_000), Workspace(10**6, 3_000), Workspace(0, 0)]
)
def test_the_least_limit_is_enough(workspace):
    made = forced((4, 12, 24, 20), (10, 12, 3, 3), limit=256, padding=1)
    with pytest.raises(PlanInfeasibleError) as caught:
        planner.make_plan(made.request(), workspace)
    made.limit = caught.value.smallest_bytes
    assert planner.make_plan(made.request(), workspace).device_bytes <= made.limit


def test_no_limit_above_the_least_is_too_small():
    """An engine whose workspace fits what is left, but not in whole blocks, hid the others."""

    def ask(launches, budget):
        """The engine of most workspace within a budget; None if that is none in whole blocks."""
        within = [size for size in (0, 300, 700, 5_000) if budget is None or size <= budget]
        best = max(within)
        fits = budget is None or align(best) <= budget
        return (best, (str(best),)) if fits else None

    made = forced((1, 1, 3, 3), (1, 1, 3, 3), limit=256, padding=1)
    with pytest.raises(PlanInfeasibleError) as caught:
        planner.make_plan(made.request(), ask)
    least = caught.value.smallest_bytes
    for limit in range(least, least + 2_000, 100):
        made.limit = limit
        assert planner.make_plan(made.request(), ask).device_bytes <= limit


@pytest.mark.parametrize(
    ("function", "given"),
    [
        # two channels of dy make one row of dx: all of them at once need no sums
        ("convolution_backward_data",
         {"w": (2, 1, 1, 3), "dy": (1, 2, 8, 3), "input_shape": (1, 1, 8, 999),
          "stride": (1, 498)}),
        # filter gradients are sums over the images
        ("convolution_add_activation_backward",
         {"x": (4, 6, 1, 9), "w": (66, 3, 3, 3), "y": (4, 66, 1, 3), "dy": (4, 66, 1, 3),
          "padding": (2, 0), "stride": (1, 3), "dilation": (2, 1), "groups": 2}),
    ],
)  # fmt: skip
def test_nothing_fits_below_the_least_limit_by_much(function, given):
    """What is summed over, whole: no room for sums beside it."""
    arrays = {n: TensorSpec(each) for n, each in given.items() if n in ("x", "w", "y", "dy")}
    made = plan_request(function, machine="h200", memory_limit=2**30, **{**given, **arrays})
    least = planner.smallest_bytes(made)
    plan = planner.make_plan(dataclasses.replace(made, memory_limit=least))
    assert plan.device_bytes <= least
    with pytest.raises(PlanInfeasibleError):
        planner.make_plan(dataclasses.replace(made, memory_limit=least - 1))


def test_only_whole_images_are_computed_on_in_place():
    made = forced((8, 16, 16, 16), (16, 16, 3, 3), placement="device", padding=1)
    rings = dict(made.plan(Split(n=2, c_y=16, c_x=16, h_y=16)).rings)
    assert rings == {"x": 0, "w": 0, "y": 0}
    rings = dict(made.plan(Split(n=8, c_y=16, c_x=16, h_y=4)).rings)
    assert rings["x"] > 0
    assert rings["y"] > 0
    assert rings["w"] == 0
    rings = dict(made.plan(Split(n=8, c_y=4, c_x=16, h_y=16)).rings)
    assert rings["x"] == 0
    assert rings["w"] > 0
    assert rings["y"] > 0


def test_rows_of_one_image_are_computed_on_in_place_where_channels_lie_last():
    """So are those of it that a call needs alone, as far as they begin on 16 bytes."""
    for channels, order, slots in ((4, "channels_last", 0), (4, "channels_first", 3),
                                   (3, "channels_last", 3)):  # fmt: skip
        given = {
            name: TensorSpec(shape, "float32", "device", packed_strides(shape, order))
            for name, shape in (("x", (1, channels, 16, 5)), ("out", (1, channels, 16, 5)))
        }
        w = TensorSpec((channels, channels, 3, 3), placement="device")
        made = plan_request("convolution_forward", **given, w=w, padding=1, machine="h200",
                            memory_limit=2**30)  # fmt: skip
        split = dataclasses.replace(made.chain.extents, h_y=4)
        plan = planner.make_plan(made, split=split)
        assert dict(plan.rings)["x"] == slots, (channels, order)


def test_rows_without_end_are_priced_quickly():
    """A window taller than many pieces, thousands of pieces: the classes stay few, and exact."""
    made = forced((1, 1, 3000, 4), (1, 1, 61, 1), padding=(30, 0))
    classes = Axes(made.request()).classes("h_y", 1, True)
    assert sum(found.times for found in classes) == 3000
    assert len(classes) == 61
    search = Search(made.request(), "channels_first")
    (priced,) = search.prices([Split(n=1, c_y=1, c_x=1, h_y=1)], 2**30)
    assert dict(priced.memory)["x: 3 slots"] == 3 * align(61 * 4 * 4)


@pytest.mark.parametrize("order", ["channels_first", "channels_last"])
def test_what_is_gathered_is_cut_along_images_and_not_into_narrow_rows(order):
    """Rows of 56 bytes of plain memory take a dozen times as long to gather as whole images."""
    strides = packed_strides((4723, 256, 14, 14), order)
    x = TensorSpec((4723, 256, 14, 14), "float32", "pageable", strides)
    w = TensorSpec((256, 256, 1, 1), placement="device")
    found = plan_request("convolution_forward", x=x, w=w, out=x, machine="h200",
                         memory_limit="145MiB")  # fmt: skip
    plan = planner.make_plan(found)
    # channels last a few rows of an image are kilobytes in a row, channels first some channels are
    assert plan.split.h_y == 14 or order == "channels_last"
    assert plan.split.c_y == 256 or order == "channels_first"
    assert plan.split.c_y * 14 * 14 * 4 >= 2**15
    assert plan.split.c_x == 256


@pytest.mark.parametrize("workspace_bytes", [0, 2**10, 2**16, 2**24])
def test_limits_that_workspace_leaves_nothing_of_are_told_and_nothing_warns(workspace_bytes):
    def ask(launches, budget):
        return None if budget is not None and budget < workspace_bytes else (workspace_bytes, ())

    x = TensorSpec((1, 64, 64, 64), placement="pageable")
    w = TensorSpec((64, 64, 3, 3), placement="pageable")
    for limit in (1000, 2048, 50_000, 70_000, 10**6):
        request = plan_request("convolution_forward", x=x, w=w, machine="h200", memory_limit=10**9)
        request = dataclasses.replace(request, memory_limit=limit)
        try:
            needed, fits = planner.make_plan(request, ask).device_bytes, True
        except PlanInfeasibleError as error:
            needed, fits = error.smallest_bytes, False
        assert (needed <= limit) == fits


def test_a_plan_names_its_runners_up_at_their_price():
    made = forced((8, 16, 64, 64), (16, 16, 3, 3), limit=400_000, padding=1)
    request = made.request()
    plan = planner.make_plan(request)
    assert plan.alternatives
    for other in plan.alternatives:
        assert (other.split, other.layout) != (plan.split, plan.layout)
        assert other.device_bytes <= made.limit
        (priced,) = Search(request, other.layout).prices([other.split], made.limit)
        assert (priced.seconds, priced.memory_bytes) == (other.seconds, other.device_bytes)
    seconds = [other.seconds for other in plan.alternatives]
    assert seconds == sorted(seconds)
    # one piece of one element: there is no other
    alone = forced((1, 1, 1, 1), (1, 1, 1, 1), limit=2**20).request()
    assert {other.split for other in planner.make_plan(alone).alternatives} <= {Split(1, 1, 1, 1)}


def test_without_overlap_the_longest_stage_binds_and_nothing_is_lost_to_copies():
    machine = dataclasses.replace(shipped("h200"), losses={"copies": 0.25})
    x, w = TensorSpec((256, 204, 28, 28), placement="pinned"), TensorSpec((1024, 204, 3, 3))
    y = TensorSpec((256, 1024, 28, 28), placement="device")
    for overlap in (True, False):
        request = plan_request("convolution_forward", x=x, w=w, out=y, padding=1,
                               machine=machine, memory_limit="2GiB")  # fmt: skip
        request = dataclasses.replace(request, overlap=overlap)
        plan = planner.make_plan(request)
        assert plan.compute_seconds < plan.copy_in_seconds
        assert plan.binding_stage == ("compute" if overlap else "copy_in")
        stages = plan.copy_in_seconds + plan.compute_seconds + plan.copy_out_seconds
        assert overlap or plan.seconds == pytest.approx(stages, rel=0.1)
