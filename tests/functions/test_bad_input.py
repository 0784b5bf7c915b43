"""Bad arguments: an error that names them, before anything is copied; the next call works."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn import operations
from tests.support.function_cases import DTYPES
from tests.support.sample import FUNCTIONS, NAMES, sample

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.usefixtures("plans_are_kept")
INF, NAN = float("inf"), float("nan")


def ones(*shape, dtype="f4"):
    return np.ones(shape, dtype)


@pytest.fixture(scope="module")
def calls():
    return sample()


def refused(call, kinds, pattern, changes, *, out=True):
    """The call with these arguments raises, and everything stays as it was."""
    arrays, fresh = call.copies(), call.fresh()
    options = {**call.options, **arrays}
    if out:
        options["out"] = tuple(fresh.values()) if len(fresh) > 1 else next(iter(fresh.values()))
    options |= changes
    with pytest.raises(kinds, match=pattern) as caught:
        getattr(ooc_cudnn, call.function)(**options)
    assert isinstance(caught.value, TypeError | ValueError)
    for name, array in arrays.items():
        assert np.array_equal(array, call.arrays[name], equal_nan=True), name
    for name, array in fresh.items():
        assert np.array_equal(array, call.old[name], equal_nan=True), name
    found = call.run(call.copies(), call.fresh())
    call.check(found, "the next call")


# What every function refuses ---------------------------------------------------------------------

SCALARS = {
    "alpha text": ({"alpha": "1"}, TypeError, r"alpha must be a number.*'1'"),
    "alpha NaN": ({"alpha": NAN}, ValueError, r"alpha must be finite.*nan"),
    "alpha infinite": ({"alpha": -INF}, ValueError, r"alpha must be finite.*inf"),
    "alpha complex": ({"alpha": 1j}, TypeError, r"alpha must be a number"),
    "alpha True": ({"alpha": True}, (TypeError, ValueError), r"alpha must be.*True"),
    "alpha None": ({"alpha": None}, TypeError, r"alpha must be.*None"),
    "beta text": ({"beta": "1"}, TypeError, r"beta must be a number.*'1'"),
    "beta NaN": ({"beta": NAN}, ValueError, r"beta must be finite.*nan"),
    "beta infinite": ({"beta": INF}, ValueError, r"beta must be finite.*inf"),
    "beta False": ({"beta": False}, (TypeError, ValueError), r"beta must be.*False"),
}


@pytest.mark.parametrize("case", SCALARS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_scalars(calls, name, case):
    changes, kinds, pattern = SCALARS[case]
    refused(calls[name], kinds, pattern, changes)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "add_tensor"])
def test_beta_without_out(calls, name):
    refused(calls[name], ValueError, r"beta=0\.5 needs out", {"beta": 0.5}, out=False)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unknown_arguments(calls, name):
    call = calls[name]
    with pytest.raises(TypeError, match="colour"):
        getattr(ooc_cudnn, name)(**{**call.options, **call.arrays}, colour=1)


def operands():
    """(function, operand) for every operand of every function."""
    return [(name, operand) for name, call in sample().items() if name in FUNCTIONS
            for operand in call.arrays]  # fmt: skip


@pytest.mark.parametrize(("name", "operand"), operands())
def test_operands_that_are_no_arrays_of_a_known_dtype(calls, name, operand):
    call = calls[name]
    array = call.arrays[operand]
    parameter = inspect.signature(getattr(ooc_cudnn, name)).parameters[operand]
    none = (None,) if parameter.default is inspect.Parameter.empty else ()
    for wrong in ([[1.0]], "x", 3, {1: 2}, *none):
        refused(call, TypeError, rf"{operand} must be ", {operand: wrong})
    for dtype in ("i4", "c8", ">f4", "?"):
        wrong = np.ones(array.shape, dtype)
        refused(call, TypeError, rf"\b{operand}\b", {operand: wrong})


@pytest.mark.parametrize(("name", "operand"), operands())
def test_operands_of_differing_dtypes(calls, name, operand):
    call = calls[name]
    wrong = call.arrays[operand].astype("f8")
    if len(call.arrays) > 1:
        others = "|".join([*call.arrays, "out"])
        refused(call, TypeError, rf"({others}) must be float(32|64)", {operand: wrong})


@pytest.mark.parametrize(("name", "operand"), operands())
def test_empty_operands(calls, name, operand):
    call = calls[name]
    refused(call, ValueError, rf"\b{operand}\b", {operand: call.arrays[operand][:0]})


#: Axes along which an operand may grow without a contradiction.
FREE = {
    ("convolution_backward_bias", "dy"): (0, 2, 3),
    # Some rows and columns are not seen by the last windows.
    ("convolution_add_activation_pooling_forward", "x"): (2, 3),
    ("convolution_add_activation_pooling_forward", "w"): (2, 3),
}


@pytest.mark.parametrize(("name", "operand"), operands())
def test_operands_with_another_extent(calls, name, operand):
    """More of anything on any axis does not fit the other operands, or makes another result."""
    call = calls[name]
    array = call.arrays[operand]
    for axis in range(array.ndim):
        if axis in FREE.get((name, operand), ()):
            continue
        shape = list(array.shape)
        shape[axis] += 1 if shape[axis] > 1 else 4
        wrong = np.ones(shape, array.dtype)
        refused(call, ValueError, r"must|meet|larger|shape", {operand: wrong})


@pytest.mark.parametrize(("name", "operand"), operands())
def test_operands_with_another_number_of_axes(calls, name, operand):
    call = calls[name]
    array = call.arrays[operand]
    for wrong in (array[..., None, None, None, None], array[0] if array.ndim > 1 else array[None]):
        refused(call, ValueError, r"must|shape", {operand: wrong})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_out_that_does_not_fit(calls, name):
    call = calls[name]
    names = list(call.outs)

    def out(wrong):
        made = [wrong if n == names[0] else call.old[n].copy() for n in names]
        return tuple(made) if len(made) > 1 else made[0]

    old = call.old[names[0]]
    for axis in range(old.ndim):
        shape = list(old.shape)
        shape[axis] += 1
        refused(
            call, ValueError, r"out must have shape|must have shape", {"out": out(ones(*shape))}
        )
    refused(call, TypeError, r"must be float32", {"out": out(old.astype("f8"))})
    refused(call, TypeError, r"must be ", {"out": out([1])})
    wrong = np.broadcast_to(ones(*[1] * old.ndim), old.shape)
    refused(call, ValueError, r"read-only", {"out": out(wrong)})
    repeated = np.lib.stride_tricks.as_strided(ones(1), old.shape, (0,) * old.ndim)
    refused(call, ValueError, r"out|dx", {"out": out(repeated)})


# Arguments of each -------------------------------------------------------------------------------

GEOMETRY = {
    "padding negative": ({"padding": -1}, ValueError, r"padding must not be negative.*-1"),
    "padding of three": ({"padding": (1, 1, 1)}, ValueError, r"padding must.*\(1, 1, 1\)"),
    "padding float": ({"padding": 1.0}, TypeError, r"padding must.*1\.0"),
    "padding text": ({"padding": "same"}, TypeError, r"padding must.*'same'"),
    "padding True": ({"padding": True}, (TypeError, ValueError), r"padding must.*True"),
    "stride zero": ({"stride": 0}, ValueError, r"stride must be at least 1.*0"),
    "stride float": ({"stride": 2.0}, (TypeError, ValueError), r"stride must.*2\.0"),
    "stride of NumPy float": ({"stride": np.float32(2)}, TypeError, r"stride must.*2\.0"),
    "stride in an array of no axis": ({"stride": np.array(2)}, TypeError, r"stride must.*2"),
    "stride of one axis": ({"stride": (1,)}, ValueError, r"stride must.*\(1,\)"),
}
DILATION = {
    "dilation negative": ({"dilation": -2}, ValueError, r"dilation must be at least 1.*-2"),
    "dilation None": ({"dilation": None}, TypeError, r"dilation must.*None"),
    "groups zero": ({"groups": 0}, ValueError, r"groups must be at least 1.*0"),
    "groups that do not divide": ({"groups": 3}, ValueError, r"groups"),
    "groups float": ({"groups": 1.0}, (TypeError, ValueError), r"groups must.*1\.0"),
    "groups True": ({"groups": True}, (TypeError, ValueError), r"groups must.*True"),
}
ACTIVATION = {
    "unknown": ({"mode": "selu"}, ValueError, r"must be one of .*relu.*gelu.*'selu'"),
    "None": ({"mode": None}, ValueError, r"must be one of.*None"),
    "coef without meaning": ({"mode": "relu", "coef": 1.0}, ValueError, r"coef has no meaning"),
    "coef text": ({"mode": "elu", "coef": "1"}, TypeError, r"coef must be a number.*'1'"),
    "coef infinite": ({"mode": "elu", "coef": INF}, ValueError, r"coef of elu.*inf"),
    "ceiling negative": ({"mode": "clipped_relu", "coef": -1}, ValueError, r"coef.*-1"),
}  # fmt: skip
AS_ACTIVATION = {
    name: ({{"mode": "activation"}.get(k, k): v for k, v in changes.items()}, *rest)
    for name, (changes, *rest) in ACTIVATION.items()
}
POOLING = {
    "mode unknown": ({"mode": "median"}, ValueError, r"mode must be one of .*max.*'median'"),
    "mode None": ({"mode": None}, ValueError, r"mode must be one of.*None"),
    "window zero": ({"window": 0}, ValueError, r"window must be at least 1.*0"),
    "window float": ({"window": 2.0}, (TypeError, ValueError), r"window must.*2\.0"),
    "window None": ({"window": None}, TypeError, r"window must.*None"),
    "window of one axis": ({"window": (2,)}, ValueError, r"window must.*\(2,\)"),
    "window beyond x": ({"window": (30, 2)}, ValueError, r"window.*30.*larger than x"),
}
SOFTMAX = {
    "algorithm unknown": (
        {"algorithm": "fast"}, ValueError, r"algorithm must be one of accurate, log.*'fast'"
    ),
    "mode unknown": ({"mode": "row"}, ValueError, r"mode must be one of channel, instance.*'row'"),
    "mode None": ({"mode": None}, ValueError, r"mode must be.*None"),
}  # fmt: skip
NORMALIZATION = {
    "epsilon negative": ({"epsilon": -1e-5}, ValueError, r"epsilon.*-1e-05"),
    "epsilon NaN": ({"epsilon": NAN}, ValueError, r"epsilon.*nan"),
    "epsilon text": ({"epsilon": "1"}, TypeError, r"epsilon must.*'1'"),
}
TRAINING = {
    "factor NaN": ({"exponential_average_factor": NAN}, ValueError, r"factor.*nan"),
    "factor text": ({"exponential_average_factor": "1"}, TypeError, r"factor must.*'1'"),
    "running mean too long": ({"running_mean": ones(5)}, ValueError, r"running_mean.*\(5,\)"),
    "running variance of half": (
        {"running_variance": np.ones(4, "f2")}, TypeError, r"running_variance.*float16"
    ),
    "running mean read-only": (
        {"running_mean": np.broadcast_to(np.float32(0), 4)}, ValueError, r"running_mean.*read-only"
    ),
}  # fmt: skip
FUSED_POOLING = {
    "pooling padding": ({"pooling_padding": 3}, ValueError, r"padding must be smaller"),
    "pooling padding negative": ({"pooling_padding": -1}, ValueError, r"padding must not be neg"),
    "pooling stride": ({"pooling_stride": 0}, ValueError, r"stride must be at least 1.*0"),
}
OF = {
    "convolution_backward_data": GEOMETRY | DILATION,
    "convolution_backward_filter": GEOMETRY | DILATION,
    "activation_forward": ACTIVATION,
    "activation_backward": ACTIVATION,
    "pooling_forward": GEOMETRY | POOLING,
    "pooling_backward": GEOMETRY | POOLING,
    "softmax_forward": SOFTMAX,
    "softmax_backward": SOFTMAX,
    "batch_normalization_forward_training": NORMALIZATION | TRAINING,
    "batch_normalization_forward_inference": NORMALIZATION,
    "batch_normalization_backward": NORMALIZATION,
    "convolution_add_activation_pooling_forward": (
        GEOMETRY | DILATION | AS_ACTIVATION | POOLING | FUSED_POOLING
    ),
    "convolution_add_activation_backward": GEOMETRY | DILATION | AS_ACTIVATION,
}


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in OF for case in OF[name]])
def test_arguments(calls, name, case):
    changes, kinds, pattern = OF[name][case]
    refused(calls[name], kinds, pattern, changes)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_argument_after_a_good_call(calls, name):
    """What equals a good argument and hashes alike, 1.0 for 1, passes no remembered call."""
    call = calls[name]
    for key, value in call.options.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        call.run(call.copies(), call.fresh())
        refused(call, (TypeError, ValueError), rf"{key} must", {key: float(value)})


# Shapes that are asked for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [(3, 4, 11, 8), (3, 4, 13, 8), (3, 3, 12, 8), (2, 4, 12, 8), (3, 4, 12), (3, 4, 12, 0), 7, "x",
     (3, 4, 12.0, 8)],
    ids=str,
)  # fmt: skip
def test_input_shapes_that_do_not_give_dy(calls, shape):
    refused(
        calls["convolution_backward_data"], (TypeError, ValueError), r"input_shape|dy must|w must",
        {"input_shape": shape},
    )  # fmt: skip


@pytest.mark.parametrize(
    "shape",
    [(5, 4, 4, 3), (5, 4, 3, 2), (5, 3, 3, 3), (6, 4, 3, 3), (5, 4, 3), (5, 4, 3, 0), 7, "w"],
    ids=str,
)
def test_filter_shapes_that_do_not_give_dy(calls, shape):
    refused(
        calls["convolution_backward_filter"],
        (TypeError, ValueError),
        r"filter_shape|dy must|w must",
        {"filter_shape": shape},
    )


def test_dy_that_no_x_gives():
    """Padding so wide that the smallest x would be of no extent."""
    w, dy = ones(2, 3, 3, 3), ones(1, 2, 2, 2)
    with pytest.raises(ValueError, match=r"dy|padding|input_shape"):
        ooc_cudnn.convolution_backward_data(w, dy, padding=2)
    with pytest.raises(ValueError, match="dy"):
        ooc_cudnn.convolution_backward_filter(ones(1, 3, 4, 4), ones(1, 2, 9, 9))


# Softmax and batch normalisation take their shapes -----------------------------------------------


def test_softmax_of_one_axis():
    with pytest.raises(ValueError, match=r"x must have.*\(4,\)"):
        ooc_cudnn.softmax_forward(ones(4))


def test_saved_statistics_come_in_pairs():
    x, scale = ones(2, 3, 4, 4), ones(3)
    for name in ("saved_mean", "saved_inverse_variance"):
        with pytest.raises(ValueError, match=r"saved_mean.*saved_inverse_variance|both"):
            ooc_cudnn.batch_normalization_backward(x, x, scale, **{name: scale})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_channel_vectors_of_half_types_are_float32(dtype):
    """As cuDNN has it: scale, bias and statistics of half data are float32."""
    x = np.ones((2, 3, 4, 4), DTYPES[dtype])
    vectors = [np.ones(3, DTYPES[dtype])] * 4
    with pytest.raises(TypeError, match=r"scale must be float32"):
        ooc_cudnn.batch_normalization_forward_inference(x, *vectors)


# Chains ------------------------------------------------------------------------------------------

Convolution, AddTensor, Activation = (
    operations.Convolution, operations.AddTensor, operations.Activation
)  # fmt: skip
CHAINS = {
    "none": (lambda o: [], ValueError, r"operations must"),
    "no sequence": (lambda o: 3, TypeError, r"operations must"),
    "one operation": (lambda o: o.Activation(), TypeError, r"operations must"),
    "no operations": (lambda o: ["relu"], TypeError, r"operations.*'relu'"),
    "classes": (lambda o: [o.Activation], TypeError, r"operations"),
    "filters that do not meet": (
        lambda o: [o.Convolution(ones(5, 4, 3, 3)), o.Convolution(ones(2, 4, 3, 3))],
        ValueError, r"(?i)convolution.*\b5\b",
    ),
    "filters that do not meet x": (
        lambda o: [o.Convolution(ones(5, 3, 3, 3))], ValueError, r"cX|channels",
    ),
    "a bias that does not meet": (
        lambda o: [o.Convolution(ones(5, 4, 3, 3)), o.AddTensor(ones(4))],
        ValueError, r"(?i)\bb.*5",
    ),
    "a window too large in the middle": (
        lambda o: [o.Convolution(ones(5, 4, 3, 3)), o.Pooling(8), o.Pooling(2)],
        ValueError, r"window",
    ),
    "an addend of another shape": (
        lambda o: [o.Pooling(2), o.OpTensor("add", ones(3, 4, 12, 8))], ValueError, r"\bb\b",
    ),
    "a normalisation of other channels": (
        lambda o: [o.BatchNormalization(*[ones(5)] * 4)], ValueError, r"scale",
    ),
    "filters of another dtype": (
        lambda o: [o.Convolution(np.ones((5, 4, 3, 3)))], TypeError, r"w.* must be float32",
    ),
    "an addend of another dtype": (
        lambda o: [o.OpTensor("add", np.ones((3, 4, 12, 8)))], TypeError, r"b.* must be float32",
    ),
    "an unknown op": (lambda o: [o.OpTensor("divide", ones(4))], ValueError, r"op must be one of"),
    "an unknown activation": (lambda o: [o.Activation("selu")], ValueError, r"mode must be one of"),
    "an unknown pooling": (
        lambda o: [o.Pooling(2, mode="median")], ValueError, r"mode must be one of",
    ),
    "a stride of 0": (
        lambda o: [o.Convolution(ones(5, 4, 3, 3), stride=0)], ValueError, r"stride must be",
    ),
    "a factor that is not finite": (
        lambda o: [o.OpTensor("add", ones(1, 4, 1, 1), alpha_a=NAN)], ValueError, r"alpha_a must",
    ),
    "a filter that is no array": (lambda o: [o.Convolution([[1.0]])], TypeError, r"w.* must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHAINS)
def test_chains(case):
    make, kind, pattern = CHAINS[case]
    x = ones(3, 4, 12, 8)
    with pytest.raises(kind, match=pattern):
        ooc_cudnn.chain_forward(x, make(operations))
    assert np.all(x == 1)


def test_a_chain_that_does_not_meet_names_both_operations():
    chain = [operations.Convolution(ones(5, 4, 3, 3)), operations.Convolution(ones(2, 6, 3, 3))]
    with pytest.raises(ValueError, match=r"(?is)convolution.*\b5\b.*\b6\b|convolution.*6.*5"):
        ooc_cudnn.chain_forward(ones(3, 4, 12, 8), chain)


@pytest.mark.parametrize("name", NAMES)
def test_no_function_changes_what_it_is_given(calls, name):
    """Options are not consumed either: lists stay lists of the same content."""
    call = calls[name]
    kept = {k: list(v) if isinstance(v, list) else v for k, v in call.options.items()}
    call.run(call.copies(), call.fresh())
    for key, value in kept.items():
        assert call.options[key] is value or call.options[key] == value
