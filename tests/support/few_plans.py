"""Few plans are compared: for tests of what is computed, which any plan computes."""

from __future__ import annotations

import math

from ooc_cudnn.network.search import (
    plan_search,
    plan_step,  # noqa: F401  # it names the policies as it is imported: before they are fewer
    policy_planner,
)
from tests.support import sampling


def compare_few(patch):
    """Let `best` compare few plans, until pytest's `MonkeyPatch` ends.

    What is left keeps, makes again, offloads and streams; tests of networks compare all plans.
    """
    patch.setattr(plan_search, "BEST_OF", ("keep", "remake"))
    patch.setattr(policy_planner, "SHARES_HELD", (1.0,))
    patch.setattr(plan_search, "VDNN", ())
    patch.setattr(plan_search, "STRATEGIES", ())
    patch.setattr(
        plan_search,
        "propose_remat_plans",
        lambda *asked, **options: (candidate for candidate in ()),
    )


def compare_fewest(patch):
    """Of those one, in `make test`, whose copies come when they come: for values of models."""
    if not sampling.EVERY:
        patch.setattr(plan_search, "BEST_OF", ("remake",))
        patch.setattr(plan_search, "refine_prefetch", lambda *_: None)
        patch.setattr(plan_search, "WAITING_A_LITTLE", math.inf)
