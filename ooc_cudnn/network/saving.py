"""Parameters and running statistics in a file, with the graph that they belong to."""

from __future__ import annotations

import json
import os
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from ooc_cudnn.arrays.copying import memcpy
from ooc_cudnn.arrays.operands import check_writable, locate
from ooc_cudnn.devices import get_device
from ooc_cudnn.network.graph import Graph
from ooc_cudnn.network.parameters import Parameters
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import numpy_dtype

#: The entry of a file that says which network it is of.
GRAPH = "graph"


def described(graph: Graph) -> dict[str, Any]:
    """What a file must agree in: the nodes, what they read, and the shapes of what it holds."""
    return {
        "nodes": [
            [node.name, type(node).__name__, [tensor.name for tensor in node.inputs]]
            for node in graph.nodes.values()
        ],
        "arrays": {
            name: [list(tensor.shape), tensor.dtype]
            for name, tensor in graph.tensors.items()
            if tensor.kind in ("parameter", "running")
        },
    }


def save(path: str | os.PathLike[str], graph: Graph, *groups: Parameters) -> None:
    """Write every array, wherever it is, to an ``.npz`` file; it is whole or not there."""
    path = Path(path)
    arrays = {GRAPH: np.frombuffer(json.dumps(described(graph)).encode(), np.uint8)}
    for group in groups:
        for name, array in group.checked().items():
            tensor = group.tensors[name]
            host = np.empty(tensor.shape, numpy_dtype(tensor.dtype))
            memcpy(host, array)
            # NumPy has no bfloat16 in its files.
            arrays[name] = host.view(np.uint16) if tensor.dtype == "bfloat16" else host
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}")  # as readable as other new files
    try:
        with part.open("xb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], graph: Graph, *groups: Parameters) -> None:
    """Read every array back, into the arrays that are there.

    Raises
    ------
    ValueError
        If it is no such file, or that of another network, with what differs first; or if an array
        here is read-only. Nothing is changed then.
    """
    try:
        with open(path, "rb") as opened:
            arrays = _read(opened)
            own, found = described(graph), json.loads(bytes(arrays[GRAPH]))
            difference = _difference(own, found)
            held = {} if difference else dict(_held(arrays, groups))
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{os.fspath(path)} is no file that Network.save wrote") from error
    if difference:
        raise ValueError(f"{os.fspath(path)} is the file of another network: {difference}")
    device = get_device(current().device)
    made = {name: group[name] for group in groups for name in group if group.is_made(name)}
    for name, array in made.items():
        check_writable(locate(array, device, name=name, written=True), name=name)
    for group in groups:
        for name in group:
            if name in made:
                memcpy(made[name], held[name])
            else:
                group[name] = held[name]


def _held(
    arrays: Mapping[str, Any], groups: Iterable[Parameters]
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """What a file holds of each parameter, as that is here."""
    for name, tensor in (each for group in groups for each in group.tensors.items()):
        array = arrays[name].view(numpy_dtype(tensor.dtype))
        if array.shape != tensor.shape:
            raise ValueError(f"{name} has shape {array.shape}")
        yield name, array


def _read(opened: IO[bytes]) -> dict[str, Any]:
    with np.load(opened, allow_pickle=False) as file:
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("one array alone")
        return {name: file[name] for name in file.files}


def _difference(own: dict[str, Any], found: dict[str, Any]) -> str:
    """What differs first, in words; "" if nothing does."""
    for at, (node, other) in enumerate(zip(own["nodes"], found["nodes"], strict=False)):
        if node != other:
            return f"node {at} here is {_said(node)}, there {_said(other)}"
    counts = len(own["nodes"]), len(found["nodes"])
    if counts[0] != counts[1]:
        return f"{counts[0]} nodes here, {counts[1]} there"
    for name, (shape, dtype) in own["arrays"].items():
        if found["arrays"].get(name) != [shape, dtype]:
            other = found["arrays"].get(name, ["nothing", ""])
            return f"{name} here is {dtype} {shape}, there {other[1]} {other[0]}"
    return ""


def _said(node: list[Any]) -> str:
    return f"{node[0]} ({node[1]} of {', '.join(node[2])})"
