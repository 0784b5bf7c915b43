"""``ooc-cudnn tune FUNCTION``: measure cuDNN's engines for the convolutions of a call."""

from __future__ import annotations

import argparse

from ooc_cudnn.call_planner.explain import align_columns
from ooc_cudnn.cli.arguments import on_device
from ooc_cudnn.cli.plan import add_for_function, function_parser, request_of
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.engines import Measurement
from ooc_cudnn.devices.tuning_database import engines_path
from ooc_cudnn.functions.tune.tune import finish_tuning, tune
from ooc_cudnn.settings import current
from ooc_cudnn.units import format_bytes, format_seconds

#: Widths of the columns of a table of engines.
COLUMNS = ("<36", ">11", ">12", ">9")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_for_function(parser, "tune")
    parser.description = f"{parser.description}" + (
        " Without a function it tries every engine where `network --tune` tried some. It takes "
        "seconds for each convolution, on an idle GPU; results hold for one card and one version "
        "of cuDNN. The settings count: OOC_CUDNN_ALLOW_TF32=0 tunes strict float32. Functions "
        "without a convolution have nothing to tune."
    )
    parser.set_defaults(run=_run)


def _run(before: argparse.Namespace) -> int:
    name = before.function
    if name is None:
        device = get_device(current().device)
        measurements = finish_tuning(device, tell=_tell)
    else:
        arguments = function_parser(name, "tune").parse_args(before.arguments)
        with on_device(arguments.device):
            device = get_device(current().device)
            measurements = tune(name, tell=_tell, **request_of(name, arguments))
    print(f"saved in {engines_path(device)}" if measurements else "nothing is left to measure")
    return 0


def _tell(measured: Measurement) -> None:
    print("\n".join(format_launch(measured)), flush=True)


def format_launch(measured: Measurement) -> list[str]:
    """Return the table of one launch as lines."""
    rows: list[tuple[str, ...]] = [("engine", "seconds", "workspace", "error")]
    for option in measured.options:
        size = format_bytes(option.workspace_bytes)
        error = "unknown" if option.error is None else f"{option.error:.1e}"
        rows.append((option.name, format_seconds(option.seconds), size, error))
    operation = measured.operation
    shapes = "" if operation is None else f", result {'x'.join(map(str, operation.output_shape))}"
    return [f"{measured.work.kind}{shapes}", *align_columns(rows, COLUMNS)]
