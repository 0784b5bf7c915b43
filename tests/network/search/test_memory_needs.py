"""What a limit costs, as a plan says it: bounds that hold, of the phases that set them."""

from __future__ import annotations

import json

import pytest

from ooc_cudnn.network.ir.plan import COSTLY, NetworkPlan
from tests.support.joined_maps import unet
from tests.support.sampling import short_search


@pytest.fixture(scope="module")
def network():
    return unet(64, levels=2)


def planned(network, limit, **asked):
    net, loss = network
    with short_search():
        return net.plan(loss, memory_limit=limit, machine="h200", **asked)


@pytest.fixture(scope="module")
def kept(network):
    return planned(network, "16GiB", policy="keep")


@pytest.fixture(scope="module")
def quarter(network, kept):
    return planned(network, kept.device_bytes // 4)


def test_where_all_fits_nothing_is_said(kept):
    assert kept.needs == ()
    assert kept.seconds >= kept.one_piece_seconds > 0
    assert "what the limit costs" not in kept.explain()


def test_all_is_kept_no_earlier_than_it_says(network, kept, quarter):
    plan = quarter
    need = next(each for each in plan.needs if each.what == "all kept")
    assert plan.memory_limit < need.nbytes <= kept.device_bytes
    below = planned(network, need.nbytes - 4096)
    assert set(below.fate.values()) != {"kept"}
    assert [name for name, _ in need.tensors][:1] == ["concatenate_2"]
    assert need.phase in {task.name for task in kept.tasks}


def test_nothing_is_streamed_no_earlier_than_it_says(network, kept):
    plan = planned(network, kept.device_bytes // 10)
    assert "streamed" in plan.fate.values()
    need = next(each for each in plan.needs if each.what == "none streamed")
    assert need.phase in {task.name for task in plan.tasks}
    assert plan.memory_limit < need.nbytes
    assert sum(nbytes for _, nbytes in need.tensors) <= need.nbytes


def test_it_is_explained_and_stored(quarter):
    plan = quarter
    assert plan.seconds > COSTLY * plan.one_piece_seconds
    said = plan.explain()
    times = plan.seconds / plan.one_piece_seconds
    assert f"what the limit costs: {times:.2f} times all kept" in said
    assert f"set by {plan.needs[0].phase}: concatenate_2" in said
    stored = NetworkPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert (stored.needs, stored.explain()) == (plan.needs, said)
    older = {k: v for k, v in plan.to_json().items() if k not in ("needs", "one_piece_seconds")}
    assert NetworkPlan.from_json(older).needs == ()
