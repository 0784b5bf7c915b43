"""What the suite is held to, beside what was measured; and what scripts measured beside it."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.contenders.cases import CASES
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING
from benchmarks.pages.records import Records, names
from benchmarks.pages.words import precision_of
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import claims, markdown

#: Contender of figure 14's two larger sizes -> how many times as long as the library, at least.
AT_LEAST = {
    "unified_memory_prefetch": 2.0,
    "unified_memory": 10.0,
    "naive_loop": 25.0,
    "double_buffered_torch": 0.95,
    "double_buffered_cupy": 0.95,
}
SIZES_HELD = ("fig14-4gb", "fig14-9gb")


#: A claim, what was measured, its bound, and the verdict.
Row = tuple[str, str, str, str]


def claims_table(records: Records) -> str:
    head = ("claim", "measured", "bound", "verdict")
    return markdown(head, [*_against_others(records), _contents(records)])


def _row(name: str, value: float | None, bound: float, unit: str = "", reason: str = "") -> Row:
    """A figure that is to reach its bound; the tables say why a contender did not run."""
    measured, least = (f"{each or 0:.3g} {unit}".strip() for each in (value, bound))
    if value is None:
        return name, NOTHING, f">= {least}", reason if reason == NOT_MEASURED else "did not run"
    return name, measured, f">= {least}", "PASS" if value >= bound else "**MISS**"


def _against_others(records: Records) -> Iterator[Row]:
    for contender, bound in AT_LEAST.items():
        for size in SIZES_HELD:
            for case in names(f"{size}-"):
                if contender in CASES[case].baselines:
                    reason = records.reason(case) or records.reason(case, contender) or ""
                    name = f"`{contender}` over the library, `{size}`, {precision_of(case)}"
                    yield _row(name, records.ratio(case, contender), bound, "x", reason)


def _contents(records: Records) -> Row:
    """Count cases whose results were checked on the host and are right."""
    right, measured = sum(r["verified"] for r in records.found.values()), len(records.found)
    name = f"cases whose results were verified on the host, of the {measured} measured"
    return _row(name, right if measured else None, measured, reason=NOT_MEASURED)


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
