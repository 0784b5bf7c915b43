"""Seconds over memory of a PyTorch model: the plans that each limit has, by one capture."""

from __future__ import annotations

import json

import pytest
import torch

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.network.tradeoff.curve import Trade
from ooc_cudnn.torch.capture import capture
from tests.support.sampling import short_search

SHAPE = (8, 3, 16, 16)
LIMITS = (1.0, 0.5, "256KiB", "1KiB")


@pytest.fixture(scope="module")
def model():
    layers = [torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Conv2d(16, 16, 3), torch.nn.Flatten(1))


@pytest.fixture(scope="module")
def found(model):
    with short_search():
        return ooc.sweep(model, SHAPE, memory_limits=LIMITS, machine="h200", bound=True)


def test_each_point_is_the_plan_of_its_limit(model, found):
    for point in found.points[:3]:
        plan = ooc.plan(model, SHAPE, memory_limit=point.limit_bytes, machine="h200")
        assert point.plan.to_json() | {"notes": [], "bound_seconds": None} == plan.to_json() | {
            "notes": []
        }


def test_limits_are_shares_of_what_all_kept_takes_with_what_is_on_the_card(model, found):
    at = found.keep_all_bytes
    assert found.limits == (at, at // 2, 2**18, 2**10)
    plan = ooc.plan(model, SHAPE, memory_limit=at, machine="h200")
    assert set(plan.fate_bytes) == {"kept"}
    held = sum(4 * each.numel() for each in (*model.parameters(), *model.buffers()))
    assert at > plan.device_bytes + held
    assert found.points[0].plan.seconds <= found.keep_all_seconds


def test_it_is_captured_once(model, monkeypatch):
    count, captured = [], capture.Captures._traced

    def counted(self, *arguments):
        count.append(self)
        return captured(self, *arguments)

    monkeypatch.setattr(capture.Captures, "_traced", counted)
    told = []
    with ooc_cudnn.settings(progress=lambda *done: told.append(done)):
        ooc.sweep(torch.nn.Sequential(*model), SHAPE, memory_limits=LIMITS[:3], machine="h200")
    assert len(count) == 1
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_the_table_has_a_row_for_each_limit(found):
    head, _, columns, *rows = str(found).splitlines()
    assert head.startswith("Sequential on h200: predicted seconds of a step over memory")
    assert columns.split("  ")[-1].strip() == "tensors"
    assert rows[0].split()[0] == "1.00"
    assert rows[0].endswith("kept 100 %")
    assert rows[1].split()[0] == "0.50"
    assert rows[3].split()[-1] == "-"
    assert any("the least that would do" in row for row in rows[4:])


def test_its_json_comes_back(found):
    data = json.loads(json.dumps(found.to_json()))
    assert str(Trade.from_json(data)) == str(found)
    assert data["points"][0]["fate_bytes"] == dict(found.points[0].plan.fate_bytes)
    assert data["keep_all_seconds"] == found.keep_all_seconds


def test_when_the_time_is_over_no_plan_is_begun(model):
    found = ooc.sweep(model, SHAPE, memory_limits=LIMITS, machine="h200", within_seconds=0)
    assert [point.plan for point in found.points] == [None] * 4
    assert all(point.why.startswith("not planned: ") for point in found.points)
    assert found.keep_all_seconds > 0


def test_forward_alone(model):
    found = ooc.sweep(model, SHAPE, memory_limits=[1.0, 0.5], machine="h200", with_gradients=False)
    assert all(point.plan.name == "forward" for point in found.points)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"limits": ["much"]}, "memory_limits='much'"),
        ({"memory_limits": [1.0], "limits": [1.0]}, "'memory_limits' and 'limits'"),
        ({"policies": ["none"]}, "policy must be one of"),
        ({"within": 3}, "within"),
    ],
)
def test_what_is_no_limit_or_policy_is_refused(model, asked, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ooc.sweep(model, SHAPE, machine="h200", **asked)
