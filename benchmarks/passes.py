"""The kernels that `benchmarks.kernels` leaves out, beside a copy of the same bytes.

A launch of each on a map of 205 MB (in float32), in two memory orders and two dtypes, timed as
there. Each operand counts once, as in the comment of the kernel.
"""

from __future__ import annotations

from functools import partial

from benchmarks import common, kernels
from benchmarks.pass_cases import cases

NAME = "passes"


def body(report: common.Report) -> None:
    kernels.measured(report, cases(quick=report.quick))


main = partial(common.run, NAME, body, __doc__, more=kernels.options)

if __name__ == "__main__":
    common.main(main)
