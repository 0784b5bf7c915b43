"""Plans are data: printable, comparable, with JSON there and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.tensor import TensorSpec
from tests.support.forced import Forced


@pytest.fixture
def plan():
    chain = Chain((Convolution.of((8, 16, 64, 64), (16, 16, 3, 3), padding=1),), "float32")
    specs = {name: TensorSpec(op.shape, op.dtype) for name, op in chain.operands.items()}
    return Forced(chain, specs, limit=400_000).plan()


def test_json_there_and_back(plan):
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.explain() == plan.explain()
    assert plan.alternatives


def test_explain_says_everything(plan):
    text = plan.explain()
    for part in (
        "x   8 x 16 x 64 x 64",
        f"d_n={plan.split.n} d_cY={plan.split.c_y} d_cX={plan.split.c_x} d_hY={plan.split.h_y}",
        "loop order n, cY, hY, cX",
        "copy_in",
        "<- binds",
        "alternatives",
        "workspace",
        f"{plan.pieces} pieces",
    ):
        assert part in text, part
    assert str(plan) == text
    assert sum(line.endswith("<- binds") for line in text.splitlines()) == 1


def test_memory_adds_up(plan):
    assert plan.device_bytes == sum(count for _, count in plan.memory) <= plan.memory_limit
    assert all(count % 256 == 0 for _, count in plan.memory)
    assert not plan.in_core


def test_a_plan_that_cannot_be(plan):
    with pytest.raises(ValueError, match="does not fit its limit"):
        replace(plan, memory_limit=plan.device_bytes - 1)
    with pytest.raises(ValueError, match="pieces must be at least 1"):
        replace(plan, pieces=0)


def test_explain_says_whether_streams_overlap(plan):
    deep = replace(plan, pieces=4, overlap=True, rings=(("x", 3), ("w", 1), ("y", 3)))
    assert not deep.takes_turns
    assert "three streams overlapped" in deep.explain()
    short = replace(deep, rings=(("x", 1), ("w", 1), ("y", 1)))
    assert short.takes_turns
    assert "streams take turns: one slot for each operand" in short.explain()
    assert "overlapped" not in short.explain()
    assert "one after the other" in replace(short, overlap=False).explain()
    assert "one piece" in replace(deep, pieces=1).explain()
    assert "nothing to copy" in replace(deep, rings=(("x", 0), ("y", 0))).explain()
