"""Whole training steps under a memory limit, against PyTorch on the same card.

VGG-16 (also by batch: the ooc_cuDNN paper's figure 12) and ResNet-50, VGG-16's feature layers on
one image, a 3-D U-Net on one volume; and GoogLeNet, DenseNet-121 and U-Nets under 0.4 of what
keeping everything takes. Parameters lie on the device, within the limit, and so do gradients;
images come from pinned memory in each step. PyTorch runs with `cudnn.benchmark`; so do we, by
`TrainingStep.tune`, unless `--no-tune` is asked for. Before anything is timed, a small relative of
each network is compared with PyTorch in float64, under a limit that it does not fit.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks.contenders import torch_networks
from benchmarks.contenders.torch_ways import WAYS
from examples import twins
from ooc_cudnn import Network, networks
from ooc_cudnn.bench import script
from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.contents import fill
from ooc_cudnn.bench.placing import available_host_bytes, release_device
from ooc_cudnn.bench.timing import LONG_SECONDS, Timing, time_repeats
from ooc_cudnn.bench.torch_setup import load_torch, out_of_memory_as, precision
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.devices.engines import Measurement
from ooc_cudnn.errors import HostOutOfMemoryError
from ooc_cudnn.functions.tune.tune import NothingToTuneError
from ooc_cudnn.memory.pinned import held_bytes
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.lowering.device_gradients import SETS

NAME = "networks"
#: Of the largest gradient, and of the loss, in float64: sums in another order, through all layers.
TOLERANCE = 1e-8
#: Of the loss in TF32, whose rounding is averaged over a batch, a slide or a volume.
LOSS_TOLERANCE = 1e-2
#: How far predicted seconds may be off.
PREDICTION = 0.1
HOST_RESERVE_BYTES = 8 * 2**30
#: Where PyTorch goes through the batch in parts: as many images as keep the card busy.
MICRO_BATCH = 128
Made = tuple[Any, Any]


def feature_layers(side: int, height: int, dtype: str = "float32", width: float = 1.0) -> Made:
    """VGG-16's feature layers on one image, and their distance to given maps."""
    net = Network()
    x = net.input("images", (1, 3, height, side), dtype)
    for group, channels in enumerate((64, 128, 256, 512, 512), 1):
        for number in range(1, 3 if group < 3 else 4):
            wide = max(1, round(channels * width))
            x = net.convolution(x, wide, window=3, padding=1, name=f"conv{group}_{number}")
            x = net.activation(x)
        x = net.pooling(x, window=2, name=f"pool{group}")
    return net, net.mean_squared_error(x, net.input("labels", x.shape, dtype), name="loss")


@dataclass(frozen=True)
class Case:
    """A network, what is asked of it, and PyTorch's twin.

    Attributes
    ----------
    make, small : callable
        At full size, and the relative in float64: () -> (net, loss).
    twin : callable
    bounds : mapping
        Memory limit to how many times as long as what it is compared with a step may take; None
        where nothing is claimed.
    small_limit : str
    beside : callable or None
        The network that PyTorch runs where it cannot run this one.
    against_forward : bool
        Whether steps are held to our own forward: PyTorch cannot run them, which it takes 100 s to
        find out (131 GiB on an H200, and no room for 16 GiB more).
    micro_batches : bool
        Whether PyTorch may take its batch in parts.
    ways : tuple of str
        PyTorch's, of `WAYS`; the first is what others are compared with.
    """

    make: Callable[[], Made]
    small: Callable[[], Made]
    twin: Any
    bounds: Mapping[str, float | None]
    small_limit: str
    beside: Callable[[], Made] | None = None
    against_forward: bool = False
    micro_batches: bool = False
    ways: tuple[str, ...] = ("in core",)


SMALL: dict[str, Any] = {"dtype": "float64", "classes": 3}
#: Batches of figure 12 beside the largest.
VGG16_BATCHES = (32, 64, 128, 256, 512)


def _small_vgg16() -> Made:
    return networks.vgg16(2, 32, width=1 / 16, dropout=0, **SMALL)


CASES = {
    "vgg16": Case(
        lambda: networks.vgg16(1024, dropout=0),
        _small_vgg16,
        twins.vgg(*twins.VGG16),
        {"16GiB": 1.05, "8GiB": 1.02},
        "2MiB",
        micro_batches=True,
    ),
    "resnet50": Case(
        lambda: networks.resnet50(768),
        lambda: networks.resnet50(3, 64, width=1 / 16, **SMALL),
        twins.resnet(3, 4, 6, 3),
        {"64GiB": 1.0, "32GiB": 1.0, "24GiB": 1.25, "16GiB": 1.0, "8GiB": None, "4GiB": None},
        "2MiB",
        ways=tuple(WAYS),
    ),
    "features": Case(
        lambda: feature_layers(16384, 16384),
        lambda: feature_layers(64, 128, "float64", 1 / 16),
        twins.features,
        {"16GiB": 4.5},
        "768KiB",
        against_forward=True,
    ),
    "unet_3d": Case(
        lambda: networks.unet_3d(1, 512),
        lambda: networks.unet_3d(1, 16, stages=4, width=1 / 16, **SMALL),
        twins.unet_3d,
        {"100GiB": 11.0, "40GiB": 18.0},
        "1MiB",
        beside=lambda: networks.unet_3d(1, 256),
    ),
    # under 0.4 of the memory that keeping everything takes
    "googlenet": Case(
        lambda: networks.googlenet(128, dropout=0),
        lambda: networks.googlenet(2, 128, width=1 / 16, dropout=0, **SMALL),
        twins.googlenet,
        {"0.83GiB": 1.1},
        "1MiB",
    ),
    "densenet121": Case(
        lambda: networks.densenet121(128),
        lambda: networks.densenet121(3, 64, width=1 / 16, **SMALL),
        twins.densenet121,
        {"4.2GiB": 1.1},
        "1MiB",
    ),
    "unet": Case(
        lambda: networks.unet(8, dropout=0),
        lambda: networks.unet(1, 188, width=1 / 16, dropout=0, **SMALL),
        twins.unet,
        {"2.7GiB": 1.1},
        "6MiB",
    ),
    "unet_3d-128": Case(
        lambda: networks.unet_3d(2),
        lambda: networks.unet_3d(2, 16, stages=4, width=1 / 16, **SMALL),
        twins.unet_3d,
        {"3.8GiB": 1.1},
        "1MiB",
    ),
    **{
        f"vgg16-n{batch}": Case(
            functools.partial(networks.vgg16, batch, dropout=0),
            _small_vgg16,
            twins.vgg(*twins.VGG16),
            {"16GiB": None},
            "2MiB",
            micro_batches=True,
            ways=("in core", "checkpoint", "save_on_cpu"),
        )
        for batch in VGG16_BATCHES
    },
}


def host_limit(name: str) -> int:
    """Bytes of the host that a device may pin: those that it has, and free ones but for some."""
    return held_bytes(get_device(name)) + available_host_bytes() - HOST_RESERVE_BYTES


def drawn(net: Network) -> dict[str, Any]:
    """Inputs in pinned memory: normal numbers, and labels that are one of two classes."""
    inputs = {}
    for name in ("images", "labels"):
        tensor = net.graph.tensors[name]
        array = inputs[name] = script.allocate_pinned(tensor.shape, tensor.dtype)
        if tensor.dtype == "float32":
            fill(array)
        elif tensor.is_floating:
            array[...] = np.random.default_rng(1).standard_normal(tensor.shape)
        else:
            array[...] = np.random.default_rng(2).integers(0, 2, tensor.shape, np.int8)
    return inputs


def place_parameters(net: Network) -> dict[str, Any]:
    """Move parameters to the device, within the limit; return what they are, on the host."""
    kept = {}
    for name in net.parameters:
        kept[name] = net.parameters[name]
        net.parameters[name] = ooc_cudnn.empty(kept[name].shape, kept[name].dtype)
        ooc_cudnn.memcpy(net.parameters[name], kept[name])
    return kept


def check_small(report: script.Report, name: str, case: Case) -> None:
    """Compare the small relative's loss and every gradient with PyTorch's, in float64."""
    net, loss = case.small()
    inputs, weights = drawn(net), {key: net.parameters[key] for key in net.parameters}
    twin = torch_networks.TorchNetwork(load_torch(cuda=False), case.twin, weights, cuda=False)
    expected_loss = twin.step(*inputs.values())
    expected = twin.gradients()
    twin.release()
    largest = max(float(np.abs(gradient).max()) for gradient in expected.values())
    for policy in ("offload",) if report.quick else ("offload", "best"):
        title = f"{name}, small, {policy}"
        with ooc_cudnn.settings(memory_limit=case.small_limit):
            step = net.training_step(loss, policy=policy)
            step(**inputs)
            step_loss, seconds, call = one_step(step, inputs)
        errors = {key: float(np.abs(step.gradients[key] - expected[key]).max()) for key in expected}
        worst = max(errors, key=lambda key: np.nan_to_num(errors[key], nan=math.inf))
        loss_error = abs(step_loss - expected_loss) / abs(expected_loss)
        report.check(
            f"{title}: contents",
            {
                "ok": set(errors) == set(step.gradients)
                and errors[worst] <= TOLERANCE * largest
                and loss_error <= TOLERANCE,
                "gradients": len(errors),
                "worst_gradient": worst,
                "worst_error_of_largest": errors[worst] / largest,
                "loss_error": loss_error,
            },
        )
        account(report, title, call, Timing((seconds,)))


def one_step(step: Any, inputs: Mapping[str, Any]) -> tuple[float, float, Any]:
    """Loss and seconds of a step, and the step as it was recorded."""
    with ooc_cudnn.profile() as recorded:
        begin = time.perf_counter()
        loss = step(**inputs)
        seconds = time.perf_counter() - begin
    (call,) = recorded.calls
    return loss, seconds, call


def figures_of(plan: NetworkPlan) -> dict[str, Any]:
    """What a record keeps of a step's plan."""
    names = (
        "policy", "micro_batches", "bands", "pieces", "seconds", "compute_seconds",
        "copy_in_seconds", "copy_out_seconds", "bytes_in", "bytes_out", "device_bytes",
        "host_bytes", "memory_limit", "gradient_bytes",
    )  # fmt: skip
    return {each: getattr(plan, each) for each in names}


def account(report: script.Report, name: str, call: Any, seconds: Timing) -> None:
    """Keep what a step took, beside what its plan said; its peak is to be exact."""
    plan, held = call.plan, get_device(report.arguments.device).arena.array_bytes
    report.measure(f"{name}: plan", figures_of(plan))
    busy = {each: call.trace.busy_seconds(each) for each in STREAMS}
    report.measure(f"{name}: streams, profiled", busy)
    report.measure(f"{name}: seconds", seconds)
    report.claim(f"{name}: predicted / measured", plan.seconds / seconds.median)
    peak = call.peak_device_bytes
    before = plan.gradient_bytes // SETS  # gradients of the call before, which are gone now
    report.check(
        f"{name}: peak",
        {
            "ok": peak == plan.device_bytes + held + before and peak <= plan.memory_limit,
            "peak": peak, "planned": plan.device_bytes, "arrays": held, "gradients_before": before,
            "limit": plan.memory_limit,
        },
    )  # fmt: skip


class Theirs:
    """What PyTorch took, in core, and what came out; None where it could not run."""

    def __init__(self, report: script.Report, name: str, case: Case) -> None:
        self.seconds: float | None = None
        self.loss: float | None = None
        net, _ = (case.beside or case.make)()
        inputs, weights = drawn(net), {key: net.parameters[key] for key in net.parameters}
        ways: dict[str, int | None] = dict.fromkeys(report.arguments.way or case.ways)
        if case.micro_batches:
            ways["micro-batches"] = MICRO_BATCH
        for way, micro in ways.items():
            title = f"{name}: {way}"
            try:
                loss, seconds = self._timed(report, case, weights, inputs, title, micro)
            except (Unavailable, MemoryError) as error:
                report.note(f"{name}: PyTorch, {way}, did not run: {error}")
                continue
            if way == "in core":
                self.seconds = seconds.median
                self.loss = None if case.beside else loss
            elif self.loss is not None:
                error = abs(loss - self.loss) / abs(self.loss)
                report.check(f"{title}: contents", {"ok": error <= LOSS_TOLERANCE, "error": error})
            report.write()  # what comes next may take long
        release_device(report.arguments.device)

    def _timed(
        self, report: script.Report, case: Case, weights: Any, inputs: Any, name: str,
        micro: int | None,
    ) -> tuple[float, Timing]:  # fmt: skip
        torch, way = load_torch(cuda=True), WAYS.get(name.rpartition(": ")[2], WAYS["in core"])
        with (
            precision(torch, tf32=not report.arguments.strict_float32),
            out_of_memory_as(torch, MemoryError),
            way.twin(case.twin) as twin,
        ):
            network = torch_networks.TorchNetwork(torch, twin, weights, cuda=True)
            try:
                loss = network.step(*inputs.values(), micro=micro)
                torch.cuda.reset_peak_memory_stats()
                run = functools.partial(network.step, *inputs.values(), micro=micro)
                seconds = time_repeats(run, report.synchronize)
                report.measure(f"{name}: PyTorch, seconds", seconds)
                report.measure(f"{name}: PyTorch, peak", torch.cuda.max_memory_allocated())
            finally:
                network.release()
        return loss, seconds


def measure(report: script.Report, name: str, case: Case) -> None:
    """Time PyTorch, and then the library under each of the case's limits."""
    theirs = None if case.against_forward else Theirs(report, name, case)
    if report.arguments.pytorch_alone:
        return
    with script.no_stored_engines():  # what is measured under one limit serves the next
        _measure_ours(report, name, case, theirs)


def _measure_ours(report: script.Report, name: str, case: Case, theirs: Theirs | None) -> None:
    for limit in report.arguments.limit or case.bounds:
        bound = case.bounds[limit]
        title = f"{name}, {limit}"
        net, loss = case.make()
        inputs, host = drawn(net), host_limit(report.arguments.device)
        chosen: dict[str, Any] = {"memory_limit": limit, "host_memory_limit": host}
        chosen["allow_tf32"] = not report.arguments.strict_float32
        if report.arguments.tune:
            # by a machine that is named, plans would not follow what is measured
            chosen["machine"] = None
        with ooc_cudnn.settings(**chosen):
            place_parameters(net)
            step = net.training_step(loss)
            if report.arguments.tune:
                tune(report, title, functools.partial(step.tune, **inputs))
            begin = time.perf_counter()
            try:
                first_loss = step(**inputs)
            except (HostOutOfMemoryError, ooc_cudnn.PlanInfeasibleError) as error:
                report.note(f"{title}: did not run: {error}")
                report.check(f"{title}: contents", {"ok": False, "reason": str(error)})
                continue
            report.measure(f"{title}: first step, with its plan", time.perf_counter() - begin)
            _, once, did = one_step(step, inputs)
            if once < LONG_SECONDS:
                seconds = time_repeats(functools.partial(step, **inputs), report.synchronize)
            else:
                seconds = Timing((once,))
            account(report, title, did, seconds)
            off = abs(did.plan.seconds / seconds.median - 1)
            report.claim(f"{title}: prediction off by", off, "<=", PREDICTION)
            against = theirs.seconds if theirs else _forward(report, title, net, inputs)
        finite = all(bool(np.isfinite(gradient).all()) for gradient in step.gradients.values())
        check = {"ok": finite and math.isfinite(first_loss), "loss": first_loss, "finite": finite}
        if theirs and theirs.loss is not None:
            error = abs(first_loss - theirs.loss) / abs(theirs.loss)
            check |= {"loss_error": error, "ok": check["ok"] and error <= LOSS_TOLERANCE}
        report.check(f"{title}: contents", check)
        if against is not None:
            what = "our own forward" if case.against_forward else "PyTorch in core"
            if case.beside is not None:
                what += " on an eighth"
            relation = "" if bound is None else "<="
            report.claim(f"{title}: times {what}", seconds.median / against, relation, bound)
        report.write()  # what comes next may take long
        del net, step, inputs
        release_device(report.arguments.device)


def tune(report: script.Report, name: str, measure: Callable[..., list[Measurement]]) -> None:
    """Measure the engines of a step, for so long as is asked for; keep what was found."""
    begin = time.perf_counter()
    try:
        measurements = measure(seconds=report.arguments.tune_seconds)
    except NothingToTuneError as error:
        report.note(f"{name}: not tuned: {error}")
        return
    seconds = time.perf_counter() - begin
    tables = {
        f"{each.work.sized}": [
            [option.name, option.seconds, option.workspace_bytes] for option in each.options
        ]
        for each in measurements
    }
    report.measure(f"{name}: engines", tables, spoken=f"{len(tables)} convolutions")
    report.measure(f"{name}: tuning, with its plans", seconds)


def _forward(report: script.Report, name: str, net: Network, inputs: Mapping[str, Any]) -> float:
    """Seconds of inference up to the last pooling, under the limit of the step, once planned."""
    last = net.graph.tensors["pool5"]
    out = script.allocate_pinned(last.shape)
    with ooc_cudnn.profile() as recorded:
        for _ in range(4):  # it is planned anew each time, which is not what is asked
            net.forward(last, images=inputs["images"], out=out)
    timing = Timing(tuple(call.seconds for call in recorded.calls[1:]))
    report.measure(f"{name}: forward, seconds", timing)
    return timing.median


def body(report: script.Report) -> None:
    chosen = report.arguments.case or tuple(CASES)
    for limit in report.arguments.limit or ():
        if any(limit not in CASES[name].bounds for name in chosen):
            raise ValueError(
                f"--limit {limit} is not one of every case that is run: name a case by --case"
            )
    if report.arguments.case:
        part = ("pytorch",) * report.arguments.pytorch_alone
        part += ("strict",) * report.arguments.strict_float32
        report.file = "_".join((NAME, *chosen, *(report.arguments.limit or ()), *part))
    checked = set[Any]()  # batches of one network have one small relative
    for name in chosen:
        if not report.arguments.pytorch_alone and CASES[name].small not in checked:
            check_small(report, name, CASES[name])
            checked.add(CASES[name].small)
        release_device(report.arguments.device)
        if not report.quick:
            measure(report, name, CASES[name])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", action="append", choices=CASES, help="by default all")
    parser.add_argument("--limit", action="append", help="of those of a case; by default all")
    parser.add_argument("--way", action="append", choices=WAYS, help="PyTorch's; by default all")
    parser.add_argument("--strict-float32", action="store_true", help="of ours and of PyTorch's")
    parser.add_argument("--pytorch-alone", action="store_true", help="time PyTorch's ways alone")
    parser.add_argument(
        "--tune", action=argparse.BooleanOptionalAction, default=True,
        help="measure cuDNN's engines for each step of the library before it is timed",
    )  # fmt: skip
    parser.add_argument("--tune-seconds", type=float, default=60.0, help="for measuring, at most")


main = functools.partial(script.run, NAME, body, __doc__, more=options)

if __name__ == "__main__":
    sys.exit(main())
