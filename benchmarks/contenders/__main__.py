"""``python -m benchmarks.contenders``: ``ooc-cudnn bench`` with every contender."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import benchmarks.contenders
from ooc_cudnn.bench.runner import Suite
from ooc_cudnn.cli import bench
from ooc_cudnn.cli.commands import run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.contenders",
        description=(benchmarks.contenders.__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--traceback", action="store_true", help="show where an error was raised")
    bench.add_suite(parser, _suite)
    return run(parser, argv)


def _suite() -> Suite:
    from benchmarks.contenders.suite import SUITE

    return SUITE


if __name__ == "__main__":
    sys.exit(main())
