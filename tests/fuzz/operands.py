"""One operand of a call: a flat buffer in some placement, a view of it, and what it held before."""

from __future__ import annotations

import numpy as np

import ooc_cudnn
from ooc_cudnn.arrays.making import empty_in
from ooc_cudnn.devices import get_device

#: Where operands may be, by device; "torch" and "cupy" are memory that those frameworks hold,
#: "locked" is the user's own memory, page-locked by `pin`; "torch negative" a view of which PyTorch
#: says that its numbers are to be negated.
PLACEMENTS = {
    "host": {"device": 3, "pinned": 2, "locked": 1, "pageable": 3, "disk": 1, "torch": 1,
        "torch negative": 0.3},
    "cuda": {
        "device": 4, "cupy": 2, "torch cuda": 1, "pinned": 2, "locked": 1, "pageable": 3, "disk": 1,
        "torch": 1, "torch pinned": 1, "torch negative": 0.3,
    },
}  # fmt: skip

BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class Operand:
    """An array as a call gets it (`view`), of given values; all around it are NaN."""

    def __init__(self, name, values, layout, placement, folder, device):
        self.name, self.placement, self.dtype = name, placement, values.dtype
        if placement.startswith("torch"):
            layout = layout.forwards()
        self.layout = layout
        self.index = layout.index(values.shape)
        self.before = np.full(layout.count(values.shape), np.nan, values.dtype)
        self.before[self.index] = values
        self.flat = _allocate(self.before, name, placement, folder, device)
        self.lock = ooc_cudnn.pin(self.flat) if placement == "locked" else None
        self.view = layout.view(self.flat, values.shape)

    def __str__(self):
        return f"{self.name} {self.placement}" + (
            "" if str(self.layout) == "packed" else f" ({self.layout})"
        )

    def content(self):
        """The whole buffer, now."""
        return on_host(self.flat, self.dtype)

    def refill(self):
        """As it was before the call."""
        _fill(self.flat, self.before)

    def changed(self, *, inside):
        """How many elements differ, of the array or around it."""
        bits = BITS[self.dtype.itemsize]
        differ = self.content().view(bits) != self.before.view(bits)
        within = np.zeros(differ.shape, bool)
        within[self.index] = True
        return int((differ & (within if inside else ~within)).sum())


def on_host(array, dtype):
    """A copy of any array as NumPy's; `dtype` tells bfloat16, which PyTorch does not hand over."""
    if type(array).__module__.startswith("torch"):
        import torch

        array = array.detach().cpu().resolve_neg()
        if array.dtype == torch.bfloat16:
            return array.contiguous().view(torch.int16).numpy().view(dtype).copy()
        return array.numpy().copy()
    if isinstance(array, np.ndarray):
        return np.array(array, copy=True, subok=False)
    import cupy

    bits = cupy.ascontiguousarray(array.view(BITS[dtype.itemsize]))
    return cupy.asnumpy(bits).view(dtype)


def _allocate(content, name, placement, folder, device):
    """A flat buffer with that content."""
    kind = content.dtype
    if placement == "pageable":
        return content.copy()
    if placement == "locked":
        return _on_pages_of_its_own(content)
    if placement == "disk":
        flat = np.memmap(folder / f"{name}.bin", kind, "w+", shape=content.shape)
    elif placement in ("device", "pinned"):
        used = get_device(device)
        flat = empty_in(used, placement, content.shape, kind.name, "channels_first")
        assert ooc_cudnn.placement(flat) == placement
    elif placement == "cupy":
        import cupy

        flat = cupy.empty(content.shape, kind)
    else:
        import torch

        if placement == "torch negative":
            numbers = torch.from_numpy(content)
            return torch.conj(torch.complex(torch.zeros_like(numbers), -numbers)).imag
        flat = torch.from_numpy(content.view(f"i{kind.itemsize}").copy())
        if placement == "torch cuda":
            flat = flat.cuda()
        elif placement == "torch pinned":
            flat = flat.pin_memory()
        return flat.view(getattr(torch, kind.name))
    _fill(flat, content)
    return flat


def _on_pages_of_its_own(content):
    """A copy that shares no page with other memory: pages are locked whole."""
    page = 4096
    raw = np.empty(-(-content.nbytes // page) * page + page, np.uint8)
    begin = -raw.__array_interface__["data"][0] % page
    flat = raw[begin : begin + content.nbytes].view(content.dtype)
    flat[...] = content
    return flat


def _fill(flat, content):
    """Write the whole buffer, bit for bit."""
    if isinstance(flat, np.ndarray):
        flat[...] = content
    elif type(flat).__module__.startswith("torch"):
        import torch

        kind = content.dtype
        source = torch.from_numpy(content.view(f"i{kind.itemsize}"))
        flat.view(source.dtype).copy_(source)
    else:
        flat.view(BITS[content.dtype.itemsize]).set(content.view(BITS[content.dtype.itemsize]))
