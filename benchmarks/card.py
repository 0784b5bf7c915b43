"""Every benchmark that needs a GPU, one process each: about six minutes on an H200.

Takes the arguments of the benchmarks and hands them on; `--only` names some of them. Results go to
`--output`, else to the folder in $OUT, else to benchmarks/results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from benchmarks import common
from ooc_cudnn.bench.environment import ROOT

NAMES = (
    "convolution_in_core",
    "convolution_large",
    "naive_loop",
    "convolution_link",
    "functions",
    "fused",
    "chain_vgg",
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--output", default=os.environ.get("OUT", str(common.RESULTS)))
    parser.add_argument("--seconds", type=float, default=240, help="at most, for each benchmark")
    arguments, rest = parser.parse_known_args(argv)
    statuses = {}
    for name in arguments.only:
        command = [sys.executable, "-m", f"benchmarks.{name}", "--output", arguments.output, *rest]
        begin = time.perf_counter()
        print(f"\n=== {name}", flush=True)
        try:
            statuses[name] = subprocess.run(command, cwd=ROOT, timeout=arguments.seconds).returncode
        except subprocess.TimeoutExpired:
            statuses[name] = 124
        print(f"=== {name}: {time.perf_counter() - begin:.1f} s, exit {statuses[name]}", flush=True)
    print("\n" + ", ".join(f"{name} {status}" for name, status in statuses.items()))
    return max(statuses.values(), key=abs)


if __name__ == "__main__":
    common.main(main)
