"""``ooc-cudnn network NAME --sweep``: seconds of a step over memory, for each policy."""

from __future__ import annotations

import argparse
import json
import sys

from ooc_cudnn.activity import activity, say
from ooc_cudnn.cli.stdout import keep_stdout_clean
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.network.tradeoff.curve import QUICK, SHARES, trade_off
from ooc_cudnn.network.tradeoff.plot import draw_trade
from ooc_cudnn.progress import reporter
from ooc_cudnn.settings import current
from ooc_cudnn.units import parse_limit


def limits(text: str) -> tuple[int | float, ...]:
    """Read "0.8,0.4,16GiB": shares of what keeping everything takes, and sizes.

    >>> limits("0.8,16GiB")
    (0.8, 17179869184)
    """
    try:
        return tuple(parse_limit(each, name="--limits") for each in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sweep(arguments: argparse.Namespace, net: Network, loss: Tensor) -> None:
    """Plan, and show what comes of it."""
    policies, asked = arguments.policies or QUICK, arguments.limits or SHARES
    name, progress = arguments.network, current().progress
    total, label = len(policies) * len(asked), f"plans of {arguments.network}"
    # a line in place of a bar: it goes on while a plan is made, and says how that goes
    told = progress if callable(progress) else False

    def tell(done: int) -> None:
        report.update(done)
        say(f"{done} of {total}")

    with (
        keep_stdout_clean(),
        activity(label, progress, holds_line=True),
        reporter(told, total=total, label=label, predicted_seconds=0.0) as report,
    ):
        trade = trade_off(
            net,
            loss,
            name=name,
            limits=asked,
            policies=policies,
            machine=arguments.machine,
            tell=tell,
        )
    print(json.dumps(trade.to_json(), indent=2) if arguments.json else trade.explain())
    if arguments.plot is not None:
        draw_trade(trade, arguments.plot)
        print(f"drawn in {arguments.plot}", file=sys.stderr if arguments.json else sys.stdout)
