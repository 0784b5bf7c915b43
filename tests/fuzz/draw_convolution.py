"""Convolutions and their gradients."""

from __future__ import annotations

import math

from tests.fuzz.problems import Problem, Tensor
from tests.support import bounded, gradients
from tests.support.bounded import Bounded

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 2}
#: Largest extent of a spatial axis, by the number of axes.
LARGEST = {1: 160, 2: 28, 3: 10}
#: Multiplications of a call: the host device does some hundred millions a second.
MOST_PRODUCTS = 8_000_000


def draw_dtype(stream):
    return stream.weighted(DTYPES)


def draw_windows(stream, axes, *, largest=None, pooled=False):
    """Extents of x, windows and their geometry, so that at least one window fits on each axis.

    Returns (spatial, window, geometry), the geometry as the functions take it.
    """
    spatial, window, paddings, strides, dilations = [], [], [], [], []
    for _ in range(axes):
        k = stream.choice((1, 2, 3, 3, 4, 5, 7)) if axes < 3 else stream.choice((1, 2, 3, 3))
        d = 1 if pooled or stream.chance(0.75) else stream.choice((2, 3))
        most = k - 1 if pooled else stream.choice((0, 0, k // 2, k // 2, k + 1))
        pad = (0, 0)
        if stream.chance(0.6):
            first = stream.randint(0, most)
            pad = (first, first if stream.chance(0.6) else stream.randint(0, most))
        s = 1 if stream.chance(0.5) else stream.randint(1, 4)
        reach = (k - 1) * d + 1
        least = max(1, reach - sum(pad))
        extent = stream.randint(least, max(least, largest or LARGEST[axes]))
        for kept, value in zip(
            (spatial, window, paddings, strides, dilations), (extent, k, pad, s, d), strict=True
        ):
            kept.append(value)
    geometry = {}
    if any(map(any, paddings)):
        geometry["padding"] = _short(stream, [p[0] if p[0] == p[1] else p for p in paddings])
    if pooled or set(strides) != {1}:
        geometry["stride"] = _short(stream, strides)
    if set(dilations) != {1}:
        geometry["dilation"] = _short(stream, dilations)
    return tuple(spatial), tuple(window), geometry


def _short(stream, values):
    """One number for all axes where one will do, now and then; else one per axis."""
    alike = all(value == values[0] for value in values) and isinstance(values[0], int)
    return values[0] if alike and stream.chance(0.5) else tuple(values)


def draw_channels(stream, *, most=9):
    """(cX, cY, groups)."""
    groups = 1 if stream.chance(0.75) else stream.choice((2, 3, 4, 8))
    most = max(1, most // groups)
    return groups * stream.randint(1, most), groups * stream.randint(1, most), groups


def draw_shapes(stream):
    """(x, w, geometry, dtype) of a convolution of a size that every device does in milliseconds."""
    dtype = draw_dtype(stream)
    axes = stream.weighted({1: 2, 2: 5, 3: 2})
    while True:
        spatial, window, geometry = draw_windows(stream, axes)
        c_x, c_y, groups = draw_channels(stream, most=stream.choice((4, 9, 20)))
        n = stream.choice((1, 1, 2, 3, 5))
        x, w = (n, c_x, *spatial), (c_y, c_x // groups, *window)
        if groups > 1:
            geometry["groups"] = groups
        y = gradients.output_shape(x, w, **geometry)
        if math.prod(y) * math.prod(w[1:]) <= MOST_PRODUCTS and math.prod(x) <= 100_000:
            return x, w, geometry, dtype


def convolution_forward(stream):
    x, w, geometry, dtype = draw_shapes(stream)
    loud = stream.chance(0.1)

    def expected(values, arithmetic):
        factor = arithmetic.factor(values["x"])
        return {"y": bounded.convolution(factor, values["w"], arithmetic.last, **geometry)}

    return Problem(
        "convolution_forward", dtype,
        {"x": Tensor(x, dtype, scale=100 if loud else 1), "w": Tensor(w, dtype)},
        geometry, {"y": (gradients.output_shape(x, w, **geometry), dtype)}, expected,
        uses_tf32=True,
    )  # fmt: skip


def draw_gradient(stream, of, other, shape_option):
    """The gradient of x or w, given the other and dy; the option names its shape."""
    x, w, geometry, dtype = draw_shapes(stream)
    shapes = {"x": x, "w": w, "dy": gradients.output_shape(x, w, **geometry)}

    def expected(values, arithmetic):
        dy = arithmetic.factor(values["dy"])
        if of == "x":
            return {"dx": gradients.backward_data(x, values["w"], dy, arithmetic.last, **geometry)}
        return {"dw": gradients.backward_filter(values["x"], w, dy, arithmetic.last, **geometry)}

    return Problem(
        f"convolution_backward_{'data' if of == 'x' else 'filter'}", dtype,
        {name: Tensor(shapes[name], dtype) for name in (other, "dy")},
        {shape_option: shapes[of], **geometry}, {f"d{of}": (shapes[of], dtype)}, expected,
        uses_tf32=True, shape_option=shape_option,
    )  # fmt: skip


def convolution_backward_data(stream):
    return draw_gradient(stream, "x", "w", "input_shape")


def convolution_backward_filter(stream):
    return draw_gradient(stream, "w", "x", "filter_shape")


def convolution_backward_bias(stream):
    dtype = draw_dtype(stream)
    dy = draw_feature_map(stream)

    def expected(values, arithmetic):
        return {"db": gradients.channel_sum(values["dy"], arithmetic.last)}

    return Problem(
        "convolution_backward_bias", dtype, {"dy": Tensor(dy, dtype)}, {},
        {"db": ((dy[1],), dtype)}, expected,
    )  # fmt: skip


def draw_feature_map(stream):
    """(n, c, up to three spatial axes)."""
    axes = stream.weighted({0: 1, 1: 2, 2: 5, 3: 2})
    spatial = tuple(stream.randint(1, LARGEST[axes]) for _ in range(axes))
    return (stream.choice((1, 1, 2, 3, 7)), stream.choice((1, 2, 3, 5, 8, 16, 33)), *spatial)


def exact(values, name):
    return Bounded.exact(values[name])


DRAWERS = (
    convolution_forward, convolution_backward_data, convolution_backward_filter,
    convolution_backward_bias,
)  # fmt: skip
