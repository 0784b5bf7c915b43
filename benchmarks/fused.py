"""What is fused on the card: convolutions with bias and ReLU, and the passes of normalizations.

First convolutions with channels last, VGG-16's and others: cuDNN's graph of a convolution, its bias
and its ReLU beside the convolution and our pass after it. Then each pass of a training step that
does several things at once, beside the launches it stands for and a copy that moves as many bytes.
Launches are timed through the device's contract, in turns. Contents are compared: the two ways with
each other, on results of NaN; and NaN in a bias is to go through ReLU.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import perfmodel
from benchmarks import common
from benchmarks.kernels import Clock
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution, is_faster_fused
from ooc_cudnn.operations.core.launch import Launch
from ooc_cudnn.operations.core.pointwise import Pointwise
from ooc_cudnn.operations.elementwise.activation_gradient import ActivationBackward
from ooc_cudnn.operations.elementwise.binary import OpTensor
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastSum
from ooc_cudnn.operations.elementwise.gradient_reductions import GradientSums
from ooc_cudnn.operations.normalization.batch_launches import (
    Normalise,
    NormaliseBackward,
    NormaliseSums,
)
from ooc_cudnn.tensor import ACCUMULATOR, DTYPES, packed_strides

NAME = "fused"


class Layer(NamedTuple):
    """Images, channels of x and of y, extent, and what else there is to a convolution."""

    n: int
    c_x: int
    c_y: int
    extent: int
    window: int = 3
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    axes: int = 2
    #: Rows of padding after the image that are missing, as in a piece at a border.
    missing: int = 0

    @property
    def name(self) -> str:
        """What differs from a window of 3 alone is said."""
        name = f"{self.n}x{self.c_x}>{self.c_y}, {self.extent}"
        return name + "".join(
            f", {word} {getattr(self, word)}"
            for word, usual in self._field_defaults.items()
            if getattr(self, word) != usual
        )

    def convolution(self, precision: str) -> Convolution:
        """With channels last, padded to the extent of x."""
        both = self.dilation * (self.window - 1) // 2
        made = Convolution.of(
            (self.n, self.c_x, *[self.extent] * self.axes),
            (self.c_y, self.c_x // self.groups, *[self.window] * self.axes),
            padding=((both, both - self.missing), *[(both, both)] * (self.axes - 1)),
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
            dtype="float32" if precision in ("tf32", "strict") else precision,
            allow_tf32=precision != "strict",
        )
        return replace(made, layout="channels_last")


#: VGG-16's convolutions, each once.
LAYERS = (
    Layer(64, 3, 64, 224), Layer(64, 64, 64, 224), Layer(64, 64, 128, 112),
    Layer(64, 128, 128, 112), Layer(64, 128, 256, 56), Layer(64, 256, 256, 56),
    Layer(64, 256, 512, 28), Layer(64, 512, 512, 28), Layer(64, 512, 512, 14),
)  # fmt: skip
#: Other windows, strides, channels, groups and axes, and a piece at a border.
OTHERS = (
    Layer(64, 256, 64, 56, 1), Layer(64, 64, 256, 56, 1), Layer(64, 1024, 256, 14, 1),
    Layer(64, 3, 64, 224, 7, 2), Layer(64, 128, 128, 56, 3, 2), Layer(64, 64, 192, 27, 5),
    Layer(64, 64, 64, 56, dilation=2), Layer(64, 128, 128, 56, groups=32),
    Layer(64, 128, 128, 56, groups=128), Layer(64, 5, 7, 112), Layer(64, 12, 20, 112),
    Layer(64, 1, 32, 28), Layer(2, 32, 64, 64, axes=3), Layer(64, 64, 64, 56, missing=1),
)  # fmt: skip
#: Maps of ResNet-50's blocks.
MAPS = ((256, 256, 56, 56), (256, 1024, 14, 14))
QUICK_LAYERS, QUICK_MAPS = (Layer(2, 3, 8, 9),), ((2, 8, 5, 4),)
#: What takes longer in all is left out, and said; threads that compile kernels meanwhile.
SECONDS, COMPILERS = 75.0, 16
PRECISIONS = {"tf32": 4e-3, "float16": 4e-3, "bfloat16": 3e-2, "strict": 1e-5}
#: Of half types sums are made apart (`SUMMED_BESIDE`); here is what they would take.
PASS_DTYPES = ("float32", "float16")
#: Largest difference of two ways, as a share of the largest value.
PASS_TOLERANCE = {"float32": 2e-5, "float16": 4e-3}


class Bench:
    """Tensors of PyTorch, and launches on them."""

    def __init__(self, report: common.Report, torch: Any) -> None:
        self.report, self.torch, self.clock = report, torch, Clock(report)
        self.place = "cuda" if report.arguments.cuda else "cpu"
        self.device = self.clock.device
        self.stream: Any = None
        if report.arguments.cuda:
            import cupy

            self.stream = cupy.cuda.get_current_stream()
        self.machine = perfmodel.shipped(report.arguments.machine)

    def drawn(self, shape: Sequence[int], dtype: str, seed: int = 0) -> Any:
        """A tensor of normal numbers, channels last."""
        torch = self.torch
        generator = torch.Generator(device=self.place).manual_seed(seed)
        made = torch.randn(*shape, generator=generator, device=self.place, dtype=torch.float32)
        made = made.to(getattr(torch, dtype))
        order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape))
        return made if order is None else made.to(memory_format=order)

    def launching(
        self, launches: Sequence[Launch], tensors: Mapping[str, Any]
    ) -> Callable[[], None]:
        """What runs launches one after the other."""
        device = self.device
        needed = device.workspace([(launch, _buffers(tensors)) for launch in launches], None)
        nbytes = needed[0] if needed else 0
        scratch = self.torch.empty(nbytes + 256, dtype=self.torch.uint8, device=self.place)
        views = {name: _view(tensor) for name, tensor in tensors.items()}
        stream = self.stream

        def run(_kept: Any = (scratch, tensors)) -> None:
            for launch in launches:
                device.run(launch, views, (scratch.data_ptr(), nbytes), stream)

        return run

    def compared(
        self,
        name: str,
        ways: Mapping[str, Callable[[], None]],
        results: Sequence[Any],
        tolerance: float,
    ) -> None:
        """Check that two ways give the same."""
        found = []
        for run in ways.values():
            for result in results:
                result.fill_(math.nan)
            run()
            self.report.synchronize()
            found.append([result.double().clone() for result in results])
        first, second = found
        errors = [
            float((a - b).abs().max() / a.abs().max()) for a, b in zip(first, second, strict=True)
        ]
        worst = max(errors, key=lambda error: (math.isnan(error), error))
        ok = worst <= tolerance
        self.report.check(f"{name}: contents", {"ok": ok, "error": worst, "tolerance": tolerance})


def _buffers(tensors: Mapping[str, Any]) -> Any:
    return {name: _view(tensor) for name, tensor in tensors.items()}


def _view(tensor: Any) -> DeviceView:
    shape = tuple(tensor.shape)
    order = "channels_last" if len(shape) > 3 else "channels_first"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return DeviceView(tensor.data_ptr(), dtype, shape, packed_strides(shape, order))


# Convolutions -------------------------------------------------------------------------------------


def convolutions(bench: Bench, report: common.Report) -> None:
    """Each layer in each precision: separate, and as one graph; claims are of those used so."""
    ratios: dict[str, list[float]] = {}
    asked = (QUICK_LAYERS,) if report.quick else (LAYERS, OTHERS)
    for layers, (precision, tolerance) in itertools.product(asked, PRECISIONS.items()):
        if precision == "bfloat16" and not report.arguments.cuda:
            continue
        for layer in layers:
            if time.perf_counter() - report.begin > SECONDS:
                report.note(f"not measured in {SECONDS:g} s: {precision} from {layer.name} on")
                break
            forward = layer.convolution(precision)
            dtype, c_y, name = forward.dtype, layer.c_y, f"{layer.name}, {precision}"
            tensors = {
                "x": bench.drawn(forward.x_shape, dtype, 1),
                "w": bench.drawn(forward.w_shape, dtype, 2)
                / math.sqrt(math.prod(forward.w_shape[1:])),
                "b": bench.drawn((c_y,), dtype, 3),
                "y": bench.drawn(forward.output_shape, dtype, 4),
            }
            one = FusedConvolution(forward, "relu")
            after = Launch(one.after, ("y", "", "b", ""), "y")
            ways = {
                "separate": bench.launching([Launch(forward, ("x", "w"), "y"), after], tensors),
                "fused": bench.launching([Launch(one, ("x", "w", "b"), "y")], tensors),
            }
            bench.compared(name, ways, [tensors["y"]], tolerance)
            _goes_through(report, name, ways["fused"], tensors)
            found = bench.clock.measure({way: [run] for way, run in ways.items()})
            ratio = found["fused"].median / found["separate"].median
            plan = None
            if report.arguments.cuda:
                plan = bench.device.convolutions.executable(one, None)
            engine = plan.name if plan is not None else "declined"
            separate, fused = (found[way].median * 1e3 for way in ("separate", "fused"))
            said = f"{separate:.3f} ms, fused {fused:.3f}: {ratio:.2f} by {engine}"
            told = {"separate": separate / 1e3, "fused": fused / 1e3, "engine": engine}
            report.measure(name, told, spoken=said)
            if is_faster_fused(forward, forward.layout):
                name = precision if layers is asked[0] else f"{precision}, others"
                ratios.setdefault(name, []).append(ratio)
            del tensors, ways
    for precision, each in ratios.items():
        mean = statistics.geometric_mean(each)
        report.claim(f"{precision}: fused over separate, geometric mean", mean, "<=", 1.0)
        report.claim(f"{precision}: fused over separate, the largest", max(each), "<=", 1.0)


def _goes_through(
    report: common.Report, name: str, run: Callable[[], None], tensors: Mapping[str, Any]
) -> None:
    """NaN in the bias of a channel is in all of that channel, and nowhere else."""
    tensors["b"][0] = math.nan
    run()
    report.synchronize()
    found = tensors["y"].isnan()
    report.check(f"{name}: NaN", {"ok": bool(found[:, 0].all() and not found[:, 1:].any())})


# Passes -------------------------------------------------------------------------------------------


class Pass(NamedTuple):
    """A fused launch, the launches that it stands for, and what both make."""

    name: str
    one: Launch
    apart: tuple[Launch, ...]
    results: tuple[str, ...]


def passes_of(shape: tuple[int, ...], dtype: str) -> list[Pass]:
    """The passes of a step, on maps of one shape."""
    count = math.prod(shape) // shape[1]
    saved = ("scale", "bias", "mean", "inverse")
    backward = Launch(ActivationBackward(shape, "relu", 0.0, dtype), ("y", "dy", ""), "dz")
    sums = partial(Launch, NormaliseSums(shape, dtype), output="sums")
    gradients = partial(GradientSums, shape, "relu", 0.0, dtype)
    added = Launch(OpTensor(shape, shape, dtype), ("dy", "z"), "t")
    return [
        Pass(
            "normalise, add, relu",
            Launch(Normalise(shape, dtype, mode="relu", has_addend=True), ("x", *saved, "z"), "o"),
            (
                Launch(Normalise(shape, dtype), ("x", *saved), "t"),
                Launch(OpTensor(shape, shape, dtype), ("t", "z"), "t"),
                Launch(Pointwise(shape, dtype, dtype, "relu"), ("t", "", "", ""), "o"),
            ),
            ("o",),
        ),
        Pass(
            "relu backward, bias gradient",
            Launch(gradients(dtype), ("y", "dy", "", "dz", "", ""), "db"),
            (backward, Launch(BroadcastSum(shape, shape[1:2], dtype, dtype), ("dz",), "db")),
            ("dz", "db"),
        ),
        Pass(
            "relu backward of two parts, sums",
            Launch(gradients(products=True), ("y", "dy", "z", "dz", "x", "mean"), "sums"),
            (
                added,
                backward._replace(inputs=("y", "t", "")),
                sums(("x", "dz", "mean")),
            ),
            ("dz", "sums"),
        ),
        Pass(
            "sums through relu",
            Launch(
                NormaliseSums(shape, dtype, "relu"),
                ("x", "dy", "mean", "inverse", "scale", "bias"),
                "sums",
            ),
            (backward._replace(inputs=("r", "dy", "")), sums(("x", "dz", "mean"))),
            ("sums",),
        ),
        Pass(
            "dx through relu",
            Launch(
                NormaliseBackward(shape, dtype, count, "relu"),
                ("x", "dy", "scale", "mean", "inverse", "given", "bias"),
                "o",
            ),
            (
                backward._replace(inputs=("r", "dy", "")),
                Launch(
                    NormaliseBackward(shape, dtype, count),
                    ("x", "dz", "scale", "mean", "inverse", "given"),
                    "o",
                ),
            ),
            ("o",),
        ),
    ]


def tensors_of(bench: Bench, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """All operands; `y` and `r` are rectified, `r` what x is normalised and rectified to."""
    torch, narrow = bench.torch, ACCUMULATOR[dtype]
    maps = {name: bench.drawn(shape, dtype, at) for at, name in enumerate("xyz")}
    maps |= {"dy": bench.drawn(shape, dtype, 5)}
    maps |= {name: torch.empty_like(maps["x"]) for name in ("o", "t", "dz", "r")}
    maps["y"].relu_()
    vectors = {
        name: bench.drawn(shape[1:2], narrow, at + 7)
        for at, name in enumerate(("scale", "bias", "mean"))
    }
    vectors["inverse"] = bench.drawn(shape[1:2], narrow, 11).abs() + 0.5
    states = {name: torch.ones((2, shape[1]), dtype=torch.float64, device=bench.place)
              for name in ("sums", "given")}  # fmt: skip
    db = {"db": bench.drawn(shape[1:2], dtype, 12)}
    return {**maps, **vectors, **states, **db}


def passes(bench: Bench, report: common.Report) -> None:
    """Each pass on each map."""
    for shape in QUICK_MAPS if report.quick else MAPS:
        for dtype in PASS_DTYPES:
            tensors = tensors_of(bench, shape, dtype)
            saved = ("scale", "bias", "mean", "inverse")
            rectified = Launch(Normalise(shape, dtype, mode="relu"), ("x", *saved), "r")
            bench.launching([rectified], tensors)()
            half = math.prod(shape) * DTYPES[dtype]
            with ThreadPoolExecutor(COMPILERS) as pool:  # compiled at first use
                every = [bench.launching([launch], tensors) for made in passes_of(shape, dtype)
                         for launch in (made.one, *made.apart)]  # fmt: skip
                list(pool.map(lambda run: run(), every))
            report.synchronize()
            for made in passes_of(shape, dtype):
                name = f"{'x'.join(map(str, shape))} {dtype}, {made.name}"
                ways = {
                    "apart": bench.launching(made.apart, tensors),
                    "one": bench.launching([made.one], tensors),
                }
                results = [tensors[result] for result in made.results]
                bench.compared(name, ways, results, PASS_TOLERANCE[dtype])
                source, target = tensors["x"], tensors["t"]
                runs = {way: [run] for way, run in ways.items()}
                found = bench.clock.measure({**runs, "copy": [partial(target.copy_, source)]})
                one, apart, copy = (found[way].median for way in ("one", "apart", "copy"))
                work = made.one.operation.work()
                share = work.device_bytes / one / (2 * half / copy)
                predicted = bench.machine.compute.seconds(work) / one
                said = (
                    f"{apart * 1e3:.3f} ms, in one {one * 1e3:.3f} ({one / apart:.2f}); "
                    f"{share:.0%} of a copy's bandwidth, predicted / measured {predicted:.2f}"
                )
                told = {"apart": apart, "one": one, "copy": copy, "share": share,
                        "predicted": predicted}  # fmt: skip
                report.measure(name, told, spoken=said)
            del tensors


def body(report: common.Report) -> None:
    import torch

    bench = Bench(report, torch)
    if report.arguments.cuda:
        torch.backends.cuda.matmul.allow_tf32 = True
    if report.arguments.part in ("all", "passes"):
        passes(bench, report)
        report.write()
    if report.arguments.part in ("all", "convolutions"):
        convolutions(bench, report)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=("all", "passes", "convolutions"), default="all")


main = partial(common.run, NAME, body, __doc__, more=options)

if __name__ == "__main__":
    common.main(main)
