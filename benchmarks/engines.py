"""Convolutions in core against PyTorch's best: by cuDNN's heuristics, and by measured engines.

The table of issue 20: layers, precisions and directions; everything on the card, results made by
the call. PyTorch runs with `cudnn.benchmark`, the better of its two memory orders; so do we, first
without any stored engine and then after `tune`. Ways take turns; errors are against PyTorch in
float64. `--set issue` is the table; `vgg16`, `resnet50`, `unet_3d` and `all` are more. What takes
longer than `--seconds` in all is left out, and said; the file is written after each problem.
`--resume` measures what an earlier file lacks, and keeps what that has: its problems are whole.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ooc_cudnn
from ooc_cudnn.bench import script
from ooc_cudnn.bench.environment import environment
from ooc_cudnn.bench.timing import Timing, host_seconds_per_call, time_in_a_row
from ooc_cudnn.devices import get_device
from ooc_cudnn.engines.workload import Effort
from ooc_cudnn.functions.tune.tune import tune
from ooc_cudnn.tensor import TensorSpec, packed_strides
from ooc_cudnn.units import format_bytes

NAME = "engines"
PRECISIONS = ("tf32", "strict", "float16", "bfloat16")
DIRECTIONS = ("forward", "backward_data", "backward_filter")
ORDERS = ("channels_first", "channels_last")
#: How often calls in a row are timed.
REPEATS = 5
#: Of the seconds of a problem, what measuring its engines may take: of so many in all, by default.
TUNE_SHARE, SECONDS, QUICK_SECONDS = 0.6, 230.0, 75.0
#: Bounds of issue 20, on ours over PyTorch's; the last two are of 3x3 windows.
MEAN, MOST = 1.05, 1.25
STRICT_FORWARD, STRICT_MEAN = 0.7, 1.0
#: Errors so many times ours are another arithmetic's.
ALIKE = 10.0
#: Our error may be so many times PyTorch's, or so small in any case.
ERROR_SHARE, SMALL_ERRORS = 1.5, {"tf32": 2e-3, "strict": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


class Layer(NamedTuple):
    """A convolution, padded by half its window."""

    n: int
    c_x: int
    c_y: int
    extent: int
    window: int = 3
    stride: int = 1
    axes: int = 2

    @property
    def name(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        window = "x".join(self.axes * [f"{self.window}"])
        return f"{self.n}x{self.c_x}>{self.c_y}, {self.extent}, {window}{stride}"

    @property
    def padding(self) -> int:
        return self.window // 2

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.n, self.c_x, *self.axes * (self.extent,))

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (self.c_y, self.c_x, *self.axes * (self.window,))


FIRST_SET = "issue"
SETS = {
    "issue": (Layer(64, 128, 128, 112), Layer(64, 64, 64, 224), Layer(64, 512, 512, 28)),
    "vgg16": (
        Layer(64, 3, 64, 224), Layer(64, 64, 128, 112), Layer(64, 128, 256, 56),
        Layer(64, 256, 256, 56), Layer(64, 256, 512, 28), Layer(64, 512, 512, 14),
    ),
    "resnet50": (
        Layer(512, 3, 64, 224, 7, 2), Layer(512, 64, 256, 56, 1), Layer(512, 256, 64, 56, 1),
        Layer(512, 128, 128, 56, 3, 2), Layer(512, 256, 1024, 14, 1), Layer(512, 512, 512, 7),
    ),
}  # fmt: skip
#: A 3-D U-Net's, one volume of 128 x 128 x 128, from the top down; 96 channels are two tensors.
SETS["unet_3d"] = tuple(
    Layer(1, c_x, c_y, extent, axes=3)
    for c_x, c_y, extent in (
        (1, 32, 128), (32, 32, 128), (96, 32, 128), (64, 64, 64), (128, 128, 32), (256, 256, 16)
    )
)  # fmt: skip
SETS["all"] = tuple(layer for layers in SETS.values() for layer in layers)
QUICK = (Layer(2, 4, 8, 9),)


#: A layer, a precision and a direction.
Asked = tuple[Layer, str, str]


def name_of(asks: Asked) -> str:
    """What a problem is called in records."""
    layer, precision, direction = asks
    return f"{layer.name} {precision} {direction}"


class Problem:
    """One layer in one precision and direction: its operands in both orders, and the two ways."""

    def __init__(self, torch: Any, layer: Layer, precision: str, direction: str, place: str):
        self.torch, self.layer, self.direction, self.place = torch, layer, direction, place
        self.name = name_of((layer, precision, direction))
        self.precision, self.dtype = precision, "float32" if precision[-1] in "2t" else precision
        kind = getattr(torch, self.dtype)
        generator = torch.Generator(device=place).manual_seed(0)  # the host would take seconds
        drawn = partial(torch.randn, generator=generator, dtype=torch.float32, device=place)
        sites = (layer.extent + 2 * layer.padding - layer.window) // layer.stride + 1
        shapes = {
            "x": layer.x_shape, "w": layer.w_shape,
            "dy": (layer.n, layer.c_y, *layer.axes * (sites,)),
        }  # fmt: skip
        drawn_of = {name: drawn(shape).to(kind) for name, shape in shapes.items()}
        self.of = in_both_orders(torch, drawn_of, layer.axes)
        self.geometry = {"padding": layer.padding, "stride": layer.stride}

    @property
    def function(self) -> str:
        return f"convolution_{self.direction}"

    def asked(self, values: Any) -> dict[str, Any]:
        """The arguments of our function, of tensors or of their specs."""
        if self.direction == "forward":
            return {"x": values["x"], "w": values["w"], **self.geometry}
        if self.direction == "backward_data":
            operands = {"w": values["w"], "dy": values["dy"], "input_shape": self.layer.x_shape}
        else:
            operands = {"x": values["x"], "dy": values["dy"], "filter_shape": self.layer.w_shape}
        return {**operands, **self.geometry}

    def specs(self, order: str) -> dict[str, TensorSpec]:
        """What lies on the card, for `tune`."""
        shapes = {name: tuple(each.shape) for name, each in self.of[order].items()}
        return {
            name: TensorSpec(shape, self.dtype, "device", packed_strides(shape, order))
            for name, shape in shapes.items()
        }

    def ours(self, order: str) -> Any:
        return getattr(ooc_cudnn, self.function)(**self.asked(self.of[order]))

    def theirs(self, order: str, *, wide: bool = False) -> Any:
        torch, values = self.torch, self.of[order]
        torch.backends.cudnn.allow_tf32 = self.precision != "strict"
        # the best in float64 would be searched for among some that take seconds
        torch.backends.cudnn.benchmark = not wide
        if wide:
            values = {name: each.double() for name, each in values.items()}
        functional, gradient, axes = torch.nn.functional, torch.nn.grad, self.layer.axes
        if self.direction == "forward":
            forward = functional.conv2d if axes == 2 else functional.conv3d
            return forward(values["x"], values["w"], **self.geometry)
        if self.direction == "backward_data":
            data = gradient.conv2d_input if axes == 2 else gradient.conv3d_input
            return data(self.layer.x_shape, values["w"], values["dy"], **self.geometry)
        weights = gradient.conv2d_weight if axes == 2 else gradient.conv3d_weight
        return weights(values["x"], self.layer.w_shape, values["dy"], **self.geometry)

    def reference(self) -> Any:
        """In float64."""
        with self.torch.no_grad():
            return self.theirs(ORDERS[0], wide=True)


def in_both_orders(torch: Any, tensors: Mapping[str, Any], axes: int) -> dict[str, dict[str, Any]]:
    """Tensors of so many spatial axes, by memory order and name."""
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(axes, torch.contiguous_format)
    return {
        order: {name: each.to(memory_format=memory) for name, each in tensors.items()}
        for order, memory in zip(ORDERS, (torch.contiguous_format, last), strict=True)
    }


def largest_error(result: Any, expected: Any) -> float:
    """The largest error, as a share of the largest result; infinite where it is no number."""
    error = float((result.double() - expected).abs().max() / expected.abs().max())
    return error if math.isfinite(error) else math.inf


def timings(
    report: script.Report, problem: Problem, who: Sequence[str]
) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Seconds of a call, by way and order; and those of the host alone, one call at a time."""
    kinds = {"ours": problem.ours, "PyTorch": problem.theirs}
    calls = {f"{each}, {order}": partial(kinds[each], order) for order in ORDERS for each in who}
    synchronize = report.synchronize
    with problem.torch.no_grad():
        repeats = 2 if report.quick else REPEATS
        seconds = time_in_a_row(calls, synchronize, repeats=repeats)
        host = host_seconds_per_call(calls, synchronize, calls=1, batches=repeats)
    return seconds, host


def best(found: dict[str, Timing], who: str) -> float:
    return min(timing.median for way, timing in found.items() if way.startswith(who))


def measured(report: script.Report, problem: Problem, seconds: float) -> dict[str, float]:
    """Ours over PyTorch's, before and after tuning for so many seconds; checked."""
    name = problem.name
    settings: dict[str, Any] = {"allow_tf32": problem.precision != "strict"}
    if get_device(report.arguments.device).engines is not None:
        # by a machine that is named, plans would not follow what is measured
        settings["machine"] = None
    with script.no_stored_engines(), ooc_cudnn.settings(**settings):
        plain, _ = timings(report, problem, ("ours",))
        begin = time.perf_counter()
        engines = tuned(report, problem, seconds)
        tuning = time.perf_counter() - begin
        after, host = timings(report, problem, ("ours", "PyTorch"))
        errors = checked(report, problem)
    theirs = best(after, "PyTorch")
    ratios = {"heuristics": best(plain, "ours") / theirs, "measured": best(after, "ours") / theirs}
    figures = {
        "heuristics": {way: timing.to_json() for way, timing in plain.items()},
        "measured": {way: timing.to_json() for way, timing in after.items()},
        "host, one call": {way: timing.median for way, timing in host.items()},
        "engines": engines,
        "seconds of tuning": tuning,
        "ours over PyTorch": ratios,
        "errors": errors,
    }
    is_alike = is_as_exact(errors["PyTorch"], errors["ours"], problem.precision)
    ratios["like for like"] = float(is_alike)
    if not is_alike:
        said = f"PyTorch's error is {errors['PyTorch']:.1e}, ours {errors['ours']:.1e}"
        report.note(f"{name}: {said}: not like for like, so not among the largest ratios")
    spoken = f"{1e3 * theirs:.3f} ms PyTorch; ours over that {ratios['heuristics']:.2f}, tuned for "
    spoken += f"{tuning:.1f} s {ratios['measured']:.2f}; host "
    spoken += ", ".join(f"{who} {1e6 * best(host, who):.0f} us" for who in ("ours", "PyTorch"))
    report.measure(name, figures, spoken=spoken)
    return ratios


def tuned(report: script.Report, problem: Problem, seconds: float) -> list[dict[str, Any]]:
    """The tables of engines of a problem; none on a device without engines.

    Of every engine, but for those that are compiled at run time unless that is asked for; at the
    quick size, which has no time, of those that are ranked. Nothing here has a border.
    """
    if get_device(report.arguments.device).engines is None:
        return []
    # in one order: it measures the launches of both
    specs = problem.specs(ORDERS[0])
    effort = Effort(
        every=not report.quick,
        seconds=seconds,
        compiled=report.arguments.compiled,
        borders=False,
    )
    asked = problem.asked(specs)
    tables = tune(problem.function, **asked, out=_result(problem, ORDERS[0]), effort=effort)
    told = []
    for table in tables:
        engines = [
            [each.name, each.seconds, each.workspace_bytes, each.error] for each in table.options
        ]
        told.append({"launch": table.work.kind, "engines": engines, "all": table.is_complete})
        for engine, took, workspace, error in engines:
            size = format_bytes(workspace)
            checked = "not checked" if error is None else f"{error:.1e}"
            report.say(f"  {engine}: {1e3 * took:.3f} ms, {size}, {checked}")
    return told


def _result(problem: Problem, order: str) -> TensorSpec:
    name = {"forward": "dy", "backward_data": "x", "backward_filter": "w"}[problem.direction]
    return problem.specs(order)[name]


def is_as_exact(theirs: float, ours: float, precision: str) -> bool:
    """Whether PyTorch's errors are of the size of ours, or small in any case."""
    return theirs <= max(ALIKE * ours, SMALL_ERRORS[precision])


def checked(report: script.Report, problem: Problem) -> dict[str, float]:
    """Compare every element of our results with float64, beside PyTorch's; the larger errors."""
    errors, expected = dict[str, float](), problem.reference()
    with problem.torch.no_grad():
        theirs = min(largest_error(problem.theirs(order), expected) for order in ORDERS)
    errors["PyTorch"] = theirs
    for order in ORDERS:
        ours = largest_error(problem.torch.as_tensor(problem.ours(order)), expected)
        allowed = max(ERROR_SHARE * theirs, SMALL_ERRORS[problem.precision])
        check = {"ok": ours <= allowed, "error": ours, "PyTorch's": theirs, "allowed": allowed}
        report.check(f"{problem.name}, {order}: contents", check)
        errors["ours"] = max(ours, errors.get("ours", 0.0))
    return errors


def body(report: script.Report) -> None:
    import torch

    arguments = report.arguments
    place = "cuda" if arguments.cuda else "cpu"
    if arguments.set != FIRST_SET:
        report.file = f"{NAME}_{arguments.set}"
    asked = [
        (layer, precision, direction)
        for layer in (QUICK if report.quick else SETS[arguments.set])
        for precision in arguments.precisions
        for direction in arguments.directions
        if report.quick or arguments.only in name_of((layer, precision, direction))
    ]
    seconds = arguments.seconds
    if seconds is None:
        seconds = QUICK_SECONDS if report.quick else SECONDS
    ratios = resumed(report, arguments.resume, asked) if arguments.resume else {}
    asked = [each for each in asked if each not in ratios]
    begin, longest = time.perf_counter(), 0.0
    for index, (layer, precision, direction) in enumerate(asked):
        began = time.perf_counter()
        left = seconds - (began - begin)
        if index and left < longest:
            missing = [name_of(asks) for asks in asked[index:]]
            report.note(f"not measured in {seconds:g} s: {', '.join(missing)}")
            break
        problem = Problem(torch, layer, precision, direction, place)
        share = TUNE_SHARE * left / (len(asked) - index)
        ratios[layer, precision, direction] = measured(report, problem, share)
        if arguments.cuda:
            torch.cuda.empty_cache()
        report.write()  # what is measured stays, whatever happens next
        longest = max(longest, time.perf_counter() - began)
    claims(report, ratios)
    print(in_short(ratios))


def resumed(
    report: script.Report, file: str, asked: Sequence[Asked]
) -> dict[Asked, dict[str, float]]:
    """Take over what an earlier file has of what is asked for, and return its ratios."""
    earlier = json.loads(Path(file).read_text(encoding="utf-8"))
    past = earlier["environment"]
    here = environment(report.arguments.device)
    for what in ("name", "cudnn"):
        earlier_one, this_one = ((each["gpu"] or {}).get(what) for each in (past, here))
        if earlier_one != this_one:
            raise SystemExit(f"{file} is of {what} {earlier_one}, this is {this_one}: begin anew")
    ratios: dict[Asked, dict[str, float]] = {}
    for asks in asked:
        name = name_of(asks)
        if name in earlier["measurements"]:
            report.measurements[name] = earlier["measurements"][name]
            ratios[asks] = report.measurements[name]["ours over PyTorch"]
            of_it = (each for each in earlier["checks"] if each.startswith(f"{name}, "))
            report.checks.update((each, earlier["checks"][each]) for each in of_it)
            report.notes += [each for each in earlier["notes"] if each.startswith(f"{name}: ")]
    commit = past["commit"]
    report.note(f"{len(ratios)} problems are of an earlier run: {past['date']}, commit {commit}")
    return ratios


def claims(report: script.Report, ratios: Mapping[Asked, Mapping[str, float]]) -> None:
    """Hold means, and the largest ratio, to the bounds of issue 20."""
    by_kind: dict[str, list[float]] = {}
    for (layer, precision, direction), ratio in ratios.items():
        kinds = ["all", precision]
        if precision == "strict" and layer.axes == 2 and layer.window == 3:
            kinds += ["strict 3x3", f"strict 3x3 {direction}"]
        for kind in kinds:
            by_kind.setdefault(kind, []).append(ratio["measured"])
    bounds = {"strict 3x3 forward": STRICT_FORWARD, "strict 3x3": STRICT_MEAN}
    for kind, values in by_kind.items():
        name = f"{kind}: ours over PyTorch, geometric mean"
        report.claim(name, statistics.geometric_mean(values), "<=", bounds.get(kind, MEAN))
    alike = {asks: each["measured"] for asks, each in ratios.items() if each["like for like"]}
    if not alike:
        return
    worst = max(alike, key=lambda asks: alike[asks])
    name = f"{name_of(worst)}: ours over PyTorch, the largest"
    report.claim(name, alike[worst], "<=", MOST)


def in_short(ratios: Mapping[Asked, Mapping[str, float]]) -> str:
    """A table of ours over PyTorch's: by heuristics, and by measured engines."""
    cells: dict[tuple[Layer, str], dict[str, str]] = {}
    for (layer, precision, direction), ratio in ratios.items():
        cell = f"{ratio['heuristics']:.2f} > {ratio['measured']:.2f}"
        cells.setdefault((layer, precision), {})[direction] = cell
    rows = [
        (f"{layer.name} {precision}", *(of.get(each, "") for each in DIRECTIONS))
        for (layer, precision), of in cells.items()
    ]
    return "\n" + script.table(("ours over PyTorch: heuristics > measured", *DIRECTIONS), rows)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", choices=SETS, default=FIRST_SET)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS[:2])
    said = f"for all of it; {SECONDS:g}, or {QUICK_SECONDS:g} with --quick, when left out"
    parser.add_argument("--seconds", type=float, help=said)
    parser.add_argument(
        "--compiled", action="store_true",
        help="try engines that are compiled at run time, too: a second each",
    )  # fmt: skip
    parser.add_argument("--resume", metavar="FILE", help="measure only what this record lacks")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)


main = partial(script.run, NAME, body, __doc__, more=options)

if __name__ == "__main__":
    sys.exit(main())
