"""Workers of a cluster: started here, or described where they run."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import dask
from distributed import Client, LocalCluster, default_client
from distributed.system import MEMORY_LIMIT

from ooc_cudnn.dask.versions import version
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.cuda.driver import driver_facts
from ooc_cudnn.devices.machines import machine_for
from ooc_cudnn.errors import DeviceUnavailableError, OocError
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.settings import current
from ooc_cudnn.settings_table import PREFIX
from ooc_cudnn.warnings_once import warn
from perfmodel import MachineModel

#: One thread computes, since a device runs one call at a time; the others read and write chunks. On
#: an H100 `benchmarks.dask_scale --cards 1 --side 16384` took 1.7 s with two, 1.4 s with four.
THREADS = 4
#: How often a task may be on a worker that dies before dask gives it up.
DEATHS_OF_A_TASK = 100


def cluster(
    workers: int | None = None,
    *,
    device: str = "auto",
    memory_limit: int | float | str | None = None,
    machine: str | os.PathLike[str] | None = None,
    threads_per_worker: int = THREADS,
    **options: Any,
) -> LocalCluster:
    """Start workers on this machine: one a card, or with the host device.

    Parameters
    ----------
    workers : int, optional
        How many; one a card, or dask's choice on the host, when left out.
    device : str
        "auto" (cards, where there are some), "cuda" or "host".
    memory_limit : int, float or str, optional
        Device memory that the library may hold on each worker; chunks that need more run out of
        core there. The setting's default when left out.
    machine : str or path, optional
        The machine model that each worker plans with; its own when left out.
    threads_per_worker : int
        One computes, others read and write chunks.
    **options
        For `distributed.LocalCluster`, or `dask_cuda.LocalCUDACluster`. There ``memory_limit`` is
        called ``host_memory``: what dask lets a worker hold of host memory.

    Returns
    -------
    LocalCluster
        ``Client(cluster)`` connects; as a context manager it ends its workers.

    Raises
    ------
    DeviceUnavailableError
        If cards are asked for, and there are none.

    Notes
    -----
    On cards this is dask-cuda's cluster where that is installed; it spills, and knows RMM and UCX.
    A worker that dies is replaced, and its chunks are computed again.

    Examples
    --------
    >>> from distributed import Client
    >>> from ooc_cudnn.dask import cluster
    >>> with cluster(2, memory_limit="1GiB") as local, Client(local):  # doctest: +SKIP
    ...     result.compute()
    """
    if device not in ("auto", "cuda", "host"):
        raise ValueError(f"device must be 'auto', 'cuda' or 'host', not {device!r}")
    if not options.get("processes", True):
        raise ValueError("processes=False is no cluster: workers have settings of their own")
    cards = _cards() if device != "host" else ()
    if device == "cuda" and not cards:
        raise DeviceUnavailableError(
            "workers on cards were asked for, and the driver shows none",
            remedy="'ooc-cudnn doctor' says more; device='host' starts workers without cards.",
        )
    told: dict[str, object] = {"device": "cuda" if cards else "host", "memory_limit": memory_limit}
    told |= {"machine": machine, "progress": False}
    environment = {
        f"{PREFIX}{name.upper()}": str(value) for name, value in told.items() if value is not None
    }
    options = {
        "n_workers": workers,
        "threads_per_worker": threads_per_worker,
        **options,
        "env": {**environment, **options.pop("env", {})},
    }
    if "host_memory" in options:
        options["memory_limit"] = options.pop("host_memory")
    with dask.config.set({"distributed.scheduler.allowed-failures": DEATHS_OF_A_TASK}):
        if not cards:
            return LocalCluster(**options)
        if importlib.util.find_spec("dask_cuda") is None:
            return _started(CardCluster(cards, **options), workers or len(cards))
        from dask_cuda import LocalCUDACluster

        return _keeping_environment(LocalCUDACluster)(**options)


def _keeping_environment(cluster: Any) -> Any:
    """A class of clusters whose workers have the environment that was asked for.

    That of dask-cuda puts which cards a worker sees in its place, and all else is lost.
    """

    class Keeping(cluster):
        def new_worker_spec(self) -> dict[Any, Any]:
            found: dict[Any, Any] = super().new_worker_spec()
            asked = self.new_spec["options"].get("env") or {}
            for spec in found.values():
                spec["options"]["env"] = {**asked, **spec["options"].get("env", {})}
            return found

    return Keeping


def _cards() -> tuple[str, ...]:
    """The cards that workers may have, asked of the driver: no context is made on one here."""
    found = driver_facts(ctypes.CDLL).get("gpus", ())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return tuple(visible[: len(found)] if visible != [""] else map(str, range(len(found))))


class CardCluster(LocalCluster):
    """Local workers that see one card each, where dask-cuda is not installed.

    Parameters
    ----------
    cards : tuple of str
        As CUDA_VISIBLE_DEVICES names them; workers take turns.
    """

    def __init__(self, cards: tuple[str, ...], **options: Any) -> None:
        self.cards = cards
        count = options.pop("n_workers", None) or len(cards)
        options.setdefault("memory_limit", MEMORY_LIMIT // count)
        super().__init__(n_workers=0, **options)

    def new_worker_spec(self) -> dict[Any, Any]:
        """The worker that dask starts next: the same, on the next card."""
        ((name, spec),) = super().new_worker_spec().items()
        told = dict(spec["options"])
        card = self.cards[int(name) % len(self.cards)]
        told["env"] = {**told.get("env", {}), "CUDA_VISIBLE_DEVICES": card}
        return {name: {**spec, "options": told}}


def _started(local: CardCluster, count: int) -> CardCluster:
    local.scale(count)
    with Client(local, set_as_default=False) as client:
        client.wait_for_workers(count)
    return local


@dataclass(frozen=True)
class Worker:
    """One worker, as it says itself.

    Attributes
    ----------
    address : str
    device : str
        "cuda:0", "host".
    kind : str
        "cuda" or "host".
    memory_limit : int
        Bytes of device memory that the library may hold there.
    machine : MachineModel
        What it plans with.
    version : str
        Of ooc_cudnn.
    """

    address: str
    device: str
    kind: str
    memory_limit: int
    machine: MachineModel
    version: str


def describe_worker() -> tuple[str, str, int, MachineModel, str]:
    """Describe this process as a worker: device, kind, memory limit, machine model, version."""
    settings = current()
    device = get_device(settings.device)
    limit = limit_bytes(device, settings.memory_limit)
    return device.name, device.kind, limit, machine_for(device, settings.machine), version()


def workers(client: Client | None = None) -> tuple[Worker, ...]:
    """The workers of a cluster, each with its device, memory limit and machine model.

    Raises
    ------
    OocError
        If workers run different versions of the library, or another one than the client.

    Notes
    -----
    A worker without a card among others with one is used; that it is slower is warned of.
    """
    answers = (client or default_client()).run(describe_worker)
    members = tuple(Worker(address, *told) for address, told in sorted(answers.items()))
    versions = {each.version for each in members} | {version()}
    if len(versions) > 1:
        said = ", ".join(f"{each.address} has {each.version}" for each in members)
        raise OocError(
            f"client ({version()}) and workers run different versions of ooc_cudnn: {said}; "
            "install the same one everywhere"
        )
    without = [each.address for each in members if each.kind == "host"]
    if without and len(without) < len(members):
        warn(
            f"{len(without)} of {len(members)} workers have no card and are slower: "
            f"{', '.join(without)}"
        )
    return members
