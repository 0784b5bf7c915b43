"""Calls whose operands on the device are not all needed: what no window reaches, what sees padding.

Such operands must not be computed on where they lie by a graph that is built for fewer rows. The
same calls run on the host device, where every launch is checked, and on the card.
"""

from __future__ import annotations

import numpy as np

import ooc_cudnn
from tests.support import calls
from tests.support.bounded import Bounded
from tests.support.calls import ConvolutionCase, FusedCase
from tests.support.function_cases import Call, draw, finished

#: Name -> x, w, geometry. After the last window come rows and columns that none reaches, or the
#: first and last rows of y see nothing but padding.
SHAPES = {
    "1x1 stride 2": ((4, 16, 56, 56), (32, 16, 1, 1), {"stride": 2}),
    "57x57": ((3, 4, 57, 57), (5, 4, 2, 2), {"stride": 2}),
    "1-D": ((3, 4, 11), (6, 4, 2), {"stride": 3, "padding": ((1, 0),)}),
    "2-D groups": ((3, 4, 8, 9), (6, 2, 1, 2), {"stride": (3, 4), "groups": 2}),
    "3-D": ((2, 3, 6, 8, 5), (4, 3, 1, 2, 2), {"stride": (2, 3, 2)}),
    "padded rows": ((3, 3, 2, 1, 2), (3, 3, 1, 1, 4), {"padding": (1, 0, 1)}),
    "dilated": ((4, 5, 7, 4), (5, 5, 2, 2), {"dilation": (1, 3), "padding": (2, 0)}),
    "strided padding": ((2, 3, 7, 5), (4, 3, 1, 2), {"stride": (3, 1), "padding": ((4, 3), 1)}),
}
WAYS = ("forward", "data", "filter", "fused", "fused pooling", "fused backward")


def make(name, way, dtype="float32", **scale):
    """One call of a shape."""
    x, w, geometry = SHAPES[name]
    label = f"{way} {name} {dtype} {scale}"
    if way in ("data", "filter"):
        return calls.gradient_call(ConvolutionCase(label, x, w, geometry, dtype, **scale), way)
    pooling = {"window": 2, "pooling_stride": 3}
    case = FusedCase(label, x, w, geometry, pooling, dtype=dtype, **scale)
    if way == "fused pooling":
        return calls.fused_pooling_call(case)
    if way == "fused backward":
        return calls.fused_backward_call(case)
    return _forward_call(case, fused=way == "fused")


def _forward_call(case, *, fused):
    random = np.random.default_rng(33)
    x, w, b = (draw(random, shape, case.dtype) for shape in (case.x, case.w, case.w[:1]))
    operands, options = {"x": x, "w": w}, dict(case.geometry)
    if fused:
        operands["b"], options["activation"] = b, case.activation
        result = calls.activated(case, x, w, b)
    else:
        result = calls.bounded.convolution(Bounded.exact(x), w, case.dtype, **case.geometry)
    scale = {"alpha": case.alpha, "beta": case.beta}
    result, old = finished(result, case.dtype, random=random, **scale)
    name = "convolution_add_activation_forward" if fused else "convolution_forward"
    return Call(
        name, operands, options | scale, {"y": result}, old={"y": old}, name=case.name
    )  # fmt: skip


def pools(name):
    """Whether a window of 2 fits the result of a shape on every axis."""
    x, w, geometry = SHAPES[name]
    return min(calls.gradients.output_shape(x, w, **geometry)[2:]) >= 2


#: Every call: names and ways.
CALLS = [(name, way) for name in SHAPES for way in WAYS if way != "fused pooling" or pools(name)]


def on_device(array, order="channels_first", offset=0):
    """A copy on the device in use, in a memory order, so many elements off its alignment."""
    last = order == "channels_last" and array.ndim > 2
    plain = np.ascontiguousarray(np.moveaxis(array, 1, -1) if last else array)
    with ooc_cudnn.settings(memory_limit="1GiB"):
        flat = ooc_cudnn.empty((plain.size + offset,), plain.dtype.name)
    assert ooc_cudnn.placement(flat) == "device"
    made = flat[offset:].reshape(plain.shape)
    ooc_cudnn.memcpy(made, plain)
    return made.transpose(0, made.ndim - 1, *range(1, made.ndim - 1)) if last else made


def on_host(array):
    """The content as NumPy's."""
    if isinstance(array, np.ndarray):
        return np.array(array)
    return array.get()


def check(call, where, arrays, out):
    """Run a call, and again on the same arrays; check results and operands."""
    for turn in ("first", "again"):
        for name, array in out.items():
            ooc_cudnn.memcpy(array, call.old[name])
        found = {name: on_host(array) for name, array in call.run(arrays, out).items()}
        call.check(found, f"{where}, {turn}", {n: on_host(a) for n, a in arrays.items()})


def check_everywhere(call, orders=("channels_first", "channels_last")):
    """All operands on the device in each order, aligned and not; then some of them alone."""
    for order in orders:
        for offset in (0, 1):
            arrays = {n: on_device(a, order, offset) for n, a in call.arrays.items()}
            out = {n: on_device(a, order, offset) for n, a in call.fresh().items()}
            check(call, f"{order}, offset {offset}", arrays, out)
        for name in call.arrays:
            arrays = {**call.copies(), name: on_device(call.arrays[name], order)}
            check(call, f"{name} on the device {order}", arrays, call.fresh())
        out = {n: on_device(a, order) for n, a in call.fresh().items()}
        check(call, f"results on the device {order}", call.copies(), out)
        # Neighbours in different orders.
        mixed = {
            n: on_device(a, order if at % 2 else "channels_first")
            for at, (n, a) in enumerate(call.arrays.items())
        }
        check(call, f"mixed {order}", mixed, call.fresh())
