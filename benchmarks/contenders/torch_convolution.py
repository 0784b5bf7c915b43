"""PyTorch in core: everything to the card, one convolution, everything back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ooc_cudnn.bench.convolution_contender import ConvolutionContender
from ooc_cudnn.bench.guards import need_device


@contextmanager
def torch_settings(*, tf32: bool) -> Iterator[None]:
    """PyTorch's rule for rounding products in convolutions; no gradients are kept."""
    import torch

    backend = torch.backends.cudnn
    before, backend.allow_tf32 = backend.allow_tf32, tf32
    try:
        with torch.no_grad():
            yield
    finally:
        backend.allow_tf32 = before


def release_torch(*, cuda: bool) -> None:
    """Give back the device memory and the pinned memory that PyTorch keeps, if it was loaded."""
    torch = sys.modules.get("torch")
    gc.collect()
    if cuda and torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        empty_host_cache = getattr(torch._C, "_host_emptyCache", None)  # not in every version
        if empty_host_cache is not None:
            empty_host_cache()


class TorchInCore(ConvolutionContender):
    """Features to the card from where they lie, convolved there, and the result back.

    Channels-last where TF32 is allowed; in strict float32 cuDNN is several times slower so.
    """

    name = "torch_in_core"
    about = "PyTorch with all of x and y on the card, copies in and out included"
    device_share = 2.0

    def prepare(self) -> None:
        """Take nothing yet: PyTorch allocates as it goes, and keeps what it took."""
        import torch

        operands = self.operands
        if operands.cuda:
            need_device(2 * operands.feature_bytes, "x and y, each in two layouts,")
        self._place = torch.device("cuda" if operands.cuda else "cpu")
        w = torch.from_numpy(operands.w).to(self._place)
        self._format = torch.channels_last if operands.tf32 else torch.contiguous_format
        self._w: Any = w.to(memory_format=self._format)
        self._b: Any = torch.from_numpy(operands.b).to(self._place)
        self._x: Any = torch.from_numpy(operands.x)
        self._y: Any = torch.from_numpy(operands.y)

    def run(self) -> None:
        import torch

        with torch_settings(tf32=self.operands.tf32):
            x = self._x.to(self._place, non_blocking=True)
            x = x.to(memory_format=self._format)
            y = torch.nn.functional.conv2d(x, self._w, self._b, padding=1).relu_()
            self._y.copy_(y, non_blocking=True)
            if self.operands.cuda:
                torch.cuda.synchronize()

    def details(self) -> dict[str, Any]:
        import torch

        peak = torch.cuda.max_memory_allocated() if self.operands.cuda else 0
        return {"torch": torch.__version__, "peak_device_bytes": peak}

    def release(self) -> None:
        self._w = self._b = self._x = self._y = None
        release_torch(cuda=self.operands.cuda)
