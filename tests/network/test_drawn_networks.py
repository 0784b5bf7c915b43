"""Drawn graphs beside PyTorch: every gradient, whoever shares and forks."""

import pytest

from tests.support.drawn_networks import drawn_network
from tests.support.network_checks import check_network


@pytest.mark.parametrize("seed", range(60))
def test_drawn_networks_are_right(seed):
    net, output, twin = drawn_network(seed)
    step = check_network(net, output, twin)
    assert [p.name for p in step.phases if not set(p.writes) <= set(step.tensors)] == []


def test_nobody_reads_what_nobody_has_written():
    """Of a tensor, and of a region of it; what is written last is read, or asked for."""
    for seed in range(60):
        net, output, _ = drawn_network(seed)
        step = net.gradient_phases(output)
        there = {n for n, t in step.tensors.items() if t.kind in ("input", "parameter", "running")}
        there |= set(step.seeds.values())
        bases = {step.base(name) for name in there}
        for phase in step.phases:
            unwritten = {step.base(name) for name in phase.reads} - bases
            assert unwritten == set(), (seed, phase.name)
            bases |= {step.base(name) for name in phase.writes}
