"""Random choices that are the same on every machine and every Python."""

from __future__ import annotations

import random

import numpy as np


class Stream(random.Random):
    """Choices for one purpose of one seed: what another purpose draws does not shift them."""

    def __init__(self, seed, purpose):
        super().__init__(f"{seed} {purpose}")

    def chance(self, share):
        """True in that share of the draws."""
        return self.random() < share

    def weighted(self, weights):
        """A key of a dict, as often as its weight says."""
        return self.choices(list(weights), list(weights.values()))[0]

    def numbers(self):
        """A NumPy generator for data."""
        return np.random.default_rng(self.getrandbits(64))
