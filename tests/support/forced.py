"""Run a chain under a split, ring depth, layout and loop order of the test's choice.

The way is the library's own (request, plan, schedule, executor); only the search is told what to
find. `Forced` keeps what every run shares.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np

import perfmodel
from ooc_cudnn.arrays.operands import array_ref
from ooc_cudnn.call_planner import planner, search
from ooc_cudnn.call_planner import slot_rings as pricing_rings
from ooc_cudnn.devices import get_device
from ooc_cudnn.functions.call.plan import make_request
from ooc_cudnn.pipeline.execute import make_executor
from ooc_cudnn.tensor import TensorSpec
from perfmodel import Split

DEPTHS = (1, 2, 3)
PLENTY = 2**30


def legal_splits(chain):
    """Every split that cuts the chain differently."""
    whole, seen = chain.extents, set()
    for n, c_y, c_x, h_y in itertools.product(
        range(1, whole.n + 1),
        range(1, whole.c_y + 1),
        range(1, whole.c_x + 1),
        range(1, whole.h_y + 1),
    ):
        split = Split(n=n, c_y=c_y, c_x=c_x, h_y=h_y)
        if chain.is_legal(split):
            cut = tuple(chain.ranges(split).items())
            if cut not in seen:
                seen.add(cut)
                yield split


@contextmanager
def rings(depth=None, whole=None):
    """Make the planner choose rings of `depth` slots, parameters whole or in a ring."""
    worth_trying = pricing_rings.candidate_rings

    def forced(pieces, order, limit_bytes):
        depths = []
        for found in worth_trying(pieces, order, limit_bytes):
            if whole is None:
                yield found
            elif not any(np.array_equal(found.depth, depth) for depth in depths):
                depths.append(found.depth)
                yield pricing_rings.fill_rings(pieces, found.depth, whole)

    depths = pricing_rings.DEPTHS if depth is None else (depth,)
    with (
        mock.patch.object(pricing_rings, "DEPTHS", depths),
        mock.patch.object(search, "candidate_rings", forced),
    ):
        yield


class Forced:
    """A chain and its operands, to be run in many ways.

    `arrays` maps the chain's operands to arrays (or TensorSpecs, to plan without running).
    """

    def __init__(self, chain, arrays, *, limit=PLENTY, device="host"):
        self.device = get_device(device)
        self.chain, self.arrays, self.limit = chain, arrays, limit
        self.wrapped = {
            name: None
            if isinstance(array, TensorSpec)
            else array_ref(array, self.device, name=name)
            for name, array in arrays.items()
        }

    def request(self, *, layout=None, overlap=True, order=()):
        """Describe the call to the planner, as the library does."""
        specs = {
            name: self.arrays[name] if wrapped is None else wrapped.spec
            for name, wrapped in self.wrapped.items()
        }
        request = make_request(
            "forced",
            self.chain,
            specs,
            perfmodel.shipped("host"),
            self.limit,
            ("channels_first", "channels_last") if layout is None else (layout,),
            overlap=overlap,
            aligned={
                name: wrapped is None or wrapped.pointer % 16 == 0
                for name, wrapped in self.wrapped.items()
            },
        )
        return replace(request, loop_order=order or self.chain.loop_order, row_axes=())

    def plan(self, split=None, *, depth=None, whole=None, request=None, **options):
        """Plan with everything forced that is given."""
        request = request or self.request(**options)
        with rings(depth, whole):
            return planner.make_plan(request, self.device.workspace, split=split)

    def executor(self, split=None, *, depth=None, whole=None, **options):
        """Plan, and make the schedule."""
        request = self.request(**options)
        return make_executor(request, self.plan(split, depth=depth, whole=whole, request=request))

    def run(self, split=None, *, timed=False, on_piece=None, **options):
        """Run; return the executor and the trace (None unless `timed`)."""
        executor = self.executor(split, **options)
        return executor, self.execute(executor, timed=timed, on_piece=on_piece)

    def execute(self, executor, *, timed=False, on_piece=None):
        """Run what was made ready; return the trace (None unless `timed`)."""
        sources = {
            name: wrapped.view() if wrapped.spec.placement == "device" else wrapped.array
            for name, wrapped in self.wrapped.items()
        }
        with self.device.arena.lock:
            return executor.run(
                self.device, sources, staged=True, wait=True, timed=timed, on_piece=on_piece
            )
