"""What the README shows runs as it stands there."""

import re
from pathlib import Path

import ooc_cudnn

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(example.strip().splitlines()) <= 20
    monkeypatch.chdir(tmp_path)
    variables: dict = {}
    exec(compile(example, str(README), "exec"), variables)
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
