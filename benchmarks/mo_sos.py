"""MO-SOS's comparison by simulation on its Tesla P40: one integer program against two baselines.

VGG-19 and U-Net are planned with shares of the memory that keeping everything takes, by `mo_sos`,
by recomputing alone (`checkmate`), by offloading and recomputing (`str`), and by `best`, and the
schedule of each step is replayed on a virtual clock: no card is needed.
`python -m benchmarks.regenerate` puts the tables into docs/mo-sos.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.mo_sos_replay import UNET, VGG, Replay, keep_all, replayed
from benchmarks.pages.blocks import Block
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import load_record, markdown

NAME = "mo_sos"
RATIOS = (0.8, 0.7, 0.6, 0.5, 0.4)
NETWORKS = (VGG, UNET)
POLICIES = ("mo_sos", "checkmate", "str", "best")
#: What each is called in tables.
SAID = {
    "checkmate": "recompute only",
    "str": "offload and recompute",
    "mo_sos": "MO-SOS",
    "best": "best",
}
#: Less time than each baseline, as the paper states it of both networks and all ratios.
STATED = {"checkmate": 0.1353, "str": 0.0436}
GIB = 2**30

#: By ratio and policy; None where a policy has no plan.
Found = dict[tuple[float, str], Replay | None]


def swept(network: str) -> Found:
    """A network by every policy at every ratio."""
    steps = Found()
    for ratio in RATIOS:
        for policy in POLICIES:
            steps[ratio, policy] = replayed(network, policy, ratio)
            print(network, ratio, policy, steps[ratio, policy], file=sys.stderr, flush=True)
    return steps


def swept_anew(network: str) -> Found:
    """The same where only `best` is planned: integer programs are as they were recorded."""
    rows, steps = load_record(NAME)["measurements"], Found()
    for ratio in RATIOS:
        for policy in POLICIES[:-1]:
            row = rows[f"{network} at {ratio}: {policy}"]
            step = {name: row[name] for name in Replay._fields if name in row}
            steps[ratio, policy] = Replay(**step) if step else None
        steps[ratio, "best"] = replayed(network, "best", ratio)
    return steps


def less(found: Mapping[str, Found], baseline: str) -> list[float]:
    """Of each network and ratio for which both have a plan, how much less time `mo_sos` takes."""
    pairs = (
        (each[ratio, "mo_sos"], each[ratio, baseline])
        for each in found.values()
        for ratio in RATIOS
    )
    return [1 - ours.seconds / other.seconds for ours, other in pairs if ours and other]


def body(report: script.Report) -> None:
    if report.arguments.quick:
        report.measure(f"{VGG}: keep all", {"bytes": keep_all(VGG)})
        return
    with ProcessPoolExecutor(len(NETWORKS)) as pool:
        sweep = swept_anew if report.arguments.best_only else swept
        by_network = dict(zip(NETWORKS, pool.map(sweep, NETWORKS), strict=True))
    if report.arguments.best_only:
        said = "only best was planned: the integer programs' steps are of an earlier record"
        for note in dict.fromkeys([*load_record(NAME)["notes"], said]):
            report.note(note)
    for network, steps in by_network.items():
        report.measure(f"{network}: keep all", {"bytes": keep_all(network)})
        for (ratio, policy), step in steps.items():
            row = {} if step is None else step._asdict()
            name = f"{network} at {ratio}: {policy}"
            report.measure(name, {"network": network, "ratio": ratio, "policy": policy, **row})
            if step is not None:
                most = ratio * keep_all(network)
                report.check(name, {"ok": step.peak_bytes <= most, "most_bytes": int(most)})
        for ratio in RATIOS:
            ours, best = steps[ratio, "mo_sos"], steps[ratio, "best"]
            assert best is not None
            if ours is not None:
                name = f"{network} at {ratio}: seconds of best over those of mo_sos"
                report.claim(name, best.seconds / ours.seconds, "<=", 1.0)
    for baseline, stated in STATED.items():
        mean = statistics.mean(less(by_network, baseline))
        report.claim(f"mo_sos below {baseline}, mean", mean, ">=", stated)


def _stored(folder: Path) -> Iterator[tuple[str, dict[str, Mapping[str, float]]]]:
    """Yield each network at each ratio, and its steps by policy, in the order of `SAID`."""
    steps = load_record(NAME, folder)["measurements"]
    for name in (f"{network} at {ratio}" for network in NETWORKS for ratio in RATIOS):
        yield name, {policy: steps[f"{name}: {policy}"] for policy in SAID}


def table(folder: Path = script.RESULTS) -> str:
    """Return seconds of every policy at every ratio, and how much less those of `mo_sos` are."""
    rows = []
    for name, steps in _stored(folder):
        seconds = {policy: step.get("seconds") for policy, step in steps.items()}
        below = (_less(seconds["mo_sos"], seconds[baseline]) for baseline in STATED)
        rows.append((name, *map(_seconds, seconds.values()), *below))
    return markdown(("", *SAID.values(), *(f"below {SAID[each]}" for each in STATED)), rows)


def fates(folder: Path = script.RESULTS) -> str:
    """Return what every policy offloads and makes again."""
    rows = []
    for name, steps in _stored(folder):
        row = [name]
        for step in steps.values():
            moved = (step.get(f"{fate}_bytes") for fate in ("offloaded", "remade"))
            row.append(" / ".join("none" if b is None else f"{b / GIB:.1f}" for b in moved))
        rows.append(tuple(row))
    return markdown(("GiB offloaded / recomputed", *SAID.values()), rows)


def means(folder: Path = script.RESULTS) -> str:
    """Return the claims: both means, and the worst of `best` beside `mo_sos`."""
    claims = load_record(NAME, folder)["claims"]
    return markdown(
        ("", "simulated", "asked"),
        [
            (claim["name"], f"{claim['value']:.3f}", f"{claim['relation']} {claim['bound']:.3f}")
            for claim in claims
        ],
    )


def _seconds(value: float | None) -> str:
    return "no plan" if value is None else f"{value:.3f} s"


def _less(ours: float | None, other: float | None) -> str:
    return "" if ours is None or other is None else f"{(1 - ours / other) * 100:.1f} %"


BLOCKS = (
    Block("docs/mo-sos.md", "table", table),
    Block("docs/mo-sos.md", "means", means),
    Block("docs/mo-sos.md", "fates", fates),
)


def main(argv: list[str] | None = None) -> int:
    first = ("--strict",)
    return min(script.run(NAME, body, __doc__, argv, first=first, needs_card=False, more=more), 1)


def more(parser: argparse.ArgumentParser) -> None:
    """Add the argument of this benchmark alone."""
    parser.add_argument(
        "--best-only", action="store_true", help="integer programs as they were recorded"
    )


if __name__ == "__main__":
    sys.exit(main())
