"""The schedule, replayed by an independent simulator that trusts nothing it says."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ooc_cudnn.call_planner.planner import distinct_launches
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.core.call import AXES
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.binary import AddTensor
from ooc_cudnn.pipeline.loops import pieces
from ooc_cudnn.pipeline.schedule import plan_schedule
from ooc_cudnn.tensor import DTYPES, TensorSpec
from perfmodel import Split
from tests.support.forced import Forced
from tests.support.sampling import number

ORDERS = [order for order in itertools.permutations(AXES) if order[-1] == "c_x"]


@st.composite
def forced_plans(draw, placements=("pageable",)):
    """A chain, a split, ring depths and a loop order: (Forced, plan, schedule)."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    c_x, c_y = groups * draw(st.integers(1, 5)), groups * draw(st.integers(1, 5))
    window = draw(st.integers(1, 9))
    padding = draw(st.tuples(st.integers(0, 15), st.integers(0, 15)))
    stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rows = draw(st.integers(1, 30))
    assume(rows + sum(padding) >= (window - 1) * dilation + 1)
    convolution = Convolution.of(
        (draw(st.integers(1, 4)), c_x, rows, 2),
        (c_y, c_x // groups, window, 1),
        padding=(padding, 0),
        stride=(stride, 1),
        dilation=(dilation, 1),
        groups=groups,
    )
    shape = convolution.output_shape
    operations = (convolution,)
    if draw(st.booleans()):
        operations += (AddTensor(shape), Activation(shape, "relu"))
    chain = Chain(operations, "float32", beta=draw(st.sampled_from([0.0, 0.0, 0.5])))
    whole = chain.extents
    split = Split(
        n=draw(st.integers(1, whole.n)),
        c_y=draw(st.integers(1, whole.c_y)),
        c_x=draw(st.integers(1, whole.c_x)),
        h_y=draw(st.integers(1, whole.h_y)),
    )
    assume(chain.is_legal(split))
    specs = {
        name: TensorSpec(operand.shape, operand.dtype, draw(st.sampled_from(placements)))
        for name, operand in chain.operands.items()
    }
    forced = Forced(chain, specs)
    executor = forced.executor(
        split,
        depth=draw(st.sampled_from([1, 2, 3, 4])),
        whole=draw(st.booleans()),
        order=draw(st.sampled_from(ORDERS)),
        layout=draw(st.sampled_from(["channels_first", "channels_last"])),
    )
    return forced, executor.program.items[0].plan, executor.schedule


quick = settings(
    max_examples=number(60, of=150), suppress_health_check=[HealthCheck.filter_too_much]
)


def happens_before(steps):
    """For each step, the set of steps that have surely ended when it starts."""
    last, ended = {}, []
    for index, step in enumerate(steps):
        before = set()
        for earlier in (*step.waits, *([last[step.stream]] if step.stream in last else [])):
            before |= ended[earlier] | {earlier}
        ended.append(before)
        last[step.stream] = index
    return ended


@quick
@given(forced_plans())
def test_waits_refer_to_earlier_steps_of_other_streams_that_signal(made):
    _, _, schedule = made
    for index, step in enumerate(schedule.steps):
        for wait in step.waits:
            assert 0 <= wait < index
            assert schedule.steps[wait].stream != step.stream
            assert schedule.steps[wait].signals
        assert len({schedule.steps[wait].stream for wait in step.waits}) == len(step.waits)
    waited = {wait for step in schedule.steps for wait in step.waits}
    assert {index for index, step in enumerate(schedule.steps) if step.signals} == waited


@quick
@given(forced_plans())
def test_no_slot_is_overwritten_before_its_last_user_ended(made):
    """Replay on slots: whoever reads finds its region there, and no write overlaps a use."""
    forced, plan, schedule = made
    chain, ended = forced.chain, happens_before(schedule.steps)
    depths = dict(plan.rings)
    content, users, writer = {}, {}, {}

    def write(index, place):
        key = place.operand, place.slot
        assert 0 <= place.slot < depths[place.operand]
        for user in users.get(key, set()) | ({writer[key]} if key in writer else set()):
            assert user in ended[index], f"step {index} overwrites what step {user} may still use"
        content[key], writer[key], users[key] = place.region, index, set()

    def read(index, place):
        key = place.operand, place.slot
        assert content.get(key) == place.region
        assert writer[key] in ended[index], f"step {index} reads what step {writer[key]} writes"
        users[key].add(index)

    sums = {}
    for index, step in enumerate(schedule.steps):
        if step.stream == "copy_in":
            write(index, step.places[0])
        elif step.stream == "copy_out":
            read(index, step.places[0])
        else:
            for place in step.places:
                assert place.slot >= 0
                if place.operand != "y" or chain.beta:
                    read(index, place)
                elif any(launch.output == "y" for launch in step.launches):
                    write(index, place)
            piece = step.places[-1].region
            sums.setdefault(piece, []).append(index)
    # Pieces of cX that add to one output region follow each other without another in between.
    computes = [i for i, step in enumerate(schedule.steps) if step.stream == "compute"]
    for indices in sums.values():
        at = computes.index(indices[0])
        assert computes[at : at + len(indices)] == indices


@quick
@given(forced_plans())
def test_each_output_element_leaves_exactly_once(made):
    forced, plan, schedule = made
    left = np.zeros(forced.chain.operands["y"].shape, int)
    entered = np.zeros_like(left)
    for step in schedule.steps:
        (first, *_) = step.places
        box = tuple(slice(*r) for r in first.region)
        if step.stream == "copy_out":
            assert first.operand == "y"
            left[box] += 1
        elif step.stream == "copy_in" and first.operand == "y":
            entered[box] += 1
    assert np.all(left == 1)
    assert np.all(entered == (1 if forced.chain.beta else 0))
    assert schedule.pieces == plan.pieces


@quick
@given(forced_plans())
def test_every_piece_reads_exactly_what_its_outputs_depend_on(made):
    """By brute force: the input elements that each output element of a piece sees."""
    forced, plan, _ = made
    (convolution, *_), chain = forced.chain.operations, forced.chain
    per_group = convolution.w_shape[0] // convolution.groups
    seen_pairs = set()
    for piece, _ in pieces(chain, plan.split, plan.order):
        region = chain.region("x", piece)
        for channel in range(*piece.c_y):
            first = channel // per_group * convolution.w_shape[1]
            for c in range(*piece.c_x):
                assert region[1][0] <= first + c < region[1][1]
                seen_pairs.add((channel, c))
        needed = {
            row
            for o in range(*piece.h_y)
            for tap in range(convolution.w_shape[2])
            if 0
            <= (
                row := o * convolution.stride[0]
                - convolution.padding[0][0]
                + tap * convolution.dilation[0]
            )
            < convolution.x_shape[2]
        }
        assert needed <= set(range(*region[2]))
        if needed:
            # No row beyond the first and the last window position, clipped.
            lowest = piece.h_y[0] * convolution.stride[0] - convolution.padding[0][0]
            assert region[2][0] == max(lowest, 0)
    assert len(seen_pairs) == convolution.w_shape[0] * convolution.w_shape[1]


def test_c_x_must_be_innermost_where_it_is_cut():
    chain = Chain((Convolution.of((1, 4, 4, 4), (2, 4, 1, 1)),), "float32")
    specs = {name: TensorSpec(operand.shape) for name, operand in chain.operands.items()}
    forced = Forced(chain, specs)
    request, order = forced.request(), ("n", "c_x", "c_y", "h_y")
    for size in (4, 2):
        plan = replace(forced.plan(Split(n=1, c_y=1, c_x=size, h_y=1)), order=order)
        if size == 4:  # it is not cut
            plan_schedule(request, plan)
    with pytest.raises(ValueError, match="c_x must be the innermost loops"):
        plan_schedule(request, plan)


@quick
@given(forced_plans(placements=("pageable", "disk", "pinned")))
def test_planned_bytes_are_what_the_schedule_moves(made):
    forced, plan, schedule = made
    rows = [
        forced.chain.flow(r, None)[0].needed[:2] for r in forced.chain.ranges(plan.split)["h_y"]
    ]
    moved = {"copy_in": 0, "copy_out": 0}
    for step in schedule.steps:
        if step.stream != "compute":
            (place,) = step.places
            size = DTYPES[forced.chain.operands[place.operand].dtype]
            for low, high in place.region:
                size *= high - low
            moved[step.stream] += size
    assert plan.bytes_out == moved["copy_out"]
    # Where the window is larger than all of x, several pieces need the same rows, and find them.
    if len(set(rows)) == len(rows):
        assert plan.bytes_in == moved["copy_in"]
    else:
        assert plan.bytes_in >= moved["copy_in"]


@quick
@given(forced_plans())
def test_the_planner_knows_every_launch_and_the_size_of_every_buffer(made):
    """The device is asked for the workspace of exactly what will be launched."""
    forced, plan, schedule = made
    request = forced.request(layout=plan.layout, order=plan.order)
    planned = {launch for launch, _ in distinct_launches(request, plan)}
    assert planned == {launch for step in schedule.steps for launch in step.launches}
    memory = sum(
        align(size) * dict(plan.rings).get(name, 1) for name, size in schedule.sizes[0].items()
    )
    assert memory + align(plan.workspace_bytes) == plan.device_bytes


def test_steps_are_readable():
    chain = Chain((Convolution.of((2, 1, 4, 4), (1, 1, 3, 3)),), "float32")
    forced = Forced(
        chain, {name: TensorSpec(op.shape, "float32") for name, op in chain.operands.items()}
    )
    steps = forced.executor(Split(n=1, c_y=1, c_x=1, h_y=2), depth=2).schedule.steps
    assert str(steps[2]) == "compute of piece 0: x[0], w[0], y[0] after 1"
