"""The nodes of a call in autograd's graph: what a loss leaves out is not run, all else once.

The idioms of `left_out` compare with eager what hooks see and what gradients there are.
"""

import gc
import weakref

import pytest
import torch
from torch import nn

import ooc_cudnn.torch as ooc
from ooc_cudnn.torch.autograd.function import Run
from tests.torch.idioms import left_out
from tests.torch.idioms.judge import EQUAL, under_an_ample

pytestmark = pytest.mark.usefixtures("fewest_plans")


class Heads(nn.Module):
    """Two outputs of a trunk; or of none, where a hook of one reads what its user may change."""

    def __init__(self, *, hooked=False):
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.one, self.other = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.hooked, self.gain = hooked, 2.0

    def forward(self, x):
        y, z = self.one(x), self.other(x)
        if self.hooked:
            y.register_hook(lambda gradient: gradient * self.gain)
        return (y, z) if self.hooked else (self.one(self.trunk(x)), self.other(self.trunk(x)))


@pytest.fixture
def runs(monkeypatch):
    """The calls that were made, and the backwards that were begun, in order."""
    made, init, begin = [], Run.__init__, Run._begin

    def noted(self, *args):
        init(self, *args)
        made.append(weakref.ref(self))

    def begun(self, *args):
        made.append("backward")
        begin(self, *args)

    monkeypatch.setattr(Run, "__init__", noted)
    monkeypatch.setattr(Run, "_begin", begun)
    return made


def image():
    return torch.linspace(-1, 1, 2 * 3 * 6 * 7).reshape(2, 3, 6, 7)


def nodes_of(*outputs):
    """All nodes behind outputs, by their names."""
    wanted, found = [each.grad_fn for each in outputs], set()
    while wanted:
        node = wanted.pop()
        if node is not None and node not in found:
            found.add(node)
            wanted.extend(each for each, _ in node.next_functions)
    return sorted(each.name() for each in found)


def test_outputs_that_depend_on_the_same_tensors_are_one_node():
    class Same(Heads):
        def forward(self, x):
            y = self.trunk(x)
            return y.sin(), y.relu(), x * 2

    *outputs, constant = ooc.limit(Same(), "1MiB")(image())
    of_ours = [each for each in nodes_of(*outputs) if each.startswith(("Step", "Later", "Of"))]
    assert of_ours == ["StepFunctionBackward"]
    assert not constant.requires_grad


def test_outputs_that_do_not_are_nodes_of_their_own():
    nodes = nodes_of(*ooc.limit(Heads(), "1MiB")(image()))
    assert nodes.count("OfOutputsBackward") == 2
    assert nodes.count("OfTensorsBackward") == 3
    assert "StepFunctionBackward" not in nodes


def test_backward_runs_once_for_all_outputs(runs):
    model = ooc.limit(Heads(), "1MiB")
    for outputs in ((0,), (1,), (0, 1), (1, 0)):
        found = model(image())
        runs.clear()
        sum(found[at].square().sum() for at in outputs).backward()
        assert runs == ["backward"]


def test_what_an_output_is_computed_from_is_checked_though_no_gradient_goes_there():
    class Detached(Heads):
        def forward(self, x):
            y = self.one(x)
            return y, self.other(y.detach())

    model = ooc.limit(Detached(), "1MiB")
    y, z = model(image())
    y.sum().backward()
    with torch.no_grad():
        model.one.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation: "):
        z.square().sum().backward()


def test_a_second_backward_to_an_argument_that_outputs_share_is_refused():
    class Beside(Heads):
        def forward(self, x):
            return self.one(x), self.other(x)

    model, x = ooc.limit(Beside(), "1MiB"), image().requires_grad_()
    y, z = model(x)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        z.sum().backward()


def losses(model):
    """The loss of one output, and one of the other whose gradient comes when all else is made."""
    y, z = model(image())
    return y.square().sum(), left_out.in_a_new_thread(lambda: z.square().sum())


def test_an_output_that_is_late_has_backward_run_again(runs):
    model, eager = ooc.limit(Heads(), "1MiB"), Heads()
    y, z = losses(model)
    runs.clear()
    (y + z).backward()
    assert runs == ["backward", "backward"]
    sum(losses(eager)).backward()
    for one, same in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, same.grad)


def test_an_output_that_is_late_is_refused_where_a_hook_has_changed_a_parameter():
    model = ooc.limit(Heads(), "1MiB")
    y, z = losses(model)
    with torch.no_grad():
        model.one.weight.register_post_accumulate_grad_hook(lambda weight: weight.mul_(2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation while backward runs"):
        (y + z).backward()


def test_so_it_is_where_a_hook_goes_back_through_another_output():
    model, done = ooc.limit(Heads(), "1MiB"), []
    y, z = model(image())

    def through_the_other(weight):
        with torch.enable_grad():
            y.sum().backward(retain_graph=True)
        done.append(model.trunk.weight.grad is not None)

    model.other.weight.register_post_accumulate_grad_hook(through_the_other)
    z.sum().backward(retain_graph=True)
    assert done == [True]
    with torch.no_grad():
        model.trunk.weight.register_post_accumulate_grad_hook(lambda weight: weight.mul_(2))
    y, z = model(image())
    with pytest.raises(RuntimeError, match="modified by an inplace operation while backward runs"):
        z.sum().backward()


def test_what_is_read_late_is_known_to_the_backward_of_another_output():
    model = ooc.limit(Heads(hooked=True), "1MiB")
    y, z = model(image())
    z.sum().backward(retain_graph=True)
    y.sum().backward()
    assert model.one.weight.grad is not None
    y, z = model(image())
    z.sum().backward()
    with pytest.raises(RuntimeError, match="retain_graph=True in the first"):
        y.sum().backward()


@pytest.mark.parametrize("which", [(), (0,), (0, 1)])
def test_a_call_is_let_go_of_with_its_outputs(runs, which):
    model = ooc.limit(Heads(), "1MiB")
    model(image())
    gc.collect()
    gc.disable()
    try:
        outputs = model(image())
        for at in which:
            outputs[at].sum().backward(retain_graph=True)
        (run,) = [each for each in runs if each != "backward"][1:]
        assert run() is not None
        del outputs
        assert run() is None
    finally:
        gc.enable()


def test_what_is_not_asked_for_is_not_kept(runs):
    model = ooc.limit(Heads(), "1MiB")
    loss = sum(each.sum() for each in model(image()))
    torch.autograd.grad(loss, [model.one.weight], retain_graph=True)
    run = runs[0]()
    assert not run._made
    assert run._paused is None


@pytest.mark.parametrize("idiom", left_out.CASES, ids=lambda each: each.name)
def test_so_it_is_where_gradients_are_handed_out_while_others_are_made(idiom, monkeypatch):
    monkeypatch.setattr("ooc_cudnn.torch.runtime.ready_model.bucket_bytes", lambda *_: 1)
    verdict, _ = under_an_ample(idiom)
    assert verdict.kind == EQUAL, verdict.why
