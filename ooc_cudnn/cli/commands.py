"""The command line: ``ooc-cudnn doctor | calibrate | tune | plan | network | demo | bench``.

An error of the library is one line and exit status 1, a wrong command line 2, Ctrl-C 130. To see
where an error was raised, put ``--traceback`` before the subcommand. What a command takes is
looked up when it is asked for, and what it runs is imported when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import ooc_cudnn
from ooc_cudnn.cli.arguments import PROGRAM, add_device, add_memory_limit, complain, on_device
from ooc_cudnn.errors import OocError
from ooc_cudnn.settings import current

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
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", parser_class=_CommandParser
    )
    for name, (about, add) in _COMMANDS.items():
        described = f"{about[0].upper()}{about[1:]}."
        commands.add_parser(name, help=about, description=described, add=add)
    return parser


class _CommandParser(argparse.ArgumentParser):
    """Parser of one command, whose arguments `add` adds when they are first asked for."""

    def __init__(self, *, add: Callable[[Any], None], **options: Any) -> None:
        super().__init__(**options)
        self._add: Callable[[Any], None] | None = add

    def _fill(self) -> None:
        add, self._add = self._add, None
        if add is not None:
            add(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, as any parser."""
        self._fill()
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """Return the help, as any parser."""
        self._fill()
        return super().format_help()


def _later(module: str) -> Callable[[Any], None]:
    """Return what imports a module of this folder, and adds the arguments of its command."""

    def add(parser: Any) -> None:
        importlib.import_module(f"ooc_cudnn.cli.{module}").add_arguments(parser)

    return add


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


def _add_doctor(parser: Any) -> None:
    parser.add_argument(
        "--import", dest="modules", metavar="MODULE", action="append", default=[],
        help="import this first, as your program does (torch, say): it may load another cuDNN",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.add_argument(
        "--engines", action="store_true",
        help="search the engines of this cuDNN for wrong results instead: two minutes on a card",
    )  # fmt: skip
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    if arguments.engines:
        from ooc_cudnn.doctor.engine_report import search_and_report

        return search_and_report(lambda line: print(line, flush=True))
    from ooc_cudnn.doctor.diagnosis import diagnose
    from ooc_cudnn.doctor.report import report
    from ooc_cudnn.doctor.rules import is_broken, judge

    facts = diagnose(arguments.modules)
    if arguments.json:
        data = asdict(facts)
        data["settings"] = {row.name: [str(row.value), row.source] for row in facts.settings}
        data["findings"] = [asdict(finding) for finding in judge(facts)]
        print(json.dumps(data, indent=2, default=str))
    else:
        print(report(facts))
    return int(is_broken(facts))


def _add_calibrate(parser: Any) -> None:
    parser.description += " It takes a minute or two, on an idle machine."
    add_device(parser)
    parser.add_argument("--quick", action="store_true", help="a few seconds, with larger errors")
    parser.add_argument(
        "--table", action="store_true",
        help="print every line that was fitted: its rate at a usual size, and its errors",
    )  # fmt: skip
    parser.add_argument(
        "--no-save", action="store_true", help="print what was measured, and do not keep it"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw samples, fits and residuals (PNG, SVG, PDF)"
    )
    parser.set_defaults(run=_calibrate)


def _calibrate(arguments: argparse.Namespace) -> int:
    from ooc_cudnn.calibration.pictures import draw_calibration
    from ooc_cudnn.calibration.report import report, summary
    from ooc_cudnn.calibration.run import calibrate
    from ooc_cudnn.devices import get_device
    from ooc_cudnn.devices.machines import machine_path
    from ooc_cudnn.plotting import check_can_draw

    if arguments.plot is not None:
        check_can_draw(arguments.plot)  # before the time is spent
    with on_device(arguments.device):
        device = get_device(current().device)
        model = calibrate(device, save=not arguments.no_save, quick=arguments.quick)
    if arguments.table:
        print(f"{report(model)}\n")
    kept = "no file (--no-save)" if arguments.no_save else f"{machine_path(device.identity())}"
    print("\n".join(summary(model, kept)))
    if arguments.plot is not None:
        draw_calibration(model, arguments.plot)
        print(f"drawn in {arguments.plot}")
    return 0


def _add_demo(parser: Any) -> None:
    add_device(parser)
    parser.add_argument("--megapixels", type=float, default=100.0, help="default: %(default)g")
    add_memory_limit(parser, "at most a tenth of the data (the default)")
    parser.add_argument(
        "--output", type=Path, default=Path("demo_output"), metavar="DIR",
        help="for the pictures, and the data meanwhile (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the data: 28 bytes a pixel")
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from ooc_cudnn.demo import run_demo

    with on_device(arguments.device):
        run_demo(
            megapixels=arguments.megapixels,
            memory_limit=arguments.memory_limit,
            output=arguments.output,
            keep=arguments.keep,
            say=partial(print, flush=True),  # in a log, too, progress shows as it is made
        )
    return 0


#: What each command is for, and what adds its arguments.
_COMMANDS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "doctor": (
        "say what is installed, what works, and the command that mends the rest", _add_doctor,
    ),
    "calibrate": ("measure this machine, so that plans are made for it", _add_calibrate),
    "tune": (
        "measure cuDNN's engines for a call's convolutions, so that the fastest are used",
        _later("tune"),
    ),
    "plan": (
        "say how a call would run, and how long it would take; no data, no card needed",
        _later("plan"),
    ),
    "network": (
        "say how a step of training a network would run; no data, no card needed",
        _later("network"),
    ),
    "demo": (
        "filter a photograph of 100 megapixels with a tenth of the memory that its data take",
        _add_demo,
    ),
    "bench": (
        "time the library beside raw copies and other bounds, and verify every result",
        _later("bench"),
    ),
}  # fmt: skip
