"""What a plan says of its tensors: made twice is counted once, in micro-batches as in one."""

import pytest

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.engines.target import Target
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import RematEvent
from ooc_cudnn.network.lowering.summarize import RewriteSpec
from ooc_cudnn.network.passes.batch_slices import slice_batch
from ooc_cudnn.network.passes.insert_remat_events import insert_remat_events
from ooc_cudnn.network.policies.policy import POLICIES
from ooc_cudnn.network.search.candidate import Candidate, lower_and_replay
from ooc_cudnn.tensor import ORDERS
from perfmodel import shipped


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
    assert len(whole.rematerialized) > 0
    assert set(whole.rematerialized) <= {
        name for name, fate in whole.fate.items() if fate == "recomputed"
    }
    sizes = {name: tensor.nbytes for name, tensor in net.graph.tensors.items()}
    assert remade_bytes(whole) >= sum(sizes.get(name, 0) for name in whole.rematerialized)
    assert remade_bytes(parts) == remade_bytes(whole)


def test_without_remaking_nothing_is_said_to_be_remade(built):
    net, loss = built
    assert remade_bytes(net.plan(loss, machine="h200", policy="keep", micro_batches=1)) == 0


def test_of_a_map_in_slices_each_slice_has_its_fate():
    net = ooc_cudnn.Network(seed=1)
    h = net.input("x", (4, 2, 12, 6))
    for name in "ab":
        h = net.activation(net.convolution(h, 4, window=3, padding=1), "tanh", name=name)
    loss = net.mean_squared_error(h, net.input("target", h.shape))
    slices = slice_batch(net.training_phases(loss), 2)
    again = (RematEvent(slices.turn, "a [1]"),)
    step = insert_remat_events(slices, again)
    target = Target(shipped("h200"), 2**30, 2**30, ORDERS, None, overlap=True)
    candidate = Candidate(
        step, POLICIES["keep"].live_ranges_of(step), PlanConstraints(target, {}), "keep",
        RewriteSpec(again=again, batch_slices=2),
    )  # fmt: skip
    fates = lower_and_replay("step", candidate).plan.fate
    assert {name: fates[name] for name in ("a [0]", "a [1]")} == {
        "a [0]": "kept", "a [1]": "recomputed",
    }  # fmt: skip
    assert "a [1] remade" not in fates
