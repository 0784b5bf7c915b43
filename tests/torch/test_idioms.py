"""What people write in PyTorch models: equal to eager, or refused before anything has run."""

import contextlib
import copy
import io
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.torch.idioms.judge import (
    DIFFERENT,
    EQUAL,
    REFUSED,
    Door,
    Idiom,
    Verdict,
    as_expected,
    by_dynamo,
    counted,
    in_eager,
    judge,
    passes,
    under_an_ample,
    under_the_least,
)
from tests.torch.idioms.models import (
    conv,
    held,
    image,
    leaf,
    loss_of,
    model,
    of_several_sizes,
    train,
)
from tests.torch.idioms.seen import overlap
from tests.torch.idioms.table import TABLE

pytestmark = pytest.mark.usefixtures("fewest_plans")

NAMED = {idiom.name: idiom for idiom in TABLE}


def check(idiom, verdict, memory_limit):
    said = f"{verdict.kind} under {memory_limit} bytes, {idiom.expected} is expected"
    assert passes(idiom, verdict), f"{said}: {verdict.why}"


@pytest.mark.parametrize("name", NAMED)
def test_an_idiom_under_an_ample_limit(name):
    check(NAMED[name], *under_an_ample(NAMED[name]))


@pytest.mark.parametrize("name", NAMED)
def test_an_idiom_under_the_least_limit(name):
    check(NAMED[name], *under_the_least(NAMED[name]))


@pytest.mark.parametrize("name", NAMED)
def test_an_idiom_of_images_of_several_sizes(name):
    """What is captured for all sizes is as exact as what is captured for one."""
    idiom = of_several_sizes(NAMED[name])
    try:
        in_eager(idiom)
    except AssertionError as error:
        pytest.skip(f"eager takes no other sizes here: {error}")
    check(idiom, *under_an_ample(idiom))


def test_the_table_is_as_long_as_promised_and_its_names_are_its_own():
    assert len(NAMED) == len(TABLE) >= 150


@pytest.mark.parametrize("name", NAMED)
def test_eager_is_equal_to_eager(name):
    assert judge(NAMED[name], Door(lambda q: None)).kind == EQUAL


@pytest.mark.nightly
@pytest.mark.skipif(torch.__version__ < "2.13", reason="the table is what torch 2.13 captures")
@pytest.mark.parametrize("name", NAMED)
def test_the_table_expects_what_torchdynamo_makes_of_it(name):
    verdict = by_dynamo(NAMED[name])
    assert as_expected(NAMED[name], verdict), f"{verdict.kind}: {verdict.why}"


# What follows has the judge look at wrong doors: each does one thing that a wrong library would.


class Everything(nn.Module):
    """What a wrong door may get wrong: buffers, lists, counts, hooks, views, prints, errors."""

    def __init__(self):
        super().__init__()
        self.c, self.n, self.unused = conv()(), nn.BatchNorm2d(4), conv()()
        self.losses, self.calls, self.scale = [], 0, torch.tensor(1.5, requires_grad=True)

    def forward(self, x):
        if x.shape[1] != 4:
            raise ValueError("four channels")
        print("called")
        self.calls += 1
        y = self.n(self.c(x)) * self.scale
        self.losses.append(y.mean())
        return y, {"view": x.flatten(1), "places": y.argmax(1)}


def everything(run):
    train(run)
    run.fails(lambda: run(image()[:, :3]))


EVERYTHING = Idiom("everything", Everything, everything)


def wrapped(around):
    """A door that puts a function around forward: around(model, forward, x)."""

    def enter(q):
        inner = q.forward
        q.__dict__["forward"] = around_of(q, inner)

    def around_of(q, inner):
        return Librarys(lambda x: around(q, inner, x))

    return Door(enter)


class Librarys:
    """Stands for what the library puts on a module, which is no attribute of the user's."""

    __module__ = "ooc_cudnn.torch"

    def __init__(self, call):
        self.call = call

    def __call__(self, x):
        return self.call(x)


def with_outputs(change):
    """A door that changes the outputs: change(y, parts, x)."""
    return wrapped(lambda q, inner, x: change(*inner(x), x))


def zeros_for_none(q, inner, x):
    y, parts = inner(x)
    return y + 0 * sum(each.sum() for each in q.unused.parameters()), parts


def keeps_statistics(q, inner, x):
    kept = copy.deepcopy(q.n.state_dict())
    found = inner(x)
    q.n.running_mean.data.copy_(kept["running_mean"])
    return found


def follows_python_once(q, inner, x):
    found = inner(x)
    q.calls = 1
    return found


def drops_the_loss(q, inner, x):
    found = inner(x)
    q.losses.clear()
    return found


def loses_the_graph(q, inner, x):
    found = inner(x)
    q.losses[-1] = q.losses[-1].detach()
    return found


def a_constant_scale(q, inner, x):
    scale = q.scale
    q.scale = scale.detach()
    found = inner(x)
    q.scale = scale
    return found


def no_gradient_of_the_input(q, inner, x):
    y, parts = inner(x.detach())
    return y, {**parts, "view": x.flatten(1)}


def no_error(q, inner, x):
    return inner(x if x.shape[1] == 4 else F.pad(x, (0, 0, 0, 0, 0, 1)))


def another_error(q, inner, x):
    try:
        return inner(x)
    except ValueError as error:
        raise RuntimeError("no") from error


def silent(q, inner, x):
    with contextlib.redirect_stdout(io.StringIO()):
        return inner(x)


def writes_into_the_input(q, inner, x):
    found = inner(x)
    x.data.mul_(1.01)
    return found


def leaves_gradients_off(q, inner, x):
    found = inner(x)
    if len(q.losses) == 2:
        torch.set_grad_enabled(False)
    return found


def leaves_a_level(q, inner, x):
    found = inner(x)
    if len(q.losses) == 2:
        torch._C._functorch._grad_increment_nesting()
    return found


def leaves_an_attribute(q, inner, x):
    q.cache = None
    return inner(x)


def refuses_late(q, inner, x):
    q.calls += 1
    raise UnsupportedModelError('File "a.py", line 3: y[0] = 1: write it by torch.where')


def refuses_after_printing(q, inner, x):
    print("called")
    raise UnsupportedModelError('File "a.py", line 3: y[0] = 1: write it by torch.where')


def refuses_without_a_line(q, inner, x):
    raise UnsupportedModelError("y[0] = 1 is not supported: write it by torch.where")


def refuses_without_advice(q, inner, x):
    raise UnsupportedModelError('File "a.py", line 3: y[0] = 1 is not supported')


def runs_twice_in_backward(y, parts, x):
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 1.001)
    return y, parts


WRONG = {
    "0 for None": (wrapped(zeros_for_none), "unused.weight.grad"),
    "statistics are not updated": (wrapped(keeps_statistics), "n.running_mean"),
    "a count is that of the capture": (wrapped(follows_python_once), "calls"),
    "a list on self stays empty": (wrapped(drops_the_loss), "losses"),
    "a loss on self has no graph": (wrapped(loses_the_graph), "losses"),
    "a tensor attribute is a constant": (wrapped(a_constant_scale), "scale.grad"),
    "an input has no gradient": (wrapped(no_gradient_of_the_input), "input 0.grad"),
    "an output is off by 0.1 %": (with_outputs(lambda y, p, x: (y * 1.001, p)), "output[0]"),
    "a gradient is off by 0.1 %": (with_outputs(runs_twice_in_backward), ".grad"),
    "an output has another dtype": (with_outputs(lambda y, p, x: (y.double(), p)), "float64"),
    "an output has an axis more": (with_outputs(lambda y, p, x: (y[None], p)), "(1, 2, 4"),
    "a tuple became a list": (with_outputs(lambda y, p, x: [y, p]), "list"),
    "a key is missing": (with_outputs(lambda y, p, x: (y, {"view": p["view"]})), "keys"),
    "an output has no graph": (with_outputs(lambda y, p, x: (y.detach(), p)), "output[0]"),
    "a view became a copy": (
        with_outputs(lambda y, p, x: (y, {**p, "view": p["view"].clone()})),
        "memory that is shared",
    ),
    "integers are off by one": (
        with_outputs(lambda y, p, x: (y, {**p, "places": p["places"] + 1})),
        "other values",
    ),
    "no error": (wrapped(no_error), "call 5: output"),
    "another error": (wrapped(another_error), "raised"),
    "nothing is printed": (wrapped(silent), "printed"),
    "the input is written into": (wrapped(writes_into_the_input), "input 0"),
    "gradients are left off": (wrapped(leaves_gradients_off), "whether gradients are on"),
    "a level of torch.func is left": (wrapped(leaves_a_level), "levels of torch.func"),
    "an attribute is left": (wrapped(leaves_an_attribute), "cache"),
    "refused late": (wrapped(refuses_late), "refused late: calls"),
    "refused after printing": (wrapped(refuses_after_printing), "something was printed"),
    "refused without a line": (wrapped(refuses_without_a_line), "without a line"),
    "refused without advice": (wrapped(refuses_without_advice), "without advice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_judge_finds_what_is_wrong(name):
    door, why = WRONG[name]
    verdict = judge(EVERYTHING, door)
    assert verdict.kind == DIFFERENT
    assert why in verdict.why


def test_the_judge_passes_a_door_that_computes_the_same():
    assert judge(EVERYTHING, wrapped(lambda q, inner, x: inner(x))).kind == EQUAL


def test_a_refusal_in_time_passes_only_where_the_table_allows_it():
    def refuses(q, inner, x):
        raise UnsupportedModelError('File "a.py", line 3: y[0] = 1: write it by torch.where')

    verdict = judge(EVERYTHING, wrapped(refuses))
    assert verdict.kind == REFUSED
    assert not passes(EVERYTHING, verdict)
    assert passes(Idiom("the same", Everything, everything, REFUSED), verdict)


def test_what_torchdynamo_makes_of_an_idiom_is_held_apart_from_what_the_library_must():
    beyond = Idiom("beyond it", Everything, everything, beyond=DIFFERENT)
    left_out = Idiom("left out", Everything, everything, REFUSED, "a reason")
    kinds = (EQUAL, REFUSED, DIFFERENT)
    assert [as_expected(beyond, Verdict(each)) for each in kinds] == [False, False, True]
    assert [passes(beyond, Verdict(each)) for each in kinds] == [True, False, False]
    assert [as_expected(left_out, Verdict(each)) for each in kinds] == [True, False, False]
    assert [passes(left_out, Verdict(each)) for each in kinds] == [True, True, False]
    said = counted([beyond, left_out, left_out])
    assert said.startswith("2 may be refused though TorchDynamo captures them whole, 1 must be")


def test_the_page_says_how_many_there_are():
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    (said,) = re.findall(r"^\| idioms \| more than (\d+) things", page, re.MULTILINE)
    assert int(said) == (len(TABLE) - 1) // 100 * 100


def test_every_idiom_that_torchdynamo_sees_otherwise_is_marked_one_way():
    for idiom in TABLE:
        assert not idiom.though or (idiom.expected == REFUSED and not idiom.beyond), idiom.name
        assert idiom.beyond in ("", REFUSED, DIFFERENT), idiom.name
        assert not idiom.beyond or idiom.expected == EQUAL, idiom.name


def test_what_a_hook_ignored_looks_like():
    def hooked(run):
        run.model.c.register_forward_hook(lambda m, i, o: o * 2)
        run.backward(loss_of(run(leaf(image()))))

    def forgets_hooks(q, inner, x):
        q.c._forward_hooks.clear()
        return inner(x)

    idiom = Idiom("a hook", model(lambda s, x: s.c(x), c=conv()), hooked)
    assert "output" in judge(idiom, wrapped(forgets_hooks)).why


def test_a_change_that_is_not_seen():
    def changing(run):
        train(run)
        run.model.gain = 3.0
        train(run)

    def keeps_the_first(q, inner, x):
        now, q.gain = q.gain, 1.0
        found = inner(x)
        q.gain = now
        return found

    idiom = Idiom("a gain", model(lambda s, x: s.c(x) * s.gain, c=conv(), gain=held(1.0)), changing)
    assert "call 5: output" in judge(idiom, wrapped(keeps_the_first)).why


def test_an_idiom_that_fails_in_eager_is_a_fault_of_the_table():
    idiom = Idiom("wrong", model(lambda s, x: s.c(x[0, 0, 0]), c=conv()), train)
    with pytest.raises(AssertionError, match="wrong fails in eager"):
        judge(idiom, Door(lambda q: None))


def test_overlap_is_of_elements_and_not_of_storages():
    whole = torch.zeros(4, 6)
    assert overlap(whole, whole[1:2, ::2])
    assert overlap(whole.view(torch.int32)[1], whole[:2])
    assert not overlap(whole[:, ::2], whole[:, 1::2])
    assert not overlap(whole, whole.clone())
    assert not overlap(whole[:0], whole)
