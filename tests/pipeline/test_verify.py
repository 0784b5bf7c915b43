"""`verify`: it passes what is right, and finds what is not."""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.devices.host.device import HostDevice
from ooc_cudnn.operations.core.activation_modes import MODES


def data(random, dtype="f4", groups=1):
    x = random.standard_normal((2, 4 * groups, 9, 7)).astype(dtype)
    w = random.standard_normal((6 * groups, 4, 3, 3)).astype(dtype)
    return x, w, random.standard_normal(6 * groups).astype(dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_right_results_pass(random, mode, dtype):
    x, w, b = data(random, dtype, groups=2)
    for limit in ("1MiB", "8KiB"):
        with ooc_cudnn.settings(verify=20, memory_limit=limit):
            ooc_cudnn.convolution_add_activation_forward(
                x, w, b, activation=mode, padding=2, groups=2, alpha=-3
            )


@pytest.mark.parametrize("coef", [100.0, 1e4])
@pytest.mark.parametrize("mode", ["elu", "leaky_relu"])
def test_steep_activations_are_no_fault(random, mode, coef):
    x, w, b = data(random)
    with ooc_cudnn.settings(verify=60, allow_tf32=False):
        ooc_cudnn.convolution_add_activation_forward(x, w, b, activation=mode, coef=coef)


def test_sums_that_cancel_are_no_fault(random):
    x, w, _ = data(random)
    w[:, :, ::2] = 1000
    w[:, :, 1] = -1000
    x[...] = 1 + 1e-3 * x
    with ooc_cudnn.settings(verify=60, allow_tf32=False):
        ooc_cudnn.convolution_forward(x, w)


def test_a_result_too_large_for_its_type_is_no_fault():
    x = np.full((2, 10, 3, 3), 100, np.float16)
    x[1] *= -1
    with ooc_cudnn.settings(verify=20):
        y = ooc_cudnn.convolution_forward(x, x[:1, :, :1, :1])
    assert y[0].min() == np.inf
    assert y[1].max() == -np.inf


def test_old_content_is_read_before_the_run(random):
    x, w, _ = data(random)
    out = random.standard_normal((2, 6, 7, 5)).astype("f4")
    with ooc_cudnn.settings(verify=30, memory_limit="8KiB"):
        ooc_cudnn.convolution_forward(x, w, out=out, beta=2, alpha=0.5)


def broken(monkeypatch, change):
    real = HostDevice.run

    def run(self, launch, views, workspace, stream):
        real(self, launch, views, workspace, stream)
        from ooc_cudnn.devices.host.device import _array

        if launch.output == "y":
            change(_array(views["y"]))

    monkeypatch.setattr(HostDevice, "run", run)


@pytest.mark.parametrize("factor", [1.001, 0, np.nan, np.inf])
@pytest.mark.parametrize("limit", ["1MiB", "8KiB"])
def test_wrong_results_are_found(monkeypatch, random, factor, limit):
    x, w, _ = data(random)

    def change(y):
        with np.errstate(all="ignore"):
            y *= np.float32(factor)

    broken(monkeypatch, change)
    with (
        ooc_cudnn.settings(verify=3, memory_limit=limit, allow_tf32=False),
        pytest.raises(ooc_cudnn.VerificationError, match="convolution_forward is wrong") as caught,
    ):
        ooc_cudnn.convolution_forward(x, w)
    (n, c, h, v) = (low for low, _ in caught.value.region)
    seen = x[n, :, h : h + 3, v : v + 3].astype("f8")
    assert caught.value.expected == pytest.approx((seen * w[c]).sum(), rel=1e-9)


def test_one_wrong_seam_is_found_sooner_or_later(monkeypatch, random):
    x, w, _ = data(random)

    def change(y):
        y[:, :, 0] += 0.5

    broken(monkeypatch, change)
    with (
        ooc_cudnn.settings(verify=60, memory_limit="8KiB"),
        pytest.raises(ooc_cudnn.VerificationError),
    ):
        ooc_cudnn.convolution_forward(x, w)


def test_the_next_call_works(monkeypatch, random):
    x, w, _ = data(random)
    with monkeypatch.context() as patch:
        broken(patch, lambda y: y.fill(3))
        with ooc_cudnn.settings(verify=1), pytest.raises(ooc_cudnn.OocError):
            ooc_cudnn.convolution_forward(x, w)
    with ooc_cudnn.settings(verify=1):
        ooc_cudnn.convolution_forward(x, w)


@pytest.mark.parametrize("mode", ["channel", "instance"])
def test_the_logarithm_of_zero_makes_nothing_uncertain(mode):
    """Where y is -Inf, its exponential is 0, and so is the part of the sum that dx gets."""
    random = np.random.default_rng(11)
    x, dy, old = (random.standard_normal((2, 6, 3, 4)).astype("f2") for _ in range(3))
    x[:, 1:] = -np.inf
    dx, scale = old.copy(), {"alpha": 0.3, "beta": 0.7}
    with ooc_cudnn.settings(verify=40):
        y = ooc_cudnn.softmax_forward(x, algorithm="log", mode=mode)
        ooc_cudnn.softmax_backward(y, dy, algorithm="log", mode=mode, out=dx, **scale)
    assert np.isneginf(y[:, 1:]).all()
    expected = 0.3 * dy.astype("f8") + 0.7 * old
    assert np.allclose(dx[:, 1:], expected[:, 1:], rtol=1e-3, atol=1e-3)
