"""One training step of VGG-16: what every way to it begins with, and what it must give."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.contenders.torch_network import reference
from benchmarks.contenders.training_network import Network
from benchmarks.contenders.training_reference import Outcome, by_hand, compare
from ooc_cudnn.bench.case import Case
from ooc_cudnn.bench.contender import Workload
from ooc_cudnn.bench.contents import Images
from ooc_cudnn.bench.placing import pinned, release_device, release_pinned
from ooc_cudnn.settings import current

#: Of the descent. Weights are put back before each step that is timed.
RATE = 0.01
#: Classes where all channels are there: those of ImageNet.
_CLASSES = 1000


class Step(Workload):
    """Images in pinned host memory, labels, and the weights that every contender begins with.

    Sizes: ``batch``; ``image``, its height and width; ``channels_percent``, of the channels, the
    hidden units and the classes of VGG-16. Products are never rounded to TF32 on the host device.
    """

    in_turns = False

    def __init__(self, case: Case, *, cuda: bool, tiny: bool) -> None:
        sizes, self.case, self.cuda, self.tiny = case.sizes, case, cuda, tiny
        batch, image, percent = sizes["batch"], sizes["image"], sizes["channels_percent"]
        classes = max(2, _CLASSES * percent // 100)
        self.rate, self.tf32 = RATE, case.allow_tf32 and cuda
        self.network = Network.of(image, classes, percent / 100)
        self.operations = self.network.operations(batch)
        shape = (batch, *self.network.image_shape)
        self.images: Any = Images.of((batch, 3, image, image)).fill(pinned(shape))
        self.labels = np.random.default_rng(1).integers(classes, size=batch)
        self._expected: Outcome | None = None

    @property
    def batch(self) -> int:
        return len(self.labels)

    def expected(self) -> Outcome:
        """Return the loss and the gradients of a step from the initial weights; computed once.

        By hand in float64 at the tiny size, else by PyTorch in strict float32. Raises `Unavailable`
        where PyTorch is needed and missing: figures count only with contents verified.
        """
        if self._expected is None:
            if self.tiny:
                self._expected = by_hand(self.network, self.images, self.labels)
            else:
                self._expected = reference(self.network, self.images, self.labels, cuda=self.cuda)
        return self._expected

    def compare(self, found: Outcome, expected: Outcome) -> dict[str, Any]:
        """Compare a step from the initial weights with what it must give: numbers and "ok"."""
        return compare(self.network, self.batch, found, expected, self.rate, tf32=self.tf32)

    def release(self) -> None:
        self.images, self._expected = None, None
        release_device(current().device)
        release_pinned(current().device)
