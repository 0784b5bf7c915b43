"""The command line: ``ooc-cudnn doctor | calibrate | plan | demo | bench``.

An error of the library is one line and exit status 1, a wrong command line 2, Ctrl-C 130. To see
where an error was raised, put ``--traceback`` before the subcommand.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import ooc_cudnn
from ooc_cudnn.errors import OocError
from ooc_cudnn.functions.plan import FUNCTIONS, plan
from ooc_cudnn.settings import current, settings
from ooc_cudnn.tensor import DTYPES, PLACEMENTS, TensorSpec
from perfmodel import shipped_names

PROGRAM = "ooc-cudnn"
#: What users cause; anything else is a fault of the library, and shows its traceback.
EXPECTED = (OocError, ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError)
INTERRUPTED = 130

_OPERANDS = ("x", "w", "b")
_NUMBERS = ("padding", "stride", "dilation")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; those of the process when left out.

    Returns
    -------
    int
        The exit status. A wrong command line raises ``SystemExit(2)``, as argparse does.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        with _friendly_warnings():
            status: int = arguments.run(arguments)
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        _complain("stopped")
        return INTERRUPTED
    except BrokenPipeError:  # `ooc-cudnn plan ... | head`
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EXPECTED as error:
        if arguments.traceback:
            raise
        _complain(f"error: {_one_line(error)}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="cuDNN's functions on tensors larger than GPU memory."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {_version()}")
    parser.add_argument("--traceback", action="store_true", help="show where an error was raised")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_add_doctor, _add_calibrate, _add_plan, _add_demo, _add_bench):
        add(commands)
    return parser


# ---------------------------------------------------------------------------------------------
# doctor
# ---------------------------------------------------------------------------------------------


def _add_doctor(commands: Any) -> None:
    about = "say what is installed, what works, and the command that mends the rest"
    parser = commands.add_parser("doctor", help=about, description=f"{about.capitalize()}.")
    parser.add_argument(
        "--import",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import this first, as your program does (torch, say): it may load another cuDNN",
    )
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from ooc_cudnn.doctor import diagnose
    from ooc_cudnn.doctor_report import report
    from ooc_cudnn.doctor_rules import is_broken, judge

    facts = diagnose(arguments.modules)
    if arguments.json:
        data = asdict(facts)
        data["settings"] = {row.name: [str(row.value), row.source] for row in facts.settings}
        data["findings"] = [asdict(finding) for finding in judge(facts)]
        print(json.dumps(data, indent=2, default=str))
    else:
        print(report(facts))
    return int(is_broken(facts))


# ---------------------------------------------------------------------------------------------
# calibrate
# ---------------------------------------------------------------------------------------------


def _add_calibrate(commands: Any) -> None:
    about = "measure this machine, so that plans are made for it"
    parser = commands.add_parser("calibrate", help=about, description=f"{about.capitalize()}.")
    _add_device(parser)
    parser.add_argument("--quick", action="store_true", help="seconds, with larger errors")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw samples, fits and residuals (PNG, SVG, PDF)"
    )
    parser.set_defaults(run=_calibrate)


def _calibrate(arguments: argparse.Namespace) -> int:
    from ooc_cudnn.calibration import calibrate
    from ooc_cudnn.calibration_pictures import draw_calibration, require_matplotlib
    from ooc_cudnn.calibration_report import report
    from ooc_cudnn.devices import get_device
    from ooc_cudnn.machines import machine_path

    if arguments.plot is not None:
        require_matplotlib()  # before the time is spent
    with _on(arguments.device):
        device = get_device(current().device)
        model = calibrate(device, save=not arguments.no_save, quick=arguments.quick)
    print(report(model))
    print()
    print("not saved" if arguments.no_save else f"saved in {machine_path(device.identity())}")
    if arguments.plot is not None:
        draw_calibration(model, arguments.plot)
        print(f"drawn in {arguments.plot}")
    return 0


# ---------------------------------------------------------------------------------------------
# plan
# ---------------------------------------------------------------------------------------------


def _add_plan(commands: Any) -> None:
    about = "say how a call would run, and how long it would take; no data, no card needed"
    parser = commands.add_parser(
        "plan",
        help=about,
        description=f"{about.capitalize()}.",
        epilog=f"example: {PROGRAM} plan convolution_forward --x 512x64x256x256 "
        "--w 64x64x3x3@device --padding 1 --machine h200 --memory-limit 16GiB",
    )
    parser.add_argument("function", help=", ".join(FUNCTIONS))
    shape = "SHAPE[@PLACEMENT]"
    parser.add_argument("--x", type=_operand, required=True, metavar=shape, help="n x cX x ...")
    parser.add_argument("--w", type=_operand, required=True, metavar=shape, help="cY x cX x ...")
    parser.add_argument("--b", type=_operand, metavar=shape, help="cY, where w says nothing else")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    parser.add_argument(
        "--placement",
        choices=PLACEMENTS,
        default="pinned",
        help="of the operands that name none, and of the result (default: %(default)s)",
    )
    parser.add_argument("--out-placement", choices=PLACEMENTS, help="of the result")
    for name in _NUMBERS:
        parser.add_argument(
            f"--{name}", type=_sizes, metavar="N[,N...]", help="for all or for each spatial axis"
        )
    parser.add_argument("--groups", type=int, metavar="N")
    parser.add_argument("--activation", metavar="MODE", help="relu, sigmoid, ...")
    parser.add_argument("--coef", type=float)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--machine",
        metavar="NAME",
        help=f"{', '.join(shipped_names())} or a file; this machine when left out",
    )
    _add_device(where)
    parser.add_argument("--memory-limit", metavar="SIZE", help="16GiB, 0.5, ...")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    given: dict[str, Any] = {}
    for name in (*_NUMBERS, "groups", "activation", "coef"):
        value = getattr(arguments, name)
        if value is not None:
            given[name] = value
    shape, place = arguments.b or ((arguments.w[0][0],), None)
    needs_b = "add_activation" in arguments.function
    operands = {"x": arguments.x, "w": arguments.w}
    if needs_b or arguments.b:
        operands["b"] = (shape, place)
    for name, (shape, place) in operands.items():
        given[name] = TensorSpec(shape, arguments.dtype, place or arguments.placement)
    options = {"machine": arguments.machine, "memory_limit": arguments.memory_limit}
    with _on(arguments.device):
        found = plan(arguments.function, **given, **options)
        # Only the first plan knows the result's shape.
        out = replace(
            dict(found.operands)["y"], placement=arguments.out_placement or arguments.placement
        )
        found = plan(arguments.function, **given, **options, out=out)
    print(json.dumps(found.to_json(), indent=2) if arguments.json else found.explain())
    return 0


def _operand(text: str) -> tuple[tuple[int, ...], str | None]:
    """Read "512x64x256x256@pinned"; without a placement it is None."""
    shape, at, place = text.partition("@")
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", shape):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape; give one like 512x64x256x256")
    if at and place not in PLACEMENTS:
        raise argparse.ArgumentTypeError(
            f"{place!r} is not a placement; give one of {', '.join(PLACEMENTS)}"
        )
    return tuple(int(extent) for extent in shape.split("x")), place or None


def _sizes(text: str) -> Any:
    """Read "1", "1,2" or, for padding, "(0,1),2"."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    if not isinstance(value, int | tuple) or isinstance(value, bool):
        raise argparse.ArgumentTypeError(f"{text!r}: give 1, or 1,2, or for padding (0,1),2")
    return value


# ---------------------------------------------------------------------------------------------
# demo
# ---------------------------------------------------------------------------------------------


def _add_demo(commands: Any) -> None:
    about = "filter a photograph of 100 megapixels under a tenth of its memory"
    parser = commands.add_parser("demo", help=about, description=f"{about.capitalize()}.")
    _add_device(parser)
    parser.add_argument("--megapixels", type=float, default=100.0, help="default: %(default)g")
    parser.add_argument(
        "--memory-limit", metavar="SIZE", help="at most a tenth of the data (the default)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("demo_output"), metavar="DIR",
        help="for the pictures, and the data meanwhile (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the data: 28 bytes a pixel")
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from ooc_cudnn.demo import run_demo

    with _on(arguments.device):
        run_demo(
            megapixels=arguments.megapixels,
            memory_limit=arguments.memory_limit,
            output=arguments.output,
            keep=arguments.keep,
            say=partial(print, flush=True),  # in a log, too, progress shows as it is made
        )
    return 0


# ---------------------------------------------------------------------------------------------
# bench
# ---------------------------------------------------------------------------------------------


def _add_bench(commands: Any) -> None:
    about = "time the library beside its baselines, and verify every result"
    parser = commands.add_parser("bench", help=about, description=f"{about.capitalize()}.")
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
    _add_device(parser)
    parser.add_argument("--machine", metavar="NAME", help="a machine model to plan with")
    parser.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from ooc_cudnn.bench.cases import CASES
    from ooc_cudnn.bench.command import listing, report, run_cases, select, status_of
    from ooc_cudnn.bench.environment import plain

    cases = select(arguments.cases, CASES)
    if arguments.list:
        if arguments.json:
            print(json.dumps([case.to_json() for case in cases], indent=1))
        else:
            print(listing(cases))
        return 0
    records = run_cases(
        cases,
        quick=arguments.quick,
        device=arguments.device,
        machine=arguments.machine,
        repeats=arguments.repeats,
        output=arguments.output,
        # Where the records go to stdout, what goes on does not.
        say=partial(print, flush=True, file=sys.stderr if arguments.json else sys.stdout),
    )
    if arguments.json:
        print(json.dumps(records, indent=1, default=plain))
    else:
        print()
        print(report(records))
    return status_of(records, _complain)


def _count(text: str) -> int:
    """Read a number of repeats."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of repeats; give 1 or more")
    return int(text)


# ---------------------------------------------------------------------------------------------


def _on(device: str | None) -> contextlib.AbstractContextManager[None]:
    """The settings with the device that was named, if one was."""
    return settings(device=device) if device is not None else contextlib.nullcontext()


def _add_device(parser: Any) -> None:
    parser.add_argument("--device", metavar="NAME", help="auto, cuda, cuda:1 or host")


@contextlib.contextmanager
def _friendly_warnings() -> Iterator[None]:
    """Show the library's warnings as one line each."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        _complain(f"note: {_one_line(message)}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _one_line(message: object) -> str:
    text = " ".join(str(message).split())
    return text or type(message).__name__


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)


def _version() -> str:
    return getattr(ooc_cudnn, "__version__", "unknown")


if __name__ == "__main__":
    sys.exit(main())
