"""The judge of drawn modules: what is wrong is found out, and rounding is not."""

from __future__ import annotations

import itertools

import pytest
import torch

import ooc_cudnn.torch as ooc
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.fuzz import modules
from tests.fuzz.compare_modules import Judge, Seen
from tests.fuzz.draw_module import DTYPES, HEADER, Drawing, Names, Program, draw_module
from tests.fuzz.module_shrinking import shrunk
from tests.fuzz.module_uses import LOSSES, STEPS, given_arguments
from tests.fuzz.modules import judge_of, observe, reproduction, run_module
from tests.support.torch_state import mend_functorch

INIT = """
self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
self.norm = nn.BatchNorm2d(4)
self.count, self.kept, self.log = 0, None, []
self.constant = data(9, 1).requires_grad_()
self.register_buffer('average', torch.zeros(4))
"""
PLAIN = "y = self.norm(self.a(x)) + self.b(x)\nreturn y"
#: A forward, and one that a careless capture makes of it.
CARELESS = {
    "detach": ("return self.a(x) + self.b(x).detach()", "return self.a(x) + self.b(x)"),
    "a zero for None": ("return self.a(x)", "return self.a(x) + 0 * self.b(x)"),
    "unused statistics": ("self.norm(x[:, [0] * 4]); return self.b(x)", "return self.b(x)"),
    "statistics twice": (PLAIN, "self.norm(self.a(x))\n" + PLAIN),
    "a counter": ("self.count += 1\n" + PLAIN, PLAIN),
    "a tensor kept": ("y = self.a(x)\nself.kept = y.mean()\nreturn y", "return self.a(x)"),
    "a kept tensor without its graph": (
        "y = self.a(x)\nself.kept = y\nreturn y", "y = self.a(x)\nself.kept = y.detach()\nreturn y"
    ),
    "a list": ("self.log.append(2)\n" + PLAIN, PLAIN),
    "a new attribute": ("self.new = 3\n" + PLAIN, PLAIN),
    "a buffer": ("y = self.a(x)\nself.average += 1\nreturn y", "return self.a(x)"),
    "a weight": (
        "self.a.weight.data.mul_(2)\nreturn self.a(x)",
        "return F.conv2d(x, self.a.weight * 2, self.a.bias)",
    ),
    "an input": ("x.data.mul_(2)\nreturn self.a(x)", "return self.a(x * 2)"),
    "a hook": ("y = self.a(x)\ny.register_hook(lambda g: g * 0.5)\nreturn y", "return self.a(x)"),
    "a tensor's gradient": (
        "return self.a(x) * self.constant", "return self.a(x) * self.constant.detach()"
    ),
    "a structure": ("y = self.a(x)\nreturn (y, None)", "y = self.a(x)\nreturn [y, None]"),
    "a key": ("return {'a': self.a(x)}", "return {'b': self.a(x)}"),
    "a shape": ("return self.a(x)", "return self.a(x)[None]"),
    "a dtype": ("return self.a(x).float()", "return self.a(x).double()"),
    "a number": ("return self.a(x) * 1.5", "return self.a(x) * 1.25"),
    "an infinity": ("return self.a(x) / 0", "return self.a(x) / 1e-3"),
    "an integer": ("y = self.a(x)\nreturn y, len(y)", "y = self.a(x)\nreturn y, len(y) + 1"),
    "training": ("self.norm.eval()\n" + PLAIN, "self.norm.train(); " + PLAIN),
    "a result that needs none": (
        "return self.a(x), self.b(x).detach()", "return self.a(x), self.b(x)"
    ),
}  # fmt: skip


def program(forward, dtype="float32", limit=2**24):
    """A program with that forward."""
    indented = [[" " * 8 + line for line in text.strip().split("\n")] for text in (INIT, forward)]
    init, body = ("\n".join(lines) for lines in indented)
    text = f"""{HEADER.format(dtype=dtype, low="bfloat16")}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
{init}

    def forward(self, x):
{body}


def make():
    return ready(Net())


{LOSSES.strip()}


def use(model):
    x = data(1, 2, 3, 6, 5).requires_grad_()
    made = model(x)
    backward(loss(made))
    return {{'made': made, 'x': x, 'x.grad': x.grad, 'again': model(x)}}
"""
    return Program(0, text, limit)


@pytest.mark.parametrize(("careless", "dtype"), list(itertools.product(CARELESS, DTYPES)))
def test_what_a_careless_capture_makes_of_a_model_is_found(careless, dtype):
    right, wrong = (program(forward, dtype).source for forward in CARELESS[careless])
    judge = judge_of(right)
    assert judge.differences(observe(right)) == []
    assert judge.differences(observe(wrong))


def test_what_pytorch_raises_on_a_device_is_no_finding():
    """`meta` stands for a card, which refuses what the CPU computes: here, to read a number."""
    source = program("return (x.double().sum().item() + x,)").source
    with torch.device("meta"), pytest.raises(RuntimeError) as raised:
        torch.zeros(()).item()
    assert observe(source).leaves["made"] == "tuple of 1"
    assert modules.raises_there(source, "meta", raised.value)
    assert not modules.raises_there(source, "meta", RuntimeError("another"))
    assert not modules.raises_there(source, "host", raised.value)


def test_pytorch_itself_is_right():
    """By other kernels, on numbers that are moved by a rounding, in every dtype."""
    for seed in range(30):
        verdict = run_module(draw_module(seed), eager=True)
        assert verdict.findings == [], seed


def test_each_value_that_is_off_is_found():
    """A part in twenty of a tensor's largest, wherever it is; a gradient of zeros for none."""
    found = 0
    for seed in range(25):
        source = draw_module(seed).source
        if (
            "float16" in source.split("def set_where")[1]
            or modules.computed_in(source).itemsize < 4
        ):
            continue
        judge = judge_of(source)
        for path, leaf in judge.expected.items():
            if leaf is None and path.startswith("gradient"):
                assert judge.difference(path, leaf, torch.zeros(3)), path
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                continue
            wrong = leaf.clone().reshape(-1)
            of = leaf[torch.isfinite(leaf)].abs().max() if torch.isfinite(leaf).any() else 0
            kind = "gradient" if "grad" in path else "value"
            if of < 0.01 * judge.largest[kind]:
                continue
            wrong[-1] = 0 if not torch.isfinite(wrong[-1]) else wrong[-1] + of / 20
            assert judge.difference(path, leaf, wrong.reshape(leaf.shape)), (seed, path)
            found += 1
    assert found > 60


@pytest.mark.parametrize("eager", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("found", [torch.inf, -torch.inf, torch.nan, 1.0])
@pytest.mark.parametrize("exact", [1e5, torch.inf])
def test_what_overflows_its_type_alone_is_infinite_or_nan(eager, found, exact):
    """Which of the two is a matter of order; where float64 is not finite either, it is not."""

    def seen(value, dtype=torch.float16):
        return Seen({"y": torch.tensor([value, 2.0], dtype=dtype)})

    judge = Judge(
        seen(eager), torch.float16, lambda: seen(exact, torch.float64), lambda: [seen(eager)]
    )
    same = found == eager or (found != found and eager != eager)
    overflows = exact == 1e5 and found != 1.0
    assert (judge.differences(seen(found)) == []) == (same or overflows)


def spoiled(monkeypatch, forward):
    """A library that does that in place of a model's forward."""

    def limit(model, memory_limit):
        own = model.forward
        model.forward = lambda *args, **kwargs: forward(model, own, *args, **kwargs)
        return model

    monkeypatch.setattr(ooc, "limit", limit)


def refuse(model, own, x):
    raise UnsupportedModelError("Net cannot be captured: line 7")


def refuse_late(model, own, x):
    model.count += 1
    raise UnsupportedModelError("Net cannot be captured: line 7")


def refuse_after_a_statistic(model, own, x):
    own(x)
    raise PlanInfeasibleError(function="step", limit_bytes=1, smallest_bytes=2**26)


def leave_a_level(model, own, x):
    torch._C._functorch._vmap_increment_nesting(1, "error")
    raise UnsupportedModelError("Net cannot be captured: line 7")


def fail(model, own, x):
    raise RuntimeError("an assertion within")


def want_ever_more(model, own, x):
    raise PlanInfeasibleError(function="step", limit_bytes=1, smallest_bytes=2**24)


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (refuse_late, "refused, and changed: attribute count"),
        (refuse_after_a_statistic, "refused, and changed: buffer norm.running_mean"),
        (leave_a_level, "functorch"),
        (fail, "raises RuntimeError: an assertion within"),
        (want_ever_more, "says that 16777216 bytes do"),
    ],
)
def test_what_the_library_does_wrong_is_said(monkeypatch, forward, said):
    spoiled(monkeypatch, forward)
    try:
        verdict = run_module(program(PLAIN))
    finally:
        mend_functorch()
    assert any(said in each for each in verdict.findings), verdict.findings


def test_a_refusal_is_no_finding_and_is_told_by_its_reason(monkeypatch):
    spoiled(monkeypatch, refuse)
    verdict = run_module(program(PLAIN))
    assert verdict.findings == []
    assert verdict.refused == "UnsupportedModelError: Net cannot be captured: line N"


def test_limits_are_drawn_from_the_least_on(monkeypatch):
    """The least is what the error of a byte says."""
    asked = []

    def limit(model, memory_limit):
        asked.append(memory_limit)
        if memory_limit < 5000:
            model.forward = lambda x: refuse_with_least()
        return model

    def refuse_with_least():
        raise PlanInfeasibleError(function="step", limit_bytes=1, smallest_bytes=5000)

    monkeypatch.setattr(ooc, "limit", limit)
    verdict = run_module(program(PLAIN, limit="least"))
    assert (asked, verdict.findings, verdict.limit) == ([1, 5000], [], 5000)


def test_more_than_the_limit_is_found(monkeypatch):
    from ooc_cudnn.devices import get_device

    def take(model, own, x):
        get_device("host").arena._peak_bytes = 2**30
        return own(x)

    spoiled(monkeypatch, take)
    assert run_module(program(PLAIN)).findings == [f"used {2**30} bytes under {2**24}"]


def test_a_finding_prints_what_repeats_it_and_is_shrunk(monkeypatch, tmp_path):
    spoiled(monkeypatch, lambda model, own, x: own(x).relu())
    drawn = program("self.count += 1\nz = self.b(x)\ny = self.a(x)\nreturn y")
    verdict = run_module(drawn)
    assert verdict.findings
    text = reproduction(drawn, verdict)
    compile(text, "reproduction", "exec")
    assert "ooc.limit(make(), 16777216)" in text
    shorter = shrunk(drawn)
    assert "self.count += 1" not in shorter
    assert "self.b(x)" not in shorter
    assert "model(x)" in shorter


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_every_step_is_drawn(step):
    """None of them is refused by PyTorch wherever it is drawn."""
    for seed in range(60):
        names = Names(seed, "every step")
        names.sharp = seed % 2 == 1
        drawing = Drawing(names)
        given_arguments(drawing)
        if seed % 3:
            drawing.step(
                {each: weight for each, weight in STEPS.items() if each.__name__ == "convolution"}
            )
        if drawing.step({step: 1}):
            return
    pytest.fail(f"{step.__name__} is never written")
