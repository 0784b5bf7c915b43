"""Numbers of tensors that forward makes of numbers and shapes: known at the capture, or refused."""

import operator

import pytest
import torch

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.torch.tracing.constant_tensors import constant_of
from tests.torch.idioms import constant_numbers
from tests.torch.idioms.judge import EQUAL, under_an_ample
from tests.torch.idioms.models import Model, conv, drawn

pytestmark = pytest.mark.usefixtures("fewest_plans")

NAMED = {idiom.name: idiom for idiom in constant_numbers.CASES}


@pytest.mark.parametrize(
    "name",
    [
        "axes from arange().tolist()",
        "numbers of linspace",
        "layers by elements of a constant",
        "crops that go together by size",
        "points of levels in a tensor",
    ],
)
def test_what_dynamo_refuses_is_computed(name):
    assert under_an_ample(NAMED[name])[0].kind == EQUAL


def test_a_size_in_a_tensor_is_captured_for_all_sizes():
    model = Model(lambda s, x: s.c(x) / torch.tensor(x.shape[2]), c=conv()())
    ooc.limit(model, 2**30)
    with torch.no_grad():
        for rows in (7, 8, 9, 10):
            x = drawn(2, 4, rows, 6)
            assert torch.allclose(model(x), model.c(x) / rows, atol=1e-5)
    assert len(calls_of(model)) == 2


def captured(function):
    """The node that a graph of TorchDynamo's returns."""
    found = []

    def keep(module, _):
        found.append(module.graph)
        return module.forward

    torch.compile(function, backend=keep, fullgraph=True)(torch.zeros(2, 3))
    (result,) = found[-1].find_nodes(op="output")[0].args[0]
    return result


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: torch.arange(1, x.dim() + 1) * 2, torch.tensor([2, 4])),
        (lambda x: torch.tensor(x.shape).unique(), torch.tensor([2, 3])),
        (lambda x: torch.ones(2, device=x.device), torch.ones(2)),
        (lambda x: x + 1, None),
        (lambda x: torch.rand(2), None),
        (lambda x: torch.arange(3).add_(1), None),
    ],
    ids=["arange", "unique", "ones", "data", "drawn", "written"],
)
def test_a_constant_is_what_no_data_say(function, expected):
    found = constant_of(captured(function), operator.attrgetter("meta"))
    assert (found is None) == (expected is None)
    assert expected is None or torch.equal(found, expected)
