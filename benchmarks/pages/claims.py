"""What the suite is held to, beside what was measured; and what scripts measured beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.contenders.cases import CASES
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING
from benchmarks.pages.records import Records, names
from benchmarks.pages.words import precision_of
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import claims, markdown
from ooc_cudnn.bench.report import Claim

#: Contender of figure 14's two larger sizes -> how many times as long as the library, at least.
AT_LEAST = {
    "unified_memory_prefetch": 2.0,
    "unified_memory": 10.0,
    "naive_loop": 25.0,
    "double_buffered_torch": 0.95,
    "double_buffered_cupy": 0.95,
}
SIZES_HELD = ("fig14-4gb", "fig14-9gb")


@dataclass(frozen=True)
class Held:
    """A claim, or what it would be were its cases measured."""

    name: str
    unit: str
    value: float | None
    relation: str = ""
    bound: float | None = None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """PASS, MISS, or that there is none: the tables say why a contender did not run."""
        if self.value is None:
            return self.reason if self.reason == NOT_MEASURED else "did not run"
        claim = Claim(self.name, self.value, self.relation, self.bound, self.unit)
        return {True: "PASS", False: "**MISS**", None: ""}[claim.holds]

    def row(self) -> tuple[str, str, str, str]:
        bound = "" if self.bound is None else f"{self.relation} {self._shown(self.bound)}"
        measured = NOTHING if self.value is None else self._shown(self.value)
        return self.name, measured, bound, self.verdict

    def _shown(self, value: float) -> str:
        return f"{value:.1%}" if self.unit == "%" else f"{value:.3g} {self.unit}".strip()


def held(records: Records) -> list[Held]:
    """Return every claim, in the page's order."""
    return [*_against_others(records), _contents(records)]


def claims_table(records: Records) -> str:
    head = ("claim", "measured", "bound", "verdict")
    return markdown(head, [each.row() for each in held(records)])


def _against_others(records: Records) -> Iterator[Held]:
    for contender, bound in AT_LEAST.items():
        for size in SIZES_HELD:
            for case in names(f"{size}-"):
                if contender not in CASES[case].baselines:
                    continue
                reason = records.reason(case) or records.reason(case, contender) or ""
                yield Held(
                    f"`{contender}` over the library, `{size}`, {precision_of(case)}",
                    "x", records.ratio(case, contender), ">=", bound, reason,
                )  # fmt: skip


def _contents(records: Records) -> Held:
    """Count cases whose results were checked on the host and are right."""
    right = sum(bool(record["verified"]) for record in records.found.values())
    measured = len(records.found)
    name = f"cases whose results were verified on the host, of the {measured} measured"
    if not measured:
        return Held(name, "", None, reason=NOT_MEASURED)
    return Held(name, "", float(right), ">=", float(measured))


LINK, FUNCTIONS = "convolution_link", "functions"
SHARE = "fraction of the duplex link"

#: (what a row says, result file, claim, how its value is printed)
ROWS = (
    ("`x` and `y` in pinned memory, limit 16 GiB: share of the duplex link",
     LINK, f"pinned, limit 16GiB: {SHARE}", "{:.0%}"),
    ("the same, limit 1 GiB", LINK, f"pinned, limit 1GiB: {SHARE}", "{:.0%}"),
    ("the same in pageable NumPy arrays", LINK, f"pageable: {SHARE}", "{:.0%}"),
    ("pageable arrays that `pin()` has locked", LINK, f"page-locked by pin(): {SHARE}", "{:.0%}"),
    ("the driver's own copies of pageable arrays, in one after out, nothing computed",
     LINK, f"driver's pageable copies: {SHARE}", "{:.0%}"),
    ("all three gradients of convolution, bias and ReLU in one call: share of the link",
     FUNCTIONS, "convolution_add_activation_backward: limit / measured", "{:.0%}"),
    ("batch normalization in training: share of the link",
     FUNCTIONS, "batch_normalization_forward_training: limit / measured", "{:.0%}"),
)  # fmt: skip


def scripts_table() -> str:
    """Every claim with its value; what no record has is not measured yet."""
    rows = []
    for label, name, claim, form in ROWS:
        is_stored = (script.RESULTS / f"{name}.json").exists()
        value = claims(name, script.RESULTS).get(claim) if is_stored else None
        rows.append((label, NOT_MEASURED if value is None else form.format(value), f"`{name}`"))
    return markdown(("what", "measured", "by"), rows)
