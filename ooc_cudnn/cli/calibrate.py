"""``ooc-cudnn calibrate``."""

from __future__ import annotations

import argparse
from typing import Any

from ooc_cudnn.cli.arguments import add_device, on_device
from ooc_cudnn.settings import current


def add_calibrate(commands: Any) -> None:
    """Add the command."""
    about = "measure this machine, so that plans are made for it"
    parser = commands.add_parser(
        "calibrate",
        help=about,
        description=f"{about.capitalize()}. It takes a minute or two, on an idle machine.",
    )
    add_device(parser)
    parser.add_argument("--quick", action="store_true", help="a few seconds, with larger errors")
    parser.add_argument(
        "--no-save", action="store_true", help="print what was measured, and do not keep it"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw samples, fits and residuals (PNG, SVG, PDF)"
    )
    parser.set_defaults(run=_calibrate)


def _calibrate(arguments: argparse.Namespace) -> int:
    from ooc_cudnn.calibration.pictures import draw_calibration, require_matplotlib
    from ooc_cudnn.calibration.report import report
    from ooc_cudnn.calibration.run import calibrate
    from ooc_cudnn.devices import get_device
    from ooc_cudnn.devices.machines import machine_path

    if arguments.plot is not None:
        require_matplotlib()  # before the time is spent
    with on_device(arguments.device):
        device = get_device(current().device)
        model = calibrate(device, save=not arguments.no_save, quick=arguments.quick)
    print(report(model))
    print()
    print("not saved" if arguments.no_save else f"saved in {machine_path(device.identity())}")
    if arguments.plot is not None:
        draw_calibration(model, arguments.plot)
        print(f"drawn in {arguments.plot}")
    return 0
