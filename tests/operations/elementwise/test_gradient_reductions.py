"""The gradient through an activation and that of the bias before it, against PyTorch's autograd."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.elementwise.gradient_reductions import (
    BiasActivationGradientCall,
    GradientSums,
)
from tests.support.every_split import check_every_split, rounded

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
F = torch.nn.functional

#: Activations of PyTorch, by mode and coefficient.
TWINS = {
    ("relu", 0.0): torch.relu,
    ("tanh", 0.0): torch.tanh,
    ("sigmoid", 0.0): torch.sigmoid,
    ("leaky_relu", 0.25): lambda x: F.leaky_relu(x, 0.25),
    ("elu", 1.0): F.elu,
}
SHAPES = [(3, 4, 5, 2), (4, 5), (2, 3, 3, 2, 3), (3, 2, 7)]
SCALES = [("float64", 1, 0), ("float16", 0.5, 1), ("float32", 1, 1), ("bfloat16", 1, 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin[0])
def test_both_gradients_under_every_split(random, twin, shape):
    mode, coef = twin
    vector = (1, -1, *(1 for _ in shape[2:]))
    for dtype, alpha, beta in SCALES[(len(mode) + len(shape)) % 2 :: 2]:
        # dx is made of y as it is stored: the twin's, rounded
        x, b = random.standard_normal(shape), random.standard_normal(shape[1])
        y, y64 = rounded(TWINS[twin](torch.tensor(x + b.reshape(vector))).numpy(), dtype)
        dy, dy64 = rounded(random.standard_normal(shape), dtype)
        old, _ = rounded(random.standard_normal(shape[1]), dtype)
        if dtype == "float64":
            tx, tb = (torch.tensor(each, requires_grad=True) for each in (x, b))
            TWINS[twin](tx + tb.reshape(vector)).backward(torch.tensor(dy64))
            dx, db = tx.grad.numpy(), tb.grad.numpy()
        else:
            made = GradientSums(shape, mode, coef, dtype)
            dx, db = made.reference(y64, dy64, None, None, None)
        # the sums are of what is stored; a half's are kept in float32, and rounded once a piece
        step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype, 0.0)
        size = np.abs(dx).sum(axis=(0, *range(2, len(shape))))
        sizes = {"dx": np.abs(dx) + np.abs(dy64), "db": size * (1 + step * 2.0**23)}
        call = BiasActivationGradientCall(shape, mode, coef, dtype, alpha=alpha, beta=beta)
        check_every_split(call, {"y": y, "dy": dy}, {"dx": dx, "db": db}, terms=24, sizes=sizes,
                          old={"db": old} if beta else None, most=6)  # fmt: skip


def test_what_y_does_not_tell_is_refused():
    with pytest.raises(ValueError, match="does not tell the slope of swish"):
        GradientSums((2, 3, 4), "swish", 1.0, "float32")
