"""Training as users do it: many steps, what stops one, and what is left of it."""

import copy
import gc
import sys
from unittest import mock

import pytest
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.devices import get_device
from ooc_cudnn.memory.pinned import held_bytes
from ooc_cudnn.network.runtime.two_part import PausedStep, TwoPartStep
from tests.support.points import Pressed
from tests.support.sampling import number
from tests.support.torch_checks import close
from tests.support.torch_models import residual

pytestmark = pytest.mark.usefixtures("fewest_plans")

SHAPE, LIMIT, STEPS = (4, 3, 16, 16), "200KiB", 20


@pytest.fixture(autouse=True)
def on_the_host():
    with ooc_cudnn.settings(device="host", machine="host"):
        yield
        get_device("host").release_caches()


@pytest.fixture
def pair():
    """A model under a limit, and the same one without."""
    torch.manual_seed(0)
    eager = residual()
    return ooc.limit(copy.deepcopy(eager), LIMIT), eager


def batch(number=0, dtype=torch.float32):
    random = torch.Generator().manual_seed(number)
    return torch.randn(SHAPE, dtype=dtype, generator=random), torch.arange(4)


def losses(model, steps, x, target, **options):
    optimizer = torch.optim.SGD(model.parameters(), **options)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.every_case
def test_twenty_steps_in_single_precision_follow_pytorchs(pair):
    found, expected = (losses(each, STEPS, *batch(), lr=0.02, momentum=0.9) for each in pair)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert found[-1] < 0.5 * found[0]


@pytest.mark.every_case
def test_gradients_of_micro_batches_accumulate_to_pytorchs(pair):
    for model in pair:
        model.double().eval()  # statistics of a part are not those of the whole
        for part in range(3):
            x, target = batch(part, torch.float64)
            (nn.functional.cross_entropy(model(x), target) / 3).backward()
    largest = max(float(each.grad.abs().max()) for each in pair[1].parameters())
    for (name, one), other in zip(pair[0].named_parameters(), pair[1].parameters(), strict=True):
        close(one.grad, other.grad, name, least=largest)


def test_a_checkpoint_in_the_middle_goes_on_as_if_nothing_had_been(pair):
    x, target = batch()
    whole = losses(pair[0], 4, x, target, lr=0.02)
    first = ooc.limit(copy.deepcopy(pair[1]), LIMIT)
    begun = losses(first, 2, x, target, lr=0.02)
    second = residual()
    second.load_state_dict(first.state_dict())
    assert begun + losses(ooc.limit(second, LIMIT), 2, x, target, lr=0.02) == whole


def state(model):
    return {name: each.clone() for name, each in model.state_dict().items()}


def unchanged(model, before):
    return all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def visited(work):
    """How many points there are at which Ctrl-C may be pressed."""
    with Pressed() as pressed:
        work()
    return pressed.visited


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.97])
def test_ctrl_c_in_forward_leaves_model_and_arena_as_they_were(pair, share):
    model, eager = pair
    x, target = batch()
    losses(model, 1, x, target, lr=0.02)
    losses(eager, 1, x, target, lr=0.02)
    model(x)  # planned
    eager(x)
    points = visited(lambda: model(x))
    eager(x)
    before = state(model)
    with pytest.raises(KeyboardInterrupt), Pressed(int(share * points)):
        model(x)
    gc.collect()
    assert unchanged(model, before)
    assert not get_device("host").arena.is_at_work
    found, expected = (losses(each, 2, x, target, lr=0.02) for each in pair)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.85])
def test_ctrl_c_in_backward_leaves_model_and_optimizer_usable(pair, share):
    model, eager = pair
    x, target = batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(2):  # the first one is the one that plans
        points = visited(model(x).sum().backward)
        eager(x)
    optimizer.zero_grad()
    loss = model(x).sum()
    eager(x)
    before = state(model)
    with pytest.raises(KeyboardInterrupt), Pressed(int(share * points)):
        loss.backward()
    del loss
    gc.collect()
    assert unchanged(model, before)
    assert not get_device("host").arena.is_at_work
    optimizer.step()
    found, expected = (losses(each, 2, x, target, lr=0.02) for each in pair)
    assert found == pytest.approx(expected, rel=1e-3)


def test_an_error_in_a_call_leaves_the_model_as_it_was(pair):
    model = pair[0]
    x, target = batch()
    before = state(model)

    def failing(*_):
        raise OSError("the log is full")

    with ooc_cudnn.settings(progress=failing), pytest.raises(OSError, match="the log is full"):
        model(x)
    assert unchanged(model, before)
    found, expected = (losses(each, 2, x, target, lr=0.02) for each in pair)
    assert found == pytest.approx(expected, rel=1e-3)


def test_an_error_in_backward_leaves_the_model_as_it_was(pair):
    model = pair[0]
    x, target = batch()
    losses(model, 1, x, target, lr=0.02)
    losses(pair[1], 1, x, target, lr=0.02)

    is_full = False

    def failing(*_):
        if is_full:
            raise OSError("the log is full")

    with ooc_cudnn.settings(progress=failing):  # settings are those of forward
        loss = model(x).sum()
    pair[1](x)
    before, is_full = state(model), True
    with pytest.raises(OSError, match="the log is full"):
        loss.backward()
    assert unchanged(model, before)
    assert not get_device("host").arena.is_at_work
    found, expected = (losses(each, 2, x, target, lr=0.02) for each in pair)
    assert found == pytest.approx(expected, rel=1e-3)


def test_hundreds_of_steps_do_not_grow():
    torch.manual_seed(0)
    parts = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = ooc.limit(nn.Sequential(*parts), "16KiB")
    x, target = torch.randn(2, 3, 6, 6), torch.arange(2)
    device = get_device("host")

    def held():
        gc.collect()
        return sys.getallocatedblocks(), device.arena.held_bytes, held_bytes(device)

    with ooc_cudnn.settings(overlap=False):
        losses(model, number(50, of=200), x, target, lr=0.01)
        before = held()
        losses(model, steps := number(250, of=800), x, target, lr=0.01)
        after = held()
    assert after[1:] == before[1:]
    assert after[0] - before[0] < steps  # less than one object a step


def test_gradients_are_handed_out_while_others_are_made(pair, monkeypatch):
    monkeypatch.setattr("ooc_cudnn.torch.runtime.ready_model.bucket_bytes", lambda *_: 1)
    x, target = batch(dtype=torch.float64)
    parts, go_on = [], PausedStep.go_on
    monkeypatch.setattr(PausedStep, "go_on", lambda self: parts.append(len(handed)) or go_on(self))
    for model in pair:
        handed = []
        first = nn.functional.cross_entropy(model.double().eval()(x), target)
        weight = [*model.parameters()][-1]
        weight.of_it = torch.autograd.grad(first, weight, retain_graph=True)[0]
        for name, each in model.named_parameters():
            # an optimizer within backward: it changes what the rest of backward might read
            def step(each, name=name, handed=handed):
                handed.append(name)
                each.data.sub_(0.1 * each.grad)

            each.register_post_accumulate_grad_hook(step)
        first.backward()
    assert len(parts) > 4
    assert len({*parts}) > 3  # so many were handed out when a part began
    for (name, one), other in zip(pair[0].named_parameters(), pair[1].parameters(), strict=True):
        close(one.grad, other.grad, name)
        close(one, other, name)
    close(*([*model.parameters()][-1].of_it for model in pair), "one of them alone")


class Tied(nn.Module):
    """One linear layer twice, between operations that the library has not."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 6)
        self.bn, self.w = nn.BatchNorm2d(6), nn.Parameter(torch.randn(1, 6, 1, 1))

    def forward(self, x):
        h = nn.functional.relu(self.bn(self.conv(x)))
        h = torch.sort(h * self.w, 1).values + h
        made = self.linear(nn.functional.gelu(self.linear(h.mean((2, 3)))))
        return made, h


def test_others_may_compute_between_the_parts_of_backward(monkeypatch):
    monkeypatch.setattr("ooc_cudnn.torch.runtime.ready_model.bucket_bytes", lambda *_: 1)
    torch.manual_seed(0)
    eager = Tied().double()
    under = ooc.limit(copy.deepcopy(eager), "64KiB")
    random = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 6, 6, dtype=torch.float64, generator=random)
    other = torch.randn(64, 4, dtype=torch.float64, generator=random).numpy()
    for model in (under, eager):
        made, h = model(x)
        for each in model.parameters():
            each.register_hook(lambda _: ooc_cudnn.activation_forward(other).fill(0))
        (made.square().sum() + h.sin().sum()).backward()
    largest = max(float(each.grad.abs().max()) for each in eager.parameters())
    for (name, one), same in zip(under.named_parameters(), eager.parameters(), strict=True):
        close(one.grad, same.grad, name, least=largest)


class Ends(nn.Module):
    """Two heads, and what nothing that has a gradient leads to."""

    def __init__(self):
        super().__init__()
        self.body, self.one, self.other = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))

    def forward(self, x):
        h = torch.relu(self.body(x))
        return self.one(h), self.other(h), x * 2


def test_what_a_loss_does_not_depend_on_has_no_gradient(monkeypatch):
    monkeypatch.setattr("ooc_cudnn.torch.runtime.ready_model.bucket_bytes", lambda *_: 1)
    torch.manual_seed(0)
    eager = Ends().double()
    model = ooc.limit(copy.deepcopy(eager), "4MiB")
    x, _ = batch(dtype=torch.float64)
    for each in (model, eager):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1, weight_decay=0.5)
        one, other, scaled = each(x)
        assert torch.equal(scaled, 2 * x)
        assert (one.requires_grad, other.requires_grad, scaled.requires_grad) == (True, True, False)
        one.square().sum().backward(retain_graph=True)
        assert each.other.weight.grad is None
        optimizer.step()  # decays what has a gradient alone
        optimizer.zero_grad()
    for (name, found), expected in zip(model.named_parameters(), eager.parameters(), strict=True):
        close(found, expected, name)


class Logged(nn.Module):
    """Probabilities, some of which are 0, and their logarithms."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 3, 1)

    def forward(self, x):
        y = self.conv(x).square() * (x[:, :1] > 0)
        return y, y.log(), y.sqrt()


@pytest.mark.parametrize("use", [(0,), (0, 0), (0, 1, 0), (1,)])
def test_what_a_loss_does_not_take_has_no_gradient_not_zeros(use):
    """Zeros times the infinite derivative of a logarithm are no number."""
    x = torch.randn(2, 2, 5, 4)
    eager, limited = Logged(), ooc.limit(Logged(), "1MiB")
    for at in use:
        for model in (eager, limited):
            model(x)[at].nan_to_num(0, 0, 0).sum().backward()
    for one, other in zip(limited.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert torch.isfinite(limited.conv.weight.grad).all() == (1 not in use)


def test_outputs_that_no_loss_takes_cost_a_forward_once():
    x = torch.randn(2, 2, 5, 4)
    limited, runs = ooc.limit(Logged(), "1MiB"), []
    run = TwoPartStep.run
    with mock.patch.object(TwoPartStep, "run", lambda *args: runs.append(1) or run(*args)):
        for _ in range(4):
            limited(x)[0].sum().backward()
    assert len(runs) == 5


class Dropped(nn.Module):
    """A map behind dropout, and a normalization of it."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x):
        y = nn.functional.dropout(self.conv(x), 0.5, self.training)
        return y, self.norm(y)


def test_forward_runs_again_for_other_outputs_with_its_masks_and_statistics_once():
    limited, x = ooc.limit(Dropped(), "1MiB"), torch.randn(4, 2, 6, 5)
    for at, use in enumerate((0, 0, 1, 0, 1, 0)):
        limited.zero_grad()
        outputs = limited(x)
        outputs[use].sum().backward()
        assert limited.norm.num_batches_tracked == at + 1
        assert (limited.norm.weight.grad is None) == (use == 0)
        if use == 0:
            kept = 2.0 * (outputs[0] != 0).sum((0, 2, 3))
            torch.testing.assert_close(limited.conv.bias.grad, kept)


class Noisy(nn.Module):
    """A map times noise that is made like it, and the noise."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        mean = self.encode(x)
        noise = torch.randn_like(mean)
        y = mean * noise
        return self.decode(y), y, noise


@pytest.mark.parametrize("limit", ["1GiB", "8KiB"])
def test_noise_is_the_same_whatever_plan_a_call_takes(limit):
    limited, x = ooc.limit(Noisy(), limit), torch.randn(2, 4, 7, 6)
    for _ in range(3):  # the first runs forward again, by another plan
        limited.zero_grad()
        _, y, noise = limited(x)
        y.pow(2).sum().backward()
        by_hand = (2 * y * noise).sum((0, 2, 3)).detach()
        torch.testing.assert_close(limited.encode.bias.grad, by_hand, rtol=1e-4, atol=1e-4)

    def drawn():
        torch.manual_seed(5)
        return limited(x)[2].detach()

    first = drawn()
    with torch.no_grad():
        assert torch.equal(drawn(), first)
    limited(x)[0].sum().backward()
    assert torch.equal(drawn(), first)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    "kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout]
)
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_dropout_of_all_or_nothing_draws_no_number(kind, p, inplace):
    """As PyTorch's kernels: what is drawn behind it is what eager draws."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), kind(p, inplace))
    model[0].bias.data[1] = float("inf")
    x, found = torch.randn(2, 2, 6, 5), []
    for each in (model, ooc.limit(copy.deepcopy(model), "1MiB")):
        torch.manual_seed(0)
        y = each(x)
        y.nansum().backward()
        found.append((y, torch.rand(3), each[0].weight.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, equal_nan=True)
