"""Parameters and running statistics in a file, with the graph that they belong to."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ooc_cudnn.arrays.copying import memcpy
from ooc_cudnn.arrays.operands import check_writable, locate
from ooc_cudnn.devices import get_device
from ooc_cudnn.network.graph.graph import Graph
from ooc_cudnn.network.graph.npz_files import BROKEN, NpzReader, NpzWriter, is_plain
from ooc_cudnn.network.graph.parameters import Parameters
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import numpy_dtype
from perfmodel.files import open_file, replacing

#: The entry of a file that says which network it is of.
GRAPH = "graph"
#: Bytes of what that holds are at most so many, or twice those of the network that reads it.
MOST_BYTES = 2**26
#: An error says so many characters of what a file holds.
MOST_SAID = 200


def describe_network(graph: Graph) -> dict[str, Any]:
    """Describe a network as a file must: nodes, what they read, and shapes of what it holds."""
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
    held = [(group, name, array) for group in groups for name, array in group.checked().items()]
    # No name of an array has a blank: these are the names of no others.
    entries = {
        name: f"array {at}"
        for at, (_, name, _) in enumerate(held)
        if name == GRAPH or not is_plain(name)
    }
    with replacing(path) as stream, NpzWriter(stream) as file:
        content = _encoded(describe_network(graph) | {"entries": entries})
        file.add(GRAPH, np.frombuffer(content, np.uint8))
        for group, name, array in held:
            tensor = group.tensors[name]
            host = np.empty(tensor.shape, numpy_dtype(tensor.dtype))
            memcpy(host, array)
            file.add(entries.get(name, name), host.view(_stored_dtype(tensor.dtype)))


def load(path: str | os.PathLike[str], graph: Graph, *groups: Parameters) -> None:
    """Read every array back, into the arrays that are there.

    Raises
    ------
    ValueError
        If it is no such file, or that of another network, with what differs first; or if an array
        here is read-only. Nothing is changed then.
    OSError
        If there is no such file, or it cannot be read.
    """
    expected, held = describe_network(graph), dict[str, np.ndarray[Any, Any]]()
    most = max(MOST_BYTES, 2 * len(_encoded(expected)))
    with open_file(path) as stream:
        try:
            file = NpzReader(stream)
            stored = _checked(json.loads(file.octets(GRAPH, most)))
            difference = _difference(expected, stored)
            if not difference:
                held.update(_held(file, stored["entries"], groups))
        except OSError as error:
            if error.errno != errno.EINVAL:  # where a file says that more of it lies
                raise
            raise _no_file(path, error) from error
        except BROKEN as error:
            raise _no_file(path, error) from error
    if difference:
        raise ValueError(f"{os.fspath(path)} is the file of another network: {difference}")
    device = get_device(current().device)
    arrays = {name: group[name] for group in groups for name in group if group.is_made(name)}
    for name, array in arrays.items():
        check_writable(locate(array, device, name=name, written=True), name=name)
    for group in groups:
        for name in group:
            if name in arrays:
                memcpy(arrays[name], held[name])
            else:
                group[name] = held[name]


def _no_file(path: str | os.PathLike[str], error: Exception) -> ValueError:
    said = " ".join(f"{error!s:.{MOST_SAID}}".split())
    return ValueError(f"{os.fspath(path)} is no file that Network.save wrote ({said})")


def _encoded(description: dict[str, Any]) -> bytes:
    """JSON that brings back any name: escaped, two halves of a letter would come back as one."""
    return json.dumps(description, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _stored_dtype(dtype: str) -> np.dtype[Any]:
    """The dtype of an array in a file: NumPy has no bfloat16 there."""
    return np.dtype(np.uint16) if dtype == "bfloat16" else numpy_dtype(dtype)


def _held(
    file: NpzReader, entries: dict[str, str], groups: Iterable[Parameters]
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Read what a file holds of each parameter, as that is here."""
    for name, tensor in (each for group in groups for each in group.tensors.items()):
        array = file.array(entries.get(name, name), tensor.shape, _stored_dtype(tensor.dtype))
        yield name, array.view(numpy_dtype(tensor.dtype))


def _checked(stored: Any) -> dict[str, Any]:
    """Return what a file says of itself, if it says that in the form in which it is written."""

    def are(kind: type, values: Any) -> bool:
        return isinstance(values, list) and all(type(each) is kind for each in values)

    if not isinstance(stored, dict) or not are(list, stored.get("nodes")):
        raise ValueError("it does not list its nodes")
    for node in stored["nodes"]:
        if len(node) != 3 or not are(str, node[:2]) or not are(str, node[2]):
            raise ValueError("a node is not its name, its kind and what it reads")
    arrays, entries = stored.get("arrays"), stored.get("entries", {})  # older files have none
    if not isinstance(arrays, dict) or not are(list, list(arrays.values())):
        raise ValueError("it does not say which arrays it holds")
    for array in arrays.values():
        if len(array) != 2 or not are(int, array[0]) or not isinstance(array[1], str):
            raise ValueError("an array is not its shape and its dtype")
    if not isinstance(entries, dict) or not are(str, list(entries.values())):
        raise ValueError("it does not say where its arrays are")
    return {"nodes": stored["nodes"], "arrays": arrays, "entries": entries}


def _difference(expected: dict[str, Any], stored: dict[str, Any]) -> str:
    """The first difference, in words; "" if there is none."""
    for index, (node, other) in enumerate(zip(expected["nodes"], stored["nodes"], strict=False)):
        if node != other:
            return f"node {index} here is {_said(node)}, there {_said(other)}"
    counts = len(expected["nodes"]), len(stored["nodes"])
    if counts[0] != counts[1]:
        return f"{counts[0]} nodes here, {counts[1]} there"
    for name, (shape, dtype) in expected["arrays"].items():
        if stored["arrays"].get(name) != [shape, dtype]:
            other = stored["arrays"].get(name, ["nothing", ""])
            described = f"{other[1]} {other[0]}".strip()
            return f"{name} here is {dtype} {shape}, there {described}"[:MOST_SAID]
    more = next((name for name in stored["arrays"] if name not in expected["arrays"]), None)
    return "" if more is None else f"{more[:MOST_SAID]} is there and not here"


def _said(node: list[Any]) -> str:
    return f"{node[0]} ({node[1]} of {', '.join(node[2])})"[:MOST_SAID]
