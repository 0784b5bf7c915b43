"""Links that lead somewhere in the repository lead there on the site too.

Pages are written to be read in the repository as well. Links to files outside docs/ are downloads
on the site, which MyST sees to. What it does not know is here: folders, the README, which is the
front page, and the notebooks, which stand outside docs/ and come in through a symbolic link.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("doctree-read", _lead, priority=400)  # before downloads are collected
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _lead(app: Sphinx, document: nodes.document) -> None:
    docs = Path(app.srcdir).resolve()
    page = Path(document["source"])
    # The front page shows the README, whose links start at the root of the repository.
    here = docs.parent if page == Path(app.srcdir, "index.md") else page.resolve().parent
    for link in list(document.findall(addnodes.pending_xref)):
        if link["reftype"] != "myst" or link["reftarget"] in app.env.found_docs:
            continue
        path, _, fragment = link["reftarget"].partition("#")
        if not path:
            continue
        # MyST names a page outside docs/ by its whole path, without the suffix.
        suffixes = (".md", ".ipynb") if link.get("refdomain") == "doc" else ("",)
        named = [(here / f"{path}{suffix}").resolve() for suffix in suffixes]
        target = next((file for file in named if file.exists()), named[0])
        name = _page(app, docs, target)
        text = [child.deepcopy() for child in link.children]
        if name is not None:
            link["refdomain"], link["reftarget"] = "doc", name
            link["reftargetid"] = link.get("reftargetid") or fragment or None
        elif target.is_dir():
            link.replace_self(nodes.inline("", "", *text))
        elif target.is_file():
            file = f"/{os.path.relpath(target, docs)}"
            link.replace_self(addnodes.download_reference("", "", *text, reftarget=file))


def _page(app: Sphinx, docs: Path, target: Path) -> str | None:
    """Name the page of the site that shows a file of the repository."""
    repository = docs.parent
    if target == repository / "README.md":
        return "index"
    for folder, prefix in ((docs, ""), (repository / "notebooks", "notebooks/")):
        if target.is_relative_to(folder) and target.is_file():
            name = prefix + str(target.relative_to(folder).with_suffix(""))
            return name if name in app.env.found_docs else None
    return None
