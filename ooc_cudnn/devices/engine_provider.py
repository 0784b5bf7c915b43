"""The contract of a provider of cuDNN's engines: candidates for a convolution, and their checks."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from ooc_cudnn.devices.engines import Engine
from ooc_cudnn.operations.convolution.gradients import AnyConvolution

if TYPE_CHECKING:  # these need devices, which have engines
    from ooc_cudnn.devices.engine_kinds import CheckedKind
    from ooc_cudnn.devices.engine_verdicts import UncheckedEngine, Verdict


class EngineProvider(Protocol):
    """The engines that a device can choose from for a convolution."""

    def chosen(self, operation: AnyConvolution, budget_bytes: int | None = None) -> Engine | None:
        """Return what runs an operation where nothing was measured; None if it is no engine.

        In so much workspace, or in as much as it wants.
        """

    def running(
        self, operation: AnyConvolution, workspace_bytes: int
    ) -> tuple[Engine, bool] | None:
        """Return what runs an operation in so much workspace, and whether it was measured.

        None if it is no engine, or one that cannot be asked for by its number.
        """

    def candidates(
        self, operation: AnyConvolution, *, every: bool, compiled: bool
    ) -> Iterator[Engine]:
        """Yield what may run it and is not known to be wrong, the heuristics' choice first.

        Every engine there is, or those that the heuristics rank; also those that are compiled at
        run time, which takes a second each, or of these no other than the heuristics' choice.
        """

    def forced(
        self, operation: AnyConvolution, engine: Engine
    ) -> AbstractContextManager[tuple[int, str] | None]:
        """Have it run by an engine meanwhile: the workspace and the name of that.

        None if the engine cannot, or must not, run it. A launch raises `EngineFailedError` where
        it turns out not to.
        """

    def forget_built(self) -> None:
        """Let go of what was built to be measured: each holds code on the device."""

    @property
    def known_by(self) -> Hashable:
        """Key that says which engines are unchecked; None where none ever is."""

    def unchecked(self, operation: AnyConvolution, workspace_bytes: int) -> UncheckedEngine | None:
        """Return the engine that would run an operation in so much workspace, if it has no verdict.

        None where it has one, or needs none, or no engine would.
        """

    def trying(
        self, unchecked: UncheckedEngine, problem: AnyConvolution
    ) -> AbstractContextManager[tuple[int, str] | None]:
        """Have a small problem run by an unchecked engine meanwhile, as `forced` does."""

    def every(self, kind: CheckedKind, problem: AnyConvolution) -> list[UncheckedEngine]:
        """Return every engine that may compute a small problem of a kind, each once.

        Not those that are known to be wrong, nor those that are compiled at run time.
        """

    def judge(self, unchecked: UncheckedEngine, verdict: Verdict) -> None:
        """Take a verdict. An engine that is wrong is barred, and that is said once."""

    def keep_verdicts(self) -> None:
        """Store the verdicts."""
