"""What two processes do together in tests of distributed training; each writes what it found."""

from __future__ import annotations

import contextlib
import io
import time
from datetime import timedelta

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import ooc_cudnn
import ooc_cudnn.torch as ooc
from examples import ddp_resnet50
from ooc_cudnn.network.runtime.two_part import PausedStep
from ooc_cudnn.torch.runtime import ranks
from tests.support import searches
from tests.support.few_plans import compare_few, compare_fewest
from tests.support.sampling import number

RANKS, STEPS, LIMIT = 2, 3, "48KiB"
#: Images of each rank where it says "uneven".
EVEN, UNEVEN = (4, 4), (5, 3)
#: Of DistributedDataParallel, with how many backwards a step.
OPTIONS = {
    "plain": ({}, 1),
    "unused parameters": ({"find_unused_parameters": True}, 1),
    "a static graph, gradients in buckets": (
        {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 1e-5},
        1,
    ),
    "accumulation": ({}, 2),
    "limited when wrapped": ({}, 1),
}
#: Of these, what is trained.
NAMES = list(OPTIONS)[: number(2, of=len(OPTIONS))]


class Joined(nn.Module):
    """Batch normalizations of a map, and of a concatenation with it."""

    def __init__(self, unused=False):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(8)
        self.classes = nn.Linear(8, 5)
        if unused:
            self.unused = nn.Linear(2, 2)

    def forward(self, x):
        h = self.bn1(self.conv1(x))
        h = self.bn2(torch.cat([h, self.conv2(h.relu())], 1)).relu()
        return self.classes(h.mean((2, 3)))


def model(**options):
    torch.manual_seed(0)
    return Joined(**options).double()


def images(step, rank, count):
    random = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(count, 3, 8, 8, dtype=torch.float64, generator=random)
    return x + rank, torch.arange(count) % 5


def loss_of(made, target, images_in_all):
    """So that the mean over ranks of gradients is that of the mean loss of all images."""
    return nn.functional.cross_entropy(made, target, reduction="sum") * (RANKS / images_in_all)


def trained(model, rank, counts, backwards=1):
    """Gradients of the last step, and the state after it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for more in reversed(range(backwards)):
            x, target = images(step + 10 * more, rank, counts[rank])
            with model.no_sync() if more else contextlib.nullcontext():
                loss_of(model(x), target, sum(counts)).backward()
        optimizer.step()
    return found_in(model.module)


def found_in(model):
    gradients = {name: each.grad for name, each in model.named_parameters()}
    return gradients, dict(model.state_dict())


def run(rank, folder):
    """What a process does."""
    torch.set_num_threads(1)
    ranks.BUCKET_BYTES = 1  # backward pauses wherever it may
    store = distributed.FileStore(f"{folder}/store", RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    with (
        ooc_cudnn.settings(device="host", machine="host"),
        pytest.MonkeyPatch.context() as patch,
        searches.shared(),
    ):
        compare_few(patch)
        compare_fewest(patch)
        found = {name: both(name, rank) for name in NAMES}
        found["order"] = in_order(rank)
        found["global"] = over_all(rank)
        found["synchronised"] = synchronised(rank)
        found["example"] = example(rank, folder)
        found["late"] = late(rank)
        found["gone"] = gone(rank)
    torch.save(found, f"{folder}/rank{rank}")


def both(name, rank):
    """What a model under a limit makes in DistributedDataParallel, and what PyTorch's makes."""
    options, backwards = OPTIONS[name]
    found = []
    for limited in (True, False):
        own = model(unused="unused" in name)
        first = limited and name != "limited when wrapped"
        wrapped = DistributedDataParallel(ooc.limit(own, LIMIT) if first else own, **options)
        if limited and not first:
            assert ooc.limit(wrapped, LIMIT) is wrapped
        found.append(trained(wrapped, rank, EVEN, backwards))
        assert (not limited) or own.forward.plan.device_bytes <= own.forward.plan.memory_limit
    return found


def in_order(rank):
    """What happens in a backward: sums over ranks that begin, and parts of backward that have run.

    Buckets are as small as they can be, too.
    """
    events, go_on = [], PausedStep.go_on

    def told(paused):
        found = go_on(paused)
        events.append("part")
        return found

    def summed(_, bucket):
        events.append("sum")
        of_all = distributed.all_reduce(bucket.buffer() / RANKS, async_op=True).get_future()
        return of_all.then(lambda made: made.value()[0])

    PausedStep.go_on = told
    try:
        found = []
        for own in (model(), ooc.limit(model(), LIMIT)):
            events.clear()
            wrapped = DistributedDataParallel(own, bucket_cap_mb=1e-5)
            wrapped.register_comm_hook(None, summed)
            found.insert(0, trained(wrapped, rank, EVEN))
        return found, events
    finally:
        PausedStep.go_on = go_on


def over_all(rank):
    own = ooc.limit(model(), (LIMIT, "1MiB")[rank], statistics="global")  # plans differ
    found = trained(DistributedDataParallel(own), rank, UNEVEN)
    with torch.no_grad():  # in training, and forward alone
        own(images(0, rank, 2)[0])
    assert own.bn1.num_batches_tracked == STEPS + 1
    return found, [each.name for each in own.forward.plan.tasks if "over ranks" in each.name]


def synchronised(rank):
    """Without DistributedDataParallel, which wants a card for it: each rank has its own sum."""
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model())
    own = ooc.limit(converted, LIMIT)
    x, target = images(0, rank, UNEVEN[rank])
    loss_of(own(x.requires_grad_()), target, sum(UNEVEN)).backward()
    return x.grad, *found_in(own)


#: Arguments of the example that make it small.
SMALL = ("--blocks=1,1", "--width=4", "--batch=4", "--image=32", "--limit=2MiB", "--rate=0.1")


def example(rank, folder):
    """The losses that the example prints; rank 0 keeps its checkpoint."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        more = ("--statistics=global", "--steps=4", f"--save={folder}/checkpoint")
        ddp_resnet50.main([*SMALL, *more])
    return said.getvalue()


def failed(own, rank):
    """What is raised where the others do not come, in how many seconds, and what is left."""
    before = {name: each.clone() for name, each in own.state_dict().items()}
    begin = time.monotonic()
    try:
        own(images(0, rank, 4)[0])
    except ooc.RanksError as error:
        said = str(error)
    else:
        said = "nothing"
    unchanged = all(torch.equal(each, before[name]) for name, each in own.state_dict().items())
    ooc.release(own).eval()(images(0, rank, 4)[0]).sum().backward()
    return said, time.monotonic() - begin, unchanged


def late(rank):
    """The other rank does not come within the group's timeout."""
    group = distributed.new_group(timeout=timedelta(seconds=0.5))
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model(), group)
    found = failed(ooc.limit(converted, LIMIT), rank) if rank == 0 else None
    distributed.barrier()
    return found


def gone(rank):
    """The other rank has ended."""
    if rank == 1:
        distributed.destroy_process_group()
        return None
    return failed(ooc.limit(model(), LIMIT, statistics="global"), rank)
