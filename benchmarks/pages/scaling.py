"""How a slide scales over cards: the table of docs/scale.md.

Of the record of ``python -m benchmarks.cluster_scaling``.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.pages.blocks import Block
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import load_record, markdown
from ooc_cudnn.units import format_seconds

NAME = "cluster_scaling"
CARDS = (1, 2, 8, 32, 128, 512)
OWN, ONE = "a store each", "one store for all"


def section(folder: Path = script.RESULTS) -> str:
    """Return the table: seconds over cards, how much faster than one, and what binds."""
    found = load_record(NAME, folder)["measurements"]
    of_store = ((name, "times as fast", "bound by") for name in (OWN, ONE))
    rows = [_row(found, count) for count in CARDS]
    return markdown(("cards", *chain.from_iterable(of_store)), rows, align="rrrlrrl")


def _row(plans: Any, count: int) -> list[str]:
    row = [f"{count}"]
    for name in (OWN, ONE):
        plan, alone = plans[f"{count}, {name}"], plans[f"1, {name}"]
        parts = {each: seconds for each, seconds in plan.items() if each != "seconds"}
        times = alone["seconds"] / plan["seconds"]
        row += [format_seconds(plan["seconds"]), f"{times:.1f}", max(parts, key=parts.__getitem__)]
    return row


BLOCKS = (Block("docs/scale.md", "scaling", section),)
