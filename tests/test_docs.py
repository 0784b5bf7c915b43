"""Every Python example in the pages of docs/ runs, and gives what the page says."""

import doctest
import re
from pathlib import Path

import pytest

import ooc_cudnn

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [*sorted((DOCS / "functions").glob("*.md")), DOCS / "migration.md"]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def names(pages):
    return [str(page.relative_to(DOCS)) for page in pages]


def sections(page):
    """The headings of a page, as fragments of links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_the_examples_run(page):
    text = page.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert blocks, "a page without an example"
    assert all(block[1].startswith(">>> ") for block in blocks), "an example that is not tested"
    # All blocks of a page are one session; the lines between keep the line numbers of failures.
    session = "".join(
        "\n" * (text.count("\n", 0, block.start(1)) - text.count("\n", 0, before)) + block[1]
        for before, block in zip([0, *(b.end(1) for b in blocks)], blocks, strict=False)
    )
    test = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
    printed: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=printed.append)
    assert not printed, "".join(printed)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page):
    for target, fragment in re.findall(
        r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")
    ):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), target
        assert not fragment or fragment in sections(found), fragment


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
