"""What is to be known of a program before it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooc_cudnn.call_planner.request import WORTH_A_TASK_BYTES, WORTH_THREADS_BYTES
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.elementwise.activation import Activation
from perfmodel import Split
from tests.support.forced import Forced


@pytest.fixture
def program():
    """One task, which takes a little more than what is worth threads."""
    shape = (2, 1, WORTH_THREADS_BYTES // 16 + 2, 1)
    arrays = {"x": np.ones(shape, "f4"), "y": np.empty(shape, "f4")}
    made = Forced(Chain((Activation(shape, "relu"),), "float32"), arrays)
    return made.executor(Split(n=1, c_y=1, c_x=1, h_y=WORTH_THREADS_BYTES // 16 + 2)).program


def test_threads_stage_what_is_worth_them(program):
    request = next(program.tasks).request
    assert program.in_threads == request.in_threads


@pytest.mark.parametrize("tasks", [2, 16])
def test_a_long_program_issues_its_steps_itself_where_it_stages_little(program, tasks):
    staged = sum(binding.spec.nbytes for binding in program.bindings.values())
    long = replace(program, items=program.items * tasks)
    assert long.in_threads == (staged > tasks * WORTH_A_TASK_BYTES)
