"""Few plans are compared: for tests of what is computed, which any plan computes."""

from __future__ import annotations

from ooc_cudnn.network import comparing, deciding


def compare_few(patch):
    """Let `best` compare few plans, until pytest's `MonkeyPatch` ends.

    What is left keeps, makes again, offloads and streams; tests of networks compare all plans.
    """
    patch.setattr(comparing, "BEST_OF", ("keep", "remake"))
    patch.setattr(deciding, "SHARES_HELD", (1.0,))
    patch.setattr(comparing, "VDNN", ())
    patch.setattr(comparing, "WAYS", ())
    for searching in ("searched", "by_search_in_slabs"):
        patch.setattr(comparing, searching, lambda *asked, **how: ())
