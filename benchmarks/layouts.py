"""Layouts: the one that is chosen against all that there are, re-layouts included.

Each convolution of Li et al. (SC 2016), of VGG-16 and of ResNet-50 is timed in NCHW, NHWC and CHWN:
these rates, and those of re-layouts, are what `ooc_cudnn.pricing.layouts` chooses by. Then what was
chosen and every other layout are timed again, in turns, as they would run: with the re-layout of an
operand that arrives in NCHW, or in NHWC. Five networks' forward passes run with the cheapest
sequence of layouts, with one throughout, and by Li et al.'s rule, calibrated on the card.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from benchmarks import common
from benchmarks.kernel_cases import LAYOUTS, Laid
from benchmarks.layout_cases import LAYERS, PROFILE, Layer, Operation, networks
from benchmarks.layout_ways import (
    FEW_CHANNELS,
    ORDERS,
    Choice,
    Operands,
    Run,
    Timer,
    Ways,
    direct_plan,
    tiles_of,
)
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.kernels import compiling
from ooc_cudnn.devices.kernels.launch import Launch
from ooc_cudnn.devices.kernels.pointwise import plan_pointwise
from ooc_cudnn.devices.kernels.pooling import plan_pooling
from ooc_cudnn.devices.kernels.relayout import plan_relayout
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.fused_convolution import is_faster_fused
from ooc_cudnn.pricing.layouts import Profiled, Rule, Step, calibrated, cheapest, throughout

NAME = "layouts"
#: What is chosen may take so many times as long as the best.
BOUND = 1.05
#: Batches of a first timing, which tells what is chosen; and of the judged ones.
RATE_BATCHES, JUDGED_BATCHES = 3, 9
#: Errors against PyTorch's convolution, as a share of the largest result.
TOLERANCE = {"tf32": 5e-3, "strict": 5e-5, "float16": 1e-2}
#: What takes so many times as long as another way is not timed again.
HOPELESS, SHORT_SECONDS = 2.0, 2e-4
COMPILERS = 16
#: Steps of a network that only leave a map in NCHW.
LEFT = ("flatten", "result")
#: Here only convolutions of few channels are measured: whether a direct one is worth it.
HALF = "float16"
WAYS = tuple(itertools.permutations(LAYOUTS, 2))
QUICK = {"few": Layer(2, 3, 4, 9, 3, 2, 1), "more": Layer(2, 8, 4, 6, 3, 1, 1)}


class Rates:
    """Seconds of operations in each layout, and of re-layouts: each measured once."""

    def __init__(self, report: common.Report, torch: Any) -> None:
        self.report, self.torch = report, torch
        device = get_device(report.arguments.device)
        self.ways = Ways(torch, device, "cuda" if report.arguments.cuda else "cpu")
        self.timer = Timer(device)
        self._known: dict[tuple[Operation, str], dict[Choice, float]] = {}
        self._entering: dict[tuple[tuple[int, ...], str], dict[tuple[str, str], float]] = {}
        self._fused: dict[Convolution, float] = {}
        self._relu: dict[tuple[tuple[int, ...], str, str], float] = {}
        self.batches = 1 if report.quick else RATE_BATCHES

    def of(self, operation: Operation, layout: str) -> dict[Choice, float]:
        """Seconds by each way to compute an operation in a layout, the fastest first."""
        if (operation, layout) not in self._known:
            on, found = self.ways.operands(operation, layout), dict[Choice, float]()
            known = (self._known.get((operation, each), {}) for each in LAYOUTS)
            others = [took for of in known for took in of.values()]
            for choice in self.ways.choices(operation, layout, on):
                run = self.ways.by(operation, layout, on, choice)
                found[choice] = self.timer.batch([run], 1)
                most = max(HOPELESS * min([*others, *found.values()]), SHORT_SECONDS)
                if found[choice] <= most:
                    found[choice] = self.timer.medians({"": [run]}, self.batches)[""]
            fastest = dict(sorted(found.items(), key=lambda each: each[1]))
            self._known[operation, layout] = fastest
        return self._known[operation, layout]

    def kept(self, operation: Operation, layout: str) -> dict[Choice, float]:
        """The same without the direct convolution, which is a trial: what is chosen from."""
        found = self.of(operation, layout)
        return {choice: took for choice, took in found.items() if choice.tile is None}

    def seconds(self, operation: Operation, *, relu: bool = False) -> dict[str, float]:
        """Seconds in each layout by its fastest way, with bias and ReLU after a convolution."""
        found = {}
        for layout in LAYOUTS:
            if by := self.kept(operation, layout):
                found[layout] = min(by.values())
                if relu and isinstance(operation, Convolution):
                    found[layout] += self.relu(operation, layout)
                    if layout == "NHWC" and (fused := self.fused(operation)) is not None:
                        found[layout] = min(found[layout], fused)
        return found

    def fused(self, operation: Convolution) -> float | None:
        """Seconds in NHWC with bias and ReLU as one launch; None where the library has none."""
        if not is_faster_fused(operation, ORDERS["NHWC"]):
            return None
        if operation not in self._fused:
            run = self.ways.fused(operation, self.ways.operands(operation, "NHWC"))
            self._fused[operation] = self.timer.medians({"": [run]}, self.batches)[""]
        return self._fused[operation]

    def is_fused(self, operation: Operation, layout: str) -> bool:
        """Whether a convolution in a layout is fastest as one launch with bias and ReLU."""
        if layout != "NHWC" or not isinstance(operation, Convolution):
            return False
        apart = min(self.kept(operation, layout).values()) + self.relu(operation, layout)
        fused = self.fused(operation)
        return fused is not None and fused < apart

    def relu(self, operation: Convolution, layout: str) -> float:
        key = operation.output_shape, operation.dtype, layout
        if key not in self._relu:
            on = self.ways.operands(operation, layout)
            runs = [self.ways.bias_relu(on)]
            self._relu[key] = self.timer.medians({"": runs}, self.batches)[""]
        return self._relu[key]

    def entering(self, shape: tuple[int, ...], dtype: str) -> dict[tuple[str, str], float]:
        """Seconds of bringing a tensor from each layout into each other one."""
        if (shape, dtype) not in self._entering:
            held = {each: self.ways.tensor(shape, each, dtype, fill=True) for each in LAYOUTS}
            runs = {(a, b): self.ways.brought(held[a], b)[0] for a, b in WAYS}
            took = self.timer.medians(
                {" ".join(way): run for way, run in runs.items() if run}, self.batches
            )
            self._entering[shape, dtype] = {way: took.get(" ".join(way), 0.0) for way in WAYS}
        return self._entering[shape, dtype]

    def step(self, name: str, operation: Operation, *, relu: bool = False) -> Step:
        """What the choice is made by."""
        entering = self.entering(operation.x_shape, operation.dtype)
        return Step(name, self.seconds(operation, relu=relu), entering)


def kernels_of(operation: Operation) -> Iterator[Launch | None]:
    """The launches of kernels that an operation and its re-layouts may need."""
    dtype = operation.dtype

    def view(shape: tuple[int, ...], layout: str) -> DeviceView:
        return DeviceView(2**20, dtype, shape, Laid(shape, layout).strides())

    shapes = operation.x_shape, operation.output_shape
    for (source, target), shape in itertools.product(WAYS, shapes):
        yield plan_relayout(view(shape, target), view(shape, source))
    for layout in LAYOUTS:
        x, y = (view(shape, layout) for shape in shapes)
        if not isinstance(operation, Convolution):
            yield plan_pooling(operation, x, y)
            continue
        shift = view(operation.w_shape[:1], "")
        yield plan_pointwise(y, y, None, None, shift, None, "relu", dtype)
        for tile in tiles_of(operation):
            yield direct_plan(operation, x, y, *tile)


def compiled(rates: Rates, operations: Iterable[Operation], seconds: float) -> None:
    """Compile kernels side by side."""
    planned = itertools.chain.from_iterable(map(kernels_of, set(operations)))
    wanted = {(launch.source, launch.expression) for launch in planned if launch is not None}
    device, pool = compiling.current_device(), ThreadPoolExecutor(COMPILERS)
    waiting = [pool.submit(compiling.function, device, *each) for each in sorted(wanted)]
    done, _ = wait(waiting, timeout=seconds)
    pool.shutdown(cancel_futures=True)
    rates.report.note(f"{len(done)} of {len(waiting)} kernels compiled ahead")


# Single layers -----------------------------------------------------------------------------------


def judged(rates: Rates, name: str, layer: Layer, precision: str) -> dict[str, Any]:
    """One convolution in each layout, its operand arriving in either usual one."""
    operation, ways = layer.of(precision), rates.ways
    step = rates.step(name, operation)
    row: dict[str, Any] = {
        "seconds": {
            layout: {choice.name: took for choice, took in rates.of(operation, layout).items()}
            for layout in step.seconds
        },
        "entering": {" to ".join(way): took for way, took in step.entering.items()},
    }
    first = ways.operands(operation, "NCHW")
    arriving = {source: ways.laid(first.x, source) for source in ("NCHW", "NHWC")}
    runs: dict[str, dict[str, list[Run]]] = {source: {} for source in arriving}
    for layout in step.seconds:
        y = ways.tensor(operation.output_shape, layout, operation.dtype)
        for source, tensor in arriving.items():
            before, x = ways.brought(tensor, layout)
            on = Operands(x, first.w, y, first.bias)
            run = ways.by(operation, layout, on, next(iter(rates.kept(operation, layout))))
            runs[source][layout] = [*before, run]
        if layout == "CHWN" or rates.report.quick:
            whole = runs["NHWC"][layout]
            check_contents(rates, f"{name} {precision} {layout}", operation, on, whole, precision)
    batches = 2 if rates.report.quick else JUDGED_BATCHES
    for source, of in runs.items():
        chosen = cheapest([step], source).layouts[0]
        most = HOPELESS * cheapest([step], source).seconds
        near = {layout: runs for layout, runs in of.items() if step.after(source, layout) <= most}
        took = rates.timer.medians(near, batches)
        best = min(took, key=lambda layout: took[layout])
        row[source] = {
            "took": took,
            "chosen": chosen,
            "best": best,
            "ratio": took[chosen] / took[best],
        }
    return row


def check_contents(
    rates: Rates,
    name: str,
    operation: Convolution,
    on: Operands,
    runs: Sequence[Run],
    precision: str,
) -> None:
    """Every element against PyTorch's convolution, in full precision where there is one."""
    torch = rates.torch
    torch.backends.cudnn.allow_tf32 = False
    on.y.fill_(math.nan)
    for run in runs:
        run()
    padding, stride = operation.padding[0][0], operation.stride
    expected = torch.nn.functional.conv2d(
        on.x.contiguous(), on.w.contiguous(), None, stride, padding
    )
    most = float(expected.abs().max())
    error = float((on.y - expected).abs().max()) / most
    found = {"ok": error <= TOLERANCE[precision], "error": error, "allowed": TOLERANCE[precision]}
    rates.report.check(f"{name}: contents", found)


def calibrate(rates: Rates, precision: str) -> tuple[Rule, list[Profiled]]:
    """Li et al.'s thresholds on this card."""
    points = []
    for layer in tuple(QUICK.values()) if rates.report.quick else PROFILE:
        found = rates.seconds(layer.of(precision))
        if {"CHWN", "NCHW"} <= set(found):
            points.append(Profiled(layer.n, layer.c_x, found["CHWN"], found["NCHW"]))
    return calibrated(points), points


# Networks ----------------------------------------------------------------------------------------


class Forward:
    """A network's forward pass: operations, bias and ReLU, and a result that is left in NCHW.

    So is what linear layers read: they are convolutions of one site.
    """

    def __init__(self, rates: Rates, operations: Sequence[Operation]) -> None:
        self.rates, self.operations = rates, operations
        self.steps: list[Step] = []
        shape, last = operations[0].x_shape, operations[-1]
        for at, operation in enumerate(operations):
            if operation.x_shape != shape:
                self.steps.append(self._left("flatten", shape, operation.dtype))
            self.steps.append(rates.step(str(at), operation, relu=True))
            shape = operation.output_shape
        self.steps.append(self._left("result", shape, last.dtype))
        ways = rates.ways
        self.x = ways.tensor(operations[0].x_shape, "NCHW", last.dtype, fill=True)
        self.parameters = [ways.operands(each, "NCHW", self.x) for each in operations]

    def _left(self, name: str, shape: tuple[int, ...], dtype: str) -> Step:
        return Step(name, {"NCHW": 0.0}, self.rates.entering(shape, dtype))

    def sequence(self, layout_of: Callable[[Operation], str]) -> tuple[str, ...]:
        """A layout for each step, by those of the operations."""
        free = iter(self.operations)
        return tuple("NCHW" if step.name in LEFT else layout_of(next(free)) for step in self.steps)

    def by_rule(self, rule: Rule) -> tuple[str, ...]:
        """Pooling is in CHWN, convolutions as the rule says where they can be."""

        def layout_of(operation: Operation) -> str:
            if not isinstance(operation, Convolution):
                return "CHWN"
            n, c = operation.x_shape[:2]
            asked = rule.layout(images=n, channels=c)
            return asked if self.rates.kept(operation, asked) else "NCHW"

        return self.sequence(layout_of)

    def runs(self, layouts: Sequence[str]) -> tuple[list[Run], Any]:
        """The launches in these layouts, and the result."""
        ways, made, now = self.rates.ways, list[Run](), self.x
        left = iter(zip(self.operations, self.parameters, strict=True))
        for step, layout in zip(self.steps, layouts, strict=True):
            moving, now = ways.brought(now, layout)
            made += moving
            if step.name in LEFT:
                now = now.flatten(1)[:, :, None, None] if step.name == "flatten" else now
                continue
            operation, given = next(left)
            y = ways.tensor(operation.output_shape, layout, operation.dtype)
            on = given._replace(x=now, y=y)
            if isinstance(operation, Convolution) and self.rates.is_fused(operation, layout):
                made.append(ways.fused(operation, on))
            else:
                choice = next(iter(self.rates.kept(operation, layout)))
                made.append(ways.by(operation, layout, on, choice))
                if isinstance(operation, Convolution):
                    made.append(ways.bias_relu(on))
            now = y
        return made, now


def network(
    rates: Rates, name: str, operations: Sequence[Operation], rule: Rule, precision: str
) -> dict[str, Any]:
    """Forward passes of a network: chosen, by the rule, and one layout throughout."""
    forward = Forward(rates, operations)
    path, uniform = cheapest(forward.steps, "NCHW"), throughout(forward.steps, "NCHW")
    ours = cheapest([step.only(ORDERS) for step in forward.steps], "NCHW")
    sequences = {"chosen": path.layouts, "library": ours.layouts, "rule": forward.by_rule(rule)}
    for layout in uniform:
        sequences[layout] = forward.sequence(lambda _, one=layout: one)
    ways, results = {}, {}
    for each, layouts in sequences.items():
        ways[each], results[each] = forward.runs(layouts)
        for run in ways[each]:
            run()
    rates.report.synchronize()
    expected = results["NCHW"]
    most = float(expected.abs().max())
    for each, found in results.items():
        error = float((found - expected).abs().max()) / most
        ok = error <= 4 * TOLERANCE[precision]
        rates.report.check(f"{name} {precision}, {each}: contents", {"ok": ok, "error": error})
    took = rates.timer.medians(ways, 2 if rates.report.quick else JUDGED_BATCHES)
    best = min(took[layout] for layout in uniform)
    return {
        "layouts": {each: list(layouts) for each, layouts in sequences.items()},
        "predicted": {"chosen": path.seconds, **uniform},
        "took": took,
        "over the best throughout": took["chosen"] / best,
    }


# The whole ---------------------------------------------------------------------------------------


def body(report: common.Report) -> None:
    import torch

    torch.manual_seed(0)
    arguments = report.arguments
    rates, until = Rates(report, torch), report.begin + arguments.seconds
    layers = QUICK if report.quick else LAYERS
    asked = [
        (name, layer, precision)
        for precision in arguments.precisions
        for name, layer in layers.items()
        if precision != HALF or layer.c_x <= FEW_CHANNELS
    ]
    nets = {
        (name, precision): operations
        for precision in arguments.precisions
        if precision != HALF
        for name, operations in networks(precision, quick=report.quick).items()
    }

    def attempt(what: str, measure: Callable[[], Any]) -> Any:
        """Measure, unless time is up; what fails is noted, and the rest goes on."""
        if time.perf_counter() > until:
            report.note(f"no time for {what}")
            return None
        try:
            with torch.no_grad():
                return measure()
        except Exception as error:  # the others are still worth their time on the card
            report.check(
                f"{what}: measured", {"ok": False, "error": f"{type(error).__name__}: {error}"}
            )
            return None
        finally:
            if arguments.cuda:
                torch.cuda.empty_cache()

    if arguments.cuda:
        whole = [precision for precision in arguments.precisions if precision != HALF]
        profile = [layer.of(precision) for precision in whole for layer in PROFILE]
        single = [layer.of(precision) for _, layer, precision in asked]
        compiled(
            rates, (*profile, *single, *itertools.chain(*nets.values())), arguments.seconds / 3
        )
    found: dict[str, dict[str, Any]] = {"layers": {}, "networks": {}, "rules": {}}
    for precision in arguments.precisions:
        rule, points = Rule(0, math.inf), list[Profiled]()
        if precision != HALF:
            made = attempt(f"rule {precision}", partial(calibrate, rates, precision))
            rule, points = made or (rule, points)
        images = None if math.isinf(rule.images) else rule.images  # no number of images
        found["rules"][precision] = {"Ct": rule.channels, "Nt": images, "profile": points}
        report.say(f"{precision}: Ct {rule.channels}, Nt {rule.images}")
        for (name, of), operations in nets.items():
            if of == precision:
                measure = partial(network, rates, name, operations, rule, precision)
                if row := attempt(f"{name} {precision}", measure):
                    found["networks"][f"{name} {precision}"] = row
        for name, layer, of in asked:
            if of == precision:
                measure = partial(judged, rates, name, layer, precision)
                if row := attempt(f"{name} {precision}", measure):
                    n, c = layer.n, layer.c_x
                    row["rule"] = rule.layout(images=n, channels=c) if points else ""
                    found["layers"][f"{name} {precision}"] = row
    for group, rows in found.items():
        report.measure(group, rows, spoken=f"{len(rows)}")
    claims(report, found)
    print(in_short(found))


def claims(report: common.Report, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Hold what was chosen to the bound of issue 20."""
    ratios = [
        row[source]["ratio"] for row in found["layers"].values() for source in ("NCHW", "NHWC")
    ]
    if ratios:
        report.claim("layers: chosen over the best layout, the most", max(ratios), "<=", BOUND)
    if found["networks"]:
        most = max(row["over the best throughout"] for row in found["networks"].values())
        report.claim("networks: chosen over the best one throughout", most, "<=", BOUND)
        took = [row["took"] for row in found["networks"].values()]
        most = max(of["library"] / min(of[layout] for layout in ORDERS) for of in took)
        report.claim("networks: without CHWN over NCHW or NHWC throughout", most, "<=", BOUND)


def in_short(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Two tables: milliseconds of each layer by layout, and of each network."""
    rows = []
    for name, row in found["layers"].items():
        ends = [
            f"{row[s]['chosen']} {row[s]['best']} {row[s]['ratio']:.2f}" for s in ("NCHW", "NHWC")
        ]
        rows.append((name, *cells(row), *ends, row["rule"]))
    layers = common.table(("ms: cuDNN/direct", *LAYOUTS, "from NCHW", "from NHWC", "rule"), rows)
    ways = ("chosen", "library", "rule", *LAYOUTS)
    rows = [
        (name, *(f"{1e3 * row['took'][way]:.3f}" if way in row["took"] else "" for way in ways),
         f"{row['over the best throughout']:.2f}", short(row["layouts"]["chosen"]))
        for name, row in found["networks"].items()
    ]  # fmt: skip
    nets = common.table(("ms", *ways, "over best", "chosen"), rows)
    return f"\n{layers}\n\n{nets}"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Milliseconds of a layer in each layout: by cuDNN, and after a stroke directly.

    >>> cells({"seconds": {"NCHW": {"eng1": 2e-3, "direct 16x4": 1e-3}, "CHWN": {"eng2": 5e-3}}})
    ['2.000/1.000', '', '5.000']
    """
    found = []
    for layout in LAYOUTS:
        by = row["seconds"].get(layout, {})
        direct = [took for way, took in by.items() if way.startswith("direct")]
        others = [took for way, took in by.items() if not way.startswith("direct")]
        found.append("/".join(f"{1e3 * min(each):.3f}" for each in (others, direct) if each))
    return found


def short(layouts: Sequence[str]) -> str:
    """Runs of equal layouts.

    >>> short(["CHWN", "NHWC", "NHWC", "NCHW"])
    'CHWN, 2 NHWC, NCHW'
    """
    runs = [(layout, len(list(each))) for layout, each in itertools.groupby(layouts)]
    return ", ".join(layout if count == 1 else f"{count} {layout}" for layout, count in runs)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=88, help="nothing is begun after so many")
    parser.add_argument("--precisions", nargs="+", choices=("tf32", "strict", "float16"),
                        default=("tf32", HALF, "strict"))  # fmt: skip


main = partial(common.run, NAME, body, __doc__, more=options)

if __name__ == "__main__":
    common.main(main)
