"""What a search that takes much longer finds: docs/planning-networks.md shows it.

The search of `best` ends after a number of steps. Here each network is planned once more with
several times as many candidates, rounds and steps, and with more plans compared. No card is needed:
steps are planned for an H200's machine model, and replayed on a virtual clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

from benchmarks import common
from benchmarks.pages.blocks import Block, markdown, stored
from benchmarks.planning_networks import CASES, PAGE, PLENTY, SMALL, Case, planned
from ooc_cudnn import networks
from ooc_cudnn.network.search import incumbent, remat_greedy
from ooc_cudnn.units import format_seconds

NAME = "longer_searches"
RATIO = 0.4
#: How many times as many candidates are tried, and how many more rounds there are. Steps grow by
#: the square of it.
LONGER = (2, 4)
#: And how many times as much work may go into comparing plans.
MORE_PLANS = 10
#: As a share of the step, what a longer search may find.
ASKED = 0.005


@contextmanager
def longer(times: int) -> Iterator[None]:
    """Search so many times as hard, in this block."""
    squared = times * times
    candidates = tuple(times * count for count in remat_greedy.FIRST)
    steps = tuple(squared * count for count in remat_greedy.MOST_TO_FIT)
    with ExitStack() as stack:
        for module, name, value in (
            (remat_greedy, "FIRST", candidates),
            (remat_greedy, "LATER", times * remat_greedy.LATER),
            (remat_greedy, "MOST_INSTEAD", times * remat_greedy.MOST_INSTEAD),
            (remat_greedy, "MOST_ROUNDS", times * remat_greedy.MOST_ROUNDS),
            (remat_greedy, "MOST_TO_FIT", steps),
            (remat_greedy, "MOST_TO_IMPROVE", squared * remat_greedy.MOST_TO_IMPROVE),
            (incumbent, "WORK_A_SECOND", MORE_PLANS * incumbent.WORK_A_SECOND),
            (incumbent, "MOST_WORK", MORE_PLANS * incumbent.MOST_WORK),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def measured(report: common.Report, case: Case) -> float:
    """By what share of the step the fastest plan of longer searches is faster."""
    net, loss = getattr(networks, case.network)(batch=case.batch)
    step = net.training_phases(loss)
    limit = int(RATIO * planned(step, PLENTY, "keep", micro_batches=1).device_bytes)
    found = list[float]()
    for times in (1, *LONGER):
        begin = time.process_time()
        with longer(times) if times > 1 else nullcontext():
            plan = planned(step, limit)
        taken = time.process_time() - begin
        found.append(plan.seconds)
        row = {"ok": plan.device_bytes <= limit, "seconds": plan.seconds}
        report.check(f"{case}: {times}", {**row, "planning_seconds": taken})
        report.say(f"{case}, {times}: {format_seconds(plan.seconds)}, planned in {taken:.0f} s")
    return 1 - min(found) / found[0]


def body(report: common.Report) -> None:
    for case in SMALL if report.quick else CASES:
        gain = measured(report, case)
        report.claim(f"{case}: what a longer search saves of the step", gain, "<=", ASKED)
        report.write()


def table(folder: Path = common.RESULTS) -> str:
    """A row for each network: the plan of `best`, and the fastest of longer searches."""
    searches: dict[str, list[Mapping[str, float]]] = {}
    for name, row in stored(NAME, folder)["checks"].items():
        searches.setdefault(name.rpartition(": ")[0], []).append(row)
    rows = []
    for name, (own, *others) in searches.items():
        best = min(others, key=lambda each: each["seconds"])
        gain = max(1 - best["seconds"] / own["seconds"], 0.0)
        spent = sum(each["planning_seconds"] for each in others)
        rows.append(
            (name, format_seconds(own["seconds"]),
             f"{own['planning_seconds']:.1f} s", format_seconds(best["seconds"]),
             f"{spent:.0f} s", f"{100 * gain:.1f} %")
        )  # fmt: skip
    head = ("network", "step", "planned in", "by longer searches", "planned in", "faster by")
    return markdown(head, rows, align="lrrrrr")


BLOCKS = (Block(PAGE, "longer searches", table),)


main = partial(common.run, NAME, body, __doc__, needs_card=False)

if __name__ == "__main__":
    common.main(main)
