"""Batch normalization over ranks: here two, of which the other one has the same images."""

from dataclasses import dataclass

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices import get_device
from ooc_cudnn.operations.external.calls import Cost
from tests.support.network_checks import assert_close

SHAPE = (4, 3, 16, 16)


@pytest.fixture(autouse=True)
def on_the_host():
    with ooc_cudnn.settings(device="host", machine="host"):
        yield
        get_device("host").release_caches()


@dataclass(frozen=True)
class Doubled:
    """What two ranks make together, if both have the same."""

    name: str
    why = "in a test"
    may_be_recorded = False
    factor: float

    def cost(self, images, wanted):
        return Cost(0, 1, 0)

    def forward(self, inputs, ys, how):
        (y,) = ys
        own, *moments = inputs
        y[...] = own
        if moments:
            assert (moments[0][0] == 2 * self.factor).all()  # twice the elements of one's own
            y *= 2 * self.factor / moments[0][0]
        else:  # count and M2; means are the same
            y[0] *= 2
            y[2] *= 2


class Twins:
    def moments(self, node, channels):
        return Doubled("moments over ranks", 0)

    def sums(self, node, channels, elements):
        return Doubled("sums over ranks", elements)


def run(images, *, ranks=None, limit="16MiB", policy="best"):
    net = ooc_cudnn.Network(seed=1)
    shape = (len(images), *SHAPE[1:])
    h = net.input("x", shape, "float64", gradient=True)
    for _ in range(2):
        h = net.convolution(h, 8, window=3, padding=1)
        h = net.activation(net.batch_normalization(h, ranks=ranks))
    y = net.linear(net.global_average(h), 5)
    step = net.pausing_step(y, memory_limit=limit, policy=policy)
    paused = step.forward(x=images)
    seed = np.random.default_rng(1).standard_normal((SHAPE[0], 5))
    made = paused.backward([np.resize(seed, y.shape)])
    return step.plan, paused.outputs[0], made, dict(net.running)


@pytest.mark.parametrize("policy", ["best", "keep", "remake", "checkpoint", "offload"])
def test_results_are_those_of_the_images_of_both_under_every_policy(policy):
    images = np.random.default_rng(0).standard_normal(SHAPE)
    _, outputs, gradients, running = run(np.concatenate([images, images]))
    plan, found, made, updated = run(images, ranks=Twins(), limit="600KiB", policy=policy)
    assert_close(found, outputs[:4], "y")
    assert_close(made.pop("x"), gradients.pop("x")[:4], "gradient of x")
    least = 1e-3 * max(np.abs(each).max() for each in gradients.values())
    for name, gradient in gradients.items():  # each has half of the sum over all images
        assert_close(2 * made[name], gradient, name, least=least)
    for name, statistics in running.items():
        assert_close(updated[name], statistics, name)
    # whatever the plan, all ranks meet in the same order
    assert [task.name for task in plan.tasks if "over ranks" in task.name] == [
        "batch_normalization_1 moments over ranks",
        "batch_normalization_2 moments over ranks",
        "batch_normalization_2 sums over ranks",
        "batch_normalization_1 sums over ranks",
    ]
    assert plan.device_bytes <= plan.memory_limit
