"""Where autograd is off or on in forward: views kept for a log, and parts that have a gradient."""

import torch
from torch import nn

from tests.torch.idioms.judge import EQUAL, REFUSED, Idiom
from tests.torch.idioms.models import conv, drawn, forward, image, leaf, loss_of, model, train


def off(run):
    """Two calls without gradients; backward goes through what has one all the same."""
    for seed in range(2):
        with torch.no_grad():
            outputs = run(leaf(image(seed)))
        loss = loss_of(outputs)
        if torch.is_tensor(loss) and loss.requires_grad:
            run.backward(loss)


def inferring(run):
    for x in (image(0), image(1)):
        with torch.inference_mode():
            run(x)


def kept(s, x):
    loss = s.c(x).square().mean()
    with torch.no_grad():
        s.last = loss.detach()
    return loss


def history(s, x):
    y = s.c(x)
    with torch.inference_mode():
        s.history.append(y.detach())
    with torch.set_grad_enabled(not s.training):
        s.history.append(y[:, 0].detach())
    return {"y": y}


@torch.no_grad()
def log(s, y):
    s.last, s.history = y.detach(), [*s.history, y.flatten(1), y.mean(1)]


def logged(s, x):
    y = s.c(x)
    log(s, y)
    return y.relu(), y


def views(s, x):
    y = s.c(x)
    with torch.no_grad():
        first, second = y.relu().chunk(2, 1)
        of_an_output, of_what_is_given = y.view(y.shape[0], -1), (s.w.view(-1), x[:, 0])
    return y, first, second * 2, of_an_output, of_what_is_given


def in_a_buffer(s, x):
    y = s.c(x)
    with torch.no_grad():
        s.b = y.mean((0, 2, 3)).detach()
    return y


def one_layer(s, x):
    y = s.d(x)
    with torch.enable_grad():
        z = s.c(y)
    return z, z.relu()


@torch.enable_grad()
def all_of_it(s, x):
    return s.c(x).relu() * s.w


def two_parts(s, x):
    with torch.enable_grad():
        y = s.c(x)
    z = y * 2
    with torch.enable_grad():
        y = y + s.c(z)
    return y, z, y.view(-1)


def only_kept(s, x):
    with torch.enable_grad():
        s.last = s.c(x)
    return s.last.detach()


def of_parameters(s, x):
    with torch.enable_grad():
        w = s.w * 2
    return s.c(x) * w, w


def in_a_buffer_with_history(s, x):
    with torch.enable_grad():
        s.b = s.c(x).mean((0, 2, 3))
    return s.d(x)


def off_within(s, x):
    with torch.enable_grad():
        with torch.no_grad():
            y = s.d(x)
        return s.c(y) * y


def changed_in_place(s, x):
    with torch.enable_grad():
        y = s.c(x)
    y += s.d(x)
    y.mul_(2)
    return y * 2, y


def out_of_inference_mode(s, x):
    with torch.inference_mode(False):
        return s.c(x)


def in_turn(run):
    """Calls with gradients, without, and in inference mode."""
    for around in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with around():
            run(image())


def asks_within(s, x):
    with torch.enable_grad():
        y = s.c(x)
        is_followed = y.requires_grad
    return y * (2 if is_followed else 3)


def asks_behind(s, x):
    with torch.enable_grad():
        y = s.c(x)
    with torch.no_grad():
        v = y.flatten(1)
    return v * (2 if y.requires_grad else 3) * (5 if (v * 2).requires_grad else 7)


def of_a_view(s, x):
    y = s.c(x)
    with torch.no_grad():
        v = y.flatten(1)
    return v * 2


def of_views(s, x):
    y = s.c(x)
    with torch.no_grad():
        v, u = y.flatten(1), x.flatten(1)
    return (v * 2).sum(1), u + 1, v.mean() + s.d(x), v[:1] * y.mean()


def of(name, f, steps, expected=EQUAL):
    return Idiom(
        name,
        model(
            f,
            c=conv(padding=1),
            d=conv(padding=1),
            w=lambda: nn.Parameter(drawn(4, 1, 1, seed=5)),
            b=lambda: nn.Buffer(torch.ones(4)),
            last=lambda: None,
            history=list,
        ),
        steps,
        expected,
    )


KEPT = {
    "a loss": kept,
    "a history": history,
    "a log": logged,
    "views": views,
    "a buffer": in_a_buffer,
}
ENABLED = {
    "one layer": one_layer,
    "all of forward": all_of_it,
    "two parts": two_parts,
    "a map that is kept": only_kept,
    "parameters": of_parameters,
    "a buffer": in_a_buffer_with_history,
    "with no_grad within": off_within,
    "and changes in place behind": changed_in_place,
}
CASES = [
    *(of(f"kept under no_grad: {name}", f, train) for name, f in KEPT.items()),
    *(of(f"kept under no_grad, as is the call: {name}", f, off) for name, f in KEPT.items()),
    *(of(f"enable_grad in a call without: {name}", f, off) for name, f in ENABLED.items()),
    *(of(f"enable_grad in inference mode: {name}", f, inferring) for name, f in ENABLED.items()),
    of("forward leaves inference mode under no_grad", out_of_inference_mode, off),
    of("forward leaves inference mode", out_of_inference_mode, inferring),
    of("requires_grad is read within enable_grad", asks_within, in_turn, REFUSED),
    of("requires_grad is read behind enable_grad", asks_behind, in_turn, REFUSED),
    of("what is made of a view of no_grad", of_a_view, forward),
    of("what is made of views of no_grad, and of others", of_views, train),
]
