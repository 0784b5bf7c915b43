"""The kit for linear programs: rows of every kind, of real and of whole numbers."""

import pytest

from ooc_cudnn.network.solver.model import ONE, LinearProgram, Sum, running


def knapsack():
    """Most of x, y and z, of which 2 x + 2 y + 2 z <= 3, and x = y at the most 1."""
    program = LinearProgram()
    x, y, z = (program.variable(1.0, -worth) for worth in (2.0, 2.0, 3.0))
    program.at_most(Sum.of([x, y, z], 2.0), 3)
    program.exactly(Sum.of([x]) - Sum.of([y]))
    return program


def test_real_and_whole_values():
    real = knapsack().minimize(100)
    assert real.objective == real.bound == pytest.approx(-4)
    assert list(real.values) == pytest.approx([0.25, 0.25, 1])
    whole = knapsack().minimize_whole(0.0, 100)
    assert list(whole.values) == [0, 0, 1]
    assert (whole.objective, whole.bound) == (-3, -3)


def test_constants_and_rows_that_say_nothing():
    program = LinearProgram()
    x = program.variable(2.0, 1.0)
    program.at_most({x: 1, ONE: 1}, 3)  # it cannot be more
    assert not program.rows
    program.at_least({x: 1, ONE: -0.5}, 1)
    assert program.minimize(100).objective == pytest.approx(1.5)
    assert program.are_met([1.5])
    assert not program.are_met([1.4])
    program.at_most({x: 1, ONE: 1}, 2)
    assert program.minimize(100) is None
    assert program.minimize_whole(0.0, 100) is None


def test_levels_are_sums():
    program = LinearProgram()
    x = program.variable(cost=1.0)
    first, second = program.levels(running([{x: 1}, {x: 2, ONE: 1}]))
    program.at_least({second: 1}, 7)
    values = program.minimize(100).values
    assert list(values[[x, first, second]]) == pytest.approx([2, 2, 7])
