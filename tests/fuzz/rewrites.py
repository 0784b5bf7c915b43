"""Rewritten steps of drawn networks: `python -m tests.fuzz.rewrites --count 300`.

Each is taken apart, goes down its rows in bands, makes maps again or goes in micro-batches, at
random. Its phases are run one after the other, each whole, without planning: hundreds a minute.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

import ooc_cudnn
from ooc_cudnn.network.passes.batch_slices import slice_batch
from ooc_cudnn.network.passes.fuse_chains import fuse_chains
from ooc_cudnn.network.passes.fuse_gradient_sums import fuse_gradient_sums
from ooc_cudnn.network.passes.inplace_gradients import share_gradient_memory
from ooc_cudnn.network.passes.microbatch import WholeBatchError, images_of, split_into_microbatches
from ooc_cudnn.network.passes.remat_for_backward import rematerializable, rematerialize
from ooc_cudnn.network.passes.row_tiling import tile_rows, whole_maps
from ooc_cudnn.network.search.pass_pipeline import canonicalize, take_concatenations_apart
from tests.support import drawn_tall
from tests.support.drawn_networks import drawn_network
from tests.support.interpreter import run_step
from tests.support.network_checks import assert_close, sizes_of, twin_step, values

TOLERANCE = 1e-10


class Rewritten:
    """A drawn network, two of three of tall images, and what PyTorch makes of it."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        rows = int(self.random.integers(4, 14))
        how = {"kinds": drawn_tall.KINDS, "rows": rows} if seed % 3 else {}
        self.net, self.loss, twin = drawn_network(seed, loss=True, **how)
        self.given = values(self.net, seed)
        given = {name: array.copy() for name, array in self.given.items()}
        self.expected = twin_step(self.net, self.loss, twin, given, np.ones(1))

    def some(self, names):
        """About half of some names."""
        return frozenset(name for name in sorted(names) if self.random.integers(2))

    def rewritten(self):
        """The step, rewritten at random, and how."""
        policy = "best" if self.random.integers(5) else "vdnn_all"
        said, step = [policy], canonicalize(self.net.training_phases(self.loss), policy)
        if self.random.integers(2):
            said, step = [*said, "apart"], take_concatenations_apart(step)
        bands = int(self.random.integers(1, 12)) if self.random.integers(3) else 1
        if bands > 1:
            whole = (
                whole_maps(step) if self.random.integers(2) else self.some(rematerializable(step))
            )
            said, step = (
                [*said, f"{bands} bands, {sorted(whole)} whole"],
                tile_rows(step, whole, bands),
            )
        else:
            step = share_gradient_memory(fuse_gradient_sums(step))
            again = self.some(rematerializable(step))
            anew = self.some(again)
            said, step = (
                [*said, f"{sorted(again)} remade, {sorted(anew)} anew"],
                rematerialize(step, again, anew),
            )
            if self.random.integers(2):
                said, step = [*said, "fused"], fuse_chains(step)
            elif self.random.integers(2):
                slices = int(self.random.integers(2, 5))
                try:
                    said, step = [*said, f"{slices} slabs"], slice_batch(step, slices)
                except WholeBatchError:
                    said = [*said, "needs the whole batch"]
        if not self.net.running and self.random.integers(2) and "slabs" not in said[-1]:
            parts = int(self.random.integers(1, images_of(step) + 1))
            try:
                said, step = [*said, f"{parts} micro-batches"], split_into_microbatches(step, parts)
            except WholeBatchError:
                said = [*said, "needs the whole batch"]
        return step, ", ".join(said)

    def check(self, step):
        """Compare the loss, every gradient and the running statistics."""
        given = {name: array.copy() for name, array in self.given.items()}
        arrays = run_step(step, given)
        loss, gradients, running = self.expected
        found = arrays[step.outputs[0]].reshape(1)
        assert_close(found, loss.detach().reshape(1), "loss", TOLERANCE)
        least = sizes_of(gradients)
        for name, gradient in gradients.items():
            if gradient is not None:
                made = arrays[step.gradients[name]]
                assert_close(made, gradient, f"gradient of {name}", TOLERANCE, least)
        for name, statistics in running.items():
            assert_close(given[name], statistics, name, TOLERANCE)


def check_seed(seed, each=6):
    """Check so many rewrites of a network; return how many, and what was wrong with which."""
    drawn, wrong = Rewritten(seed), []
    if not drawn.net.wanted:
        return 0, wrong
    for _ in range(each):
        how = "rewriting"
        try:
            step, how = drawn.rewritten()
            drawn.check(step)
        except Exception as error:  # told, counted, and the next one is drawn
            wrong.append(f"seed {seed}, {how}: {type(error).__name__}: {error}")
    return each, wrong


def main(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.rewrites", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=300, help="how many seeds")
    chosen = parser.parse_args(argv)
    steps, failed, begin = 0, 0, time.process_time()
    with ooc_cudnn.settings(device="host", machine="host", progress=False):
        for seed in range(chosen.first, chosen.first + chosen.count):
            count, wrong = check_seed(seed)
            steps, failed = steps + count, failed + len(wrong)
            for each in wrong:
                print(each, flush=True)
    seconds = time.process_time() - begin
    print(f"{steps} rewritten steps, {failed} wrong, {seconds:.0f} s of the processor")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
