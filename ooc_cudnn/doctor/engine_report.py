"""``ooc-cudnn doctor --engines``: the search of cuDNN's engines, written for a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ooc_cudnn.call_planner.explain import align_columns
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.cuda.frontend import cudnn_version
from ooc_cudnn.devices.engine_check_database import verdicts_of, verdicts_path
from ooc_cudnn.devices.engine_verdicts import describe_verdict
from ooc_cudnn.doctor.engine_search import MOST_BYTES, BarredEngine, Row, Search, search_engines
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.settings import current

#: Widths of the columns.
COLUMNS = ("<29", "<21", ">6", ">8", ">8", ">9")


def search_and_report(tell: Callable[[str], object]) -> int:
    """Search the engines of the device in use; return 0 if it came to its end, else 1.

    `tell` is given each line.

    Raises
    ------
    OocError
        If there is no card, or its engines cannot be asked for.
    OSError
        If what was found cannot be stored.
    """
    device, settings = get_device(current().device), current()
    limit = min(limit_bytes(device, settings.memory_limit), MOST_BYTES)
    identity = device.identity()
    if device.engines is not None:
        known = sum(verdict.is_right is False for _, verdict in verdicts_of(device).items())
        version = cudnn_version(int(identity["cudnn"]))
        tell(f"cuDNN {version} on {identity.get('gpu', device.name)}: {known} barred before")
    tally = search_engines(device, limit, tell=lambda barred: tell(_line(barred)))
    for line in _table(tally):
        tell(line)
    if tally.left:
        tell(f"{tally.left} kinds were not reached in {tally.seconds:.0f} s: run it again to go on")
    else:
        tell(f"searched in {tally.seconds:.0f} s; stored in {verdicts_path(device)}")
    return int(tally.left > 0)


def _line(barred: BarredEngine) -> str:
    unchecked, verdict = barred
    return f"barred: {unchecked.engine}, {describe_verdict(verdict)}: {unchecked.kind}"


def _table(tally: Search) -> Iterator[str]:
    """Table of what was checked, by function and arithmetic."""
    head = "function", "arithmetic", "kinds", "checks", "barred", "ms each"
    total = Row(
        "all",
        "",
        sum(row.kinds for row in tally.rows),
        sum(row.checks for row in tally.rows),
        sum(row.barred for row in tally.rows),
        sum(row.seconds for row in tally.rows),
    )
    yield from align_columns([head, *map(_cells, sorted(tally.rows)), _cells(total)], COLUMNS)


def _cells(row: Row) -> tuple[str, ...]:
    each = f"{1e3 * row.seconds / row.checks:.1f}" if row.checks else "-"
    counts = (row.kinds, row.checks, row.barred)
    return row.function, row.arithmetic, *map(str, counts), each
