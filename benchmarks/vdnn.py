"""vDNN's table by simulation on its Titan X: memory and loss of performance of each policy.

Each network is planned under each policy with the profile `titanx`, and the schedule of its step is
replayed on a virtual clock: no card is needed. Beside it stands what the paper states, and what the
same policy takes where backward reads a bit of each ReLU and a byte of each maximum, as ours does.
`python -m benchmarks.regenerate` puts the tables into docs/vdnn.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks import vdnn_figures as paper
from benchmarks.pages.blocks import Block
from benchmarks.vdnn_figures import CONVENTIONAL, DEEP, GIB, SHALLOW, WAYS, Case, Savings, Way
from benchmarks.vdnn_machine import baseline_bytes
from benchmarks.vdnn_networks import network
from benchmarks.vdnn_replay import Replay, replayed
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import load_record, markdown

NAME = "vdnn"
#: How far a baseline may be from the one that the paper states, and a loss of the static policies
#: from theirs.
BASELINE_WITHIN = 0.12
LOSS_WITHIN = 0.10
#: What `dyn` may lose at most: what it lost in the paper.
DYN_AT_MOST = paper.LOSSES[paper.DYN].worst


def both(case: Case, way: Way) -> tuple[Replay, Replay]:
    """A step as vDNN's cuDNN had it, and one that saves little."""
    return replayed(case, way), replayed(case, way, saves_little=True)


def savings(case: Case, found: Replay) -> Savings:
    """What is saved of the baseline's memory, without weights and their gradients."""
    whole = baseline_bytes(network(case), with_weights=False)
    return Savings(1 - found.most_bytes / whole, 1 - found.average_bytes / whole)


def losses(cases: Iterable[Case], way: Way) -> tuple[list[float], list[float]]:
    """What is lost of the oracle's performance: the fastest algorithms, unlimited memory."""
    pairs = [
        tuple(1 - oracle.seconds / found.seconds for oracle, found in zip(*each, strict=True))
        for each in ((both(case, paper.ORACLE), both(case, way)) for case in cases)
    ]
    as_then, ours = zip(*pairs, strict=True)
    return list(as_then), list(ours)


def measure(
    report: script.Report,
    name: str,
    unit: str,
    simulated: float,
    *,
    ours: float | None = None,
    stated: float | None = None,
) -> None:
    """Keep a figure."""
    row = {"simulated": simulated, "ours": ours, "paper": stated, "unit": unit}
    report.measure(name, row)


def baselines(report: script.Report, cases: Iterable[Case]) -> None:
    """Torch's memory of each network, which savings are shares of."""
    for case in cases:
        found, stated = baseline_bytes(network(case)) / GIB, case.baseline_gib
        name = f"baseline: {case}"
        measure(report, name, "GiB", found, stated=stated)
        if stated is not None:
            off = abs(found / stated - 1)
            report.claim(f"{name}: |simulated / paper - 1|", off, "<=", BASELINE_WITHIN)


def policies(report: script.Report, way: Way) -> None:
    """Mean savings over the conventional networks, losses over all ten."""
    found = [both(case, way) for case in CONVENTIONAL]
    stated = paper.SAVINGS.get(way)
    for what, said in (("most", "maximum"), ("average", "average")):
        simulated, ours = (
            statistics.mean(
                getattr(savings(case, pair[at]), what)
                for case, pair in zip(CONVENTIONAL, found, strict=True)
            )
            for at in range(2)
        )
        name = f"{way}: memory saved, {said}, mean of six"
        measure(report, name, "%", simulated, ours=ours, stated=getattr(stated, what, None))
    as_then, little = losses((*CONVENTIONAL, *DEEP), way)
    lost = paper.LOSSES.get(way)
    for what, of in (("mean", statistics.mean), ("worst", max)):
        simulated, value = of(as_then), getattr(lost, what, None)
        name = f"{way}: performance lost, {what} of ten"
        measure(report, name, "%", simulated, ours=of(little), stated=value)
        if value is not None and way != paper.DYN:
            report.claim(f"{name}: |simulated - paper|", abs(simulated - value), "<=", LOSS_WITHIN)
    if way == paper.DYN:
        report.claim(f"{way}: performance lost, worst", max(as_then), "<=", DYN_AT_MOST)


def single(report: script.Report) -> None:
    """What the paper says of single networks."""
    vgg_128, vgg_256 = CONVENTIONAL[4:]
    then, ours = both(vgg_128, paper.ALL_M)
    measure(
        report, f"all (m), {vgg_128}: most maps", "GiB", then.most_bytes / GIB,
        ours=ours.most_bytes / GIB, stated=paper.VGG_128_PEAK_BYTES / GIB,
    )  # fmt: skip
    as_then, little = losses([vgg_128], paper.ALL_M)
    measure(
        report, f"all (m), {vgg_128}: performance lost", "%", as_then[0], ours=little[0],
        stated=paper.VGG_128_LOSS,
    )  # fmt: skip
    then, ours = both(vgg_256, paper.ALL_P)
    measure(
        report, f"all (p), {vgg_256}: offloaded", "GB", then.offloaded_bytes / 1e9,
        ours=ours.offloaded_bytes / 1e9, stated=paper.VGG_256_OFFLOADED_BYTES / 1e9,
    )  # fmt: skip
    for case in DEEP:
        then, ours = both(case, paper.DYN)
        measure(
            report, f"dyn, {case}: peak", "GiB", then.peak_bytes / GIB,
            ours=ours.peak_bytes / GIB, stated=paper.DEEP_MOST_BYTES / GIB,
        )  # fmt: skip
        card = paper.CARD_BYTES
        report.claim(f"dyn, {case}: peak of the card", then.peak_bytes / card, "<=", 1.0)


def networks(report: script.Report, cases: Iterable[Case]) -> None:
    """Every policy of every network: what the paper shows in figures only."""
    for case in cases:
        for way in WAYS:
            pair = both(case, way)
            as_then, little = losses([case], way)
            row = {
                name: {**found._asdict(), "chosen": str(found.chosen), "loss": loss,
                       **{f"saved_{k}": v for k, v in savings(case, found)._asdict().items()}}
                for name, found, loss in zip(
                    ("simulated", "ours"), pair, (as_then[0], little[0]), strict=True)
            }  # fmt: skip
            report.check(f"{case}: {way}", {"ok": pair[0].seconds > 0, **row})


def body(report: script.Report) -> None:
    if report.arguments.quick:
        baselines(report, CONVENTIONAL[:1])
        networks(report, CONVENTIONAL[:1])
        return
    baselines(report, (*CONVENTIONAL, *DEEP, SHALLOW))
    for way in WAYS:
        policies(report, way)
    single(report)
    networks(report, (*CONVENTIONAL, *DEEP))


def shown(value: float | None, unit: str) -> str:
    """Return a figure as the table prints it.

    Examples
    --------
    >>> shown(0.934, "%"), shown(-1e-5, "%"), shown(4.83, "GiB"), shown(None, "%")
    ('93 %', '0 %', '4.8 GiB', '')
    """
    if value is None:
        return ""
    return f"{round(value * 100)} %" if unit == "%" else f"{value:.1f} {unit}"


def table(folder: Path = script.RESULTS) -> str:
    """Return the table of everything that was compared, in its order."""
    rows = [
        (name, *(shown(row[which], row["unit"]) for which in ("paper", "simulated", "ours")))
        for name, row in load_record(NAME, folder)["measurements"].items()
    ]
    return markdown(("", "paper", "simulated", "saving little"), rows)


def each_network(folder: Path = script.RESULTS) -> str:
    """Return the table of every policy of every network, as simulated."""
    rows = []
    for name, row in load_record(NAME, folder)["checks"].items():
        found = row["simulated"]
        rows.append(
            (name, found["chosen"], f"{found['seconds']:.2f} s", shown(found["loss"], "%"),
             *(shown(found[f"{what}_bytes"] / GIB, "GiB")
               for what in ("peak", "most", "average", "offloaded")))
        )  # fmt: skip
    return markdown(
        ("", "as", "step", "lost", "peak", "most maps", "average", "offloaded"), rows, align="llr"
    )


BLOCKS = (Block("docs/vdnn.md", "table", table), Block("docs/vdnn.md", "networks", each_network))


def main(argv: list[str] | None = None) -> int:
    return min(script.run(NAME, body, __doc__, argv, first=("--strict",), needs_card=False), 1)


if __name__ == "__main__":
    sys.exit(main())
