"""Tensors on a card: the device and the stream that PyTorch uses, and results in its memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial

import torch

from ooc_cudnn.devices import get_device
from ooc_cudnn.network.runtime.executable import ResultAllocation
from ooc_cudnn.settings import current, settings
from ooc_cudnn.tensor import TensorSpec


class InPyTorchsPool:
    """Device memory from PyTorch's allocator: it counts it, and what is free serves both.

    Raises
    ------
    MemoryError
        If there is no more.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        try:
            self._tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error
        if device.type == "cuda":
            _follow_pytorch(device)
        self.pointer, self.nbytes = self._tensor.data_ptr(), nbytes


def _follow_pytorch(device: torch.device) -> None:
    """Wait for what PyTorch did last in memory that it hands out, where others use it."""
    import cupy

    theirs = torch.cuda.current_stream(device)
    if cupy.cuda.get_current_stream(device.index).ptr != theirs.cuda_stream:
        theirs.synchronize()


@lru_cache
def _pool_of(index: int) -> tuple[Callable[[int], InPyTorchsPool], Callable[[], None]]:
    device = torch.device("cuda", index)
    return partial(InPyTorchsPool, device=device), partial(torch.cuda.synchronize, device)


class Theirs:
    """A stream of PyTorch's by CUDA's protocol for streams, as CuPy takes it."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        """The version of the protocol, and the stream."""
        return 0, self._pointer


@contextmanager
def at(device: torch.device) -> Iterator[None]:
    """Compute on the card that tensors are on, in the order of PyTorch's current stream there.

    Tensors on the host are computed on by the device of the settings. From here on, the library's
    memory on that card comes from PyTorch's pool.
    """
    if device.type != "cuda":
        yield
        return
    import cupy

    index = torch.cuda.current_device() if device.index is None else device.index
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(index))
        if current().device != f"cuda:{index}":  # a block of settings takes a while
            stack.enter_context(settings(device=f"cuda:{index}"))
        stack.enter_context(cupy.cuda.Device(index))
        pointer = torch.cuda.current_stream(index).cuda_stream
        if pointer:
            stack.enter_context(cupy.cuda.Stream.from_external(Theirs(pointer)))
        get_device(f"cuda:{index}").arena.allocate_by(*_pool_of(index))
        yield


def empty_there(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """A tensor of PyTorch on a card, as a spec has it."""
    dtype = getattr(torch, spec.dtype)
    return torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device=device)


class OneTensor:
    """Memory of PyTorch's that several tensors share."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.storage = tensor.untyped_storage()
        self.pointer, self.nbytes = tensor.data_ptr(), nbytes


class InTensors:
    """Results on a card as tensors of PyTorch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def array(self, spec: TensorSpec) -> torch.Tensor:
        """A tensor by itself."""
        return empty_there(spec, self._device)

    def block(self, nbytes: int) -> OneTensor:
        """Memory for several tensors."""
        return OneTensor(nbytes, self._device)

    def in_block(self, block: OneTensor, spec: TensorSpec, start: int) -> torch.Tensor:
        """A tensor from a byte of a block on."""
        dtype = getattr(torch, spec.dtype)
        made = torch.empty(0, dtype=dtype, device=self._device)
        first = start // dtype.itemsize
        return made.set_(block.storage, first, spec.shape, spec.strides)


def making_there(device: torch.device, changing: Collection[str]) -> ResultAllocation:
    """Results on a card as tensors of PyTorch; there, nobody waits for what is not on the host."""
    return ResultAllocation(InTensors(device) if device.type == "cuda" else None, changing)
