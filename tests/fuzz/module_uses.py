"""What a user does with a drawn model: its arguments, calls, losses, backwards, changes between."""

from __future__ import annotations

import textwrap

import torch

from tests.fuzz.draw_module import HEADER, Drawing, SkipError
from tests.fuzz.module_arithmetic import ARITHMETIC
from tests.fuzz.module_idioms import IDIOMS
from tests.fuzz.module_layers import LAYERS


def weighted(steps, weight):
    total = sum(steps.values())
    return {step: weight * each / total for step, each in steps.items()}


STEPS = weighted(LAYERS, 4) | weighted(ARITHMETIC, 3) | weighted(IDIOMS, 4)


def program_text(names):
    """The source of a program."""
    stream = names.stream
    torch.manual_seed(stream.randrange(10**6))
    d = Drawing(names)
    inputs = given_arguments(d)
    wanted = stream.choice((1, 2, 3, 4, 5, 6, 8, 10))
    written = 0
    for _ in range(5 * wanted):
        written += d.step(STEPS)
        if written == wanted:
            break
    returned = results(d)
    text = d.text(returned)
    head = HEADER.format(dtype=names.dtype, low=names.low)
    make = "def make():\n    return ready(Net())\n"
    return "\n\n".join(
        [head, *(each.strip() + "\n" for each in names.top), text, make, use(d, inputs)]
    )


def given_arguments(d):
    """Draw the arguments of forward; the source of each input, by name."""
    s = d.stream
    shape = (
        s.choice((1, 2, 2, 3)),
        s.choice((2, 3, 4)),
        *(s.choice((5, 6, 7, 9)) for _ in range(d.axes)),
    )
    if d.axes == 3:
        shape = (*shape[:2], *(min(n, 6) for n in shape[2:]))
    inputs = {}

    def give(text, source):
        name = text.split("=")[0].strip()
        space = d.space
        d.argument(text, name, eval(source, space))
        inputs[name] = source

    numbers = "data({at}, " + ", ".join(map(str, shape)) + ")"
    layout = s.choice(("", "", "", "", ".flip(-1).flip(-1)", ".mT.contiguous().mT"))
    give("x", numbers.format(at=1) + layout)
    if s.chance(0.3):
        give("y", numbers.format(at=2))
    if s.chance(0.12):
        kind = s.choice(("labels", "image", "mask"))
        source = f"torch.arange({shape[0] * 4}).reshape({(shape[0], 4)}) % 5"
        if kind == "mask":
            source = f"({source}) > 2"
        elif kind == "image":
            source = f"({source}).to(torch.uint8)"
        give("at", source)
    if s.chance(0.15):
        d.arguments.append("gain=2.0")
        d.space["gain"] = 2.0
        d.write("x = x * gain")
    if s.chance(0.1):
        d.arguments.append("maybe=None")
        d.space["maybe"] = None
        d.write("x = x if maybe is None else x + maybe")
    if s.chance(0.05):
        d.arguments.append("*rest")
        d.space["rest"] = ()
    return inputs


def results(d):
    """What forward returns: of which structure, with what among it twice, detached or None."""
    s = d.stream
    made = [name for name in [*d.values, *d.ends] if name not in ("x", "y", "at")]
    if not made:
        raise SkipError
    kind = s.weighted({"one": 5, "tuple": 3, "dict": 1.5, "nested": 1, "odd": 1.5})
    last = made[-1]
    if kind == "one":
        return last if d.tensor(last).numel() or s.chance(0.1) else s.choice(made)
    chosen = [last, *(s.choice(made) for _ in range(s.choice((1, 2))))]
    if kind == "tuple":
        return s.choice(("({})", "[{}]")).format(", ".join(chosen))
    if kind == "dict":
        return "{" + ", ".join(f"{f'out{at}'!r}: {name}" for at, name in enumerate(chosen)) + "}"
    if kind == "nested":
        return f"{{'a': ({chosen[0]}, None), 'b': [{chosen[1]}, {{'c': {chosen[-1]}}}]}}"
    return s.choice((
        "({a}, {b}.detach())", "({a}, x)", "({a}, {a})", "({a}, x[:, :1])",
        "({a}, 3, 'text', None)",
        "({a}, {b}.view(-1))", "({a}, self.training)", "({a}, tuple({a}.shape))",
        "(x.detach(), {a})",
        "({a}, None, {b})", "({a}.transpose(0, -1), {a})", "({a}, torch.ones(2))",
        "types.SimpleNamespace(a={a}).a",
        "collections.OrderedDict(a={a}, b={b})", "({a}, {a}[..., :1])", "({a}, ({b},), [])",
    )).format(a=chosen[0], b=chosen[1])  # fmt: skip


LOSSES = '''\


def floats(made):
    """The floating tensors among results, in order."""
    if isinstance(made, torch.Tensor):
        return [made] if made.is_floating_point() else []
    if isinstance(made, dict):
        made = list(made.values())
    if isinstance(made, tuple | list):
        return [each for part in made for each in floats(part)]
    return []


def loss(made, some=slice(None), power=1):
    """A number that depends on some of the results, each element with a weight of its own."""
    total = torch.zeros((), dtype=torch.float64)
    for at, each in enumerate(floats(made)[some]):
        weights = data(50 + at, *each.shape).double()
        total = total + (torch.nan_to_num(each.double(), 0, 0, 0) ** power * weights).sum()
    return total


def backward(total, **how):
    """Backward, where anything needs a gradient."""
    if total.requires_grad:
        total.backward(**how)
'''


def use(d, inputs):
    """The source of `use`: a few calls of the model and what follows from them."""
    s = d.stream
    lines = [f"{name} = {source}" for name, source in inputs.items()]
    for name in inputs:
        if d.tensor(name).is_floating_point() and s.chance(0.35):
            lines.append(f"{name}.requires_grad_()")
    lines.append("seen = {}")
    named = s.choice((1, 2, 9))  # from which argument on they are given by name
    call = ", ".join(f"{n}={n}" if at >= named else n for at, n in enumerate(inputs))
    if "gain=2.0" in d.arguments and s.chance(0.5):
        call += f", gain={s.choice(('3', '0.5', 'True', '-1.0'))}"
    if s.chance(0.12):
        lines.append("model.eval()")
    some = s.choice(("", "", "", ", slice(0, 1)", ", slice(1, None)", ", power=2"))
    way = s.weighted(WAYS)
    lines += (
        WAYS_TEXT[way]
        .format(call=call, some=some, other=others(s, call, inputs))
        .strip()
        .split("\n")
    )
    if s.chance(0.06):
        lines = [*lines, "with torch.no_grad():", f"    seen['without'] = model({call})"]
    lines += [f"seen[{n!r}] = {n}" for n in inputs] + [
        f"seen['{n}.grad'] = {n}.grad" for n in inputs if d.tensor(n).is_floating_point()
    ]
    lines.append("return seen")
    d.names.words.append(way)
    return (
        LOSSES.strip()
        + "\n\n\ndef use(model):\n"
        + textwrap.indent("\n".join(lines), "    ")
        + "\n"
    )


def others(s, call, inputs):
    """The arguments of another call: other numbers, now and then of more images."""
    first = next(iter(inputs))
    changed = s.choice(
        (f"{first}.detach() * 0.5", f"torch.cat([{first}, {first}])", f"{first}.detach().flip(0)")
    )
    if len(inputs) > 1 and "cat" in changed:
        changed = f"{first}.detach() * 2"
    return call.replace(first, changed, 1)


WAYS = {
    "once": 6, "twice then backward": 2, "a step between": 2, "evaluated after": 1,
    "forward alone": 1,
    "backward twice": 1, "grad of some": 1, "gradient given": 1, "results changed": 1,
    "accumulated": 1,
    "hook of a result": 1, "changed between": 2, "autocast around": 0.4, "backward of the first": 1,
    "frozen between": 1, "loaded between": 0.7, "without gradients first": 1, "double forward": 0.5,
    "a copy": 0.6, "backward in between": 0.7,
}  # fmt: skip
WAYS_TEXT = {
    "once": "made = model({call})\nbackward(loss(made{some}))\nseen['made'] = made",
    "twice then backward": """
made = model({call})
more = model({other})
backward(loss(made{some}) + loss(more, power=2))
seen['made'], seen['more'] = made, more""",
    "a step between": """
optimizer = torch.optim.SGD(model.parameters(), 0.05) if list(model.parameters()) else None
for step in range(2):
    made = model({call})
    if optimizer:
        optimizer.zero_grad(set_to_none=step == 0)
    backward(loss(made{some}))
    if optimizer:
        optimizer.step()
    seen[step] = made""",
    "evaluated after": """
backward(loss(model({call}){some}))
model.eval()
seen['made'] = model({other})
model.train()
backward(loss(model({call})))""",
    "forward alone": "seen['made'] = model({call})\nseen['again'] = model({other})",
    "backward twice": """
made = model({call})
backward(loss(made{some}), retain_graph=True)
backward(loss(made, power=2))
seen['made'] = made""",
    "grad of some": """
made = model({call})
wanted = [p for p in [*model.parameters(), x] if p.requires_grad][-2:]
total = loss(made{some})
if wanted and total.requires_grad:
    seen['grads'] = torch.autograd.grad(total, wanted, allow_unused=True)
seen['made'] = made""",
    "gradient given": """
made = model({call})
first = [each for each in floats(made) if each.requires_grad]
if first:
    first[0].backward(torch.ones_like(first[0]) * 0.5)
seen['made'] = made""",
    "results changed": """
made = model({call})
for each in floats(made)[:1]:
    if each.numel() and not each.is_leaf:
        each *= 2
backward(loss(made{some}))
seen['made'] = made""",
    "accumulated": """
for _ in range(2):
    made = model({call})
    backward(loss(made{some}))
seen['made'] = made""",
    "hook of a result": """
made = model({call})
for each in floats(made):
    if each.requires_grad:
        each.register_hook(lambda g: g * 3)
        each.retain_grad()
backward(loss(made{some}))
seen['made'], seen['kept'] = made, [each.grad for each in floats(made) if not each.is_leaf]""",
    "changed between": """
seen['before'] = model({call})
for module in model.modules():
    for name, value in list(vars(module).items()):
        if type(value) in (int, float) and not name.startswith('_'):
            setattr(module, name, value + 1)
        elif type(value) is list and value and type(value[0]) in (int, float):
            value[0] += 1
    if hasattr(module, 'eps') and hasattr(module, 'momentum'):
        module.eps = 0.01
made = model({call})
backward(loss(made{some}))
seen['made'] = made""",
    "autocast around": """
enabled = AUTOCAST and DTYPE == torch.float32  # without PyTorch's casts of weights as they were
with torch.autocast('cpu', torch.bfloat16, enabled=enabled, cache_enabled=False):
    made = model({call})
backward(loss(made{some}))
seen['made'] = made""",
    "backward of the first": """
made = model({call})
seen['more'] = model({other})
backward(loss(made{some}))
seen['made'] = made""",
    "frozen between": """
backward(loss(model({call}){some}))
for parameter in list(model.parameters())[::2]:
    parameter.requires_grad_(not parameter.requires_grad)
made = model({call})
backward(loss(made))
seen['made'] = made""",
    "loaded between": """
model({call})
state = model.state_dict()
state = {{n: v * 0.5 if v.is_floating_point() else v for n, v in state.items()}}
model.load_state_dict(state)
made = model({call})
backward(loss(made{some}))
seen['made'] = made""",
    "without gradients first": """
with torch.no_grad():
    seen['first'] = model({call})
made = model({call})
backward(loss(made{some}))
seen['made'] = made""",
    "double forward": """
made = model({call})
for each in floats(made)[:1]:
    if each.shape == x.shape and each.dtype == x.dtype:
        made = model({other})
backward(loss(made{some}))
seen['made'] = made""",
    "a copy": """
import copy
backward(loss(model({call}){some}))
twin = copy.deepcopy(model)
made = twin({call})
backward(loss(made))
seen['made'], seen['grads'] = made, [p.grad for p in twin.parameters()]""",
    "backward in between": """
made = model({call})
more = model({other})
backward(loss(more))
model.zero_grad()
backward(loss(made{some}))
seen['made'], seen['more'] = made, more""",
}
