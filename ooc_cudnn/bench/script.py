"""A benchmark of a checkout as a script: its arguments, its settings, its report, its exit status.

What it measures is a function of a `Report`; what every benchmark needs beside that is here by
name.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import ooc_cudnn
from ooc_cudnn.bench.environment import ROOT
from ooc_cudnn.bench.placing import allocate_pinned
from ooc_cudnn.bench.record import RESULTS, claims, load_record, table
from ooc_cudnn.bench.report import Claim, Report
from ooc_cudnn.devices import get_device
from ooc_cudnn.functions.call.call_cache import forget_calls

__all__ = [
    "RESULTS",
    "Claim",
    "Report",
    "allocate_pinned",
    "claims",
    "folder_of",
    "load_record",
    "no_stored_engines",
    "parse",
    "run",
    "run_apart",
    "table",
]


def parse(
    description: str | None,
    argv: list[str] | None,
    *,
    needs_card: bool = True,
    more: Callable[[argparse.ArgumentParser], object] | None = None,
) -> argparse.Namespace:
    """Read the arguments that every benchmark takes; `device` becomes "cuda" or "host".

    `more` adds those of one benchmark.
    """
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes; times mean nothing")
    parser.add_argument("--strict", action="store_true", help="exit with 2 if a bound is missed")
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:1 or host")
    parser.add_argument("--machine", help="machine model; by default the device's shipped profile")
    parser.add_argument("--output", default=str(RESULTS), help="folder for the JSON file")
    parser.add_argument("--scratch", help="folder for large files; by default the system's")
    if more is not None:
        more(parser)
    arguments = parser.parse_args(argv)
    if arguments.device == "auto":
        arguments.device = get_device("auto").kind
    arguments.cuda = arguments.device != "host"
    if arguments.machine is None:
        arguments.machine = "h200" if arguments.cuda else "host"
    if needs_card and not (arguments.quick or arguments.cuda):
        parser.error("this benchmark needs a GPU; without one, only --quick runs")
    return arguments


def run(
    name: str,
    body: Callable[[Report], None],
    description: str | None,
    argv: list[str] | None = None,
    *,
    first: Sequence[str] = (),
    needs_card: bool = True,
    more: Callable[[argparse.ArgumentParser], object] | None = None,
) -> int:
    """Run a benchmark's body under its device's settings and report.

    `first` are arguments of its own, ahead of those that are given.
    """
    words = [*first, *(sys.argv[1:] if argv is None else argv)]
    arguments = parse(description, words, needs_card=needs_card, more=more)
    report = Report(name, arguments)
    with ooc_cudnn.settings(
        device=arguments.device,
        machine=arguments.machine,
        plan_cache=False,  # seconds of planning are those of planning
        progress=False,
        verify=0,
    ):
        body(report)
        return report.finish()


def run_apart(command: Sequence[str], timeout_seconds: float) -> int:
    """Run a command in a checkout; return its status, 124 where it was ended."""
    try:
        return subprocess.run(command, cwd=ROOT, timeout=timeout_seconds).returncode
    except subprocess.TimeoutExpired:
        sys.stdout.write(f"{' '.join(command[1:])}: ended after {timeout_seconds:g} s\n")
        return 124


@contextmanager
def no_stored_engines() -> Iterator[None]:
    """Keep what users have stored out of it, and what is stored here out of theirs."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        forget_calls()
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
            forget_calls()


def folder_of(arguments: argparse.Namespace) -> str:
    """Return the folder for large files."""
    return str(arguments.scratch or os.environ.get("TMPDIR") or tempfile.gettempdir())
