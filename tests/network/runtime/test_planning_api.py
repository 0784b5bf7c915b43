"""Running statistics of a step: in pinned memory of its own, whatever memory the user's are in."""

import numpy as np
import pytest

import ooc_cudnn
from tests.support.residual import blocks


@pytest.fixture
def step(few_plans):
    """A step of two batch normalizations under a limit that streams its maps."""
    net = ooc_cudnn.Network()
    x = net.input("x", (4, 6, 12, 12))
    for at in range(2):
        x = net.convolution(x, 6, window=3, padding=1, name=f"conv{at}")
        x = net.activation(net.batch_normalization(x, name=f"norm{at}"))
    loss = net.mean_squared_error(x, net.input("target", x.shape))
    return net, net.training_step(loss, memory_limit="64KiB")


def test_they_are_copied_as_pinned_memory_is(step, random):
    net, run = step
    users = {name: np.array(net.running[name]) for name in net.running}
    for name, array in users.items():
        net.running[name] = array
    before = {name: array.copy() for name, array in users.items()}
    given = {name: random.standard_normal((4, 6, 12, 12), np.float32) for name in ("x", "target")}
    with ooc_cudnn.settings(device="host", machine="host"):
        run(**given)
        first = {name: np.array(net.running[name]) for name in net.running}
        run(**given)
    bindings = run._last.lowered.program.bindings
    assert {bindings[name].spec.placement for name in net.running} == {"pinned"}
    assert {ooc_cudnn.placement(net.running[name]) for name in net.running} == {"pinned"}
    for name, array in users.items():
        assert np.array_equal(array, before[name]), "an array of the user's was changed"
        assert not np.array_equal(first[name], before[name])
        # the same batch again: a tenth of the way that is left
        batch = before[name] + (first[name] - before[name]) / 0.1
        expected = first[name] + 0.1 * (batch - first[name])
        assert np.allclose(net.running[name], expected, rtol=1e-4)


@pytest.mark.parametrize("policy", ["checkpoint", "remake"])
def test_they_are_updated_once_where_forward_runs_again(policy, random):
    """Whatever makes maps again: each norm moves its statistics by one batch in a step."""
    found = []
    given = {"x": random.standard_normal((4, 3, 12, 12), np.float32), "labels": np.arange(4)}
    for each in ("keep", policy):
        net, loss = blocks(4, 12, 3)
        full = net.plan(loss, memory_limit="1GiB", policy="keep").device_bytes
        limit = "1GiB" if each == "keep" else int(0.7 * full)
        run = net.training_step(loss, memory_limit=limit, policy=each)
        run(**given)
        remade = {base for base, fate in run.plan.fate.items() if fate == "recomputed"}
        assert bool(remade) == (each != "keep")
        written = [name for phase in run._last.step.phases for name in phase.writes]
        assert [written.count(name) for name in net.running] == [1] * len(net.running)
        found.append({name: np.array(net.running[name]) for name in net.running})
    for name, expected in found[0].items():
        assert np.allclose(found[1][name], expected, rtol=1e-5, atol=1e-6), name
