"""Where inference writes: what is asked for fills the arrays that are given, whatever it is."""

import numpy as np
import pytest

import ooc_cudnn


@pytest.fixture
def made():
    """Two convolutions, joined; and what dropout of one is in inference: a view of it."""
    net = ooc_cudnn.Network()
    x = net.input("x", (2, 3, 4, 4), "float64")
    a, b = (net.convolution(x, 3, window=3, padding=1, name=name) for name in "ab")
    joined = net.concatenate([a, b], name="joined")
    dropped = net.dropout(joined, name="dropped")
    of_input = net.dropout(x, name="of_input")
    given = np.random.default_rng(0).standard_normal(x.shape)
    with ooc_cudnn.settings(device="host", machine="host"):
        yield net, (a, b, joined, dropped, of_input), given


@pytest.mark.parametrize("limit", ["1MiB", 2048])
def test_views_fill_the_arrays_that_are_given(made, limit, few_plans):
    """A part lies in what it is joined to: an array of the user's for it was never written."""
    net, outputs, x = made
    expected = [net.forward(output, x=x) for output in outputs]
    for asked in (outputs, *((output,) for output in outputs)):
        out = tuple(np.full(output.shape, np.nan) for output in asked)
        net.forward(*asked, x=x, out=out, memory_limit=limit)
        for output, array in zip(asked, out, strict=True):
            np.testing.assert_allclose(array, expected[outputs.index(output)], atol=1e-13)
    assert np.array_equal(expected[4], x)


def test_what_cannot_be_written_is_refused(made):
    net, (a, b, *_), x = made
    frozen = np.empty(a.shape)
    frozen.flags.writeable = False
    one = np.empty(a.shape)
    for out, said in (
        (frozen, "out of a is read-only"),
        (x, "out of a overlaps x"),
        (np.broadcast_to(one[:1], one.shape), "out of a is read-only"),
    ):
        with pytest.raises(ValueError, match=said):
            net.forward(a, x=x, out=out)
    with pytest.raises(ValueError, match="out of a overlaps out of b"):
        net.forward(a, b, x=x, out=(one, one))
    for asked, out in (((a,), []), ((a, b), one), ((a, a), (one, one.copy()))):
        with pytest.raises(TypeError, match="out must hold"):
            net.forward(*asked, x=x, out=out)


def test_what_is_given_is_no_result(made):
    net, _, x = made
    for name in ("x", "a.w"):
        with pytest.raises(ValueError, match=f"{name} is given, not made"):
            net.forward(net.graph.tensors[name], x=x)
    number = net.input("number", (1,))
    with pytest.raises(ValueError, match="number is given, not made"):
        net.training_step(number)


def test_an_input_may_have_any_name():
    net = ooc_cudnn.Network()
    y = net.activation(net.input("self", (1, 2, 3)))
    loss = net.mean_squared_error(y, net.input("device", y.shape))
    one = np.ones(y.shape, "f4")
    assert np.array_equal(net.forward(y, self=one), one)
    assert net.training_step(loss)(self=one, device=one) == 0
    assert net.resized(self=(2, 2, 3), device=(2, 2, 3)).graph.tensors["self"].shape == (2, 2, 3)
