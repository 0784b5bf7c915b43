"""Drawn networks under limits: `python -m tests.fuzz.networks --count 300 [--device cuda]`.

Each is planned with all its memory, with the least that an error names, and in between, by policies
that take turns, with tensors on the host for a while, in bands of rows, and with some of its arrays
on the device. Every step must give PyTorch's loss, gradients and running statistics, and hold no
more memory than it was allowed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import numpy as np

import ooc_cudnn
from ooc_cudnn import PlanInfeasibleError
from ooc_cudnn.devices import get_device
from ooc_cudnn.memory.pinned import allocate
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.passes.microbatch import WholeBatchError
from ooc_cudnn.network.search import plan_step
from ooc_cudnn.pipeline.schedule import make_schedule
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import ORDERS
from tests.support import drawn_tall, drawn_wide
from tests.support.drawn_networks import drawn_network
from tests.support.hazards import hazards
from tests.support.network_checks import twin_step, values
from tests.support.network_steps import banded, banded_plan, compare, spilling_plans
from tests.support.on_device import on_the_device

POLICIES = plan_step.NAMES
PLENTY = 2**30


class Drawn:
    """A drawn network that ends in a loss, and what PyTorch makes of it."""

    def __init__(self, seed, **drawn):
        self.seed = seed
        self.net, self.loss, twin = drawn_network(seed, loss=True, **drawn)
        given = values(self.net, seed)
        for name in self.net.parameters:
            self.net.parameters[name] = given[name]
        self.running = {name: given[name].copy() for name in self.net.running}
        read = {t.name for node in self.net.graph.nodes_before([self.loss]) for t in node.inputs}
        self.inputs = {
            name: array
            for name, array in given.items()
            if self.net.graph.tensors[name].kind == "input" and name in read
        }
        self.expected = twin_step(self.net, self.loss, twin, given, np.ones(1))

    def check(self, limit, policy, **asked):
        """Run a step, compare it, and return its plan."""
        for name, array in self.running.items():
            self.net.running[name] = array.copy()
        step = self.net.training_step(self.loss, memory_limit=limit, policy=policy, **asked)
        compare(self, step, step(**self.inputs))
        assert step.plan.device_bytes <= limit, f"{step.plan.device_bytes} bytes of {limit}"
        return step.plan

    def least(self):
        """The least limit that an error names."""
        try:
            self.net.plan(self.loss, memory_limit=1)
        except PlanInfeasibleError as error:
            return error.smallest_bytes
        return 1

    def check_all(self):
        """Yield (limit, policy) before each step that is run."""
        if not self.net.wanted:
            return
        yield PLENTY, "keep"
        full = self.check(PLENTY, "keep").device_bytes
        least = self.least()
        for at, limit in enumerate(sorted({least, (least + full) // 2, full})):
            policy = POLICIES[(self.seed + at) % len(POLICIES)]
            yield limit, policy
            try:
                self.check(limit, policy)
            except PlanInfeasibleError:
                if policy in ("best", "keep"):  # these stream what does not fit
                    raise
        limit = (least + 2 * full) // 3
        yield limit, "spill"
        for made in spilling_plans(self.net, self.loss, limit)[self.seed % 3 :][:1]:
            self.check(limit, "best", plan=made.plan)
        bands, parts = 2 + self.seed % 7, 1 if self.running else 1 + self.seed % 2
        yield full, f"{bands} bands, {parts} micro-batches"
        plan = banded_plan(self.net, self.loss, full, bands, parts)
        self.check(full, "best", plan=plan)
        yield from self.check_some_on_the_device(full)

    def check_some_on_the_device(self, full):
        """Yield (limit, how) before each of two steps: of plenty, and of little more than must be.

        Some parameters and inputs are on the device, and with them their gradients.
        """
        random, there = np.random.default_rng(self.seed), set()
        for arrays in (self.net.parameters, self.inputs):
            for name, array in arrays.items():
                if array.dtype == "float64" and random.integers(2):
                    arrays[name] = on_the_device(array, ORDERS[int(random.integers(2))])
                    there.add(name)
        policy = POLICIES[self.seed % len(POLICIES)]
        yield PLENTY, f"{policy}, on the device: {sorted(there)}"
        self._check_places(there, PLENTY, policy)
        least = self._least_of_arrays()
        limit = int(random.integers(least, least + full))
        yield limit, f"{policy}, on the device: {sorted(there)}"
        try:
            self._check_places(there, limit, policy)
        except PlanInfeasibleError:
            if policy in ("best", "keep"):  # these stream what does not fit
                raise
        self._move_all_that_can_be()
        # of what moved, gradients are on the device twice: more than a step without them takes
        limit = self._least_of_arrays() + full
        yield limit, "recorded"
        self._check_recorded(limit)

    def _least_of_arrays(self):
        """The least limit that an error names, with arrays and gradients where they lie."""
        try:
            self.net.training_step(self.loss, memory_limit=1, policy="keep")(**self.inputs)
        except PlanInfeasibleError as error:
            return error.smallest_bytes
        return 1

    def _move_all_that_can_be(self):
        """Parameters and inputs of float64 to the device, all others to pinned memory."""
        device = get_device(current().device)
        for arrays in (self.net.parameters, self.inputs):
            for name, array in arrays.items():
                if ooc_cudnn.placement(array) == "device":
                    continue
                if array.dtype == "float64":
                    arrays[name] = on_the_device(array)
                else:
                    pinned = allocate(device, array.nbytes, None)
                    arrays[name] = pinned.view(array.dtype).reshape(array.shape)
                    arrays[name][...] = array

    def _check_recorded(self, limit):
        """Run a step until it comes to the same addresses again, and compare it each time."""
        step = self.net.training_step(self.loss, memory_limit=limit, policy="best")
        for _ in range(6):
            for name, array in self.running.items():
                self.net.running[name] = array.copy()
            compare(self, step, step(**self.inputs))

    def _check_places(self, there, limit, policy):
        """Run a step twice, the second with gradients of the first beside; say where they are."""
        step = self.net.training_step(self.loss, memory_limit=limit, policy=policy)
        for _ in range(2):
            for name, array in self.running.items():
                self.net.running[name] = array.copy()
            with ooc_cudnn.profile() as profiled:
                value = step(**self.inputs)
            compare(self, step, value)
            peak = profiled.calls[0].peak_device_bytes
            assert peak <= limit, f"{peak} bytes of {limit}"
        phases = self.net.training_phases(self.loss)
        sharing = {}
        for name, gradient in phases.gradients.items():
            sharing.setdefault(phases.base(gradient), set()).add(name)
        for names in sharing.values():
            found = {ooc_cudnn.placement(step.gradients[name]) for name in names}
            assert found == {"device" if names <= there else "pinned"}, f"{names} are in {found}"


class Tall(Drawn):
    """A drawn network of tall images, which is cut into bands of rows and spilled at all limits."""

    def __init__(self, seed):
        super().__init__(seed, kinds=drawn_tall.KINDS, rows=12)

    def check(self, limit, policy, **asked):
        """Run a step, and a plan of it once more that was stored."""
        plan = super().check(limit, policy, **asked)
        again = self.net.training_step(self.loss, plan=NetworkPlan.from_json(plan.to_json()))
        for name, array in self.running.items():
            self.net.running[name] = array.copy()
        compare(self, again, again(**self.inputs))
        assert again.plan == plan, "the plan that was stored is another one"
        return plan

    def check_all(self):
        """Yield (limit, how) before each step that is run."""
        if not self.net.wanted:
            return
        random, least = np.random.default_rng(self.seed), self.least()
        full = self.net.plan(self.loss, memory_limit=PLENTY, policy="keep").device_bytes
        for limit in (least, int(random.integers(least, full + 1))):
            yield limit, "best"
            self.check(limit, "best")
        limit = int(random.integers(least, full + 1))
        yield limit, "spill"
        for made in spilling_plans(self.net, self.loss, limit):
            assert hazards(make_schedule(made.lowered.program)) == []
            self.check(limit, "best", plan=made.plan)
        for _ in range(2):
            bands, limit = int(random.integers(2, 16)), int(random.integers(least, full + 1))
            parts = 1 if self.running else int(random.integers(1, 3))
            yield limit, f"{bands} bands, {parts} micro-batches"
            try:
                made = banded(self.net, self.loss, limit, bands, parts)
            except PlanInfeasibleError:
                continue  # a part of a call may take more than all of it
            assert hazards(make_schedule(made.lowered.program)) == []
            self.check(limit, "best", plan=made.plan)


class Wide(Drawn):
    """A drawn network with wide layers, by `best` under drawn limits and in micro-batches."""

    def __init__(self, seed):
        super().__init__(seed, kinds=drawn_wide.KINDS)

    def check_all(self):
        """Yield (limit, how) before each step that is run."""
        if not self.net.wanted:
            return
        random, least = np.random.default_rng(self.seed), self.least()
        full = self.net.plan(self.loss, memory_limit=PLENTY, policy="keep").device_bytes
        for limit in random.integers(least, full + 1, 4):
            yield int(limit), "best"
            self.check(int(limit), "best")
        if self.running:
            return
        for policy in ("best", "keep", "remake"):
            limit, parts = int(random.integers(least, full + 1)), int(random.integers(2, 4))
            yield limit, f"{policy}, {parts} micro-batches"
            try:
                self.check(limit, policy, micro_batches=parts)
            except (PlanInfeasibleError, WholeBatchError):
                continue  # a part of a call may take more than all of it


def main(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.networks", description=__doc__)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--tall", action="store_true", help="tall images, in bands and spilled")
    parser.add_argument("--wide", action="store_true", help="wide layers, in micro-batches")
    parser.add_argument("--count", type=int, default=300, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=math.inf, help="draw no more after that")
    chosen = parser.parse_args(argv)
    kind = Tall if chosen.tall else Wide if chosen.wide else Drawn
    wrong = steps = drawn = 0
    begin, until = time.process_time(), time.monotonic() + chosen.seconds
    machine = "host" if chosen.device == "host" else None
    with ooc_cudnn.settings(device=chosen.device, machine=machine, progress=False):
        for seed in range(chosen.first, chosen.first + chosen.count):
            if time.monotonic() > until:
                break
            drawn, tried = drawn + 1, []
            try:
                for each in kind(seed).check_all():
                    tried.append(each)  # what it was at, where it fails
            except Exception as error:  # told, counted, and the next one is drawn
                wrong += 1
                print(f"seed {seed}, {tried[-1:]}: {type(error).__name__}: {error}", flush=True)
            steps += len(tried)
    seconds = time.process_time() - begin
    print(f"{drawn} networks, {steps} steps, {wrong} wrong, {seconds:.0f} s of the processor")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
