"""Launches that are made once are those that each piece has."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ooc_cudnn import networks
from ooc_cudnn.network.search import pass_pipeline
from ooc_cudnn.operations.core.launch_cache import launches_on
from ooc_cudnn.operations.external.calls import Cost, ExternalCall, ExternalInput
from ooc_cudnn.tensor import ORDERS


@pytest.mark.parametrize("parts", [1, 2])
def test_they_are_those_of_each_piece(parts):
    net, loss = networks.vgg16(4, 32, width=1 / 16)
    step = pass_pipeline.canonicalize(net.training_phases(loss), "best")
    for phase in pass_pipeline.apply_passes(step, frozenset(), parts, 1).phases:
        call = phase.call
        for layout in ORDERS:
            how = {"layout": layout, "orders": dict.fromkeys(call.operands, layout)}
            for sweep in range(call.sweeps):
                piece = call.whole_piece(sweep)
                assert launches_on(call, piece, **how) == call.launches(piece, **how)


@dataclass(frozen=True)
class Told:
    """A computation; those of one name are alike for plans."""

    name: str
    why = "it is a test"
    may_be_recorded = False

    def cost(self, images, wanted):
        return Cost(0, 0, 0)


def test_a_computation_of_another_library_is_its_own():
    one, other = Told("sum over ranks"), Told("sum over ranks")
    for computation in (one, other):
        call = ExternalCall(
            computation, (ExternalInput((4, 3), "float32", True),), (4, 3), "float32", 4, 4
        )
        how = {"layout": "channels_first", "orders": dict.fromkeys(call.operands, "channels_first")}
        launches, _ = launches_on(call, call.whole_piece(0), **how)
        assert launches[0].operation.computation is computation
