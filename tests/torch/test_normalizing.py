"""Running statistics are those that PyTorch leaves, whoever else reads or changes them."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.lowering.lower import RULES
from tests.support.torch_checks import close, followed_in_calls

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = "1MiB"


def drawn():
    torch.manual_seed(0)
    return torch.randn(3, 3, 4, 4, dtype=torch.float64)


class Of(nn.Module):
    """A convolution, a normalization, and a function of both."""

    def __init__(self, function, norm=None):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), norm or nn.BatchNorm2d(4)
        self.function = function

    def forward(self, x):
        return self.function(self.norm, self.conv(x))


def checked(function, norm=None, **options):
    torch.manual_seed(0)
    model = Of(function, norm).double()
    return followed_in_calls(model, drawn(), memory_limit=LIMIT, **options)


def column(statistics):
    return statistics.reshape(1, -1, 1, 1)


def plain(norm, y):
    return norm(y)


def read_before(norm, y):
    scale = norm.running_var + 1
    return norm(y) * column(scale)


def read_after(norm, y):
    made = norm(y)
    return made - column(norm.running_mean)


def read_twice(norm, y):
    first = norm.running_mean * 1
    made = norm(y)
    return made + column(first) - column(norm.running_mean) * column(norm.running_var)


def read_through_a_view(norm, y):
    part, whole = norm.running_mean[1:], norm.running_var.view(2, 2)
    made = norm(y)
    return made + part.sum() + whole[0, 1]


def changed_before(norm, y):
    norm.running_mean.zero_()
    norm.running_var.mul_(0.5)
    return norm(y)


def changed_after(norm, y):
    made = norm(y)
    norm.running_mean.clamp_(-0.01, 0.01)
    return made


def changed_through_a_view(norm, y):
    part = norm.running_mean[:2]
    made = norm(y)
    part.add_(1)
    return made


def called_twice(norm, y):
    return norm(norm(y) * 2 + y)


def called_twice_and_read(norm, y):
    made = norm(y)
    kept = norm.running_mean.clone()
    return norm(made + y * 3) + column(kept)


def of_a_result_that_nobody_reads(norm, y):
    norm(y * 2)
    return y


def without_gradients(norm, y):
    with torch.no_grad():
        made = norm(y)
    return made * y


def trained_and_then_evaluated(norm, y):
    made = norm(y)
    return F.batch_norm(made + y, norm.running_mean, norm.running_var, norm.weight, norm.bias)


FUNCTIONS = [
    plain, read_before, read_after, read_twice, read_through_a_view, changed_before, called_twice,
    called_twice_and_read, of_a_result_that_nobody_reads, without_gradients,
    trained_and_then_evaluated,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_running_statistics_of_batches_are_pytorchs(function):
    under = checked(function)
    assert int(under.norm.num_batches_tracked) > 0
    assert float(under.norm.running_mean.abs().max()) > 0


@pytest.mark.parametrize("function", [changed_after, changed_through_a_view])
def test_statistics_that_are_changed_behind_a_normalization_are_pytorchs(function):
    """Without gradients: PyTorch's backward refuses them."""
    torch.manual_seed(0)
    eager = Of(function).double()
    under, x = ooc.limit(copy.deepcopy(eager), LIMIT), drawn()
    for _ in range(2):
        with torch.no_grad():
            close(under(x), eager(x), "output")
        for (name, one), other in zip(under.named_buffers(), eager.buffers(), strict=True):
            close(one, other, name)


@pytest.mark.parametrize(
    "function", [plain, read_after, called_twice, changed_before], ids=lambda each: each.__name__
)
def test_running_statistics_of_images_are_pytorchs(function):
    """They were refused."""
    under = checked(function, nn.InstanceNorm2d(4, affine=True, track_running_stats=True))
    assert float(under.norm.running_mean.abs().max()) > 0


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.InstanceNorm2d])
@pytest.mark.parametrize("momentum", [0.0, 1.0, 0.25, 1.5, -0.1])
def test_any_momentum_is_taken(kind, momentum):
    norm = kind(4, momentum=momentum, track_running_stats=True)
    under = checked(read_after, norm)
    assert (float(under.norm.running_mean.abs().max()) > 0) == (momentum != 0)


@pytest.mark.parametrize("momentum", [math.inf, math.nan])
def test_a_momentum_that_is_not_finite_is_refused_where_it_is_used(momentum):
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=momentum))
    under, x = ooc.limit(copy.deepcopy(eager), LIMIT), drawn().float()
    with pytest.raises(UnsupportedModelError, match="set a finite number"):
        under(x)
    with torch.no_grad():
        close(under.eval()(x), eager.eval()(x), "output")


def test_in_evaluation_they_stay_as_they_are():
    torch.manual_seed(0)
    for norm in (nn.BatchNorm2d(4), nn.InstanceNorm2d(4, track_running_stats=True)):
        model = Of(read_after, norm).double().eval()
        norm.running_mean.normal_()
        before = norm.running_mean.clone()
        under = followed_in_calls(model, drawn(), memory_limit=LIMIT)
        assert torch.equal(under.norm.running_mean, before)


def test_two_normalizations_may_share_them():
    def function(norm, y):
        other = F.batch_norm(y * 2, norm.running_mean, norm.running_var, None, None, True, 0.3)
        return norm(y) + other

    checked(function)


def test_statistics_of_half_precision_are_no_further_off_than_pytorchs():
    """Of a model all in bfloat16, whose averages PyTorch keeps in bfloat16."""
    torch.manual_seed(0)
    eager = Of(read_after)
    exact = copy.deepcopy(eager).double()
    eager.bfloat16()
    under, x = ooc.limit(copy.deepcopy(eager), LIMIT), drawn()
    for _ in range(2):
        for model in (under, eager):
            model(x.bfloat16())
        exact(x)
    for name in ("running_mean", "running_var"):
        found, own, true = (getattr(each.norm, name) for each in (under, eager, exact))
        assert found.dtype == own.dtype == torch.bfloat16
        off, pytorchs = (float((each.double() - true).abs().max()) for each in (found, own))
        assert off <= 2 * pytorchs + 2**-8 * float(true.abs().max())


def test_statistics_stay_as_they_were_where_the_call_fails():
    class Refused(Of):
        def forward(self, x):
            made = self.norm(self.conv(x)) + column(self.norm.running_mean)
            torch._assert_async((made < 0).all(), "no")
            return made

    torch.manual_seed(0)
    model = Refused(None).double()
    before = copy.deepcopy(model.state_dict())
    ooc.limit(model, LIMIT)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            model(drawn())
        for name, each in model.state_dict().items():
            close(each, before[name], name)


def check_untracked(momentum):
    """Assert that gradients through statistics of the batch alone are eager's, in little memory."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, momentum=momentum, track_running_stats=False)
    eager = nn.Sequential(nn.Conv2d(3, 4, 1), norm, nn.Tanh(), nn.Conv2d(4, 2, 1)).double()
    limited = ooc.limit(copy.deepcopy(eager), 6000)
    x = torch.randn(4, 3, 6, 7, dtype=torch.float64)
    for model in (eager, limited):
        model(x).square().sum().backward()
    for one, other in zip(limited.parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, "gradient", least=1.0)


@pytest.mark.parametrize("momentum", [1.5, -0.25])
def test_a_momentum_without_running_statistics_is_none(momentum):
    check_untracked(momentum)


def test_statistics_of_all_images_are_so_where_pytorch_computes_them(monkeypatch):
    """It is given all images at once, whatever the limit."""

    def refuse(to, **arguments):
        raise ValueError("none here")

    monkeypatch.setitem(RULES, "batch_norm", refuse)
    check_untracked(0.1)


def of_one_domain(norm, y, *, is_cloned):
    """Statistics of a domain are a row of all, as in domain-specific normalization."""
    norm.rows = torch.stack([norm.running_mean, norm.running_var])
    mean, var = (row.clone() for row in norm.rows) if is_cloned else norm.rows
    y = F.batch_norm(y, mean, var, training=True)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var)
    return y


UNSEEN = {
    "a view": lambda norm, y: F.batch_norm(
        y, norm.running_mean[:], norm.running_var[:], training=True
    ),
    "detached": lambda norm, y: F.batch_norm(
        y, norm.running_mean.detach(), norm.running_var.detach(), training=True
    ),
    "of images": lambda norm, y: F.instance_norm(y, norm.running_mean[:], norm.running_var[:]),
    "rows": lambda norm, y: of_one_domain(norm, y, is_cloned=False),
    "made in forward": lambda _, y: F.batch_norm(y, torch.zeros(4), torch.ones(4), training=True),
    "of its own": lambda norm, y: (
        torch.batch_norm_update_stats(y, norm.running_mean, norm.running_var, 0.1),
        y * 1.0,
    )[1],
}


@pytest.mark.parametrize("name", UNSEEN)
def test_an_update_that_would_be_lost_is_refused(name):
    """By an operation that does not say that it writes, to what lies in another tensor."""
    model = ooc.limit(Of(UNSEEN[name]).double(), LIMIT)
    with pytest.raises(UnsupportedModelError, match="running statistics"):
        model(drawn())
    assert not model.norm.running_mean.any()


def test_an_update_of_a_clone_that_is_written_back_is_pytorchs():
    """As the refusal says."""
    model = Of(lambda norm, y: of_one_domain(norm, y, is_cloned=True)).double()
    limited = ooc.limit(copy.deepcopy(model), LIMIT)
    for _ in range(2):
        close(limited(drawn()), model(drawn()), "output")
    for (name, one), other in zip(limited.named_buffers(), model.buffers(), strict=True):
        close(one, other, name)
