"""`plan` over a cluster: blocks priced by each worker's machine model, chunks compared."""

from dataclasses import replace

import numpy as np
import pytest

from perfmodel import shipped

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
pytest.importorskip("distributed", reason="the extra dask is not installed")

import ooc_cudnn.dask as ooc  # noqa: E402

CARD = ooc.Worker("tcp://a", "cuda:0", "cuda", 16 * 2**30, shipped("h200"), "0.1.0")
HOST = ooc.Worker("tcp://b", "host", "host", 16 * 2**30, shipped("host"), "0.1.0")
X = da.zeros((1, 64, 8192, 4096), chunks=(1, 64, 1024, 1024), dtype="float32")
W = np.zeros((64, 64, 3, 3), "float32")


def layer(x):
    return ooc.convolution_forward(x, W, padding=1)


def test_two_cards_take_half_as_long_as_one():
    one, two = (ooc.plan(layer, X, [CARD] * count, sides=()) for count in (1, 2))
    assert (one.blocks, one.workers, two.workers) == (32, 1, 2)
    assert one.binding == "computing"
    assert two.computing_seconds == pytest.approx(one.computing_seconds / 2)
    assert one.network_seconds == 0 < two.network_seconds
    gathered = two.block_bytes
    assert gathered == 4 * 64 * (1026 * 1026 + 1024 * 1024)


def test_a_worker_without_a_card_is_given_fewer_blocks():
    card, both = (ooc.plan(layer, X, on, sides=()) for on in ([CARD], [CARD, HOST]))
    host = ooc.plan(layer, X, [HOST], sides=())
    assert host.seconds > card.seconds
    assert both.computing_seconds < host.computing_seconds / 1.5


def test_machine_models_of_one_name_may_differ():
    slower = replace(HOST, machine=replace(HOST.machine, name=CARD.machine.name))
    alike = [CARD, replace(CARD, machine=replace(CARD.machine))]
    mixed, both = (ooc.plan(layer, X, on, sides=()) for on in ([CARD, slower], alike))
    assert mixed.computing_seconds == ooc.plan(layer, X, [CARD, HOST], sides=()).computing_seconds
    assert mixed.computing_seconds > both.computing_seconds


def test_sums_and_stretches_between_barriers_are_counted():
    dy = da.zeros((1, 64, 4096, 4096), chunks=(1, 64, 1024, 1024), dtype="float32")
    filters = ooc.plan(lambda x: ooc.convolution_backward_filter(x, dy, padding=1), dy, [CARD],
                       sides=())  # fmt: skip
    assert filters.blocks == 16
    assert filters.computing_seconds > 0
    vectors = np.ones(64, "float32")
    normed = ooc.plan(
        lambda x: ooc.batch_normalization_forward_training(x, vectors, vectors)[0], dy, [CARD],
        sides=(),
    )  # fmt: skip
    assert normed.blocks == 32


def test_chunks_are_compared_and_the_fastest_is_proposed():
    plan = ooc.plan(layer, X, [CARD], sides=(256, 2048), store=2**30)
    assert {max(each.chunks[2]) for each in (plan, *plan.others)} == {256, 1024, 2048}
    assert all(each.seconds >= plan.seconds for each in plan.others)
    # each map of 8 GiB is read or written once, at 1 GiB a second
    assert plan.binding == "store"
    assert plan.store_seconds == pytest.approx(2 * 8)
    text = plan.explain()
    assert "bound by the store" in text
    assert "1 x 64 x 256 x 256" in text
    assert str(plan) == text


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(ValueError, match="at least one worker"):
        ooc.plan(layer, X, [])
    with pytest.raises(TypeError, match=r"and nothing after it: dask.array<add"):
        ooc.plan(lambda x: layer(x) + 1, X, [CARD], sides=())
