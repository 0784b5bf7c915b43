"""Few plans are compared: for tests of what is computed, which any plan computes."""

from __future__ import annotations

from ooc_cudnn.network import deciding, planning


def compare_few(patch):
    """Let `best` compare few plans, until pytest's `MonkeyPatch` ends.

    What is left keeps, makes again, offloads and streams; tests of networks compare all plans.
    """
    patch.setattr(planning, "BEST_OF", ("keep", "remake"))
    patch.setattr(deciding, "SHARES_HELD", (1.0,))
    patch.setattr(planning, "VDNN", ())
    patch.setattr(planning, "WAYS", ())
