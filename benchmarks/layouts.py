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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks import common
from benchmarks.kernel_cases import LAYOUTS
from benchmarks.layout_cases import LAYERS, PROFILE, Layer, networks
from benchmarks.layout_networks import network
from benchmarks.layout_rates import HOPELESS, JUDGED_BATCHES, TOLERANCE, Rates, compiled
from benchmarks.layout_ways import (
    FEW_CHANNELS,
    ORDERS,
    Operands,
    Run,
)
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.pricing.layouts import Profiled, Rule, calibrated, cheapest

NAME = "layouts"
#: What is chosen may take so many times as long as the best.
BOUND = 1.05
#: Here only convolutions of few channels are measured: whether a direct one is worth it.
HALF = "float16"
QUICK = {"few": Layer(2, 3, 4, 9, 3, 2, 1), "more": Layer(2, 8, 4, 6, 3, 1, 1)}

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
