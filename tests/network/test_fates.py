"""What a plan says of its tensors: made twice is counted once, in micro-batches as in one."""

import pytest

from ooc_cudnn import networks


@pytest.fixture(scope="module")
def built():
    return networks.alexnet(batch=4, image=67, classes=10, width=1 / 16)


def remade_bytes(plan):
    return sum(each.nbytes for each in plan.fates if each.fate == "recomputed")


def test_what_is_remade_is_counted_once_however_the_batch_is_cut(built):
    net, loss = built
    whole, parts = (
        net.plan(loss, machine="h200", policy="checkpoint", micro_batches=count) for count in (1, 2)
    )
    assert len(whole.remade) > 0
    assert set(whole.remade) <= {name for name, fate in whole.fate.items() if fate == "recomputed"}
    sizes = {name: tensor.nbytes for name, tensor in net.graph.tensors.items()}
    assert remade_bytes(whole) >= sum(sizes.get(name, 0) for name in whole.remade)
    assert remade_bytes(parts) == remade_bytes(whole)


def test_without_remaking_nothing_is_said_to_be_remade(built):
    net, loss = built
    assert remade_bytes(net.plan(loss, machine="h200", policy="keep", micro_batches=1)) == 0
