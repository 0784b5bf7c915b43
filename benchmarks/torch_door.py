"""What the door for PyTorch takes in a small step in core, and labels of a whole image.

TF32 and channels-last. Training steps of whole models are in `benchmarks.amp`; the step of
ResNet-50 here lies beside the library's own and PyTorch's. Labels go from file to file.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from benchmarks import networks
from benchmarks.amp import drawn
from benchmarks.amp_networks import CASES, made
from examples import models
from ooc_cudnn.bench import script
from ooc_cudnn.bench.placing import release_device
from ooc_cudnn.bench.timing import interleave, time_repeats
from ooc_cudnn.bench.torch_setup import precision
from ooc_cudnn.bench.torch_step import Data, Memory, Step, Way
from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.units import parse_limit

NAME = "torch_door"
#: Of the loss in TF32, whose rounding is averaged.
LOSS_TOLERANCE = 1e-2
#: Of the sites of an image, those whose labels rounding may change.
LABELS_APART = 1e-3
#: What a step in core may take more than the library's own.
OVERHEAD_SECONDS = 1e-3
OVERHEAD_STEPS = 30
OVERHEAD, INFER = "overhead", "infer"
OVERHEAD_LIMIT, INFER_LIMIT, SMALL_WIDTH = "4GiB", "8GiB", 1 / 8


def _place(report: script.Report) -> str:
    return "cuda" if report.arguments.cuda else "cpu"


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
    case, batch, side = CASES["resnet50"], 8, 32
    width, classes = (SMALL_WIDTH, 3) if report.quick else (1.0, case.classes)
    net, own_loss = networks.networks.resnet50(batch, side, width=width, classes=classes)
    place, inputs = _place(report), networks.drawn(net)
    if report.arguments.cuda:
        inputs = {key: report.to_device(each) for key, each in inputs.items()}
    pinned = drawn(case, (batch, 3, side, side), classes)
    data = Data((pinned.inputs[0].to(place),), pinned.target.to(place))
    limit = int(parse_limit(OVERHEAD_LIMIT, name="limit") or 0)
    # by a machine that is named, nothing is timed before a plan is settled: both are in core
    chosen = {"memory_limit": limit, "machine": report.arguments.machine}
    with precision(torch, tf32=True), ooc_cudnn.settings(**chosen):
        networks.place_parameters(net)
        library = net.training_step(own_loss)
        model = made(case, is_tiny=report.quick, place=place)
        how = functools.partial(
            Step, way=Way(), dtype="tf32", place=place, criterion=nn.CrossEntropyLoss()
        )
        eager = how(copy.deepcopy(model), limit=None)
        bare = copy.deepcopy(model)
        bare.forward = lambda _: Nothing.apply((batch, classes), *bare.parameters())
        nothing = how(bare, limit=None)
        door = how(model, limit=limit)
        keeper, kept = how(copy.deepcopy(eager.model), limit=limit), list[Any]()
        keeper.model.register_forward_hook(lambda _, __, scores: kept.append(scores.detach()))
        bound = functools.partial
        ways = {"own": bound(library, **inputs), "door": bound(door, data)}
        ways["PyTorch"] = bound(eager, data)
        expected, door_loss = eager(data), door(data)
        count = 3 if report.quick else OVERHEAD_STEPS
        timings = interleave(ways, report.synchronize, repeats=count, warmup=3)
        beside = {"nothing": bound(nothing, data), "door, outputs kept": bound(keeper, data)}
        timings |= interleave(beside, report.synchronize, repeats=count, warmup=3)
        for name, timing in timings.items():
            report.measure(f"{OVERHEAD}: {name}, seconds", timing, spoken=str(timing))
        beyond = timings["door"].median - timings["own"].median
        report.claim(f"{OVERHEAD}: door beyond own", beyond * 1e3, unit="ms")
        takes = timings["nothing"].median
        report.claim(f"{OVERHEAD}: what PyTorch takes", takes * 1e3, unit="ms")
        for name in ("door", "door, outputs kept"):
            own_part = timings[name].median - timings["own"].median - takes
            claimed = f"{OVERHEAD}: {name}, beyond own and what PyTorch takes"
            report.claim(claimed, own_part * 1e3, "<=", OVERHEAD_SECONDS * 1e3, "ms")
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
    model = Widened(models.unet(3, SMALL_WIDTH if report.quick else 1.0)).eval().to(_place(report))
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
            memory = Memory(report.arguments.device)
            memory.begin()
            with ooc_cudnn.profile() as recorded:
                run()
            held = memory.figures()
            calls = recorded.calls  # a block each
            seconds = time_repeats(run, report.synchronize)
            report.measure(f"{INFER}: seconds, planned anew each time", seconds)
            whole = sum(call.seconds for call in calls)
            predicted = sum(call.plan.seconds for call in calls)
            report.measure(f"{INFER}: blocks", len(calls))
            report.measure(f"{INFER}: blocks, seconds", whole)
            busy = {each: sum(call.trace.busy_seconds(each) for call in calls) for each in STREAMS}
            report.measure(f"{INFER}: streams, profiled", busy)
            report.measure(f"{INFER}: memory", held)
            report.measure(f"{INFER}: pixels per second", side * side / seconds.median)
            report.claim(f"{INFER}: total memory / limit",
                         held["total"] / calls[-1].plan.memory_limit, "<=", 1.0)  # fmt: skip
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
    chosen = report.arguments.case or (OVERHEAD, INFER)
    if report.arguments.case:
        report.file = "_".join((NAME, *chosen))
    more: dict[str, Any] = {"allow_tf32": True}
    if not report.quick:
        host = networks.host_limit(report.arguments.device)
        # by a machine that is named, plans would not follow what is measured
        more |= {"host_memory_limit": host, "machine": None}
    with script.no_stored_engines(), ooc_cudnn.settings(**more):
        for name in chosen:
            {OVERHEAD: overhead, INFER: infer}[name](report)
            report.write()
            release_device(report.arguments.device)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", action="append", choices=(OVERHEAD, INFER), help="by default all")
    parser.add_argument("--limit", help="in place of what infer has")
    parser.add_argument("--side", type=int, default=16384, help="of the image that infer takes")


main = functools.partial(script.run, NAME, body, __doc__, more=options)

if __name__ == "__main__":
    sys.exit(main())
