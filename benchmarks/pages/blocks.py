"""Generated sections of pages, and the tables in them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ooc_cudnn.bench.environment import ROOT

NOT_MEASURED = "not measured yet"
NOTHING = "-"


def machine_of(record: Mapping[str, Any]) -> str:
    """Return the card that a record is of, or that it is of the host device."""
    gpu = record["environment"].get("gpu")
    return str(gpu["name"]) if gpu else "host device"


class Block(NamedTuple):
    """What stands between the two markers of a name on a page, and what makes it."""

    page: str
    name: str
    make: Callable[[], str]

    def markers(self) -> tuple[str, str]:
        """Return the lines before and after it."""
        begin = f"<!-- {self.name}: begin (python -m benchmarks.regenerate) -->"
        return begin, f"<!-- {self.name}: end -->"

    def read(self, root: Path = ROOT) -> str:
        begin, end = self.markers()
        return (root / self.page).read_text(encoding="utf-8").split(begin)[1].split(end)[0]

    def write(self, *, check: bool, root: Path = ROOT) -> int:
        """Write it, or look only; return 1 if it was out of date and still is."""
        path, now, (begin, end) = root / self.page, self.read(root), self.markers()
        section = f"\n\n{self.make()}\n\n"
        if section == now:
            return 0
        if check:
            print(f"{self.page}: {self.name} is out of date: make figures", file=sys.stderr)
            return 1
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(begin + now + end, begin + section + end), encoding="utf-8")
        return 0
