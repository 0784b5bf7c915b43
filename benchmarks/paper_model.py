"""The ooc_cuDNN paper's figures beside ours, by simulation on the shipped profile of its P100.

Each call is planned and the very steps of its schedule are replayed on a virtual clock: no card is
needed. The limit is what the library would take of the card's 16 GB, nine tenths, less the arrays
that lie on the card. A figure is to be within 8 % of the paper's; where one is not, the script
exits with 1. `python -m benchmarks.regenerate` puts the results into docs/paper.md.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import paper_figures
from benchmarks.pages.blocks import Block
from benchmarks.paper_figures import CUDNN_GFLOPS, TABLE_4, Size, Span
from benchmarks.searches import Prices, exhaustive, local, ordered
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import load_record, markdown
from ooc_cudnn.functions.call.explain import plan_request
from ooc_cudnn.operations.core.call import AXES
from ooc_cudnn.pipeline.simulate import simulate
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.planner import make_plan
from ooc_cudnn.pricing.request import Request
from ooc_cudnn.pricing.search import Search
from ooc_cudnn.tensor import TensorSpec
from ooc_cudnn.units import resolve_limit
from perfmodel import Split, shipped

NAME = "paper_model"
MACHINE = "p100"
WITHIN = 0.08
FUSED = "convolution_add_activation_forward"
#: The paper's fused function is compared at the size where its own figures add up to 42 %
#: (docs/paper.md), and beside it at the others.
FUSED_SIZE = Size(1, 256, 1024, 1024)


class Operands(NamedTuple):
    """Arrays of a convolution, and the device memory that they leave."""

    x: TensorSpec
    w: TensorSpec
    y: TensorSpec
    b: TensorSpec
    room_bytes: int


def operands(size: Size, *, features_on_host: bool) -> Operands:
    """Place the filters, then the features: all of them on the host, or by the paper's rule.

    That is: on the device what fits what is left of it, the others in pinned memory.
    """
    room, c = int(resolve_limit(None, shipped(MACHINE).device_bytes)), size.channels
    features = (size.n, c, size.height, size.width)
    placed = []
    for shape in ((c, c, 3, 3), (c,), features, features):
        spec = TensorSpec(shape)
        if spec.nbytes <= room and not (features_on_host and shape == features):
            spec = replace(spec, placement="device")
            room -= spec.nbytes
        placed.append(spec)
    w, b, x, y = placed
    return Operands(x, w, y, b, room)


class Replay(NamedTuple):
    """A call planned, and replayed."""

    request: Request
    plan: Plan
    seconds: float


def replayed(
    function: str, room_bytes: int, split: Split | None = None, **arguments: Any
) -> Replay:
    """Plan a call on the P100, by the library's own search or with `split`, and replay it."""
    request = plan_request(function, machine=MACHINE, memory_limit=room_bytes, **arguments)
    plan = make_plan(request, split=split)
    return Replay(request, plan, simulate(request, plan).seconds)


def convolution(size: Size, split: Split | None = None, *, features_on_host: bool = True) -> Replay:
    placed = operands(size, features_on_host=features_on_host)
    return replayed(
        "convolution_forward", placed.room_bytes, split,
        x=placed.x, w=placed.w, out=placed.y, padding=1,
    )  # fmt: skip


def fused_ratio(size: Size) -> float:
    """Return the fused function's time over that of convolution, bias and activation."""
    x, w, y, b, room = operands(size, features_on_host=True)
    fused = replayed(FUSED, room, x=x, w=w, b=b, out=y, padding=1, activation="relu")
    apart = (
        replayed("convolution_forward", room, x=x, w=w, out=y, padding=1),
        replayed("add_tensor", room, b=b, y=y),
        replayed("activation_forward", room, x=y, out=y, mode="relu"),
    )
    return fused.seconds / sum(one.seconds for one in apart)


def every_count(request: Request) -> dict[str, tuple[int, ...]]:
    """Piece sizes of every number of pieces on each axis, as the paper searches them."""
    call, sizes = request.chain, {}
    for axis in AXES:
        extent = getattr(call.extents, axis)
        counts = range(1, extent + 1 if call.may_cut(axis) else 2)
        sizes[axis] = tuple(sorted({-(-extent // count) for count in counts}))
    return sizes


class Searched(NamedTuple):
    """Seconds of the splits that the searches found, over the fewest of them all, less one."""

    ordered: float
    local: Span


def searched(size: Size, starts: int = 15) -> Searched:
    """Replay what the searches find.

    The ordered and the exhaustive search try the piece sizes that the planner tries. The local one
    steps from one number of pieces to the next: from the whole, and from splits drawn at random.
    An ordered search over every number of pieces, too many for the exhaustive one, stands beside
    it for the best.
    """
    request = convolution(size).request
    search, limit = Search(request, request.layouts[0]), request.memory_limit
    coarse, fine = Prices(search, limit), Prices(search, limit, every_count(request))
    draw = random.Random(0)
    drawn = (Split(**{axis: draw.choice(fine.sizes[axis]) for axis in AXES}) for _ in range(starts))
    found = (
        ordered(coarse),
        exhaustive(coarse),
        ordered(fine),
        *(local(fine, start) for start in (request.chain.extents, *drawn)),
    )
    seconds = [convolution(size, one).seconds for one in found]
    gaps = [one / min(seconds) - 1 for one in seconds]
    return Searched(gaps[0], Span(min(gaps[3:]), max(gaps[3:])))


def compare(
    report: script.Report, name: str, simulated: float, paper: float | None, unit: str
) -> None:
    """Keep a figure; where the paper has one, hold it to it."""
    report.measure(name, {"simulated": simulated, "paper": paper, "unit": unit})
    if paper is not None:
        report.claim(f"{name}: |simulated / paper - 1|", abs(simulated / paper - 1), "<=", WITHIN)


def gflops(report: script.Report, name: str, size: Size, *, features_on_host: bool) -> float:
    """Replay a convolution; check that it beats neither the link, nor cuDNN, nor its limit."""
    call = convolution(size, features_on_host=features_on_host)
    host = [spec for _, spec in call.plan.operands if spec.placement != "device"]
    line = shipped(MACHINE).transfer.copy_in["pinned"]
    least = max([size.flops / (CUDNN_GFLOPS * 1e9), *(line.alpha * one.nbytes for one in host)])
    held, limit = call.plan.device_bytes, call.request.memory_limit
    report.check(
        name,
        {
            "ok": call.seconds > least * (1 - 1e-6) and held <= limit,
            "seconds": call.seconds,
            "least_seconds": least,
            "held_bytes": held,
            "limit_bytes": limit,
            "on_host": len(host),
        },
    )
    return size.flops / call.seconds / 1e9


def table_4(report: script.Report, sizes: dict[Size, float]) -> None:
    """GFLOPS with the features on the host, and what the searches find there."""
    for size, paper in sizes.items():
        found = gflops(report, f"Table 4: {size}", size, features_on_host=True)
        compare(report, f"Table 4: {size}", found, paper, "GFLOPS")
    for size in list(sizes)[: 1 if report.arguments.quick else None]:
        found, most = searched(size), paper_figures.ORDERED_GAP
        title = f"ordered search, gap to the best: {size}"
        row = {"simulated": found.ordered, "paper": f"at most {100 * most:.1f} %", "unit": "%"}
        report.measure(title, row)
        report.claim(title, found.ordered, "<=", most)
        row = {"simulated": str(found.local), "paper": str(paper_figures.LOCAL_GAP), "unit": "%"}
        report.measure(f"local search, gap to the best: {size}", row)


def figure_9(report: script.Report, side: int) -> None:
    """GFLOPS over the numbers of channels, in core and beyond the card's memory."""
    beyond, rates = [], []
    for channels in paper_figures.CHANNELS:
        size = Size(1, channels, side, side)
        name = f"figure 9: {channels} channels"
        rates.append(gflops(report, name, size, features_on_host=False))
        if report.checks[name]["on_host"]:
            beyond.append(rates[-1])
        where = ("on the device", "y in pinned memory", "x and y in pinned memory")
        name = f"{name}, {where[report.checks[name]['on_host']]}"
        compare(report, name, rates[-1], None, "GFLOPS")
    paper = paper_figures.CHANNEL_GFLOPS
    compare(report, "figure 9: the least of all", min(rates), paper.least, "GFLOPS")
    compare(report, "figure 9: the most of all", max(rates), paper.most, "GFLOPS")
    if beyond:
        share = max(beyond) / CUDNN_GFLOPS
        title = "figure 9: the most beyond the card's memory, of cuDNN's best"
        compare(report, title, share, paper_figures.SHARE_BEYOND_MEMORY, "%")


def fusing(report: script.Report, sizes: tuple[Size, ...], held: Size) -> None:
    """The fused function over the three functions; one size is held to the paper's figure."""
    for size in sizes:
        paper = paper_figures.FUSED_OVER_UNFUSED if size == held else None
        compare(report, f"fused / three functions: {size}", fused_ratio(size), paper, "%")


def body(report: script.Report) -> None:
    shrunk = 16 if report.arguments.quick else 1
    sizes = {size.shrunk(shrunk): figure for size, figure in TABLE_4.items()}
    table_4(report, sizes)
    figure_9(report, 1024 // shrunk)
    small = Size(1, 64, 1024, 1024).shrunk(shrunk)
    fusing(report, (*sizes, small), FUSED_SIZE.shrunk(shrunk))


def shown(value: float | str | None, unit: str) -> str:
    """Return a figure as the table prints it: a share in percent, anything else whole.

    Examples
    --------
    >>> shown(2574.3, "GFLOPS"), shown(0.424, "%"), shown("at most", "%"), shown(None, "%")
    ('2574 GFLOPS', '42.4 %', 'at most', '')
    """
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value * 100:.1f} %" if unit == "%" else f"{value:.0f} {unit}"


def table(folder: Path = script.RESULTS) -> str:
    """Return the table of everything that was compared, in its order."""
    rows = []
    for name, row in load_record(NAME, folder)["measurements"].items():
        simulated, paper, unit = row["simulated"], row["paper"], row["unit"]
        ratio = f"{simulated / paper:.3f}" if isinstance(paper, float) else ""
        rows.append((name, shown(paper, unit), shown(simulated, unit), ratio))
    return markdown(("", "paper", "simulated", "simulated / paper"), rows)


BLOCKS = (Block("docs/paper.md", "table", table),)


def main(argv: list[str] | None = None) -> int:
    return min(script.run(NAME, body, __doc__, argv, first=("--strict",), needs_card=False), 1)


if __name__ == "__main__":
    sys.exit(main())
