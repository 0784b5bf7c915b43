"""The kernels that `benchmarks.kernels` leaves out, beside a copy of the same bytes.

A launch of each on a map of 205 MB (in float32), in two memory orders and two dtypes, timed as
there. Each operand counts once, as in the comment of the kernel.
"""

from __future__ import annotations

import sys
from functools import partial

from benchmarks import kernels
from benchmarks.pass_cases import cases
from ooc_cudnn.bench import script

NAME = "passes"


def body(report: script.Report) -> None:
    kernels.measured(report, cases(quick=report.quick))


main = partial(script.run, NAME, body, __doc__, more=kernels.options)

if __name__ == "__main__":
    sys.exit(main())
