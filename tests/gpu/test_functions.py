"""Every function on the card: every split of the host tests' cases, and more data than the limit.

The references are the host tests' own (NumPy and PyTorch on the CPU in float64), with bounds that
follow from the lengths of the sums. Results hold NaN beforehand, or what beta scales.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.functions.call.call_cache import forget_calls
from tests.support import bounded, calls, chains, gradients, normalization
from tests.support.bounded import Bounded
from tests.support.calls import ConvolutionCase, FusedCase, PoolingCase
from tests.support.forced import legal_splits
from tests.support.function_cases import DTYPES, channels_last
from tests.support.splits import LAYOUTS, MAKERS, RINGS, Split, loop_orders, make, row_axes, some

cupy = pytest.importorskip("cupy")
PLACEMENTS = ("device", "pinned", "pageable", "disk")

#: Some MB an operand, and the share of a call's data that the memory limit leaves.
X, W = (6, 32, 40, 56), (24, 32, 3, 3)
SHARE = 0.25
GEOMETRY = {"padding": ((1, 0), 1)}
POOLING = {"window": 3, "stride": 2, "padding": 1}
RECIPE = (
    chains.conv(32, 3, padding=1), chains.bias(), chains.act(), chains.conv(24, 3, padding=1),
    chains.norm(), chains.tensor("add", "ch"), chains.act("elu"),
    chains.pool(3, stride=2, padding=1), chains.conv(32, 1),
)  # fmt: skip


def convolution(which, **scale):
    return calls.gradient_call(ConvolutionCase("medium", X, W, GEOMETRY, **scale), which)


def fused(make_call, **scale):
    pooling = {"window": 3, "pooling_stride": 2}
    return make_call(FusedCase("medium", X, W, GEOMETRY, pooling, **scale))


#: Name -> maker of a call, which takes dtype, alpha and beta.
MEDIUM = {
    "convolution_backward_data": lambda **s: convolution("data", **s),
    "convolution_backward_filter": lambda **s: convolution("filter", **s),
    "convolution_backward_bias": lambda **s: convolution("bias", **s),
    "add_tensor": lambda **s: calls.add_tensor_call((1, X[1], X[2], 1), X, **s),
    "add_tensor of all": lambda **s: calls.add_tensor_call(X, X, **s),
    "activation_forward": lambda **s: calls.activation_forward_call(X, "gelu", None, **s),
    "activation_backward": lambda **s: calls.activation_backward_call(X, "swish", None, **s),
    "softmax_backward": lambda **s: calls.softmax_backward_call(X, "accurate", "channel", **s),
    "softmax_backward instance": lambda **s: calls.softmax_backward_call(
        X, "log", "instance", **s
    ),
    "softmax_forward": lambda **s: calls.softmax_forward_call(X, "log", "channel", **s),
    "softmax_forward instance": lambda **s: calls.softmax_forward_call(
        X, "accurate", "instance", **s
    ),
    "batch_normalization_forward_training": lambda **s: normalization.training_call(X, **s),
    "batch_normalization_forward_inference": lambda **s: normalization.inference_call(X, **s),
    "batch_normalization_backward": lambda **s: normalization.backward_call(X, **s),
    "batch_normalization_backward anew": lambda **s: normalization.backward_call(
        X, saved=False, **s
    ),
    "convolution_add_activation_pooling_forward": lambda **s: fused(calls.fused_pooling_call, **s),
    "convolution_add_activation_backward": lambda **s: fused(calls.fused_backward_call, **s),
    "chain_forward": lambda **s: chains.make_call(X, RECIPE, **s),
} | {
    f"pooling_{way} {mode}": lambda maker=maker, mode=mode, **s: maker(
        PoolingCase("medium", X, POOLING, **s), mode
    )
    for way, maker in (
        ("forward", calls.pooling_forward_call),
        ("backward", calls.pooling_backward_call),
    )
    for mode in ("max", "average_exclude_padding")
}  # fmt: skip


@pytest.fixture(autouse=True)
def true_float32():
    """The references' bounds are those of the dtype."""
    with ooc_cudnn.settings(allow_tf32=False):
        yield


# Every split of tiny cases -----------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MAKERS)
def test_every_split(name, layout):
    made = Split(make(name), device="cuda")
    for at, split in enumerate(legal_splits(made.splittable)):
        depth, whole = RINGS[at % len(RINGS)]
        made.run(split, depth=depth, whole=whole, layout=layout, overlap=at % 5 > 0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MAKERS)
def test_splits_along_the_other_axes(name, layout):
    for row_axis in row_axes(name):
        made = Split(make(name), device="cuda", row_axis=row_axis)
        for at, split in enumerate(some(list(legal_splits(made.splittable)), 24)):
            depth, whole = RINGS[at % len(RINGS)]
            made.run(split, depth=depth, whole=whole, layout=layout, overlap=at % 5 > 0)


@pytest.mark.parametrize("name", MAKERS)
def test_some_splits_under_every_loop_order(name):
    """And with operands and results channels last where the pieces are not, or the reverse."""
    call = make(name)
    for layout in LAYOUTS:
        laid = [name for at, name in enumerate([*call.arrays, *call.outs]) if at % 2]
        made = Split(
            call, lambda n, a, laid=laid: channels_last(a) if n in laid and a.ndim > 2 else a,
            device="cuda",
        )  # fmt: skip
        splits = some(list(legal_splits(made.splittable)), 4)
        for at, order in enumerate(loop_orders(made.splittable)):
            split = splits[at % len(splits)]
            made.run(split, order=order, depth=1 + at % 3, whole=at % 2 == 0, layout=layout)


@pytest.mark.parametrize("padding", [((1, 0),), ((0, 1),)])
@pytest.mark.parametrize("length", [29, 45, 107])
def test_a_depthwise_filter_gradient_of_a_line_that_is_padded_at_one_end(length, padding):
    """An engine of cuDNN 9.19 was off by a third: found by a drawn call."""
    geometry = {"padding": padding, "groups": 2}
    case = ConvolutionCase("line", (3, 2, length), (2, 1, 3), geometry)
    call = calls.gradient_call(case, "filter")
    call.check(call.run())


# The public functions on more data than the limit ------------------------------------------------


class Placed:
    """A call's operands and results, each in a placement of its own and in one memory order."""

    def __init__(self, call, places, path, order="channels_first"):
        self.call, self.path, self.order, self.pins = call, path, order, []
        places = itertools.cycle(places)
        self.arrays = {n: self.place(n, a, next(places)) for n, a in call.arrays.items()}
        self.out = {n: self.place(f"out_{n}", a, next(places)) for n, a in call.fresh().items()}

    def place(self, name, array, where):
        """A copy of an array, there."""
        last = self.order == "channels_last" and array.ndim > 2
        plain = np.ascontiguousarray(np.moveaxis(array, 1, -1) if last else array)
        if where == "device":
            made = cupy.asarray(plain.view(np.uint8)).view(plain.dtype)
        elif where == "disk":
            made = np.memmap(self.path / f"{name}.bin", plain.dtype, "w+", shape=plain.shape)
            made[...] = plain
        else:
            made = plain.copy()
            if where == "pinned":
                self.pins.append(ooc_cudnn.pin(made))
        return made.transpose(0, made.ndim - 1, *range(1, made.ndim - 1)) if last else made

    def run(self, limit, **settings):
        """Run the call under a limit and check its results, operands and memory."""
        with ooc_cudnn.settings(memory_limit=limit, **settings), ooc_cudnn.profile() as recorded:
            found = self.call.run(self.arrays, self.out)
        held = any(not isinstance(found[name], np.ndarray) for name in found.keys() - self.out)
        for done in recorded.calls:
            assert done.peak_device_bytes <= limit
            # New results on the device are counted beside the plan.
            assert held or done.peak_device_bytes == done.plan.device_bytes
        return {name: on_host(array) for name, array in found.items()}, recorded.calls

    def check(self, found, where=""):
        """Check the results, and that operands hold what they held."""
        self.call.check(found, where, {name: on_host(a) for name, a in self.arrays.items()})

    def close(self):
        """Unpin."""
        for pin in self.pins:
            pin.close()


def on_host(array):
    """The content as NumPy's."""
    if isinstance(array, np.ndarray):
        return array
    return array.get()


def limit_of(call):
    """A share of all the data of a call."""
    arrays = (*call.arrays.values(), *call.old.values())
    return int(SHARE * sum(array.nbytes for array in arrays))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MEDIUM)
def test_out_of_core(name, dtype, tmp_path):
    """Placements mixed; channels last, alpha and beta together, as they meet no other way."""
    scales = ({}, {"alpha": 1.5, "beta": -0.5})
    for at, (order, scale) in enumerate(zip(LAYOUTS, scales, strict=True)):
        call = MEDIUM[name](dtype=dtype, **scale)
        call.name = f"{name} {dtype} {order} {scale}"
        # On the host alone, so that all is copied; then mixed, each operand elsewhere in turn.
        for places in (PLACEMENTS[1:], PLACEMENTS[2 * at :] + PLACEMENTS[: 2 * at]):
            folder = tmp_path / f"{at} {places[0]}"
            folder.mkdir()
            placed = Placed(call, places, folder, order)
            found, done = placed.run(limit_of(call), verify=2)
            placed.check(found, f"{places}")
            assert done[-1].plan.pieces > 1 or "device" in places
            placed.close()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", MEDIUM)
def test_deterministic_is_bitwise(name, dtype, tmp_path):
    """Planned anew and remembered."""
    call, found = MEDIUM[name](dtype=dtype), []
    for again in range(3):
        placed = Placed(call, PLACEMENTS[1:3], tmp_path)
        if again == 2:
            forget_calls()
        made, _ = placed.run(limit_of(call), deterministic=True)
        placed.check(made, "deterministic")
        found.append({n: array.copy() for n, array in made.items()})
        found[-1] |= {n: on_host(placed.arrays[n]).copy() for n in call.changed}
        placed.close()
    for other in found[1:]:
        for result, array in found[0].items():
            assert array.tobytes() == other[result].tobytes(), result


@pytest.mark.parametrize("name", MEDIUM)
def test_tf32(name, tmp_path):
    """Both factors of each product are rounded to 11 bits, or cut off there; sums are float32."""
    call = tf32_call(name) if name in TF32 else MEDIUM[name]()
    placed = Placed(call, PLACEMENTS[1:], tmp_path)
    found, _ = placed.run(limit_of(call), allow_tf32=True, verify=2)
    placed.check(found, "TF32")
    placed.close()


#: Relative error of a product of two numbers of which the bits beyond TF32's are cut off.
UNIT_TF32 = 2.0**-10
TF32 = (
    "convolution_backward_data", "convolution_backward_filter",
    "convolution_add_activation_pooling_forward", "convolution_add_activation_backward",
    "chain_forward",
)  # fmt: skip


def cut(array):
    """What both factors' rounding can do, as if it were all that of this one."""
    value = array.astype("f8")
    return Bounded(value, (2 * UNIT_TF32 + UNIT_TF32**2) * np.abs(value))


def tf32_call(name):
    """The call with the bounds of TF32."""
    if name == "chain_forward":
        with pytest.MonkeyPatch.context() as patch:
            real = bounded.convolution
            patch.setattr(
                bounded,
                "convolution",
                lambda x, w, dtype, **g: real(
                    Bounded(x.value, x.error + cut(np.abs(x.value) + x.error).error), w, dtype, **g
                ),
            )
            return MEDIUM[name]()
    call = MEDIUM[name]()
    if name == "convolution_add_activation_pooling_forward":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Bounded, "exact", classmethod(lambda cls, array: cut(np.asarray(array))))
            return MEDIUM[name]()
    arrays = call.arrays
    dz = arrays["dy"]
    if "y" in arrays:
        slope = gradients.activation_backward(arrays["y"], dz, None, "float32", "relu")
        dz = slope.value
    if "dx" in call.results:
        call.results["dx"] = gradients.backward_data(X, arrays["w"], cut(dz), "float32", **GEOMETRY)
    if "dw" in call.results:
        call.results["dw"] = gradients.backward_filter(
            arrays["x"], W, cut(dz), "float32", **GEOMETRY
        )
    return call


# Sums in the narrow types ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_filter_gradient_of_half_type_loses_nothing_to_64_pieces(dtype, layout):
    shapes = ((64, 16, 12, 9), (8, 16, 3, 3))
    call = calls.gradient_call(ConvolutionCase("half", *shapes, {"padding": 1}, dtype), "filter")
    made, errors = Split(call, device="cuda"), []
    for n in (64, 1):
        made.run(replace(made.splittable.extents, n=n), layout=layout)
        errors.append(np.abs(made.results["dw"].astype("f8") - call.results["dw"].value))
    one, many = errors
    assert np.linalg.norm(many) <= 1.01 * np.linalg.norm(one)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_bias_gradient_of_2_to_the_20_elements(dtype):
    """Sixteenths add up without a rounding in float32, and only there: the sum is exact."""
    random = np.random.default_rng(61)
    dy = (random.integers(-16, 17, (8, 2, 256, 256)) / 16).astype(DTYPES[dtype])
    exact = dy.astype("f8").sum(axis=(0, 2, 3)).astype(dy.dtype)
    for limit in ("1GiB", "1MiB", "64KiB"):
        with ooc_cudnn.settings(memory_limit=limit, verify=2):
            db = ooc_cudnn.convolution_backward_bias(dy)
        assert np.array_equal(db.astype("f8"), exact.astype("f8")), limit


def test_statistics_far_from_zero_do_not_depend_on_the_pieces(tmp_path):
    """Mean 1e4, deviation 1."""
    call, found = normalization.training_call(X, values=(1e4, 1)), []
    for limit in (2**30, limit_of(call), limit_of(call) // 8):
        placed = Placed(call, PLACEMENTS[1:2], tmp_path)
        made, (done,) = placed.run(limit)
        placed.check(made, f"limit {limit}")
        found.append((done.plan.pieces, made))
        placed.close()
    assert found[0][0] < found[1][0] < found[2][0]
    for _, made in found[1:]:
        for name in ("saved_mean", "saved_inverse_variance"):
            # Sums are float64: two neighbouring numbers of float32 at the most.
            assert np.allclose(made[name], found[0][1][name], rtol=2.0**-23, atol=0)
