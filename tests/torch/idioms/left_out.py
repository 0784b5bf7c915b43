"""What a loss leaves out: PyTorch does not go there, and calls no hook of what lies there."""

from __future__ import annotations

import threading

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.torch.idioms.judge import Idiom
from tests.torch.idioms.models import conv, drawn, image, leaf, loss_of, model


def two_heads(s, x):
    return s.d(x), s.e(x)


def on_a_trunk(s, x):
    y = s.c(x).relu()
    return s.d(y), s.e(y), s.w * 2


def of_one_another(s, x):
    y = s.c(x)
    z = s.d(y.sin())
    return y, z, s.e(z.relu())


def of_two(s, x, other):
    return s.d(x), s.e(other) * s.w


def in_places(s, x):
    """The second output is changed in place, and is behind a view."""
    y, z = on_a_trunk(s, x)[:2]
    shown = z[:, :2]
    shown.mul_(3)
    return y, z


def with_drops(s, x):
    y = s.c(s.n(x))
    return s.d(y) * 2, s.e(y), s.e(y).detach(), y.mean()


def with_checkpoints(s, x):
    y = s.c(x)
    return s.d(y), checkpoint(lambda y: s.e(y).sin(), y, use_reentrant=False)


def noting(run, log):
    """Note what hooks of parameters are called with, in either way."""
    for name, each in run.model.named_parameters():
        each.register_hook(lambda g, name=name: log.append((name, g.clone())))
        each.register_post_accumulate_grad_hook(lambda p, name=name: log.append((name, "after")))


def seen(run, log):
    """What the hooks saw; in which order they ran may differ."""
    run.note(sorted(log, key=lambda each: (each[0], isinstance(each[1], str))))
    log.clear()


def hooked(run):
    """Backward of every set of outputs, with hooks that note what they see."""
    log = []
    noting(run, log)
    for which in ((0,), (1,), (0, 1), (-1,)):
        outputs = run(leaf(image()))
        run.backward(loss_of([outputs[at] for at in which]))
        seen(run, log)


def clipped(run):
    """Hooks of parameters that clip, as people write them."""
    for each in run.model.parameters():
        each.register_hook(lambda gradient: gradient.clamp(-1, 1))
    for which in (0, 1):
        run.backward(loss_of(run(image())[which]))


def steps_in_backward(run):
    """An optimizer of each parameter steps when its gradient is there."""

    def step(parameter):
        with torch.no_grad():
            parameter.sub_(0.01 * parameter.grad)
        parameter.grad = None

    for each in run.model.parameters():
        each.register_post_accumulate_grad_hook(step)
    for which in ((0,), (1,), (0, 1)):
        outputs = run(leaf(image()))
        run.backward(loss_of([outputs[at] for at in which]))


def changed_by(parameters):
    """As an optimizer changes them, without one's state."""
    with torch.no_grad():
        for each in parameters:
            each.mul_(1.5)


def an_optimizer_each(run):
    """A backward of each output, each followed by a step of its head's optimizer."""
    q = run.model
    for order in ((0, 1), (1, 0)):
        outputs = run(image())
        for at in order:
            run.backward(loss_of(outputs[at]))
            changed_by((q.d, q.e)[at].parameters())
            q.zero_grad()
        run.note(dict(q.state_dict()))


def changed_between(run):
    """What another output alone is of may change before backward; what this one is of may not."""
    q = run.model
    for which, name in ((0, "e"), (1, "d")):
        outputs = run(leaf(image()))
        changed_by(q.get_submodule(name).parameters())
        run.backward(loss_of(outputs[which]), retain_graph=True)
        run.fails(lambda of=outputs[1 - which]: loss_of(of).backward())
        outputs = run(leaf(image()))
        changed_by([q.c.weight])
        run.fails(lambda of=outputs[which]: loss_of(of).backward())
        q.zero_grad()


def of_no_loss(run):
    """What a detached output alone is of changes before backward."""
    for _ in range(2):
        outputs = run(leaf(image()))
        changed_by(run.model.e.parameters())
        run.backward(loss_of(outputs[0]))


def of_two_calls(run):
    """Optimizers step in backward, of a loss of one output of a call, and another of the next."""
    for each in run.model.parameters():
        each.register_post_accumulate_grad_hook(lambda p: changed_by([p]))
    for one, other in ((0, 1), (1, 0)):
        first, second = run(image()), run(image(1))
        run.backward(loss_of(first[one]) + loss_of(second[other]))
        run.note(dict(run.model.state_dict()))


def steps_before_the_late(run):
    """Optimizers step in backward; the gradient of one output comes after the other's step."""
    for each in run.model.parameters():
        each.register_post_accumulate_grad_hook(lambda p: changed_by([p]))
    for early in (0, 1):
        outputs = run(image())
        of = in_a_new_thread(lambda it=outputs[1 - early]: loss_of(it.sin()))
        run.backward(loss_of(outputs[early]) + of)
        run.note(dict(run.model.state_dict()))


def in_another_default_dtype(run):
    """The default dtype is another one in backward than in forward."""
    for which in ((0,), (1,), (0, 1)):
        outputs = run(leaf(image()))
        loss, before = loss_of([outputs[at] for at in which]), torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            run.backward(loss)
        finally:
            torch.set_default_dtype(before)


def of_arguments(run):
    """Hooks of arguments, and of what made them; a loss of each output alone."""
    log = []
    for which in (0, 1, 0):
        x, other = leaf(image()), leaf(image(1))
        given = other * 2
        for name, each in (("x", x), ("other", other), ("given", given)):
            each.register_hook(lambda g, name=name: log.append((name, g * 1)))
        run.backward(loss_of(run(x, given)[which]))
        seen(run, log)


def one_by_one(run, last=False):
    """A backward of each output of one call, then of all."""
    log = []
    noting(run, log)
    for _ in range(2):
        outputs = run(leaf(image()))
        for each in outputs:
            run.backward(loss_of(each), retain_graph=True)
            seen(run, log)
        run.backward(loss_of(outputs), retain_graph=last)
        seen(run, log)


def of_the_same_gradient(run):
    """Twice the very same tensor for a gradient, while another backward is between."""
    y, z, *_ = run(leaf(image()))
    gradient = drawn(*y.shape, seed=3)
    for of in (y, z, y):
        of.backward(gradient, retain_graph=True)
        run.note([each.grad for each in run.model.parameters()])


def apart(run):
    """A backward of each of two outputs that share nothing; PyTorch needs no `retain_graph`."""
    for _ in range(2):
        for each in run(image()):
            run.backward(loss_of(each))


def twice(run):
    """A second backward through the same graph, or what it shares with the first."""
    for first, second in ((0, 0), (0, 1), (1, 0)):
        outputs = run(leaf(image()))
        run.backward(loss_of(outputs[first]))
        run.fails(lambda of=outputs[second]: loss_of(of).backward())
        run.model.zero_grad()


def asked_for(run):
    """Gradients of some parameters alone, by a loss of all outputs."""
    q, log = run.model, []
    noting(run, log)
    for names in (("d.weight",), ("c.weight", "e.bias"), ("e.weight",), ("d.bias", "e.bias")):
        x = leaf(image())
        outputs = run(x)
        of = [q.get_parameter(name) for name in names]
        run.gradients(loss_of(outputs), of, retain_graph=True)
        run.gradients(loss_of(outputs[1]), [x, of[-1]], allow_unused=True)
        seen(run, [each for each in log if each[1] != "after"])
        log.clear()
        outputs = run(x)
        loss_of(outputs).backward(inputs=of)
        run.note([each.grad for each in q.parameters()])


def hooked_outputs(run):
    """Hooks of outputs, which see what the loss gives each."""
    log = []
    for which in ((0,), (1,), (0, 1)):
        outputs = run(leaf(image()))
        for at, each in enumerate(outputs[:2]):
            each.retain_grad()
            each.register_hook(lambda g, at=at: log.append((str(at), g.clone())) or g * 2)
        run.backward(loss_of([outputs[at] for at in which]))
        seen(run, log)
        run.note([each.grad for each in outputs[:2]])


def in_autocast(run):
    """Under autocast, which casts every weight, with hooks."""
    for each in run.model.parameters():
        each.register_hook(lambda gradient: gradient.clamp(-1, 1))
    for which in (0, 1, 0):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = run(image())
        run.backward(loss_of(outputs[which]))


def raising(run):
    """A hook raises; the next backward has nothing of what came before."""

    def refuse(gradient):
        raise ValueError("not yet")

    x = leaf(image())
    outputs = run(x)
    for name in ("c.weight", "d.weight", "e.bias"):
        handle = run.model.get_parameter(name).register_hook(refuse)
        run.fails(lambda: loss_of(outputs).backward(retain_graph=True))
        handle.remove()
        run.model.zero_grad()
        x.grad = None
        run.backward(loss_of(outputs[1]), retain_graph=True)


def in_a_new_thread(function):
    """What a function returns in a thread whose nodes autograd takes for the oldest."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def late(run):
    """The gradient of one output comes when those of another have been made."""
    log = []
    noting(run, log)
    for early in (0, 1):
        outputs = run(leaf(image()))
        of = in_a_new_thread(lambda it=outputs[1 - early]: loss_of(it.sin()))
        run.backward(loss_of(outputs[early]) + of)
        seen(run, log)


class Reentrant(torch.autograd.Function):
    """Its backward goes back through another graph, whole."""

    @staticmethod
    def forward(ctx, x, loss):
        ctx.loss = loss
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            ctx.loss.backward(retain_graph=True)
        return gradient, None


def reentrant(run):
    """While backward is at one output, another goes through the same call."""
    for outer, inner in ((0, 1), (1, 0), (0, 0)):
        outputs = run(leaf(image()))
        of = Reentrant.apply(outputs[outer], Held(loss_of(outputs[inner])))
        run.backward(loss_of(of) + loss_of(outputs[1 - outer]))


class Held:
    """A loss that a function does not take for a tensor of its own."""

    def __init__(self, loss):
        self.backward = loss.backward


def within_hooks(run):
    """While gradients of one output come, a hook has another backward go through another."""
    q = run.model
    for name, outer, inner in (("d.weight", 0, 1), ("e.weight", 1, 0), ("c.weight", 0, 1)):
        outputs, done = run(leaf(image())), []
        within = loss_of(outputs[inner])

        def through(_, done=done, loss=within):
            if not done:
                done.append(True)
                with torch.enable_grad():
                    loss.backward(retain_graph=True)

        handle = q.get_parameter(name).register_post_accumulate_grad_hook(through)
        run.backward(loss_of(outputs[outer]), retain_graph=True)
        handle.remove()


def in_two_threads(run):
    """A backward of each output in a thread of its own, at the same time."""
    for _ in range(4):
        outputs, errors = run(image()), []
        losses = [loss_of(each) for each in outputs[:2]]
        together = threading.Barrier(len(losses))

        def back(loss, together=together, errors=errors):
            together.wait()
            try:
                loss.backward(retain_graph=True)
            except RuntimeError as error:
                errors.append(error)

        threads = [threading.Thread(target=back, args=(each,)) for each in losses]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        run.note([*map(str, errors), *(each.grad for each in run.model.parameters())])


def unused(run):
    """A hook of what no output depends on."""
    for _ in range(2):
        x, other = leaf(image()), leaf(image(1))
        for each in (other, run.model.w):
            each.register_hook(lambda gradient: gradient.clamp(-1, 1))
        run.backward(loss_of(run(x, other)))


def of(name, f, steps, **more):
    parts = {each: conv(padding=1) for each in ("c", "d", "e")}
    parts["w"] = lambda: nn.Parameter(drawn(4, 1, 1, seed=5))
    return Idiom(f"left out by a loss: {name}", model(f, **parts, **more), steps)


def normalized():
    return nn.BatchNorm2d(4)


def forward_of(heads):
    """Two outputs alone."""
    return lambda s, *x: heads(s, *x)[:2]


CASES = [
    of("two heads, hooks", two_heads, hooked),
    of("two heads, clipped", two_heads, clipped),
    of("two heads, a backward each", two_heads, apart),
    of("two heads, one by one", two_heads, one_by_one),
    of("two heads, late", two_heads, late),
    of("two heads, an optimizer each", two_heads, an_optimizer_each),
    of("two heads, of two calls", two_heads, of_two_calls),
    of("two heads, steps before the late", two_heads, steps_before_the_late),
    of("two heads, another default dtype", two_heads, in_another_default_dtype),
    of("a trunk, hooks", on_a_trunk, hooked),
    of("a trunk, clipped", on_a_trunk, clipped),
    of("a trunk, steps in backward", forward_of(on_a_trunk), steps_in_backward),
    of("a trunk, one by one", on_a_trunk, one_by_one),
    of("a trunk, the same gradient twice", on_a_trunk, of_the_same_gradient),
    of("a trunk, twice", on_a_trunk, twice),
    of("a trunk, asked for", on_a_trunk, asked_for),
    of("a trunk, hooked outputs", on_a_trunk, hooked_outputs),
    of("a trunk, an error", on_a_trunk, raising),
    of("a trunk, late", on_a_trunk, late),
    of("a trunk, reentrant", on_a_trunk, reentrant),
    of("a trunk, in hooks", on_a_trunk, within_hooks),
    of("a trunk, in two threads", on_a_trunk, in_two_threads),
    of("a trunk, changed between", on_a_trunk, changed_between),
    of("a trunk, another default dtype", on_a_trunk, in_another_default_dtype),
    of("a trunk, autocast", on_a_trunk, in_autocast),
    of("of one another, hooks", of_one_another, hooked),
    of("of one another, one by one", of_one_another, one_by_one),
    of("of one another, late", of_one_another, late),
    of("arguments", of_two, of_arguments),
    of("in place, hooks", in_places, hooked),
    of("in place, one by one", in_places, one_by_one),
    of("a detached output, hooks", with_drops, hooked, n=normalized),
    of("a detached output, late", forward_of(with_drops), late, n=normalized),
    of("a detached head, changed", lambda s, x: (s.d(x), s.e(x).detach()), of_no_loss),
    of("a checkpoint, hooks", with_checkpoints, hooked),
    of("what no output depends on", lambda s, x, other: s.d(x) + 0 * s.w.detach(), unused),
]
