"""Engines checked for wrong results: which of cuDNN's plans may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ooc_cudnn.devices.cuda.cudnn_engines import is_faulty
from ooc_cudnn.devices.cuda.cudnn_forms import Form
from ooc_cudnn.devices.cuda.cudnn_plans import Executable, Plans
from ooc_cudnn.devices.cuda.frontend import engine_of
from ooc_cudnn.devices.engine_kinds import CheckedKind
from ooc_cudnn.devices.engine_verdicts import UncheckedEngine, Verdict, Verdicts
from ooc_cudnn.devices.engines import Engine
from ooc_cudnn.errors import CudnnError
from ooc_cudnn.operations.convolution.gradients import AnyConvolution

#: Ranks of plans: one whose engine could not be checked is taken where there is no other.
_FIRST, _LAST = 0, 1


class CheckedEngines:
    """Engines as they were found to be.

    Parameters
    ----------
    verdicts : callable
        Returns what is known; None where nothing is to be checked and nothing is barred.
    """

    def __init__(self, verdicts: Callable[[], Verdicts | None]) -> None:
        self._verdicts = verdicts

    @property
    def version(self) -> int | None:
        """It changes with what is known; None where nothing is ever to be checked."""
        verdicts = self._verdicts()
        return None if verdicts is None or verdicts.is_built_in else verdicts.version

    def rank(self, form: Form, failed: Collection[str]) -> Callable[[str], int | None]:
        """Return what ranks the plans of a form by their names, as `Plans.ranked_first` wants it.

        Those that failed are not taken either.
        """
        verdicts = self._verdicts()
        if verdicts is None:
            return lambda plan: None if plan in failed else _FIRST
        kind = CheckedKind.of(form.operation)

        def rank(plan: str) -> int | None:
            verdict = verdicts.of(kind, engine_of(plan)) or Verdict(True)
            if plan in failed or verdict.is_right is False:
                return None
            return _LAST if verdict.is_right is None else _FIRST

        return rank

    def bars(self, form: Form, engine: Engine) -> bool:
        """True if an engine was found to be wrong for a form."""
        verdicts = self._verdicts()
        if verdicts is None:
            return False
        verdict = verdicts.of(CheckedKind.of(form.operation), f"eng{engine.number}")
        return verdict is not None and verdict.is_right is False

    def unchecked(self, found: Executable, plans: Plans) -> UncheckedEngine | None:
        """Return what is to be checked of a plan before it is used; None if nothing is.

        After a search, that is only what is compiled at run time: the search leaves it out.
        """
        verdicts = self._verdicts()
        if verdicts is None or verdicts.is_built_in:
            return None
        operation = found.form.operation
        kind, engine = CheckedKind.of(operation), engine_of(found.engine)
        if verdicts.of(kind, engine) is not None:
            return None
        if verdicts.is_searched and not plans.is_compiled(found):
            return None
        return UncheckedEngine(kind, engine, operation, plans.engine_of(found))

    def take(self, unchecked: UncheckedEngine, verdict: Verdict) -> None:
        """Take a verdict."""
        verdicts = self._verdicts()
        assert verdicts is not None
        verdicts.add(unchecked.kind, unchecked.engine, verdict)


def every(plans: Plans, kind: CheckedKind, problem: AnyConvolution) -> list[UncheckedEngine]:
    """Return every engine that may compute a problem as it is: `EngineProvider`."""
    return [
        UncheckedEngine(kind, f"eng{number}", problem, Engine(number))
        for number in plans.not_compiled(Form(problem))
        if not is_faulty(f"eng{number}", problem)
    ]


def build_for(
    plans: Plans, unchecked: UncheckedEngine, problem: AnyConvolution
) -> Executable | None:
    """Return the plan of an engine for a small problem; None where it computes no such one.

    Set as it is to be used, or by its own defaults; or as the heuristics rank it, unless its
    defaults are what is asked for.
    """
    form, default = Form(problem), Engine(int(unchecked.engine.removeprefix("eng")))
    for engine in dict.fromkeys((*_as_asked(unchecked), default)):
        executable = plans.of_engine(form, engine)
        if executable is not None or unchecked.asked == default:
            return executable
    try:
        return plans.ranked_first(
            form, None, lambda plan: _FIRST if engine_of(plan) == unchecked.engine else None
        )
    except CudnnError:
        return None


def _as_asked(unchecked: UncheckedEngine) -> Iterator[Engine]:
    """The engine as it is to be used, where that can be said: as it is, not widened."""
    asked = unchecked.asked
    if asked is not None:
        named = {name: at for name, at in asked.knobs.items() if name != "NOT_SET"}
        yield Engine(asked.number, named)
