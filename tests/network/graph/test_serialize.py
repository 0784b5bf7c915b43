"""Files of networks: any name, any byte order, and whatever somebody made of a file."""

import json
import os
import random
import re
import struct
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ooc_cudnn
from ooc_cudnn.network.graph import serialize
from tests.support.killed import killed_at_each_line
from tests.support.sampling import number


def network(seed=1, names=(), dtype="float32"):
    """A convolution, a normalization and parameters of these names, all with values of their own.

    What a builder refuses to call a parameter is left out.
    """
    net, drawn = ooc_cudnn.Network(seed=seed), np.random.default_rng(seed)
    y = net.convolution(net.input("x", (2, 3, 6, 6), dtype), 4, window=3, name="c")
    net.batch_normalization(y, name="n")
    for name in names:
        with suppress(ValueError):  # taken, or it has a blank
            net.parameter(name, (3, 2), dtype)
    for group in (net.parameters, net.running):
        for name in group:
            group[name] = drawn.standard_normal(group[name].shape).astype(group[name].dtype)
    return net


def values(net):
    return {name: np.array(net.parameters[name]) for name in net.parameters} | {
        name: np.array(net.running[name]) for name in net.running
    }


def same(one, other):
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name])
        for name in one
    )


def refused(net, path, match="is no file that Network.save wrote"):
    """Loading raises an error that names the file, and changes nothing."""
    before = values(net)
    with pytest.raises(ValueError, match=match) as told:
        net.load(path)
    assert str(path) in str(told.value)
    assert len(str(told.value)) < 1000
    assert same(values(net), before)


def error_of(net, path):
    """What loading says is wrong; empty if it loads."""
    try:
        net.load(path)
    except ValueError as error:
        return str(error)
    return ""


# Names --------------------------------------------------------------------------------------------

AWKWARD = [
    *("graph", "graph.npy", "file", "allow_pickle", "arr_0", "array_0", "self", "entry", ".npy"),
    *("a.npy", "a.npy.npy", "a\0b", "a\0c", "a", "A", "\0", "a/b", "../../a", "/a", "C:\\a", "."),
    *("größe", "\N{GRINNING FACE}", "\ud83d\ude00", "\ud800", "a\u0301", "\u00e1", "a" * 70_000),
    *("{", '"', "'", "%41", "%", "__proto__", "\u202e", "\x7f", "null", "-", "entries", "nodes"),
]


@pytest.mark.parametrize("name", AWKWARD, ids=lambda name: ascii(name)[:20])
def test_a_parameter_of_any_name_comes_back(tmp_path, name):
    """Some made a file that could not be loaded: a lost checkpoint; some a TypeError."""
    net, other = network(1, [name]), network(2, [name])
    assert name in net.parameters
    net.save(tmp_path / "net.npz")
    other.load(tmp_path / "net.npz")
    assert same(values(other), values(net))


def test_parameters_of_all_names_come_back_from_one_file(tmp_path):
    net, other = network(1, AWKWARD), network(2, AWKWARD)
    net.save(tmp_path / "net.npz")
    other.load(tmp_path / "net.npz")
    assert same(values(other), values(net))
    with np.load(tmp_path / "net.npz", allow_pickle=False) as file:
        for name in ("c.w", "n.running_mean", "file", "größe", "arr_0"):
            assert np.array_equal(file[name], values(net)[name])
    for names, match in ((AWKWARD[1:], "graph is there and not"), ([], "graph is there and not")):
        refused(network(1, names), tmp_path / "net.npz", f"file of another network: {match} here")
    network(1, AWKWARD[1:]).save(tmp_path / "net.npz")
    refused(net, tmp_path / "net.npz", r"network: graph here is float32 \[3, 2\], there nothing")


any_text = st.text(st.characters(exclude_categories=()), min_size=1, max_size=12)
#: Words of which names are made that mean something to somebody.
words = st.lists(st.sampled_from(["graph", "a", ".", "npy", "/", "\0", "w", "%2E", "array", "0"]))


@given(st.lists(any_text | words.map("".join), max_size=6))
@example(["graph", "graph.npy", "array\u20090"])
def test_drawn_names_come_back(tmp_path, names):
    net, other = network(1, names), network(2, names)
    net.save(tmp_path / "net.npz")
    other.load(tmp_path / "net.npz")
    assert same(values(other), values(net))


def test_drawn_names_of_nodes_come_back(tmp_path):
    for name in AWKWARD:
        made = []
        for seed in (1, 2):
            net = ooc_cudnn.Network(seed=seed)
            net.convolution(net.input("x", (1, 2, 3, 3)), 2, window=1, name=name)
            made.append(net)
        made[0].save(tmp_path / "net.npz")
        made[1].load(tmp_path / "net.npz")
        assert same(values(made[0]), values(made[1]))


# Files of others --------------------------------------------------------------------------------


def held_by(net):
    """What files held before names had entries of their own: all by name, NumPy's own writing."""
    graph = {
        name: held
        for name, held in serialize.describe_network(net.graph).items()
        if name != "entries"
    }
    arrays = {"graph": np.frombuffer(json.dumps(graph).encode(), np.uint8)}
    return arrays | {
        name: array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        for name, array in values(net).items()
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_files_of_before_are_read(tmp_path, dtype, write):
    names = ["größe", "b.npy", "d/e", '"']
    net, other = network(1, names, dtype), network(2, names, dtype)
    write(tmp_path / "net.npz", **held_by(net))
    other.load(tmp_path / "net.npz")
    assert same(values(other), values(net))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_order_of_bytes_and_of_axes_does_not_matter(tmp_path, dtype):
    """Big-endian arrays had their bytes swapped: other numbers, without a word."""
    net = network(1, dtype=dtype)
    for order in ("<", ">"):
        for axes in ("C", "F"):
            held = {
                name: np.array(array, array.dtype.newbyteorder(order), order=axes)
                for name, array in held_by(net).items()
            }
            np.savez(tmp_path / "net.npz", **held)
            other = network(2, dtype=dtype)
            other.load(tmp_path / "net.npz")
            assert same(values(other), values(net))
            assert all(array.flags.c_contiguous for array in other.parameters.values())


def test_arrays_of_another_type_or_shape_are_refused(tmp_path):
    net, path = network(), tmp_path / "net.npz"
    whole = held_by(net)
    w = whole["c.w"]
    for other in (
        *(w.astype(dtype) for dtype in ("f8", "f2", "i4", "u4", "c8", "S4", "O", "M8[s]")),
        *(w.view("i4"), w.view([("a", "f4")]), w[:3], w[None], w.ravel(), w.T, w[0, 0, 0, 0]),
    ):
        np.savez(path, **whole | {"c.w": other})
        refused(net, path)


# Damaged ------------------------------------------------------------------------------------------

DEEP = b"[" * 100_000
#: What a file may say of itself, as JSON.
GRAPHS = {
    "deep": DEEP,
    "deep in a mapping": b'{"nodes": ' + DEEP,
    "deep mappings": b'{"a":' * 100_000,
    "no JSON": b"\xff\xfe{",
    "nothing": b"",
    "a number of many digits": b"1" * 10_000,
    **{
        f"{value!r}"[:40]: json.dumps(value).encode()
        for value in (
            *(None, 1, "nodes", [], [1], {}, {"nodes": []}, {"arrays": {}}),
            *({"nodes": each, "arrays": {}} for each in (None, 1, "ab", {}, [1], [[]], [None])),
            *({"nodes": [each], "arrays": {}} for each in ([1, 2, 3], ["a", "b", "c"], ["a"])),
            {"nodes": [["a", "b", [1]]], "arrays": {}},
            {"nodes": [["a", "b", [["c"]]]], "arrays": {}},
            *({"nodes": [], "arrays": each} for each in (None, 1, "ab", [1], {"a": 1}, {"a": []})),
            *({"nodes": [], "arrays": {"c.w": each}} for each in ([1, 2], [[1]], ["ab", "f4"])),
            {"nodes": [], "arrays": {"c.w": [[None], "float32"]}},
            *({"nodes": [], "arrays": {}, "entries": each} for each in (None, 1, [], {"a": 1})),
        )
    },
}


def rewritten(path, **entries):
    """Write a file of a network again, with other entries."""
    with zipfile.ZipFile(path) as file:
        held = {each: file.read(each) for each in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in (held | entries).items():
            if content is not None:
                file.writestr(name, content)


def in_npy(content, header=None):
    """Bytes as an entry holds them."""
    said = header or f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({len(content)},), }}\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(said)) + said.encode() + content


@pytest.mark.timeout(120)
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_file_that_says_anything_else_of_itself_is_refused(tmp_path, graph):
    net, path = network(), tmp_path / "net.npz"
    net.save(path)
    rewritten(path, **{"graph.npy": in_npy(GRAPHS[graph])})
    refused(net, path, "is no file that Network.save wrote|is the file of another network")


def f4_of(shape):
    return f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}\n"


HEADERS = {
    "larger than any memory": f4_of(f"{2**60},"),
    "of many axes": f4_of("9, " * 9000),
    "negative": f4_of("-1,"),
    "of many digits": f4_of("9" * 9000 + ","),
    "pickled": "{'descr': '|O', 'fortran_order': False, 'shape': (4,), }\n",
    "of no type": "{'descr': '<f7', 'fortran_order': False, 'shape': (4,), }\n",
    "of nested Python": "-" * 60_000 + "1\n",
    "of nested brackets": "(" * 60_000 + "\n",
    "of Python 2": f4_of("4L,"),
    "empty": "\n",
}


@pytest.mark.parametrize("entry", ["graph.npy", "c.w.npy", "c.b.npy"])
@pytest.mark.parametrize("header", HEADERS)
def test_what_an_array_says_of_itself_is_not_believed(tmp_path, header, entry):
    net, path = network(), tmp_path / "net.npz"
    net.save(path)
    rewritten(path, **{entry: in_npy(b"\0" * 16, HEADERS[header])})
    refused(net, path)


def test_entries_that_are_missing_longer_or_shorter_than_they_say_are_refused(tmp_path):
    net, path = network(), tmp_path / "net.npz"
    net.save(path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
        content = file.read("c.w.npy")
    for name in names:
        for other in (None, b"", content[:3], content[:8], content[:9], content[:50]):
            path.write_bytes(whole)
            rewritten(path, **{name: other})
            refused(net, path)
    for other in (content + b"\0", content[:-1], content[:-100]):
        path.write_bytes(whole)
        rewritten(path, **{"c.w.npy": other})
        refused(net, path)


def test_no_more_of_a_file_is_read_than_it_may_have(tmp_path, monkeypatch):
    net, path = network(), tmp_path / "net.npz"
    net.save(path)
    rewritten(path, **{"graph.npy": in_npy(b" " * 10**6)})
    monkeypatch.setattr(serialize, "MOST_BYTES", 10**5)
    refused(net, path, "graph has 1000000 bytes, more than 100000")
    monkeypatch.setattr(serialize, "MOST_BYTES", 1)
    net.save(path)
    net.load(path)  # however large a network is, its own file may be as large


def test_other_compressions_and_encrypted_files_are_refused(tmp_path):
    net, path = network(), tmp_path / "net.npz"
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        net.save(path)
        with zipfile.ZipFile(path) as file:
            held = {each: file.read(each) for each in file.namelist()}
        with zipfile.ZipFile(path, "w", method) as file:
            for name, content in held.items():
                file.writestr(name, content)
        refused(net, path, "is compressed by method")
    net.save(path)
    content = bytearray(path.read_bytes())
    for at in [each.start() for each in re.finditer(b"PK\x01\x02", content)]:
        content[at + 8] |= 1
    path.write_bytes(content)
    refused(net, path)


def mutated(content, drawn):
    """A file with some bytes changed, cut out, put in or doubled; or cut off."""
    content = bytearray(content)
    for _ in range(drawn.choice((1, 1, 2, 5))):
        start = drawn.randrange(len(content) + 1)
        stop = min(start + drawn.choice((1, 2, 4, 8, 100, 1000)), len(content))
        match drawn.randrange(6):
            case 0:
                content[start:stop] = drawn.randbytes(stop - start)
            case 1:
                content[start:stop] = bytes(stop - start)
            case 2:
                content[start:stop] = b"\xff" * (stop - start)
            case 3:
                del content[start:stop]
            case 4:
                content[start:start] = content[start:stop]
            case 5:
                del content[start:]
        if not content:
            break
    return bytes(content)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["any", "tables", "compressed"])
def test_a_file_that_was_mutated_is_refused_or_brings_the_right_values(tmp_path, part):
    """Whatever the bytes are: one clear error, nothing changed; or all as it was written."""
    net, other, path = network(1, AWKWARD[:9]), network(2, AWKWARD[:9]), tmp_path / "net.npz"
    net.save(path)
    if part == "compressed":
        np.savez_compressed(path, **held_by(network(1)))
        net, other = network(1), network(2)
    whole, saved = path.read_bytes(), values(net)
    start = whole.index(b"PK\x01\x02") if part == "tables" else 0  # zip's list of entries
    drawn, loaded, before = random.Random(part), 0, values(other)
    for _ in range(number(400, of=20_000)):
        path.write_bytes(whole[:start] + mutated(whole[start:], drawn))
        error = error_of(other, path)
        if error:
            assert str(path) in error
            assert same(values(other), before)
        else:
            loaded += 1
            assert same(values(other), saved)
            other = network(2, AWKWARD[:9] if part != "compressed" else ())
    assert loaded < number(400, of=20_000) // 2


def leaves(value, where=()):
    """The place of everything in JSON."""
    held_by_key = dict(enumerate(value)) if isinstance(value, list) else value
    for key, held in held_by_key.items() if isinstance(held_by_key, dict) else ():
        yield (*where, key)
        yield from leaves(held, (*where, key))


def test_a_graph_that_was_edited_is_refused_or_brings_the_right_values(tmp_path):
    net, other, path = network(1, AWKWARD[:9]), network(2, AWKWARD[:9]), tmp_path / "net.npz"
    net.save(path)
    with zipfile.ZipFile(path) as file:
        written = json.loads(file.read("graph.npy").partition(b"\n")[2])
    whole, saved, before = path.read_bytes(), values(net), values(other)
    others = (None, True, -1, 1.5, 10**30, "", "c.w", "graph", [], [1], {}, {"a": 1}, [[[[]]]])
    drawn = random.Random(5)
    places = list(leaves(written))
    for _ in range(number(200, of=5000)):
        graph = json.loads(json.dumps(written))
        *to, last = drawn.choice(places)
        held = graph
        for key in to:
            held = held[key]
        held[last] = drawn.choice(others)
        path.write_bytes(whole)
        rewritten(path, **{"graph.npy": in_npy(json.dumps(graph).encode())})
        error = error_of(other, path)
        if error:
            assert str(path) in error
            assert same(values(other), before)
        else:
            found = values(other)
            assert same(found, saved) or "entries" in to  # arrays of one shape took turns
            other = network(2, AWKWARD[:9])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_refused_at_once(tmp_path, make):
    net, path = network(), tmp_path / "net.npz"
    make(path)
    with pytest.raises(OSError, match=r"net\.npz"):
        net.load(path)


def test_a_disk_that_cannot_be_read_is_not_said_to_be_a_wrong_file(tmp_path, monkeypatch):
    net = network()
    net.save(tmp_path / "net.npz")

    def fails(self, entry, most):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(serialize.NpzReader, "octets", fails)
    with pytest.raises(OSError, match="Input/output error"):
        net.load(tmp_path / "net.npz")


# Writing ------------------------------------------------------------------------------------------


def test_a_parameter_that_cannot_be_saved_leaves_the_old_file(tmp_path):
    net, path = network(1), tmp_path / "net.npz"
    net.save(path)
    whole = path.read_bytes()
    net.parameters["c.w"].resize((4, 27), refcheck=False)
    with pytest.raises(ValueError, match=r"c\.w must have shape"):
        net.save(path)
    assert path.read_bytes() == whole
    assert os.listdir(tmp_path) == ["net.npz"]


@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_that_is_killed_while_it_saves_leaves_the_old_file_or_the_new_one(tmp_path):
    path, old, new, reads = tmp_path / "net.npz", network(1), network(2), network(3)
    old.save(path)
    found = set()
    traced = ("perfmodel/files.py", "network/graph/npz_files.py")
    for _ in killed_at_each_line(lambda: new.save(path), *traced):
        reads.load(path)
        is_new = same(values(reads), values(new))
        assert is_new or same(values(reads), values(old))
        found.add(is_new)
        for each in tmp_path.iterdir():
            os.utime(each, (0, 0))
        assert len(list(tmp_path.iterdir())) <= 2
        if is_new:
            old.save(path)
    assert found == {True, False}
    assert os.listdir(tmp_path) == ["net.npz"]
