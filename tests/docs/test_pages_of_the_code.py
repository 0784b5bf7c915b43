"""Pages for those who change the code: paths, names and rooms that they name are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    DOCS / "architecture.md",
    DOCS / "engine.md",
    DOCS / "glossary.md",
    *sorted((DOCS / "contributing").glob("*.md")),
]
#: Where paths begin.
FOLDERS = (
    "",
    "ooc_cudnn",
    "ooc_cudnn/functions",
    "ooc_cudnn/devices",
    "ooc_cudnn/torch",
    "benchmarks",
)
#: Words of the field, of Python and of other libraries in code font.
WORDS = {"best", "dx", "dy", "g++", "keep", "ls", "n", "offload", "to"}


def quoted(page: Path) -> list[str]:
    """Everything in single backquotes."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.findall(r"`([^`\n]+)`", prose)


@cache
def sources() -> str:
    """All Python and CUDA of the tree, with the names of its files."""
    folders = ("ooc_cudnn", "perfmodel", "benchmarks", "tests/support", "tests/fuzz", "kernels")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    read = [path for path in files if path.suffix in (".py", ".cu", ".cuh")]
    return "\n".join(f"{path.stem}\n{path.read_text(encoding='utf-8')}" for path in read)


@cache
def words() -> set[str]:
    """All words of them."""
    return set(re.findall(r"\w+", sources()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_paths_that_a_page_names_exist(page):
    for path in (each for each in quoted(page) if re.fullmatch(r"[\w./*-]*/[\w./*-]*", each)):
        found = [there for folder in FOLDERS for there in (ROOT / folder).glob(path.rstrip("/"))]
        assert found, path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_that_a_page_has_are_in_the_code(page):
    for text in quoted(page):
        if "/" in text or " " in text or (ROOT / text).exists():
            continue
        for name in re.findall(r"[A-Za-z_]\w+", text.split("(")[0]):
            known = name in WORDS or name in words()
            assert known, f"{page.name}: {text}"


@pytest.mark.parametrize("room", ["operations", "network"])
def test_each_room_has_a_line(room):
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"^Of `{room}/`:\n\n(.*?)\n\n", text, re.S | re.M)
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.M))))
    folder = ROOT / "ooc_cudnn" / room
    there = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert named == there


def test_the_map_and_the_glossary_are_short():
    length = {page.stem: len(page.read_text("utf-8").splitlines()) for page in PAGES}
    assert length["architecture"] <= 150
    assert length["glossary"] <= 40
    assert max(length[page.stem] for page in PAGES if page.parent != DOCS) <= 50
    assert "(glossary.md)" in (DOCS / "architecture.md").read_text("utf-8")
