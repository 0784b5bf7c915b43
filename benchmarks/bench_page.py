"""Write docs/performance.md from benchmarks/results/bench: ``python -m benchmarks.bench_page``.

`--check` says whether the page is up to date, and changes nothing; a test runs it.
"""

from __future__ import annotations

import sys

from benchmarks.contenders.cases import CASES
from benchmarks.figures import convolution_tables, training_tables
from benchmarks.figures.claims import claims_table
from benchmarks.figures.pictures import shown
from benchmarks.figures.records import Records, load
from benchmarks.figures.scripts_table import scripts_table
from benchmarks.figures.words import image, joined, provenance
from benchmarks.readme import checks, fill
from ooc_cudnn.bench.environment import ROOT

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- figures: begin (python -m benchmarks.bench_page) -->", "<!-- figures: end -->"
RATIOS = (
    "`2.00 x` is twice as long as the library; a share of raw copies is how much of the speed of "
    "copying the same bytes both ways at once, computing nothing, the library reaches; `-` did not "
    "run, for the reason given below its table or because it is not measured yet."
)


def section(records: Records) -> str:
    """Return everything between the markers."""
    drawn = shown(records)
    return joined(
        (
            "### What it is held to",
            provenance(records, list(CASES)),
            claims_table(records),
            RATIOS,
            "### Unified Memory and the other ways (figure 14)",
            "A fused convolution, bias and ReLU, of features in host memory to features in host "
            "memory. The three forms of Unified Memory are those of the paper's section 6.5.",
            image("fig14", "Seconds by the size of the features", drawn),
            convolution_tables.figure_14(records),
            "### Channels (figure 9)",
            image("fig9", "GFLOPS over the number of channels", drawn),
            convolution_tables.figure_9(records),
            "### Table 4",
            image("table4", "GFLOPS beside the paper's", drawn),
            convolution_tables.table_4(records),
            "### Fused and unfused (figure 10)",
            image("fig10", "What each stage of each call took", drawn),
            convolution_tables.figure_10(records),
            "### Layers of real networks",
            convolution_tables.networks(records),
            "### VGG-16's training step (figure 12)",
            image("fig12", "Seconds of a training step by batch", drawn),
            training_tables.figure_12(records),
            "### Its layers and stages (figure 13)",
            image("fig13", "What the streams were busy with in each layer", drawn),
            training_tables.figure_13(records),
            "### Other measurements",
            "By the scripts in [benchmarks](../benchmarks), on one NVIDIA H200. n=512, 64 "
            "channels, 256 x 256 and 3 x 3 filters where nothing else is said. The *duplex link* "
            "is raw copies of the same bytes in both directions at once.",
            scripts_table(),
        )
    )


def main(argv: list[str] | None = None) -> int:
    """Write or check the page; return the exit status."""
    return fill(PAGE, BEGIN, END, section(load()), check=checks(__doc__, argv))


if __name__ == "__main__":
    sys.exit(main())
