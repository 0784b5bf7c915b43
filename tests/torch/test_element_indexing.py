"""Indices that are numbers in tensors: one capture for all of them, and what stays refused."""

import operator

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.tracing.element_indexing import get_item, in_place_of, set_item
from tests.torch.idioms import indices
from tests.torch.idioms.judge import EQUAL, under_an_ample
from tests.torch.idioms.models import Model, conv, drawn, image

pytestmark = pytest.mark.usefixtures("fewest_plans")

NAMED = {idiom.name: idiom for idiom in indices.CASES}
T, ALL = torch.tensor(-1), slice(None)


@pytest.mark.parametrize(
    "index",
    [
        T,
        (ALL, T),
        (T, T),
        (..., T),
        (T, ..., T),
        (None, T, None, ALL),
        (0, T, slice(1, 3)),
        (ALL, T, torch.tensor([0, 2])),
        (T, ALL, torch.tensor([0, 2])),
        (drawn(2, 4) > 0, T),
        (torch.tensor([1, 0]), T, ..., torch.tensor([1, 0])),
        (ALL, torch.tensor(2, dtype=torch.int8)),
        (torch.tensor(True), ..., T),
    ],
    ids=str,
)
def test_parts_are_those_of_pytorch(index):
    x = drawn(2, 4, 3, 5)
    assert torch.equal(get_item(x, index), x[index])
    ours, theirs = x.clone(), x.clone()
    set_item(ours, index, 7.0)
    theirs[index] = 7.0
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("index", [0, (ALL, 1), torch.tensor([1]), torch.tensor(True), [T, T]])
def test_other_indices_are_left_to_pytorch(index):
    assert in_place_of(operator.getitem, (drawn(2, 4), index), {}) is None


@pytest.mark.parametrize(
    "name",
    [
        "a ring of maps by a counter",
        "a view by a number that goes on",
        "y[:, t] of int16",
        "y[t], y[t, u]",
        "parts written to by t",
        "a number of forward's own",
    ],
)
def test_what_dynamo_refuses_is_computed(name):
    assert under_an_ample(NAMED[name])[0].kind == EQUAL


def test_all_numbers_are_one_capture():
    model = Model(lambda s, x, t: s.c(x) * s.w[t], c=conv()(), w=nn.Parameter(drawn(6)))
    ooc.limit(model, 2**30)
    with torch.no_grad():
        for at in range(6):
            model(image(), torch.tensor(at))
    assert len(calls_of(model)) == 1


def test_a_place_beyond_the_end_is_an_error():
    model = ooc.limit(Model(lambda s, x, t: s.c(x)[:, t], c=conv()()), 2**30)
    with torch.no_grad(), pytest.raises(IndexError, match="out of bounds"):
        model(image(), torch.tensor(4))


def test_torch_compile_knows_such_indices():
    model = Model(lambda s, x, t: s.c(x)[:, t], c=conv()())
    compiled = torch.compile(model, backend="ooc_cudnn")
    with torch.no_grad():
        made, expected = compiled(image(), T), model(image(), T)
    assert torch.allclose(made, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["a queue by a number of a tensor", "y[:, t:t + 1]"])
def test_a_number_of_a_tensor_is_refused_with_the_index_to_write(name):
    (verdict, _) = under_an_ample(NAMED[name])
    for said in ("q[:, (t + torch.arange(n)) % k] = v", "q.narrow(1, t, n)"):
        assert said in verdict.why


def test_an_output_at_such_a_place_beside_the_whole_is_refused():
    model = ooc.limit(Model(lambda s, x, t: (s.c(x), s.w[t]), c=conv()(), w=drawn(3)), 2**30)
    with pytest.raises(UnsupportedModelError, match="a place that depends on data: return a clone"):
        model(image(), T)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda y, t: y[:, [0, t]], "a list that holds a tensor: make a tensor of it"),
        (lambda y, t: [y, y * 2][t % 2], r"the place in a list \(torch.stack\(maps\)\[t\] will do"),
    ],
)
def test_lists_are_refused_with_the_index_to_write(function, said):
    model = ooc.limit(Model(lambda s, x, t: function(s.c(x), t), c=conv()()), 2**30)
    with pytest.raises(UnsupportedModelError, match=said):
        model(image(), torch.tensor(1))
