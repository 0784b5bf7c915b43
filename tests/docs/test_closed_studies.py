"""Closed studies stand on their records: every table has the figures that are stored."""

import itertools
import json
import re
from pathlib import Path

import pytest

from ooc_cudnn.bench import script

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "closed-studies.md"


def test_a_closed_study_stands_on_its_record():
    """It names the record, says of which day that is, and no script of its name is left."""
    page = (DOCS / "closed-studies.md").read_text(encoding="utf-8")
    section = r"<!-- ([\w ]+): begin \(closed: ([\w/-]+)\) -->\n(.*?)<!-- \1: end"
    studies = re.findall(section, page, re.DOTALL)
    assert len(studies) == page.count("\n## ")
    for name, record, text in studies:
        stored = json.loads((script.RESULTS / f"{record}.json").read_text(encoding="utf-8"))
        assert f"results/{record}.json" in text
        if "environment" in stored:
            assert stored["environment"]["date"][:10] in text
            assert stored["environment"]["commit"][:7] in text
        assert not (DOCS.parent / "benchmarks" / f"{name.replace(' ', '_')}.py").exists()


def tables_of(page, name):
    """Tables of a closed study: the cells of their rows, each without its head."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = rf"<!-- {name}: begin \(closed: [\w/-]+\) -->\n(.*?)<!-- {name}: end"
    (study,) = re.findall(section, text, re.DOTALL)
    tables = re.findall(r"^\|.*\n\|[-:|]+\|\n((?:\|.*\n)+)", study, re.MULTILINE)
    return [
        [[*map(str.strip, line.split("|")[1:-1])] for line in table.splitlines()]
        for table in tables
    ]


def rows_of(page, name):
    """Cells of a closed study's only table."""
    (table,) = tables_of(page, name)
    return table


def shows(cell, value, unit):
    """True if a cell shows a value to its last digit: shares as per cent, nothing where None."""
    if not isinstance(value, float):
        return cell == str(value or "")
    number, own = cell.split()
    digits = len(number.partition(".")[2])
    scale = 100 if unit == "%" else 1
    return own == unit and abs(float(number) - scale * value) <= 0.5001 * 10**-digits


@pytest.mark.parametrize(("page", "record"), [("vdnn.md", "vdnn"), ("paper.md", "paper_model")])
def test_tables_of_closed_simulations_are_of_what_is_stored(page, record):
    stored = json.loads((script.RESULTS / f"{record}.json").read_text(encoding="utf-8"))
    assert stored["verified"]
    assert not stored["quick"]
    assert all(claim["holds"] for claim in stored["claims"])
    rows = rows_of(page, "table")
    assert [row[0] for row in rows] == list(stored["measurements"])
    for (name, *cells), figures in zip(rows, stored["measurements"].values(), strict=True):
        for cell, key in zip(cells, ("paper", "simulated", "ours"), strict=True):
            if key in figures:
                assert shows(cell, figures[key], figures["unit"]), (name, key)
            elif isinstance(figures["paper"], float):
                assert cell == f"{figures['simulated'] / figures['paper']:.3f}", name


def test_the_table_of_vdnn_s_networks_is_of_what_is_stored():
    stored = json.loads((script.RESULTS / "vdnn.json").read_text(encoding="utf-8"))["checks"]
    rows = rows_of("vdnn.md", "networks")
    assert [row[0] for row in rows] == list(stored)
    for name, chosen, seconds, lost, *memory in rows:
        simulated = stored[name]["simulated"]
        assert chosen == simulated["chosen"]
        assert shows(seconds, simulated["seconds"], "s")
        assert shows(lost, simulated["loss"], "%")
        for cell, key in zip(memory, ("peak", "most", "average", "offloaded"), strict=True):
            assert shows(cell, float(simulated[f"{key}_bytes"] / 2**30), "GiB"), (name, key)


def test_the_tables_of_mo_sos_are_of_what_is_stored():
    stored = script.load_record("mo_sos")
    table, fates = (rows_of("mo-sos.md", name) for name in ("table", "fates"))
    for (name, *cells), (_, *moved) in zip(table, fates, strict=True):
        of = [stored["measurements"].pop(f"{name}: {p}") for p in ("checkmate", "str", "mo_sos")]
        of.append(stored["measurements"].pop(f"{name}: best"))
        seconds = [each.get("seconds") for each in of]
        ours = seconds[2]
        less = [1 - ours / other if ours else None for other in seconds[:2]]
        for cell, each in zip(cells, seconds + less, strict=True):
            held = cell in ("no plan", "") if each is None else shows(cell, each, cell[-1])
            assert held, name
        for cell, each in zip(moved, of, strict=True):
            known = [each.get(f"{fate}_bytes") for fate in ("offloaded", "remade")]
            assert cell == " / ".join("none" if b is None else f"{b / 2**30:.1f}" for b in known)
        assert ours is None or seconds[3] < ours, name
    assert all(": keep all" in name for name in stored["measurements"])
    rows = rows_of("mo-sos.md", "means")
    for (name, value, bound), claim in zip(rows, stored["claims"], strict=True):
        assert (name, float(value)) == (claim["name"], pytest.approx(claim["value"], abs=5.001e-4))
        assert bound == f"{claim['relation']} {claim['bound']:.3f}"


# Those of docs/closed-studies.md ------------------------------------------------------------------

UNITS = {"%": 100, "ms": 1e3}


def says(cell, value):
    """True if a cell with one number, and perhaps a unit, shows a value to its last digit."""
    number, unit = re.fullmatch(r"([-\d.]+) ?(\S*)", cell).groups()
    digits = len(number.partition(".")[2])
    return abs(float(number) - UNITS.get(unit, 1) * value) <= 0.5001 * 10**-digits


def record_of(name):
    """The record that a study names."""
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    (named,) = re.findall(rf"<!-- {name}: begin \(closed: ([\w/-]+)\) -->", text)
    return script.load_record(named)


#: How rows call what records hold by another name.
SPOKEN = {
    "off the paper's": "|simulated / paper - 1|",
    "points off the paper's": "|simulated - paper|",
}
#: Study -> how many rows of it are each a claim of its record.
CLAIMS = {
    "fused": 3, "convolution in core": 4, "results pool": 12, "convolution large": 4, "volume": 3,
    "chain vgg": 8, "link": 10, "vdnn": 9, "paper model": 7, "mo sos": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_of_a_closed_study_are_those_of_its_record(name):
    claims = {claim["name"]: claim for claim in record_of(name)["claims"]}
    found = 0
    for what, measured, *bounds in (row for table in tables_of(PAGE, name) for row in table):
        about, _, last = what.rpartition(": ")
        claim = claims.get(what) or claims.get(f"{about}: {SPOKEN.get(last)}")
        if claim is None:
            continue
        found += 1
        assert says(measured, claim["value"]), what
        if bounds[:1] == [""]:
            assert claim["bound"] is None, what
        elif len(bounds) == 1:
            relation, _, bound = bounds[0].rpartition("= ")
            assert relation in ("", claim["relation"].rstrip("=")), what
            assert says(bound, claim["bound"]), what
    assert found == CLAIMS[name]


def test_what_studies_sum_up_is_of_their_claims():
    largest = {  # study -> row -> the claims that it is the largest of
        "vdnn": {
            "dyn: performance lost, worst of ten": "dyn: performance lost, worst",
            "dyn, vgg416, batch 32: peak over the card's memory": "dyn, vgg416",
        },
        "paper model": {"ordered search, gap to the best, the largest of three": "ordered search"},
        "mo sos": {
            "U-Net at 0.8: seconds of best over those of mo_sos, the most": ": seconds of best"
        },
    }
    for name, sums in largest.items():
        rows = {row[0]: row[1] for row in rows_of(PAGE, name)}
        assert len(rows) == CLAIMS[name] + len(sums)
        for what, part in sums.items():
            of = [c["value"] for c in record_of(name)["claims"] if part in c["name"]]
            assert says(rows[what], max(of)), what


def test_longer_searches_are_those_of_the_record():
    checks = record_of("longer searches")["checks"]
    rows = rows_of(PAGE, "longer searches")
    assert 3 * len(rows) == len(checks)
    for name, *cells in rows:
        first, *longer = (checks[f"{name}: {times}"] for times in (1, 2, 4))
        least = min(each["seconds"] for each in longer)
        planning = sum(each["planning_seconds"] for each in longer)
        faster = max(0.0, 1 - least / first["seconds"])
        values = (first["seconds"], first["planning_seconds"], least, planning, faster)
        assert all(map(says, cells, values)), name


def test_what_is_fused_is_of_the_record():
    measured = record_of("fused")["measurements"]
    _, *tables = tables_of(PAGE, "fused")
    rows = {name: cells for table in tables for name, *cells in table}
    assert rows.keys() == measured.keys()
    for name, cells in rows.items():
        row = measured[name]
        two, one = (row["apart"], row["one"]) if "apart" in row else (row["separate"], row["fused"])
        assert all(map(says, cells[:3], (1e3 * two, 1e3 * one, one / two))), name
        if "apart" in row:
            assert all(map(says, cells[3:], (row["share"], row["predicted"]))), name
        else:
            assert cells[3:] == [row["engine"]], name


def test_copies_are_those_of_the_record():
    record = record_of("copies")
    of_rows, of_slabs = tables_of(PAGE, "copies")
    for name, *cells in of_rows:
        row = record["measurements"][f"rows of {name}: us a row"]
        values = (row[key] for key in ("measured", "predicted", "its bytes"))
        assert all(map(says, cells, values)), name
    claims = {claim["name"]: claim["value"] for claim in record["claims"]}
    for slabs, way, pieces, *cells in of_slabs:
        sizes = ("2.00 MiB", "4.00 MiB", "8.00 MiB")
        names = [f"{slabs}, {way}, pieces of {pieces}, chunks of {size}" for size in sizes]
        assert all(map(says, cells, map(claims.get, names))), names
    assert len(of_rows) + len(claims) == len(record["measurements"])
    assert 3 * len(of_slabs) == len(claims)


def test_what_each_term_is_worth_is_of_the_record():
    stored, rows = record_of("terms"), rows_of(PAGE, "terms")
    assert [row[0] for row in rows] == list(stored)
    columns = list(itertools.product(("card", "host"), ("calls", "splits"), ("median", "p90")))
    for name, *cells in rows:
        for (where, kind, of), cell in zip(columns, cells, strict=True):
            found = stored[name].get(f"{where}, {kind}")
            assert (cell == "-") if found is None else says(cell, found[of]), name


def test_steps_of_the_suite_by_batch_are_those_of_its_records():
    by_batch, _, *_ = tables_of(PAGE, "training steps")
    ways = ("in_core", "torch_in_core", "torch_save_on_cpu", "torch_checkpoint",
            "torch_micro_batches")  # fmt: skip
    assert len(by_batch) == 12
    for about, ours, *cells in by_batch:
        batch, precision = about.split(", ")
        kind = {"TF32": "tf32", "strict float32": "strict"}[precision]
        stored = script.load_record(f"bench/vgg16-n{batch}-{kind}")["contenders"]
        assert says(ours, stored["ooc_cudnn"]["seconds"]["median"]), about
        for way, cell in zip(ways, cells, strict=True):
            ran = stored.get(way, {}).get("status") == "measured"
            assert says(cell, stored[way]["ratio"]["of_medians"]) if ran else cell == "-", about
