"""A bit an element in place of y: under every split, against PyTorch's autograd."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.elementwise.activation_bitmask import (
    MaskedActivationCall,
    MaskedActivationGradientCall,
    mask_shape,
)
from tests.support.every_split import check_every_split, rounded

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
F = torch.nn.functional

MODES = {
    "relu": (0.0, F.relu),
    "clipped_relu": (0.75, lambda x: F.hardtanh(x, 0.0, 0.75)),
    "leaky_relu": (-0.25, lambda x: F.leaky_relu(x, -0.25)),
}
SHAPES = [(2, 3, 20), (2, 2, 3, 17), (2, 18), (1, 2, 3, 2, 9), (2, 3, 5, 1)]
#: dtype, alpha, beta
SCALES = [("float64", 1, 0), ("float16", 0.5, 1), ("float32", 1, 1), ("bfloat16", 1, 0)]


def bits_of(mask, shape):
    """The mask's bits, unpacked one by one."""
    last = range(shape[-1])
    return np.stack([mask[..., at // 8] >> (at % 8) & 1 for at in last], axis=-1).astype(bool)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_forward_and_backward(random, mode, shape):
    coef, function = MODES[mode]
    for dtype, alpha, beta in SCALES[len(shape) % 2 :: 2]:
        (x, x64), (dy, dy64), (old, _) = (
            rounded(random.standard_normal(shape), dtype) for _ in range(3)
        )
        x[0, 0], x64[0, 0] = 0, 0
        t = torch.from_numpy(x64).requires_grad_()
        y = function(t)
        y.backward(torch.from_numpy(dy64))
        slope_is_1 = (x64 > 0) & ((x64 < coef) if mode == "clipped_relu" else True)
        padded = np.zeros((*shape[:-1], 8 * mask_shape(shape)[-1]), bool)
        padded[..., : shape[-1]] = slope_is_1
        mask = np.packbits(padded, axis=-1, bitorder="little")
        assert mask.shape == mask_shape(shape)
        np.testing.assert_array_equal(bits_of(mask, shape), slope_is_1)
        scale = {"alpha": alpha, "beta": beta}
        forward = MaskedActivationCall(shape, mode, coef, dtype, **scale)
        check_every_split(forward, {"x": x}, {"y": y.detach().numpy(), "mask": mask}, most=6,
                          old={"y": old} if beta else None)  # fmt: skip
        backward = MaskedActivationGradientCall(shape, mode, coef, dtype, **scale)
        check_every_split(backward, {"mask": mask, "dy": dy}, {"dx": t.grad.numpy()}, most=6,
                          old={"dx": old} if beta else None)  # fmt: skip


@pytest.mark.parametrize("gradient", [1.0, np.nan, np.inf])
@pytest.mark.parametrize("coef", [0.25, 0.0, -0.25])
def test_a_leaky_relu_at_nan_and_infinity_is_pytorchs(coef, gradient):
    x = np.array([[[np.nan, -np.inf, np.inf, -1.0, -0.0, 0.0, 1.0]]])
    t = torch.from_numpy(x).requires_grad_()
    y = F.leaky_relu(t, coef)
    dy = np.full(x.shape, gradient)
    y.backward(torch.from_numpy(dy))
    mask = np.array([[[0b1000100]]], np.uint8)
    with np.errstate(invalid="ignore"):
        forward = MaskedActivationCall(x.shape, "leaky_relu", coef, "float64")
        check_every_split(forward, {"x": x}, {"y": y.detach().numpy(), "mask": mask})
        backward = MaskedActivationGradientCall(x.shape, "leaky_relu", coef, "float64")
        check_every_split(backward, {"mask": mask, "dy": dy}, {"dx": t.grad.numpy()})


def test_nan_and_infinity_as_in_pytorch():
    x = np.array([[[np.nan, -np.inf, np.inf, -1.0, 0.0]]])
    dy = np.array([[[1.0, np.nan, np.inf, np.inf, np.nan]]])
    t = torch.from_numpy(x).requires_grad_()
    y = F.relu(t)
    y.backward(torch.from_numpy(dy))
    mask = np.array([[[0b00101]]], np.uint8)
    forward = MaskedActivationCall(x.shape, "relu", 0.0, "float64")
    check_every_split(forward, {"x": x}, {"y": y.detach().numpy(), "mask": mask})
    backward = MaskedActivationGradientCall(x.shape, "relu", 0.0, "float64")
    expected = np.array([[[1.0, 0.0, np.inf, 0.0, 0.0]]])
    np.testing.assert_array_equal(t.grad.numpy(), expected)
    with np.errstate(invalid="ignore"):
        check_every_split(backward, {"mask": mask, "dy": dy}, {"dx": expected})


def test_other_modes_have_no_mask():
    with pytest.raises(ValueError, match="mode must be one of"):
        MaskedActivationCall((2, 3), "gelu", 0.0, "float32")
