"""Steps of drawn networks, planned and run: with all the memory they want, down to the least."""

import pytest

import ooc_cudnn
from tests.fuzz.networks import Drawn, main


@pytest.mark.every_case
@pytest.mark.parametrize("seed", [30, 6])
def test_steps_are_right_under_every_limit(seed):
    with ooc_cudnn.settings(device="host", machine="host"):
        assert len(list(Drawn(seed).check_all())) >= 3


def test_a_drawn_limit_has_room_for_all_that_moves_to_the_device():
    """As much as a card's plan took with all on the host was too little for filters there.

    Their gradients are on the device twice: 41.5 KiB of the least, and that of a piece 2.5.
    """
    with ooc_cudnn.settings(device="host", machine="host"):
        *_, (limit, how) = Drawn(81009).check_some_on_the_device(16384)
    assert (limit > 16384 + 3 * 13824, how) == (True, "recorded")


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
