"""Few plans are compared: for tests of what is computed, which any plan computes."""

from __future__ import annotations

from ooc_cudnn.network.search import best, by_policy


def compare_few(patch):
    """Let `best` compare few plans, until pytest's `MonkeyPatch` ends.

    What is left keeps, makes again, offloads and streams; tests of networks compare all plans.
    """
    patch.setattr(best, "BEST_OF", ("keep", "remake"))
    patch.setattr(by_policy, "SHARES_HELD", (1.0,))
    patch.setattr(best, "VDNN", ())
    patch.setattr(best, "STRATEGIES", ())
    patch.setattr(best, "propose_remat", lambda *asked, **options: (candidate for candidate in ()))
