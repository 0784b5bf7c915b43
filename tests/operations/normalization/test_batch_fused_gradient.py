"""Batch normalization and what follows it in backward, under every split, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.normalization.batch_fused_gradient import ActivationSumsCall
from ooc_cudnn.operations.normalization.batch_two_phase import (
    BatchNormalizationDataCall,
    ChannelSumsCall,
)
from ooc_cudnn.operations.normalization.channel_reduction import SAVED
from ooc_cudnn.tensor import ACCUMULATOR
from tests.support.every_split import check_every_split, rounded

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
F = torch.nn.functional

TWINS = {
    ("relu", 0.0): torch.relu,
    ("clipped_relu", 1.0): lambda v: torch.clamp(v, 0, 1),
    ("leaky_relu", 0.25): lambda v: F.leaky_relu(v, 0.25),
}
SHAPES = [(3, 4, 5, 2), (4, 5), (2, 3, 3, 2, 3), (3, 2, 7)]
DTYPES = ["float64", "float16", "float32", "bfloat16"]


class Case:
    """A normalised map, rectified with or without a tensor added before; all off the kinks.

    Of each dtype its own numbers; gradients are PyTorch's in float64.
    """

    def __init__(self, random, shape, twin, dtype, *, with_addend):
        self.coef = twin[1]
        axes, self.shape = (0, *range(2, len(shape))), shape
        vector = (1, -1, *(1 for _ in shape[2:]))
        x = random.standard_normal(shape)
        narrow = ACCUMULATOR[dtype]
        self.scale, _ = rounded(random.uniform(0.5, 1.5, shape[1]), narrow)
        self.bias, _ = rounded(random.standard_normal(shape[1]), narrow)
        z = random.standard_normal(shape) if with_addend else np.zeros(shape)
        while True:
            self.x, x64 = rounded(x, dtype)
            mean, variance = x64.mean(axis=axes), x64.var(axis=axes)
            self.mean, _ = rounded(mean, narrow)
            self.inverse, _ = rounded(1 / np.sqrt(variance + 1e-3), narrow)
            tx, tz, ts, tb = (
                torch.tensor(each.astype("f8"), requires_grad=True)
                for each in (x64, z, self.scale, self.bias)
            )
            v = F.batch_norm(tx, None, None, ts, tb, training=True, eps=1e-3) + tz
            before = v.detach().numpy()
            near = np.minimum(np.abs(before), np.abs(before - self.coef)) < 0.03
            if not near.any():
                break
            x = np.where(near, x + random.uniform(0.1, 0.3, shape), x)
        self.y, _ = rounded(TWINS[twin](v).detach().numpy(), dtype)
        self.dy, dy64 = rounded(random.standard_normal(shape), dtype)
        TWINS[twin](v).backward(torch.tensor(dy64))
        self.dx, self.dz = tx.grad.numpy(), tz.grad.numpy()
        self.sums = np.stack([tb.grad.numpy(), ts.grad.numpy()])
        self.reach = np.abs(self.dz) * (1 + np.abs(x64 - mean.reshape(vector)))
        # vectors are rounded before they are used
        self.terms = 8 if dtype == "float64" else 64

    def arrays(self, *names):
        """Operands by the names that the calls have for them."""
        found = {"x": self.x, "y": self.y, "dy": self.dy, "scale": self.scale, "bias": self.bias,
                 "sums": self.sums, SAVED[0]: self.mean, SAVED[1]: self.inverse}  # fmt: skip
        return {name: found[name] for name in names}

    @property
    def size(self):
        """Of the sums, with the rounding of the vectors: float32, where sums are float64."""
        sizes = self.reach.sum(axis=(0, *range(2, len(self.shape))))
        return np.stack([sizes, 4 * sizes]) * (2.0**30 if self.terms > 8 else 16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin[0])
def test_through_an_activation_that_is_made_again(random, twin, shape):
    for dtype in DTYPES[len(shape) % 2 :: 2]:
        case = Case(random, shape, twin, dtype, with_addend=False)
        sums = ChannelSumsCall(shape, dtype, mode=twin[0], coef=twin[1])
        given = case.arrays("x", "dy", *SAVED, "scale", "bias")
        check_every_split(sums, given, {"sums": case.sums}, sizes={"sums": case.size},
                          terms=4, most=5)  # fmt: skip
        data = BatchNormalizationDataCall(shape, dtype, *twin)
        given = case.arrays("x", "dy", "scale", *SAVED, "sums", "bias")
        size = np.abs(case.dx) + 8 * np.abs(case.dy.astype("f8")) + 1
        check_every_split(data, given, {"dx": case.dx}, sizes={"dx": size}, terms=case.terms,
                          most=5)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin[0])
def test_the_gradient_of_what_was_added_and_its_sums(random, twin, shape):
    for dtype in DTYPES[len(shape) % 2 :: 2]:
        case = Case(random, shape, twin, dtype, with_addend=True)
        given, expected = case.arrays("x", "y", "dy", *SAVED), {"dx": case.dz, "sums": case.sums}
        # dy comes in two parts, whose sum is exact here
        part = np.where(random.integers(2, size=shape), case.dy, 0).astype(case.dy.dtype)
        halves = {"dy": case.dy - part, "more": part}
        call = ActivationSumsCall(shape, *twin, dtype)
        check_every_split(call, {**given, **halves}, expected, sizes={"sums": case.size},
                          terms=4, most=5)  # fmt: skip


def test_no_fixed_order_through_an_activation():
    with pytest.raises(ValueError, match="fixed order"):
        ChannelSumsCall((2, 3, 4), "float32", deterministic=True, mode="relu")
