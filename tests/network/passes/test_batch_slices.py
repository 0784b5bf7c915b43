"""Slabs: regions between batch norms go through the batch some images at a time."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.passes.batch_slices import slice_batch
from ooc_cudnn.network.passes.microbatch import WholeBatchError
from ooc_cudnn.network.passes.remat_for_backward import rematerializable
from ooc_cudnn.network.passes.split_concatenations import split_concatenations
from ooc_cudnn.network.search.pass_pipeline import apply_passes, canonicalize
from ooc_cudnn.network.search.strategies.remat_slices import RematerializeSlices
from ooc_cudnn.network.search.strategies.spill_slices import SpillSlices
from ooc_cudnn.operations.normalization.batch_two_phase import MergePartsCall
from tests.fuzz.rewrites import Rewritten
from tests.support.forced import Forced
from tests.support.network_steps import spilling_plans

LIMIT = 1_000_000


@pytest.mark.parametrize("seed", [7, 30, 37])
def test_slabs_of_drawn_networks_compute_what_pytorch_does(seed):
    drawn, cut = Rewritten(seed), 0
    step = split_concatenations(canonicalize(drawn.net.training_phases(drawn.loss), "best"))
    for again in (frozenset(), rematerializable(step)):
        rewritten = apply_passes(step, again, 1, 1, again)
        for slices in (2, 3, 50):
            made = slice_batch(rewritten, slices)
            cut += len(made.phases) > len(rewritten.phases)
            drawn.check(made)
    assert cut > 0


def normalised():
    """Two normalised convolutions with a shortcut, in float64, on more than fits."""
    net = ooc_cudnn.Network(seed=3)
    x = h = net.convolution(net.input("x", (12, 3, 16, 16), "float64"), 8, window=3, padding=1)
    for _ in range(2):
        y = net.activation(net.batch_normalization(h))
        y = net.batch_normalization(net.convolution(y, 8, window=3, padding=1))
        h = net.activation(net.add(y, x), "relu")
    labels = net.input("labels", (12,), "int64")
    return net, net.softmax_cross_entropy(net.linear(net.global_average(h), 4), labels)


@pytest.mark.parametrize(
    ("strategy", "limit"), [(SpillSlices(), LIMIT), (RematerializeSlices(), 1_200_000)]
)
def test_a_plan_in_slabs_is_stored_and_computes_what_keeping_all_does(strategy, limit):
    net, loss = normalised()
    random = np.random.default_rng(0)
    inputs = {"x": random.standard_normal((12, 3, 16, 16)), "labels": np.arange(12) % 4}
    with ooc_cudnn.settings(machine="host"):
        made = spilling_plans(net, loss, limit, strategy)[0]
    assert made.plan.batch_slices > 1
    assert f", the outer phases in {made.plan.batch_slices} slabs" in made.plan.explain()
    assert made.plan.again
    assert made.plan.apart == isinstance(strategy, SpillSlices)
    assert made.plan.device_bytes <= limit
    plan = NetworkPlan.from_json(made.plan.to_json())
    assert plan == made.plan
    whole = net.training_step(loss, memory_limit="16MiB", policy="keep")
    step = net.training_step(loss, plan=plan)
    assert step(**inputs) == pytest.approx(whole(**inputs), rel=1e-12)
    assert any(task.name.endswith("moments [1]") for task in step.plan.tasks)
    expected = {name: np.asarray(each) for name, each in whole.gradients.items()}
    atol = 1e-11 * max(np.abs(each).max() for each in expected.values())
    for name, each in expected.items():
        np.testing.assert_allclose(step.gradients[name], each, rtol=0, atol=atol, err_msg=name)


def test_phases_between_the_large_ones_run_once():
    """And those before the last large one of forward go slab by slab, however small they are."""
    net = ooc_cudnn.Network()
    x = net.input("x", (4, 1, 16, 16))
    for at, (channels, stride) in enumerate([(2, 1), (16, 1), (16, 2), (16, 2)]):
        x = net.convolution(x, channels, window=3, padding=1, stride=stride, name=f"c{at}")
    labels = net.input("labels", (4,), "int64")
    loss = net.softmax_cross_entropy(net.linear(net.global_average(x), 3), labels)
    step = canonicalize(net.training_phases(loss), "best")
    cut = {phase.name.split(" [")[0] for phase in slice_batch(step, 2).phases if " [" in phase.name}
    assert cut == {
        "c0 forward", "c1 forward", "c2 forward", "c2 filter gradient", "c2 data gradient",
        "c1 bias gradient", "c1 filter gradient", "c1 data gradient",
        "c0 bias gradient", "c0 filter gradient",
    }  # fmt: skip


def test_sums_in_a_fixed_order_are_not_made_slab_by_slab():
    net, loss = normalised()
    with ooc_cudnn.settings(deterministic=True):
        step = canonicalize(net.training_phases(loss), "best")
    with pytest.raises(WholeBatchError, match="in their order"):
        slice_batch(step, 2)


@pytest.mark.parametrize("kind", ["moments", "sums"])
def test_states_of_parts_are_those_of_all(kind):
    random = np.random.default_rng(1)
    parts = [random.standard_normal((n, 5)) for n in (4, 1, 7)]
    whole = np.concatenate(parts)

    def state(values):
        if kind == "sums":
            return np.stack([values.sum(axis=0), (values**2).sum(axis=0)])
        mean = values.mean(axis=0)
        return np.stack([np.full(5, len(values)), mean, ((values - mean) ** 2).sum(axis=0)])

    call = MergePartsCall(5, kind, 3)
    given = {f"x{at}": state(part) for at, part in enumerate(parts)}
    found = np.zeros_like(given["x0"])
    Forced(call, {**given, "y": found}).run(call.extents)
    np.testing.assert_allclose(found, state(whole), rtol=1e-13, atol=1e-13)
    value, size = call.expected(call.whole_piece(), lambda name, region: given[name])["y"]
    np.testing.assert_allclose(value, found, rtol=1e-13, atol=1e-13)
    assert (size >= np.abs(value) * 0.9).all() or kind == "sums"
