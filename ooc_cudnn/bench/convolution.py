"""The workload of most cases: a 3x3 convolution with bias and ReLU, features on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ooc_cudnn.bench.case import Case
from ooc_cudnn.bench.contender import Workload
from ooc_cudnn.bench.convolution_bounds import CopyLimit, InCore, PlainCudnn
from ooc_cudnn.bench.convolution_contender import (
    ConvolutionContender,
    Library,
    Operands,
    Serial,
    Unfused,
)
from ooc_cudnn.bench.guards import GIB, HOST_MARGIN, free_device_bytes, need_host
from ooc_cudnn.bench.placing import (
    allocate_pinned,
    available_host_bytes,
    release_device,
    release_pinned,
)
from ooc_cudnn.settings import current
from ooc_cudnn.units import parse_limit

#: Of what is free, how much contenders that are held together may take.
_TOGETHER = 0.8
_WINDOW_SITES = 9


class ConvolutionWorkload(Workload):
    """A convolution (3x3, padding 1), its bias and ReLU: n images, cX to cY channels.

    Sizes: ``n``, ``c_x``, ``c_y``, ``height``, ``width``; and ``pageable``, 1 where features and
    result lie in plain NumPy arrays and not in pinned memory. Filters and bias are on the device.

    Raises
    ------
    Unavailable
        If the host has not the memory for features and result.
    """

    kinds: ClassVar[tuple[type[ConvolutionContender], ...]] = (
        Library,
        InCore,
        PlainCudnn,
        CopyLimit,
        Serial,
        Unfused,
    )

    def __init__(self, case: Case, *, cuda: bool, tiny: bool) -> None:
        sizes = case.sizes
        n, c_x, c_y = sizes["n"], sizes["c_x"], sizes["c_y"]
        plane = (sizes["height"], sizes["width"])
        x_shape, y_shape = (n, c_x, *plane), (n, c_y, *plane)
        self.operations = 2.0 * _WINDOW_SITES * n * c_x * c_y * plane[0] * plane[1]
        feature_bytes = 4 * n * (c_x + c_y) * plane[0] * plane[1]
        if not tiny:
            need_host(feature_bytes, "x and y")
        pageable = bool(sizes.get("pageable"))
        allocate: Callable[[tuple[int, ...]], Any] = (
            partial(np.empty, dtype=np.float32) if pageable else allocate_pinned
        )
        self.operands = Operands.of(
            allocate(x_shape), allocate(y_shape), cuda=cuda, tf32=case.allow_tf32,
            limit=case.memory_limit, pageable=pageable,
        )  # fmt: skip
        self._device = current().device
        self.contenders = {kind.name: partial(kind, self.operands) for kind in self.kinds}
        compared = [kind for kind in self.kinds if kind.name in case.baselines]
        self.notes = tuple(dict.fromkeys(kind.note for kind in compared if kind.note))
        # The host device counts arrays on it against the limit, whoever holds them.
        self.in_turns = (
            _fit_together(case, compared, feature_bytes)
            if cuda
            else InCore.name not in case.baselines
        )

    def release(self) -> None:
        self.operands.drop()
        release_device(self._device)
        release_pinned(self._device)


def _fit_together(
    case: Case, kinds: Sequence[type[ConvolutionContender]], feature_bytes: int
) -> bool:
    """True if everything that contenders hold can be held at once, here and on the device."""
    on_device = feature_bytes * sum(kind.device_share for kind in kinds)
    on_host = feature_bytes * sum(kind.host_share for kind in kinds)
    limit = int(parse_limit(case.memory_limit, name="memory_limit"))
    return on_device + limit + GIB <= _TOGETHER * free_device_bytes() and on_host <= _TOGETHER * (
        available_host_bytes() - HOST_MARGIN
    )
