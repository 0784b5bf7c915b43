"""Two processes train together: DistributedDataParallel around a model under a limit."""

import fcntl
import json
import multiprocessing
import os
import re

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ooc_cudnn.torch as ooc
from benchmarks import ddp_scale
from examples import ddp_resnet50
from tests.support import ddp_ranks
from tests.support.ddp_ranks import NAMES, RANKS, STEPS, UNEVEN, images, loss_of, model
from tests.support.torch_checks import close

if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where two processes write: one folder for all of pytest's workers."""
    base = tmp_path_factory.getbasetemp()
    found = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ranks"
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture(scope="module")
def ranks(folder):
    """What each of them found: they run once for all tests here."""
    files = [folder / f"rank{rank}" for rank in range(RANKS)]
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(file.exists() for file in files):
            # both are forked off a process that has imported what they need
            multiprocessing.set_forkserver_preload(["tests.support.ddp_ranks", "functorch.compile"])
            torch.multiprocessing.start_processes(
                ddp_ranks.run, (str(folder),), nprocs=RANKS, start_method="forkserver"
            )
    return [torch.load(file) for file in files]


def alike(found, expected):
    """Assert that gradients and states agree."""
    for one, other, what in zip(found, expected, ("gradient of ", ""), strict=True):
        assert list(one) == list(other)
        largest = max(float(each.abs().max()) for each in other.values() if each is not None)
        for name in other:
            close(one[name], other[name], what + name, least=largest)


def on_the_whole_batch():
    """Gradients and state of one process that has the images of both ranks."""
    whole = model()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        parts = [images(step, rank, UNEVEN[rank]) for rank in range(RANKS)]
        x, target = (torch.cat(each) for each in zip(*parts, strict=True))
        optimizer.zero_grad()
        nn.functional.cross_entropy(whole(x), target).backward()
        optimizer.step()
    return ddp_ranks.found_in(whole)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_under_a_limit_trains_as_pytorchs_does(ranks, name):
    for rank in ranks:
        alike(*rank[name])
    gradients, state = ranks[0][name][0]
    assert all(torch.equal(each, ranks[1][name][0][1][key]) for key, each in state.items()
               if "running" not in key)  # fmt: skip
    assert ("unused.weight" in gradients) == ("unused" in name)
    assert name != "unused parameters" or gradients["unused.weight"] is None


def test_gradients_are_summed_over_ranks_while_others_are_made(ranks):
    for rank in ranks:
        found, events = rank["order"]
        alike(*found)
        steps = "".join(each[0] for each in events)
        assert steps.count("s") > STEPS * 2
        # buckets are made anew after the first step; from the second on, each part has its own
        assert re.search("^(ps+){3,}(ps+){3,}", steps[steps.index("p", steps.index("s")) :]), steps


def test_with_global_statistics_ranks_train_as_one_process_on_the_whole_batch(ranks):
    gradients, state = on_the_whole_batch()
    for rank in ranks:
        found, phases = rank["global"]
        (own, after), (other, _) = found, ranks[0]["global"][0]
        # each rank has gone on by a forward of its own images, in training
        after = {n: each for n, each in after.items() if "running" not in n and "track" not in n}
        alike((own, after), (gradients, {name: state[name] for name in after}))
        assert all(torch.equal(each, other[name]) for name, each in own.items())
        assert phases == ["bn1 moments over ranks", "bn2 moments over ranks"]


def test_synchronised_batch_normalization_is_of_all_ranks(ranks):
    whole = model()
    parts = [images(0, rank, UNEVEN[rank]) for rank in range(RANKS)]
    x, target = (torch.cat(each) for each in zip(*parts, strict=True))
    x.requires_grad_()
    # each rank's loss is that of its own images, and counts so much more
    (loss_of(whole(x), target, sum(UNEVEN))).backward()
    gradients, state = ddp_ranks.found_in(whole)
    found = [rank["synchronised"] for rank in ranks]
    close(torch.cat([each[0] for each in found]), x.grad, "the inputs' gradient")
    summed = {name: sum(each[1][name] for each in found) for name in gradients}
    alike((summed, found[0][2]), (gradients, state))
    assert all(torch.equal(each, found[1][2][name]) for name, each in found[0][2].items())


def test_a_checkpoint_of_a_rank_loads_anywhere(ranks):
    _, state = ranks[1]["plain"][0]
    x = images(0, 0, 2)[0]
    plain, wrapped = model().eval(), ooc.limit(model().eval(), "1MiB")
    for each in (plain, wrapped):
        each.load_state_dict(state)
    with torch.no_grad():
        close(wrapped(x), plain(x), "scores")


def test_the_example_trains_on_two_ranks_and_keeps_a_checkpoint(ranks, folder):
    printed, nothing = (rank["example"] for rank in ranks)
    losses = [float(found) for found in re.findall(r"loss (\d+\.\d+),", printed)]
    assert len(losses) == 4
    assert losses[-1] < 0.95 * losses[0]
    assert "2 ranks: " in printed
    assert nothing == ""
    found = torch.load(folder / "checkpoint")
    assert ddp_resnet50.resnet((1, 1), 4).load_state_dict(found).missing_keys == []


def test_the_example_runs_without_torchrun_and_without_a_limit(capsys):
    assert ddp_resnet50.main([*ddp_ranks.SMALL, "--limit=none", "--steps=1"]) == 0
    printed = capsys.readouterr().out
    assert "1 rank: " in printed
    assert "a plan" not in printed
    with pytest.raises(SystemExit):
        ddp_resnet50.main(["--steps=0"])
    assert "--steps must be at least 1, not 0" in capsys.readouterr().err


@pytest.mark.parametrize(("what", "said"), [("late", "Timed out"), ("gone", "Connection closed")])
def test_a_rank_that_does_not_come_is_an_error_at_the_others(ranks, what, said):
    message, seconds, unchanged = ranks[0][what]
    assert message.startswith("bn1: the statistics of its batch are those of all 2 ranks")
    assert said in message
    assert seconds < 20
    assert unchanged


def test_other_statistics_are_refused():
    with pytest.raises(ValueError, match="statistics must be rank or global, not 'batch'"):
        ooc.limit(nn.Conv2d(3, 4, 3), "1MiB", statistics="batch")


def test_data_parallel_is_refused():
    with pytest.raises(ooc.UnsupportedModelError, match=r"\(DataParallel\) .* Distributed"):
        ooc.limit(nn.DataParallel(nn.Conv2d(3, 4, 3)), "1MiB")


def test_a_part_that_is_wrapped_already_is_refused(tmp_path):
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        inner = nn.Sequential(DistributedDataParallel(nn.Conv2d(3, 4, 3)), nn.ReLU())
        with pytest.raises(ooc.UnsupportedModelError, match=r"^0 \(Distr.* limit the model first"):
            ooc.limit(inner, "1MiB")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.every_case
def test_a_quick_run_of_the_benchmark_writes_verified_results(tmp_path):
    given = ["--quick", "--device", "host", "--output", str(tmp_path), "--scratch", str(tmp_path)]
    assert ddp_scale.main(given) == 0
    report = json.loads((tmp_path / "ddp_scale.json").read_text())
    assert report["verified"] is True
    assert report["measurements"]["2: rank 0"]["ranks_are_equal"] is True
