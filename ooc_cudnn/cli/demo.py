"""``ooc-cudnn demo``."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from ooc_cudnn.cli.arguments import add_device, on_device


def add_demo(commands: Any) -> None:
    """Add the command."""
    about = "filter a photograph of 100 megapixels under a tenth of its memory"
    parser = commands.add_parser("demo", help=about, description=f"{about.capitalize()}.")
    add_device(parser)
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

    with on_device(arguments.device):
        run_demo(
            megapixels=arguments.megapixels,
            memory_limit=arguments.memory_limit,
            output=arguments.output,
            keep=arguments.keep,
            say=partial(print, flush=True),  # in a log, too, progress shows as it is made
        )
    return 0
