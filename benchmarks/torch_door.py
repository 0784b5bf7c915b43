"""PyTorch models under a memory limit, beside PyTorch itself and the library's own step.

Cases: ResNet-50 at n=768, what the door costs a small step in core, a 3-D U-Net at 256 and 512 to a
side, a U-Net on one large image, SegResNet, and labels of a whole image from file to file. TF32 and
channels-last throughout; images come from pinned memory in each step. Before a training step is
timed, its engines are measured (not with `--no-tune`), and a small relative is compared with
PyTorch in float64, under a limit that it does not fit.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from benchmarks import networks, torch_models
from benchmarks.contenders.torch_setup import out_of_memory_as, precision
from ooc_cudnn.bench import script
from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.placing import available_host_bytes, release_device
from ooc_cudnn.bench.timing import Timing, interleave, time_repeats
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.memory.pinned import held_bytes

NAME = "torch_door"
#: Of the largest, in float64: sums in another order, through all layers.
TOLERANCE = 1e-9
#: Of the loss in TF32, whose rounding is averaged.
LOSS_TOLERANCE = 1e-2
#: Of the sites of an image, those whose labels rounding may change.
LABELS_APART = 1e-3
#: What a step in core may take more than the library's own.
OVERHEAD_SECONDS = 1e-3
OVERHEAD_STEPS = 30


@dataclass(frozen=True)
class Case:
    """A model, its input, and what it is held to.

    Attributes
    ----------
    make : callable
        Takes `width`, a factor of channels.
    shape, small_shape : tuple of int
        The input's, at full size, and of the relative that is checked in float64.
    classes : int
    limit, small_limit : str
    bound : float, optional
        How many times as long as PyTorch in core it may take.
    in_core : bool
        Whether PyTorch can run it.
    loss_inside : bool
        Whether the loss is part of the plan (`with_loss`): for outputs that are large themselves.
    own : callable, optional
        The same network as the library has it, and how many times as long the door may take.
    """

    make: Callable[[float], nn.Module]
    shape: tuple[int, ...]
    classes: int
    limit: str
    small_shape: tuple[int, ...]
    small_limit: str
    bound: float | None = None
    in_core: bool = True
    loss_inside: bool = True
    own: Callable[[], tuple[Any, Any]] | None = None


def _segresnet(width: float) -> nn.Module:
    return torch_models.SegResNet(filters=torch_models.wide(8, width))


def _resnet(width: float) -> nn.Module:
    return torch_models.ResNet50(1000 if width == 1 else 3, width)


CASES = {
    "resnet50": Case(
        _resnet, (768, 3, 224, 224), 1000, "16GiB", (4, 3, 64, 64), "24MiB",
        loss_inside=False, own=lambda: networks.networks.resnet50(768),
    ),
    "dynunet-256": Case(
        torch_models.dynunet, (1, 1, 256, 256, 256), 3, "12GiB",
        (1, 1, 32, 32, 64), "24MiB", bound=1.15,
    ),
    "dynunet-512": Case(
        torch_models.dynunet, (1, 1, 512, 512, 512), 3, "40GiB",
        (1, 1, 32, 32, 64), "24MiB", in_core=False,
    ),
    "unet-8192": Case(
        lambda width: torch_models.unet(2, width), (1, 3, 8192, 8192), 2, "16GiB",
        (1, 3, 64, 64), "24MiB", in_core=False,
    ),
    "segresnet-384": Case(
        _segresnet, (2, 4, 384, 384, 384), 3, "24GiB", (2, 4, 16, 16, 16), "24MiB",
    ),
}  # fmt: skip
OVERHEAD, INFER = "overhead", "infer"
INFER_LIMIT, SMALL_WIDTH = "8GiB", 1 / 8


# Models, images and steps -------------------------------------------------------------------------


def made(case: Case, report: script.Report, *, width: float = 1.0, dtype: Any = None) -> nn.Module:
    """A model of a case, with the same weights each time, where it is to train."""
    torch.manual_seed(0)
    model = case.make(width).to(dtype or torch.float32).to(_place(report))
    spatial = len(case.shape) - 2
    order = torch.channels_last if spatial == 2 else torch.channels_last_3d
    return model.to(memory_format=order) if report.arguments.cuda else model


def _place(report: script.Report) -> str:
    return "cuda" if report.arguments.cuda else "cpu"


def drawn(shape: tuple[int, ...], classes: int, *, sites: bool, dtype: str = "float32") -> Any:
    """Images in pinned memory, and a label for each of them, or for each of their sites."""
    x = torch.from_numpy(script.allocate_pinned(shape, dtype))
    labels = script.allocate_pinned((shape[0], *shape[2:]) if sites else (shape[0],), "int64")
    torch.manual_seed(1)
    for image in range(shape[0]):
        x[image].normal_()
    target = torch.from_numpy(labels)
    target.random_(0, min(classes, 3))
    return x, target


class Step:
    """A step of a model and a loss: gradients anew, the loss as a number."""

    def __init__(self, model: nn.Module, case: Case, report: script.Report, limit: Any) -> None:
        self.model, self.place = model, _place(report)
        self.limit, self.inside = limit, case.loss_inside and limit is not None
        loss = nn.CrossEntropyLoss()
        if limit is None:
            self.whole: Any = lambda x, t: loss(model(x), t)
        elif self.inside:
            self.whole = ooc.with_loss(model, loss, limit)
        else:
            ooc.limit(model, limit)
            self.whole = lambda x, t: loss(model(x), t)

    @property
    def plan(self) -> Any:
        return (self.whole if self.inside else self.model).forward.plan

    def __call__(self, x: Any, target: Any) -> float:
        self.model.zero_grad(set_to_none=True)
        if self.limit is None:
            x = x.to(self.place, non_blocking=True)
        if not self.inside:
            target = target.to(self.place, non_blocking=True)
        loss = self.whole(x, target)
        loss.backward()
        return float(loss.detach())

    def gradients(self) -> dict[str, Any]:
        return {name: each.grad for name, each in self.model.named_parameters()}


# What is measured ---------------------------------------------------------------------------------


class Memory:
    """The most that the card held in a block: by PyTorch's count, and what is the arena's own."""

    def __init__(self, report: script.Report) -> None:
        self.report, self.cuda = report, report.arguments.cuda

    def __enter__(self) -> Memory:
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *_: object) -> None:
        arena = get_device(self.report.arguments.device).arena
        self.arena = arena.held_bytes
        self.in_pytorch = arena.shared_bytes
        self.pytorch = torch.cuda.max_memory_allocated() if self.cuda else 0
        self.total = self.pytorch + self.arena - self.in_pytorch

    def figures(self) -> dict[str, int]:
        return {
            "max_memory_allocated": self.pytorch,
            "arena": self.arena,
            "of_the_arena_in_pytorch": self.in_pytorch,
            "total": self.total,
        }


def check_small(report: script.Report, name: str, case: Case) -> None:
    """Compare a small relative's loss, gradients and buffers with PyTorch's, in float64."""
    small = made(case, report, width=SMALL_WIDTH, dtype=torch.float64)
    sites = name != "resnet50"
    x, target = drawn(case.small_shape, min(case.classes, 3), sites=sites, dtype="float64")
    with precision(torch, tf32=False):
        theirs = Step(copy.deepcopy(small), case, report, None)
        expected_loss = theirs(x, target)
        ours = Step(small, case, report, case.small_limit)
        found_loss = ours(x, target)
    expected, door = theirs.gradients(), ours.gradients()
    largest = max(float(each.abs().max()) for each in expected.values())
    errors = {key: float((door[key] - expected[key]).abs().max()) / largest for key in expected}
    buffers = [
        float((one.double() - other.double()).abs().max())
        for one, other in zip(ours.model.buffers(), theirs.model.buffers(), strict=True)
    ]
    worst = max(errors, key=lambda key: np.nan_to_num(errors[key], nan=math.inf))
    report.check(
        f"{name}, small: contents",
        {
            "ok": errors[worst] <= TOLERANCE
            and abs(found_loss / expected_loss - 1) <= TOLERANCE
            and max(buffers, default=0.0) <= TOLERANCE
            and ours.plan.device_bytes <= ours.plan.memory_limit,
            "worst_gradient": worst,
            "worst_error_of_largest": errors[worst],
            "loss_error": abs(found_loss / expected_loss - 1),
            "worst_buffer": max(buffers, default=0.0),
            "pieces": ours.plan.pieces,
        },
    )


def their_step(report: script.Report, name: str, case: Case, x: Any, target: Any) -> Any:
    """Seconds and loss of PyTorch in core; None where it does not fit."""
    model = made(case, report, width=_width(report))
    with precision(torch, tf32=True), out_of_memory_as(torch, MemoryError):
        step = Step(model, case, report, None)
        with Memory(report) as memory:
            loss = step(x, target)
        seconds = time_repeats(lambda: step(x, target), report.synchronize)
    report.measure(f"{name}: PyTorch, seconds", seconds)
    report.measure(f"{name}: PyTorch, memory", memory.figures())
    return seconds, loss


def own_step(report: script.Report, name: str, case: Case, limit: str) -> Timing:
    """Seconds of the library's own step of the same network, its engines measured before."""
    assert case.own is not None
    net, loss = (
        networks.networks.resnet50(case.small_shape[0], 64, width=SMALL_WIDTH, classes=3)
        if report.quick
        else case.own()
    )
    inputs = networks.drawn(net)
    with ooc_cudnn.settings(memory_limit=limit):
        networks.place_parameters(net)
        step = net.training_step(loss)
        if report.arguments.tune and not report.quick:
            networks.tune(report, f"{name}: own", functools.partial(step.tune, **inputs))
        step(**inputs)
        seconds = time_repeats(lambda: step(**inputs), report.synchronize)
    report.measure(f"{name}: own, plan", networks.figures_of(step.plan))
    report.measure(f"{name}: own, seconds", seconds)
    return seconds


def _width(report: script.Report) -> float:
    return SMALL_WIDTH if report.quick else 1.0


def measure(report: script.Report, name: str, case: Case) -> None:
    """Time PyTorch, the library's own step, and the model under its limit."""
    shape = case.small_shape if report.quick else case.shape
    classes = min(case.classes, 3) if report.quick else case.classes
    limit = report.arguments.limit or (case.small_limit if report.quick else case.limit)
    if report.quick:
        limit = "24MiB"
    x, target = drawn(shape, classes, sites=name != "resnet50")
    theirs = library = None
    if case.in_core or report.quick:
        try:
            theirs = their_step(report, name, case, x, target)
        except MemoryError as error:
            report.note(f"{name}: PyTorch did not run: {error}")
        _release(report)
    if case.own is not None:
        library = own_step(report, name, case, limit)
        _release(report)
    model = made(case, report, width=_width(report))
    with precision(torch, tf32=True):
        step = Step(model, case, report, limit)
        if report.arguments.tune and not report.quick:
            tuned, arguments = (step.whole, (x, target)) if step.inside else (model, (x,))
            networks.tune(report, name, functools.partial(ooc.tune, tuned, *arguments))
        begin = time.perf_counter()
        loss = step(x, target)
        report.measure(f"{name}: first step, with its plan", time.perf_counter() - begin)
        begin = time.perf_counter()
        step(x, target)
        report.measure(f"{name}: second step", time.perf_counter() - begin)
        with Memory(report) as memory:
            seconds = time_repeats(lambda: step(x, target), report.synchronize)
        with ooc_cudnn.profile() as recorded:
            step(x, target)
    plan = step.plan
    report.measure(f"{name}: seconds", seconds)
    report.measure(f"{name}: plan", networks.figures_of(plan))
    report.measure(f"{name}: explain", plan.explain().splitlines(), spoken="kept")
    report.measure(
        f"{name}: halves, profiled",
        [
            {"seconds": call.seconds} | {each: call.trace.busy_seconds(each) for each in STREAMS}
            for call in recorded.calls
        ],
    )
    report.measure(f"{name}: memory", memory.figures())
    limit_bytes = plan.memory_limit
    report.claim(f"{name}: total memory / limit", memory.total / limit_bytes, "<=", 1.0)
    report.claim(f"{name}: predicted / measured", plan.seconds / seconds.median)
    finite = all(bool(torch.isfinite(each).all()) for each in step.gradients().values())
    check: dict[str, Any] = {"ok": finite and math.isfinite(loss), "loss": loss, "finite": finite}
    if theirs is not None:
        error = abs(loss - theirs[1]) / abs(theirs[1])
        check |= {"loss_error": error, "ok": check["ok"] and error <= LOSS_TOLERANCE}
        ratio = seconds.median / theirs[0].median
        relation = ("<=", case.bound) if case.bound else ("", None)
        report.claim(f"{name}: times PyTorch in core", ratio, *relation)
    report.check(f"{name}: contents", check)
    if library is not None:
        ratio = seconds.median / library.median
        report.claim(f"{name}: times the library's own step", ratio, "<=", 1.03)


def _release(report: script.Report) -> None:
    gc.collect()
    release_device(report.arguments.device)
    if report.arguments.cuda:
        torch.cuda.empty_cache()


class Nothing(torch.autograd.Function):
    """Scores and gradients that nobody computes: what is left is what PyTorch takes for a call."""

    @staticmethod
    def forward(ctx: Any, shape: tuple[int, ...], *parameters: torch.Tensor) -> torch.Tensor:
        """Scores of a shape."""
        ctx.save_for_backward(*parameters)
        return parameters[0].new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """Gradients of all parameters."""
        return None, *map(torch.empty_like, ctx.saved_tensors)


def overhead(report: script.Report) -> None:
    """A small step of ResNet-50 in core: the door beside the library's own step, and PyTorch.

    Beside them a model of the same parameters that computes nothing: gradients to None, the loss,
    and autograd handing out gradients are PyTorch's, however a model is computed. And the door
    again, where the user keeps all outputs: they lie at other addresses then.
    """
    case = CASES["resnet50"]
    width = _width(report)
    classes = 1000 if width == 1 else 3
    batch, side = 8, 32
    net, own_loss = networks.networks.resnet50(batch, side, width=width, classes=classes)
    place, inputs = _place(report), networks.drawn(net)
    if report.arguments.cuda:
        inputs = {key: report.to_device(each) for key, each in inputs.items()}
    x, target = drawn((batch, 3, side, side), classes, sites=False)
    x, target = x.to(place), target.to(place)
    limit = "4GiB"
    # by a machine that is named, nothing is timed before a plan is settled: both are in core
    chosen = {"memory_limit": limit, "machine": report.arguments.machine}
    with precision(torch, tf32=True), ooc_cudnn.settings(**chosen):
        networks.place_parameters(net)
        library = net.training_step(own_loss)
        model = made(case, report, width=width)
        eager = Step(copy.deepcopy(model), case, report, None)
        bare = copy.deepcopy(model)
        bare.forward = lambda _: Nothing.apply((batch, classes), *bare.parameters())
        nothing = Step(bare, case, report, None)
        door = Step(model, case, report, limit)
        keeper, kept = Step(copy.deepcopy(eager.model), case, report, limit), list[Any]()
        keeper.model.register_forward_hook(lambda _, __, scores: kept.append(scores.detach()))
        ways: dict[str, Callable[[], Any]] = {
            "own": lambda: library(**inputs),
            "door": lambda: door(x, target),
            "PyTorch": lambda: eager(x, target),
        }
        expected, door_loss = eager(x, target), door(x, target)
        count = 3 if report.quick else OVERHEAD_STEPS
        timings = interleave(ways, report.synchronize, repeats=count, warmup=3)
        beside: dict[str, Callable[[], Any]] = {
            "nothing": lambda: nothing(x, target),
            "door, outputs kept": lambda: keeper(x, target),
        }
        timings |= interleave(beside, report.synchronize, repeats=count, warmup=3)
        for name, timing in timings.items():
            report.measure(f"{OVERHEAD}: {name}, seconds", timing, spoken=str(timing))
        beyond = timings["door"].median - timings["own"].median
        report.claim(f"{OVERHEAD}: door beyond own", beyond * 1e3, unit="ms")
        takes = timings["nothing"].median
        report.claim(f"{OVERHEAD}: what PyTorch takes", takes * 1e3, unit="ms")
        for name in ("door", "door, outputs kept"):
            own_part = timings[name].median - timings["own"].median - takes
            report.claim(
                f"{OVERHEAD}: {name}, beyond own and what PyTorch takes",
                own_part * 1e3,
                "<=",
                OVERHEAD_SECONDS * 1e3,
                "ms",
            )
        ratio = timings["door"].median / timings["PyTorch"].median
        report.claim(f"{OVERHEAD}: door / PyTorch", ratio)
    error = abs(door_loss / expected - 1)
    report.check(f"{OVERHEAD}: contents", {"ok": error <= LOSS_TOLERANCE, "loss_error": error})


class Widened(nn.Module):
    """A segmentation network of stored images: integers in, scores out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.float() / 255)


def infer(report: script.Report) -> None:
    """Labels of a whole image: from a file of uint8 to a file of uint8."""
    side = 128 if report.quick else report.arguments.side
    limit = "24MiB" if report.quick else report.arguments.limit or INFER_LIMIT
    torch.manual_seed(0)
    model = Widened(torch_models.unet(3, _width(report))).eval().to(_place(report))
    if report.arguments.cuda:
        model = model.to(memory_format=torch.channels_last)
    with tempfile.TemporaryDirectory(dir=script.folder_of(report.arguments)) as folder:
        shape = (1, 3, side, side)
        path, to = os.path.join(folder, "image.npy"), os.path.join(folder, "labels.npy")
        image = np.lib.format.open_memmap(path, "w+", "uint8", shape)
        random = np.random.default_rng(0)
        for row in range(0, side, 1024):
            part = image[:, :, row : row + 1024]
            part[...] = random.integers(0, 256, part.shape, np.uint8)
        image.flush()
        with torch.no_grad():  # untrained, it would see one class
            part = torch.from_numpy(np.array(image[..., :128, :128]))
            scores = model(part.to(_place(report)))
            model.model.head.bias -= scores.mean((0, 2, 3))
        labels = np.lib.format.open_memmap(to, "w+", "uint8", (1, 1, side, side))
        run = functools.partial(
            ooc.infer, model, image, out=labels, memory_limit=limit, reduce="argmax"
        )
        with precision(torch, tf32=True):
            begin = time.perf_counter()
            run()
            report.measure(f"{INFER}: first, with its plan", time.perf_counter() - begin)
            with Memory(report) as memory, ooc_cudnn.profile() as recorded:
                run()
            calls = recorded.calls  # a block each
            seconds = time_repeats(run, report.synchronize)
            report.measure(f"{INFER}: seconds, planned anew each time", seconds)
            whole = sum(call.seconds for call in calls)
            predicted = sum(call.plan.seconds for call in calls)
            report.measure(f"{INFER}: blocks", len(calls))
            report.measure(f"{INFER}: blocks, seconds", whole)
            busy = {each: sum(call.trace.busy_seconds(each) for call in calls) for each in STREAMS}
            report.measure(f"{INFER}: streams, profiled", busy)
            report.measure(f"{INFER}: memory", memory.figures())
            report.measure(f"{INFER}: pixels per second", side * side / seconds.median)
            report.claim(f"{INFER}: total memory / limit",
                         memory.total / calls[-1].plan.memory_limit, "<=", 1.0)  # fmt: skip
            report.claim(f"{INFER}: predicted / measured", predicted / seconds.median)
            share = max(busy.values()) / seconds.median
            report.claim(f"{INFER}: busiest stream / whole call", share, ">=", 0.8)
        _check_labels(report, model, image, labels)
        del image, labels


def _check_labels(report: script.Report, model: nn.Module, image: Any, labels: Any) -> None:
    """Compare labels with PyTorch's, of a window whose border no site far inside can see."""
    side, edge = image.shape[-1], 192  # 188 rows are seen from a site of a U-Net of five levels
    window = side if side <= 1024 else 1024
    first = 0 if side <= 1024 else side // 2 - 512 - (side // 2) % 16
    part = slice(first, first + window)
    with torch.no_grad(), precision(torch, tf32=True):
        x = torch.from_numpy(np.ascontiguousarray(image[:, :, part, part]))
        expected = model(x.to(next(model.parameters()).device)).argmax(1, keepdim=True).cpu()
    stored = torch.from_numpy(np.ascontiguousarray(labels[:, :, part, part]))
    inner = slice(None) if window == side else slice(edge, -edge)
    apart = (stored != expected)[..., inner, inner].double().mean().item()
    kinds = len(torch.unique(stored))
    report.check(
        f"{INFER}: contents",
        {"ok": apart <= LABELS_APART and kinds > 1, "apart": apart, "kinds": kinds},
    )


# The command line ---------------------------------------------------------------------------------


def body(report: script.Report) -> None:
    chosen = report.arguments.case or (*CASES, OVERHEAD, INFER)
    if report.arguments.case:
        report.file = "_".join((NAME, *chosen))
    device = get_device(report.arguments.device)
    host = held_bytes(device) + available_host_bytes() - networks.HOST_RESERVE_BYTES
    more: dict[str, Any] = {"allow_tf32": True}
    if not report.quick:
        # by a machine that is named, plans would not follow what is measured
        more |= {"host_memory_limit": host}
        more |= {"machine": None} if report.arguments.tune else {}
    stored = script.no_stored_engines() if report.arguments.tune else nullcontext()
    with stored, ooc_cudnn.settings(**more):
        for name in chosen:
            try:
                if name in (OVERHEAD, INFER):
                    {OVERHEAD: overhead, INFER: infer}[name](report)
                else:
                    if report.arguments.small:
                        check_small(report, name, CASES[name])
                        _release(report)
                    measure(report, name, CASES[name])
            except (Unavailable, MemoryError, ooc_cudnn.OocError) as error:
                if not report.arguments.cuda:
                    raise
                report.note(f"{name}: did not run: {error}")
                report.check(f"{name}: contents", {"ok": False, "reason": str(error)})
            report.write()
            _release(report)


def options(parser: argparse.ArgumentParser) -> None:
    cases = (*CASES, OVERHEAD, INFER)
    parser.add_argument("--case", action="append", choices=cases, help="by default all")
    parser.add_argument("--limit", help="in place of a case's own")
    parser.add_argument("--side", type=int, default=16384, help="of the image that infer takes")
    parser.add_argument(
        "--small", action=argparse.BooleanOptionalAction, default=True,
        help="compare a small relative in float64 before a case is timed: 10 s and more on a card",
    )  # fmt: skip
    networks.tune_options(parser)


main = functools.partial(script.run, NAME, body, __doc__, more=options)

if __name__ == "__main__":
    sys.exit(main())
