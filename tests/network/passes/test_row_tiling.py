"""What the phases of a band do to whole tensors: no band changes what another one reads."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.network.passes.row_tiling import tile_rows, whole_maps
from ooc_cudnn.network.search.pass_pipeline import canonicalize
from tests.fuzz.rewrites import Rewritten
from tests.support import drawn_tall
from tests.support.network_steps import banded_plan


def gradients_that_are_shared():
    """A sum's gradient is the pooling's, too, which reads rows beside a band; others add to it."""
    net = ooc_cudnn.Network(seed=4)
    m = net.convolution(net.input("x", (2, 2, 9, 5), "float64"), 2, window=1, name="m")
    h = net.add(m, net.convolution(m, 2, window=3, padding=1), name="h")
    y = net.convolution(net.add(h, net.convolution(h, 2, window=3, padding=1)), 2, window=1)
    pooled = net.pooling(m, window=3, stride=1, padding=1, mode="average_include_padding")
    y = net.add(net.linear(y, 3), net.linear(net.add(pooled, h), 3))
    return net, net.mean_squared_error(y, net.input("target", y.shape, "float64"))


def filters_that_are_shared():
    """Filters of a map of 10 rows are those of 5, which are the first to write their gradient."""
    net = ooc_cudnn.Network(seed=4)
    x = net.input("x", (2, 2, 10, 5), "float64")
    small = net.convolution(x, 2, window=3, stride=2, padding=1)
    tall = net.convolution(x, 2, window=1, name="shared")
    w, b = net.graph.tensors["shared.w"], net.graph.tensors["shared.b"]
    small = net.convolution(small, 2, window=1, w=w, b=b)
    y = net.add(net.linear(net.convolution(tall, 1, window=1), 3), net.linear(small, 3))
    return net, net.mean_squared_error(y, net.input("target", y.shape, "float64"))


@pytest.mark.parametrize("bands", [2, 5, 7])
@pytest.mark.parametrize("drawn", [gradients_that_are_shared, filters_that_are_shared])
def test_what_is_added_to_is_right_in_bands(drawn, bands):
    net, loss = drawn()
    random = np.random.default_rng(0)
    shapes = {name: net.graph.tensors[name].shape for name in ("x", "target")}
    inputs = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    whole = net.training_step(loss, memory_limit="1MiB", policy="keep")
    step = net.training_step(loss, plan=banded_plan(net, loss, 2**20, bands))
    assert step(**inputs) == pytest.approx(whole(**inputs), rel=1e-12)
    assert any("(band 1)" in task.name for task in step.plan.tasks)
    for name, gradient in whole.gradients.items():
        found = np.asarray(step.gradients[name])
        assert found == pytest.approx(np.asarray(gradient), abs=1e-12), name


def test_what_is_no_part_of_a_band_reads_what_is_made_again_whole(monkeypatch):
    """A group norm's gradient has sums that cannot be added to: it runs on all rows at once."""
    monkeypatch.delitem(drawn_tall.KINDS, drawn_tall.block)  # so was the network drawn
    drawn = Rewritten(2102)
    step = canonicalize(drawn.net.training_phases(drawn.loss), "best")
    made = tile_rows(step, whole_maps(step), 2)
    names = [phase.name for phase in made.phases]
    assert "group_normalization_1 data gradient" in names
    assert any("(band 1)" in name for name in names)
    drawn.check(made)


def test_what_is_behind_statistics_is_made_again_in_bands():
    """Statistics want their map whole; what is normalised and activated of it need not be."""
    net = ooc_cudnn.Network(seed=4)
    y = net.input("x", (2, 2, 16, 6), "float64")
    for name in ("a", "b", "c"):
        y = net.convolution(y, 2, window=3, padding=1, name=name)
        y = net.activation(
            net.batch_normalization(y, name=f"{name}.norm"), "relu", name=f"{name}.act"
        )
    loss = net.mean_squared_error(net.linear(y, 3), net.input("target", (2, 3), "float64"))
    step = canonicalize(net.training_phases(loss), "best")
    made = tile_rows(step, whole_maps(step), 4)
    assert {"a", "b", "c"} <= made.tensors.keys()
    assert not {"a.act", "b.act"} & made.tensors.keys()
    assert {"a.act band 3", "a.act remade band 3"} <= made.tensors.keys()
    # statistics are of rows that are there, and merged behind the last band
    names = [phase.name for phase in made.phases]
    for kind in ("moments", "sums"):
        assert f"b.norm {kind} (band 3)" in names
        assert names.index(f"b.norm {kind} (band 3)") < names.index(f"b.norm {kind}, of bands")

    random = np.random.default_rng(0)
    shapes = {name: net.graph.tensors[name].shape for name in ("x", "target")}
    inputs = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    whole = net.training_step(loss, memory_limit="1MiB", policy="keep")
    step = net.training_step(loss, plan=banded_plan(net, loss, 2**20, 4))
    assert step(**inputs) == pytest.approx(whole(**inputs), rel=1e-12)
    for name, gradient in whole.gradients.items():
        found = np.asarray(step.gradients[name])
        assert found == pytest.approx(np.asarray(gradient), abs=1e-12), name
