"""What backward reads and forward replaces: refused by name; what else forward leaves stays."""

import gc
import re
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.autograd.late_state import LateRead, LateState
from ooc_cudnn.torch.capture import backend
from ooc_cudnn.torch.errors import LateChangeError, UnsupportedModelError

pytestmark = pytest.mark.usefixtures("fewest_plans")


class Model(nn.Module):
    """A convolution with buffers, and what a function does with its map."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv2d(3, 4, 3), function
        self.read, self.written = nn.Buffer(torch.ones(1)), nn.Buffer(torch.ones(1))
        self.lists = [torch.ones(1)]
        self.calls = 0

    def forward(self, x):
        return self.function(self, self.conv(x))


def write_others(m):
    m.written = m.written + 1
    m.lists.append(m.lists[-1] + m.read)
    m.calls += 1


def hooked(m, y):
    y.register_hook(lambda gradient: gradient * (m.read + m.written + m.lists[0]))
    return y * 1


def write_behind_a_hook(m, y):
    y.register_hook(lambda gradient: gradient * (m.read + m.lists[0]))
    write_others(m)
    return y * 1


def replace_behind_a_hook(m, y):
    z = hooked(m, y)
    write_others(m)
    return z


def replace_behind_a_checkpoint(m, y):
    z = checkpoint(lambda z: (z * m.written).sin(), y, use_reentrant=False)
    write_others(m)
    return z


def seen(model):
    """What two calls and their backward leave."""
    x = torch.ones(2, 3, 6, 7).requires_grad_()
    for _ in range(2):
        model(x).square().sum().backward()
    numbers = [x.grad, model.conv.weight.grad, model.read, model.written, *model.lists]
    return torch.cat([each.flatten() for each in numbers]), model.calls


def test_what_forward_leaves_behind_a_hook_is_there():
    ours, calls = seen(ooc.limit(Model(write_behind_a_hook), "1MiB"))
    expected, expected_calls = seen(Model(write_behind_a_hook))
    torch.testing.assert_close(ours, expected)
    assert calls == expected_calls == 2


@pytest.mark.parametrize(
    ("function", "what", "remedy"),
    [
        (replace_behind_a_hook, "a hook of a tensor", "as a default"),
        (replace_behind_a_checkpoint, "a checkpoint", "as an argument"),
    ],
)
def test_what_is_replaced_is_refused_by_name_and_nothing_has_changed(function, what, remedy):
    model = ooc.limit(Model(function), "1MiB")
    with pytest.raises(UnsupportedModelError) as error:
        model(torch.ones(2, 3, 6, 7))
    said, *line = str(error.value).splitlines()
    assert f"{what} reads what forward replaces behind it (written)" in said
    assert remedy in said
    assert len(line) == 1
    assert "test_late_reads.py" in line[0]
    assert (model.calls, model.written.item(), len(model.lists)) == (0, 1, 1)


def test_without_gradients_a_checkpoint_is_not_computed_again():
    model = ooc.limit(Model(replace_behind_a_checkpoint), "1MiB")
    with torch.no_grad():
        model(torch.ones(2, 3, 6, 7))
    assert model.written.item() == 2


class Block(nn.Module):
    """A convolution in a checkpoint."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def scaled(self, y):
        return F.relu(y)

    def forward(self, x, *others):
        return checkpoint(lambda z: self.scaled(self.conv(z)), x, use_reentrant=False)


def release(model, x):
    ooc.release(model)


def limit_again(model, x):
    ooc.limit(model, "2MiB")
    model(x)


def call_otherwise(model, x):
    for count in range(1, 19):
        model(x, *[x] * count)


def replace_a_method(model, x):
    was = Block.scaled
    Block.scaled = lambda self, y: F.relu(y) * 2
    try:
        model(x)
    finally:
        Block.scaled = was


@pytest.mark.filterwarnings("ignore:.*in more than 16 ways")
@pytest.mark.parametrize("then", [release, limit_again, call_otherwise, replace_a_method])
def test_backward_after_its_capture_is_gone_has_pytorchs_gradients(then):
    x, model, eager = torch.randn(2, 3, 6, 7), ooc.limit(Block(), "1MiB"), Block()
    y = model(x)
    then(model, x)
    y.sum().backward()
    eager(x).sum().backward()
    torch.testing.assert_close(model.conv.weight.grad, eager.conv.weight.grad)


def test_what_is_pytorchs_own_is_not_compared_in_each_step(monkeypatch):
    noted = []

    class Noted(LateState):
        def __init__(self, reads, scope):
            noted.extend(reads)
            super().__init__(reads, scope)

    monkeypatch.setattr(backend, "LateState", Noted)
    model = ooc.limit(Block(), "1MiB")
    model(torch.randn(2, 3, 6, 7))
    names = {read.name for read in noted}
    assert {"conv", "weight", "stride", "scaled", "F"} <= names  # the user's, F of this file too
    assert names.isdisjoint({"conv2d", "relu", "_conv_forward"})


def test_a_method_of_the_users_that_is_replaced_before_backward_is_refused():
    model = ooc.limit(Block(), "1MiB")
    y = model(torch.randn(2, 3, 6, 7))
    model.scaled = lambda y: y
    with pytest.raises(UnsupportedModelError, match="a checkpoint reads scaled, which has changed"):
        y.sum().backward()


def test_each_that_reads_a_name_is_told_and_not_the_last_alone():
    hooked = LateRead("L['forward'].__self__", "gain", "a hook of a tensor")
    computed = LateRead("L['forward'].__self__", "gain", "backward of an autograd.Function")
    assert hooked.key != computed.key


def test_what_was_not_noted_is_not_taken_for_unchanged():
    state = LateState([LateRead({"gain": 1}, "gain", "a hook of a tensor")], {})
    with pytest.raises(ValueError, match="zip"):
        state.check()


class Settings:
    """Of the process."""

    gain = 1.5


of_the_process = Settings()


def test_a_global_is_told_as_its_user_writes_it():
    model = ooc.limit(Model(lambda m, y: scaled_gradient(y, lambda: of_the_process.gain)), "1MiB")
    y = model(torch.ones(2, 3, 6, 7))
    of_the_process.gain = 3.0
    try:
        with pytest.raises(UnsupportedModelError) as error:
            y.sum().backward()
    finally:
        del of_the_process.gain
    assert "a hook of a tensor reads tests.torch.test_late_reads.of_the_process.gain, which" in str(
        error.value
    )


def scaled_gradient(y, read):
    z = y * 1
    z.register_hook(lambda gradient: gradient * read())
    return z * 1


def test_what_a_change_before_backward_is_told_to_do():
    for change, remedy in (
        (nn.Module.eval, "call model.train() and model.eval() after"),
        (zero, "as a default"),
    ):
        model = ooc.limit(
            Model(lambda m, y: scaled_gradient(y, lambda: m.calls + m.training)), "1MiB"
        )
        y = model(torch.ones(2, 3, 6, 7))
        change(model)
        with pytest.raises(UnsupportedModelError) as error:
            y.sum().backward()
        assert remedy in str(error.value)


def zero(model):
    model.calls = 7


class Arguments(nn.Module):
    """A convolution, and what a function does with its map and other arguments."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.function = nn.Conv2d(3, 4, 3), function
        self.read = nn.Buffer(torch.ones(1))

    def forward(self, x, other=None, *more, table=None):
        return self.function(self, self.conv(x), other, *more, table)


X = torch.ones(2, 3, 6, 7)


def change_an_argument(model):
    settings = {"gain": 1.0}
    y = model(X, settings)
    settings["gain"] = 2.0
    return y


def change_a_nested_one(model):
    table = {"gains": [1.0, 2.0]}
    y = model(X, table=table)
    table["gains"].append(3.0)
    return y


def change_one_of_several(model):
    settings = Settings()
    y = model(X, None, settings)
    settings.gain = 3.0
    return y


def change_an_output(model):
    y, gains = model(X)
    gains["a"][0] = 3.0
    return y


def change_a_tensor(model):
    other = torch.ones(1)
    y = model(X, other)
    other.mul_(2)
    return y


def change_a_buffer(model):
    y = model(X)
    model.read.mul_(2)
    return y


def returning_gains(m, y, *others):
    gains = {"a": [1.0]}
    return scaled_gradient(y, lambda: gains["a"][0]), gains


@pytest.mark.parametrize(
    ("function", "steps", "said"),
    [
        (
            lambda m, y, other, table: scaled_gradient(y, lambda: other["gain"]),
            change_an_argument,
            "a hook of a tensor reads other.gain, which has changed between",
        ),
        (
            lambda m, y, other, table: scaled_gradient(y, lambda: sum(table["gains"])),
            change_a_nested_one,
            "reads table.gains, which",
        ),
        (
            lambda m, y, other, more, table: scaled_gradient(y, lambda: more.gain),
            change_one_of_several,
            "reads argument 2.gain, which",
        ),
        (returning_gains, change_an_output, "reads the model's output (1.a.0), which"),
        (
            lambda m, y, other, table: scaled_gradient(y, lambda: other),
            change_a_tensor,
            "reads other, which has changed in place between",
        ),
        (
            lambda m, y, other, table: scaled_gradient(y, lambda: m.read),
            change_a_buffer,
            "reads read, which has changed in place between",
        ),
    ],
)
def test_what_has_changed_is_told_as_its_user_writes_it(function, steps, said):
    y = steps(ooc.limit(Arguments(function), "1MiB"))
    with pytest.raises(LateChangeError, match=re.escape(said)) as error:
        y.sum().backward()
    assert isinstance(error.value, RuntimeError)  # as of PyTorch, where it saves tensors
    assert "test_late_reads.py" in str(error.value)


@pytest.mark.parametrize("steps", [change_a_tensor, change_a_buffer])
def test_what_forward_alone_reads_is_told_by_its_name_too(steps):
    model = ooc.limit(
        Arguments(lambda m, y, other, table: y * (m.read.detach() if other is None else other)),
        "1MiB",
    )
    y = steps(model)
    with pytest.raises(RuntimeError, match=r"^(other|read) has been modified by an inplace"):
        y.sum().backward()


def test_a_container_of_the_users_is_looked_at_where_another_stands_for_it():
    function = lambda m, y, other, table: scaled_gradient(y, lambda: other["gain"])  # noqa: E731
    model = ooc.limit(Arguments(function), "1MiB")
    for gain in (1.0, 2.0):
        settings = {"gain": 1.0}
        y = model(X.numpy(), settings)
        settings["gain"] = gain
        if gain == 1.0:
            y.sum().backward()
    with pytest.raises(LateChangeError, match=r"reads other\.gain"):
        y.sum().backward()


def test_no_argument_is_held_that_backward_does_not_read():
    function = lambda m, y, other, more, table: scaled_gradient(  # noqa: E731
        y * more.gain, lambda: other["gain"]
    )
    model, settings = ooc.limit(Arguments(function), "1MiB"), Settings()
    y, held = model(X, {"gain": 1.0}, settings), weakref.ref(settings)
    del settings
    assert held() is None
    y.sum().backward()


def test_an_output_that_backward_reads_is_not_held_by_its_own_graph():
    def kept(m, y, *others):
        m.last = y.detach().mean()
        return scaled_gradient(y, lambda: m.last)

    model = ooc.limit(Arguments(kept), "1MiB")
    gc.disable()
    try:
        y = model(X)
        held = weakref.ref(model.last)
        del y
        model.last = None
        assert held() is None
    finally:
        gc.enable()


class Made:
    """Holds what forward makes."""

    gain = 2.0


@pytest.mark.parametrize("retain", [False, True])
def test_what_forward_makes_is_let_go_of_with_the_graph(retain):
    def made(m, y, *others):
        m.last = Made()
        last = m.last
        last.y = checkpoint(lambda z: (z * last.gain).sin(), y, use_reentrant=False)
        return last.y

    model = ooc.limit(Arguments(made), "1MiB")
    y = model(X)
    if retain:
        y.sum().backward(retain_graph=True)
    y.sum().backward()
    held = weakref.ref(model.last)
    model.last = None
    del y
    gc.collect()
    assert held() is None


def test_a_second_backward_looks_again():
    model = ooc.limit(
        Arguments(lambda m, y, other, table: scaled_gradient(y, lambda: other["gain"])), "1MiB"
    )
    settings = {"gain": 1.0}
    loss = model(X, settings).sum()
    loss.backward(retain_graph=True)
    settings["gain"] = 2.0
    with pytest.raises(LateChangeError, match=r"reads other\.gain"):
        loss.backward()


def test_a_tensor_that_is_the_same_is_known_and_another_one_is_seen():
    names = {"t": X}
    state = LateState([LateRead(names, "t", "a hook of a tensor")], {})
    state.note()
    state.check()
    names["t"] = X.clone()
    with pytest.raises(LateChangeError):
        state.check()
