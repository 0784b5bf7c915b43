"""The plan of a network's step: what was decided, and what it will take. Frozen, plain JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

from ooc_cudnn.call_planner.explain import align_columns
from ooc_cudnn.network.ir.constraints import LayoutSeconds
from ooc_cudnn.network.ir.live_ranges import LiveRange
from ooc_cudnn.network.ir.step import RematEvent
from ooc_cudnn.units import format_bytes, format_seconds
from perfmodel import machine_label

#: What becomes of a tensor: in the words of docs/networks.md.
FATES = ("kept", "offloaded", "recomputed", "streamed", "given")
#: Fields of a plan whose keys in JSON are other words: those of plans that are stored already.
_KEYS = {"rematerialized": "remade", "live_ranges": "stays", "batch_slices": "slabs"}
#: A limit costs something where a plan takes so many times what computing in one piece does.
COSTLY = 1.05
#: How many of the largest tensors and of the longest phases `explain` shows.
SHOWN = 12


class TaskFigures(NamedTuple):
    """Figures of a phase: compute seconds, and bytes beside the tensors on the device.

    `engines` are those of cuDNN that were measured and chosen; others are left to cuDNN.
    `outside_bytes` are what somebody else takes who computes it; None if the library does. With
    `on_host` it is computed there, and takes them of host memory. `why` it is not the library's.
    """

    name: str
    seconds: float
    pieces: int
    device_bytes: int
    layout: str
    engines: str = ""
    outside_bytes: int | None = None
    on_host: bool = False
    why: str = ""


class Fate(NamedTuple):
    """Fate of a tensor: one of `FATES`, which docs/networks.md explains."""

    tensor: str
    fate: str
    nbytes: int


class MemoryNeed(NamedTuple):
    """Limit below which a plan surely costs something, and the phase that sets it.

    Attributes
    ----------
    what : str
        What is the case from there on at the earliest: "all kept", or "none streamed".
    phase : str
    nbytes : int
        A lower bound of that limit: tensors that the phase holds, and what lies beside the plan.
    tensors : tuple of (str, int)
        The largest of them, and their bytes.
    """

    what: str
    phase: str
    nbytes: int
    tensors: tuple[tuple[str, int], ...]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Self:
        """Return the need that is a list in a plan's JSON."""
        what, phase, nbytes, tensors = data
        return cls(what, phase, nbytes, tuple((name, size) for name, size in tensors))


@dataclass(frozen=True)
class NetworkPlan:
    """Plan of a network's step.

    Attributes
    ----------
    name : str
    policy : str
        What decided.
    machine : str
        Name of the machine model that predicted.
    memory_limit : int
        Bytes that the library may hold on the device.
    device_bytes : int
        What the step takes of them: exactly what it will reserve.
    host_bytes : int
        Pinned memory that the step keeps, beside the arrays that are given.
    seconds : float
        Predicted, by a replay of the schedule on a virtual clock.
    compute_seconds, copy_in_seconds, copy_out_seconds : float
        How long each stream is busy.
    bytes_in, bytes_out : int
        Copied over the link, to the device and from it.
    pieces : int
        Into how many all calls of the step are cut, added up.
    micro_batches : int
        Parts of the batch that go through the network one after the other.
    bands : int
        Tiles of rows in which phases between whole maps are gone through.
    rematerialized : tuple of str
        Maps that are recomputed in backward.
    live_ranges : tuple of (str, tuple of LiveRange)
        The phases in which each tensor is on the device.
    fates : tuple of Fate
    tasks : tuple of TaskFigures
        Every call of the step, in order.
    order : str
        Memory order of maps on the device.
    by_order : LayoutSeconds, optional
        What computing takes in each, where there was a choice.
    synchronous : bool
        Whether computing waits at the end of a layer for what leaves there.
    taken : str
        Of the policies that `policy` compared, the one whose plan this is.
    apart : bool
        Whether concatenations that convolutions alone read are split, and what is recomputed
        goes straight into its reader.
    copied_skips : tuple of str
        Concatenations into which parts that are read before are copied
        (`passes/copy_skip_connections.py`).
    anew : tuple of str
        Of the maps that are recomputed those that are made for each of their readers anew. In bands
        of rows the maps and gradients that each region makes for itself.
    gradient_bytes : int
        What gradients on the device take there beside `device_bytes`: those of the call before
        among them, which may be held until the new ones are whole.
    bound_seconds : float, optional
        What no plan of its kind can beat, where that was asked for; bands of rows are another kind,
        and so are batch slices.
    again : tuple of RematEvent
        Where maps are rematerialized that may be dropped and rematerialized once more.
    reserved : tuple of (int, int)
        Phases that find so many bytes beside tensors, for the workspace of their engines.
    batch_slices : int
        Slices of the batch that the outer phases go through, whose maps are large
        (`passes/batch_slices.py`).
    gap : float
        Of a plan by an integer program: how far the solution is above what no other can go below,
        as a share, where the search for a better one was ended.
    outside_bytes : int
        What phases that somebody else computes take of the device beside `device_bytes`, at the
        most: PyTorch, for operations that the library has not.
    on_host : tuple of str
        Those of them that do not fit on the device: the host computes them.
    searched_seconds : float, optional
        The setting `planning_seconds` where it ended the search; None where that ended by itself.
    derived : str
        The shapes of the inputs of a larger step whose decisions this one follows; empty where a
        search made them.
    notes : tuple of str
        What else there is to know, of whoever made the step.
    one_piece_seconds : float, optional
        What computing takes where nothing is cut: no plan, under no limit, takes less.
    needs : tuple of MemoryNeed
        The limits above this one from which on it costs less at the earliest.
    """

    name: str
    policy: str
    machine: str
    memory_limit: int
    device_bytes: int
    host_bytes: int
    seconds: float
    compute_seconds: float
    copy_in_seconds: float
    copy_out_seconds: float
    bytes_in: int
    bytes_out: int
    pieces: int
    micro_batches: int
    bands: int
    rematerialized: tuple[str, ...]
    live_ranges: tuple[tuple[str, tuple[LiveRange, ...]], ...]
    fates: tuple[Fate, ...]
    tasks: tuple[TaskFigures, ...]
    order: str = "channels_first"
    by_order: LayoutSeconds | None = field(default=None, compare=False)
    synchronous: bool = False
    taken: str = ""
    apart: bool = False
    copied_skips: tuple[str, ...] = ()
    anew: tuple[str, ...] = ()
    gradient_bytes: int = 0
    bound_seconds: float | None = None
    again: tuple[RematEvent, ...] = ()
    reserved: tuple[tuple[int, int], ...] = ()
    batch_slices: int = 1
    gap: float = 0.0
    outside_bytes: int = 0
    on_host: tuple[str, ...] = ()
    searched_seconds: float | None = field(default=None, compare=False)
    derived: str = ""
    one_piece_seconds: float | None = field(default=None, compare=False)
    needs: tuple[MemoryNeed, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def fate(self) -> Mapping[str, str]:
        """Fate of each tensor, by name."""
        return {each.tensor: each.fate for each in self.fates}

    @property
    def fate_bytes(self) -> Mapping[str, int]:
        """Bytes of all tensors of each fate, but for what is given: of `FATES`, those there are."""
        found = dict[str, int]()
        for each in self.fates:
            if each.fate != "given":
                found[each.fate] = found.get(each.fate, 0) + each.nbytes
        return found

    @property
    def decisions(self) -> str:
        """A line: memory of the device and the host, and how many tensors have which fate."""
        held, most = format_bytes(self.device_bytes), format_bytes(self.memory_limit)
        counts = Counter(each.fate for each in self.fates)
        fates = [
            f"{counts[fate]} {fate} ({format_bytes(n)})" for fate, n in self.fate_bytes.items()
        ]
        host = f", {format_bytes(self.host_bytes)} of the host" * (self.host_bytes > 0)
        return f"{held} of {most} on the device{host}; tensors: {', '.join(fates)}"

    @property
    def summary(self) -> str:
        """A line: what is planned for which machine, its seconds, and its memory of the limit."""
        held, most = format_bytes(self.device_bytes), format_bytes(self.memory_limit)
        return f"{self._headline()}, {held} of memory_limit {most}"

    def _headline(self) -> str:
        taken = f" ({self.taken})" * (self.taken not in ("", self.policy))
        parts = f", in {self.micro_batches} micro-batches" * (self.micro_batches > 1)
        parts += f", in {self.bands} bands of rows" * (self.bands > 1)
        parts += f", the outer phases in {self.batch_slices} slabs" * (self.batch_slices > 1)
        return (
            f"{self.name} on {machine_label(self.machine)}, policy {self.policy}{taken}{parts}: "
            f"{format_seconds(self.seconds)} predicted"
        )

    def explain(self) -> str:
        """Return a table a person reads: seconds, bytes, fates, the longest phases."""
        waiting = max(0.0, self.seconds - self.compute_seconds)
        lines = [
            self._headline(),
            *[f"  derived    from the plan for {self.derived}, without a search of its own"]
            * bool(self.derived),
            f"  device     {format_bytes(self.device_bytes)} of {format_bytes(self.memory_limit)}",
            *[f"  gradients  {format_bytes(self.gradient_bytes)} more, with those held from before"]
            * bool(self.gradient_bytes),
            *[f"  outside    {format_bytes(self.outside_bytes)} more, at the most"]
            * bool(self.outside_bytes),
            f"  host       {format_bytes(self.host_bytes)} pinned",
            *align_columns(
                [
                    ("copy in", format_seconds(self.copy_in_seconds), format_bytes(self.bytes_in)),
                    ("compute", format_seconds(self.compute_seconds), ""),
                    (
                        "copy out",
                        format_seconds(self.copy_out_seconds),
                        format_bytes(self.bytes_out),
                    ),
                    ("waiting", format_seconds(waiting), "", "in which nothing is computed"),
                ],
                ("<9", ">11", ">12", "<0"),
            ),
            *self._beside_bound(),
            *self._cost_of_limit(),
            *[f"  solver     stopped {100 * self.gap:.1f} % above what its program may reach"]
            * bool(self.gap),
            *self._beside_search(),
            "",
            "  what becomes of tensors",
        ]
        by_fate = {fate: [each for each in self.fates if each.fate == fate] for fate in FATES}
        lines += align_columns(
            [
                (fate, str(len(found)), format_bytes(sum(each.nbytes for each in found)))
                for fate, found in by_fate.items()
                if found
            ],
            ("<10", ">6", ">12"),
        )
        largest = sorted(self.fates, key=lambda each: -each.nbytes)[:SHOWN]
        lines += ["", "  the largest of them"]
        lines += align_columns(
            [(each.tensor, each.fate, format_bytes(each.nbytes)) for each in largest],
            ("<34", "<10", ">12"),
        )
        lines += self._outside()
        longest = sorted(self.tasks, key=lambda each: -each.seconds)[:SHOWN]
        lines += ["", f"  the longest of {len(self.tasks)} phases"]
        lines += align_columns(
            [
                (each.name, format_seconds(each.seconds),
                 f"{each.pieces} piece{'s' * (each.pieces != 1)}", format_bytes(each.device_bytes),
                 "", each.engines)
                for each in longest
            ],
            ("<44", ">11", ">10", ">12", "<2", "<0"),
        )  # fmt: skip
        if self.by_order is not None:
            lines += ["", *align_columns(_orders(self.by_order), ("<44", ">11"))]
            if self.order != self.by_order.fastest:
                lie = self.order.replace("_", "-")
                lines.append(f"  maps lie {lie}: parts of them are streamed, and are in one row so")
        lines += ["", *(f"  {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines)

    def _outside(self) -> list[str]:
        """The phases that somebody else computes: what they take of time, and of memory there."""
        tasks = [each for each in self.tasks if each.outside_bytes is not None]
        if not tasks:
            return []
        seconds = format_seconds(sum(each.seconds for each in tasks))
        rows = [
            (each.name, format_seconds(each.seconds),
             f"{each.pieces} piece{'s' * (each.pieces != 1)}",
             format_bytes(each.outside_bytes or 0) + " of the host" * each.on_host)
            for each in sorted(tasks, key=lambda each: -each.seconds)[:SHOWN]
        ]  # fmt: skip
        reasons = dict.fromkeys(each.why for each in tasks if each.why)
        return [
            "",
            f"  computed outside of the library: {len(tasks)} phases, {seconds}; the longest",
            *align_columns(rows, ("<44", ">11", ">10", ">12")),
            *[f"  because of {why}" for why in reasons],
            *["  what takes memory of the host does not fit on the device, and is computed there"]
            * bool(self.on_host),
        ]

    def _cost_of_limit(self) -> list[str]:
        """Lines that say what the limit costs, the phases that set it, and where it falls away."""
        least = self.one_piece_seconds
        if least is None or not self.needs or self.seconds <= COSTLY * least:
            return []
        rows = [
            (
                each.what,
                format_bytes(each.nbytes),
                "",
                f"set by {each.phase}: "
                + ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in each.tensors),
            )
            for each in self.needs
        ]
        return [
            "",
            f"  what the limit costs: {self.seconds / least:.2f} times all kept, which takes "
            f"{format_seconds(least)} or more",
            "  from which limit on, at the earliest (tensors alone, without what phases work in)",
            *align_columns(rows, ("<14", ">12", "<2", "<0")),
        ]

    def _beside_bound(self) -> list[str]:
        """The distance of the plan from the best that there may be."""
        if self.bound_seconds is None:
            return []
        above = (self.seconds / self.bound_seconds - 1) * 100
        said = f"{above:.1f} % above" if above >= 0 else f"{-above:.1f} % below"
        kind = "possible of its kind"
        if self.bands > 1 or self.batch_slices > 1:
            kind = f"possible without {'bands of rows' if self.bands > 1 else 'slabs'}"
        return [f"  bound      {format_seconds(self.bound_seconds)}: {said} the best {kind}"]

    def _beside_search(self) -> list[str]:
        """Say that a longer search may find a faster plan, where that is so."""
        if self.searched_seconds is None:
            return []
        seconds = self.searched_seconds
        return [
            f"  search     ended by planning_seconds={seconds:g}; with "
            f"{max(6 * seconds, 1):g} it may find a faster plan"
        ]

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"<NetworkPlan: {self.summary}>"  # fields go on for pages

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        return {
            _KEYS.get(each.name, each.name): _plain(getattr(self, each.name))
            for each in fields(self)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the plan that `to_json` described.

        Raises
        ------
        ValueError
            If that is no such plan.
        """
        try:
            names = {key: name for name, key in _KEYS.items()}
            known = {names.get(key, key): value for key, value in data.items()}
            known["rematerialized"] = tuple(data["remade"])
            known["anew"] = tuple(data.get("anew", ()))
            for name in ("on_host", "notes", "copied_skips"):
                known[name] = tuple(data.get(name, ()))
            known["again"] = tuple(RematEvent(*each) for each in data.get("again", ()))
            known["needs"] = tuple(map(MemoryNeed.from_json, data.get("needs", ())))
            known["reserved"] = tuple((at, nbytes) for at, nbytes in data.get("reserved", ()))
            known["live_ranges"] = tuple(
                (name, tuple(LiveRange(*stay) for stay in stays)) for name, stays in data["stays"]
            )
            known["fates"] = tuple(Fate(*each) for each in data["fates"])
            known["tasks"] = tuple(TaskFigures(*each) for each in data["tasks"])
            if known.get("by_order") is not None:
                throughout, mixed = known["by_order"]
                known["by_order"] = LayoutSeconds(tuple((o, s) for o, s in throughout), mixed)
            return cls(**known)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no plan of a network: {error}") from error


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _orders(by_order: LayoutSeconds) -> list[tuple[str, ...]]:
    """The seconds of computing in each memory order, as rows."""
    rows = [
        (f"{order.replace('_', '-')} throughout", format_seconds(seconds))
        for order, seconds in by_order.throughout
    ]
    head = ("memory order of maps, nothing cut", "predicted")
    return [head, *rows, ("each phase in its own, re-layouts free", format_seconds(by_order.each))]
