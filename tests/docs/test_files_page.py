"""The recipes of docs/files.md run with the real packages; each is skipped without its own."""

import doctest
import os
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "files.md"
BEFORE, *SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
#: Sections with code, by their title.
RECIPES = {
    title: body
    for title, _, body in (section.partition("\n") for section in SECTIONS)
    if "```python" in body
}


def code(text):
    return "".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def run(title):
    """Run a recipe after what stands before all; return the names that there are then."""
    session = code(BEFORE + RECIPES[title])
    parsed = doctest.DocTestParser().get_doctest(session, {}, PAGE.name, str(PAGE), 0)
    printed = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(parsed, out=printed.append, clear_globs=False)
    assert not printed, "".join(printed)
    return parsed.globs


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_runs(title, request, monkeypatch, tmp_path):
    request.getfixturevalue("fewest_plans")
    text = RECIPES[title]
    for package in re.findall(r"^>>> (?:import|from) (?:glob, )?(\w+)", text, re.MULTILINE):
        pytest.importorskip(package)
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    monkeypatch.chdir(os.getcwd())  # so that it is put back
    run(title)


@pytest.mark.parametrize("title", ["NIfTI", "FITS", "MRC"])
def test_the_labels_of_a_recipe_are_pytorchs(title, request, monkeypatch, tmp_path):
    """By files of their own kinds of order: Fortran's, big-endian, plain."""
    import numpy as np
    import torch

    request.getfixturevalue("fewest_plans")
    package = {"NIfTI": "nibabel", "FITS": "astropy.io.fits", "MRC": "mrcfile"}[title]
    module = pytest.importorskip(package)
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    monkeypatch.chdir(os.getcwd())
    names = run(title)
    model, voxels = names["of_volumes"], torch.from_numpy(names["voxels"].astype("float32"))
    with torch.no_grad():
        if title == "NIfTI":
            expected = model((2.0 * voxels - 10.0)[None, None]).argmax(1)[0].numpy()
            found = np.asarray(module.load("labels.nii").dataobj)
        else:
            expected = model(voxels[None, None]).argmax(1)[0].numpy()
            found = np.load("sky_labels.npy")[0] if title == "FITS" else module.read("labels.mrc")
    assert (found != expected).mean() < 1e-3
