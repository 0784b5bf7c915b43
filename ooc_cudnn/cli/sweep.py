"""``--sweep`` of `network` and of `plan --torch`: seconds of a step over memory."""

from __future__ import annotations

import argparse
import json
import sys

from ooc_cudnn.cli.stdout import keep_stdout_clean
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.network.tradeoff.curve import QUICK, SHARES, Trade, trade_off
from ooc_cudnn.network.tradeoff.plot import draw_trade
from ooc_cudnn.units import parse_limit


def limits(text: str) -> tuple[int | float, ...]:
    """Read "0.8,0.4,16GiB": shares of what keeping everything takes, and sizes.

    >>> limits("0.8,16GiB")
    (0.8, 17179869184)
    """
    try:
        return tuple(parse_limit(each, name="--memory-limits") for each in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sweep(arguments: argparse.Namespace, net: Network, loss: Tensor) -> None:
    """Plan, and show what comes of it."""
    with keep_stdout_clean():
        trade = trade_off(
            net,
            loss,
            name=arguments.network,
            limits=arguments.limits or SHARES,
            policies=arguments.policies or QUICK,
            machine=arguments.machine,
        )
    show(trade, arguments)


def show(trade: Trade, arguments: argparse.Namespace) -> None:
    """Print a sweep as a table, or as JSON; and draw it, if that is asked for."""
    print(json.dumps(trade.to_json(), indent=2) if arguments.json else trade.explain())
    if arguments.plot is not None:
        draw_trade(trade, arguments.plot)
        print(f"drawn in {arguments.plot}", file=sys.stderr if arguments.json else sys.stdout)
