"""Steps of training in two calls: forward, and backward from gradients that come later."""

import gc
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import HostOutOfMemoryError, OocError
from ooc_cudnn.network.ir.live_ranges import check_live_ranges
from ooc_cudnn.network.policies.offload import offload_just_in_time
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.runtime.two_part import TwoPartStep
from ooc_cudnn.network.search.pass_pipeline import canonicalize
from ooc_cudnn.network.search.strategies.remat_slices import RematerializeSlices
from ooc_cudnn.network.search.strategies.spill_slices import SpillSlices
from ooc_cudnn.pipeline.program import COPY_IN, COPY_OUT, Binding, Move, Program
from ooc_cudnn.pipeline.segments import split_at_pauses
from ooc_cudnn.tensor import TensorSpec
from tests.support.network_checks import assert_close
from tests.support.network_steps import plans_by
from tests.support.on_device import on_the_device

SHAPE = (4, 3, 32, 32)
LARGE, SMALL, LEAST = "64MiB", "400KiB", "200KiB"

pytestmark = pytest.mark.usefixtures("few_plans")


@pytest.fixture(autouse=True)
def on_the_host():
    with ooc_cudnn.settings(device="host", machine="host"):
        yield
        get_device("host").release_caches()


def network(*, residual=True, normalised=True):
    net = ooc_cudnn.Network(seed=1)
    h = x = net.input("x", SHAPE, "float64", gradient=True)
    for channels in (8, 8):
        h, before = net.convolution(h, channels, window=3, padding=1), h
        h = net.activation(net.batch_normalization(h) if normalised else h)
        h = net.add(h, before) if residual and before is not x else h
    y = net.linear(net.global_average(net.pooling(h, window=2)), 10)
    return net, (y, h)


def arrays(net, outputs):
    random = np.random.default_rng(0)
    return random.standard_normal(SHAPE), [random.standard_normal(y.shape) for y in outputs]


def run(limit, outputs=(0,), policy="best", **options):
    net, made = network(**options)
    asked = [made[at] for at in outputs]
    x, seeds = arrays(net, asked)
    step = net.pausing_step(*asked, memory_limit=limit, policy=policy)
    paused = step.forward(x=x)
    running = {name: np.array(array) for name, array in net.running.items()}
    return step, paused.outputs, paused.backward(seeds), running


@pytest.mark.every_case
@pytest.mark.parametrize("limit", [SMALL, LEAST])
@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)])
def test_results_are_the_same_under_every_limit(limit, outputs):
    _, expected, gradients, running = run(LARGE, outputs)
    step, found, others, updated = run(limit, outputs)
    assert step.plan.device_bytes <= step.plan.memory_limit
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, "output")
    least = 1e-3 * max(np.abs(each).max() for each in gradients.values())
    assert others.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert_close(others[name], gradient, name, least=least)
    for name, statistics in running.items():
        assert_close(updated[name], statistics, name)


@pytest.mark.parametrize(
    ("strategy", "limit"), [(RematerializeSlices(), 1_000_000), (SpillSlices(), 500_000)]
)
def test_a_step_that_pauses_may_go_in_slabs(strategy, limit):
    """The first layers by some images each; what of them is made again is so after the pause."""
    net, (y, _) = network()
    x, (seed,) = arrays(net, [y])
    _, (expected,), gradients, _ = run(LARGE)
    with ooc_cudnn.settings(machine="h200"):
        step = canonicalize(net.pausing_phases(y), "best")
        constraints = constraints_for(limit, None, step, {})
        made = plans_by(strategy, step, constraints)[0]
        plan = replace(made.plan, policy="best")
        assert plan.batch_slices > 1
        assert plan.again
        assert plan.apart == isinstance(strategy, SpillSlices)
        paused = TwoPartStep(net, partial(net.pausing_phases, y), limit, {}, plan).forward(x=x)
        found = paused.backward([seed])
    assert_close(paused.outputs[0], expected, "output")
    least = 1e-3 * max(np.abs(each).max() for each in gradients.values())
    for name, gradient in gradients.items():
        assert_close(found[name], gradient, name, least=least)


@pytest.mark.parametrize("policy", ["keep", "remake", "checkpoint", "offload", "mixed"])
def test_gradients_are_those_of_a_step_that_does_not_pause(policy):
    net, (y, _) = network()
    x, (seed,) = arrays(net, [y])
    step = net.pausing_step(y, memory_limit="1MiB", policy=policy)
    paused = step.forward(x=x)
    found = paused.backward([seed])
    # the gradient of a sum of squares is twice what is squared
    other, (z, _) = network()
    target = other.input("target", z.shape, "float64")
    loss = other.mean_squared_error(z, target, reduction="sum")
    whole = other.training_step(loss, memory_limit=LARGE)
    whole(x=x, target=paused.outputs[0] - seed / 2)
    for name, gradient in whole.gradients.items():
        assert_close(found[name], gradient, name, least=1e-2)


@pytest.mark.parametrize("joined", ["sum", "concatenation"])
def test_what_is_added_to_an_output_has_its_gradient(joined):
    """And what is beside it in a concatenation a part of that: no phase makes these."""
    net = ooc_cudnn.Network(seed=1)
    x, t = (net.input(name, (2, 3, 4, 4), gradient=True) for name in ("x", "t"))
    h = net.convolution(x, 3, window=1)
    y = net.add(h, t) if joined == "sum" else net.concatenate([h, t])
    random = np.random.default_rng(0)
    given = {each.name: random.standard_normal(each.shape).astype("f4") for each in (x, t)}
    seed = random.standard_normal(y.shape).astype("f4")
    for where in (np.copy, on_the_device):
        step = net.pausing_step(y, memory_limit=LARGE)
        paused = step.forward(**{n: where(a) for n, a in given.items()})
        assert paused.shared == {"t"}
        found = paused.backward([where(seed)])
        assert found.keys() == {"x", "t", "convolution_1.w", "convolution_1.b"}
        np.testing.assert_array_equal(found["t"], seed[:, -3:])


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_gradients_that_no_phase_reads_or_makes(beside):
    """Both terms of a sum have that of the output: backward has nothing to do for it."""
    net = ooc_cudnn.Network(seed=1)
    x, t, s = (net.input(name, (2, 3, 4, 4), gradient=True) for name in ("x", "t", "s"))
    outputs = [net.add(x, t), *([net.convolution(s, 3, window=1)] if beside else [])]
    random = np.random.default_rng(0)
    given = [x, t, s] if beside else [x, t]
    arrays = {each.name: random.standard_normal(each.shape).astype("f4") for each in given}
    seeds = [random.standard_normal(y.shape).astype("f4") for y in outputs]
    for where in (np.copy, on_the_device):
        step = net.pausing_step(*outputs, memory_limit=LARGE)
        paused = step.forward(**{n: where(a) for n, a in arrays.items()})
        np.testing.assert_array_equal(paused.outputs[0], arrays["x"] + arrays["t"])
        step.forward(**arrays)  # the first one leaves the block
        found = paused.backward([where(seed) for seed in seeds])
        assert ("s" in found) is beside
        for name in ("x", "t"):
            np.testing.assert_array_equal(found[name], seeds[0])


def test_an_output_that_backward_reads_leaves_once_and_comes_back():
    net = ooc_cudnn.Network(seed=1)
    x = net.input("x", SHAPE, "float64", gradient=True)
    h = net.activation(net.convolution(x, 8, window=3, padding=1))
    y = net.activation(net.convolution(h, 8, window=3, padding=1))
    step = net.pausing_phases(y, h)
    live_ranges = offload_just_in_time(step, frozenset({h.name}))
    assert len(live_ranges[h.name]) == 2
    check_live_ranges(step, live_ranges)


def test_what_is_kept_leaves_when_others_want_the_block():
    net, (y, _) = network()
    x, (seed,) = arrays(net, [y])
    step = net.pausing_step(y, memory_limit=LARGE, policy="keep")
    expected = step.forward(x=x).backward([seed])
    first = step.forward(x=x)
    assert first._ready.parts.kept_bytes(0) > 0
    second = step.forward(x=2 * x)
    ooc_cudnn.activation_forward(x)
    of_second, of_first = second.backward([seed]), first.backward([seed])
    for name, gradient in expected.items():
        np.testing.assert_array_equal(of_first[name], gradient)
    assert not np.array_equal(of_second["convolution_1.w"], of_first["convolution_1.w"])


def test_nothing_leaves_where_nobody_wants_the_block():
    net, (y, _) = network()
    x, (seed,) = arrays(net, [y])
    paused = net.pausing_step(y, memory_limit=LARGE, policy="keep").forward(x=x)
    paused.leave = None  # would fail
    assert len(paused.backward([seed])) == len(net.parameters) + 1


def test_what_nobody_holds_does_not_leave():
    net, (y, _) = network()
    x, _ = arrays(net, [y])
    step = net.pausing_step(y, memory_limit=LARGE, policy="keep")
    paused = step.forward(x=x)
    paused.leave = None
    del paused
    gc.collect()
    assert step.forward(x=x).outputs[0].shape == y.shape


def test_where_the_host_has_no_room_the_newcomer_is_refused_and_the_tenant_goes_on():
    net, (y, _) = network()
    x, (seed,) = arrays(net, [y])
    step = net.pausing_step(y, memory_limit=LARGE, policy="keep")
    expected = step.forward(x=x).backward([seed])
    paused = step.forward(x=x)
    with (
        ooc_cudnn.settings(host_memory_limit="64KiB"),
        pytest.raises(HostOutOfMemoryError, match="between forward and backward"),
    ):
        ooc_cudnn.activation_forward(x)
    found = paused.backward([seed])
    for name, gradient in expected.items():
        np.testing.assert_array_equal(found[name], gradient)


def test_running_statistics_are_new_after_forward_and_stay():
    net, (y, _) = network()
    x, (seed,) = arrays(net, [y])
    before = {name: np.array(array) for name, array in net.running.items()}
    paused = net.pausing_step(y, memory_limit=SMALL).forward(x=x)
    after = {name: np.array(array) for name, array in net.running.items()}
    paused.backward([seed])
    for name in before:
        assert not np.array_equal(before[name], after[name])
        np.testing.assert_array_equal(net.running[name], after[name])


def test_gradients_of_outputs_may_be_strided():
    net, (y, _) = network()
    x, (seed,) = arrays(net, [y])
    step = net.pausing_step(y, memory_limit=SMALL)
    wide = np.empty((*seed.shape[::-1],)).T
    wide[...] = seed
    found = step.forward(x=x).backward([wide])
    for name, gradient in step.forward(x=x).backward([seed]).items():
        np.testing.assert_array_equal(found[name], gradient)
    one = np.broadcast_to(1.0, y.shape)
    assert step.forward(x=x).backward([one])["linear_1.b"] == pytest.approx(4.0)


def test_backward_runs_once():
    net, (y, _) = network()
    x, (seed,) = arrays(net, [y])
    paused = net.pausing_step(y, memory_limit=SMALL).forward(x=x)
    with pytest.raises(TypeError, match="1 outputs, not 2"):
        paused.backward([seed, seed])
    with pytest.raises(ValueError, match="must have shape"):
        paused.backward([seed[:1]])
    paused.backward([seed])
    with pytest.raises(OocError, match="run forward again"):
        paused.backward([seed])


def test_what_has_no_gradient_is_refused():
    net = ooc_cudnn.Network()
    x = net.input("x", SHAPE)
    with pytest.raises(ValueError, match="depends on nothing that has a gradient"):
        net.pausing_step(net.activation(x))
    with pytest.raises(ValueError, match="is given, not made"):
        net.pausing_step(x)


def without_sums(limit, shape=(7, 3, 32, 32), **asked):
    """A network without batch normalization: what it makes, and gradients."""
    net = ooc_cudnn.Network(seed=1)
    x = net.input("x", shape, "float64", gradient=True)
    h = net.group_normalization(net.convolution(x, 8, window=3, padding=1), 2)
    h = net.convolution(net.activation(h), 8, window=3, padding=1)
    h = net.dropout(net.activation(h, "swish"), 0.3)
    h = net.add(net.convolution(h, 8, window=3, padding=1), h)
    y = net.linear(net.global_average(h), 10)
    random = np.random.default_rng(0)
    given, seed = random.standard_normal(shape), random.standard_normal(y.shape)
    step = TwoPartStep(net, partial(net.pausing_phases, y), limit, asked, None)
    paused = step.forward(x=given)
    return step, paused.outputs[0], paused.backward([seed])


@pytest.mark.every_case
def test_some_images_at_a_time_go_forward_and_then_forward_again_with_backward():
    _, expected, gradients = without_sums(LARGE, policy="keep")
    step, found, others = without_sums("700KiB", policy="remake", micro_batches=3)
    assert step.plan.micro_batches == 3
    assert step.plan.rematerialized
    assert step.plan.device_bytes <= step.plan.memory_limit
    names = [each.name for each in step.plan.tasks]
    turn = next(at for at, name in enumerate(names) if "again" in name or "gradient" in name)
    assert not any("[0]" in name and "again" not in name and "gradient" not in name
                   for name in names[turn:])  # fmt: skip
    assert_close(found, expected, "output")
    for name, gradient in gradients.items():
        assert_close(others[name], gradient, name, least=1e-2)


def in_parts(step, x, seed, between):
    """Gradients, and the names of those that each part of backward has made."""
    paused = step.forward(x=x)
    found, groups = {}, []
    made = paused.begin_backward([seed])
    while True:
        groups.append(tuple(made))
        found |= made
        if paused.is_over:
            return found, groups
        between()
        made = paused.go_on()


@pytest.mark.parametrize("policy", ["keep", "offload"])
def test_backward_pauses_where_gradients_are_final(policy):
    net, (y, _) = network()
    x, (seed,) = arrays(net, [y])
    step = net.pausing_step(y, memory_limit="1MiB", policy=policy)
    expected = step.forward(x=x).backward([seed])
    apart = net.pausing_step(y, memory_limit="1MiB", policy=policy)
    apart.pause_bytes = 1
    # others want the block meanwhile, or nobody does
    for between in (partial(ooc_cudnn.activation_forward, x), int):
        found, groups = in_parts(apart, x, seed, between)
        assert len(groups) > 3
        assert groups[0] == ("linear_1.b",)
        assert groups[-1] == ("x",)
        for name, gradient in expected.items():
            np.testing.assert_array_equal(found[name], gradient)
    whole = apart.forward(x=x)
    assert whole.backward([seed]).keys() == expected.keys()
    with pytest.raises(OocError, match="backward has ended: run forward again"):
        whole.go_on()


def recorded(limit, policy="best", pause_bytes=None):
    """A step, the calls of a profile around forward and backward, and how far each part came."""
    net, (y, _) = network()
    x, (seed,) = arrays(net, [y])
    step = net.pausing_step(y, memory_limit=limit, policy=policy)
    step.pause_bytes = pause_bytes
    step.forward(x=x).backward([seed])  # planned
    seen = []
    with (
        ooc_cudnn.profile() as p,
        ooc_cudnn.settings(progress=lambda done, total: seen.append((done, total))),
    ):
        step.forward(x=x).backward([seed])
    reached = [last for last, new in pairwise([*seen, (1, 0)]) if new[0] == 1]
    return step, p.calls, reached


@pytest.mark.parametrize("limit", [LARGE, LEAST])
@pytest.mark.parametrize("policy", ["best", "offload"])
def test_forward_and_backward_are_recorded_and_predicted_each(limit, policy):
    step, calls, reached = recorded(limit, policy)
    forward, backward = calls
    assert forward.function == "training_step forward"
    assert backward.function == "training_step backward"
    for call, (done, total) in zip(calls, reached, strict=True):
        assert done == total == call.plan.pieces  # the bar reaches 100 %
        assert call.predicted_seconds == call.plan.seconds > 0
        assert (call.bytes_in, call.bytes_out) == (call.plan.bytes_in, call.plan.bytes_out)
        assert [each.name for each in call.plan.tasks] == list(
            dict.fromkeys(each.task for each in call.steps if each.stream == "compute")
        )
        assert call.plan.live_ranges == step.plan.live_ranges
        assert f"{call.plan.pieces} pieces" in str(call)
    assert step.plan.tasks == forward.plan.tasks + backward.plan.tasks
    for name in ("seconds", "compute_seconds", "copy_in_seconds", "copy_out_seconds",
                 "bytes_in", "bytes_out", "pieces"):  # fmt: skip
        parts = getattr(forward.plan, name) + getattr(backward.plan, name)
        assert parts == pytest.approx(getattr(step.plan, name), rel=1e-12)


def test_each_part_of_backward_is_recorded_and_predicted():
    step, calls, reached = recorded("1MiB", pause_bytes=1)
    count = len(calls) - 1
    assert count > 3
    assert [call.function for call in calls] == [
        "training_step forward",
        *(f"training_step backward {at + 1} of {count}" for at in range(count)),
    ]
    assert reached == [(call.plan.pieces,) * 2 for call in calls if call.plan.pieces]
    assert sum(call.plan.pieces for call in calls) == step.plan.pieces
    total = sum(call.predicted_seconds for call in calls)
    assert total == pytest.approx(step.plan.seconds, rel=1e-12)
    assert sum(call.bytes_in for call in calls) == step.plan.bytes_in


def test_a_part_has_something_to_do():
    net, (y, _) = network()
    x, _ = arrays(net, [y])
    program = net.pausing_step(y, memory_limit=LARGE, policy="keep").forward(x=x)._ready.program
    with pytest.raises(ValueError, match=r"cannot pause before items \[2, 2\]"):
        split_at_pauses(program, [2, 2])


def test_what_is_kept_at_a_pause_goes_by_bytes_and_not_by_names():
    shapes = {"x": (2, 3), "y": (6,)}
    bindings = {
        name: Binding(TensorSpec(shape, "float32", "pinned")) for name, shape in shapes.items()
    }
    bindings |= {
        f"{name} there": Binding(TensorSpec(shape, "float32", "device"), 0)
        for name, shape in shapes.items()
    }
    items = (Move("in", COPY_IN, "x", "x there"), Move("out", COPY_OUT, "y there", "y"))
    program = Program("a view of another shape", items, bindings, 256)
    assert split_at_pauses(program, [1]).kept == (((0, 24),),)
    again = (items[0], items[0], items[1])  # what is fetched anew need not stay
    assert split_at_pauses(Program("again", again, bindings, 256), [1]).kept == ((),)


@pytest.mark.parametrize("pause_bytes", [None, 1, 2000])
def test_gradients_on_the_device_are_handed_out_group_by_group(pause_bytes):
    """Those of a group lie in a block of their own, which goes with them."""
    _, _, expected, _ = run(LARGE)
    net, (y, _) = network()
    x, seeds = arrays(net, [y])
    for name, array in net.parameters.items():
        net.parameters[name] = on_the_device(
            array, ("channels_first", "channels_last")[array.ndim > 2]
        )
    gc.collect()
    arena = get_device("host").arena
    before = arena.array_bytes
    step = net.pausing_step(y, memory_limit=LARGE)
    step.pause_bytes = pause_bytes
    paused = step.forward(x=x)
    found = paused.begin_backward(seeds)
    while not paused.is_over:
        found |= paused.go_on()
    assert found.keys() == expected.keys()
    there = {name for name in found if ooc_cudnn.placement(found[name]) == "device"}
    assert there == {*net.parameters}
    for name, gradient in expected.items():
        assert_close(found[name], gradient, name)
        if name in there and gradient.ndim == 4:
            assert found[name].strides == net.parameters[name].strides
    held = arena.array_bytes - before
    groups = [group for group in paused.groups if there.intersection(group)]
    assert len(groups) == 1 if pause_bytes is None else len(groups) > 1
    for name in groups[0]:
        del found[name]
    gc.collect()
    assert arena.array_bytes - before < held
    del found, gradient, paused
    gc.collect()
    assert arena.array_bytes == before
