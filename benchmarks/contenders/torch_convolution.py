"""PyTorch by itself: a few images to the card and back at a time, and all of them at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.contenders.bands import Band, bands
from ooc_cudnn.bench.convolution_contender import ConvolutionContender
from ooc_cudnn.bench.guards import need_device, need_host

IMAGES_AT_A_TIME = 4
#: One image too large for the card is cut into bands of rows about as large as those images.
BAND_BYTES = 2**26


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


def torch_loop(x: Any, w: Any, b: Any, y: Any, pieces: Iterable[Band], *, cuda: bool) -> None:
    """Piece by piece by PyTorch alone; a piece of rows with those around it."""
    import torch

    place = "cuda" if cuda else "cpu"
    w, b = torch.from_numpy(w).to(place), torch.from_numpy(b).to(place)
    for band in pieces:
        begin, _ = band.read_rows(x.shape[2])
        piece = torch.from_numpy(np.ascontiguousarray(band.read(x))).to(place)
        result = torch.nn.functional.conv2d(piece, w, b, padding=1).relu()
        kept = result[:, :, band.top - begin : band.bottom - begin]
        band.written(y)[...] = kept.cpu().numpy()


class NaiveLoop(ConvolutionContender):
    """Chunks of plain NumPy arrays, by PyTorch."""

    name = "naive_loop"
    about = (
        "a plain loop in PyTorch on pageable memory: four images (or a band of rows) to the card "
        "and back at a time"
    )
    host_share = 1.0

    def prepare(self) -> None:
        """Take features and result in plain NumPy arrays, as users have them."""
        import torch  # noqa: F401  (whether it is installed)

        operands = self.operands
        need_host(operands.feature_bytes, "the loop's x and y")
        self._x: Any = operands.images.fill(np.empty(operands.x.shape, np.float32))
        self._y: Any = np.zeros(operands.y.shape, np.float32)

    def run(self) -> None:
        o, x = self.operands, self._x
        height, row_bytes = x.shape[2], x.nbytes // x.shape[2]
        images, rows = IMAGES_AT_A_TIME, height
        if len(x) == 1:
            images, rows = 1, max(1, min(BAND_BYTES // row_bytes, height // IMAGES_AT_A_TIME))
        with torch_settings(tf32=o.tf32):
            torch_loop(x, o.w, o.b, self._y, bands(len(x), height, images, rows), cuda=o.cuda)

    @property
    def result(self) -> Any:
        return self._y

    def release(self) -> None:
        self._x = self._y = None
        release_torch(cuda=self.operands.cuda)
