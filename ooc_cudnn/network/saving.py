"""Parameters and running statistics in a file, with the graph that they belong to."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from ooc_cudnn.arrays.copying import memcpy
from ooc_cudnn.network.graph import Graph
from ooc_cudnn.network.parameters import Parameters
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
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
        try:
            np.savez(file, allow_pickle=False, **arrays)
        except BaseException:
            file.close()
            os.unlink(file.name)
            raise
    os.replace(file.name, path)


def load(path: str | os.PathLike[str], graph: Graph, *groups: Parameters) -> None:
    """Read every array back, into the arrays that are there.

    Raises
    ------
    ValueError
        If it is no such file, or that of another network, with what differs first. Nothing is
        changed then.
    """
    try:
        with open(path, "rb") as opened:
            arrays = _read(opened)
            own, found = described(graph), json.loads(bytes(arrays[GRAPH]))
            difference = _difference(own, found)
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{os.fspath(path)} is no file that Network.save wrote") from error
    if difference:
        raise ValueError(f"{os.fspath(path)} is the file of another network: {difference}")
    for group in groups:
        for name, tensor in group.tensors.items():
            array = arrays[name].view(numpy_dtype(tensor.dtype))
            if group.is_made(name):
                memcpy(group[name], array)
            else:
                group[name] = array


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
