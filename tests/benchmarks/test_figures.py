"""Tables and pictures are of what is stored, and sentences quote nothing else."""

import json

import pytest

from benchmarks import card, networks, regenerate
from benchmarks.contenders.cases import CASES
from benchmarks.contenders.suite import run_case
from benchmarks.contenders.torch_ways import WAYS
from benchmarks.pages import canvas, claims, kernels, performance, pictures, quoted, steps, trials
from benchmarks.pages.blocks import NOT_MEASURED
from benchmarks.pages.records import Records, load, names
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.command import select
from tests.support.colours import check_one_meaning_a_colour

SAMPLES = ("fig9-c64-tf32", "table4-b-strict", "fig10-n1-tf32", "fig14-4gb-tf32")


@pytest.fixture(scope="module")
def samples():
    """Records of tiny runs, said to be of the full sizes: their format is real, their times not."""
    found = {}
    for name in SAMPLES:
        record = run_case(CASES[name], quick=True, device="host", repeats=1, machine="host")
        record |= {"quick": False, "case": CASES[name].to_json()}
        found[name] = json.loads(json.dumps(record, default=str))
    return found


@pytest.fixture
def folder(samples, tmp_path):
    for name, record in samples.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    return tmp_path


def rewrite(folder, name, change):
    path = folder / f"{name}.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


# What is on the pages ------------------------------------------------------------------------


@pytest.mark.parametrize("name", regenerate.GENERATORS)
def test_what_a_generator_makes_is_up_to_date(name, capsys):
    status = regenerate.GENERATORS[name](check=True)
    assert status == 0, f"run `make figures`: {capsys.readouterr().err}"


def test_one_command_runs_every_generator(monkeypatch, capsys):
    run = []

    def one(name):
        return lambda *, check: run.append((name, check)) or int("reliability" in name)

    made = {name: one(name) for name in regenerate.GENERATORS}
    monkeypatch.setattr(regenerate, "GENERATORS", made)
    assert regenerate.main(["--check"]) == 1
    assert run == [(name, True) for name in regenerate.GENERATORS]
    assert "docs/reliability.md: trials" in capsys.readouterr().err


def test_a_page_that_is_out_of_date_is_found(tmp_path):
    (block,) = performance.BLOCKS
    page = tmp_path / block.page
    page.parent.mkdir()
    text = (quoted.ROOT / block.page).read_text("utf-8")
    page.write_text(text.replace("### Table 4", "### Table 5"))
    assert block.write(check=True, root=tmp_path) == 1
    assert block.write(check=False, root=tmp_path) == 0
    assert block.write(check=True, root=tmp_path) == 0
    assert page.read_text("utf-8") == text


# Sentences -----------------------------------------------------------------------------------


def test_a_figure_of_no_result_is_found():
    page = (quoted.ROOT / "README.md").read_text("utf-8")
    assert quoted.problems("README.md", page) == []
    (found,) = quoted.problems("README.md", f"{page}\n\nIt is 7.5 times as fast.\n")
    assert "7.5 times" in found
    changed = page.replace("at 45 % of the link", "at 54 % of the link")
    assert any("at 45 %" in one for one in quoted.problems("README.md", changed))
    assert any("54 %" in one for one in quoted.problems("README.md", changed))


def test_what_stands_between_a_notebook_s_code_is_looked_at(tmp_path):
    kinds = {"markdown": ["It is 7.5 times", " as fast."], "code": ["# 3 s"]}
    cells = [{"cell_type": kind, "source": lines} for kind, lines in kinds.items()]
    (tmp_path / "one.ipynb").write_text(json.dumps({"cells": cells}))
    assert quoted.written(tmp_path / "one.ipynb") == "It is 7.5 times as fast."
    looked_at = {path.name for path in quoted.pages()}
    assert {path.name for path in (quoted.ROOT / "notebooks").glob("*.ipynb")} <= looked_at


@pytest.mark.parametrize(
    "words",
    ["12 %", "2 ms", "66 us", "0.6 s a GiB", "1.5x", "31 GB/s", "4332 GFLOPS", "3 minutes", "1e-3",
     "40 times as long", "5 seconds", "a tenth, 7.36e-9 s"],
)  # fmt: skip
def test_what_counts_as_a_figure(words):
    assert quoted.FIGURE.search(words)


@pytest.mark.parametrize("words", ["3x3", "64 x 64", "4.3 GB", "n=512", "16 GiB", "2 strides"])
def test_sizes_are_no_figures(words):
    assert not quoted.FIGURE.search(words)


def test_quotes_are_of_pages_that_are_looked_at():
    looked_at = {str(path.relative_to(quoted.ROOT)) for path in quoted.pages()}
    assert {quote.page for quote in quoted.QUOTES} | set(quoted.STATED) <= looked_at


def test_a_claim_that_is_gone_is_an_error():
    with pytest.raises(KeyError, match="what was never claimed"):
        quoted.claims("functions")["what was never claimed"]


# Records -------------------------------------------------------------------------------------


def test_records_are_asked_by_case_and_contender(folder):
    records = load(folder)
    assert set(records.found) == set(SAMPLES)
    assert records.seconds("fig14-4gb-tf32") > 0
    assert records.ratio("fig14-4gb-tf32", "serial") > 0
    assert records.seconds("fig14-4gb-tf32", "unified_memory") is None
    assert "NVIDIA GPU" in records.reason("fig14-4gb-tf32", "unified_memory")
    assert records.reason("fig14-1gb-tf32") == NOT_MEASURED
    assert records.gflops("fig14-1gb-tf32", "serial") is None


def test_quick_and_outdated_records_are_not_shown(folder):
    rewrite(folder, SAMPLES[0], lambda record: record.update(quick=True))
    rewrite(folder, SAMPLES[1], lambda record: record["case"].update(memory_limit="3GiB"))
    (folder / "gone.json").write_text(json.dumps({"case": {"name": "gone"}}))
    records = load(folder)
    assert set(records.found) == set(SAMPLES[2:])
    assert records.reason(SAMPLES[0]) == "measured at its tiny size only"
    assert records.reason(SAMPLES[1]) == "measured with other memory_limit than it has now"


def test_a_wrong_result_has_no_time(folder):
    def spoil(record):
        record["contenders"]["naive_loop"]["check"]["ok"] = False

    rewrite(folder, "fig14-4gb-tf32", spoil)
    records = load(folder)
    assert records.seconds("fig14-4gb-tf32", "naive_loop") is None
    assert "its result is WRONG" in performance.figure_14(records)


# Tables --------------------------------------------------------------------------------------


def test_the_page_shows_what_was_measured_and_why_the_rest_was_not(folder):
    text = performance.page(load(folder))
    assert "`unified_memory` did not run in fig14-4gb-tf32: CUDA Unified Memory needs" in text
    assert "- managed memory is kept below what the card has free: over-subscription" in text
    assert "29 of 33 cases not measured yet" in text
    assert "4,332 to 7,455" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.count("|") >= 3
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1


def test_a_table_says_where_and_when_it_was_measured(folder):
    def known(record):
        record["environment"] |= {
            "gpu": {"name": "A card"}, "date": "2026-11-21T10:00", "commit": "0123456789-dirty"
        }  # fmt: skip
        record["drift"] = 0.95
        record["notes"] = ["one note", "another"]

    rewrite(folder, "table4-b-strict", known)
    text = performance.table_4(load(folder))
    assert text.startswith("A card, 2026-11-21; limit of each case")
    assert "5 of 6 cases not measured yet." in text
    assert "- one note (table4-b-strict)\n- another (table4-b-strict)" in text
    # Commits and drift are for maintainers.
    assert "0123456" not in text
    rows = trials.records_table(folder)
    assert "| `table4-b-strict` | A card | 2026-11-21 | `0123456` with changes | -5.0% |" in rows


def test_the_page_without_results_says_so():
    text = performance.page(Records({}, {}))
    assert "Not measured yet: `python -m benchmarks.contenders`, 33 cases." in text
    assert "PASS" not in text


def test_a_table_has_the_records_figures(folder):
    def known(record):
        for contender, seconds, times in (("ooc_cudnn", 0.1, 1.0), ("naive_loop", 2.6, 26.0)):
            record["contenders"][contender]["seconds"]["median"] = seconds
            record["contenders"][contender]["ratio"]["of_medians"] = times
        record["contenders"]["copy_limit"]["ratio"]["of_medians"] = 0.975

    rewrite(folder, "fig14-4gb-tf32", known)
    records = load(folder)
    (row,) = [
        line
        for line in performance.figure_14(records).splitlines()
        if line.startswith("| 4.3 GB, TF32")
    ]
    assert row.startswith("| 4.3 GB, TF32 | 4GiB | 100 ms | 98% | - | - | - | 26.00 x |")
    held = claims.claims_table(records)
    assert "| `naive_loop` over the library, `fig14-4gb`, TF32 | 26 x | >= 25 x | PASS |" in held
    unified = "| `unified_memory` over the library, `fig14-4gb`, TF32 | - | >= 10 x | did not run |"
    assert unified in held


# Steps of networks ---------------------------------------------------------------------------


def step_record(case, limit, **more):
    """A record of `benchmarks.networks`: half a second of ours, 0.4 of PyTorch's."""
    seconds = lambda median: {"median": median}  # noqa: E731
    title = f"{case}, {limit}"
    return {
        "quick": False,
        "verified": True,
        "checks": {f"{title}: peak": {"peak": 3 * 2**30}},
        "claims": [
            {"name": f"{title}: off by", "value": 0.25, "relation": "<=", "bound": 0.1,
             "holds": False},
            {"name": "no bound", "value": 1, "relation": "", "bound": None, "holds": None},
        ],
        "measurements": {
            f"{title}: seconds": seconds(0.5),
            f"{title}: plan": {"seconds": 0.45, "bytes_in": 2**30, "bytes_out": 2**30},
            f"{title}: first step, with its plan": 7.0,
            f"{case}: in core: PyTorch, seconds": seconds(0.4),
            f"{case}: in core: PyTorch, peak": 9 * 2**30,
        },
        "environment": {"gpu": {"name": "A card"}, "versions": {"nvidia-cudnn-cu13": "9.0"},
                        "date": "2026-11-23"},
    } | more  # fmt: skip


def test_steps_stand_beside_pytorch_and_what_was_not_measured_is_named(tmp_path):
    assert NOT_MEASURED in steps.short(tmp_path)
    record = step_record("googlenet", "0.83GiB")
    (tmp_path / "networks_googlenet.json").write_text(json.dumps(record))
    wrong = step_record("vgg16", "16GiB", verified=False)
    (tmp_path / "networks_vgg16.json").write_text(json.dumps(wrong))
    ours = "| GoogLeNet, 128 images | `ooc_cudnn`, limit 0.83 GiB | 500 ms | 3.00 GiB |"
    assert f"{ours} 1.25x |\n" in steps.short(tmp_path)
    assert "VGG" not in steps.short(tmp_path)
    assert steps.LEAVING in steps.short(tmp_path)
    table = steps.long(tmp_path)
    assert table.startswith("On one A card, where a row names no other. The gradients of ")
    assert f"{ours} 1.25x | 0.90 | 2.00 GiB | 7.00 s | - |\n" in table
    assert "| PyTorch, all of it on the card | 400 ms | 9.00 GiB | 1.00x |" in table
    assert f"| VGG-16, 1024 images | {NOT_MEASURED} |" in table
    assert "| googlenet, 0.83GiB: off by | 0.25 | <= 0.1 | **MISS** |" in table
    assert "no bound" not in table


def test_the_latest_record_of_a_case_is_shown_and_says_how_long_tuning_took(tmp_path):
    for day, seconds in ((24, 90.0), (23, 30.0)):
        record = step_record("googlenet", "0.83GiB")
        record["measurements"]["googlenet, 0.83GiB: tuning, with its plans"] = seconds
        record["measurements"]["googlenet, 0.83GiB: plan"]["gradient_bytes"] = 100 * (day == 24)
        record["environment"]["date"] = f"2026-11-{day}"
        (tmp_path / f"networks_{day}.json").write_text(json.dumps(record))
    assert "| 7.00 s | 1 min 30 s |" in steps.long(tmp_path)
    assert "gradients" not in steps.short(tmp_path) + steps.long(tmp_path)
    assert "algorithms (engines) are fastest before.*" in steps.short(tmp_path)


def test_a_row_names_its_card_where_most_were_measured_on_another(tmp_path):
    for at, case in enumerate(("vgg16", "googlenet", "unet")):
        record = step_record(case, next(iter(networks.CASES[case].bounds)))
        if at == 1:
            record["environment"]["gpu"] = {"name": "Another"}
        (tmp_path / f"networks_{case}.json").write_text(json.dumps(record))
    for table in (steps.short(tmp_path), steps.long(tmp_path)):
        assert "| GoogLeNet, 128 images, on one Another | `ooc_cudnn`, " in table
        assert "| VGG-16, 1024 images | `ooc_cudnn`, " in table
        assert "n one A card" in table


def test_a_limit_that_the_latest_record_leaves_out_is_that_of_the_one_before(tmp_path):
    for day, limit, seconds in ((22, "100GiB", 0.5), (23, "40GiB", 0.7)):
        record = step_record("unet_3d", limit)
        record["measurements"][f"unet_3d, {limit}: seconds"] = {"median": seconds}
        record["environment"]["date"] = f"2026-11-{day}"
        (tmp_path / f"networks_{day}.json").write_text(json.dumps(record))
    table = steps.long(tmp_path)
    assert "limit 100 GiB | 500 ms |" in table
    assert "limit 40 GiB | 700 ms |" in table
    assert table.count("an eighth of it") == 1
    assert "| unet_3d, 100GiB: off by |" in table
    record["environment"]["gpu"] = {"name": "Another"}  # whose steps stand beside its own alone
    (tmp_path / "networks_23.json").write_text(json.dumps(record))
    table = steps.long(tmp_path)
    assert "limit 40 GiB | 700 ms |" in table
    assert "limit 100 GiB" not in table
    assert "unet_3d, 100GiB" not in table


def test_part_of_a_network_is_compared_with_nothing(tmp_path):
    record = step_record("unet_3d", "40GiB")
    assert [(way.label, way.ratio) for way in steps.ways("unet_3d", record)] == [
        ("`ooc_cudnn`, limit 40 GiB", None),
        ("PyTorch, an eighth of it", None),
    ]


# Reliability ---------------------------------------------------------------------------------


def test_the_reliability_page_counts_what_the_records_have(tmp_path):
    card, host = {"environment": {"gpu": {"name": "A card"}}}, {"environment": {"gpu": None}}
    fuzz = {
        "benchmark": "fuzz",
        "cases": 5000,
        "calls": 5123,
        "cases_by_function": {"a": 1, "b": 2},
        "findings": [{}],
    }
    cut = {"benchmark": "interruptions"}
    cut |= {"checks": {"contents": {"ok": False, "interruptions": 500, "wrong": ["a", "b"]}}}
    sanitized = {"benchmark": "sanitizer", "tool": "racecheck", "cases": 300, "errors": 3}
    kernels = sanitized | {"tests": 7000, "errors": 1, "failed_shards": 1}
    sanitized |= {"findings": []}
    for name, record in (
        ("fuzz-cuda", card | fuzz),
        ("fuzz-host", host | fuzz | {"cases": 20000, "findings": []}),
        ("interruptions", host | cut),
        ("interruptions-quick", host | cut | {"quick": True}),
        ("checked", card | sanitized),
        ("checked-kernels", card | kernels),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    table = trials.trials_table(tmp_path)
    functions = "drawn cases of 2 kinds: functions, and chains forward and backward"
    assert f"| {functions} | A card | 5,000 cases, 5,123 calls | 1 |" in table
    assert f"| {functions} | host device | 20,000 cases, 5,123 calls | 0 |" in table
    assert "| host device | 500 interruptions | 2 |" in table
    assert "| compute-sanitizer, racecheck, on drawn cases | A card | 300 cases | 3 |" in table
    assert (
        "| compute-sanitizer, racecheck, on the kernels' tests | A card | 7,000 tests | 2 |"
        in table
    )
    assert len(table.splitlines()) == 7
    (tmp_path / "checked.json").unlink()
    (tmp_path / "checked-kernels.json").unlink()
    missing = f"| compute-sanitizer on drawn cases | {NOT_MEASURED} |"
    assert missing in trials.trials_table(tmp_path)


# Pictures ------------------------------------------------------------------------------------


def test_a_picture_is_drawn_where_it_is_stale_and_goes_where_nothing_is_shown(tmp_path):
    pytest.importorskip("matplotlib")
    values = {"line": [1, 2]}

    def draw(values):
        figure, axes = canvas.panels(1, 1, width=2, height=1)
        axes[0, 0].plot(values["line"])
        return figure

    picture, path = canvas.Picture("images/one.png", lambda: values, draw), tmp_path / "images"
    written = lambda: [picture.write(check=each, root=tmp_path) for each in (True, False, True)]  # noqa: E731
    assert written() == [1, 0, 0]
    (drawn,) = [each.read_bytes() for each in path.iterdir()]
    (path / "one.png").unlink()
    assert written() == [1, 0, 0]
    assert (path / "one.png").read_bytes() == drawn
    values["line"] = [2, 1]
    assert written() == [1, 0, 0]
    assert (path / "one.png").read_bytes() != drawn
    values.clear()
    assert written() == [1, 0, 0]
    assert not [*path.iterdir()]


def meaning(label):
    """What the colour of something named stands for; its mark says the rest."""
    if label.startswith("in from "):  # a calibration's copies while the other direction is busy
        return ""
    if label in ("forward", "backward"):  # of a kernel that takes any order, or of a step
        return label
    recomputed = {"recomputing": "recomputed", "recomputed maps": "recomputed"}
    first = label.split()[0]
    return first if first in kernels.ORDER_COLOURS else recomputed.get(label, label)


#: Bars that are named beside them.
NAMED_BESIDE = ("summary.png", "measured.png")


@pytest.mark.parametrize("picture", regenerate.PICTURES, ids=lambda picture: picture.path)
def test_a_colour_means_one_thing_within_a_picture(picture):
    pytest.importorskip("matplotlib")
    values = picture.values()
    if not values or picture.path.endswith(NAMED_BESIDE):
        return
    of_kernels = picture is kernels.PICTURE
    check_one_meaning_a_colour(
        picture.draw(values),
        lambda label: "any order" if of_kernels and " " not in label else meaning(label),
    )


def test_ways_that_stand_beside_each_other_have_a_colour_each():
    colours = canvas.CONTENDER_COLOURS
    beside = (
        (*pictures.BARS_OF_SUMMARY, "copy_limit"),
        pictures.LINES_OF_14,
        (OURS, "torch_micro_batches", *(way.contender for way in WAYS.values())),
    )
    for names_of in beside:
        assert len({colours[name] for name in names_of}) == len(names_of)


@pytest.mark.parametrize("picture", regenerate.PICTURES, ids=lambda picture: picture.path)
def test_what_is_stored_is_drawn_and_small(picture, tmp_path):
    pytest.importorskip("matplotlib")
    assert picture.write(check=False, root=tmp_path) == 0
    drawn = tmp_path / picture.path
    assert (
        drawn.exists() == (quoted.ROOT / picture.path).exists()
    )  # none of what nobody measured so far
    assert not drawn.exists() or 5_000 < drawn.stat().st_size < 150_000


def test_a_stamp_is_a_chunk_that_readers_of_pictures_know(tmp_path):
    pytest.importorskip("matplotlib")
    image, path = pytest.importorskip("PIL.Image"), tmp_path / "one.png"
    image.new("RGB", (3, 2), "red").save(path)
    assert canvas.stamped(path) is None
    figure, _ = canvas.panels(1, 1, width=2, height=1)
    canvas.save(figure, path, {"a": [1, 2.5]})
    assert canvas.is_current(path, {"a": [1, 2.5]})
    assert not canvas.is_current(path, {"a": [1, 2.6]})
    with image.open(path) as read:
        assert read.text["drawn from"] == canvas.digest_of({"a": [1, 2.5]})
    assert canvas.stamped(tmp_path / "none.png") is None


# Measuring again -----------------------------------------------------------------------------


def test_every_case_is_in_one_part_of_the_card():
    measured = [
        case.name
        for part in card.PARTS.values()
        if part.cases
        for case in select(part.cases, CASES)
    ]
    assert sorted(measured) == sorted(CASES)
    assert set(names("fig9-")) <= set(measured)


def test_a_part_runs_and_says_how_it_ended(tmp_path, capfd, monkeypatch):
    part = card.PARTS["bench-fig10"]._replace(cases=("fig10-n1-tf32",))
    monkeypatch.setitem(card.PARTS, "bench-fig10", part)
    given = ["--quick", "--device", "host", "--output", str(tmp_path), "--only", "bench-fig10"]
    assert card.main(given) == 0
    assert [path.stem for path in (tmp_path / "bench").iterdir()] == ["fig10-n1-tf32"]
    assert "bench-fig10 0" in capfd.readouterr().out
    assert card.main([*given, "--seconds", "0.01"]) == 124
    assert "--quick: ended after 0.01 s" in capfd.readouterr().out


def test_parts_are_listed_and_a_wrong_name_refused(capsys):
    assert card.main(["--list"]) == 0
    assert "bench-fig9           fig9-*" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        card.main(["--only", "fig9"])
