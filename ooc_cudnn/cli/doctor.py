"""``ooc-cudnn doctor``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any


def add_doctor(commands: Any) -> None:
    """Add the command."""
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
