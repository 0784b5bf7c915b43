"""What is only moved and cast, which the library does itself: each element to the last bit."""

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc

SHAPE = 2, 3, 4, 6


class Moved(nn.Module):
    """Channels times powers of two, and what a function makes of them."""

    def __init__(self, function):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 2, 4]).view(3, 1, 1))
        self.function = function

    def forward(self, x):
        """Apply it."""
        return nn.functional.leaky_relu(self.function(x * self.scale), 0.5)


def windows(x, dtype=None):
    n, c, h, w = x.shape
    t = x.roll((1, -2), (2, 3)).view(n, c, h // 2, 2, w // 3, 3)
    t = t if dtype is None else t.to(dtype)
    return t.permute(0, 2, 4, 3, 5, 1).reshape(-1, 6, c)


def back(t, dtype=None):
    t = t.view(2, 2, 2, 2, 3, 3).permute(0, 5, 1, 3, 2, 4)
    t = t if dtype is None else t.to(dtype)
    return t.reshape(2, 3, 4, 6).roll((1, 2), (2, 3))


def rows_apart(x):
    return torch.cat([x[..., h::2, :] for h in range(2)], 1)


MOVES = {
    "windows": windows,
    "windows in bfloat16": lambda x: windows(x, torch.bfloat16),
    "there in bfloat16, back in float32": lambda x: back(
        windows(x, torch.bfloat16).relu(), torch.float32
    ),
    "patches by slices, in bfloat16": lambda x: torch.cat(
        [x[..., h::2, w::2] for w in range(2) for h in range(2)], 1
    ).bfloat16(),
    "patches by slices of bfloat16, in float32": lambda x: rows_apart(x.bfloat16()).float(),
    "patches by slices": lambda x: torch.cat(
        [x[..., h::2, w::2] for w in range(2) for h in range(2)], 1
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_elements_are_moved_without_pytorch(name):
    x = torch.randint(-9, 9, SHAPE).float()
    eager, model = Moved(MOVES[name]), Moved(MOVES[name])
    ooc.limit(model, "1MiB")
    expected, y = eager(x), model(x)
    assert y.dtype == expected.dtype
    assert torch.equal(y, expected)
    gradient = torch.randint(-3, 3, y.shape).to(y.dtype)
    expected.backward(gradient)
    y.backward(gradient)
    assert torch.equal(model.scale.grad, eager.scale.grad)
    assert "outside" not in " ".join(task.name for task in model.forward.plan.tasks)


def one_is_rounded(x):
    return torch.cat([x[..., ::2].bfloat16(), x[..., 1::2]], -1)


def one_was_rounded(x):
    rounded = x.bfloat16().float()
    return torch.cat([rounded[..., ::2], x[..., 1::2]], 1)


def one_is_rounded_further(x):
    rounded = x.bfloat16()
    return torch.cat([rounded[..., ::2], x.half()[..., 1::2]], 1)


def both_are_rounded(x):
    return torch.cat([x[..., ::2].bfloat16(), x[..., 1::2].bfloat16()], 1).float()


@pytest.mark.parametrize(
    "function", [one_is_rounded, one_was_rounded, one_is_rounded_further, both_are_rounded]
)
def test_parts_that_are_rounded_are_so_alone(function):
    x = torch.full(SHAPE, 1.0 + 2**-12)
    model = ooc.limit(Moved(function), "1MiB")
    y = model(x)
    assert torch.equal(y, Moved(function)(x))
    assert y.dtype == Moved(function)(x).dtype
