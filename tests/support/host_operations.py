"""Runs one launch-level operation by a host module: any layout, exact workspace, guards."""

from __future__ import annotations

import numpy as np

from ooc_cudnn.devices.host.device import WORKSPACE
from ooc_cudnn.tensor import numpy_dtype

DTYPES = ("float16", "bfloat16", "float32", "float64")
LAYOUTS = ("channels_first", "channels_last", "pitched", "reversed")
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-52}


def laid_out(array, layout, dtype=None):
    """The same values in another memory layout, and another dtype."""
    array = np.asarray(array)
    dtype = numpy_dtype(dtype) if dtype else array.dtype
    shape, axes = array.shape, list(range(array.ndim))
    if layout == "channels_last" and len(shape) > 2:
        axes = [0, *axes[2:], 1]
    wide = [shape[axis] for axis in axes]
    if layout == "pitched":
        wide = [extent + 1 + at % 2 for at, extent in enumerate(wide)]
    memory = np.empty(wide, dtype)
    inside = memory[tuple(slice(0, shape[axis]) for axis in axes)]
    made = inside.transpose(np.argsort(axes))
    if layout == "reversed":
        made = made[(slice(None, None, -1),) * made.ndim]
    np.copyto(made, array, casting="unsafe")
    return made


def run(module, operation, inputs, dtype, layout="channels_first", output=None):
    """Run it into an output of NaN, in the workspace it asks for and not a byte more."""
    if output is None:
        output = laid_out(np.full(operation.output_shape, np.nan), layout, dtype)
    needed = WORKSPACE.get(type(operation), lambda _: 0)(operation)
    memory = np.full(needed + 64, 77, np.uint8)
    before = [None if array is None else array.copy() for array in inputs]
    with np.errstate(all="ignore"):
        module.RUNNERS[type(operation)](operation, tuple(inputs), output, memory[:needed])
    assert (memory[needed:] == 77).all()
    for array, was in zip(inputs, before, strict=True):
        if array is not None and not np.shares_memory(array, output):
            assert_same(array, was)
    return output


def assert_same(actual, expected):
    """Equal, NaN to NaN (of which NumPy's own test does not know in bfloat16)."""
    np.testing.assert_array_equal(actual.astype("f8"), expected.astype("f8"))


def assert_near(actual, expected, dtype, size=None, terms=4):
    """Within the rounding of `terms` steps in the arithmetic type, and one to `dtype`."""
    actual, expected = np.asarray(actual).astype("f8"), np.asarray(expected, "f8")
    assert actual.shape == expected.shape
    arithmetic = UNIT["float64" if dtype == "float64" else "float32"]
    size = np.abs(expected) if size is None else size
    with np.errstate(invalid="ignore"):
        error = terms * arithmetic * size + UNIT[dtype] * np.abs(expected)
        # where numbers end: half types' smallest step
        error = error + (2.0**-24 if dtype == "float16" else 1e-37)
        right = (np.abs(actual - expected) <= error) | (actual == expected)
    right |= np.isnan(actual) & np.isnan(expected)
    wrong = f"{(~right).sum()} of {right.size} wrong, first {actual[~right][:1]}"
    assert right.all(), f"{wrong} instead of {expected[~right][:1]}"
