"""The command line: ``ooc-cudnn doctor | calibrate | plan | demo | bench``.

An error of the library is one line and exit status 1, a wrong command line 2, Ctrl-C 130. To see
where an error was raised, put ``--traceback`` before the subcommand.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import ooc_cudnn
from ooc_cudnn.cli.arguments import PROGRAM, complain
from ooc_cudnn.cli.bench import add_bench
from ooc_cudnn.cli.plan import add_plan
from ooc_cudnn.cli.simple import add_calibrate, add_demo, add_doctor
from ooc_cudnn.errors import OocError

#: What users cause; anything else is a fault of the library, and shows its traceback.
EXPECTED = (OocError, ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError)
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: `argv`, or the arguments of the process; return the exit status.

    A wrong command line raises ``SystemExit(2)``, as argparse does.
    """
    return run(_parser(), argv)


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Run what a command line asks for; errors are said as the module's docstring says."""
    arguments = parser.parse_args(argv)
    try:
        with _friendly_warnings():
            status: int = arguments.run(arguments)
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        complain("stopped")
        return INTERRUPTED
    except BrokenPipeError:  # `ooc-cudnn plan ... | head`
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EXPECTED as error:
        if arguments.traceback:
            raise
        complain(f"error: {_one_line(error)}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="cuDNN's functions on tensors larger than GPU memory."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {ooc_cudnn.__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error was raised")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (add_doctor, add_calibrate, add_plan, add_demo, add_bench):
        add(commands)
    return parser


@contextlib.contextmanager
def _friendly_warnings() -> Iterator[None]:
    """Show the library's warnings as one line each."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        complain(f"note: {_one_line(message)}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _one_line(message: object) -> str:
    text = " ".join(str(message).split())
    return text or type(message).__name__
