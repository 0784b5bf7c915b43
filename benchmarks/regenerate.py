"""Make every table and picture of README.md and docs from what is stored: ``make figures``.

With `--check` nothing is changed: 1 if anything is out of date, or if a sentence quotes a figure
that no record has. With `--older` it only names the records that are older than what they are of.
Nothing is measured or simulated: that is what ``python -m benchmarks.card``,
`host_split`, `model_accuracy`, `planning`, `planning_networks`, `planning_models`, `trades`,
`network_steps` and `cluster_scaling` do.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable

from benchmarks import cluster_scaling, network_steps, planning_models, planning_networks, trades
from benchmarks.pages import (
    amp,
    curve,
    engines,
    in_core,
    kernels,
    model,
    model_pictures,
    performance,
    pictures,
    quoted,
    readme,
    steps,
    trials,
    whole,
)
from ooc_cudnn.bench.environment import ROOT

#: What has `BLOCKS` of pages, or `PICTURES`.
MODULES = (
    pictures, model_pictures, trades, curve, readme, steps, model, network_steps, planning_networks,
    planning_models, performance, kernels, engines, in_core, trials, cluster_scaling, amp,
    whole,
)  # fmt: skip
SETTINGS_PAGE = "docs/settings_page.py"


def _settings_page(*, check: bool) -> int:
    main: Callable[[list[str]], int] = runpy.run_path(str(ROOT / SETTINGS_PAGE))["main"]
    return main(["--check"] if check else [])


BLOCKS = [block for module in MODULES for block in getattr(module, "BLOCKS", ())]
PICTURES = [picture for module in MODULES for picture in getattr(module, "PICTURES", ())]
#: Pictures first, since pages show those that there are; sentences last.
GENERATORS: dict[str, Callable[..., int]] = {
    **{picture.path: picture.write for picture in PICTURES},
    **{f"{block.page}: {block.name}": block.write for block in BLOCKS},
    "comments of kernels": kernels.comments,
    SETTINGS_PAGE: _settings_page,
    "figures in sentences": quoted.check_pages,
}


def main(argv: list[str] | None = None) -> int:
    """Run all; 1 if one of them failed, or is out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    parser.add_argument(
        "--older", action="store_true", help="only name records of what has changed since"
    )
    options = parser.parse_args(argv)
    if options.older:
        print(trials.older_table())
        return 0
    check = options.check
    failed = [name for name, generate in GENERATORS.items() if generate(check=check)]
    if failed:
        print(f"out of date, or failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
