"""Kinds of calls: what is planned once, and what each call keeps of its own."""

import pytest

from ooc_cudnn.engines.target import Target
from ooc_cudnn.network.lowering.call_plans import kind_of_call
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.external.calls import ExternalCall, ExternalInput
from ooc_cudnn.tensor import ORDERS, TensorSpec
from perfmodel import shipped
from tests.operations.core.test_launch_cache import Told

TARGET = Target(shipped("h200"), 2**30, 2**30, ORDERS, None, overlap=True)


def external():
    given = ExternalInput((4, 3), "float32", True)
    return ExternalCall(Told("sum over ranks"), (given,), (4, 3), "float32", 4, 4)


def convolution():
    return Chain((Convolution.of((4, 3, 8, 8), (8, 3, 3, 3)),), "float32")


@pytest.mark.parametrize(("made", "is_shared"), [(external, False), (convolution, True)])
def test_what_runs_is_the_call_that_was_planned(made, is_shared):
    """Equal calls have one plan; those of another library may hold something else each."""
    one, other = made(), made()
    assert one == other
    kinds = []
    for call in (one, other):
        specs = tuple(TensorSpec(operand.shape) for operand in call.operands.values())
        kinds.append(kind_of_call(call, specs, (True,) * len(specs), TARGET))
    plans = [kind.plan("it", 2**20) for kind in kinds]
    assert plans[0][1] == plans[1][1]
    assert (kinds[0] is kinds[1]) == is_shared
    if not is_shared:
        assert [request.chain for request, _ in plans][1].computation is other.computation
