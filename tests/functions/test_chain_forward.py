"""chain_forward: chains cut into pieces of one row, their borders, against the whole in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ooc_cudnn
from ooc_cudnn import operations
from tests.support.chains import act, bias, conv, make_call, norm, pool, tensor
from tests.support.function_cases import (
    FEW_LAID,
    LAID,
    check_laid,
    check_under_falling_limits,
    lay,
    some_limits,
)
from tests.support.sampling import number

pytest.importorskip("ml_dtypes")


def block(c_y, convolutions):
    """A block of VGG."""
    layer = (conv(c_y, 3, padding=1), bias(), act())
    return (*convolutions * layer, pool(2))


#: name -> (shape of x, recipe)
CHAINS = {
    "1d": ((3, 3, 60), (conv(4, 3, padding=1), bias(), act(), conv(3, 5, padding=2), pool(2))),
    "conv-bias-relu-conv-pool-conv": (
        (2, 3, 20, 12),
        (conv(4, 3, padding=1), bias(), act(), conv(5, 3, padding=1), pool(2),
         conv(3, 3, padding=1)),
    ),
    "vgg": ((2, 3, 32, 24), (*block(4, 2), *block(6, 2), *block(8, 3))),
    "two convolutions": ((2, 3, 16, 9), (conv(4, 3, padding=1), conv(3, 3, padding=1))),
    # The first gives 0 outside its result, not what it would compute there from padding.
    "borders": (
        (2, 3, 9, 8),
        (conv(4, 3, padding=2), bias(), conv(4, 5, padding=((4, 1), (0, 3))), bias(),
         conv(3, 3, padding=2)),
    ),
    "borders of activations that are not 0 at 0": (
        (2, 3, 12, 8),
        (conv(4, 3, padding=1), act("sigmoid"), conv(4, 3, padding=1), norm(),
         conv(3, 3, padding=1)),
    ),
    "overlapping pooling": (
        (2, 3, 23, 11),
        (conv(4, 3, padding=1), bias(), act(), pool(3, stride=2), conv(3, 3, padding=1), act()),
    ),
    "padded pooling of negative values": (
        (2, 3, 15, 11),
        (conv(4, 3), bias(), act("leaky_relu", 3.0), pool(3, stride=2, padding=1),
         pool(3, stride=1, padding=((2, 0), (1, 1)))),
    ),
    "average pooling at borders": (
        (2, 3, 15, 11),
        (conv(4, 3, padding=1), bias(),
         pool(3, mode="average_exclude_padding", stride=2, padding=1), conv(3, 2, padding=1),
         pool((2, 3), mode="average_include_padding", stride=1, padding=1)),
    ),
    "pooling first": ((2, 3, 21, 12), (pool(2), conv(4, 3, padding=1), act())),
    "pooling alone, twice": ((2, 5, 21, 12), (pool(3, stride=2, padding=1), pool(2, stride=1))),
    "strided and dilated": (
        (2, 3, 33, 17),
        (conv(4, 3, padding=1, stride=2), conv(4, 3, padding=3, dilation=3), act(),
         conv(3, (2, 3), stride=(3, 2), padding=((0, 1), 1)), conv(3, 2, dilation=2, padding=2)),
    ),
    "windows that see padding alone": (
        (2, 2, 4, 6),
        (conv(3, 1, padding=5, stride=2), act("sigmoid"), conv(3, 1, padding=4), bias(), pool(2)),
    ),
    # Pieces skip rows of the second convolution, of whose input rows they share some.
    "bottleneck": ((2, 3, 15, 9), (conv(4, 1), conv(4, 3, padding=1), conv(3, 1, stride=2))),
    "strides beyond windows": (
        (2, 3, 40, 9),
        (conv(4, 2, stride=3), conv(3, 1, stride=2), pool(1, stride=3)),
    ),
    "groups": (
        (2, 4, 16, 9),
        (conv(6, 3, padding=1, groups=2), act(), conv(6, 3, padding=1, groups=6), bias(),
         conv(4, 1), pool(2)),
    ),
    "elementwise only": (
        (3, 4, 13, 7),
        (bias(), act("tanh"), norm(), tensor("multiply", "c"), act("leaky_relu")),
    ),
    "residual": (
        (2, 4, 16, 9),
        (conv(4, 3, padding=1), norm(), act(), conv(4, 3, padding=1), norm(), tensor("add"), act()),
    ),
    "op tensor of every kind": (
        (3, 4, 13, 7),
        (tensor("add", "nh", alpha_b=-2.0), tensor("multiply", "ch"), tensor("minimum", "w"),
         tensor("maximum", "nchw", alpha_a=0.5, alpha_b=0.25)),
    ),
    "op tensor inside a halo": (
        (2, 3, 16, 9),
        (conv(4, 3, padding=1), tensor("add", "nchw"), conv(4, 3, padding=1),
         tensor("multiply", "h"), conv(3, 3, padding=1), tensor("maximum", "nc")),
    ),
    "one convolution": ((2, 8, 14, 9), (conv(6, 3, padding=1),)),
    "one convolution and pooling": ((2, 8, 14, 9), (conv(6, 3, padding=1), act(), pool(2))),
    "one activation": ((3, 4, 13, 7), (act("gelu"),)),
    "3d": (
        (2, 2, 11, 7, 6),
        (conv(3, 3, padding=1), bias(), act(), conv(3, (3, 1, 2), stride=(2, 1, 1)), pool(2)),
    ),
    "down to one site": (
        (2, 3, 16, 16),
        (conv(4, 3, padding=1, stride=2), act(), conv(4, 3, padding=1, stride=2), act(),
         pool(4, mode="average_include_padding"), conv(5, 1)),
    ),
    "up and down": (
        (2, 3, 9, 7),
        (conv(3, 2, padding=3), conv(3, 4), conv(3, 1, padding=2), pool(3, stride=1, padding=2)),
    ),
}  # fmt: skip
SCALES = (
    ("float32", 2.0, -0.25),
    ("float64", 0.5, 2.0),
    ("float16", 0.5, 2.0),
    ("bfloat16", -1.5, 0.0),
)


def call_of(name, *options, **more):
    return make_call(*CHAINS[name], *options, name=name, **more)


@pytest.mark.parametrize("name", CHAINS)
def test_under_falling_limits(name):
    pieces = check_under_falling_limits(call_of(name), most=2)
    # At the least 4 rows of 2 images; the chain itself may be cut as well.
    assert name != "vgg" or pieces[-1] >= 8


@pytest.mark.parametrize(
    "name",
    ["residual", "average pooling at borders"],
)
@pytest.mark.parametrize(("dtype", "alpha", "beta"), SCALES)
def test_dtypes_and_scales_under_falling_limits(dtype, alpha, beta, name):
    check_under_falling_limits(call_of(name, dtype, alpha, beta), most=2)


@pytest.mark.parametrize("laid", FEW_LAID)
def test_any_strides(laid):
    for name in ("bottleneck", "elementwise only"):
        call = call_of(name, "float32", 2.0, -0.25)
        check_laid(call, laid)


@pytest.mark.parametrize("laid", LAID)
def test_parameters_with_any_strides(laid):
    """Filters, vectors and second tensors may lie in memory as they like, too."""
    call = call_of("op tensor inside a halo")
    random = np.random.default_rng(42)
    w, b = random.standard_normal((4, 3, 3, 3)), random.standard_normal((2, 4, 16, 9))
    w, b = w.astype("f4"), b.astype("f4")
    vectors = [random.random(4).astype("f4") for _ in range(4)]

    def chain(how):
        return [
            operations.Convolution(how(w), padding=1),
            operations.OpTensor("add", how(b)),
            operations.AddTensor(how(vectors[0])),
            operations.BatchNormalization(*map(how, vectors)),
        ]

    expected = ooc_cudnn.chain_forward(call.operands["x"], chain(lambda a: a))
    for limit in (2**24, 12_000):
        with ooc_cudnn.settings(memory_limit=limit):
            y = ooc_cudnn.chain_forward(call.operands["x"], chain(lambda a: lay(a, laid)))
        assert np.allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_a_chain_equals_the_functions_one_by_one():
    random = np.random.default_rng(44)
    x, first, second = (
        random.standard_normal(shape).astype("f4")
        for shape in ((2, 3, 20, 12), (4, 3, 3, 3), (3, 4, 3, 3))
    )
    b = random.standard_normal(4).astype("f4")
    found = ooc_cudnn.convolution_add_activation_forward(x, first, b, padding=1)
    found = ooc_cudnn.pooling_forward(found, window=2)
    expected = ooc_cudnn.convolution_forward(found, second, padding=1)
    chain = [
        operations.Convolution(first, padding=1),
        operations.AddTensor(b),
        operations.Activation(),
        operations.Pooling(2),
        operations.Convolution(second, padding=1),
    ]
    for limit in (2**24, 10_000):
        with ooc_cudnn.settings(memory_limit=limit):
            y = ooc_cudnn.chain_forward(x, chain)
        assert np.allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_operations_may_be_any_sequence_and_are_not_consumed():
    call = call_of("residual")
    made = call.options["operations"]
    for sequence in (list(made), tuple(made)):
        for _ in range(2):
            y = ooc_cudnn.chain_forward(call.operands["x"], sequence)
            call.check({"y": y})
    assert list(sequence) == list(made)


def test_the_same_filters_twice():
    """An operation may occur twice; its parameter is one array."""
    random = np.random.default_rng(43)
    x = random.standard_normal((2, 3, 16, 9)).astype("f4")
    w = random.standard_normal((3, 3, 3, 3)).astype("f4")
    step = operations.Convolution(w, padding=1)
    once = ooc_cudnn.convolution_forward(x, w, padding=1)
    expected = ooc_cudnn.convolution_forward(once, w, padding=1)
    for limit in (2**24, 8000):
        with ooc_cudnn.settings(memory_limit=limit):
            y = ooc_cudnn.chain_forward(x, [step, step])
        assert np.allclose(y, expected, rtol=1e-3, atol=1e-3)


def test_parameters_are_read_when_the_chain_runs():
    """An operation holds its array, not a copy of what was in it."""
    x, b = np.ones((1, 2, 8, 8), "f4"), np.zeros(2, "f4")
    chain = [operations.AddTensor(b)]
    assert np.all(ooc_cudnn.chain_forward(x, chain) == 1)
    b[:] = 5
    assert np.all(ooc_cudnn.chain_forward(x, chain) == 6)


# Random chains -----------------------------------------------------------------------------------


@st.composite
def recipes(draw_from):
    """A chain of up to six operations that meet, and a share of memory."""
    axes = draw_from(st.sampled_from([1, 2, 2, 3]))
    shape = [draw_from(st.integers(1, 3)), draw_from(st.integers(1, 4))]
    shape += [draw_from(st.integers(5, 16)) for _ in range(axes)]
    channels, spatial, recipe = shape[1], list(shape[2:]), []
    for _ in range(draw_from(st.integers(1, 6))):
        kind = draw_from(
            st.sampled_from(["conv", "conv", "conv", "pool", "pool", "act", "bias", "norm", "op"])
        )
        if kind in ("conv", "pool"):
            window = tuple(draw_from(st.integers(1, 4)) for _ in range(axes))
            most = 3 if kind == "conv" else 99
            padding = tuple(
                tuple(draw_from(st.integers(0, min(most, k - (kind == "pool")))) for _ in range(2))
                for k in window
            )
            stride = tuple(draw_from(st.integers(1, 3)) for _ in range(axes))
            dilation = tuple(
                draw_from(st.integers(1, 2)) if kind == "conv" else 1 for _ in range(axes)
            )
            after = [
                (e + sum(p) - (k - 1) * d - 1) // s + 1
                for e, p, k, d, s in zip(spatial, padding, window, dilation, stride, strict=True)
            ]
            if min(after) < 1 or max(after) > 24:
                continue
            spatial = after
            if kind == "pool":
                mode = draw_from(st.sampled_from(["max", "average_exclude_padding"]))
                recipe.append(pool(window, mode=mode, padding=padding, stride=stride))
            else:
                groups = draw_from(st.sampled_from([1, 1, channels]))
                channels = groups * draw_from(st.integers(1, max(1, 4 // groups)))
                recipe.append(
                    conv(channels, window, groups=groups, padding=padding, stride=stride,
                         dilation=dilation)
                )  # fmt: skip
        elif kind == "act":
            recipe.append(act(draw_from(st.sampled_from(["relu", "sigmoid", "elu", "gelu"]))))
        elif kind == "op":
            op = draw_from(st.sampled_from(["add", "multiply", "minimum", "maximum"]))
            recipe.append(tensor(op, draw_from(st.sampled_from(["nchw", "c", "nh", "", "hw"]))))
        else:
            recipe.append(bias() if kind == "bias" else norm())
    recipe = recipe or [act()]
    return tuple(shape), tuple(recipe), draw_from(st.sampled_from([0.0, 0.1, 0.4, 1.0]))


@settings(max_examples=number(4, of=16))
@given(drawn=recipes(), last_channels=st.booleans())
def test_random_chains_under_a_random_limit(drawn, last_channels):
    shape, recipe, share = drawn
    call = make_call(shape, recipe)
    if last_channels:
        call.operands["x"] = LAID["channels_last"](call.operands["x"])
        call.old["y"] = LAID["channels_last"](call.old["y"])
    limits = some_limits(call)
    limit = int(limits[-1] + share * max(0, limits[-2] - limits[-1]))
    with ooc_cudnn.settings(memory_limit=limit, verify=1):
        call.check(call.run(out=call.fresh()), f"limit {limit}", call.arrays)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1, 1)])
def test_add_tensor_of_a_single_value(shape, channels):
    """As `add_tensor` takes it: whatever the channels."""
    axes = max(len(shape), 2)
    x = np.arange(4 * channels * 3 ** (axes - 2), dtype="f4").reshape(
        (4, channels, *[3] * (axes - 2))
    )
    b = np.full(shape, 0.5, "f4")
    y = ooc_cudnn.chain_forward(x, [operations.AddTensor(b), operations.Activation("relu")])
    assert np.array_equal(y, x + 0.5)
    assert np.array_equal(ooc_cudnn.add_tensor(b, x, out=np.empty_like(x)), x + 0.5)


def test_add_tensor_of_a_single_value_after_a_convolution(random):
    x, w = random.standard_normal((2, 3, 8, 7)), random.standard_normal((5, 3, 3, 3))
    x, w, b = x.astype("f4"), w.astype("f4"), np.full((1, 1, 1, 1), 2, "f4")
    for limit in ("1MiB", "4KiB"):
        with ooc_cudnn.settings(memory_limit=limit, verify=2):
            y = ooc_cudnn.chain_forward(x, [operations.Convolution(w), operations.AddTensor(b)])
            assert np.allclose(y, ooc_cudnn.convolution_forward(x, w) + 2, atol=1e-5)
