"""The backend of `torch.compile`: graphs of TorchDynamo's under a limit."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.torch.capture import backend
from ooc_cudnn.torch.capture.backend import handle_call, job_of, ooc_cudnn_backend
from ooc_cudnn.torch.runtime.ready_model import ReadyModel
from tests.support.torch_checks import close, modes
from tests.support.torch_models import residual

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT = {"memory_limit": "1MiB"}


@pytest.fixture(autouse=True)
def on_the_host():
    torch._dynamo.reset()
    with ooc_cudnn.settings(device="host", machine="host"):
        yield
    torch._dynamo.reset()


@pytest.fixture
def ready(monkeypatch):
    """What is made ready, in order."""
    found, make = [], ReadyModel.__init__

    def making(self, *args, **kwargs):
        make(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(ReadyModel, "__init__", making)
    return found


def drawn(shape=(2, 3, 8, 8)):
    torch.manual_seed(0)
    return torch.randn(shape, dtype=torch.float64)


class Broken(nn.Module):
    """Two layers, and a number of data between them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.norm(self.first(x))
        return self.last(y.relu()) if y.sum() > 1e9 else self.last(y.sin())


def test_a_compiled_model_trains_as_pytorchs(ready):
    torch.manual_seed(0)
    eager = residual().double()
    under = copy.deepcopy(eager)
    compiled = torch.compile(under, backend=ooc_cudnn_backend, options=LIMIT)
    x = drawn((2, 3, 16, 16))
    for _ in range(2):
        torch.manual_seed(1)
        for model in (compiled, eager):
            model.zero_grad()
            model.y = model(x)
            model.y.square().sum().backward()
        close(compiled.y, eager.y, "output")
        largest = max(float(each.grad.abs().max()) for each in eager.parameters())
        for (name, one), other in zip(under.named_parameters(), eager.parameters(), strict=True):
            close(one.grad, other.grad, name, least=largest)
        for (name, one), other in zip(under.named_buffers(), eager.buffers(), strict=True):
            close(one, other, name)
    assert len(ready) == 1
    assert 0 < ready[0].plan.device_bytes <= ready[0].plan.memory_limit == 2**20


class ChangingBehindABreak(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        y = self.first(x)
        torch._dynamo.graph_break()
        y.mul_(2)
        return y, y * y[:, :1]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # within PyTorch
def test_a_map_is_changed_behind_a_graph_break(ready):
    eager = ChangingBehindABreak().double()
    under = copy.deepcopy(eager)
    compiled = torch.compile(under, backend=ooc_cudnn_backend, options=LIMIT)
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    for one, other in zip(compiled(x), eager(x), strict=True):
        close(one, other, "output")
        one.square().sum().backward(retain_graph=True)
        other.square().sum().backward(retain_graph=True)
    close(under.first.weight.grad, eager.first.weight.grad, "weight")
    assert len(ready) == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # within PyTorch
def test_where_the_graph_breaks_each_part_is_under_the_limit(ready):
    torch.manual_seed(0)
    eager = Broken().double()
    under = copy.deepcopy(eager)
    compiled = torch.compile(under, backend=ooc_cudnn_backend, options=LIMIT)
    for _ in range(2):
        for model in (under, eager):
            model.zero_grad()
        found, expected = compiled(drawn()), eager(drawn())
        close(found, expected, "output")
        found.square().sum().backward()
        expected.square().sum().backward()
        largest = max(float(each.grad.abs().max()) for each in eager.parameters())
        for (name, one), other in zip(under.named_parameters(), eager.parameters(), strict=True):
            close(one.grad, other.grad, name, least=largest)
        for (name, one), other in zip(under.named_buffers(), eager.buffers(), strict=True):
            close(one, other, name)
    assert len(ready) == 2
    assert all(each.plan.memory_limit == 2**20 for each in ready)


def test_a_function_is_compiled_too():
    layer = nn.Conv2d(3, 2, 1).double()

    @torch.compile(backend=ooc_cudnn_backend, options=LIMIT)
    def function(x, scale):
        return layer(x).relu() * scale, x

    x = drawn()
    y, handed = function(x, 2.0)
    close(y, layer(x).relu() * 2, "output")
    close(handed, x, "the input")
    with torch.no_grad():
        for scale in (3.0, 0.5, 3.0):
            close(function(x, scale)[0], layer(x).relu() * scale, "output")


def whole_step(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def gradient_of(model, _):
    def step(x):
        loss = model(x).square().mean()
        return loss.detach(), torch.autograd.grad(loss, model.weight)[0]

    return step


DOORS = {
    "the backend": (lambda model: model, {"backend": "ooc_cudnn", "options": LIMIT}),
    "a limit": (lambda model: ooc.limit(model, "1MiB"), {"backend": "eager"}),
    "both": (
        lambda model: ooc.limit(model, "1MiB"),
        {"backend": "ooc_cudnn", "options": LIMIT},
    ),
}
OPTIMIZERS = {
    "SGD": lambda of: torch.optim.SGD(of, 0.1, momentum=0.9),
    "SGD, one by one": lambda of: torch.optim.SGD(of, 0.1, foreach=False),
    "Adam": lambda of: torch.optim.Adam(of, 0.01),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", [whole_step, gradient_of], ids=lambda each: each.__name__)
def test_a_step_that_is_compiled_whole(make, optimizer, door):
    limited, how = DOORS[door]
    found = []
    for enter, compiles in ((lambda model: model, lambda step: step), (limited, None)):
        torch.manual_seed(0)
        model = enter(nn.Conv2d(3, 4, 3).double())
        step = make(model, OPTIMIZERS[optimizer](model.parameters()))
        step = torch.compile(step, **how) if compiles is None else step
        found.append([[*map(step, [drawn()] * 3)], *model.parameters()])
    ours, pytorchs = map(torch.utils._pytree.tree_leaves, found)
    for at, (one, other) in enumerate(zip(ours, pytorchs, strict=True)):
        close(one, other, str(at), tolerance=1e-5)  # torch.compile counts steps in float32


def test_what_forward_changes_is_changed():
    class Counting(nn.Conv2d):
        calls = 0

        def forward(self, x):
            self.calls += 1
            self.weight.data.mul_(0.5)
            return super().forward(x)

    eager = Counting(3, 2, 1).double()
    under = copy.deepcopy(eager)
    compiled = torch.compile(under, backend=ooc_cudnn_backend, options=LIMIT)
    for calls in range(1, 4):
        close(compiled(drawn()), eager(drawn()), "output")
        close(under.weight, eager.weight, "weight")
        assert under.calls == calls


@pytest.mark.every_case
def test_shapes_that_change_are_compiled_again(ready):
    layer = nn.Conv2d(3, 2, 1).double()
    compiled = torch.compile(layer, backend=ooc_cudnn_backend, options=LIMIT, dynamic=False)
    for extent in (4, 6, 8, 4):
        x = drawn((1, 3, 4, extent))
        close(compiled(x), layer(x), f"of {extent}")
    assert len(ready) == 3


def test_inference_has_no_backward(ready):
    model = residual().double().eval()
    compiled = torch.compile(model, backend=ooc_cudnn_backend, options=LIMIT)
    x = drawn((2, 3, 16, 16))
    with torch.no_grad():
        close(compiled(x), model(x), "output")
    assert ready[0].pausing is None
    assert ready[0].forward is not None


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # within PyTorch
def test_forward_mode_is_refused():
    compiled = torch.compile(nn.Conv2d(3, 2, 1).double(), backend=ooc_cudnn_backend, options=LIMIT)
    compiled(drawn())
    with forward_ad.dual_level():
        x = forward_ad.make_dual(drawn(), drawn())
        with pytest.raises(ooc.UnsupportedModelError, match="in forward mode"):
            compiled(x)


def test_a_checkpoint_around_a_compiled_function_finds_what_it_saved():
    model = residual().double()
    compiled = torch.compile(model, backend=ooc_cudnn_backend, options=LIMIT)
    for extent in (16, 20, 16):
        x = drawn((2, 3, 16, extent)).requires_grad_()
        expected = torch.autograd.grad(model(x).square().sum(), x)
        y = checkpoint(compiled, x, use_reentrant=False)
        close(torch.autograd.grad(y.square().sum(), x)[0], expected[0], f"of {extent}")


WRONG = [
    ({"memory": "1MiB"}, TypeError, "no option memory: it has memory_limit, strict"),
    ({"memory_limit": "8 gibs"}, ValueError, "memory_limit"),
    ({"statistics": "all"}, ValueError, "statistics must be rank or global"),
    ({"memory_limit": 2048}, PlanInfeasibleError, "the least that would do is"),
]


@pytest.mark.parametrize(("options", "kind", "message"), WRONG, ids=lambda each: str(each)[:30])
def test_wrong_options_are_refused(options, kind, message):
    model, in_force = residual().double(), modes()
    compiled = torch.compile(model, backend=ooc_cudnn_backend, options=options)
    with pytest.raises(Exception, match=message) as refused:
        compiled(drawn((2, 3, 16, 16)))
    inner = getattr(refused.value, "inner_exception", refused.value)
    assert isinstance(inner, kind)
    assert modes() == in_force


def test_what_the_library_has_not_is_refused_where_it_is_strict():
    def function(x):
        return torch.sort(x, 1).values * 2

    with pytest.raises(Exception, match=r"aten\.sort") as refused:
        torch.compile(function, backend=ooc_cudnn_backend, options={"strict": True})(drawn())
    inner = getattr(refused.value, "inner_exception", refused.value)
    assert isinstance(inner, ooc.UnsupportedOperationError)
    compiled = torch.compile(function, backend=ooc_cudnn_backend, options={"strict": False})
    close(compiled(drawn()), function(drawn()), "output")


def test_a_thread_works_on_one_call_at_a_time():
    assert job_of() == (None, None)
    with handle_call("one", print):
        with handle_call("two", None):
            assert job_of() == ("two", None)
        assert job_of() == ("one", print)
    assert job_of() == (None, None)


def test_options_are_those_of_limit():
    options = backend.Options("1MiB", strict=True, statistics="global", scale=0.5)
    model = ooc.limit(nn.Conv2d(3, 2, 1), "1MiB", strict=True, statistics="global", scale=0.5)
    assert model.forward.options == options
    assert hash(options) == hash(model.forward.options)


class InThreeGraphs(nn.Module):
    """Three parts, and a break of the graph between each two."""

    def __init__(self):
        super().__init__()
        layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()) for _ in range(9)]
        self.parts = nn.ModuleList(nn.Sequential(*layers[at : at + 3]) for at in (0, 3, 6))

    def forward(self, x):
        y = self.parts[0](x)
        torch._dynamo.graph_break()
        y = self.parts[1](y)
        torch._dynamo.graph_break()
        return self.parts[2](y)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_graphs_together_take_no_more_than_the_limit_of_one(ready):
    """What one keeps for backward leaves the device where the next wants the memory."""
    torch.manual_seed(0)
    model, x, arena = InThreeGraphs(), torch.randn(8, 8, 32, 32), get_device("host").arena
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=ooc_cudnn_backend, options=LIMIT)
    arena.reset_peak()
    for _ in range(2):
        for each in (compiled, eager):
            each(x).square().sum().backward()
    taken = [each.plan.device_bytes for each in ready]
    assert len(taken) == 3
    assert max(taken) <= 2**20 < sum(taken)
    assert max(taken) / 2 < arena.peak_bytes <= 2**20
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        close(one.grad, other.grad, "gradient", tolerance=1e-4)
