"""Make every table and picture of README.md and docs from what is stored: ``make figures``.

With `--check` nothing is changed: 1 if anything is out of date, or if a sentence quotes a figure
that no record has. Nothing is measured or simulated: that is what ``python -m benchmarks.card``,
`host_split`, `model_accuracy`, `planning`, `planning_networks`, `planning_models`, `trades`,
`network_steps` and `cluster_scaling` do.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable
from functools import partial

from benchmarks import network_steps, planning_models, planning_networks, trades
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
    scaling,
    steps,
    trials,
)
from ooc_cudnn.bench.environment import ROOT

BLOCKS = (
    *curve.BLOCKS,
    *readme.BLOCKS,
    *steps.BLOCKS,
    *model.BLOCKS,
    *network_steps.BLOCKS,
    *planning_networks.BLOCKS,
    *planning_models.BLOCKS,
    *performance.BLOCKS,
    *kernels.BLOCKS,
    *engines.BLOCKS,
    *in_core.BLOCKS,
    *trials.BLOCKS,
    *scaling.BLOCKS,
    *amp.BLOCKS,
)
SETTINGS_PAGE = "docs/settings_page.py"


def _settings_page(*, check: bool) -> int:
    main: Callable[[list[str]], int] = runpy.run_path(str(ROOT / SETTINGS_PAGE))["main"]
    return main(["--check"] if check else [])


#: Pictures first, since pages show those that there are; sentences last.
GENERATORS: dict[str, Callable[..., int]] = {
    "pictures of the suite": pictures.generate,
    "pictures of the model": model_pictures.generate,
    "pictures of networks": network_steps.pictures,
    "pictures of trades": trades.pictures,
    "picture of kernels": kernels.picture,
    "picture of engines": engines.picture,
    "picture of training steps": steps.picture,
    "picture of the curve": curve.picture,
    "picture of autocast": amp.picture,
    **{f"{block.page}: {block.name}": partial(block.write) for block in BLOCKS},
    "comments of kernels": kernels.comments,
    SETTINGS_PAGE: _settings_page,
    "figures in sentences": quoted.check_pages,
}


def main(argv: list[str] | None = None) -> int:
    """Run all; 1 if one of them failed, or is out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    check = parser.parse_args(argv).check
    failed = [name for name, generate in GENERATORS.items() if generate(check=check)]
    if failed:
        print(f"out of date, or failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
