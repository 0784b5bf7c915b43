"""What forward changes in place is what PyTorch makes of it: views, buffers, parameters, inputs."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ooc_cudnn.torch as ooc
from tests.support.torch_checks import close, followed_in_calls

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = "1MiB"


def drawn():
    torch.manual_seed(0)
    return torch.randn(2, 3, 4, 4, dtype=torch.float64)


class Of(nn.Module):
    """A convolution, what a function does to its result, and another convolution."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)
        self.w = nn.Parameter(torch.randn(1, 4, 1, 1))
        self.register_buffer("table", torch.randn(4, 4))
        self.register_buffer("mean", torch.zeros(1, 4, 1, 1))
        self.function = function

    def forward(self, x):
        return self.last(self.function(self, self.first(x)))


def checked(function, **options):
    torch.manual_seed(0)
    return followed_in_calls(Of(function).double(), drawn(), memory_limit=LIMIT, **options)


def view_of_views(model, y):
    y[:, 1:3].transpose(2, 3)[..., 1].mul_(3)
    return y


def base_behind_its_views(model, y):
    part = y[:, 1:].permute(1, 0, 3, 2)
    y.mul_(model.w)
    part[0].add_(1)
    return y + part[1][:, None]


def views_of_one_base(model, y):
    one, other = y[:, :3], y.flatten(2)[:, 2:]
    one.mul_(2)
    other.sub_(one[:, :2].flatten(2))
    return torch.cat([one[:, 2:], y[:, 1:]], 1)


def diagonal(model, y):
    y.diagonal(dim1=2, dim2=3).zero_()
    return y


def windows(model, y):
    y.unfold(3, 2, 2)[..., 0].mul_(model.w)
    return y


def strided(model, y):
    y[:, ::2, 1:, ::3] = 0.5
    y[0, :, 0] += y[1, :, 1]
    return y


def broadcast(model, y):
    y[:, :2].copy_(model.w[:, :2])
    return y.sin()


def of_another_dtype(model, y):
    made = torch.zeros(y.shape, dtype=torch.float32)
    made.copy_(y)
    y.mul_(made)
    return y


def by_indices(model, y):
    y[:, [0, 2]] = y[:, [3, 1]].tanh()
    y.index_add_(1, torch.tensor([1, 1]), y[:, 2:] * 2)
    y.scatter_(1, torch.zeros(2, 1, 4, 4, dtype=torch.int64), 0.25)
    return y.masked_fill_(y > 1, 1.0)


def reads_itself(model, y):
    y += y.flip(3)
    y[:, 1:] -= y[:, :-1].clone()
    return F.relu(y, inplace=True)


def of_another_shape(model, y):
    y.unsqueeze_(1).squeeze_(1).transpose_(2, 3)
    part = y[0, 0]
    part.t_()
    y.mul_(2)
    part.add_(1)
    return y


def of_another_shape_with_views(model, y):
    h, part = y.detach().clone(), y[0, :3]
    shown = h.detach()
    h.unsqueeze_(0)
    shown.mul_(3)
    part.unsqueeze_(0).transpose_(1, 2)
    y.mul_(2)
    part.add_(1)
    return y * h[0] + part.sum()


def written_behind_detach(model, y):
    h = y * 2
    shown = h.detach()
    shown[0].add_(model.w[0] * y.mean())
    h.mul_(3)
    return h + shown.sin()


def overwritten(model, y):
    one, other = model.w * 2, model.w * 3
    one.zero_()
    other.copy_(y.mean((0, 2, 3))[None, :, None, None])
    return y * other + one


def detached_in_place(model, y):
    h = (y * 2).detach_()
    h.add_(1)
    return y * h


def through_detach(model, y):
    y.detach().mul_(2)
    return y.sin()


def without_gradients(model, y):
    with torch.no_grad():
        y[:, 0].add_(1)
        y.mul_(model.w)
    return y.sin()


def as_data(model, y):
    y.data.clamp_(-0.5, 0.5)
    y.data[:, 1] = 2.0
    return y.sin()


def into_out(model, y):
    made = torch.empty_like(y).detach()
    torch.mul(y.detach(), 2, out=made)
    torch.add(y.detach(), 1, out=made[:, :])
    least, places = torch.zeros(2, 4, 4).double(), torch.zeros(2, 4, 4, dtype=torch.int64)
    torch.min(y.detach(), 1, out=(least, places))
    return y * made + least[:, None] * places[:, None]


def split(model, y):
    h = y.detach().clone()
    one, other = h.split(2, 1)
    one.mul_(2)
    other.add_(one)
    return y * h + torch.cat([other, one], 1)


def swapped(model, y):
    h = y.detach().clone()
    one, other = h[:, 1:].transpose(1, 2).chunk(2, 3)
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)
    return y * h


def unbound(model, y):
    h = y.detach().clone()
    for at, each in enumerate(h.unbind(1)):
        each.mul_(at)
    h.add_(1)
    return y * h + each[:, None]


def filled_at_indices(model, y):
    """Tensors that factories have made, and that get a history by the first write."""
    n = y.shape[0]
    rows, images = torch.arange(3), torch.arange(n)
    one = torch.zeros(n, 3, dtype=y.dtype)
    other, more = (torch.zeros(n, 3, 9, dtype=y.dtype) for _ in range(2))
    one[:, [0, 1]] = y[:, :2, 0, 0]
    one[:, [1, 2]] = y[:, 2:, 0, 1]
    other[images, :, 0] = y[:, :3, 0, 0]
    other[:, 1] += 1
    more[:, :, :2] = y[:, :3, 0, :2]
    more[images[:, None], rows] += 1
    more[:, 0, 3] = 2.0
    return y * (one[..., None] * 2 + other.sin() * more).sum()


def written_to_what_is_detached_from(model, y):
    """The one that was detached from has the numbers, and no history."""
    before = torch.zeros(3, dtype=y.dtype)
    h = before.detach()
    h[[0, 2]] = y[0, 0, 0, :2]
    h[1] = y[0, 0, 0, 2]
    return y * h.sum() + before.sin().sum() * y


FUNCTIONS = [
    filled_at_indices, written_to_what_is_detached_from, view_of_views, base_behind_its_views,
    views_of_one_base, diagonal, windows, strided, broadcast, of_another_dtype, by_indices,
    reads_itself, of_another_shape, of_another_shape_with_views, written_behind_detach,
    overwritten, detached_in_place, through_detach, without_gradients, as_data, into_out,
    split, swapped, unbound,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_what_is_changed_in_place_is_as_in_pytorch(function):
    checked(function)


def chained(model, y):
    model.mean.mul_(0.9).add_(y.detach().mean((0, 2, 3), keepdim=True))
    return y - model.mean


def part(model, y):
    model.mean[:, 0].copy_(y.detach().mean((0, 2, 3), keepdim=True)[:, 0])
    return y


def assigned(model, y):
    model.mean = 0.9 * model.mean + y.detach().mean((0, 2, 3), keepdim=True)
    return y - model.mean


def two_views(model, y):
    row, column = model.table[0], model.table[:, 0]
    row.add_(1)
    column.mul_(2)
    return y + row + column[:, None]


def a_clone(model, y):
    return y + model.table.clone().mul_(2).add_(1)


def data_of_a_buffer(model, y):
    model.table.data = model.table + 1
    return y + model.table


def not_of_the_input(model, y):
    model.table.mul_(0.5)
    return y + model.table[1]


BUFFERS = [chained, part, assigned, two_views, a_clone, data_of_a_buffer, not_of_the_input]


@pytest.mark.parametrize("function", BUFFERS, ids=lambda each: each.__name__)
def test_buffers_are_as_pytorch_leaves_them(function):
    """They stayed as they were at the first call, or were refused."""
    checked(function, calls=3)


def clamped(model, y):
    with torch.no_grad():
        model.w.clamp_(-0.5, 0.5)
    return y * model.w


def scaled_as_data(model, y):
    model.w.data.mul_(0.5)
    return y * model.w


def replaced(model, y):
    model.w.data = model.w.data / model.w.data.norm()
    return y * model.w


@pytest.mark.parametrize("function", [clamped, scaled_as_data, replaced], ids=lambda f: f.__name__)
def test_parameters_are_as_pytorch_leaves_them(function):
    torch.manual_seed(0)
    model = Of(function).double()
    under = followed_in_calls(model, drawn(), calls=3, memory_limit=LIMIT)
    assert isinstance(under.w, nn.Parameter)
    assert under.w.is_leaf
    close(under.w, model.w, "the parameter")


def test_an_input_is_as_pytorch_leaves_it():
    class Changing(Of):
        def forward(self, x):
            x.mul_(2)[:, 0].add_(1)
            return self.last(self.first(x))

    torch.manual_seed(0)
    eager, x = Changing(None).double(), drawn()
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    given = [x.clone(), x.clone()]
    for _ in range(2):
        for model, each in zip((under, eager), given, strict=True):
            model.y = model(each)
            model.y.square().sum().backward()
        close(under.y, eager.y, "output")
        close(*given, "input")
    for (name, one), other in zip(under.named_parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, name)


def test_a_leaf_whose_gradients_are_asked_is_not_changed():
    class Changing(nn.Conv2d):
        def forward(self, x):
            with torch.no_grad():
                x.mul_(2)
            return super().forward(x)

    model, x = ooc.limit(Changing(3, 2, 1).double(), LIMIT), drawn().requires_grad_()
    before = x.detach().clone()
    with pytest.raises(
        ooc.UnsupportedModelError, match=r"argument in place that is a leaf[^$]*, line "
    ):
        model(x)
    assert torch.equal(x, before)
    assert not torch.is_grad_enabled() or x.requires_grad
    assert model(x.detach().clone()).shape == (2, 2, 4, 4)


def test_a_hook_on_an_argument_that_is_changed_is_an_error_in_backward():
    """It would not see what forward makes of it further."""
    part = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 2, 1)).double()
    given = drawn().requires_grad_() * 2
    y = ooc.limit(part, LIMIT)(given)
    given.retain_grad()
    with pytest.raises(ooc.UnsupportedModelError, match="an argument that forward changes in"):
        y.sum().backward()


def test_what_autograd_refuses_is_refused():
    """PyTorch writes to no part of what `split` makes; no wrong gradient comes of it here."""

    def function(model, y):
        one, _ = y.split(2, 1)
        one.mul_(2)
        return y

    torch.manual_seed(0)
    eager = Of(function).double()
    with pytest.raises(RuntimeError, match="view"):
        eager(drawn())
    with pytest.raises((RuntimeError, TypeError, ValueError), match="view"):
        ooc.limit(eager, LIMIT)(drawn())


def lists(model, y):
    h = y * 1.0
    torch._foreach_mul_([h, h[:, :1]], 2.0)
    torch._foreach_addcmul_([h], [y], [y], [0.5])
    torch._foreach_add_([h[:, :1], h[:, 1:]], [y[:, :1], 3 * y[:, 1:]], alpha=2)
    return y * h


def test_lists_of_tensors_are_changed_one_by_one():
    """One may be a view of another."""
    torch.manual_seed(0)
    eager = Of(lists).double()
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    x = drawn()
    found, expected = limited(x), eager(x)
    close(found, expected, "y")
    for each in (found, expected):
        each.square().sum().backward()
    for one, other in zip(limited.parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, "gradient")


def test_data_that_was_read_is_not_put_in_place():
    """A gradient of PyTorch's would be of what was there, or of what is there: it depends."""

    class Normed(nn.Module):
        def __init__(self, first):
            super().__init__()
            self.conv, self.last, self.first = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 2, 1), first

        def put(self):
            self.conv.weight.data = torch.renorm(self.conv.weight.data, 2, 0, 0.1)

        def forward(self, x):
            if self.first:
                self.put()
            y = self.conv(x)
            if not self.first:
                self.put()
            return self.last(y)

    x = torch.randn(2, 3, 4, 4)
    with pytest.raises(ooc.UnsupportedModelError, match=r"changes the data of conv\.weight"):
        ooc.limit(Normed(False), LIMIT)(x)
    torch.manual_seed(0)
    eager = Normed(True)
    limited = ooc.limit(copy.deepcopy(eager), LIMIT)
    close(limited(x), eager(x), "y", tolerance=1e-5)
    close(limited.conv.weight, eager.conv.weight, "weight")
    with torch.no_grad():
        close(ooc.limit(copy.deepcopy(eager), LIMIT)(x), eager(x), "y", tolerance=1e-5)


def test_what_draws_nothing_leaves_random_numbers_as_they_are():
    model = Of(lambda m, y: F.dropout(F.rrelu(y, 0.1, 0.3, training=False), 0.5, training=False))
    limited, x = ooc.limit(model.double(), LIMIT), drawn()
    limited(x)
    before = torch.get_rng_state()
    limited(x)
    assert torch.equal(torch.get_rng_state(), before)
