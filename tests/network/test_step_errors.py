"""What a step refuses, and that it says why; NaN is no error."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices import get_device
from ooc_cudnn.network.ir.plan import NetworkPlan
from tests.support.on_device import on_the_device


class Small:
    """A network of one convolution, and what its step takes."""

    def __init__(self, channels=4, name=""):
        net = self.net = ooc_cudnn.Network(seed=0)
        x = net.input("x", (2, 3, 5, 5))
        self.y = net.convolution(x, channels, window=3, name=name)
        target = net.input("target", self.y.shape)
        self.loss = net.mean_squared_error(self.y, target)
        self.inputs = {"x": np.ones(x.shape, "f4"), "target": np.zeros(target.shape, "f4")}


@pytest.fixture
def small():
    return Small()


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"x": None}, TypeError, "the step needs x; its inputs are x, target"),
        ({"z": np.ones(3)}, TypeError, "the step has no input z; its inputs are x, target"),
        ({"x": np.ones((2, 3, 5, 4), "f4")}, ValueError, r"x must have shape \(2, 3, 5, 5\), not"),
        ({"x": np.ones((2, 3, 5, 5))}, TypeError, "x must be float32, not float64"),
        ({"x": "images"}, TypeError, "x"),
        ({"x": None, "z": 1}, TypeError, "needs x and has no input z"),
    ],
    ids=["missing", "surplus", "shape", "dtype", "no array", "both"],
)
def test_inputs_that_do_not_fit(small, changed, error, said):
    step = small.net.training_step(small.loss)
    given = {name: a for name, a in (small.inputs | changed).items() if a is not None}
    with pytest.raises(error, match=said):
        step(**given)
    assert step.gradients == {}
    assert np.isfinite(step(**small.inputs))


def test_a_parameter_of_another_shape(small):
    step = small.net.training_step(small.loss)
    with pytest.raises(ValueError, match=r"convolution_1.b must have shape \(4,\), not \(5,\)"):
        small.net.parameters["convolution_1.b"] = np.zeros(5, "f4")
    kept = small.net.parameters["convolution_1.b"] = np.zeros(8, "f4")[:4].copy()
    step(**small.inputs)
    kept.resize((2, 2), refcheck=False)  # behind the network's back
    with pytest.raises(ValueError, match=r"convolution_1.b must have shape \(4,\), not \(2, 2\)"):
        step(**small.inputs)
    kept.resize(4, refcheck=False)
    step(**small.inputs)


def test_a_loss_that_is_none(small):
    with pytest.raises(ValueError, match="the loss must be one number"):
        small.net.training_step(small.y)
    with pytest.raises(ValueError, match="loss"):
        small.net.training_step(Small(name="other").y)


@pytest.mark.parametrize("ask", ["plan", "training_step"])
def test_an_unknown_policy(small, ask):
    with pytest.raises(ValueError, match=r"policy must be one of best, keep, .*, not 'fast'"):
        getattr(small.net, ask)(small.loss, policy="fast")


@pytest.mark.parametrize("parts", [0, -1, 1.5, "2"])
def test_a_number_of_micro_batches_that_is_none(small, parts):
    with pytest.raises(ValueError, match="micro_batches must be a positive int"):
        small.net.plan(small.loss, memory_limit="1MiB", micro_batches=parts)


def test_a_plan_of_another_network(small):
    """Stays count phases: by another network's, what is read would not be there."""
    other = Small(name="other")
    plan = other.net.plan(other.loss, memory_limit="1MiB")
    step = small.net.training_step(small.loss, plan=plan)
    with pytest.raises(ValueError, match=r"the plan is of another network: it has 'other forward"):
        step(**small.inputs)
    plan = small.net.plan(small.loss, memory_limit="1MiB")
    small.net.freeze("convolution_1.w")
    step = small.net.training_step(small.loss, plan=plan)
    with pytest.raises(ValueError, match=r"it has 'convolution_1 filter gradient' where this one"):
        step(**small.inputs)


def test_a_plan_from_its_file(small):
    plan = small.net.plan(small.loss, memory_limit="1MiB", policy="offload")
    again = NetworkPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert repr(plan).startswith("<NetworkPlan: training_step on ")
    assert len(repr(plan)) < 200
    with pytest.raises(TypeError, match=r"plan must be a NetworkPlan, not dict; .*from_json makes"):
        small.net.training_step(small.loss, plan=plan.to_json())
    step = small.net.training_step(small.loss, plan=again)
    assert step(**small.inputs) == small.net.training_step(small.loss)(**small.inputs)


def test_best_says_which_policy_it_took(small):
    best = small.net.plan(small.loss, memory_limit="1MiB")
    assert (best.policy, best.taken) == ("best", "keep")
    assert "policy best (keep): " in best.explain()
    step = small.net.training_step(small.loss, plan=best)
    step(**small.inputs)
    assert step.plan.taken == "keep"
    asked = small.net.plan(small.loss, memory_limit="1MiB", policy="keep")
    assert "policy keep: " in asked.explain()


def without(live_range, at):
    return [
        live_range[0],
        [[*each[:at], None if at == 3 else False, *each[at + 1 :]] for each in live_range[1]],
    ]


@pytest.mark.parametrize(
    ("key", "edit", "said"),
    [
        (
            "stays",
            lambda live_ranges: [without(live_range, 2) for live_range in live_ranges],
            "is not always where it is",
        ),
        (
            "stays",
            lambda live_ranges: [without(live_range, 3) for live_range in live_ranges],
            "is not always where it is",
        ),
        (
            "stays",
            lambda live_ranges: [
                [n, [[a, max(a, b - 1), *c] for a, b, *c in s]] for n, s in live_ranges
            ],
            "is not always where it is read",
        ),
        (
            "stays",
            lambda live_ranges: [[live_ranges[0][0], [[0, 99, True, None]]]],
            "cannot be followed: LiveRange",
        ),
        (
            "stays",
            lambda live_ranges: [*live_ranges, ["z", [[0, 1, False, None]]]],
            "cannot be followed: LiveRange",
        ),
        ("stays", lambda live_ranges: [[n, []] for n, s in live_ranges], None),
        ("stays", lambda live_ranges: 3, "no plan of a network"),
        ("tasks", lambda tasks: [[1]], "no plan of a network"),
        ("order", lambda order: "rows", "order must be one of"),
        ("policy", lambda policy: "fast", "policy must be one of"),
        ("micro_batches", lambda parts: 0, "micro_batches must be"),
        ("bands", lambda bands: "2", "bands must be"),
        ("bands", lambda bands: 10**12, "bands must be at most 1024"),
        ("slabs", lambda slabs: 0, "slabs must be"),
        ("else", lambda nothing: 1, "no plan of a network"),
    ],
)
def test_plans_that_were_edited(small, key, edit, said):
    """One that leaves bytes where nobody finds them gave wrong gradients."""
    plan = small.net.plan(small.loss, memory_limit="10kB", policy="offload")
    value = small.net.training_step(small.loss, plan=plan)(**small.inputs)
    edited = json.loads(json.dumps(plan.to_json()))
    edited[key] = edit(edited.get(key))

    def run():
        plan = NetworkPlan.from_json(edited)
        return small.net.training_step(small.loss, plan=plan)(**small.inputs)

    if said is None:
        assert run() == pytest.approx(value, rel=1e-6)
        return
    with pytest.raises(ValueError, match=said):
        run()


@pytest.mark.every_case
def test_limits_below_the_least_name_it(small):
    step = small.net.training_step(small.loss, memory_limit=300)
    with pytest.raises(ooc_cudnn.PlanInfeasibleError) as refused:
        step(**small.inputs)
    assert step.gradients == {}
    least = refused.value.smallest_bytes
    assert np.isfinite(small.net.training_step(small.loss, memory_limit=least)(**small.inputs))


def test_a_limit_that_arrays_alone_exceed_says_so(small):
    """The phase that is named takes little: filters and two sets of gradients take the rest."""
    for name, array in list(small.net.parameters.items()):
        small.net.parameters[name] = on_the_device(array)
    gc.collect()  # arrays of other tests count, too
    held = get_device("host").arena.array_bytes
    step = small.net.training_step(small.loss, memory_limit=held)
    with pytest.raises(ooc_cudnn.PlanInfeasibleError, match="else is on the device") as refused:
        step(**small.inputs)
    least, beside = refused.value.smallest_bytes, refused.value.beside_bytes
    step = small.net.training_step(small.loss, memory_limit=least)
    step(**small.inputs)
    assert beside == held + step.plan.gradient_bytes > held
    assert step.plan.device_bytes == least - beside


def test_a_loss_that_is_not_finite_warns(small):
    step = small.net.training_step(small.loss)
    small.inputs["x"][0, 0, 2, 2] = np.nan
    with pytest.warns(UserWarning, match="the loss is nan"):
        assert np.isnan(step(**small.inputs))
    assert np.isnan(step.gradients["convolution_1.w"]).any()
