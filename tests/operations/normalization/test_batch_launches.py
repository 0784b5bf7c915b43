"""Batch normalisation and the sum over channels in float64, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastSum
from ooc_cudnn.operations.normalization.batch_launches import Normalise

torch = pytest.importorskip("torch")
F = torch.nn.functional

SHAPES = [(4, 5), (3, 1, 6), (2, 6, 3, 5), (2, 4, 2, 3, 2)]


def vectors(random, channels):
    """Scale, bias, mean, variance."""
    return (*random.standard_normal((3, channels)), random.uniform(0.1, 2, channels))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_inference(shape, random):
    x = random.standard_normal(shape)
    scale, bias, mean, variance = vectors(random, shape[1])
    operation = Normalise(shape, "float64", epsilon=1e-3)
    y = operation.reference(x, scale, bias, mean, variance)
    expected = F.batch_norm(
        *(torch.from_numpy(array) for array in (x, mean, variance, scale, bias)),
        training=False,
        eps=1e-3,
    )
    assert np.allclose(y, expected.numpy(), rtol=1e-12, atol=1e-13)
    by_deviation = Normalise(shape, "float64").reference(
        x, scale, bias, mean, 1 / np.sqrt(variance + 1e-3)
    )
    assert np.allclose(by_deviation, y, rtol=1e-13)


def test_fused_activation(random):
    shape = (2, 3, 4)
    x = random.standard_normal(shape)
    operands = vectors(random, 3)
    plain = Normalise(shape, "float64", 1e-5).reference(x, *operands)
    relu = Normalise(shape, "float64", 1e-5, "relu").reference(x, *operands)
    leaky = Normalise(shape, "float64", 1e-5, "leaky_relu", 0.1).reference(x, *operands)
    assert np.array_equal(relu, np.maximum(plain, 0))
    assert np.array_equal(leaky, np.where(plain > 0, plain, 0.1 * plain))


def test_nan_stays_in_its_element(random):
    x = random.standard_normal((2, 3, 4))
    x[1, 2, 0] = np.nan
    y = Normalise(x.shape, "float64", 1e-5, "relu").reference(x, *vectors(random, 3))
    assert np.array_equal(np.isnan(y), np.isnan(x))


@pytest.mark.parametrize(("dtype", "vector"), [("float16", "float32"), ("float64", "float64")])
def test_parameters_are_channel_vectors_of_the_arithmetic_type(dtype, vector):
    parameters = Normalise((2, 3, 4), dtype, 1e-5).parameters
    assert [parameter.name for parameter in parameters] == ["scale", "bias", "mean", "variance"]
    assert Normalise((2, 3, 4), dtype).parameters[3].name == "inverse_deviation"
    assert {(parameter.shape, parameter.dtype) for parameter in parameters} == {((3,), vector)}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sum_over_channels_is_the_gradient_of_a_bias(shape, random):
    dy = random.standard_normal(shape)
    bias = torch.zeros(shape[1], dtype=torch.float64, requires_grad=True)
    shaped = bias.reshape(1, -1, *[1] * (len(shape) - 2))
    (shaped * torch.from_numpy(dy)).sum().backward()  # d/db of b * dy is dy, summed
    operation = BroadcastSum(shape, shape[1:2], "float64", "float64")
    db = operation.reference(dy)
    assert operation.output_shape == db.shape
    assert np.allclose(db, bias.grad.numpy(), rtol=1e-12)


def test_narrow_data_is_summed_in_float64():
    dy = np.full((1, 1, 5000), 1000, "f2")
    assert (
        BroadcastSum(dy.shape, dy.shape[1:2], "float16", "float32").reference(dy).item()
        == 5_000_000
    )
