"""Write the README's figures from benchmarks/results: ``python -m benchmarks.readme``.

`--check` says whether the README is up to date, and changes nothing; a test runs it.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.figures.records import Records, load
from ooc_cudnn.bench.environment import ROOT

CHART = "docs/images/bench/summary.png"

BEGIN, END = "<!-- figures: begin (python -m benchmarks.readme) -->", "<!-- figures: end -->"

LINK, LARGE, CORE, LOOP, FUNCTIONS, CHAIN = (
    "convolution_link",
    "convolution_large",
    "convolution_in_core",
    "naive_loop",
    "functions",
    "chain_vgg",
)
#: Of the suite's records: a claim is then a case, whose seconds are a share of its "unfused" ones.
SUITE = "bench"
SHARE, TIMES = "fraction of the duplex link", "times faster than"
BY_HAND = f"{TIMES} loop, CuPy and PyTorch, 4 images at a time (the fastest loop)"

#: (what a row says, result file, claim, how its value is printed)
ROWS = (
    ("X and Y pinned, limit 16 GiB: share of the duplex link",
     LINK, f"pinned, limit 16GiB: {SHARE}", "{:.0%}"),
    ("the same, limit 1 GiB", LINK, f"pinned, limit 1GiB: {SHARE}", "{:.0%}"),
    ("the same operands in pageable NumPy arrays", LINK, f"pageable: {SHARE}", "{:.0%}"),
    ("the driver's own pageable copies, one after the other, nothing computed",
     LINK, f"driver's pageable copies: {SHARE}", "{:.0%}"),
    ("pageable arrays page-locked by `pin()`", LINK, f"page-locked by pin(): {SHARE}", "{:.0%}"),
    ("one image of 64 x 4096 x 8192, strict float32, on the device, against one unsplit cuDNN call",
     LARGE, f"device: {TIMES} the unsplit cuDNN call", "{:.0f} times as fast"),
    ("the same from and to pinned memory",
     LARGE, f"pinned: {TIMES} the unsplit cuDNN call", "{:.0f} times as fast"),
    ("everything small and on the device: host time over the cuDNN call itself, plain",
     CORE, "1x64x32x32 convolution_forward: host overhead", "{:.0f} us"),
    ("the same, fused with bias and ReLU", CORE, "1x64x32x32 fused: host overhead", "{:.0f} us"),
    ("n=128, pinned, against the fastest loop written by hand (CuPy copies, PyTorch computes)",
     LOOP, f"pinned: {BY_HAND}", "{:.0f} times as fast"),
    ("n=128, pageable, against the same loop",
     LOOP, f"pageable: {BY_HAND}", "{:.0f} times as fast"),
    ("all three gradients of convolution, bias and ReLU in one pass: share of the link",
     FUNCTIONS, "convolution_add_activation_backward: limit / measured", "{:.0%}"),
    ("batch normalisation in training, of 23 calls the one furthest from its limit",
     FUNCTIONS, "batch_normalization_forward_training: limit / measured", "{:.0%}"),
    ("convolution + bias + ReLU fused, 64 x 1024 x 1024, n=1, against the three functions",
     SUITE, "fig10-n1-tf32", "{:.0%} of their time"),
    ("the same, n=64", SUITE, "fig10-n64-tf32", "{:.0%} of their time"),
    ("VGG-16's feature layers as one chain, n=1024, limit 16 GiB, against PyTorch in core",
     CHAIN, "n1024: times the in-core PyTorch time", "{:.2f} of its time"),
    ("the same on one image of 16384 x 16384",
     CHAIN, "16384: times the in-core PyTorch time", "{:.2f} of its time"),
    ("the same on 32768 x 32768, four times as many pixels, against our 16384 x 16384",
     CHAIN, "32768: times the 16384 time", "{:.2f} times as long"),
)  # fmt: skip


def figures(folder: Path = common.RESULTS) -> str:
    """Return the README's section, made of the stored results.

    Raises
    ------
    KeyError
        If a result that the README quotes is not there.
    """
    results: dict[str, dict[str, Any]] = {
        name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in sorted({row[1] for row in ROWS} - {SUITE})
    }
    suite = load(folder / SUITE)
    where = results["convolution_link"]["environment"]
    of_suite = [suite.found[claim] for _, name, claim, _ in ROWS if name == SUITE]
    measured = [*results.values(), *of_suite]
    commits = sorted({result["environment"]["commit"][:7] for result in measured})
    gpu, versions = where["gpu"], where["versions"]
    code = ", ".join(f"`{commit}`" for commit in commits)
    setting = (
        f"On one {gpu['name']} (PCIe {gpu['pcie.link.gen.current']}, driver "
        f"{gpu['driver_version']}, cuDNN {versions['nvidia-cudnn-cu13']}, at {code}), float32 "
        "with TF32 where nothing else is said; n=512, 64 to 64 channels, 256 x 256, 3 x 3 filters, "
        "bias and ReLU: 8.6 GB in and 8.6 GB out. Each figure is a median, taken beside its "
        "baseline in one run, and the results were verified. The duplex link is raw copies of the "
        "same bytes both ways at once; it scatters by 3 %."
    )
    chart = [f"![4.3 GB in and 4.3 GB out, by each way]({CHART})", ""]
    lines = [*(chart if (ROOT / CHART).exists() else ()), *textwrap.wrap(setting, 100)]
    lines += ["", "| | |", "|---|---|"]
    for label, name, claim, form in ROWS:
        value = _fused_share(suite, claim) if name == SUITE else _claim(results[name], claim)
        lines.append(f"| {label} | {form.format(value)} |")
    lines += [
        "",
        "`python -m benchmarks.card` measures them again;",
        "[benchmarks/results](benchmarks/results) holds the full records, and",
        "[docs/performance.md](docs/performance.md) compares with Unified Memory and PyTorch.",
    ]
    return "\n".join(lines)


def _claim(result: Mapping[str, Any], claim: str) -> float:
    return {row["name"]: float(row["value"]) for row in result["claims"]}[claim]


def _fused_share(suite: Records, case: str) -> float:
    ratio = suite.ratio(case, "unfused")
    if ratio is None:
        raise KeyError(f"{case}: {suite.reason(case) or suite.reason(case, 'unfused')}")
    return 1.0 / ratio


def fill(path: Path, begin: str, end: str, section: str, *, check: bool) -> int:
    """Write a section between two markers of a page, or check it; return the exit status."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(begin)
    _, after = rest.split(end)
    made = f"{before}{begin}\n\n{section}\n\n{end}{after}"
    if check:
        if made != text:
            print(f"{path.name} is out of date: its section says how to write it", file=sys.stderr)
        return int(made != text)
    path.write_text(made, encoding="utf-8")
    return 0


def checks(description: str | None, argv: list[str] | None) -> bool:
    """Read the one argument of what fills pages: whether to change nothing."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    return bool(parser.parse_args(argv).check)


def main(argv: list[str] | None = None) -> int:
    """Write or check the section; return the exit status."""
    return fill(ROOT / "README.md", BEGIN, END, figures(), check=checks(__doc__, argv))


if __name__ == "__main__":
    sys.exit(main())
