"""What the README shows runs as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest

import ooc_cudnn
from benchmarks.pages import readme, steps

README = Path(__file__).parents[2] / "README.md"


TORCH, IMAGE, CALL = re.findall(
    r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
)


def run(example, variables=None):
    """What an example leaves in its variables, which may be those of one before."""
    assert len(example.strip().splitlines()) <= 20
    variables = {} if variables is None else variables
    exec(compile(example, str(README), "exec"), variables)
    return variables


def test_the_first_example_is_a_model_of_pytorch_under_a_limit_in_eight_lines():
    pytest.importorskip("torch")
    assert len([line for line in TORCH.splitlines() if line]) == 8
    with ooc_cudnn.settings(device="host", machine="host"):
        variables = run(TORCH)
    model = variables["model"]
    assert model.forward.plan.device_bytes <= 8 * 2**20
    (kept,) = re.findall(r"all kept +([\d.]+) MiB", str(model.forward.plan))
    assert f"this step takes {float(kept):.0f} MiB" in TORCH
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.usefixtures("fewest_plans")  # it shows results, and no plan
def test_the_example_of_a_whole_image_writes_its_labels(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    with ooc_cudnn.settings(device="host", machine="host"):
        variables = run(IMAGE, run(TORCH))
    stored = np.load(tmp_path / "labels.npy")
    twin = variables["ooc"].release(variables["model"])
    with torch.no_grad():
        expected = twin(torch.from_numpy(variables["image"])).argmax(1)
    assert stored.shape == variables["labels"].shape == (1, 512, 512)
    assert (stored != expected.numpy()).mean() < 1e-3


def test_the_example_of_a_call_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    variables = run(CALL)
    assert variables["y"].shape == (8, 32, 128, 128)
    assert variables["p"].calls[0].plan.pieces > 1
    assert "d_hY" in capsys.readouterr().out
    assert (tmp_path / "streams.png").stat().st_size > 10_000


def test_names_it_mentions_exist():
    text = README.read_text(encoding="utf-8")
    names = set(re.findall(r"ooc_cudnn\.([a-z_]+)\(", text))
    assert names
    assert all(callable(getattr(ooc_cudnn, name)) for name in names)
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (README.parent / target).exists(), target


def table(page=readme):
    """The cells of one of the README's tables, below its head."""
    (block,) = (block for block in page.BLOCKS if block.page == README.name)
    lines = [line for line in block.read().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_a_call_tells_one_story_in_eight_rows():
    rows = table()
    assert 4 <= len(rows) <= 8
    memories = {memory for _, memory, _, _ in rows}
    assert memories <= {"pinned", "pageable", "managed"}  # each label says which
    assert {case for _, _, case, _ in readme.ROWS} == {readme.STORY}


def test_the_table_of_steps_shows_who_is_faster_and_who_takes_less_memory():
    records = steps.records()
    rows = table(steps)
    assert set(steps.SHORT) <= set(records)
    assert len(rows) == sum(len(list(steps.ways(case, records[case]))) for case in steps.SHORT)
    for case in steps.SHORT:
        its = [row for row in rows if row[0].split(", on one ")[0] == steps.TRAINED[case]]
        assert its[0][1].startswith("`ooc_cudnn`")
        assert its[-1][4] == "1.00x"


def test_what_it_says_of_installing_needs_no_index_to_have_the_package():
    text = README.read_text(encoding="utf-8").split("## Installing")[1]
    commands = re.findall(r"^pip install (.*)$", text, re.MULTILINE)
    assert "torch]'" in commands[0]
    for command in [*commands, *re.findall(r"`pip install ('.*?)`", text)]:
        assert command.startswith(("'.[", "'dist/ooc_cudnn-"))
    assert f"ooc_cudnn-{ooc_cudnn.__version__}-py3-none-any.whl" in text
