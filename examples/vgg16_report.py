"""What ran where in a network: one row for each call, from `ooc_cudnn.profile`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import ooc_cudnn

STAGES = ("copy_in", "compute", "copy_out")


@dataclass(frozen=True)
class Row:
    """One call.

    Attributes
    ----------
    layer, direction, function : str
        "conv1_1", "forward", "convolution_add_activation_forward".
    placements : dict
        Operand -> "device", "pinned", "pageable" or "disk".
    split : dict
        d_n, d_cY, d_cX, d_hY: the sizes of a piece.
    pieces : int
    stage_seconds : dict
        For which each of the three streams was at work.
    seconds, predicted_seconds : float
        Of the whole call, measured and by the plan; less than the sum of the stages where they
        overlap.
    bytes_in, bytes_out, peak_device_bytes : int
    """

    layer: str
    direction: str
    function: str
    placements: dict[str, str]
    split: dict[str, int]
    pieces: int
    stage_seconds: dict[str, float]
    seconds: float
    predicted_seconds: float
    bytes_in: int
    bytes_out: int
    peak_device_bytes: int

    @classmethod
    def of(cls, layer: str, direction: str, call: Any) -> Row:
        """Read a call of a profile."""
        split = call.plan.split
        stage_seconds = dict.fromkeys(STAGES, 0.0)
        for step in call.steps:
            stage_seconds[step.stream] += step.stop_seconds - step.start_seconds
        return cls(
            layer,
            direction,
            call.function,
            {name: spec.placement for name, spec in call.plan.operands},
            {"d_n": split.n, "d_cY": split.c_y, "d_cX": split.c_x, "d_hY": split.h_y},
            call.plan.pieces,
            stage_seconds,
            call.seconds,
            call.predicted_seconds,
            call.bytes_in,
            call.bytes_out,
            call.peak_device_bytes,
        )

    @property
    def binds(self) -> str:
        """The stage that took longest."""
        return max(STAGES, key=lambda stage: self.stage_seconds[stage])

    @property
    def operands(self) -> str:
        """Operands by placement, as in "device w b, pinned x y"."""
        found: dict[str, list[str]] = {}
        for name, placement in self.placements.items():
            found.setdefault(placement, []).append(name)
        return ", ".join(f"{placement} {' '.join(names)}" for placement, names in found.items())


class Report:
    """Collects the calls made in its `watch` blocks."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @contextmanager
    def watch(self, layer: str, direction: str) -> Iterator[None]:
        """Record the calls in the block under a layer's name."""
        with ooc_cudnn.profile() as recorded:
            yield
        self.rows += [Row.of(layer, direction, call) for call in recorded.calls]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rows as plain values."""
        return [{**asdict(row), "binds": row.binds} for row in self.rows]

    def table(self) -> str:
        """Return a table of the rows, and the sums."""
        head = (
            "layer", "function", "operands", "d_n", "d_cY", "d_cX", "d_hY", "pieces",
            "in ms", "compute ms", "out ms", "call ms", "predicted ms", "binds",
        )  # fmt: skip
        lines = [
            (
                row.layer,
                row.function,
                row.operands,
                *map(str, row.split.values()),
                str(row.pieces),
                *(f"{1e3 * row.stage_seconds[stage]:.2f}" for stage in STAGES),
                f"{1e3 * row.seconds:.2f}",
                f"{1e3 * row.predicted_seconds:.2f}",
                row.binds.replace("_", " "),
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        return "\n".join([*(_aligned(line, widths) for line in (head, *lines)), "", self._sums()])

    def _sums(self) -> str:
        rows = self.rows
        shares = ", ".join(
            f"{stage.replace('_', ' ')} in {sum(row.binds == stage for row in rows)}"
            for stage in STAGES
        )
        return (
            f"{sum(row.seconds for row in rows):.3f} s in {len(rows)} calls "
            f"({sum(row.predicted_seconds for row in rows):.3f} s predicted), "
            f"{sum(row.bytes_in for row in rows) / 2**20:.1f} MiB in, "
            f"{sum(row.bytes_out for row in rows) / 2**20:.1f} MiB out; at most "
            f"{max(row.peak_device_bytes for row in rows) / 2**20:.1f} MiB of device memory\n"
            f"what binds: {shares}"
        )


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    """Words to the left, numbers to the right."""
    words = (0, 1, 2, len(cells) - 1)
    return "  ".join(
        cell.ljust(width) if at in words else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()
