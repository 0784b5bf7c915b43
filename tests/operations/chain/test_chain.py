"""Chains: several operations while a piece is on the device, and the borders between them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ooc_cudnn.call_planner.slot_rings import DEPTHS
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution
from ooc_cudnn.operations.elementwise.activation import Activation, check_mode
from ooc_cudnn.operations.elementwise.binary import AddTensor, OpTensor
from ooc_cudnn.operations.normalization.batch_launches import Normalise
from perfmodel import Split
from tests.support import reference
from tests.support.forced import Forced, legal_splits
from tests.support.sampling import number


class Built:
    """A chain from a short description, its data, and its value by composing references.

    Each item is ("convolution", w_shape, geometry), ("bias",) or ("activation", mode).
    """

    def __init__(self, x_shape, items, *, alpha=1.0, beta=0.0, seed=0, dtype="float64"):
        random = np.random.default_rng(seed)
        self.x = random.standard_normal(x_shape).astype(dtype)
        operations, parameters = [], []
        shape, y, size = x_shape, self.x.astype("f8"), 1.0
        for kind, *rest in items:
            if kind == "convolution":
                w = (random.standard_normal(rest[0]) / np.sqrt(np.prod(rest[0][1:]))).astype(dtype)
                operations.append(Convolution.of(shape, rest[0], dtype=dtype, **rest[1]))
                y = reference.convolution(y, w, **rest[1])
                parameters.append(w)
            elif kind == "bias":
                b = random.standard_normal(shape[1]).astype(dtype)
                operations.append(AddTensor(shape, dtype))
                y = y + reference.bias(b, y.ndim)
                parameters.append(b)
            else:
                mode, coef = check_mode(rest[0], None)
                operations.append(Activation(shape, mode, coef, dtype))
                y = reference.ACTIVATIONS[mode](y, coef)
            shape = operations[-1].output_shape
            size = max(size, np.abs(y).max())
        self.chain = Chain(tuple(operations), dtype, alpha=alpha, beta=beta)
        self.old = random.standard_normal(shape).astype(dtype)
        self.expected = alpha * y + (beta * self.old if beta else 0)
        unit = reference.UNIT_ROUNDOFF[dtype]
        self.tolerance = 300 * unit * size * len(items)
        names = [name for group in self.chain.parameter_names for name in group]
        self.arrays = {
            "x": self.x,
            **dict(zip(names, parameters, strict=True)),
            "y": np.empty(shape, dtype),
        }

    def check_every_split(self, **options):
        forced, y, count = Forced(self.chain, self.arrays), self.arrays["y"], 0
        for at, split in enumerate(legal_splits(self.chain)):
            y[...] = self.old if self.chain.beta else np.nan
            depth = DEPTHS[at % 3]
            forced.run(split, depth=depth, overlap=at % 3 == 0, **options)
            reference.assert_close(y, self.expected, self.tolerance, f"{split} {options}")
            count += 1
        return count


SAME = {"padding": 1}
CHAINS = {
    "two": (
        (2, 3, 8, 4),
        [("convolution", (4, 3, 3, 3), SAME), ("convolution", (2, 4, 3, 3), SAME)],
    ),
    "two with everything between": (
        (2, 2, 7, 4),
        [("convolution", (3, 2, 3, 3), SAME), ("bias",), ("activation", "sigmoid"),
         ("convolution", (2, 3, 3, 3), SAME), ("bias",), ("activation", "tanh")],
    ),
    "three deep": (
        (1, 2, 12, 3),
        [("convolution", (2, 2, 3, 3), SAME), ("activation", "relu"),
         ("convolution", (2, 2, 5, 1), {"padding": (2, 0)}), ("activation", "sigmoid"),
         ("convolution", (2, 2, 3, 3), SAME)],
    ),
    "wide padding": (
        (1, 1, 4, 2),
        [("convolution", (2, 1, 2, 1), {"padding": ((5, 4), 0)}), ("activation", "sigmoid"),
         ("convolution", (1, 2, 2, 1), {"padding": ((4, 6), 0)})],
    ),
    "intermediates that no output sees": (
        (1, 1, 9, 2),
        [("convolution", (1, 1, 2, 1), {}), ("activation", "sigmoid"),
         ("convolution", (1, 1, 1, 1), {"stride": (3, 1), "padding": ((4, 5), 0)})],
    ),
    "strides": (
        (2, 2, 17, 4),
        [("convolution", (2, 2, 3, 3), {"padding": 1, "stride": (2, 1)}), ("bias",),
         ("convolution", (3, 2, 2, 2), {"padding": ((1, 2), 0), "stride": (3, 1)})],
    ),
    "stride beyond window, then stride beyond window": (
        (1, 1, 30, 2),
        [("convolution", (1, 1, 1, 1), {"stride": (3, 1), "padding": ((2, 1), 0)}), ("bias",),
         ("convolution", (1, 1, 1, 1), {"stride": (4, 1), "padding": ((7, 9), 0)})],
    ),
    "dilation and groups": (
        (1, 4, 10, 5),
        [("convolution", (4, 2, 3, 3), {"padding": 2, "dilation": 2, "groups": 2}), ("bias",),
         ("convolution", (4, 1, 3, 3), {"padding": 1, "groups": 4})],
    ),
    "activation first": (
        (2, 2, 6, 3),
        [("activation", "relu"), ("bias",), ("convolution", (2, 2, 3, 3), SAME),
         ("activation", "elu")],
    ),
    "elementwise alone": ((2, 3, 4, 2), [("bias",), ("activation", "gelu")]),
    "one activation": ((2, 3, 4), [("activation", "swish")]),
    "activation on activation": (
        (2, 2, 5, 3),
        [("convolution", (2, 2, 3, 3), SAME), ("activation", "tanh"), ("activation", "elu"),
         ("bias",), ("bias",), ("activation", "sigmoid")],
    ),
    "3d": (
        (1, 2, 6, 3, 4),
        [("convolution", (2, 2, 3, 1, 3), {"padding": (1, 0, 1)}), ("activation", "relu"),
         ("convolution", (2, 2, 2, 3, 1), {"padding": ((1, 0), 1, 0)})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_every_split_of_chains(name, layout):
    assert Built(*CHAINS[name]).check_every_split(layout=layout) >= 4


@pytest.mark.parametrize("name", ["two with everything between", "elementwise alone"])
def test_alpha_and_beta_apply_once_at_the_end(name):
    built = Built(*CHAINS[name], alpha=-0.5, beta=3.0)
    built.check_every_split()
    built.check_every_split(layout="channels_last")


def test_the_seam_of_a_deep_chain_in_float32():
    built = Built(*CHAINS["three deep"], dtype="float32")
    built.check_every_split()


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize("scale", [(1.0, 0.0), (-0.5, 2.0)], ids=str)
def test_a_convolution_that_adds_its_bias_itself(layout, scale):
    """In float32 of few channels; of a sum over channels the bias and ReLU come after the last."""
    alpha, beta = scale
    items = [("convolution", (2, 3, 3, 3), SAME), ("bias",), ("activation", "relu")]
    built = Built((2, 3, 4, 3), items, alpha=alpha, beta=beta, dtype="float32")
    launches, _ = built.chain.launches(built.chain.whole_piece(), layout=layout, orders={})
    itself = any(isinstance(launch.operation, FusedConvolution) for launch in launches)
    assert itself == (layout == "channels_last" and alpha == 1)
    assert built.check_every_split(layout=layout) >= 12


@pytest.mark.parametrize("mode", ["sigmoid", "elu"])
def test_rows_outside_an_intermediate_are_padding_not_values(mode):
    """sigmoid(0) is 0.5: computing the rows beyond an intermediate would show at once."""
    chain = Built(
        (1, 1, 6, 1),
        [
            ("convolution", (1, 1, 1, 1), {}),
            ("activation", mode),
            ("convolution", (1, 1, 5, 1), {"padding": (2, 0)}),
        ],
    )
    chain.check_every_split()


chains = st.lists(
    st.one_of(
        st.builds(
            lambda *g: ("convolution", *g),
            st.integers(1, 4),
            st.integers(1, 3),
            st.integers(1, 3),
            st.tuples(st.integers(0, 6), st.integers(0, 6)),
        ),
        st.just(("bias",)),
        st.builds(lambda mode: ("activation", mode), st.sampled_from(["sigmoid", "relu", "tanh"])),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=number(25, of=80))
@given(chains, st.integers(1, 25), st.integers(1, 3), st.data())
def test_random_chains(items, rows, n, data):
    channels, described, extent = 2, [], rows
    for kind, *rest in items:
        if kind == "convolution":
            window, stride, dilation, padding = rest
            span = (window - 1) * dilation + 1
            assume(extent + sum(padding) >= span)
            extent = (extent + sum(padding) - span) // stride + 1
            geometry = {"padding": (padding, 0), "stride": (stride, 1), "dilation": (dilation, 1)}
            described.append(("convolution", (2, channels, window, 1), geometry))
        else:
            described.append((kind, *rest))
    built = Built((n, channels, rows, 2), described)
    whole = built.chain.extents
    forced = Forced(built.chain, built.arrays)
    for _ in range(4):
        cut = {
            axis: data.draw(st.integers(1, getattr(whole, axis)))
            if built.chain.channels_may_be_cut or axis in ("n", "h_y")
            else getattr(whole, axis)
            for axis in ("n", "c_y", "c_x", "h_y")
        }
        built.arrays["y"][...] = np.nan
        forced.run(
            Split(**cut), layout=data.draw(st.sampled_from(["channels_first", "channels_last"]))
        )
        reference.assert_close(built.arrays["y"], built.expected, built.tolerance, str(cut))


def test_channels_of_a_deep_chain_may_not_be_cut():
    chain = Built(*CHAINS["two"]).chain
    assert not chain.channels_may_be_cut
    assert chain.is_legal(Split(n=1, c_y=2, c_x=1, h_y=1))
    for split in (Split(n=1, c_y=1, c_x=1, h_y=1),):
        assert not chain.is_legal(split)
        with pytest.raises(ValueError, match="cannot be cut as in"):
            chain.ranges(split)


def test_operations_that_do_not_meet():
    with pytest.raises(ValueError, match=r"do not meet: .*\(1, 2, 3\).*\(1, 3, 3\)"):
        Chain((Activation((1, 2, 3)), Activation((1, 3, 3))), "float32")
    with pytest.raises(ValueError, match="at least one"):
        Chain((), "float32")


def test_names_of_operands():
    one = Built((1, 1, 3), [("convolution", (1, 1, 1), {}), ("bias",)]).chain
    assert list(one.operands) == ["x", "w", "b", "y"]
    two = Built(*CHAINS["two with everything between"]).chain
    names = list(two.operands)
    assert names[0] == "x"
    assert names[-1] == "y"
    assert len(set(names)) == len(names) == 6
    assert one.loaded == ("x", "w", "b")
    assert Chain(one.operations, "float64", beta=1.0).loaded == ("x", "w", "b", "y")


def test_regions_of_a_piece_cover_the_result_once():
    chain = Built(*CHAINS["strides"]).chain
    for split in legal_splits(chain):
        axes = chain.ranges(split)
        seen = np.zeros(chain.operands["y"].shape, int)
        for n, h_y in itertools.product(axes["n"], axes["h_y"]):
            seen[slice(*n), :, slice(*h_y)] += 1
        assert (seen == 1).all()


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (2.0, -0.5)])
def test_a_sum_after_a_normalisation_costs_no_pass(alpha, beta):
    """Normalised, added to and rectified: x and the other one are read, and y is written."""
    shape = (2, 3, 4, 5)
    normal, relu = Normalise(shape, "float32", 1e-5), Activation(shape, "relu", 0.0, "float32")
    for op, b_shape, one in (("add", shape, True), ("add", (1, 3, 1, 1), False),
                             ("multiply", shape, False)):  # fmt: skip
        added = OpTensor(shape, b_shape, "float32", op)
        chain = Chain((normal, added, relu), "float32", alpha=alpha, beta=beta)
        orders = dict.fromkeys(chain.operands, "channels_last")
        launches, _ = chain.launches(chain.whole_piece(), layout="channels_last", orders=orders)
        assert (len(launches) == 1 + (beta != 0)) == one
        assert launches[0].operation.work().device_bytes == (3 if one else 2) * 4 * 120
