"""Elementwise operations on the host, chunk by chunk: any strides, results rounded once.

Each chunk is read whole before it is written, so the output may be an input of equal strides.
"""

from __future__ import annotations

import numpy as np

from ooc_cudnn.devices.host.chunks import (
    Array,
    Box,
    Inputs,
    Runner,
    arithmetic_dtype,
    chunks,
    kept_where,
    of_channels,
    of_images,
)
from ooc_cudnn.operations.core.activation_modes import MODES, needs_x
from ooc_cudnn.operations.core.pointwise import Pointwise, Relayout
from ooc_cudnn.operations.elementwise.activation_gradient import (
    ActivationBackward,
    HasActivation,
    PreluBackward,
)
from ooc_cudnn.operations.elementwise.binary import COMBINED, OpTensor, wide_shape
from ooc_cudnn.operations.elementwise.cast_scale import CastScale
from ooc_cudnn.operations.elementwise.rearrange import Rearrange
from ooc_cudnn.operations.elementwise.reshape import Reshape
from ooc_cudnn.operations.elementwise.roll import Roll
from ooc_cudnn.operations.normalization.batch_launches import Normalise, NormaliseBackward
from ooc_cudnn.operations.softmax.channels import ImageSoftmax, ImageSoftmaxBackward
from ooc_cudnn.tensor import numpy_dtype


def relayout(operation: Relayout, inputs: Inputs, output: Array, workspace: Array) -> None:
    """The same numbers in another order of memory."""
    np.copyto(output, inputs[0])


def reshape(operation: Reshape, inputs: Inputs, output: Array, workspace: Array) -> None:
    """The same numbers in another shape."""
    np.copyto(output, inputs[0].reshape(output.shape))


def rearrange(operation: Rearrange, inputs: Inputs, output: Array, workspace: Array) -> None:
    """The same numbers with axes split, permuted and joined; to split an axis makes no copy."""
    sizes = tuple(operation.sizes[at] for at in operation.order)
    np.copyto(output.reshape(sizes), inputs[0].reshape(operation.sizes).transpose(operation.order))


def roll(operation: Roll, inputs: Inputs, output: Array, workspace: Array) -> None:
    """The same numbers, moved along axes."""
    for source, target in operation.boxes():
        box, place = (tuple(slice(*each) for each in region) for region in (source, target))
        output[place] = inputs[0][box]


def pointwise(operation: Pointwise, inputs: Inputs, output: Array, workspace: Array) -> None:
    """destination = alpha * activation(value + addend + shift) + beta * old, chunk by chunk."""
    value, addend, shift, old = inputs
    wide = np.float64 in (value.dtype, output.dtype)
    dtype = arithmetic_dtype("float64" if wide else "float32")
    function = MODES[operation.mode].value
    shift = None if shift is None else shift.astype(dtype).ravel()
    for box in chunks(output):
        result = value[box].astype(dtype)
        if addend is not None:
            result += addend[box]
        if shift is not None:
            result += of_channels(shift, box)
        result = function(result, operation.coef)
        if operation.alpha != 1:
            result = result * dtype.type(operation.alpha)
        if old is not None:
            result = result + dtype.type(operation.beta) * old[box].astype(dtype)
        np.copyto(output[box], result, casting="unsafe")


def op_tensor(operation: OpTensor, inputs: Inputs, output: Array, workspace: Array) -> None:
    """c = op(alpha_a * a, alpha_b * b)."""
    a, b = inputs
    b = b.reshape(wide_shape(b.shape, output.ndim))
    dtype = arithmetic_dtype(operation.dtype)
    alpha_a, alpha_b = dtype.type(operation.alpha_a), dtype.type(operation.alpha_b)
    alone = operation.op == "add" and operation.alpha_a == 0
    for box in chunks(output):
        # What is broadcast is converted once, not once an element.
        narrow = tuple(
            slice(0, 1) if extent == 1 else part for extent, part in zip(b.shape, box, strict=True)
        )
        result = b[narrow].astype(dtype)
        if operation.alpha_b != 1:
            result *= alpha_b
        if not alone:
            first = a[box].astype(dtype, copy=False)
            if operation.alpha_a != 1:
                first = first * alpha_a
            result = COMBINED[operation.op](first, result)
        np.copyto(output[box], result, casting="unsafe")


def activation_backward(
    operation: ActivationBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """dx = dy * f'(x); relu and clipped_relu select."""
    y, dy, *rest = inputs
    x = rest[0] if rest and needs_x(operation.mode, operation.coef) else None
    dtype = arithmetic_dtype(operation.dtype)
    for box in chunks(output):
        value = y[box].astype(dtype, copy=False)
        before = value if x is None else x[box].astype(dtype, copy=False)
        result = times_slope(operation, value, before, dy[box].astype(dtype, copy=False))
        np.copyto(output[box], result, casting="unsafe")


def times_slope(operation: HasActivation, y: Array, x: Array, dy: Array) -> Array:
    """Dy times the slope of an activation; `x` is y itself where that tells the slope."""
    slope = MODES[operation.mode].slope(y, x, operation.coef)
    result = slope * dy
    if MODES[operation.mode].is_flat:
        result = kept_where(slope != 0, result)  # whatever dy is
    return result


def before_activation(
    operation: HasActivation, difference: Array, vectors: tuple[Array, Array], dy: Array, box: Box
) -> Array:
    """Dy times the slope of an activation after a normalisation, whose result is made again.

    `difference` is x - mean, and the vectors are scale * inverse deviation and bias.
    """
    factor, bias = vectors
    y = difference * of_channels(factor, box)
    y += of_channels(np.asarray(bias).astype(y.dtype), box)
    return slope_before(operation, y, dy)


def slope_before(operation: HasActivation, x: Array, dy: Array) -> Array:
    """Dy times the slope of an activation of x, which is not rounded yet.

    Where y tells the slope, y is made again and rounded as it was when it was stored.
    """
    if MODES[operation.mode].needs_x:
        return times_slope(operation, x, x, dy)
    y = MODES[operation.mode].value(x, operation.coef)
    y = y.astype(numpy_dtype(operation.dtype)).astype(dy.dtype)
    return times_slope(operation, y, y, dy)


def prelu_backward(
    operation: PreluBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """dx = dy where x > 0, else dy * w."""
    x, dy, w = inputs
    dtype = arithmetic_dtype(operation.dtype)
    w = np.broadcast_to(w.astype(dtype), operation.shape[1])
    for box in chunks(output):
        value, result = x[box], dy[box].astype(dtype)
        result = np.where(value > 0, result, result * of_channels(w, box))
        np.copyto(output[box], result, casting="unsafe")


def cast_scale(operation: CastScale, inputs: Inputs, output: Array, workspace: Array) -> None:
    """y = (x - mean) * scale."""
    x, mean, scale = inputs
    dtype = arithmetic_dtype(operation.dtype)
    mean, scale = (np.broadcast_to(vector, operation.shape[1]) for vector in (mean, scale))
    for box in chunks(output):
        result = x[box].astype(dtype)
        result -= of_channels(mean, box)
        result *= of_channels(scale, box)
        np.copyto(output[box], result, casting="unsafe")


def normalise(operation: Normalise, inputs: Inputs, output: Array, workspace: Array) -> None:
    """y = f(scale * (x - mean) * inverse deviation + bias + z)."""
    x, *vectors = inputs
    z = vectors.pop() if operation.has_addend else None
    dtype = arithmetic_dtype(operation.dtype)
    scale, bias, mean, spread = (np.asarray(vector, np.float64) for vector in vectors)
    if operation.epsilon is not None:
        spread = 1 / np.sqrt(spread + operation.epsilon)
    factor, bias, mean = ((scale * spread).astype(dtype), bias.astype(dtype), mean.astype(dtype))
    for box in chunks(output):
        result = x[box].astype(dtype)
        result -= of_channels(mean, box)
        result *= of_channels(factor, box)
        result += of_channels(bias, box)
        if z is not None:
            result += z[box].astype(dtype, copy=False)
        result = MODES[operation.mode].value(result, operation.coef)
        np.copyto(output[box], result, casting="unsafe")


def normalise_backward(
    operation: NormaliseBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """dx = scale * inverse deviation * (dy - sums[0] / count - xhat * sums[1] / count)."""
    x, dy, *vectors = inputs
    bias = None if operation.mode == "identity" else vectors.pop()
    dtype = arithmetic_dtype(operation.dtype)
    scale, mean, inverse, sums = (np.asarray(vector, np.float64) for vector in vectors)
    factor, shift = scale * inverse, sums[0] / operation.count
    slope = inverse * sums[1] / operation.count
    factor, shift, slope, mean = (v.astype(dtype) for v in (factor, shift, slope, mean))
    for box in chunks(output):
        part = x[box].astype(dtype)
        part -= of_channels(mean, box)
        result = dy[box].astype(dtype)
        if bias is not None:
            result = before_activation(operation, part, (factor, bias), result, box)
        part *= of_channels(slope, box)
        result -= of_channels(shift, box)
        result -= part
        result *= of_channels(factor, box)
        np.copyto(output[box], result, casting="unsafe")


def image_softmax(operation: ImageSoftmax, inputs: Inputs, output: Array, workspace: Array) -> None:
    """y = exp(x - m) / sum, or x - m - log(sum), with (m, sum) of each image known."""
    x, state = inputs
    dtype = arithmetic_dtype(operation.dtype)
    maximum, total = state[:, 0].astype(dtype), state[:, 1]
    last = np.asarray(np.log(total) if operation.algorithm == "log" else total).astype(dtype)
    for box in chunks(output):
        result = x[box].astype(dtype)
        result -= of_images(maximum, box)
        if operation.algorithm == "log":
            result -= of_images(last, box)
        else:
            np.exp(result, out=result)
            result /= of_images(last, box)
        np.copyto(output[box], result, casting="unsafe")


def image_softmax_backward(
    operation: ImageSoftmaxBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """dx = y * (dy - sum), or for "log" dy - exp(y) * sum."""
    y, dy, sums = inputs
    dtype = arithmetic_dtype(operation.dtype)
    total = sums[:, 0].astype(dtype)
    for box in chunks(output):
        value = y[box].astype(dtype)
        result = dy[box].astype(dtype)
        if operation.algorithm == "log":
            np.exp(value, out=value)
            value *= of_images(total, box)
            result -= value
        else:
            result -= of_images(total, box)
            result *= value
        np.copyto(output[box], result, casting="unsafe")


RUNNERS: dict[type, Runner] = {
    Pointwise: pointwise,
    Relayout: relayout,
    Reshape: reshape,
    Rearrange: rearrange,
    Roll: roll,
    OpTensor: op_tensor,
    ActivationBackward: activation_backward,
    PreluBackward: prelu_backward,
    CastScale: cast_scale,
    Normalise: normalise,
    NormaliseBackward: normalise_backward,
    ImageSoftmax: image_softmax,
    ImageSoftmaxBackward: image_softmax_backward,
}
