"""Arithmetic of drawn modules: Python's numbers, parts and shapes of tensors, reductions."""

from __future__ import annotations

from tests.fuzz.draw_module import SkipError

#: Python's numbers, of every kind: usual ones, bools, zeros, beyond a dtype, and none at all.
USUAL = ("2", "0.5", "-1", "-0.75", "3", "1", "1.0", "0.1", "1e-3", "-2")
ODD = ("True", "False", "0", "0.0", "-0.0", "7 // 2", "math.pi", "1 / 3", "0.1 + 0.2", "-True")
FAR = (
    "1e5", "-1e5", "1e-39", "1e39", "70000", "2**31", "-(2**40)", "math.inf", "-math.inf",
    "math.nan", "1e300", "5e-324", "2**62", "65504.1",
)  # fmt: skip


def number(d, *, far=True):
    """The source of a number."""
    s = d.stream
    kind = s.weighted({"usual": 6, "odd": 3, "far": 1.5 if far else 0, "attribute": 2, "global": 1})
    if kind == "attribute":
        return d.layer(s.choice(USUAL + ODD), "number")
    if kind == "global":
        name = d.names.fresh("GAIN")
        d.above(f"{name} = {s.choice(USUAL + ODD)}")
        return name
    return s.choice({"usual": USUAL, "odd": ODD, "far": FAR}[kind])


def with_number(d):
    x, n = d.pick(), number(d)
    d.assign(d.stream.choice((
        "{x} * {n}", "{x} + {n}", "{x} - {n}", "{n} - {x}", "{n} * {x}", "{x} / {n}",
        "{n} / ({x}.abs() + 1)", "torch.add({x}, {n})", "torch.sub({x}, 1, alpha={n})",
        "torch.add({x}, {x}, alpha={n})", "{x}.mul({n})", "torch.true_divide({x}, {n})",
        "torch.where({x} > 0, {x}, {n})", "{x}.masked_fill({x} > 0.5, {n})",
        "torch.lerp({x}, {x} * 2, {n})", "{x}.clamp(max={n})", "torch.rsub({x}, {n})",
        "torch.full_like({x}, {n}) + {x}", "{x} * torch.tensor({n})",
        "{x}.addcmul({x}, {x}, value={n})",
    )).format(x=x, n=n))  # fmt: skip


def with_odd_number(d):
    """What a number does that is rounded, cast or compared."""
    d.sharp()
    x, n = d.pick(), number(d)
    d.assign(d.stream.choice((
        "({x} > {n}).to({x}.dtype)", "torch.floor_divide({x}, {n})", "{x} // {n}", "{x} % {n}",
        "({x} == {n}) * 1.0", "{x}.sign() * {n}", "torch.fmod({x}, {n})", "{x}.round() * {n}",
        "torch.floor({x} * {n})", "({x} <= {n}).float()", "({x} * {n}).to(torch.int64)",
        "torch.trunc({x}) + {n}", "torch.copysign({x}, torch.tensor({n}))",
    )).format(x=x, n=n))  # fmt: skip


def unary(d):
    x = d.pick()
    d.assign(d.stream.choice((
        "{x}.abs()", "-{x}", "{x}.pow(2)", "{x} ** 3", "{x}.abs() ** 0.5", "{x} ** 0", "{x} ** 1",
        "({x}.abs() + 1) ** -1", "{x}.square()", "{x}.clamp(-0.5, 0.5)", "{x}.clamp(min=0)",
        "({x}.abs() + 0.1).sqrt()", "({x}.abs() + 0.1).rsqrt()", "{x}.exp() * 0.1", "{x}.sin()",
        "torch.log1p({x}.abs())", "torch.log({x}.abs() + 0.1)", "{x}.erf()", "torch.atan({x})",
        "({x}.abs() + 0.5).reciprocal()", "torch.where({x} > 0, {x}, {x} * 0.1)", "{x}.cos()",
        "torch.expm1({x} * 0.1)", "torch.nan_to_num({x})", "{x}.clip(-1, 1)", "{x} * 1",
        "torch.clamp({x}, max=0.25)", "{x}.abs().clamp(0.1, 0.05)", "{x}.logit(eps=0.1)",
        "torch.maximum({x}, {x}.mean())", "2 ** ({x} * 0.5)", "torch.zeros_like({x})",
        "torch.ones_like({x}) * {x}", "{x}.new_ones({x}.shape) + {x}", "{x}.contiguous()",
        "torch.hypot({x}, {x} + 1)", "{x}.type_as({x})", "{x}.clone()", "{x} * {x}.shape[0]",
        "{x} / {x}.numel()", "{x} * len({x}.shape)",
        "{x}.double().sum().to({x}.dtype) * 0.01 + {x}",
    )).format(x=x))  # fmt: skip


def binary(d):
    x = d.pick()
    y = d.pick_like(x)
    d.assign(d.stream.choice((
        "{x} + {y}", "{x} + {y}", "{x} + {y}", "{x} * {y}", "{x} - {y}", "torch.maximum({x}, {y})",
        "torch.minimum({x}, {y})", "{x} / ({y}.abs() + 1)", "torch.where({y} > 0, {x}, {y})",
        "torch.add({x}, {y}, alpha=0.5)", "torch.sub({x}, {y}, alpha=2)",
        "torch.lerp({x}, {y}, 0.3)",
        "torch.addcmul({x}, {x}, {y}, value=0.5)", "torch.addcdiv({x}, {x}, {y}.abs() + 1)",
        "torch.stack([{x}, {y}]).sum(0)", "torch.stack([{x}, {y}], 1)", "({x} + {y}) / 2",
        "sum([{x}, {y}, {x}])", "torch.atan2({x}, {y}.abs() + 1)", "{x}.dist({y}) * 0.1 + {x}",
        "torch.logaddexp({x}, {y})", "F.mse_loss({x}, {y}) + {x}",
        "F.cosine_similarity({x}, {y}, 1)",
    )).format(x=x, y=y))  # fmt: skip


def broadcast(d):
    x = d.pick(lambda x: x.is_floating_point() and x.dim() >= 3)
    shape = d.tensor(x).shape
    ones = (1,) * (len(shape) - 2)
    kind = d.stream.choice(("mean", "parameter", "buffer", "attribute", "positions", "pixel"))
    if kind == "mean":
        d.assign(f"{x} - {x}.mean({tuple(range(2, len(shape)))}, keepdim=True)")
        return
    if kind == "positions":
        d.assign(f"{x} + torch.linspace(0, 1, {shape[-1]}, dtype={x}.dtype)")
        return
    if kind == "pixel":
        d.assign(f"{x} * {x}[:, :1]")
        return
    new = f"data({d.stream.randrange(99)}, {', '.join(map(str, (shape[1], *ones)))})"
    if kind == "parameter":
        y = d.layer(f"nn.Parameter({new})", "weight")
    elif kind == "attribute":
        y = d.layer(f"{new}{d.stream.choice(('', '.requires_grad_()'))}", "constant")
    else:
        y = d.names.fresh("buffer")
        d.set_up(f"self.register_buffer({y!r}, {new}{d.stream.choice(('', ', persistent=False'))})")
        y = f"self.{y}"
    d.assign(d.stream.choice(("{x} * {y}", "{x} + {y}", "{y} - {x}", "{x} - {y}")).format(x=x, y=y))


def part(d):
    """Slices, also those beyond the end, of nothing, with steps; one element of an axis."""
    x = d.pick(lambda x: x.dim() >= 2)
    d.assign(d.stream.choice((
        "{x}[..., -10:]", "{x}[:, :2]", "{x}[:, 1:]", "{x}[..., 1:-1]", "{x}[:, ::2]",
        "{x}[..., :100]",
        "{x}[-3:]", "{x}[:, :0]", "{x}[..., 5:3]", "{x}[:, -1:]", "{x}[:, 0]", "{x}[..., 0]",
        "{x}[..., None]", "{x}[:, [0, 0]]", "{x}[:, torch.tensor([0])]", "{x}[0:99, ..., :2]",
        "{x}.narrow(1, 0, 1)", "{x}.select(-1, 0)", "{x}[0]", "{x}[..., ::3]", "{x}[-100:100]",
        "{x}.index_select(1, torch.tensor([0, 0]))", "{x}[:, :1].expand_as({x})", "{x}[None]",
        "torch.narrow({x}, -1, 0, 2)", "{x}[..., True]", "{x}.unfold(-1, 2, 1)",
        "{x}[{x}.shape[0] // 2 :]",
        "torch.take_along_dim({x}, torch.zeros_like({x}, dtype=torch.long), 1)", "{x}[..., [-1]]",
        "{x}[:, slice(None, 1)]", "{x}[(slice(None), 0)]", "{x}.diagonal(dim1=-2, dim2=-1)",
    )).format(x=x))  # fmt: skip


def shape(d):
    x = d.pick(lambda x: x.dim() >= 2)
    d.assign(d.stream.choice((
        "{x}.flatten(1)", "{x}.transpose(1, -1)", "{x}.flip(-1)", "{x}.roll(1, -1)",
        "{x}.unsqueeze(1)",
        "{x}.reshape({x}.shape[0], -1)", "{x}.view({x}.size(0), -1)", "{x}.squeeze()",
        "{x}.movedim(1, -1)",
        "{x}.permute(*range({x}.dim())[::-1])", "{x}.flatten(2)", "torch.flatten({x})",
        "{x}.swapaxes(0, 1)",
        "{x}.repeat_interleave(2, 1)", "torch.tile({x}, (2,))", "{x}.unflatten(1, (1, -1))",
        "{x}.mT",
        "{x}.expand(*{x}.shape)", "{x}.rot90(1, (-2, -1))", "torch.atleast_3d({x})",
        "{x}.squeeze(0)",
        "{x}.reshape(-1)", "{x}.view_as({x})", "torch.triu({x})",
        "{x}.repeat(1, 2, *[1] * ({x}.dim() - 2))",
        "{x}.view(*{x}.shape[:2], -1)", "torch.flip({x}, [0])",
        "{x}.t() if {x}.dim() == 2 else {x}",
    )).format(x=x))  # fmt: skip


def reduction(d):
    x = d.pick(lambda x: x.is_floating_point() and x.dim() >= 1 and x.numel())
    dims = range(d.tensor(x).dim())
    dim = d.stream.choice((1, -1, 0, tuple(dims)[1:], tuple(dims)[2:], (0, 1)))
    keep = d.stream.choice(("", ", keepdim=True"))
    d.assign(d.stream.choice((
        "{x}.mean({dim}{keep})", "{x}.sum({dim}{keep}) * 0.1", "{x}.amax({dim}{keep})",
        "{x}.mean()",
        "{x}.var({dim}{keep}, correction=0)", "{x}.std({dim}{keep}, correction=0)",
        "{x}.sum() * 0.01",
        "{x}.amin({dim}{keep})", "torch.logsumexp({x}, {dim}{keep})", "{x}.norm(dim={dim}{keep})",
        "{x}.max(-1{keep}).values", "{x}.min(0)[0]", "{x}.max()",
        "{x}.pow(2).mean({dim}{keep}).sqrt()",
        "torch.linalg.vector_norm({x}, dim={dim}{keep})", "torch.var_mean({x}, {dim}{keep})[1]",
        "{x}.cumsum(-1) * 0.1", "{x}.prod(-1)", "{x}.median(-1{keep}).values", "{x}.norm()",
        "{x}.abs().mean({dim}{keep})", "torch.einsum('...i->...', {x}) * 0.1", "{x}.min()",
        "{x}.softmax({one})", "torch.topk({x}, 1, -1).values", "{x}.sort({one}).values",
    )).format(x=x, dim=dim, keep=keep, one=dim if isinstance(dim, int) else -1))  # fmt: skip


def counted(d):
    """Integers and bools made of a tensor."""
    d.sharp()
    x = d.pick()
    d.assign(d.stream.choice((
        "{x}.argmax(-1)", "({x} > 0).sum()", "{x}.argmin(1)", "({x} > 0).any(-1)", "{x} >= 0",
        "torch.isfinite({x})", "({x} > 0) & ({x} < 1)", "({x} < 0).long()", "{x}.ne(0)",
        "torch.count_nonzero({x})", "{x}.argsort(-1)", "~({x} > 0)", "torch.isnan({x}).all()",
        "torch.bucketize({x}, torch.tensor([-0.5, 0.5]))", "torch.tensor({x}.shape)",
    )).format(x=x))  # fmt: skip


def cast(d):
    """To another dtype, and sometimes back."""
    x = d.pick()
    low = d.stream.chance(0.4)
    if low:
        d.smooth()
    made = d.assign(d.stream.choice(
        ("{x}.to(LOW)", "{x}.to(LOW).to(DTYPE)") if low
        else ("{x}.double()", "{x}.float()", "{x}.to(torch.float64) * 2", "{x}.to(DTYPE)")
    ).format(x=x))  # fmt: skip
    if d.stream.chance(0.3):
        d.assign(f"{made} + {x}")


def of_constants(d):
    """A tensor that no argument is read for."""
    x = d.pick(lambda x: x.is_floating_point() and x.dim() >= 2 and x.numel())
    d.assign(d.stream.choice((
        "{x} + torch.ones({x}.shape[-1])", "{x} * torch.arange({x}.shape[-1])",
        "{x} + torch.tensor(0.5)",
        "torch.eye({x}.shape[-1]) @ {x}.mT", "{x} + torch.zeros(1)", "{x} * torch.tensor([2])",
        "{x} + {x}.new_tensor([1.5])", "{x} - torch.full((1,), 2)", "{x} * torch.tensor(True)",
        "{x} + torch.rand(1, generator=None) * 0", "{x} * torch.tensor(3)",
    )).format(x=x))  # fmt: skip


def values_of(d):
    """Integers of an argument in arithmetic with floats."""
    at = d.pick(lambda x: not x.is_floating_point())
    x = d.pick()
    if d.tensor(x).dim() < 1:
        raise SkipError
    d.assign(d.stream.choice((
        "{x} + {at}.sum()", "{x} * ({at}.reshape(-1)[:1] > 0)", "{at} + 1", "{at} * 0.5",
        "{x} * {at}.to({x}.dtype).mean()", "{at}.float() / 2", "{at} // 2", "-{at}.to(torch.int32)",
    )).format(x=x, at=at))  # fmt: skip


ARITHMETIC = {
    with_number: 5, with_odd_number: 1.5, unary: 5, binary: 6, broadcast: 4, part: 4, shape: 3,
    reduction: 4, counted: 0.7, cast: 1.5, of_constants: 1, values_of: 2,
}  # fmt: skip
