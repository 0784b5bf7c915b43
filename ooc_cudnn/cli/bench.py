"""``ooc-cudnn bench``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ooc_cudnn.cli.arguments import add_device, complain

if TYPE_CHECKING:
    from ooc_cudnn.bench.runner import Suite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_suite(parser, _suite)


def add_suite(parser: argparse.ArgumentParser, suite: Callable[[], Suite]) -> None:
    """Let a parser run a suite; importing it waits until it runs."""
    parser.add_argument("--list", action="store_true", help="name the cases, and run none")
    parser.add_argument(
        "--case",
        dest="cases",
        metavar="NAME",
        action="append",
        default=[],
        help="run this one, or those of a pattern such as 'fig9-*'; all when left out",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, whose times mean nothing")
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="write each record to DIR/NAME.json"
    )
    parser.add_argument("--repeats", type=_count, metavar="N", help="instead of each case's own")
    add_device(parser)
    parser.add_argument("--machine", metavar="NAME", help="a machine model to plan with")
    parser.set_defaults(run=lambda arguments: _bench(arguments, suite()))


def _suite() -> Suite:
    from ooc_cudnn.bench.runner import SUITE

    return SUITE


def _bench(arguments: argparse.Namespace, suite: Suite) -> int:
    from ooc_cudnn.bench.command import list_cases, report, run_cases, select, status_of
    from ooc_cudnn.bench.environment import plain

    cases = select(arguments.cases, suite.cases)
    if arguments.list:
        if arguments.json:
            print(json.dumps([case.to_json() for case in cases], indent=1))
        else:
            print(list_cases(cases))
        return 0
    records = run_cases(
        cases,
        quick=arguments.quick,
        device=arguments.device,
        machine=arguments.machine,
        repeats=arguments.repeats,
        output=arguments.output,
        workloads=suite.workloads,
        # Where the records go to stdout, what goes on does not.
        say=partial(print, flush=True, file=sys.stderr if arguments.json else sys.stdout),
    )
    if arguments.json:
        print(json.dumps(records, indent=1, default=plain))
    else:
        print()
        print(report(records))
    return status_of(records, complain)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of repeats; give 1 or more")
    return int(text)
