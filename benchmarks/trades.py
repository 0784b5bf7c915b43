"""Seconds over memory, policy by policy: the curves of docs/planning-networks.md.

No card is needed and nothing is measured: steps are planned for an H200's machine model, and
replayed on a virtual clock, as `ooc-cudnn network NAME --sweep` does.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from benchmarks.pages import canvas
from benchmarks.planning_networks import CASES as PLANNED
from benchmarks.planning_networks import MACHINE, SMALL, Case
from ooc_cudnn import networks
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import load_record
from ooc_cudnn.network.tradeoff.curve import SHARES, Trade, trade_off
from ooc_cudnn.network.tradeoff.plot import figure_of

NAME = "trades"
#: Those of which pictures are drawn; and all, of which `best` is compared with every policy.
DRAWN = (Case("resnet50", 256), Case("unet", 1))
CASES = (*DRAWN, *(case for case in PLANNED if case.network not in {c.network for c in DRAWN}))


def body(report: script.Report) -> None:
    for case in SMALL if report.quick else CASES:
        net, loss = getattr(networks, case.network)(batch=case.batch)
        limits = SHARES[::3] if report.quick else SHARES
        trade = trade_off(net, loss, name=str(case), limits=limits, machine=MACHINE)
        report.check(str(case), {"ok": best_is_fastest(trade)})
        report.measure(str(case), trade.to_json(), spoken="to be drawn")
        report.say(trade.explain())
        report.write()


def best_is_fastest(trade: Trade) -> bool:
    """Whether no policy is faster than `best`, under the same limit or a smaller one."""
    least = float("inf")
    for limit in sorted(trade.limits):
        plans = {each.policy: each.plan for each in trade.points if each.limit_bytes == limit}
        least = min([least, *(plan.seconds for plan in plans.values() if plan is not None)])
        best = plans["best"]
        if least < (float("inf") if best is None else best.seconds) * (1 - 1e-9):
            return False
    return True


# The pictures ------------------------------------------------------------------------------------


def drawn(case: Case) -> dict[str, Any]:
    """The curves of a case."""
    return load_record(NAME)["measurements"][str(case)]


PICTURES = tuple(
    canvas.Picture(
        f"docs/images/networks/trade-{case.network}.png",
        partial(drawn, case),
        lambda curves: figure_of(Trade.from_json(curves)),
    )
    for case in DRAWN
)


main = partial(script.run, NAME, body, __doc__, needs_card=False)


if __name__ == "__main__":
    sys.exit(main())
