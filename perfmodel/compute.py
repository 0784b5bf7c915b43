"""Cost of a computation on the device, from the features of its work (`work`).

Section 4.2 of the paper: convolutions are linear in their arithmetic, counted with cY rounded up
to a multiple of 32 because the kernels compute 32 output channels at a time. Everything else here
(bias, activation, re-laying a piece) is limited by device memory and linear in the bytes it reads
and writes. Finer features of either add terms to the line. Which kernel runs is part of the key:
one line for each kind, dtype or precision, and layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter

from perfmodel.cached import cached_property

from .linear import Line
from .missing_line import MissingLineError
from .record import Record, Table, number, text
from .work import Work

#: Work of one size, and its measured seconds over those of the line.
Tried = tuple[Work, float]


@dataclass(frozen=True)
class ComputeModel(Record):
    """One line for each kind of computation.

    Parameters
    ----------
    lines : mapping from key to Line
        Over flops where the key starts with "convolution", over device bytes elsewhere.
    corrections : mapping from `Work.kind`, or `Work.family`, to float
        Factors for the seconds of what was tried on the device. They hold for one process and are
        not stored.
    tried : mapping from `Work.kind` to tuple of (Work, float)
        The same for single sizes: each stands for those that are nearest to it.
    launching : mapping from key, or `Work.kind`, to float
        Seconds of the host to launch such work: one of cuDNN's engines takes it as long as many
        passes do.

    Examples
    --------
    >>> model = ComputeModel({"convolution/tf32/channels_last": Line(2e-12, 1e-5)})
    >>> model.seconds(Work("convolution/tf32/channels_last", flops=1e9, device_bytes=1e6))
    0.00201
    """

    lines: Mapping[str, Line]
    corrections: Mapping[str, float] = field(default_factory=dict)
    launching: Mapping[str, float] = field(default_factory=dict)
    tried: Mapping[str, tuple[Tried, ...]] = field(default_factory=dict)

    optional = ("launching",)
    unstored = ("corrections", "tried")

    def __post_init__(self) -> None:
        for key in (*self.lines, *self.launching):
            text("key", key)
        launching = {
            key: number(f"launching[{key!r}]", held) for key, held in self.launching.items()
        }
        object.__setattr__(self, "launching", Table(launching))
        object.__setattr__(self, "lines", Table(self.lines))
        object.__setattr__(self, "corrections", Table(self.corrections))
        object.__setattr__(self, "tried", Table(self.tried))

    def corrected(
        self,
        corrections: Mapping[str, float],
        launching: Mapping[str, float] | None = None,
        tried: Iterable[Tried] = (),
    ) -> ComputeModel:
        """Return the model with the seconds of some problems multiplied.

        Parameters
        ----------
        corrections : mapping from `Work.kind` or `Work.family` to float
            Measured seconds over those of the line: for all work of that kind, and for what is of
            that family, but of no kind that was tried.
        launching : mapping from `Work.kind` or `Work.family` to float, optional
            Seconds of the host to launch work of that kind, which counts where it is corrected.
        tried : iterable of (Work, float), optional
            The same for single sizes. All work of their kinds has the factor of the nearest one
            (`Work.distance`), whatever `corrections` say.
        """
        of_kind = dict(self.tried)
        for work, factor in tried:
            of_kind[work.kind] = (*of_kind.get(work.kind, ()), (work, factor))
        return replace(
            self,
            corrections={**self.corrections, **corrections},
            launching={**self.launching, **(launching or {})},
            tried=of_kind,
        )

    @property
    def is_corrected(self) -> bool:
        """True if anything was tried."""
        return bool(self.corrections or self.tried)

    def knows(self, work: Work) -> bool:
        """True if such work, of any size, was tried."""
        return work.kind in self.tried or work.kind in self.corrections

    def nearest_key(self, key: str) -> str:
        """Return the known key that stands in for `key`: itself where it is known.

        Otherwise the one that shares the most leading parts (between slashes), at least one; of
        several such, one that has no other parts; then the one with the most equal parts
        anywhere; then the slowest, so that a guess errs towards caution; then the first by name.

        Raises
        ------
        MissingLineError
            If no known key shares the first part.

        Examples
        --------
        >>> fast, slow = Line(1e-12, 0.0), Line(3e-12, 0.0)
        >>> model = ComputeModel({"convolution/tf32/channels_last": fast,
        ...                       "convolution/float64/channels_first": slow})
        >>> model.nearest_key("convolution/float64/channels_last")
        'convolution/float64/channels_first'
        >>> model.nearest_key("convolution/float8/channels_last")
        'convolution/tf32/channels_last'
        """
        if key not in self._nearest:
            self._nearest[key] = key if key in self.lines else self._nearest_to(key)
        return self._nearest[key]

    @cached_property
    def _nearest(self) -> dict[str, str]:
        """Keys that stand in for those that were asked for."""
        return {}

    def _nearest_to(self, key: str) -> str:
        parts = key.split("/")

        def nearness(known: str) -> tuple[int, bool, int, float]:
            held = known.split("/")
            equal = [a == b for a, b in zip(parts, held, strict=False)]
            leading = [*equal, False].index(False)
            return leading, leading == len(held), sum(equal), self.lines[known].alpha

        best = max(sorted(self.lines), key=nearness, default=None)
        if best is None or nearness(best)[0] == 0:
            kinds = dict.fromkeys("/".join(known.split("/")[:2]) for known in sorted(self.lines))
            raise MissingLineError(f"{key!r}, nor for any of its kind", kinds)
        return best

    def seconds(self, work: Work) -> float:
        """Return the predicted seconds of `work`, by the line of its nearest key."""
        # t = alpha * flops + beta, or alpha * bytes + beta, and the further terms of the line
        seconds = self._by_line(work)
        return seconds * self._factor(work) if self.is_corrected else seconds

    def least_seconds(self, work: Work) -> float:
        """Return what `work` takes at the least, in however many pieces.

        By the best factor of any size of its kind, and without waiting for a last wave of tiles.
        """
        return self.at_best.seconds(work.in_full_waves)

    @cached_property
    def at_best(self) -> ComputeModel:
        """The model by which each kind is as fast as the fastest of its sizes that were tried.

        Examples
        --------
        >>> small, large = (Work("pointwise", 0.0, nbytes) for nbytes in (1.0, 4.0))
        >>> model = ComputeModel({"pointwise": Line(1.0, 0.0)})
        >>> model = model.corrected({}, tried=[(small, 2.0), (large, 5.0)])
        >>> model.seconds(large), model.at_best.seconds(large)
        (20.0, 8.0)
        """
        if not self.bends:
            return self
        best = {kind: (min(sizes, key=itemgetter(1)),) for kind, sizes in self.tried.items()}
        return replace(self, tried=best)

    def _by_line(self, work: Work) -> float:
        return self.lines[self.nearest_key(work.key)].seconds(work.amount, work.features)

    def _factor(self, work: Work) -> float:
        """Factor of the line's seconds."""
        kind = work.kind
        sizes = self.tried.get(kind, ())
        if len(sizes) > 1:
            asked = kind, work.amount, work.image_sites
            if asked not in self._factors:
                self._factors[asked] = work.nearest(sizes, itemgetter(0))[1]
            return self._factors[asked]
        if sizes:
            return sizes[0][1]
        if kind in self.corrections:
            return self.corrections[kind]
        return self.corrections.get(work.family, 1.0)

    @cached_property
    def _factors(self) -> dict[tuple[str, float, float], float]:
        """Those of sizes that were asked for."""
        return {}

    @cached_property
    def bends(self) -> bool:
        """True if seconds of a kind are not linear in its size: several sizes were tried."""
        return any(len(sizes) > 1 for sizes in self.tried.values())

    def launching_seconds(self, work: Work, otherwise: float) -> float:
        """Return what the host takes to launch `work`: `otherwise`, where nothing is known of it.

        Examples
        --------
        >>> model = ComputeModel({"pointwise": Line(1e-12, 0.0)}, launching={"pointwise": 2e-5})
        >>> model.launching_seconds(Work("pointwise/float32", 0.0, device_bytes=1e6), 3e-5)
        2e-05
        """
        if self.is_corrected:
            for tried in (work.kind, work.family):
                if tried in self.launching:
                    return self.launching[tried]
        return self.launching.get(self.nearest_key(work.key), otherwise)
