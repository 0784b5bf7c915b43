"""Operands on the card that are not all needed, or lie at odd places: right, in every placement.

The first tests are faults that were found on an H200: cuDNN computed on such operands as if they
were packed, or refused their addresses.
"""

from __future__ import annotations

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.errors import PlanInfeasibleError
from tests.support import in_place
from tests.support.in_place import CALLS, make, on_device, on_host

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
ORDERS = ("channels_first", "channels_last")


@pytest.fixture(autouse=True)
def true_float32():
    """The references' bounds are those of the dtype."""
    with ooc_cudnn.settings(allow_tf32=False):
        yield


@pytest.mark.parametrize(("name", "way"), CALLS)
def test_what_no_window_reaches(name, way):
    in_place.check_everywhere(make(name, way))


@pytest.mark.parametrize(("name", "way"), CALLS)
def test_what_no_window_reaches_in_other_types(name, way):
    at = CALLS.index((name, way))
    dtype, order = ("float16", "bfloat16", "float64")[at % 3], ORDERS[at % 2]
    in_place.check_everywhere(make(name, way, dtype, alpha=1.5, beta=-0.5), (order,))


@pytest.mark.filterwarnings("ignore:.*pieces by the memory limit")
@pytest.mark.parametrize(("name", "way"), CALLS)
def test_under_limits_that_cut(name, way):
    """Pieces of n that start anywhere, rows, channels; with operands at odd addresses."""
    call, order = make(name, way, alpha=1.5, beta=-0.5), ORDERS[CALLS.index((name, way)) % 2]
    for offset in (0, 3):
        arrays = {n: on_device(a, order, offset) for n, a in call.arrays.items()}
        out = {n: on_device(a, order, offset) for n, a in call.fresh().items()}
        held = ooc_cudnn.devices.get_device("cuda").arena.array_bytes
        for room in (2**20, 2**16, 1):
            limit = held + room
            try:
                with ooc_cudnn.settings(memory_limit=limit):
                    in_place.check(call, f"{order} {offset} {room}", arrays, out)
            except PlanInfeasibleError as error:
                with ooc_cudnn.settings(memory_limit=error.smallest_bytes):
                    in_place.check(call, f"{order} {offset} at least", arrays, out)


# The cases of issue 18 ----------------------------------------------------------------------------


def reference(x, w, **geometry):
    """A convolution by PyTorch in float64 on the CPU."""
    return torch.nn.functional.conv2d(x.double().cpu(), w.double().cpu(), **geometry)


@pytest.mark.parametrize("order", ORDERS)
def test_resnets_downsampling(order):
    """x 4x16x56x56, w 32x16x1x1, stride 2: forward was off by 1.2, the filter gradient by 1.5."""
    torch.manual_seed(18)
    form = torch.channels_last if order == "channels_last" else torch.contiguous_format
    x = torch.randn(4, 16, 56, 56, device="cuda").to(memory_format=form)
    w = torch.randn(32, 16, 1, 1, device="cuda").to(memory_format=form)
    expected = reference(x, w, stride=2)
    dy = torch.randn(expected.shape, device="cuda").to(memory_format=form)
    for host in (False, True):
        place = torch.Tensor.cpu if host else torch.Tensor.clone
        with ooc_cudnn.profile() as recorded:
            y = ooc_cudnn.convolution_forward(place(x), w, stride=2)
            dw = ooc_cudnn.convolution_backward_filter(place(x), dy, filter_shape=w.shape, stride=2)
        assert torch.allclose(y.double().cpu(), expected, atol=1e-4)
        seen = x[:, :, ::2, ::2].double().cpu()
        products = torch.einsum("nkhw,nchw->kc", dy.double().cpu(), seen)
        assert torch.allclose(dw.double().cpu()[:, :, 0, 0], products, atol=1e-3)
        if not host:  # and nothing is copied for that: x is computed on where it lies
            for done in recorded.calls:
                assert dict(done.plan.rings)["x"] == 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("padding", [(1, 0, 1), ((1, 2), 0, (1, 1)), (0, 0, 1), ((0, 1), 0, 2)])
def test_a_data_gradient_of_bfloat16_with_dy_in_another_order(order, padding):
    """x 3x3x2x1x2, w 3x3x1x1x4: CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER."""
    call = in_place.calls.gradient_call(
        in_place.ConvolutionCase(
            str(padding), (3, 3, 2, 1, 2), (3, 3, 1, 1, 4), {"padding": padding}, "bfloat16"
        ),
        "data",
    )
    for offset in (0, 1):
        arrays = {**call.copies(), "dy": on_device(call.arrays["dy"], order, offset)}
        in_place.check(call, f"dy on the card, {order}", arrays, call.fresh())
        out = {"dx": on_device(call.fresh()["dx"], order, offset)}
        in_place.check(call, f"both on the card, {order}", arrays, out)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("padding", [0, (2, 0), (1, 3), ((3, 0), (0, 3))])
def test_a_data_gradient_into_a_strided_tensor(order, padding, device):
    """x 4x5x7x4, w 5x5x2x2, dilation (1, 3), beta 0.5: the same error."""
    geometry = {"dilation": (1, 3), "padding": padding}
    call = in_place.calls.gradient_call(
        in_place.ConvolutionCase(str(padding), (4, 5, 7, 4), (5, 5, 2, 2), geometry, beta=0.5),
        "data",
    )
    arrays = {n: on_device(a, order) for n, a in call.arrays.items()}
    for skipped in ((1, 1, 1, 2), (1, 2, 1, 1), (2, 1, 2, 1)):
        large = torch.zeros(
            [e * s for e, s in zip((4, 5, 7, 4), skipped, strict=True)], device=device
        )
        dx = large[tuple(slice(None, None, step) for step in skipped)]
        dx[...] = torch.from_numpy(call.old["dx"])
        found = call.run(arrays, {"dx": dx})
        call.check(
            {"dx": found["dx"].cpu()}, f"{skipped}", {n: on_host(a) for n, a in arrays.items()}
        )
        assert torch.count_nonzero(large) <= dx.numel()


def test_a_negative_view_of_a_tensor_on_the_card():
    """Its sign is resolved on PyTorch's stream, in memory that is kept until it was read."""
    z = torch.randn(2, 3, 8, 8, dtype=torch.complex64, device="cuda")
    x = torch.conj(z).imag
    assert x.is_neg()
    for _ in range(3):
        y = ooc_cudnn.activation_forward(x, mode="relu")
        torch.full((2, 3, 8, 8), 7.0, device="cuda")  # would take the memory if it were free
        assert torch.equal(y.cpu(), torch.relu(-z.cpu().imag))
    with pytest.raises(ValueError, match="negative"):
        ooc_cudnn.activation_forward(y, mode="relu", out=torch.conj(z).imag)
    assert np.isfinite(y.cpu().numpy()).all()


def test_expanded_and_turned_tensors_on_the_card():
    """Strides of zero, swapped and negative ones: brought to a slot, whatever they are."""
    torch.manual_seed(19)
    x, w = torch.randn(1, 3, 9, 8, device="cuda"), torch.randn(4, 3, 3, 2, device="cuda")
    ways = (
        x.expand(5, 3, 9, 8),
        x[:, :1].expand(1, 3, 9, 8),
        torch.randn(5, 3, 8, 9, device="cuda").transpose(2, 3),
        torch.randn(3, 5, 9, 8, device="cuda").transpose(0, 1),
        torch.randn(5, 3, 18, 16, device="cuda")[:, :, 1::2, ::2],
    )
    for seen in ways:
        for limit in ("16MiB", "2MiB"):
            with ooc_cudnn.settings(memory_limit=limit):
                y = ooc_cudnn.convolution_forward(seen, w)
            assert torch.allclose(y.double().cpu(), reference(seen, w), atol=1e-4)
    turned = cupy.asarray(ways[0].contiguous())[::-1, :, ::-1]
    y = ooc_cudnn.convolution_forward(turned, cupy.asarray(w))
    expected = reference(torch.from_numpy(turned.get().copy()), w)
    assert np.allclose(y.get(), expected.numpy(), atol=1e-4)
