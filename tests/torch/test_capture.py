"""Captures hold for as long as all that forward reads is as it was; nothing else is left behind."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.torch.capture.capture import Captures, is_captured_by_us, nest_capture
from ooc_cudnn.torch.capture.stand_ins import fakes_for
from ooc_cudnn.torch.limit import own_forward, record_call
from tests.support.torch_checks import close, modes

pytestmark = pytest.mark.usefixtures("fewest_plans")

LIMIT, FACTOR = "1MiB", 2.0


def drawn(shape=(2, 3, 4, 4)):
    torch.manual_seed(0)
    return torch.randn(shape, dtype=torch.float64)


class Net(nn.Module):
    """What a model may hang on beside its parameters."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.0)
        self.on, self.order, self.act = True, [1, 2], torch.sin

    def forward(self, x, more=None):
        y = self.drop(self.norm(self.conv(x)))
        for each in self.order:
            y = y * each
        y = self.act(y) if self.on else y
        return y * FACTOR if more is None else y + more


@pytest.fixture
def pair():
    """A model under a limit, and the same one without."""
    torch.manual_seed(0)
    eager = Net().double()
    return ooc.limit(copy.deepcopy(eager), LIMIT), eager


def alike(pair, *args, **kwargs):
    under, eager = pair
    close(under(*args, **kwargs), eager(*args, **kwargs), "output")
    return len(calls_of(under))


def test_a_call_alike_is_not_captured_again(pair):
    assert [alike(pair, drawn()) for _ in range(3)] == [1, 1, 1]
    with torch.no_grad():
        for model in pair:
            model.conv.weight.mul_(2)
            model.norm.running_mean.add_(1)
    assert alike(pair, drawn() + 1) == 1


def replace_weight(model):
    model.conv.weight = nn.Parameter(2 * model.conv.weight.detach())


def replace_norm(model):
    model.norm = nn.BatchNorm2d(4, momentum=0.5).double()


def replace_buffer(model):
    model.norm.running_mean = torch.ones(4, dtype=torch.float64)


CHANGES = {
    "a flag": lambda model: setattr(model, "on", False),
    "a list": lambda model: model.order.append(3),
    "an element": lambda model: model.order.__setitem__(0, 5),
    "a function": lambda model: setattr(model, "act", torch.cos),
    "momentum": lambda model: setattr(model.norm, "momentum", 0.25),
    "eps": lambda model: setattr(model.norm, "eps", 0.5),
    "evaluation": lambda model: model.eval(),
    "evaluation of a part": lambda model: model.norm.eval(),
    "a frozen parameter": lambda model: model.conv.weight.requires_grad_(False),
    "another parameter": replace_weight,
    "another part": replace_norm,
    "another buffer": replace_buffer,
    "a hook": lambda model: model.norm.register_forward_hook(lambda module, args, y: y * 3),
    "a hook before": lambda model: model.conv.register_forward_pre_hook(
        lambda m, args: args[0] * 2
    ),
    "a forward of a part": lambda model: setattr(model.drop, "forward", torch.tanh),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_between_calls_is_computed(pair, name):
    alike(pair, drawn())
    alike(pair, drawn())
    for model in pair:
        CHANGES[name](model)
    for _ in range(2):
        for model in pair:
            model.zero_grad()
            model.y = model(drawn())
            if model.y.requires_grad:
                model.y.square().sum().backward()
        close(pair[0].y, pair[1].y, "output")
    largest = max(float(p.grad.abs().max()) for p in pair[1].parameters() if p.grad is not None)
    for (name, one), other in zip(pair[0].named_parameters(), pair[1].parameters(), strict=True):
        close(one.grad, other.grad, name, least=largest)
    for (name, one), other in zip(pair[0].named_buffers(), pair[1].buffers(), strict=True):
        close(one, other, name)


def test_a_hook_that_is_removed_no_longer_runs(pair):
    handles = [m.norm.register_forward_hook(lambda module, args, y: y * 3) for m in pair]
    alike(pair, drawn())
    for each in handles:
        each.remove()
    alike(pair, drawn())


def test_a_global_that_changes_is_read(pair, monkeypatch):
    alike(pair, drawn())
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    alike(pair, drawn())


def test_a_closure_that_changes_is_read():
    scale = 2.0

    class Closed(nn.Conv2d):
        def forward(self, x):
            return super().forward(x) * scale

    under = ooc.limit(Closed(3, 2, 1).double(), LIMIT)
    for each in (2.0, 3.0, 2.0):
        scale = each
        expected = nn.functional.conv2d(drawn(), under.weight, under.bias) * each
        close(under(drawn()), expected, f"by {each}")


def test_arguments_make_ways_to_call(pair):
    assert alike(pair, drawn()) == 1
    assert alike(pair, drawn(), more=drawn((2, 4, 4, 4))) == 2
    assert alike(pair, drawn(), 1.5) == 3
    assert alike(pair, drawn(), 2.5) == 4
    assert alike(pair, drawn((1, 3, 4, 4))) == 5
    assert alike(pair, drawn()) == 5


def test_what_would_run_is_found_without_running(pair):
    model, _ = pair
    before = copy.deepcopy(model.state_dict())
    kind, call = record_call(
        model,
        own_forward(model),
        tuple(fakes_for(model, [(2, 3, 4, 4)])),
        {},
        model.forward.options,
    )
    captures = calls_of(model).of(kind, call)
    for _ in range(2):
        ready, tensors = captures.find(call)
        assert captures.count == 1
        assert {each.name for each in ready.graph.operations} >= {"conv2d", "batch_norm"}
        assert len(tensors) == len(ready.graph.given)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_what_returns_nothing_of_its_inputs_is_not_found():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return 3

    with pytest.raises(ooc.UnsupportedModelError, match="computes no tensor"):
        ooc.output_shape(Constant(), (1, 3))


def test_nothing_is_in_force_afterwards(pair):
    in_force = modes()
    alike(pair, drawn())
    assert modes() == in_force
    assert not is_captured_by_us()
    with nest_capture():
        assert is_captured_by_us()
        seen = []
        thread = threading.Thread(target=lambda: seen.append(is_captured_by_us()))
        thread.start()
        thread.join()
    assert seen == [False]
    assert not is_captured_by_us()


def test_settings_of_dynamo_stay_the_users(pair):
    config = torch._dynamo.config
    before = (config.specialize_int, config.recompile_limit, config.suppress_errors)
    alike(pair, drawn())
    assert (config.specialize_int, config.recompile_limit, config.suppress_errors) == before


def test_where_dynamo_is_switched_off_it_is_said(pair):
    model, _ = pair
    with (
        torch.compiler.set_stance("force_eager"),
        pytest.raises(ooc.UnsupportedModelError, match="TorchDynamo is switched off here"),
    ):
        model(drawn())
    alike(pair, drawn())


def test_a_call_within_a_dispatch_mode_is_refused_by_its_name(pair):
    model, _ = pair
    said = r"^the call is within a \w*FlopCounterMode .*outside of it"
    with FlopCounterMode(display=False), pytest.raises(ooc.UnsupportedModelError, match=said):
        model(drawn())
    alike(pair, drawn())


def test_several_threads_call_models_of_their_own():
    torch.manual_seed(0)
    eager = [Net().double() for _ in range(3)]
    under = [ooc.limit(copy.deepcopy(each), LIMIT) for each in eager]
    inputs, found = drawn(), {}  # drawn once: the stream of random numbers is all threads'

    def call(at):
        with ooc_cudnn.settings(device="host", machine="host"):
            found[at] = [under[at](inputs) for _ in range(2)]

    threads = [threading.Thread(target=call, args=(at,)) for at in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for at in range(3):
        for each in found[at]:
            close(each, eager[at](inputs), f"model {at}")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # within PyTorch
def test_a_model_within_a_compiled_function_is_the_same(pair):
    under, eager = pair
    compiled = torch.compile(lambda x: 2 * under(x), backend="eager")
    for _ in range(2):
        close(compiled(drawn()), 2 * eager(drawn()), "output")
    assert len(calls_of(under)) == 1


def test_captures_go_with_the_model():
    model = ooc.limit(Net().double(), LIMIT)
    model(drawn()).sum().backward()
    gone, captures = weakref.ref(model), weakref.ref(next(iter(calls_of(model)._kinds.values())))
    assert isinstance(captures(), Captures)
    del model
    gc.collect()
    assert gone() is None
    assert captures() is None


def test_models_of_one_class_are_captured_apart():
    torch.manual_seed(0)
    eager = [Net().double(), Net().double()]
    eager[1].order = [4]
    under = [ooc.limit(copy.deepcopy(each), LIMIT) for each in eager]
    for _ in range(2):
        for pair in zip(under, eager, strict=True):
            assert alike(pair, drawn()) == 1


class AsksScript(nn.Module):
    """As MONAI's U-Nets, whether something is of a kind, as TorchScript would say."""

    def __init__(self, kind, within=lambda x: x):
        super().__init__()
        self.conv, self.kind, self.within = nn.Conv2d(3, 3, 1), kind, within

    def forward(self, x):
        is_so = torch.jit.isinstance(self.within(x), self.kind)
        return self.conv(2 * x if is_so else x)


@pytest.mark.parametrize("kind", [torch.Tensor, nn.Parameter])
def test_whether_torchscript_says_that_it_is_a_tensor(kind):
    eager = AsksScript(kind).double()
    pair = ooc.limit(copy.deepcopy(eager), LIMIT), eager
    assert [alike(pair, drawn()) for _ in range(2)] == [1, 1]


@pytest.mark.skipif(torch.__version__ < "2.13", reason="before, Dynamo follows it by itself")
def test_what_torchscript_says_of_a_list_is_refused():
    model = ooc.limit(AsksScript(list[torch.Tensor], lambda x: [x]).double(), LIMIT)
    with pytest.raises(ooc.UnsupportedModelError, match="isinstance"):
        model(drawn())
