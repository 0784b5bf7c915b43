"""Run the notebooks top to bottom, and store them with their outputs.

python -m notebooks.execute            # all, in place: `make notebooks`
python -m notebooks.execute --quick 01_quickstart    # into build/notebooks, not in place
python -m notebooks.execute --records  # only cells that quote records, where these have changed
"""

from __future__ import annotations

import argparse
import base64
import copy
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
#: Where quick runs go: what is stored beside the notebooks is of full size.
QUICK_FOLDER = FOLDER.parent / "build" / "notebooks"
QUICK_VARIABLE = "OOC_NOTEBOOK_QUICK"
#: Of a picture, so that the repository stays small.
LARGEST_PICTURE_BYTES = 60_000
#: A cell that measures on a card may take minutes.
CELL_SECONDS = 1800
#: Tags of cells: whose outputs quote `benchmarks/results` or a shipped machine, and what they need.
RECORD, SETUP = "record", "setup"


def names() -> list[str]:
    """Name the notebooks, in their order."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def execute(name: str, output: Path) -> Path:
    """Run a notebook in a kernel of its own, and write it with its outputs.

    Parameters
    ----------
    name : str
        Without the suffix.
    output : Path
        The folder to write to.

    Returns
    -------
    Path
        What was written.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell raises; nothing is written then.
    ValueError
        If an output names a folder of this machine, or a picture is too large.
    """
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    _run(notebook)
    return _write(notebook, name, output)


def quote_records(name: str, output: Path) -> Path:
    """Run what quotes records, and what that needs; write it, and all else as it was stored.

    Parameters
    ----------
    name : str
        Without the suffix.
    output : Path
        The folder to write to.

    Returns
    -------
    Path
        What was written.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell raises; nothing is written then.
    ValueError
        As `execute`.
    """
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    tagged = [cell for cell in notebook.cells if {RECORD, SETUP} & {*cell.metadata.get("tags", ())}]
    part = copy.deepcopy(notebook)
    part.cells = copy.deepcopy(tagged)
    if part.cells:
        _run(part)
    for cell, ran in zip(tagged, part.cells, strict=True):
        if RECORD in cell.metadata.tags:
            cell.outputs = ran.outputs
            for out in cell.outputs:
                if "execution_count" in out:
                    out.execution_count = cell.execution_count
    return _write(notebook, name, output)


def _run(notebook: nbformat.NotebookNode) -> None:
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute()


def _write(notebook: nbformat.NotebookNode, name: str, output: Path) -> Path:
    notebook.metadata = {  # of the machine that ran it, nothing
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        for out in cell.get("outputs", ()):
            _check(name, out)
    nbformat.validate(notebook)
    output.mkdir(parents=True, exist_ok=True)
    target = output / f"{name}.ipynb"
    nbformat.write(notebook, target)
    return target


def _check(name: str, out: nbformat.NotebookNode) -> None:
    if str(FOLDER.parent) in str(out):
        raise ValueError(f"{name}: an output names {FOLDER.parent}: {out!s:.200}")
    picture = out.get("data", {}).get("image/png")
    if picture is not None and len(base64.b64decode(picture)) > LARGEST_PICTURE_BYTES:
        raise ValueError(f"{name}: a picture of more than {LARGEST_PICTURE_BYTES} bytes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run those that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m notebooks.execute", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as 01_quickstart")
    parser.add_argument("--quick", action="store_true", help="small sizes, as the tests run them")
    parser.add_argument(
        "--records",
        action="store_true",
        help="only cells that quote benchmarks/results; the others stay as they are stored",
    )
    parser.add_argument(
        "--output", type=Path, help="folder (default: in place; of --quick, build/notebooks)"
    )
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(names()))
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such notebook; there are {', '.join(names())}")
    if given.quick and given.records:
        parser.error("--quick and --records: records are of full sizes")
    if given.quick:
        os.environ[QUICK_VARIABLE] = "1"
    if given.records:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with a card, cases would be measured anew
    output = given.output or (QUICK_FOLDER if given.quick else FOLDER)
    for name in given.names or names():
        written = (quote_records if given.records else execute)(name, output)
        print(f"{name}: {written}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
