"""Results to Zarr, chunk by chunk: each is there whole or not at all, and is not made twice.

A block of the array is one or several whole chunks of the store, and one task writes them. Zarr
writes a chunk under another name first. So whatever ends a run, the store holds no part of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any

import dask.array as da
import zarr
from distributed import CancelledError

from ooc_cudnn.dask.chunks import starts
from ooc_cudnn.errors import OocError
from ooc_cudnn.operations.core.call import Region


def to_zarr(
    array: da.Array,
    store: Any,
    *,
    component: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    compute: bool = True,
    **options: Any,
) -> Any:
    """Write an array to Zarr; with `resume`, only the chunks that are not there yet.

    Parameters
    ----------
    array : dask array
        Where its chunks differ in size they are joined and cut to those of the largest.
    store : str, path or zarr store
        A folder, or any URL that fsspec knows.
    component : str, optional
        The array's path inside the store.
    resume : bool
        Whether an array that is there, of this shape, dtype and chunks, is completed.
    overwrite : bool
        Whether an array that is there is replaced.
    compute : bool
        Whether to write now; else what `dask.compute` and `Client.compute` write is returned, or
        None where nothing is left to write.
    **options
        For `zarr.create_array`: compressors, attributes, shards (a task writes a whole one),
        storage_options (for a URL).

    Returns
    -------
    zarr.Array, or a collection of dask's

    Raises
    ------
    TypeError
        If it is no dask array.
    ValueError
        If there is an array that is not the one to be completed.
    OSError, PermissionError
        If the store cannot be written to, or is full; chunks that are there stay whole.
    OocError
        If the scheduler goes away, or somebody cancels the run; the same holds for chunks.

    Examples
    --------
    >>> import dask.array as da, tempfile
    >>> from ooc_cudnn.dask import to_zarr
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = to_zarr(da.arange(10, chunks=4), f"{folder}/a.zarr")
    ...     int(written[9]), to_zarr(da.arange(10, chunks=4), f"{folder}/a.zarr", resume=True)[3]
    (9, ...)
    """
    if not isinstance(array, da.Array):
        raise TypeError(f"array must be a dask array, not {type(array).__name__}")
    chunks = tuple(
        min(max(sizes), extent) for sizes, extent in zip(array.chunks, array.shape, strict=True)
    )
    target, is_new = _target(
        array, store, component, chunks, resume=resume, overwrite=overwrite, options=options
    )
    array = array.rechunk(target.shards or target.chunks)  # what is one file, one task writes
    cuts = [list(pairwise(starts(sizes))) for sizes in array.chunks]
    regions = {}
    for index in product(*map(range, array.numblocks)):
        if is_new or not _is_there(target, index):
            regions[index] = tuple(of_axis[at] for of_axis, at in zip(cuts, index, strict=True))
    with _not_cancelled():
        if len(regions) == array.npartitions:
            written = da.store(array, target, lock=False, compute=compute)
        else:
            written = _stored(array, target, regions, compute=compute)
    return target if compute else written


@contextmanager
def _not_cancelled() -> Iterator[None]:
    """Say what is left where a scheduler has given the run up."""
    try:
        yield
    except CancelledError as error:
        raise OocError(
            "the run was cancelled, or its scheduler has gone away; the chunks that are in the "
            "store are whole: to_zarr(..., resume=True) makes the others"
        ) from error


def _target(
    array: da.Array,
    store: Any,
    component: str | None,
    chunks: tuple[int, ...],
    *,
    resume: bool,
    overwrite: bool,
    options: dict[str, Any],
) -> tuple[Any, bool]:
    """The array in the store, and whether it is new."""
    if resume:
        try:
            stored = zarr.open_array(
                store,
                path=component or "",
                mode="r+",
                storage_options=options.get("storage_options"),
            )
        except FileNotFoundError:
            pass
        else:
            held = (tuple(stored.shape), str(stored.dtype), tuple(stored.chunks))
            asked = (tuple(array.shape), str(array.dtype), chunks)
            if held != asked:
                raise ValueError(
                    "the store holds an array of shape {}, {}, in chunks of {}, which cannot be "
                    "completed by one of shape {}, {}, in chunks of {}; overwrite=True replaces "
                    "it".format(*held, *asked)
                )
            return stored, False
    target = zarr.create_array(
        store,
        name=component,
        shape=array.shape,
        dtype=array.dtype,
        chunks=chunks,
        overwrite=overwrite,
        config={"write_empty_chunks": True},
        **options,
    )
    return target, True


def _is_there(target: Any, index: tuple[int, ...]) -> bool:
    """True if a chunk, or a shard of them, has been written."""
    from zarr.core.sync import sync

    key = target.metadata.encode_chunk_key(index)
    return bool(sync((target.store_path / key).exists()))


def _stored(
    array: da.Array, target: Any, regions: dict[tuple[int, ...], Region], *, compute: bool
) -> Any:
    """Write some blocks."""
    if not regions:
        return None
    slices = [tuple(slice(*each) for each in region) for region in regions.values()]
    blocks = [array.blocks[index] for index in regions]
    return da.store(blocks, [target] * len(blocks), regions=slices, lock=False, compute=compute)
