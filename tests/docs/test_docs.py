"""Every Python example in the pages of docs/ runs, and gives what the page says."""

import doctest
import importlib.util
import json
import re
import warnings
from pathlib import Path

import pytest

import ooc_cudnn
from benchmarks.pages import model as model_page
from ooc_cudnn.bench import script
from ooc_cudnn.call_planner.search import SIZES
from ooc_cudnn.engines import trials
from perfmodel.lines import TOO_NOISY, TOO_NOISY_FILES
from perfmodel.rows import GAP_BYTES, NARROW_BYTES, NARROWEST_ROW_BYTES
from perfmodel.work import TILE_CHANNELS, WIDE_WINDOW
from tests.support import sampling, torchvision_models

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    *sorted((DOCS / "functions").glob("*.md")),
    DOCS / "concepts.md",
    DOCS / "migration.md",
    DOCS / "diffusers.md",
    DOCS / "lightning.md",
    DOCS / "model-method.md",
    DOCS / "monai.md",
    DOCS / "networks.md",
    DOCS / "performance-model.md",
    *sorted(DOCS.glob("pytorch*.md")),
    DOCS / "scale.md",
    DOCS / "settings.md",
    DOCS / "troubleshooting.md",
    DOCS / "tutorial.md",
]
#: Of pages about other packages: what their examples import.
OF_PACKAGES = {
    "diffusers.md": ("diffusers", "httpx2", "requests", "safetensors"),
    "lightning.md": ("lightning", "lightning_utilities", "torchmetrics", "accelerate"),
    "monai.md": ("monai",),
    "scale.md": ("dask",),
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def names(pages):
    return [str(page.relative_to(DOCS)) for page in pages]


def sections(page):
    """The headings of a page, as fragments of links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_the_examples_run(page, request):
    # these show results, and no plan
    if page.name.startswith(("pytorch", *OF_PACKAGES)) and not sampling.EVERY:
        request.getfixturevalue("fewest_plans")
    request.getfixturevalue("searches_are_shared")
    text = page.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert blocks, "a page without an example"
    assert all(block[1].startswith(">>> ") for block in blocks), "an example that is not tested"
    for module in OF_PACKAGES.get(page.name, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the page is about {module}")
    if page.name in ("diffusers.md", "lightning.md"):  # what they import imports torchvision
        torchvision_models.models()
    if importlib.util.find_spec("torch") is None:
        if ">>> import torch" in blocks[0][1]:
            pytest.skip("the whole page is about PyTorch")
        blocks = [block for block in blocks if ">>> import torch" not in block[1]]
    # All blocks of a page are one session; the lines between keep the line numbers of failures.
    session = "".join(
        "\n" * (text.count("\n", 0, block.start(1)) - text.count("\n", 0, before)) + block[1]
        for before, block in zip([0, *(b.end(1) for b in blocks)], blocks, strict=False)
    )
    test = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
    printed: list[str] = []
    with warnings.catch_warnings():
        if page.name in OF_PACKAGES:
            warnings.simplefilter("ignore")  # theirs
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=printed.append)
    assert not printed, "".join(printed)


LINKING = [
    *(page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts),
    *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, fragment in re.findall(
        r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")
    ):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), target
        assert not fragment or fragment in sections(found), fragment


def named_tests(text):
    """Files and functions of tests that a text names: ("tests/x/test_y.py", "test_z" or "")."""
    return re.findall(r"(?<![\w/])(tests/[\w/]*\w(?:\.py)?)(?:::(test_\w+))?", text)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_tests_that_a_page_names_exist(page):
    for path, function in named_tests(page.read_text(encoding="utf-8")):
        found = DOCS.parent / path
        assert found.exists(), path
        named = function and re.search(
            rf"^ *def {function}\(", found.read_text(encoding="utf-8"), re.MULTILINE
        )
        assert named or not function, f"{path} has no {function}"


def test_the_planner_names_a_test_for_each_fault_of_others():
    text = (DOCS / "planning-networks.md").read_text(encoding="utf-8")
    rows = text.split("## Faults of other planners")[1].split("|---|---|---|\n")[1].splitlines()
    without = [row for row in rows if not named_tests(row)]
    assert len(rows) == 9
    assert [row.split("|")[-2].strip() for row in without] == [
        "no test forbids it",
        "none is needed",
    ]


def test_every_function_has_its_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    index = (DOCS / "functions" / "README.md").read_text(encoding="utf-8")
    functions = [
        name
        for name in ooc_cudnn.__all__
        if name.endswith(("_forward", "_training", "_inference", "_data", "_filter", "_bias"))
        or "_backward" in name
        or name == "add_tensor"
    ]
    assert len(functions) >= 2
    for name in functions:
        assert f"`{name}`" in index, name
        assert f"`{name}(" in pages, name


def test_the_model_page_quotes_what_is_stored():
    assert [block.write(check=True) for block in model_page.BLOCKS] == [0] * 5


@pytest.mark.parametrize(
    "path", sorted(script.RESULTS.glob("model_accuracy_*.json")), ids=lambda path: path.stem
)
def test_the_model_page_has_every_bound_and_figure_of_a_stored_result(path):
    """Read once more by other means than those that wrote the page."""
    text = (DOCS / "model-method.md").read_text(encoding="utf-8")
    result = json.loads(path.read_text(encoding="utf-8"))
    commit = f"`{result['environment']['commit'][:7]}`"
    tables = [part.split("\n\n")[1].splitlines()[2:] for part in text.split(commit)[1:]]
    # one run may be stored in parts, each with a table
    first = f"| {result['claims'][0]['name'].replace('_', ' ')} |"
    (rows,) = [table for table in tables if table[0].startswith(first)]
    assert len(rows) == len(result["claims"])
    for row, claim in zip(rows, result["claims"], strict=True):
        name, measured, bound, verdict = (cell.strip() for cell in row.strip("|").split("|"))
        assert name == claim["name"].replace("_", " ")
        value = float(measured.removesuffix(" %")) / (100 if "%" in measured else 1)
        assert value == pytest.approx(claim["value"], abs=0.0006)
        assert bool(bound) == (claim["bound"] is not None)
        assert ("missed" in verdict) == (claim["holds"] is False)


def test_the_model_page_quotes_the_constants_of_the_code():
    text = " ".join((DOCS / "model-method.md").read_text(encoding="utf-8").split())
    assert (NARROWEST_ROW_BYTES, NARROW_BYTES, GAP_BYTES) == (128, (2**12, 2**15), 2**16)
    assert "rows that are narrower than 128 bytes" in text
    assert "min(width / 4 KiB, 1) * (32 KiB - width) / 28 KiB" in text
    assert "where the gap between them is smaller than 64 KiB" in text
    assert (TOO_NOISY, TOO_NOISY_FILES) == (0.25, 1.0)
    assert "more than 25 % from their median (files: 100 %)" in text
    assert (trials.SHORTEST_SECONDS, trials.LARGEST_ERROR) == (2e-4, 10.0)
    assert "computing takes 0.2 ms or more, and at least a tenth of what the link takes" in text
    assert (trials.MOST_SHARE, trials.MOST_SECONDS) == (0.1, 0.1)
    assert "a tenth of the call's predicted seconds at most, or 0.1 s if that is more" in text
    assert f"{SIZES} of them at most" in text
    assert f"channels of y or of x in steps of {TILE_CHANNELS}" in text
    assert f"windows wider than {WIDE_WINDOW}" in text
