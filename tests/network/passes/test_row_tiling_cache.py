"""Rows of whole tensors that several phases of a band read: they cross the link once."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.network.passes import row_tiling as bands_module
from ooc_cudnn.network.passes.row_tiling import tile_rows, whole_maps
from ooc_cudnn.network.search.pass_pipeline import canonicalize
from tests.support.network_steps import banded_plan

LAYERS = ((4, False), (4, True), (6, False), (6, True))


def features():
    """Two groups of convolutions, each with a pooling behind it, and a loss."""
    net = ooc_cudnn.Network(seed=3)
    x = net.input("x", (1, 2, 16, 12), "float64")
    y = x
    for channels, pooled in LAYERS:
        y = net.activation(net.convolution(y, channels, window=3, padding=1))
        if pooled:
            y = net.pooling(y, window=2)
    loss = net.mean_squared_error(y, net.input("target", y.shape, "float64"))
    return net, loss


def copies_of(step):
    """Each phase that copies, with the names of those that read the copy."""
    found = []
    for at, phase in enumerate(step.phases):
        if " copy (band" in phase.name:
            copy = phase.binds["y"]
            readers = [p.name for p in step.phases[at + 1 :] if copy in p.binds.values()]
            found.append((phase, readers))
    return found


def test_a_band_copies_what_its_convolutions_read():
    net, loss = features()
    step = canonicalize(net.training_phases(loss), "best")
    made = tile_rows(step, whole_maps(step), 2)
    copies = copies_of(made)
    names = [f"{name} copy (band {band})" for name in ("x", "pooling_1") for band in (0, 1)]
    # once for forward; and once for the convolution made again and the gradient of its filters
    assert sorted(phase.name for phase, _ in copies) == sorted(names * 2)
    for phase, readers in copies:
        assert len(readers) == 1 + phase.is_backward
        assert any("filter gradient" in reader for reader in readers) == phase.is_backward
        assert phase.call.may_cut("h_y")
        assert not phase.call.may_cut("c_y")  # such pieces would go through a ring
    # windows overlap: a band copies the row beside it, too
    assert sum(made.tensors[name].shape[2] for name in made.tensors if "x of" in name) > 16
    assert made.forward_count == sum(not phase.is_backward for phase in made.phases)


def test_it_saves_copies_in_and_changes_no_result(monkeypatch):
    rng = np.random.default_rng(0)
    net, loss = features()
    tensors = net.graph.tensors
    inputs = {name: rng.standard_normal(tensors[name].shape) for name in ("x", "target")}
    whole = net.training_step(loss, memory_limit="1GiB", policy="keep")
    expected = whole(**inputs)
    limit = 24_000  # of which whole maps get little
    plan = banded_plan(net, loss, limit, 4)
    step = net.training_step(loss, memory_limit=limit, plan=plan)
    assert step(**inputs) == pytest.approx(expected, rel=1e-12)
    for name, gradient in whole.gradients.items():
        found = np.asarray(step.gradients[name])
        assert found == pytest.approx(np.asarray(gradient), abs=1e-12), name
    monkeypatch.setattr(bands_module, "cache_rows", lambda tiling_regions, cut: tiling_regions)
    without = banded_plan(net, loss, limit, 4)
    assert plan.bytes_in < 0.8 * without.bytes_in
