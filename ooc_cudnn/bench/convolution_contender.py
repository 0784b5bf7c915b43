"""What all ways to the same convolution share: the operands, and the check of the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ooc_cudnn.bench.contender import Contender
from ooc_cudnn.bench.contents import Images, poison, verify
from ooc_cudnn.bench.placing import to_device

HostArray = np.ndarray[Any, Any]


@dataclass
class Operands:
    """The operands of one case: `x` and `y` where it puts them, filters and bias on both sides.

    `images` is what `x` holds, known without reading it; `limit` the device memory that the library
    may hold; `pageable` whether `x` and `y` lie in plain NumPy arrays, and not in pinned memory.
    """

    images: Images
    w: HostArray
    b: HostArray
    x: Any
    y: Any
    limit: str
    tf32: bool
    cuda: bool
    pageable: bool = False

    def __post_init__(self) -> None:
        self.device_w: Any = to_device(self.w, cuda=self.cuda)
        self.device_b: Any = to_device(self.b, cuda=self.cuda)

    def drop(self) -> None:
        """Let go of all memory, though contenders still know the operands."""
        self.x = self.y = self.device_w = self.device_b = None

    @property
    def feature_bytes(self) -> int:
        """Bytes of x and of y together."""
        return int(self.x.nbytes + self.y.nbytes)

    def verified(self, y: Any, *, split: Any = None) -> dict[str, Any]:
        """Compare a result, wherever it lies, with sums made by hand."""
        return verify(self.images, self.w, self.b, y, tf32=self.tf32, split=split)


class ConvolutionContender(Contender):
    """One way to convolve.

    `device_share` and `host_share` are what it holds beside the operands, in sizes of x and y
    together: roughly, and at most. `note` is what a reader of its seconds has to know.
    """

    device_share: ClassVar[float] = 0.0
    host_share: ClassVar[float] = 0.0
    note: ClassVar[str] = ""

    def __init__(self, operands: Operands) -> None:
        self.operands = operands

    @property
    def result(self) -> Any:
        """Where `run` writes: where the case puts y, if a contender has no y of its own."""
        return self.operands.y

    def prepare(self) -> None:
        """Take nothing beside the operands."""

    def check(self) -> Mapping[str, Any] | None:
        """Run on a poisoned result, and look at all of it."""
        poison(self.result)
        self.run()
        return self.operands.verified(self.result)

    def release(self) -> None:
        """Give nothing back."""
