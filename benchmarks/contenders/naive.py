"""The loop that a user would write today: a few images to the card, convolve, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks.contenders.bands import Band, bands
from benchmarks.contenders.torch_convolution import release_torch, torch_settings
from ooc_cudnn.bench.convolution_contender import ConvolutionContender
from ooc_cudnn.bench.guards import need_host

IMAGES_AT_A_TIME = 4
#: One image too large for the card is cut into bands of rows about as large as those images.
BAND_BYTES = 2**26


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
