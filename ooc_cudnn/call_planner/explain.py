"""A plan as a table that a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from ooc_cudnn.units import format_bytes, format_seconds
from perfmodel import machine_label

#: A `Plan`, which prints itself by this file: named here, the two would close a circle.
Plan = Any

#: Least widths of columns, and how they are aligned; what is longer makes its column wider.
OPERANDS = ("<4", "<28", "<10", ">12", "<2", "<10", "<0")
STAGES = ("<10", ">11", ">13", "<0")
MEMORY = ("<11", ">12", "<0")
LAYOUTS = ("<44", ">11")
ALTERNATIVES = ("<44", ">11", ">13")
#: Between two columns at least.
GAP = 2


def explain_lines(plan: Plan) -> list[str]:
    """Return the lines that explain a plan."""
    split = plan.split
    pieces = f"{plan.pieces} piece{'s' * (plan.pieces > 1)}"
    *stages, call = align_columns(_stages(plan), STAGES)
    return [
        f"{plan.function} on {machine_label(plan.machine)}: {pieces}",
        *align_columns(_operands(plan), OPERANDS),
        "",
        f"  split      d_n={split.n} d_cY={split.c_y} d_cX={split.c_x} d_hY={split.h_y}, "
        f"loop order {', '.join(_paper(axis) for axis in plan.order)}"
        + (f"; hY is axis {plan.row_axis}" if plan.row_axis != ROW_AXIS else ""),
        f"  layout     {plan.layout.replace('_', '-')}"
        + (f", {', '.join(plan.algorithms)}" if plan.algorithms else ""),
        "",
        *stages,
        f"{call}  predicted, {_together(plan)}",
        "",
        *align_columns(_memory(plan), MEMORY),
        *(["", *align_columns(_layouts(plan), LAYOUTS)] if plan.by_layout else ()),
        *(["", *align_columns(_alternatives(plan), ALTERNATIVES)] if plan.alternatives else ()),
    ]


def align_columns(rows: Sequence[Sequence[str]], columns: Sequence[str]) -> list[str]:
    """Return rows as lines whose columns never touch.

    Parameters
    ----------
    rows : sequence of sequences of str
        Cells; missing ones at the end of a row are empty.
    columns : sequence of str
        Of each column "<" or ">", how it is aligned, and its least width.

    Examples
    --------
    >>> rows = align_columns([("x", "8 KiB"), ("saved_mean", "256 B")], ("<4", ">8"))
    >>> for line in rows: print(line)
      x                8 KiB
      saved_mean       256 B
    """
    longest = [
        max((len(row[at]) for row in rows if at < len(row)), default=0)
        for at in range(len(columns))
    ]
    widths = []
    for index, column in enumerate(columns):
        # what is aligned to the left has its gap behind it, to the right before it
        gap = GAP if longest[index] else 0
        widths.append(f"{column[0]}{max(int(column[1:]), longest[index] + gap)}")
    return [
        (
            "  " + "".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False))
        ).rstrip()
        for row in rows
    ]


def _operands(plan: Plan) -> list[tuple[str, ...]]:
    rings = dict(plan.rings)
    rows: list[tuple[str, ...]] = []
    for name, spec in plan.operands:
        slots = rings.get(name, 0)
        where = f"ring of {slots} slot{'s' * (slots > 1)}" if slots else "computed on in place"
        shape = " x ".join(map(str, spec.shape))
        size = format_bytes(spec.nbytes)
        rows.append((name, shape, spec.dtype, size, "", spec.placement, where))
    return rows


def _stages(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("stage", "seconds", "bytes")]
    for stage, seconds, count in (
        ("copy_in", plan.copy_in_seconds, plan.bytes_in),
        ("compute", plan.compute_seconds, None),
        ("copy_out", plan.copy_out_seconds, plan.bytes_out),
    ):
        mark = "  <- binds" if stage == plan.binding_stage else ""
        size = "" if count is None else format_bytes(count)
        rows.append((stage, format_seconds(seconds), size, mark))
    rows.append(("call", format_seconds(plan.seconds)))
    return rows


def _memory(plan: Plan) -> list[tuple[str, ...]]:
    limit = f"  of a limit of {format_bytes(plan.memory_limit)}"
    rows: list[tuple[str, ...]]
    rows = [("memory", format_bytes(count), f"  {purpose}") for purpose, count in plan.memory]
    return [*rows, ("total", format_bytes(plan.device_bytes), limit)]


def _layouts(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("layouts of windows, uncut", "predicted")]
    for layout, seconds in plan.by_layout:
        throughout = "" if "," in layout else " throughout"
        rows.append((layout.replace("_", "-") + throughout, format_seconds(seconds)))
    return rows


def _alternatives(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("alternatives", "predicted", "memory")]
    for other in plan.alternatives:
        split = other.split
        sizes = f"d_n={split.n} d_cY={split.c_y} d_cX={split.c_x} d_hY={split.h_y}"
        about = f"{sizes} {other.layout.replace('_', '-')}"
        rows.append((about, format_seconds(other.seconds), format_bytes(other.device_bytes)))
    return rows


def _together(plan: Plan) -> str:
    """Describe how the stages of a call go together."""
    if plan.in_core:
        return "nothing to copy"
    if plan.pieces == 1:
        return "one piece: nothing to overlap"
    if not plan.overlap:
        return "one after the other"
    if plan.takes_turns:
        return "streams take turns: one slot for each operand, larger pieces"
    return "three streams overlapped"


def _paper(axis: str) -> str:
    return {"c_y": "cY", "c_x": "cX", "h_y": "hY"}.get(axis, axis)
