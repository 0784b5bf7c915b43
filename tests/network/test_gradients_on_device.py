"""Gradients lie where their parameters do: on the device they never cross the link.

Drawn networks have some of their arrays there in `tests.fuzz.networks`.
"""

import gc
import itertools

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices import get_device
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.network.ir.plan import NetworkPlan
from tests.support.on_device import on_the_device
from tests.support.sampling import number

PLENTY = "4MiB"


@pytest.fixture(autouse=True)
def settings(few_plans):
    with ooc_cudnn.settings(device="host", machine="host", memory_limit=PLENTY):
        gc.collect()  # arrays of other tests count, too
        yield


class Case:
    """Two convolutions by one array of filters and a linear layer; images ask for a gradient."""

    def __init__(self, dtype="float64"):
        net = self.net = ooc_cudnn.Network(seed=3)
        x = net.input("x", (4, 3, 6, 4), dtype, gradient=True)
        h = net.convolution(x, 3, window=3, padding=1, name="a")
        h = net.activation(h, "relu")
        h = net.convolution(h, 3, window=3, padding=1, w=net.graph.tensors["a.w"], name="b")
        labels = net.input("labels", (4,), "int64")
        self.loss = net.softmax_cross_entropy(net.linear(h, 5, name="c"), labels)
        random = np.random.default_rng(0)
        self.inputs = {"x": random.standard_normal(x.shape).astype(dtype)}
        self.inputs["labels"] = random.integers(0, 5, 4)

    def step(self, policy="keep", **asked):
        return self.net.training_step(self.loss, policy=policy, **asked)

    def move(self, *names, order="channels_first"):
        for name in names:
            arrays = self.inputs if name in self.inputs else self.net.parameters
            arrays[name] = on_the_device(arrays[name], order)

    @property
    def everything(self):
        return *self.net.parameters, "x"


def copies(step):
    return {name: np.array(gradient) for name, gradient in step.gradients.items()}


def assert_same(step, expected):
    assert step.gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert step.gradients[name].dtype == gradient.dtype
        np.testing.assert_allclose(step.gradients[name], gradient, rtol=1e-12, atol=1e-14)


def places(step):
    return {name: ooc_cudnn.placement(gradient) for name, gradient in step.gradients.items()}


def bytes_of(gradients):
    """Of the block in which they lie."""
    return sum(align(gradient.nbytes) for gradient in gradients.values())


def array_bytes():
    gc.collect()
    return get_device("host").arena.array_bytes


def profiled(step, inputs):
    """Call a step; return the most that it held, and its plan."""
    with ooc_cudnn.profile() as recorded:
        step(**inputs)
    return recorded.calls[0].peak_device_bytes, step.plan


@pytest.mark.parametrize(("policy", "parts"), [("keep", 1), ("offload", 2), ("mixed", 4)])
def test_each_lies_where_its_parameter_does(policy, parts):
    """That of shared filters is added to by both convolutions and by every micro-batch."""
    case = Case()
    value = (step := case.step(policy=policy, micro_batches=parts))(**case.inputs)
    expected, names = copies(step), ("a.w", "c.w", "x")
    assert set(places(step).values()) == {"pinned"}
    for moved in itertools.product([False, True], repeat=3):
        case = Case()
        case.move(*itertools.compress(names, moved))
        step = case.step(policy=policy, micro_batches=parts)
        assert step(**case.inputs) == pytest.approx(value, rel=1e-13)
        assert_same(step, expected)
        there = {name for name, place in places(step).items() if place == "device"}
        assert there == {*itertools.compress(names, moved)}
        fates = {f"{name}.gradient": step.plan.fate[f"{name}.gradient"] for name in names}
        assert {n for n, fate in fates.items() if fate == "given"} == {
            f"{n}.gradient" for n in there
        }


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_memory_order_and_dtype_are_the_parameters(dtype):
    case = Case(dtype)
    step = case.step()
    step(**case.inputs)
    expected = copies(step)
    case.move("a.w", "x", order="channels_last")
    step(**case.inputs)
    for name in ("a.w", "x"):
        parameter = case.inputs[name] if name == "x" else case.net.parameters[name]
        assert step.gradients[name].strides == parameter.strides != expected[name].strides
        assert step.gradients[name].dtype == dtype
        error = np.abs(step.gradients[name] - expected[name]).max() / np.abs(expected[name]).max()
        assert error < 4 * np.finfo(dtype).eps


@pytest.mark.parametrize("moved", [(), ("x",), ("x", "t")])
def test_gradients_that_share_memory(moved):
    """Both terms of a sum have the sum's: on the device if both are."""
    net = ooc_cudnn.Network()
    shape = (2, 3, 4, 4)
    x, t = (net.input(name, shape, gradient=True) for name in ("x", "t"))
    loss = net.mean_squared_error(net.add(x, t), net.input("target", shape))
    random = np.random.default_rng(0)
    given = {n: random.standard_normal(shape).astype("f4") for n in ("x", "t", "target")}
    expected = 2 * (given["x"] + given["t"] - given["target"]) / given["x"].size
    given |= {name: on_the_device(given[name]) for name in moved}
    step = net.training_step(loss)
    step(**given)
    assert set(places(step).values()) == {"device" if len(moved) == 2 else "pinned"}
    for gradient in step.gradients.values():
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_that_of_a_part_of_what_is_concatenated():
    """It is a region of the gradient of all, which lies on the device whole."""
    net = ooc_cudnn.Network()
    x, t = (net.input(name, (2, 3, 4, 4), gradient=True) for name in ("x", "t"))
    joined = net.concatenate([x, t])
    loss = net.mean_squared_error(joined, net.input("target", joined.shape))
    random = np.random.default_rng(0)
    shapes = {"x": x.shape, "t": t.shape, "target": joined.shape}
    given = {n: random.standard_normal(shape).astype("f4") for n, shape in shapes.items()}
    both = np.concatenate([given["x"], given["t"]], 1)
    expected = 2 * (both - given["target"]) / both.size
    given |= {name: on_the_device(given[name]) for name in ("x", "t")}
    step = net.training_step(loss)
    step(**given)
    assert set(places(step).values()) == {"device"}
    np.testing.assert_allclose(step.gradients["x"], expected[:, :3], rtol=1e-6)
    np.testing.assert_allclose(step.gradients["t"], expected[:, 3:], rtol=1e-6)
    assert array_bytes() == 2 * both.nbytes


def test_nothing_of_parameters_and_gradients_crosses_the_link():
    case = Case()
    case.move(*case.everything)
    step = case.step()
    step(**case.inputs)
    assert step.plan.bytes_in == case.inputs["labels"].nbytes + 8  # and the loss's own gradient
    assert step.plan.bytes_out == step.plan.host_bytes == 8  # the loss
    assert step.plan.gradient_bytes == 2 * bytes_of(step.gradients)
    assert "gradients  " in step.plan.explain()


def test_the_limit_holds_to_the_byte():
    """Those of the call before lie beside the new ones: the least limit has room for both."""
    case = Case()
    case.move(*case.everything)
    others = array_bytes()
    with pytest.raises(ooc_cudnn.PlanInfeasibleError) as refused:
        case.step(memory_limit=1)(**case.inputs)
    least = refused.value.smallest_bytes
    step = case.step(memory_limit=least - 1)
    with pytest.raises(ooc_cudnn.PlanInfeasibleError, match=f"memory_limit={least}"):
        step(**case.inputs)
    assert step.gradients == {}
    step = case.step(memory_limit=least)
    with ooc_cudnn.settings(memory_limit=1000):  # the step's goes before it
        first, plan = profiled(step, case.inputs)
        one_set = bytes_of(step.gradients)
        assert first == others + plan.device_bytes + one_set == least - one_set
        assert profiled(step, case.inputs) == (least, plan)
        assert profiled(step, case.inputs) == (least, plan)


@pytest.mark.parametrize("clears", [False, True], ids=["reads", "clears"])
def test_a_loop_of_descent_does_not_grow(clears):
    case = Case()
    case.move(*case.everything)
    step, losses, held, peaks, plans = case.step(), [], [], [], []
    for _ in range(number(5, of=20)):
        losses.append(step(**case.inputs))
        for name, gradient in step.gradients.items():
            if name in case.net.parameters:
                case.net.parameters[name] -= 0.1 * gradient
        if clears:
            del gradient
            step.gradients.clear()
        peak, plan = profiled(step, case.inputs)
        peaks.append(peak)
        plans.append(plan)
        held.append(array_bytes())
    assert losses == sorted(losses, reverse=True)
    assert len({*held}) == len({*peaks}) == 1
    assert all(plan == plans[0] for plan in plans)


def test_what_is_passed_on_lies_by_itself_and_counts_once():
    """Autograd casts the gradient of a cast: nobody holds it then, whoever holds others."""
    case, names, found = Case(), ("a.w", "c.w"), {}
    case.move(*case.net.parameters)
    logits = case.net.graph.tensors["c"]
    for passed_on in (frozenset(), frozenset(names)):
        step = case.net.pausing_step(logits)
        step.passed_on = passed_on
        paused = step.forward(x=case.inputs["x"])
        before = array_bytes()
        gradients = paused.backward([np.ones(logits.shape)])
        del paused
        gradients = {name: each for name, each in gradients.items() if name != "x"}
        found[passed_on] = {name: np.array(each) for name, each in gradients.items()}
        both, handed = bytes_of(gradients), bytes_of({name: gradients[name] for name in names})
        assert step.plan.gradient_bytes == 2 * both - handed * bool(passed_on)
        assert array_bytes() - before == both
        for name in names:
            del gradients[name]
        assert array_bytes() - before == both - handed * bool(passed_on)
        del gradients
    for name, gradient in found[frozenset()].items():
        np.testing.assert_array_equal(found[frozenset(names)][name], gradient)


def test_those_that_are_held_longer_count_as_the_users():
    case = Case()
    case.move(*case.everything)
    others = array_bytes()
    step = case.step()
    before = profiled(step, case.inputs)[1]
    limit = others + before.device_bytes + before.gradient_bytes
    step, held = case.step(memory_limit=limit), []
    for _ in range(2):
        assert profiled(step, case.inputs)[1].device_bytes == before.device_bytes
        held.append(step.gradients)
    peak, after = profiled(step, case.inputs)
    assert after.device_bytes < before.device_bytes
    assert peak <= limit
    held.clear()
    assert profiled(step, case.inputs)[1].device_bytes == before.device_bytes


@pytest.mark.every_case
def test_the_limit_holds_where_parameters_leave_the_device():
    """The old gradients are there when the first ones for host memory are made."""
    case = Case()
    kept = dict(case.net.parameters)
    case.move(*kept)
    step = case.step(memory_limit="45kB")
    expected = profiled(step, case.inputs)[1]
    case.net.parameters.update(kept)
    first, plan = profiled(step, case.inputs)
    assert plan.gradient_bytes == 0
    assert first == plan.device_bytes + expected.gradient_bytes // 2 <= 45_000
    assert set(places(step).values()) == {"pinned"}
    assert profiled(step, case.inputs)[0] <= 45_000
    case.move(*kept)
    assert profiled(step, case.inputs)[0] <= 45_000
    assert profiled(step, case.inputs)[0] <= 45_000


def test_a_call_that_is_cut_short_leaves_those_before():
    case = Case()
    case.move(*case.everything)
    step = case.step(policy="offload", memory_limit="40KiB")
    step(**case.inputs)
    before, expected, held = dict(step.gradients), copies(step), array_bytes()

    def stop(done, total):
        raise KeyboardInterrupt

    with ooc_cudnn.settings(progress=stop), pytest.raises(KeyboardInterrupt):
        step(**case.inputs)
    assert all(step.gradients[name] is gradient for name, gradient in before.items())
    assert_same(step, expected)
    assert array_bytes() == held
    step(**case.inputs)
    assert all(step.gradients[name] is not gradient for name, gradient in before.items())
    assert_same(step, expected)


def test_plans_as_data_are_followed_wherever_parameters_are():
    case = Case()
    on_host = case.step()
    value = on_host(**case.inputs)
    expected = copies(on_host)
    moved = Case()
    moved.move("a.w", "c.w")
    there = moved.step()
    there(**moved.inputs)
    plan = NetworkPlan.from_json(there.plan.to_json())
    assert plan == there.plan
    again = moved.step(plan=plan)
    again(**moved.inputs)
    assert again.plan == plan
    for taker, given in ((case, plan), (moved, on_host.plan)):
        step = taker.step(plan=given)
        assert step(**taker.inputs) == pytest.approx(value, rel=1e-13)
        assert_same(step, expected)
        assert (places(step)["a.w"] == "device") == (taker is moved)


def test_a_step_is_planned_without_data():
    """What is left out lies on the host, and so do its gradients."""
    case = Case()
    x = ooc_cudnn.TensorSpec(case.inputs["x"].shape, "float64", "device")
    plan = case.step().planned_for({"x": x}, machine="host")
    everything = case.step().planned_for({}, machine="host")
    assert plan.gradient_bytes == 2 * align(x.nbytes)
    assert everything.gradient_bytes == 0
    assert plan.bytes_in == everything.bytes_in - x.nbytes
