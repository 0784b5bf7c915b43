"""Sums over images that micro-batches make once: which, when, and that gradients are right."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

import ooc_cudnn
from ooc_cudnn.network.ir.step import RematEvent
from ooc_cudnn.network.passes.fuse_gradient_sums import fuse_gradient_sums
from ooc_cudnn.network.passes.inplace_gradients import share_gradient_memory
from ooc_cudnn.network.passes.microbatch import images_of, parts_of, split_into_microbatches
from ooc_cudnn.network.passes.microbatch_sums import run_before, sum_microbatches_last
from ooc_cudnn.network.runtime.constraints_here import constraints_for
from ooc_cudnn.network.search.pass_pipeline import canonicalize, rematerialize_in_parts
from ooc_cudnn.network.search.plan_step import plan_step
from ooc_cudnn.network.search.remat_solutions import INPUTS, find_remat_solutions
from tests.support.interpreter import run_step
from tests.support.network_checks import check_network
from tests.support.sampling import number


def classifier(*, images=6):
    """A convolution, and linear layers of which the first has large filters."""
    net = ooc_cudnn.Network()
    x = net.input("x", (images, 3, 9, 9), "float64")
    h = net.activation(net.convolution(x, 8, window=3, name="conv"), "relu")
    h = net.activation(net.linear(h, 40, name="fc1"), "relu")
    h = net.linear(h, 40, name="fc2")
    return net, net.linear(net.activation(h, "relu"), 3, name="fc3")


def twin(t):
    h = F.conv2d(t["x"], t["conv.w"], t["conv.b"]).relu().flatten(1)
    for name in ("fc1", "fc2"):
        h = F.linear(h, t[f"{name}.w"].flatten(1), t[f"{name}.b"]).relu()
    return F.linear(h, t["fc3.w"].flatten(1), t["fc3.b"])


def phases_of(output, net):
    return share_gradient_memory(fuse_gradient_sums(net.gradient_phases(output)))


def names(step, numbers):
    return [step.phases[at].name for at in sorted(numbers)]


def test_filter_gradients_larger_than_what_they_are_made_of():
    net, y = classifier()
    step = phases_of(y, net)
    assert names(step, sum_microbatches_last(step, images_of(step))) == [
        "fc2 filter gradient", "fc1 filter gradient",
    ]  # fmt: skip


def test_with_many_images_none_is():
    net, y = classifier(images=600)
    step = phases_of(y, net)
    assert sum_microbatches_last(step, images_of(step)) == frozenset()


@pytest.mark.parametrize("parts", [2, 4, 6])
def test_gradients_are_those_of_the_whole_batch(parts):
    """Also where the last part is smaller: of 7 images in 4 parts."""
    net, y = classifier(images=7 if parts == 4 else 6)

    def run(step, *given):
        rewritten = split_into_microbatches(share_gradient_memory(fuse_gradient_sums(step)), parts)
        once = [phase.name for phase in rewritten.phases if "[" not in phase.name]
        assert {"fc1 filter gradient", "fc2 filter gradient"} <= set(once)
        return run_step(rewritten, *given)

    check_network(net, y, twin, run=run, inference=False)


def test_nothing_that_another_phase_adds_to():
    """Filters that two layers share have a gradient of two sums: each part makes both."""
    net = ooc_cudnn.Network()
    x = net.input("x", (4, 30), "float64", gradient=True)
    h = net.activation(net.linear(x, 30, name="fc"), "tanh")
    y = net.linear(h, 30, w=net.graph.tensors["fc.w"], name="again")
    step = phases_of(y, net)
    shared = {step.base(step.gradients["fc.w"])}
    last = sum_microbatches_last(step, 4)
    assert not any(shared & {step.base(n) for n in step.phases[at].writes} for at in last)


def test_the_sum_is_made_where_the_part_holds_less():
    """With few parts at once; with more where maps of the part are gone, or at the end."""
    net, loss = ooc_cudnn.networks.vgg16(batch=256)
    step = phases_of(loss, net)
    last = sum_microbatches_last(step, 256)
    assert names(step, last) == [f"{n} filter gradient" for n in ("logits", "fc7", "fc6")]
    places = {}
    for parts in (2, 16, 256):
        for before, numbers in run_before(step, last, parts).items():
            places |= {(step.phases[at].name, parts): before - at for at in numbers}
    assert places["logits filter gradient", 2] == 0
    of_fc6 = [places["fc6 filter gradient", parts] for parts in (2, 16, 256)]
    assert 0 < of_fc6[0] < of_fc6[1] < of_fc6[2]
    assert max(last) + of_fc6[2] == len(step.phases)


def pooled(*, images=4):
    """Poolings before a convolution with filters that are larger than its maps."""
    net = ooc_cudnn.Network()
    h = net.input("x", (images, 3, 32, 32), "float64")
    for at, channels in enumerate((8, 8, 16)):
        h = net.convolution(h, channels, window=3, padding=1, name=f"conv{at}")
        h = net.pooling(net.activation(h, "tanh"), window=2, name=f"pool{at}")
    h = net.activation(net.convolution(h, 16, window=3, padding=1, name="wide"), "tanh")
    return net, net.linear(net.global_average(h), 3, name="end")


def pooled_twin(t):
    h = t["x"]
    for at in range(3):
        h = F.conv2d(h, t[f"conv{at}.w"], t[f"conv{at}.b"], padding=1)
        h = F.max_pool2d(h.tanh(), 2)
    h = F.conv2d(h, t["wide.w"], t["wide.b"], padding=1).tanh().mean((2, 3))
    return F.linear(h, t["end.w"].flatten(1), t["end.b"])


def compress_activations(step):
    """As `best` takes it: a pooling saves where its maxima are, beside its result."""
    return share_gradient_memory(fuse_gradient_sums(canonicalize(step, "best")))


def test_a_search_knows_what_is_made_beside_what_parts_share():
    """An index made again comes with its pooling's result, which the sum needs of all images."""
    net, y = pooled()
    step = compress_activations(net.gradient_phases(y))
    total = sum(tensor.nbytes for tensor in step.tensors.values())
    assert "pool2" in parts_of(step, 2).shared
    assert "pool2 index" in step.tensors
    with ooc_cudnn.settings(machine="h200"):
        limits = (share * total // 100 for share in range(12, 40))
        every = (constraints_for(limit, None, step, {}) for limit in limits)
        found = (find_remat_solutions(step, constraints, 2, copied=INPUTS) for constraints in every)
        assert any(made.again for each in found for made in each)


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("name", ["pool2 index", "pool1", "pool1 index"])
def test_what_is_beside_what_parts_share_may_be_made_again(name, parts):
    net, y = pooled()

    def run(step, *given):
        ready = compress_activations(step)
        read = [at for at in ready.uses[name].phases if ready.phases[at].is_backward]
        return run_step(rematerialize_in_parts(ready, (RematEvent(read[0], name),), parts), *given)

    check_network(net, y, pooled_twin, run=run, inference=False)


@pytest.mark.parametrize("share", [0.5, 0.15, 0.2, 0.3][: number(1, of=4)])
def test_best_has_a_plan_of_it_under_every_limit(share):
    net, y = pooled()
    step = net.gradient_phases(y)
    limit = int(share * sum(tensor.nbytes for tensor in step.tensors.values()))
    with ooc_cudnn.settings(machine="h200"):
        plan = plan_step("step", step, constraints_for(limit, None, step, {})).plan
    assert plan.device_bytes <= limit
