"""Measure everything that needs a GPU again, in named parts, one process each.

``python -m benchmarks.card`` runs all parts, `--only` some of them, `--list` names them. Results go
to `--output`, else to the folder in $OUT, else to benchmarks/results; what
``python -m benchmarks.contenders`` measures goes to its folder `bench`. Afterwards ``make figures``
makes the tables and pictures.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from ooc_cudnn.bench import script

SCRIPTS = ("functions", "kernels", "passes")
#: Cases of `benchmarks.whole`, a process each.
WHOLE = ("seismic", "labels", "decoder", "windows")
#: Cases of `benchmarks.networks`, a process each.
NETWORKS = (
    "vgg16", "resnet50", "features", "unet_3d", "googlenet", "densenet121", "unet", "unet_3d-128",
    "vgg16-n32", "vgg16-n64", "vgg16-n128", "vgg16-n256", "vgg16-n512",
)  # fmt: skip


class Part(NamedTuple):
    """What one process measures in at most so many seconds: a module's arguments, or cases."""

    seconds: int
    module: str
    arguments: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()

    def command(self, output: str, *, quick: bool, device: str, machine: str | None) -> list[str]:
        command = [sys.executable, "-m", f"benchmarks.{self.module}", *self.arguments]
        command += ["--output", f"{output}/bench" if self.cases else output]
        command += [word for pattern in self.cases for word in ("--case", pattern)]
        # The suite does not know "auto", which is what it takes without this.
        command += [] if self.cases and device == "auto" else ["--device", device]
        command += ["--quick"] if quick else []
        return command if machine is None else [*command, "--machine", machine]


def _suite(seconds: int, *cases: str) -> Part:
    return Part(seconds, "contenders", cases=cases)


PARTS = {
    **{name: Part(240, name) for name in SCRIPTS},
    **{f"networks-{case}": Part(590, "networks", ("--case", case)) for case in NETWORKS},
    **{f"whole-{case}": Part(300, "whole", ("--case", case)) for case in WHOLE},
    "engines": Part(300, "engines"),
    "functions_in_core": Part(450, "functions_in_core"),
    "model-calls": Part(540, "model_accuracy", ("--part", "calls")),
    "model-splits": Part(540, "model_accuracy", ("--part", "splits")),
    "bench-fig9": _suite(540, "fig9-*"),
    "bench-table4": _suite(300, "table4-*"),
    "bench-fig10": _suite(300, "fig10-*"),
    "bench-fig14": _suite(540, "fig14-*"),
    "bench-networks": _suite(300, "vgg-conv2-*", "pathology-*", "pageable-*"),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="PART", choices=PARTS, default=list(PARTS))
    parser.add_argument("--list", action="store_true", help="name the parts, and run none")
    parser.add_argument("--output", default=os.environ.get("OUT", str(script.RESULTS)))
    parser.add_argument("--seconds", type=float, help="at most, for each part; else its own")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; times mean nothing")
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:1 or host")
    parser.add_argument("--machine", help="a machine model to plan with; else each part's own")
    arguments = parser.parse_args(argv)
    if arguments.list:
        for name, part in PARTS.items():
            print(f"{name:20} {' '.join(part.cases) or f'benchmarks.{part.module}'}")
        return 0
    output = str(Path(arguments.output).absolute())
    os.makedirs(output, exist_ok=True)
    statuses = {}
    for name in arguments.only:
        part = PARTS[name]
        command = part.command(
            output, quick=arguments.quick, device=arguments.device, machine=arguments.machine
        )
        begin = time.perf_counter()
        print(f"\n=== {name}", flush=True)
        statuses[name] = script.run_apart(command, arguments.seconds or part.seconds)
        print(f"=== {name}: {time.perf_counter() - begin:.1f} s, exit {statuses[name]}", flush=True)
    print("\n" + ", ".join(f"{name} {status}" for name, status in statuses.items()))
    return max(statuses.values(), key=abs)


if __name__ == "__main__":
    sys.exit(main())
