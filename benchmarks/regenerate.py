"""Make every table and picture of README.md and docs from what is stored: ``make figures``.

``python -m benchmarks.regenerate`` runs the generators one after the other; with `--check` each of
them only says whether what it makes is up to date. Nothing is measured or simulated: that is what
``python -m benchmarks.card``, `host_split`, `model_accuracy`, `planning` and `paper_model` do.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable

from benchmarks.readme import checks
from ooc_cudnn.bench.environment import ROOT

#: Pictures first, since pages show those that there are; sentences last.
GENERATORS = (
    "benchmarks.figures.pictures",
    "benchmarks.model_pictures",
    "benchmarks.readme",
    "benchmarks.model_page",
    "benchmarks.paper_table",
    "benchmarks.bench_page",
    "benchmarks.maintaining_page",
    "benchmarks.reliability_page",
    "docs/settings_page.py",
    "benchmarks.quoted",
)


def generator(name: str) -> Callable[[list[str]], int]:
    """Return the `main` of a module, or of a script by its path in the repository."""
    if not name.endswith(".py"):
        main: Callable[[list[str]], int] = importlib.import_module(name).main
        return main
    spec = importlib.util.spec_from_file_location("generator", ROOT / name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    script: Callable[[list[str]], int] = module.main
    return script


def main(argv: list[str] | None = None) -> int:
    """Run all; 1 if one of them failed, or is out of date."""
    given = ["--check"] if checks(__doc__, argv) else []
    failed = [name for name in GENERATORS if generator(name)(given)]
    if failed:
        print(f"out of date, or failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
