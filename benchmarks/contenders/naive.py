"""The loop that a user would write today: a few images to the card, convolve, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.contenders.bands import Band, bands
from benchmarks.contenders.torch_convolution import release_torch, torch_settings
from ooc_cudnn.bench.contents import poison
from ooc_cudnn.bench.convolution_contender import ConvolutionContender
from ooc_cudnn.bench.guards import need_host

IMAGES_AT_A_TIME = 4
#: One image too large for the card is cut into bands of rows about as large as those images.
BAND_BYTES = 2**26


def torch_loop(x: Any, w: Any, b: Any, y: Any, chunk: int, *, cuda: bool) -> None:
    """Chunks of images by PyTorch alone."""
    import torch

    place = "cuda" if cuda else "cpu"
    w, b = torch.from_numpy(w).to(place), torch.from_numpy(b).to(place)
    for start in range(0, len(x), chunk):
        piece = torch.from_numpy(x[start : start + chunk]).to(place)
        result = torch.nn.functional.conv2d(piece, w, b, padding=1).relu()
        y[start : start + chunk] = result.cpu().numpy()


def torch_row_loop(x: Any, w: Any, b: Any, y: Any, rows: int, *, cuda: bool) -> None:
    """Bands of rows of every image, with the rows around them that the filters reach."""
    import torch

    place = "cuda" if cuda else "cpu"
    w, b = torch.from_numpy(w).to(place), torch.from_numpy(b).to(place)
    for band in bands(len(x), x.shape[2], 1, rows):
        begin, end = band.read_rows(x.shape[2])
        piece = torch.from_numpy(np.ascontiguousarray(_rows(x, band, begin, end))).to(place)
        result = torch.nn.functional.conv2d(piece, w, b, padding=1).relu()
        kept = result[:, :, band.top - begin : band.bottom - begin]
        _rows(y, band, band.top, band.bottom)[...] = kept.cpu().numpy()


def _rows(array: Any, band: Band, begin: int, end: int) -> Any:
    return array[band.first : band.last, :, begin:end]


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
        """Loop."""
        o, x = self.operands, self._x
        arguments = (x, o.w, o.b, self._y)
        with torch_settings(tf32=o.tf32):
            if len(x) > 1:
                torch_loop(*arguments, IMAGES_AT_A_TIME, cuda=o.cuda)
            else:
                row_bytes = x.nbytes // x.shape[2]
                rows = max(1, min(BAND_BYTES // row_bytes, x.shape[2] // IMAGES_AT_A_TIME))
                torch_row_loop(*arguments, rows, cuda=o.cuda)

    def check(self) -> dict[str, Any]:
        """Look at the result."""
        poison(self._y)
        self.run()
        return self.operands.verified(self._y)

    def release(self) -> None:
        """Drop the arrays, and what PyTorch keeps."""
        self._x = self._y = None
        release_torch(cuda=self.operands.cuda)
