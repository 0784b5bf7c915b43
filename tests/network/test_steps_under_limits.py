"""Steps of drawn networks, planned and run: with all the memory they want, down to the least."""

import pytest

import ooc_cudnn
from tests.fuzz.networks import Drawn, main


@pytest.mark.parametrize("seed", [6, 18, 24, 30])
def test_steps_are_right_under_every_limit(seed):
    with ooc_cudnn.settings(device="host", machine="host"):
        assert len(list(Drawn(seed).check_all())) >= 3


def test_what_is_wrong_is_told(monkeypatch, capsys):
    def wrong(self, limit, policy):
        raise AssertionError(f"wrong under {limit}")

    monkeypatch.setattr(Drawn, "check", wrong)
    assert main(["--first", "6", "--count", "1"]) == 1
    said = capsys.readouterr().out
    assert "seed 6, (1073741824, 'keep'): AssertionError: wrong under 1073741824" in said
    assert "1 networks, 1 steps, 1 wrong" in said
