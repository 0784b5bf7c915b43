"""Idioms of drawn modules: what people write in a forward beside arithmetic."""

from __future__ import annotations

from tests.fuzz.draw_module import Drawing, SkipError
from tests.fuzz.module_arithmetic import number

FUNCTIONS = {
    "Reverse": "return x.view_as(x)|return -g",
    "Through": "return x.clamp(-0.5, 0.5)|return g",
    "Scaled": "ctx.save_for_backward(x)\n        return x * 2|return g * ctx.saved_tensors[0]",
    "Halved": "ctx.share = 0.5\n        return x.clone()|return g * ctx.share",
}


def function(d):
    """An autograd.Function whose backward is not that of its forward."""
    kind, x = d.stream.choice(sorted(FUNCTIONS)), d.pick()
    forward, backward = FUNCTIONS[kind].split("|")
    name = d.names.fresh(kind)
    d.above(
        f"class {name}(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        f"        {forward}\n\n    @staticmethod\n    def backward(ctx, g):\n        {backward}\n"
    )
    d.assign(f"{name}.apply({x})")


def tensor_hook(d):
    x = d.assign(f"{d.pick()} * 1.5")
    hook = d.stream.choice(
        (
            "lambda g: g * 0.5",
            "lambda g: g.clamp(-0.1, 0.1)",
            "torch.neg",
            "functools.partial(torch.mul, other=3)",
        )
    )
    if d.stream.chance(0.3):
        log = d.layer("[]", "log")
        hook = f"lambda g, log={log}: log.append(g.clone())"
    d.write(f"if {x}.requires_grad:\n    {x}.register_hook({hook})")


def module_hook(d):
    """Hooks that are there from the beginning; forward runs them."""
    if not d.layers:
        raise SkipError
    name, shape, out = d.stream.choice(d.layers)
    kind = d.stream.choice((
        "register_forward_hook(lambda module, given, made: made * 2)",
        "register_forward_pre_hook(lambda module, given: (given[0] * 0.5,))",
        "register_forward_hook(lambda module, given, made: None)",
        "register_full_backward_hook(halved)",
        "keep",
    ))  # fmt: skip
    if kind == "keep":
        d.set_up("self.kept_by_hook = {}")
        kind = (
            "register_forward_hook(lambda module, given, made, kept=self.kept_by_hook: "
            "set_where(kept, 'made', made.detach()))"
        )
    d.set_up(f"{name}.{kind}")
    fits = [n for n in [*d.values, out] if d.tensor(n).shape == shape]
    d.assign(f"{name}({d.stream.choice(fits)})")


def detached(d):
    x = d.pick()
    kind = d.stream.choice((
        "{x}.detach()", "{x}.detach() + {x}", "{x}.data * 2", "{x} * {x}.detach()",
        "{x} - {x}.data", "{x}.detach().requires_grad_() * 2", "({x} * 2).detach_()",
        "torch.tanh({x}.detach()) + ({x} - {x}.detach())",
    ))  # fmt: skip
    d.assign(kind.format(x=x))


def without_gradients(d):
    x = d.pick()
    name = d.names.fresh("v")
    mode = d.stream.choice(
        (
            "torch.no_grad()",
            "torch.set_grad_enabled(False)",
            "torch.no_grad()",
            "torch.enable_grad()",
        )
    )
    made = d.stream.choice(
        ("{x}.mean()", "{x} * 2", "{x}.abs().amax()", "torch.sigmoid({x})")
    ).format(x=x)
    d.write(f"with {mode}:\n    {name} = {made}", new=(name,))
    d.assign(f"{x} + {name}" if d.stream.chance(0.7) else f"{x} * {name}")


def in_place(d):
    """Writes into a value, a part of it or a view of it."""
    x = d.assign(d.stream.choice(("{x} * 1.0", "{x}.clone()", "{x} + 1")).format(x=d.pick()))
    y, n = d.pick_like(x), number(d, far=False)
    write = d.stream.choice((
        "{x}[:, 0] = 0", "{x}[..., -10:] = {n}", "{x} += {y}", "{x}.relu_()",
        "{x}.add_({y}, alpha=2)",
        "{x}.mul_({n})", "{x} *= 0.5", "{x}.clamp_(0)", "{x}.masked_fill_({x} > 0, {n})",
        "{x}[..., 0] += 1",
        "{x}[:, 1:].mul_(2)", "{x}.copy_({y})", "{x}.zero_()", "{x}[0] = {y}[0] * 2",
        "{x} -= {y} * 0.5",
        "{x}[{x} > 0] = 0", "{x}.view(-1)[:3].fill_(1)", "{x}[:, :1] = {x}[:, -1:].clone()",
        "{x}.neg_()",
        "{x}.sigmoid_()", "{x}.sub_({n}).tanh_()", "{x}.div_(2)", "torch.relu_({x})",
        "{x}.fill_({n})",
        "F.relu({x}, inplace=True)", "{x}[..., ::2] = {n}", "{x}[:, :0] = 5",
        "{x}.select(1, 0).mul_(0)",
        "{x}.index_fill_(1, torch.tensor([0]), 2)", "{x}.squeeze_()", "{x}.transpose_(0, 1)",
        "{x}.abs_()",
        "{x}.add_({n})", "{x}.detach().mul_(2)", "{x}.data.add_(1)", "{x}.data = {x}.data * 2",
        "with torch.no_grad():\n    {x}.mul_(2)", "F.dropout({x}, 0.0, inplace=True)",
        "{x}.scatter_(1, torch.zeros_like({x}, dtype=torch.long), 0.5)", "{x}.lerp_({y}, 0.5)",
    )).format(x=x, y=y, n=n)  # fmt: skip
    d.write(write, new=())
    if d.stream.chance(0.7):
        d.assign(f"{x} * 2")


def out_given(d):
    x, name = d.pick(), d.names.fresh("v")
    made = d.stream.choice(
        (
            "torch.add({x}, 1, out={name})",
            "torch.mul({x}, {x}, out={name})",
            "torch.abs({x}, out={name})",
        )
    )
    made = f"{name} = torch.empty_like({x})\n    {made.format(x=x, name=name)}"
    d.write(f"with torch.no_grad():\n    {made}", new=(name,))


def counter(d):
    name = d.names.fresh("count")
    start = d.stream.choice(
        ("0", "0.0", "torch.zeros(())", "buffer", "torch.zeros((), dtype=torch.long)")
    )
    if start == "buffer":
        d.set_up(f"self.register_buffer({name!r}, torch.zeros((), dtype=torch.long))")
    else:
        d.set_up(f"self.{name} = {start}")
    add = f"self.{name} += 1"
    if "torch" in start or start == "buffer":
        add = d.stream.choice((add, f"self.{name}.add_(1)", f"self.{name} = self.{name} + 1"))
    read = f"{d.pick()} * self.{name}"
    order = d.stream.choice(("add", "read add", "add read"))
    for each in order.split():
        if each == "add":
            d.write(add)
        else:
            d.assign(read)


def average(d):
    """A buffer that forward keeps up to date, read before or after."""
    x = d.pick_map()
    channels, over = d.tensor(x).shape[1], (0, *range(2, d.axes + 2))
    name = d.names.fresh("average")
    d.set_up(
        f"self.register_buffer({name!r}, torch.{d.stream.choice(('zeros', 'ones'))}({channels}))"
    )
    new = f"{x}{d.stream.choice(('', '.detach()'))}.mean({over})"
    write = d.stream.choice((
        "with torch.no_grad():\n    self.{n}.mul_(0.9).add_({new}, alpha=0.1)",
        "with torch.no_grad():\n    self.{n}.copy_({new})",
        "self.{n} = 0.9 * self.{n} + 0.1 * {new}.detach()",
        "self.{n}.data.lerp_({new}.detach(), 0.5)", "with torch.no_grad():\n    self.{n} += {new}",
        "self.{n}.data = {new}.detach()", "self.{n}[:1] = {new}.detach()[:1]",
        "if self.training:\n    self.{n} = {new}.detach().clone()",
        "self.{n}.copy_({new}.detach())",
        "with torch.no_grad():\n    self.{n}[0] = 7",
    )).format(n=name, new=new)  # fmt: skip
    read = f"{x} - self.{name}.clone().view(1, -1, {', '.join('1' * d.axes)})"
    for each in d.stream.choice(("write", "write read", "read write", "read write read")).split():
        if each == "write":
            d.write(write)
        else:
            d.assign(read)


def statistics_read(d):
    """Running statistics before and after batch normalization updates them; its result unused."""
    x = d.pick_map()
    name = d.layer(f"nn.BatchNorm{d.axes}d({d.tensor(x).shape[1]})", "norm")
    attribute = d.stream.choice(("running_mean", "running_var"))
    read = f"{x} - {name}.{attribute}.clone().view(1, -1, {', '.join('1' * d.axes)})"
    for each in d.stream.choice(
        ("norm read", "read norm", "norm", "norm norm", "read norm read")
    ).split():
        if each == "read":
            d.assign(read)
        elif d.stream.chance(0.4):
            d.write(f"{name}({x})")
        else:
            d.assign(f"{name}({x})")


def kept_on_self(d):
    """What forward leaves on the module, or in a global list."""
    x, name = d.pick(), d.names.fresh("kept")
    value = d.stream.choice((
        "{x}.mean()", "{x}.detach()", "{x}", "tuple({x}.shape)", "{x}.pow(2).sum()", "{x}.shape[0]",
    )).format(x=x)  # fmt: skip
    kind = d.stream.choice(("new", "old", "list", "dict", "global", "tensor", "read"))
    if kind == "list":
        d.set_up(f"self.{name} = []")
        d.write(f"self.{name}.append({value})")
    elif kind == "dict":
        d.set_up(f"self.{name} = {{}}")
        d.write(f"self.{name}['a'] = {value}")
    elif kind == "global":
        d.above(f"{name.upper()} = []")
        d.set_up(f"self.{name} = {name.upper()}")
        d.write(f"{name.upper()}.append({value})")
    else:
        start = {"old": "None", "tensor": "torch.zeros(())"}.get(kind)
        if start:
            d.set_up(f"self.{name} = {start}")
        d.write(f"self.{name} = {value}")
        if kind == "read" and "shape" not in value:
            d.assign(f"self.{name} * 2")


def branch(d):
    """Python that decides by what is known without data."""
    x = d.pick()
    flag = d.layer(d.stream.choice(("True", "False", "None", "'a'", "0")), "flag")
    d.assign(d.stream.choice((
        "{x} * 2 if self.training else {x}", "{x} * 2 if {f} else {x} - 1",
        "{x} if {f} is None else {x} * 3",
        "{x} * 2 if {x}.shape[0] > 1 else {x}", "{x} if {x}.requires_grad else {x} * 5",
        "{x} * (3 if torch.is_grad_enabled() else 2)", "{x} * 2 if {x}.dtype == DTYPE else {x}",
        "{x} + 1 if hasattr(self, 'nothing') else {x}", "{x} * getattr(self, 'nothing', 0.5)",
        "{x} * 2 if isinstance({f}, bool) else {x}", "{x} + len(list(self.parameters()))",
        "{x} * sum(i * 0.1 for i in range({x}.shape[1]))", "{x} * 2 if {f} in (True, 'a') else {x}",
        "{x} * 2 if torch.is_autocast_enabled('cpu') else {x}", "{x} * float({x}.is_contiguous())",
        "functools.reduce(torch.add, [{x}, {x} * 2])", "[{x} * i for i in range(3)][-1]",
        "(lambda y, gain=2.0: y * gain)({x})", "dict(a={x}, b=2)['a']", "max([{x} * 1], key=len)",
    )).format(x=x, f=flag))  # fmt: skip


def from_config(d):
    """Numbers of an object, a list, a dict; functions that are attributes."""
    x = d.pick()
    made, read = d.stream.choice((
        ("types.SimpleNamespace(a=0.5)", "{x} * {c}.a"), ("[0.5, 2]", "{x} * {c}[1]"),
        ("{{'a': 2.0}}", "{x} * {c}['a']"), ("F.relu", "{c}({x})"), ("torch.tanh", "{c}({x})"),
        ("lambda y: y * 2", "{c}({x})"), ("functools.partial(torch.mul, other=2)", "{c}({x})"),
        ("collections.namedtuple('Config', 'a b')(2, 3)", "{x} * {c}.b"),
        ("'tanh'", "getattr(torch, {c})({x})"),
        ("nn.ModuleList([nn.Tanh(), nn.ReLU()])", "{c}[1]({c}[0]({x}))"),
        ("{{1, 2}}", "{x} * len({c})"),
        ("nn.ModuleDict({{'a': nn.SiLU()}})", "{c}['a']({x})"), ("torch.float64", "{x}.to({c})"),
        ("nn.ParameterList([torch.ones(1), torch.ones(1)])", "{x} * {c}[0] + {c}[1]"),
        ("nn.Sequential(nn.Tanh(), nn.Hardtanh(-0.2, 0.4))", "{c}({x})"),
        ("(1, -1)", "{x}.sum({c}[1])"),
    ))  # fmt: skip
    config = d.layer(made.replace("{{", "{").replace("}}", "}"), "config")
    d.assign(read.format(x=x, c=config))


def frozen(d):
    """Parts without gradients, and weights that forward reads or writes itself."""
    if not d.layers:
        raise SkipError
    name, shape, out = d.stream.choice(d.layers)
    x = d.stream.choice([n for n in [*d.values, out] if d.tensor(n).shape == shape])
    kind = d.stream.choice(("freeze", "weight", "no bias", "read", "write", "data", "eval"))
    if kind == "freeze":
        d.set_up(f"{name}.requires_grad_(False)")
    elif kind == "weight":
        d.set_up(f"for p in list({name}.parameters())[:1]: p.requires_grad_(False)")
    elif kind == "no bias":
        d.set_up(f"for p in list({name}.parameters())[1:]: p.requires_grad_(False)")
    elif kind == "eval":
        d.write(f"{name}.eval()")
    elif kind == "read":
        d.write(f"assert {name}.weight is not None")
        d.assign(f"{x} * {name}.weight.mean()")
    elif kind == "write":
        d.write(f"with torch.no_grad():\n    {name}.weight.clamp_(-0.3, 0.3)")
    else:
        d.write(f"{name}.weight.data = torch.renorm({name}.weight.data, 2, 0, 0.5)")
    d.assign(f"{name}({x})")


def parametrized(d):
    x = d.pick_map()
    channels = d.tensor(x).shape[1]
    text = f"nn.Conv{d.axes}d({channels}, 3, 1)"
    kind = d.stream.choice(("parametrizations.weight_norm", "parametrizations.spectral_norm"))
    d.assign(f"{d.layer(f'nn.utils.{kind}({text})', 'normed')}({x})")


def low_precision(d):
    """Autocast within the model, on and off again."""
    d.smooth()
    if not d.layers:
        raise SkipError
    name, shape, out = d.stream.choice(d.layers)
    x = d.stream.choice([n for n in [*d.values, out] if d.tensor(n).shape == shape])
    made = d.names.fresh("v")
    inner = f"{made} = {name}({x})"
    if d.stream.chance(0.3):
        inner = f"with torch.autocast('cpu', enabled=False):\n    {made} = {name}({x}.to(DTYPE))"
    body = inner.replace("\n", "\n    ")
    d.write(
        f"with torch.autocast('cpu', torch.bfloat16, enabled=AUTOCAST):\n    {body}", new=(made,)
    )


def remade(d):
    """A checkpoint, vmap, a Function's relatives: what calls forward by other means."""
    x = d.pick(lambda x: x.is_floating_point() and x.dim() >= 2)
    d.assign(d.stream.choice((
        "torch.utils.checkpoint.checkpoint(lambda y: y.tanh() * 2, {x}, use_reentrant=False)",
        "torch.vmap(lambda y: y * 2)({x})", "torch.vmap(torch.sum)({x})",
        "torch.jit.annotate(torch.Tensor, {x} * 2)",
        "torch._assert({x}.dim() > 1, 'axes') or {x} * 2",
        "contextlib.nullcontext({x}).__enter__() * 2",
        "torch.func.functional_call(nn.Tanh(), {{}}, ({x},))",
        "torch.compiler.is_compiling() * 0 + {x}",
    )).format(x=x))  # fmt: skip


def method(d):
    """A method, a property, a static method of the class itself."""
    x = d.pick()
    name = d.names.fresh("helper")
    kind = d.stream.choice(("no_grad", "plain", "local"))
    if kind == "local":
        d.write(f"def {name}(y, gain=2.0):\n    return y * gain")
    else:
        decorator = "@torch.no_grad()\n" if kind == "no_grad" else ""
        d.above(
            f"{decorator}def {name}(y, *, gain=2.0, **rest):\n    return y * gain + len(rest)\n"
        )
    d.assign(f"{name}({x})")


def nested(d):
    """A class of its own, with a shortcut where shapes agree; sometimes called twice."""
    if d.depth > 1:
        raise SkipError
    from tests.fuzz.module_uses import STEPS

    x = d.pick_map()
    inner = Drawing(d.names, d.names.fresh("Part"), d.depth + 1)
    given = d.names.fresh("y")
    inner.argument(given, given, d.tensor(x).detach().clone())
    for _ in range(d.stream.choice((1, 2, 3, 4))):
        inner.step(STEPS)
    made = inner.values[-1]
    if d.stream.chance(0.5):
        try:
            made = inner.assign(f"{given} + {made}")
        except RuntimeError:
            made = inner.values[-1]
    d.above(inner.text(made))
    name = d.layer(f"{inner.name}()", "part")
    d.layers.append((name, d.tensor(x).shape, d.assign(f"{name}({x})")))
    if d.stream.chance(0.2):
        d.assign(f"{name}({x} * 0.5)")


IDIOMS = {
    function: 1.5, tensor_hook: 1.2, module_hook: 1.2, detached: 2, without_gradients: 1.5,
    in_place: 4, out_given: 0.4, counter: 1.2, average: 1.5, statistics_read: 1.2,
    kept_on_self: 1.5, branch: 1.5, from_config: 1.5, frozen: 2, parametrized: 0.4,
    low_precision: 1, remade: 0.7, method: 0.7, nested: 3,
}  # fmt: skip
