"""The example trains the networks that ship, under a limit, and says what a step took."""

import re

import pytest

from examples.train import main

#: Limits that hold a part of what the step would keep.
CASES = {
    "vgg16": ("--limit=2MiB", "--policy=offload"),
    "resnet50": ("--limit=2MiB", "--policy=checkpoint"),
}
SMALL = ("--batch=4", "--image=32", "--width=0.0625", "--device=host")


@pytest.mark.parametrize("network", CASES)
def test_the_loss_falls_on_a_fixed_batch(network, capsys):
    assert main([network, *SMALL, *CASES[network], "--steps=8", "--rate=0.02"]) == 0
    printed = capsys.readouterr().out
    losses = [float(found) for found in re.findall(r"loss (\d+\.\d+);", printed)]
    assert len(losses) == 8
    assert losses[-1] < 0.95 * losses[0]
    assert printed.count("predicted") == 8
    policy = CASES[network][1].removeprefix("--policy=")
    ended = re.search(r"at most ([\d.]+) .iB of 2.00 MiB on the device; policy (\w+)", printed)
    assert ended is not None
    assert ended.group(2) == policy


def test_a_policy_is_chosen_by_name(capsys):
    assert main(["vgg16", *SMALL, "--policy=vdnn_all", "--steps=1"]) == 0
    assert "policy vdnn_all" in capsys.readouterr().out
    with pytest.raises(ValueError, match="policy must be one of"):
        main(["vgg16", *SMALL, "--policy=none"])


def test_what_makes_no_sense_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["vgg16", "--steps=0"])
    assert "--steps must be at least 1, not 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["lenet"])
