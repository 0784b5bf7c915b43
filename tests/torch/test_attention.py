"""Attention in the door: what the library takes and what stays PyTorch's, as PyTorch has it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ooc_cudnn.torch as ooc
from ooc_cudnn.network.network import Network
from ooc_cudnn.torch.lowering.rules import attention as rules
from tests.support.torch_checks import Result, check, same, under

LENGTH, WIDTH, HEADS = 9, 12, 3


@pytest.fixture
def added(monkeypatch):
    """Names of the builders of attention and of what PyTorch computes, as they are called."""
    names = []

    def counted(name):
        builder = getattr(Network, name)

        def call(*args, **told):
            made = builder(*args, **told)
            names.append(name)
            return made

        monkeypatch.setattr(Network, name, call)

    for name in ("attention", "packed_attention", "outside"):
        counted(name)
    return names


@pytest.fixture(autouse=True)
def biases(monkeypatch):
    """Scores that a bias is added to are the library's."""
    monkeypatch.setattr(rules, "TAKES_BIASES", True)


class Block(nn.Module):
    """A block of a vision transformer: q, k and v by one linear layer."""

    def __init__(self, bias=None, mask=None, width=WIDTH, **told):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.register_buffer("mask", mask)
        self.told = told

    def forward(self, x):
        """Add what is attended to."""
        n, length, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(n, length, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mask = self.mask if self.bias is None else self.bias
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.told)
        return x + self.out(y.transpose(1, 2).reshape(n, length, width))


class Multihead(nn.Module):
    """PyTorch's own, of a map's sites."""

    def __init__(self, **told):
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **told)

    def forward(self, x):
        """Attend to itself."""
        x = self.before(x)
        return self.attention(x, x, x, need_weights=False)[0]


class Separate(nn.Module):
    """Queries, keys and values by a linear layer each."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        """Attend to itself."""
        n, length, width = x.shape

        def heads(y):
            return y.view(n, length, HEADS, -1).transpose(1, 2)

        q, k, v = (heads(layer(x)) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()
        return self.out(y.view(n, length, width))


class Sites(nn.Module):
    """One head, without an axis of its own, of the sites of a map."""

    def __init__(self):
        super().__init__()
        self.before, self.q, self.k = nn.Conv2d(4, 4, 1), nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, x):
        """Attend to each site."""
        sites = self.before(x).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.q(sites), self.k(sites), sites)
        return y.transpose(1, 2).reshape(x.shape)


class Shared(nn.Module):
    """Heads that share keys."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16)

    def forward(self, x):
        """Four heads of queries, two of keys and values."""
        n, length, _ = x.shape
        q = self.q(x).view(n, length, 4, 4).transpose(1, 2)
        k, v = self.kv(x).view(n, length, 2, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


SEEN = drawn(LENGTH, LENGTH) > -0.5
SEEN[2] = False  # a query that sees nothing
TAKEN = {
    "a block": Block,
    "causal": lambda: Block(is_causal=True),
    "a scale": lambda: Block(scale=0.3),
    "a bias": lambda: Block(drawn(HEADS, LENGTH, LENGTH)),
    "a bias of all heads": lambda: Block(drawn(LENGTH, LENGTH)),
    "a mask": lambda: Block(mask=SEEN),
    "a mask of numbers": lambda: Block(mask=torch.zeros(1, LENGTH, LENGTH).masked_fill(~SEEN, -9)),
    "MultiheadAttention": Multihead,
    "MultiheadAttention without biases": lambda: Multihead(bias=False),
    "separate": Separate,
    "shared keys": Shared,
}
#: Where q, k and v are no thirds of what one linear layer makes.
APART = ("separate", "shared keys")


def kinds(added):
    """Kinds of attention that were added."""
    return {name for name in added if "attention" in name}


@pytest.mark.parametrize("name", TAKEN)
def test_attention_is_pytorchs(name, added, fewest_plans):
    torch.manual_seed(0)
    check(TAKEN[name]().double(), drawn(3, LENGTH, WIDTH).double(), shares=(1 / 2,))
    assert kinds(added) == {"attention" if name in APART else "packed_attention"}


@pytest.mark.parametrize("name", ["a bias", "a mask", "written out"])
def test_biases_are_pytorchs_until_that_is_measured(name, added, fewest_plans, monkeypatch):
    """Of Swin-T they took longer here: see `TAKES_BIASES`."""
    monkeypatch.setattr(rules, "TAKES_BIASES", False)
    torch.manual_seed(0)
    made = {
        "written out": lambda: WrittenOut(WRITTEN_OUT["a bias"], drawn(HEADS, LENGTH, LENGTH)),
        **TAKEN,
    }
    check(made[name]().double(), drawn(3, LENGTH, WIDTH).double(), shares=())
    assert not kinds(added)


@pytest.mark.parametrize(
    ("depth", "dtype", "taken"),
    [(8, torch.bfloat16, True), (4, torch.bfloat16, False), (8, torch.float32, False)],
)
def test_biases_are_taken_where_scores_stay_on_a_cards_chip(
    depth, dtype, taken, added, fewest_plans, monkeypatch
):
    monkeypatch.setattr(rules, "TAKES_BIASES", False)
    torch.manual_seed(0)
    model = WrittenOut(WRITTEN_OUT["a bias"], drawn(HEADS, LENGTH, LENGTH), width=HEADS * depth)
    x = drawn(3, LENGTH, HEADS * depth).to(dtype)
    expected = copy.deepcopy(model).double()(x.double())
    found = ooc.limit(model.to(dtype), "64MiB")(x)
    assert bool(kinds(added)) == taken
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.05)


def by_unbind(qkv, heads):
    n, channels = qkv.shape[:2]
    return qkv.reshape(n, 3, heads, channels // 3 // heads, -1).mT.unbind(1)


def by_chunk(qkv, heads):
    return [part.unflatten(1, (heads, -1)).flatten(3).transpose(2, 3) for part in qkv.chunk(3, 1)]


class OfMaps(nn.Module):
    """Positions of a map attend to each other, as in the U-Nets of diffusion models."""

    def __init__(self, axes, split):
        super().__init__()
        conv = getattr(nn, f"Conv{axes}d")
        self.norm, self.qkv, self.out = nn.GroupNorm(2, 4), conv(4, 12, 1), conv(4, 4, 1)
        self.split = split

    def forward(self, x):
        """Add what is attended to."""
        y = F.scaled_dot_product_attention(*self.split(self.qkv(self.norm(x)), 2))
        return x + self.out(y.mT.reshape(x.shape))


@pytest.mark.every_case
@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (1, 4, 2, 3, 2)], ids=str)
@pytest.mark.parametrize("split", [by_unbind, by_chunk])
def test_positions_of_a_map_attend_to_each_other(shape, split, added, fewest_plans):
    torch.manual_seed(0)
    model = OfMaps(len(shape) - 2, split).double()
    check(model, drawn(*shape).double(), shares=(1 / 2,))
    assert set(added) == {"packed_attention" if split is by_unbind else "attention"}
    x = drawn(*shape).double()
    torch.testing.assert_close(ooc.infer(model.eval(), x), model(x).detach())


def test_attention_of_one_image(added, fewest_plans):
    torch.manual_seed(0)
    check(Block().double(), drawn(1, LENGTH, WIDTH).double(), shares=())
    assert kinds(added) == {"packed_attention"}


@pytest.mark.every_case
def test_attention_of_sites(added, fewest_plans):
    torch.manual_seed(0)
    check(Sites().double(), drawn(2, 4, 5, 3).double(), shares=(1 / 2,))
    assert "attention" in added


class MaskOfInputs(Block):
    """A mask that depends on x."""

    def forward(self, x):
        """Attend to what is positive."""
        self.mask = (x[:, :, 0] > 0)[:, None, None]
        found = super().forward(x)
        self.mask = None
        return found


LEFT = {
    "dropout": lambda: Block(dropout_p=1e-12),
    "a mask of inputs": MaskOfInputs,
}


@pytest.mark.parametrize("name", LEFT)
def test_what_stays_pytorchs(name, added, fewest_plans):
    torch.manual_seed(0)
    check(LEFT[name]().double(), drawn(3, LENGTH, WIDTH).double(), shares=())
    assert set(added) <= {"outside"}


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({"attn_mask": SEEN, "is_causal": True}, "Explicit attn_mask should not be set"),
        ({"attn_mask": SEEN.int()}, "attn_mask dtype"),
    ],
)
def test_what_pytorch_refuses_is_refused_before_anything_runs(told, error):
    class Refused(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x, **told)

    with pytest.raises(Exception, match=error):
        check(Refused().double(), drawn(3, LENGTH, WIDTH).double(), shares=())


class WrittenOut(Block):
    """A block whose attention is written out, as it was before there was a function."""

    def __init__(self, weigh, bias=None, **told):
        super().__init__(bias, **told)
        self.weigh = weigh

    def forward(self, x):
        """Add what is attended to."""
        n, length, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(n, length, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = self.weigh(self, q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(n, length, width))


WRITTEN_OUT = {
    "mT": lambda m, q, k, v: (q @ k.mT).softmax(-1) @ v,
    "timm": lambda m, q, k, v: F.dropout(((q * 0.5) @ k.transpose(-2, -1)).softmax(-1), 0.0) @ v,
    "scores are scaled": lambda m, q, k, v: (q @ k.transpose(2, 3) / 2).softmax(dim=3) @ v,
    "both are scaled": lambda m, q, k, v: (
        F.softmax((q * 0.7) @ (k * 0.7).transpose(-1, -2), -1) @ v
    ),
    "a bias": lambda m, q, k, v: ((q * 0.5).matmul(k.transpose(-2, -1)) + m.bias).softmax(-1) @ v,
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_attention_written_out(name, added, fewest_plans):
    torch.manual_seed(0)
    bias = drawn(HEADS, LENGTH, LENGTH) if name == "a bias" else None
    model = WrittenOut(WRITTEN_OUT[name], bias=bias).double()
    check(model, drawn(3, LENGTH, WIDTH).double(), shares=(1 / 2,))
    assert len(kinds(added)) == 1


class Windows(WrittenOut):
    """Attention within windows of a line, each with a mask of its own: as Swin's shifted ones."""

    COUNT = 3

    def forward(self, x):
        """Add what is attended to, window by window."""
        n, length, width = x.shape
        windows = x.reshape(n * self.COUNT, length // self.COUNT, width)
        return super().forward(windows).view(n, length, width)


def _shifted(m, q, k, v, mask):
    scores = (q * 0.5) @ k.transpose(-2, -1)
    if m.bias is not None:
        scores = scores + m.bias
    n, heads, length, _ = scores.shape
    scores = scores.view(n // m.COUNT, m.COUNT, heads, length, length) + mask
    return scores.view(-1, heads, length, length).softmax(-1) @ v


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("made", ["in forward", "held"])
def test_windows_with_masks_are_taken(biased, made, added, fewest_plans):
    torch.manual_seed(0)
    length = LENGTH // Windows.COUNT
    held = -100.0 * (drawn(Windows.COUNT, length, length) > 1)

    def weigh(m, q, k, v):
        mask = m.mask.to(q.dtype)
        if made == "in forward":
            mask = q.new_zeros(m.mask.shape).masked_fill(m.mask < 0, -100.0)
        return _shifted(m, q, k, v, mask.unsqueeze(1).unsqueeze(0))

    bias = drawn(HEADS, length, length) if biased else None
    model = Windows(weigh, bias=bias, mask=held).double()
    check(model, drawn(2, LENGTH, WIDTH).double(), shares=(1 / 2,))
    assert kinds(added) == {"attention"}


def test_a_window_that_sees_nothing_is_nan(added, fewest_plans):
    """As in eager: the same holds for what is added to scores without windows."""
    torch.manual_seed(0)
    length = LENGTH // Windows.COUNT
    held = torch.zeros(Windows.COUNT, length, length)
    held[1, 2] = -torch.inf
    row = torch.zeros(LENGTH, LENGTH)
    row[4] = -torch.inf
    windows = Windows(lambda m, q, k, v: _shifted(m, q, k, v, m.mask[None, :, None]), mask=held)
    alone = WrittenOut(lambda m, q, k, v: (q @ k.transpose(-2, -1) + m.mask).softmax(-1) @ v,
                       mask=row)  # fmt: skip
    for model in (windows, alone):
        added.clear()
        x = drawn(2, LENGTH, WIDTH)
        expected = model(x)
        assert torch.isnan(expected).any()
        assert not torch.isnan(expected).all()
        found = ooc.limit(model, "1GiB")(x)
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert len(kinds(added)) == 1


@pytest.mark.parametrize("name", ["timm", "a bias", "in float32"])
def test_attention_written_out_in_half_precision(name, added, fewest_plans):
    """Under autocast the softmax is in float32: no further from float64 than eager is."""
    torch.manual_seed(0)

    def in_float32(m, q, k, v):
        return F.softmax(q @ k.transpose(-2, -1), -1, dtype=torch.float32).to(q.dtype) @ v

    weigh = WRITTEN_OUT.get(name, in_float32)
    bias = drawn(HEADS, LENGTH, LENGTH) if name == "a bias" else None
    model = WrittenOut(weigh, bias=bias)
    x, errors = drawn(3, LENGTH, WIDTH), []
    exact = gradients(copy.deepcopy(model).double(), x.double())
    for run in (model, ooc.limit(copy.deepcopy(model), "1GiB")):
        with torch.autocast("cpu", torch.bfloat16):
            found = gradients(run, x)
        errors.append({k: float((found[k] - each).norm()) for k, each in exact.items()})
    assert len(kinds(added)) == 1
    eager, ours = errors
    assert all(ours[k] < 1.5 * eager[k] + 1e-6 for k in exact), (eager, ours)


def gradients(model, x):
    """Of a model's parameters, in float64, for gradients of y that are about 1."""
    model.zero_grad()
    y = model(x)
    y.backward(drawn(*y.shape).to(y.dtype))
    return {name: each.grad.double() for name, each in model.named_parameters()}


class Weights(nn.Module):
    """PyTorch's own attention, which hands out weights, too."""

    def __init__(self, *, reads):
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.attention, self.reads = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), reads

    def forward(self, x):
        """Attend to itself; weights are averaged over heads."""
        x = self.before(x)
        y, weights = self.attention(x, x, x)
        return (y, weights) if self.reads else y


@pytest.mark.parametrize("reads", [False, True])
def test_weights_that_are_read_are_pytorchs(reads, added, fewest_plans):
    torch.manual_seed(0)
    check(Weights(reads=reads).double(), drawn(3, LENGTH, WIDTH).double(), shares=(1 / 2,))
    assert ("attention" in added) != reads


LEFT_WRITTEN_OUT = {
    "dropout": lambda m, q, k, v: F.dropout((q @ k.transpose(-2, -1)).softmax(-1), 1e-12) @ v,
    "over queries": lambda m, q, k, v: (q @ k.transpose(-2, -1)).softmax(-2) @ v,
    "a mask": lambda m, q, k, v: (q @ k.transpose(-2, -1)).masked_fill(~m.mask, -9).softmax(-1) @ v,
    "weights are used": lambda m, q, k, v: (
        (a := (q @ k.transpose(-2, -1)).softmax(-1)) @ v + a.sum()
    ),
}


@pytest.mark.parametrize("name", LEFT_WRITTEN_OUT)
def test_what_else_is_written_out_stays_pytorchs(name, added, fewest_plans):
    torch.manual_seed(0)
    model = WrittenOut(LEFT_WRITTEN_OUT[name], mask=SEEN).double()
    check(model, drawn(3, LENGTH, WIDTH).double(), shares=())
    assert not {"attention", "packed_attention"}.intersection(added)


def test_scores_over_zero_are_nan_as_in_eager(added, fewest_plans):
    torch.manual_seed(0)
    model = WrittenOut(lambda m, q, k, v: (q @ k.transpose(-2, -1) / 0.0).softmax(-1) @ v)
    x = drawn(3, LENGTH, WIDTH)
    expected = model(x)
    assert torch.isnan(expected).all()
    torch.testing.assert_close(ooc.limit(model, "1GiB")(x), expected, equal_nan=True)
    assert not kinds(added)


class OneHead(nn.Module):
    """Attention of one head among the sites of volumes, as autoencoders have it."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, batch_first=True)

    def forward(self, x):
        sites = x.flatten(2).transpose(1, 2)
        return self.attention(sites, sites, sites)[0]


@pytest.mark.parametrize("limit", [8_000, 9_000, 10_000, 12_000])
def test_pieces_of_an_image_of_one_head_add_keys_gradients_up(limit):
    """Images are computed in turn under such limits; each piece of queries made its own sums."""
    torch.manual_seed(0)
    model, x = OneHead(), torch.randn(2, 2, 6, 5, 5)
    found, _ = under(model, (x,), limit)
    same(found, Result(copy.deepcopy(model), (x,)), 1e-5)
