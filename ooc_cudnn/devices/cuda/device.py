"""A CUDA GPU behind the device contract: CuPy's runtime, cuDNN's convolutions, our own kernels."""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ooc_cudnn import interrupts
from ooc_cudnn.devices.base import HostArray, Run
from ooc_cudnn.devices.cuda.card import Identity
from ooc_cudnn.devices.cuda.copies import copy_by_link, copy_on_device
from ooc_cudnn.devices.cuda.cuda_graphs import CudaGraph
from ooc_cudnn.devices.cuda.cudnn_attention import AnyAttention, FusedAttention
from ooc_cudnn.devices.cuda.cupy_import import import_cupy
from ooc_cudnn.devices.cuda.driver import buffer_id
from ooc_cudnn.devices.cuda.frontend import import_frontend
from ooc_cudnn.devices.cuda.run import (
    CudaRun,
    StagedCudaRun,
    follow_last_run,
    identity_of,
    mark_last_run,
)
from ooc_cudnn.devices.cuda.staging import Staging, begun
from ooc_cudnn.devices.engine_check_database import try_to_save_verdicts, verdicts_of
from ooc_cudnn.devices.engine_provider import EngineProvider
from ooc_cudnn.devices.helpers import helpers
from ooc_cudnn.devices.kernels.compile_ahead import collect, collected, compile_collected
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.kernels.runners import RUNNERS, WORKSPACE
from ooc_cudnn.devices.kernels.spin import spin
from ooc_cudnn.devices.recording import collect_needs
from ooc_cudnn.devices.tuning_database import tables_of, try_to_save_tables
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.memory.arena import Allocation, Arena
from ooc_cudnn.memory.pinned import allocate, release
from ooc_cudnn.operations.convolution.gradients import (
    AddedBackwardData,
    AnyConvolution,
    without_epilogue,
)
from ooc_cudnn.operations.core.launch import Buffer, Launch
from ooc_cudnn.operations.external.calls import ExternalLaunch
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import numpy_dtype
from ooc_cudnn.warnings_once import warn_once

#: What launches something else than our kernels, or looks at data.
_OTHERS = (AnyConvolution, AnyAttention, ExternalLaunch)
_HUGE_PAGES = 14  # MADV_HUGEPAGE


class CudaAllocation:
    """Device memory straight from cudaMalloc: a pool would round it up.

    cudaFree returns when the device is done with it.
    """

    def __init__(self, nbytes: int, device: int) -> None:
        import cupy

        with cupy.cuda.Device(device):
            try:
                self._memory = cupy.cuda.Memory(nbytes)
            except cupy.cuda.runtime.CUDARuntimeError as error:
                if error.status != 2:  # cudaErrorMemoryAllocation
                    raise
                raise MemoryError(str(error)) from error
        self.pointer: int = self._memory.ptr
        self.nbytes = nbytes


class CudaDevice:
    """One GPU.

    Raises
    ------
    DeviceUnavailableError
        If CUDA, CuPy or cuDNN does not work here, with the remedy.
    """

    kind = "cuda"

    def __init__(self, index: int) -> None:
        self._cupy = import_cupy(index)
        from ooc_cudnn.devices.cuda.convolutions import Convolutions

        self.index = index
        self.name = f"cuda:{index}"
        self.arena = Arena(
            lambda nbytes: CudaAllocation(nbytes, index), self.free_bytes, self._memory_stream
        )
        self.convolutions = Convolutions(
            partial(tables_of, self),
            partial(try_to_save_tables, self),
            partial(verdicts_of, self),
            partial(try_to_save_verdicts, self),
        )
        self.attention = FusedAttention(import_frontend(), lambda: self.convolutions.handle)
        self.runtime = self._cupy.cuda.runtime
        self._staging: Any = None
        with self._cupy.cuda.Device(index):
            self.copy_streams = tuple(self._cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        #: Events for reuse: without timing, and with.
        self.events: tuple[list[int], list[int]] = ([], [])
        self.last_compute: tuple[Identity, int] | None = None  # (stream, event) of the last run
        self._kept: dict[int, Any] = {}
        self._recording_streams: list[list[Any]] = []

    def use(self) -> None:
        """Make the GPU current on the calling thread."""
        self.runtime.setDevice(self.index)

    def identity(self) -> Mapping[str, str]:
        """The GPU's name and kind, the driver's and cuDNN's versions."""
        properties = self.runtime.getDeviceProperties(self.index)
        return {
            "gpu": properties["name"].decode(),
            "driver": str(self.runtime.driverGetVersion()),
            "cudnn": str(import_frontend().backend_version()),
            "device_bytes": str(properties["totalGlobalMem"]),
            "compute_capability": f"{properties['major']}.{properties['minor']}",
        }

    def free_bytes(self) -> int:
        """Free memory of the GPU, as the driver says."""
        with self._cupy.cuda.Device(self.index):
            return int(self.runtime.memGetInfo()[0])

    def layouts(self, dtype: str) -> tuple[str, ...]:
        """Both orders: channels-last is fastest on tensor cores, channels-first elsewhere."""
        return ("channels_first", "channels_last")

    def keep(self, memory: Any) -> None:
        """Keep memory of the host that runs which nobody waits for still read or write."""
        self._kept[id(memory)] = memory

    def drop_kept(self) -> None:
        """Wait for the last run, and keep the memory of all no longer."""
        if not self._kept:
            return
        kept, self._kept = self._kept, {}
        if self.last_compute is not None:
            self.runtime.eventSynchronize(self.last_compute[1])
        kept.clear()

    def synchronize(self) -> None:
        """Wait for the GPU."""
        with self._cupy.cuda.Device(self.index):
            self.runtime.deviceSynchronize()

    def release_caches(self) -> None:
        """Give back what the arena and CuPy's pool keep, staging slabs and idle pinned memory."""
        self.synchronize()
        if self._staging is not None:
            self._staging.close()
            self._staging = None
        release(self)
        self.arena.release()
        self._cupy.get_default_memory_pool().free_all_blocks()

    # Host memory -------------------------------------------------------------------------------

    def allocate_pinned(self, nbytes: int) -> HostArray:
        """Pages of our own, touched by many threads and registered: faster than cudaHostAlloc."""
        try:
            memory = mmap.mmap(-1, max(nbytes, 1))
        except (OSError, ValueError) as error:
            raise MemoryError(f"the machine cannot map {nbytes} bytes: {error}") from error
        with contextlib.suppress(OSError):  # a kernel without huge pages does with small ones
            memory.madvise(_HUGE_PAGES)
        array = np.frombuffer(memory, np.uint8, nbytes)
        _touch(array)
        pointer = array.__array_interface__["data"][0]
        with interrupts.defer_signals():
            try:
                self.pin(pointer, nbytes)
            except OSError as error:
                raise MemoryError(str(error)) from error
            weakref.finalize(array, _unpin_quietly, self.runtime, pointer)
        return array

    def pin(self, pointer: int, nbytes: int) -> None:
        """Page-lock host memory in place (cudaHostRegister)."""
        self.use()
        try:
            self.runtime.hostRegister(pointer, nbytes, 1)  # portable: for every GPU
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status == 712:  # cudaErrorHostMemoryAlreadyRegistered
                raise ValueError(
                    "array is pinned already, or shares a page with an array that is"
                ) from None
            raise OSError(f"cannot page-lock {nbytes} bytes: {error}") from error

    def unpin(self, pointer: int) -> None:
        """Undo `pin` (cudaHostUnregister); waits for the GPU."""
        self.use()
        self.runtime.hostUnregister(pointer)

    def is_pinned(self, pointer: int, nbytes: int) -> bool:
        """Ask the driver about the first byte and the last."""
        attributes = self.runtime.pointerGetAttributes
        return attributes(pointer).type == 1 and (
            nbytes <= 1 or attributes(pointer + nbytes - 1).type == 1
        )

    def allocation_of(self, pointer: int) -> int | None:
        """Ask the driver for the identifier of the buffer."""
        return buffer_id(pointer)

    # Device memory -----------------------------------------------------------------------------

    def _memory_stream(self) -> Identity:
        """The caller's current stream, behind all that runs have done with memory given to it.

        An array may have been made on one stream, and used by a call on another.
        """
        stream = self._cupy.cuda.get_current_stream(self.index)
        identity = identity_of(stream)
        if self.last_compute is not None and self.last_compute[0] != identity:
            with self._cupy.cuda.Device(self.index):
                follow_last_run(self, stream)
        return identity

    def as_array(
        self,
        allocation: Allocation,
        shape: tuple[int, ...],
        dtype: str,
        *,
        start: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> Any:
        """Return a CuPy array over the allocation."""
        memory = self._cupy.cuda.UnownedMemory(
            allocation.pointer, allocation.nbytes, allocation, self.index
        )
        return self._cupy.ndarray(
            shape, numpy_dtype(dtype), self._cupy.cuda.MemoryPointer(memory, start), strides
        )

    def copy_in(self, destination: DeviceView, source: HostArray | DeviceView, stream: Any) -> Any:
        """Copy a region to the device: by the link, or on the device if it is there already."""
        if 0 in destination.shape:
            return None
        if isinstance(source, DeviceView):
            return copy_on_device(self, destination, source, begun(stream))
        return copy_by_link(self, destination, source, stream, to_device=True)

    def copy_out(self, destination: HostArray | DeviceView, source: DeviceView, stream: Any) -> Any:
        """Copy a region from the device."""
        if 0 in source.shape:
            return None
        if isinstance(destination, DeviceView):
            return copy_on_device(self, destination, source, stream)
        return copy_by_link(self, source, destination, stream, to_device=False)

    @property
    def staging(self) -> Any:
        """The slabs and threads for pageable memory, made at first use."""
        if self._staging is None:
            self._staging = Staging(
                lambda nbytes: allocate(
                    self, nbytes, current().host_memory_limit, purpose="staging buffers"
                ),
                self.use,
            )
        return self._staging

    # Computing ---------------------------------------------------------------------------------

    @property
    def engines(self) -> EngineProvider:
        """cuDNN's."""
        return self.convolutions

    def workspace(
        self,
        launches: Sequence[tuple[Launch, Mapping[str, Buffer]]],
        budget_bytes: int | None,
        *,
        sparing: int = 0,
    ) -> tuple[int, tuple[str, ...]] | None:
        """Ask cuDNN, and the kernels; these cannot do with less than they say."""
        most, engines = 0, dict[str, None]()
        with self._cupy.cuda.Device(self.index):
            for launch, buffers in launches:
                operation = launch.operation
                if not isinstance(operation, AnyConvolution):
                    ask = WORKSPACE.get(type(operation))
                    most = max(most, ask(operation) if ask is not None else 0)
                    if isinstance(operation, AnyAttention):
                        fused = self.attention.plan(operation)
                        if fused and (
                            budget_bytes is None or fused.workspace_bytes <= budget_bytes
                        ):
                            most = max(most, fused.workspace_bytes)
                            engines["fused attention"] = None
                    continue
                if any(0 in buffers[name].shape for name in (*launch.inputs, launch.output)):
                    continue
                plan = self.convolutions.executable(operation, budget_bytes, sparing)
                alone, beside = without_epilogue(operation), 0
                if plan is None and alone is not operation:  # it is made alone, and a pass after it
                    if isinstance(operation, AddedBackwardData):
                        beside = align(operation.alone_bytes)
                    operation, left = alone, budget_bytes and max(budget_bytes - beside, 0)
                    plan = self.convolutions.executable(operation, left, sparing)
                    most = max(most, beside)
                if plan is not None:
                    most = max(most, beside + plan.workspace_bytes)
                    engines[plan.name] = None
                elif budget_bytes is None or self.convolutions.executable(operation, None) is None:
                    engines["direct"] = None
                else:
                    return None
        if budget_bytes is not None and -(-most // 256) * 256 > budget_bytes:
            return None
        return most, tuple(engines)

    def run(
        self,
        launch: Launch,
        views: Mapping[str, DeviceView],
        workspace: tuple[int, int],
        stream: Any,
    ) -> None:
        """Launch cuDNN or a kernel."""
        operation, output = launch.operation, views[launch.output]
        if 0 in output.shape:
            return
        inputs = tuple(views[name] if name else None for name in launch.inputs)
        if (made := collected()) is not None and isinstance(operation, _OTHERS):
            if isinstance(operation, AnyConvolution):
                build = partial(self.convolutions.build_ahead, operation, workspace[1])
                made.engines[operation, workspace[1]] = build
            return
        if isinstance(operation, AnyConvolution):
            present = tuple(view for view in inputs if view is not None)
            self.convolutions.run(operation, present, output, workspace, stream)
            return
        call = Call(inputs, output, workspace, stream)
        if not (isinstance(operation, AnyAttention) and self.attention.run(operation, call)):
            RUNNERS[type(operation)](operation, call)

    def compile_ahead(self, actions: Iterable[Callable[[Any], None]]) -> None:
        """Run the actions without launching, then compile by several threads."""
        self.use()
        with collect() as made:
            for action in actions:
                action(None)
        compile_collected(made, self.use)

    def spin(self, seconds: float, stream: Any) -> None:
        """Keep a stream busy."""
        spin(seconds, stream)

    def compute(self, actions: Sequence[Callable[[Any], None]]) -> None:
        """Issue them; the next run follows."""
        self.use()
        stream = self._cupy.cuda.get_current_stream()
        follow_last_run(self, stream)
        try:
            for action in actions:
                action(stream)
        except BaseException:
            self.runtime.streamSynchronize(stream.ptr)
            raise
        mark_last_run(self, stream)

    def start(self, *, overlap: bool, staged: bool, timed: bool) -> CudaRun | StagedCudaRun:
        """Open a run on the caller's current stream and two copy streams."""
        self.use()
        compute = self._cupy.cuda.get_current_stream()
        if staged:
            self.staging  # noqa: B018  # made here: the settings are the calling thread's
        kind = StagedCudaRun if staged and overlap else CudaRun
        return kind(self, compute, overlap=overlap, timed=timed)

    def record(self, issue: Callable[[Run], Any], *, overlap: bool) -> CudaGraph | None:
        """Record a CUDA graph, on streams of its own."""
        self.use()
        # the same each time: cuBLAS keeps a workspace for each stream that it has seen
        idle = self._recording_streams
        streams = idle.pop() if idle else self._new_streams()
        try:
            with self.convolutions.collect_plans() as plans, collect_needs() as needs:
                return CudaGraph(self, streams, issue, overlap=overlap, needs=(plans, needs))
        except (RuntimeError, self._cupy.cuda.driver.CUDADriverError) as error:  # PyTorch's, too
            warn_once(f"a program is issued step by step, for it cannot be recorded: {error}")
            return None
        finally:
            idle.append(streams)

    def _new_streams(self) -> list[Any]:
        return [self._cupy.cuda.Stream(non_blocking=True) for _ in range(3)]


def _touch(array: HostArray) -> None:
    """Make the system back every page of fresh memory; one thread takes 0.4 s a GiB."""
    step = 32 * 2**20
    if array.nbytes <= step:
        array[...] = 0
        return
    helpers.share(lambda at: array[at * step : (at + 1) * step].fill(0), -(-array.nbytes // step))


def _unpin_quietly(runtime: Any, pointer: int) -> None:
    """Unregister memory that is about to be unmapped; at interpreter exit CUDA may be gone."""
    with contextlib.suppress(runtime.CUDARuntimeError):
        runtime.hostUnregister(pointer)
