"""Autocast, and models of half precision: types as PyTorch's, and numbers as near as its own."""

import copy

import pytest
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import disable_autocast_cache
from torch.nn import functional as F

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch import UnsupportedModelError
from ooc_cudnn.torch.tracing import autocast
from tests.support.torch_checks import Result

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = "1MiB"


class Mixed(nn.Module):
    """Convolutions, a normalization, a part in single precision, sums of both, a linear layer."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 1), nn.Linear(4, 2)

    def forward(self, x):
        h = self.norm(self.first(x)).relu_()
        with torch.autocast("cpu", enabled=False):
            single = h.float() * 2
        h = self.second(h) + single
        return self.last(h.mean((2, 3)))


class Within(nn.Module):
    """Autocast of its own, in which maps are changed in place, and products are Einstein's."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        h = self.first(x)
        with torch.autocast("cpu", torch.bfloat16):
            h.relu_()
            h = torch.einsum("nchw,cd->ndhw", h, self.w)
            y = self.last(h)
        return y, h.float().mean((2, 3))


class Scaled(nn.Module):
    """Parameters in single precision with half maps, and the other way round; one in place."""

    def __init__(self):
        super().__init__()
        self.first, self.linear, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Conv2d(4, 2, 1)
        self.scale, self.shift = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4, 1, 1))
        self.gain = nn.Parameter(torch.tensor(1.3))
        self.narrow = nn.Parameter(torch.rand(4, 1, 1, dtype=torch.bfloat16))

    def forward(self, x):
        h = self.first(x)
        y = (self.linear(h.permute(0, 2, 3, 1)) * self.scale).permute(0, 3, 1, 2) + h
        z = self.first(x).mul_(self.gain).add_(self.shift)
        return y - self.narrow, self.last(z), self.gain * z


def result(model, x, dtype=None):
    """What it makes of x, under autocast to a dtype."""
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        return Result(model, [x])


def as_near(found, rounded, exact, least=2**-6):
    """Assert types as PyTorch's, and numbers no further from the exact ones than twice its own."""
    assert found.structure == rounded.structure
    pairs = zip(found.outputs, rounded.outputs, exact.outputs, strict=True)
    groups = [("output", tuple(pairs))]
    for kind in ("gradients", "buffers"):
        groups += [
            (f"{kind} {name}", ((getattr(found, kind)[name], each, getattr(exact, kind)[name]),))
            for name, each in getattr(rounded, kind).items()
            if each is not None
        ]
    largest = max(float(each.abs().max()) for each in exact.gradients.values())
    for said, triples in groups:
        for ours, pytorchs, true in triples:
            assert ours.dtype == pytorchs.dtype, said
            scale = max(float(true.detach().abs().max()), largest if "gradients" in said else 0.0)
            off, own = (
                float((each.double() - true).detach().abs().max()) for each in (ours, pytorchs)
            )
            assert off <= 2 * own + least * scale, f"{said}: {off:.3g}, PyTorch {own:.3g}"


@pytest.mark.parametrize(
    ("make", "dtype"), [(Mixed, torch.bfloat16), (Mixed, None), (Within, None)]
)
def test_types_and_numbers_are_those_of_autocast(make, dtype):
    torch.manual_seed(0)
    eager, x = make(), torch.randn(4, 3, 12, 12)
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    exact = result(_plain(eager), x.double())
    rounded = result(copy.deepcopy(eager), x, dtype)
    as_near(result(under, x, dtype), rounded, exact)
    assert all(each.grad.dtype == torch.float32 for each in under.parameters())


def test_parameters_in_single_precision_times_half_maps_are_the_librarys():
    """A layer's scale is multiplied in float32, as PyTorch promotes; one number promotes no map."""
    torch.manual_seed(0)
    eager, x = Scaled(), torch.randn(4, 3, 12, 12)
    under = ooc.limit(copy.deepcopy(eager), LIMIT, strict=True)
    found = result(under, x, torch.bfloat16)
    as_near(found, result(eager, x, torch.bfloat16), result(_plain(eager), x.double()))
    assert [y.dtype for y in found.outputs] == [torch.float32, torch.bfloat16, torch.bfloat16]
    assert {name: each.grad.dtype for name, each in under.named_parameters()} == {
        name: each.dtype for name, each in eager.named_parameters()
    }


def _plain(model):
    """The same in double precision, where autocast does nothing."""
    return copy.deepcopy(model).double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [True, False])
def test_models_of_half_precision_with_normalizations(dtype, training):
    torch.manual_seed(0)
    eager = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 2),
    ).to(dtype).train(training)  # fmt: skip
    x = torch.randn(4, 3, 12, 12).to(dtype)
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    exact = result(_plain(eager), x.double())
    as_near(result(under, x), result(copy.deepcopy(eager), x), exact, 2**-4)
    if not training:
        with torch.no_grad():
            assert torch.allclose(under(x).float(), eager(x).float(), atol=0.02, rtol=0.02)


class Recurrent(nn.Module):
    """An LSTM that reads what is in single precision and has a gradient."""

    def __init__(self):
        super().__init__()
        self.norm, self.lstm = nn.LayerNorm(4), nn.LSTM(4, 6, 2, batch_first=True)

    def forward(self, x):
        y, (h, c) = self.lstm(self.norm(x))
        return y, h, c


def test_a_plan_under_autocast_without_memory_for_the_model_is_refused():
    """PyTorch casts nothing on "meta": the plan would be of single precision."""
    with torch.device("meta"):
        model = nn.Conv2d(3, 8, 3)
    assert ooc.plan(model, (2, 3, 8, 8), memory_limit=LIMIT).device_bytes > 0
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(UnsupportedModelError, match="autocast does nothing for a model on"):
            ooc.plan(model, (2, 3, 8, 8), memory_limit=LIMIT)
        half = ooc.plan(model.to_empty(device="cpu"), (2, 3, 8, 8), memory_limit=LIMIT)
    assert half.device_bytes > 0


def test_an_lstm_has_the_dtype_of_its_own_results():
    torch.manual_seed(0)
    eager, x = Recurrent(), torch.randn(3, 5, 4)
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    exact = result(_plain(eager), x.double())
    found = result(under, x, torch.bfloat16)
    as_near(found, result(eager, x, torch.bfloat16), exact)
    assert {each.dtype for each in found.outputs} == {torch.bfloat16}


class Attending(nn.Module):
    """Attention to what is half and single: turned queries and keys, a bias of positions."""

    def __init__(self):
        super().__init__()
        self.linear, self.bias = nn.Linear(4, 12), nn.Parameter(torch.randn(5, 5))

    def forward(self, x):
        q, k, v = self.linear(x).chunk(3, -1)
        turns = self.bias[:, :4]
        return (
            F.scaled_dot_product_attention(q * turns, k * turns, v),
            F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias),
            F.scaled_dot_product_attention(q, x, x, is_causal=True),
            F.scaled_dot_product_attention(x, k, v),
        )


def test_attention_to_halves_and_singles():
    torch.manual_seed(0)
    eager, x = Attending(), torch.randn(3, 5, 4)
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    exact = result(_plain(eager), x.double())
    as_near(result(under, x, torch.bfloat16), result(eager, x, torch.bfloat16), exact)


def test_attention_to_halves_is_pytorchs():
    """What attention itself computes in float32 is none of autocast's casts."""

    class Halves(nn.Module):
        def forward(self, x):
            x = x.bfloat16() * 2
            return F.scaled_dot_product_attention(x, x, x)

    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    found, expected = (
        result(model, x.clone().requires_grad_(), torch.bfloat16)
        for model in (ooc.limit(Halves(), LIMIT), Halves())
    )
    assert torch.equal(found.outputs[0], expected.outputs[0])


aten = torch.ops.aten


def on_a_card(tensors, function, args):
    """Run an operation on fake tensors under a card's autocast; what it makes, and what is cast."""
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        with (
            tensors,
            enable_python_dispatcher(),
            disable_autocast_cache(),
            autocast.casts_of(function, args, {}, id) as casts,
        ):
            return function(*args), casts
    finally:
        torch.set_autocast_enabled("cuda", before)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_a_cross_entropy_are_widened_on_a_card(dtype, smoothing):
    """It has no kernel of CUDA's autocast, whose casts are within: PyTorch computed it whole."""
    tensors = FakeTensorMode()
    with tensors:
        scores = torch.empty(2, 3, 4, 5, dtype=dtype, device="cuda")
        labels = torch.empty(2, 4, 5, dtype=torch.int64, device="cuda")
    function = aten.cross_entropy_loss.default
    found, casts = on_a_card(tensors, function, (scores, labels, None, 1, -100, smoothing))
    assert casts.function is function
    assert casts.inputs == {id(scores): torch.float32}
    assert found.dtype == torch.float32


@pytest.mark.parametrize(
    ("function", "others", "dtype"),
    [
        (aten.sum.default, (), torch.float32),
        (aten.sum.dim_IntList, ([1],), torch.float32),
        (aten.softmax.int, (-1,), torch.float32),
        (aten.log_softmax.int, (-1, torch.float64), None),
        (aten.norm.Scalar, (2,), torch.float32),
        (aten.layer_norm.default, ([5],), torch.float32),
        (aten.upsample_nearest2d.vec, ([8, 8], None), torch.float32),
        (aten.upsample_bilinear2d.vec, ([8, 8], False, None), torch.float32),
        (aten.mean.dim, ([1], False), None),
        (aten.relu.default, (), None),
        (aten.linalg_norm.default, (), None),  # it runs under autocast
    ],
)
def test_halves_on_a_card_are_cast_by_autocast(function, others, dtype):
    """Of a sum, autocast tells it the dtype; that is a cast as well.

    What `interpolate` calls has no kernel of autocast, but calls what has.
    """
    tensors = FakeTensorMode()
    with tensors:
        half = torch.empty(2, 3, 4, 5, dtype=torch.float16, device="cuda")
    found, casts = on_a_card(tensors, function, (half, *others))
    assert (casts.function is function) == (function is not aten.linalg_norm.default)
    assert casts.inputs == ({} if dtype is None else {id(half): dtype})
    assert "upsample" not in str(function) or found.dtype == dtype


def test_a_model_is_captured_with_and_without_autocast_apart():
    model = ooc.limit(nn.Conv2d(3, 2, 1), LIMIT)
    x = torch.randn(2, 3, 4, 4)
    assert model(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
        assert ooc.infer(model, x).dtype == torch.bfloat16
    assert model(x).dtype == torch.float32


def test_a_scaler_scales_and_unscales_gradients():
    torch.manual_seed(0)
    model = ooc.limit(Mixed(), LIMIT)
    x, target = torch.randn(4, 3, 12, 12), torch.arange(4) % 2
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert scaler.get_scale() == 1024.0
    assert losses[-1] < losses[0]
