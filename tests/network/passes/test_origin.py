"""The origin of tensors that passes make: of which tensor each is a part or a copy."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ooc_cudnn
from ooc_cudnn.network.ir.tensor import Origin
from ooc_cudnn.network.passes.batch_slices import slice_batch
from ooc_cudnn.network.passes.insert_remat_events import insert_remat_events
from ooc_cudnn.network.passes.microbatch import split_into_microbatches
from ooc_cudnn.network.passes.remat_for_backward import rematerializable, rematerialize
from ooc_cudnn.network.passes.row_tiling import tile_rows
from ooc_cudnn.network.search.pass_pipeline import RematEvent, canonicalize


@pytest.fixture(scope="module")
def step():
    net = ooc_cudnn.Network(seed=1)
    h = net.input("x", (4, 2, 12, 6))
    for name in "abc":
        h = net.activation(net.convolution(h, 4, window=3, padding=1), "tanh", name=name)
    loss = net.mean_squared_error(h, net.input("target", h.shape))
    return canonicalize(net.training_phases(loss), "best")


def origins(step):
    return {name: step.tensors[name].origin for name in step.uses}


def test_what_the_network_has_comes_of_nothing_but_gradients(step):
    for name, origin in origins(step).items():
        of = origin.gradient_of
        assert origin == Origin(gradient_of=of), name
        assert bool(of) == (step.tensors[name].kind == "gradient"), name
        assert not of or step.tensors[of].shape == step.tensors[name].shape


def test_a_part_of_a_copy_is_both(step):
    made = split_into_microbatches(rematerialize(step, rematerializable(step)), 2)
    found = origins(made)
    for at in range(2):
        assert found[f"a [{at}]"] == Origin("a", micro_batch=at)
        assert found[f"a remade [{at}]"] == Origin("a", copy="rematerialized", micro_batch=at)
        assert found[f"a.gradient [{at}]"] == Origin("a.gradient", "a", micro_batch=at)


def test_copies_of_batch_slices_are_of_the_same_slice(step):
    slices = slice_batch(step, 2)
    turn = slices.turn
    made = insert_remat_events(slices, [RematEvent(turn, "a [1]"), RematEvent(turn + 2, "a [1]")])
    copies = [t for name, t in made.tensors.items() if name in made.uses and t.origin.copy]
    assert [t.origin for t in copies] == [Origin("a", "", "rematerialized", 1)] * 2
    assert {t.source for t in copies} == {"a"}


def test_row_tiles_know_their_number_and_copied_rows_their_source(step):
    made = tile_rows(step, (), 3)
    found = origins(made).values()
    tiles = {origin.row_tile for origin in found if origin.of == "a"}
    assert tiles == {0, 1, 2}
    rows = {origin for origin in found if origin.copy == "rows"}
    assert {(origin.of, origin.row_tile) for origin in rows} >= {("x", at) for at in range(3)}


def test_nothing_reads_names(step):
    """Passes on a step whose tensors have names without any meaning: as on that of the network."""
    names = {name: f"t{at}" for at, name in enumerate(step.tensors)}

    def renamed(tensor):
        origin = tensor.origin._replace(gradient_of=names.get(tensor.origin.gradient_of, ""))
        return replace(tensor, name=names[tensor.name], of=names.get(tensor.of, ""), origin=origin)

    tensors = {names[name]: renamed(tensor) for name, tensor in step.tensors.items()}
    phases = tuple(
        replace(phase, binds={operand: names[name] for operand, name in phase.binds.items()})
        for phase in step.phases
    )
    outputs = tuple(names[name] for name in step.outputs)
    pairs = {
        each: {names[a]: names[b] for a, b in getattr(step, each).items()}
        for each in ("gradients", "seeds")
    }
    other = replace(step, tensors=tensors, phases=phases, outputs=outputs, **pairs)
    for bands in (2, 3):
        one, two = (tile_rows(each, (), bands) for each in (step, other))
        assert [(p.name, p.call) for p in two.phases if "copy" not in p.name] == [
            (p.name, p.call) for p in one.phases if "copy" not in p.name
        ]
        kinds = [[t.kind for t in each.tensors.values()] for each in (one, two)]
        assert kinds[0] == kinds[1]
