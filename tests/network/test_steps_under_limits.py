"""Steps of drawn networks, planned and run: with all the memory they want, down to the least."""

import pytest

import ooc_cudnn
from tests.fuzz.networks import Drawn, main


@pytest.mark.parametrize("seed", [6, 30])
def test_steps_are_right_under_every_limit(seed):
    with ooc_cudnn.settings(device="host", machine="host"):
        assert len(list(Drawn(seed).check_all())) >= 3


def test_no_phase_is_left_crumbs_of_memory():
    """It was: 34,560 pieces of one layer, where less on the device is a hundred times as fast."""
    drawn = Drawn(18)
    with ooc_cudnn.settings(device="host", machine="host"):
        plan = drawn.net.plan(drawn.loss, memory_limit=329088, policy="remake")
    assert plan.pieces < 1000


def test_what_is_wrong_is_told(monkeypatch, capsys):
    def wrong(self, limit, policy):
        raise AssertionError(f"wrong under {limit}")

    monkeypatch.setattr(Drawn, "check", wrong)
    assert main(["--first", "6", "--count", "1"]) == 1
    said = capsys.readouterr().out
    assert "seed 6, [(1073741824, 'keep')]: AssertionError: wrong under 1073741824" in said
    assert "1 networks, 1 steps, 1 wrong" in said
