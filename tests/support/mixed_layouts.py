"""Chains whose windows have layouts of their own, under a few splits along every axis."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.operations.chain.lowering import SEPARATOR
from tests.support.forced import legal_splits
from tests.support.function_cases import channels_last
from tests.support.splits import CHAINS, LAYOUTS, RINGS, Split, make, some

pytest.importorskip("torch")  # what results are compared with
#: Chains of the table that have several windows.
SEVERAL = [name for name in CHAINS if len(Split(make(f"chain: {name}")).splittable.windows) > 1]


def run_in_any_layouts(name, *, splits, device="host"):
    """Run a chain of the table in drawn layouts, at least two of them; return how often."""
    call = make(f"chain: {name}")
    random, count = np.random.default_rng(len(name)), 0
    for last in (False, True):
        for row_axis in Split(call).splittable.row_axes:
            made = Split(
                call,
                lambda _, a, last=last: channels_last(a) if last else a,
                device=device,
                row_axis=row_axis,
            )
            windows = len(made.splittable.windows)
            for at, split in enumerate(some(list(legal_splits(made.splittable)), splits)):
                each = [LAYOUTS[at % 2], LAYOUTS[1 - at % 2], *random.choice(LAYOUTS, windows - 2)]
                depth, whole = RINGS[at % len(RINGS)]
                layout = SEPARATOR.join(each)
                made.run(split, depth=depth, whole=whole, layout=layout, overlap=False)
                count += 1
    return count
