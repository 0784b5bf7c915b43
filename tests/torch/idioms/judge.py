"""Runs an idiom in eager and behind a door (a limit, TorchDynamo), and compares what is seen.

An idiom passes if all that can be seen after each call is the same, or if the door refuses it with
a sentence that names the line and what to do, before the call has changed or printed anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import random
import re
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

import ooc_cudnn.torch as ooc
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.torch.errors import UnsupportedModelError
from tests.torch.idioms import process
from tests.torch.idioms.seen import Sight, differences

EQUAL, REFUSED, DIFFERENT = "equal", "refused", "DIFFERENT"
#: Of what TorchDynamo captures whole since that version of PyTorch.
EQUAL_SINCE_2_13 = EQUAL if torch.__version__ >= "2.13" else REFUSED
AMPLE = 2**30
#: Warnings of an idiom begin so; others are PyTorch's or the library's.
OWN_WARNING = "idiom: "
#: A line of the user's file: `File ".../values.py", line 12` or `values.py:12`.
LINE = re.compile(r"\w+\.py(:|\", line )\d+")
#: Words that say what to do. A sentence without one leaves the user with a fact.
ADVICE = re.compile(
    r"\b(add|call|change|compute|convert|give|hook|hooks|keep|let|limit|make|makes|move|pass|put|"
    r"release|remove|replace|return|set|take|use|wrap|write)\b",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Idiom:
    """Something that people write.

    Attributes
    ----------
    name : str
        What it is.
    make : function
        Makes the model.
    steps : function
        What is done with it, given a `Run`.
    expected : str
        EQUAL if TorchDynamo captures it whole (``fullgraph=True``, torch 2.13) and computes what
        eager does, or if it is `beyond` that. REFUSED if not: then a refusal passes, too.
    though : str
        Why it may be refused though TorchDynamo captures it whole and computes what eager does.
    beyond : str
        REFUSED or DIFFERENT: what TorchDynamo makes of it, though it must be EQUAL under a limit.
    computed_in : dtype, optional
        In which some of it is computed, where outputs have a finer one: they are off by its.
    """

    name: str
    make: Callable[[], nn.Module]
    steps: Callable[[Run], None]
    expected: str = EQUAL
    though: str = ""
    beyond: str = ""
    computed_in: torch.dtype | None = None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of an idiom behind a door, and why."""

    kind: str
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Door:
    """A way in which a model is run: what is done to it first, and how that way refuses."""

    enter: Callable[[nn.Module], object]
    refusals: tuple = (UnsupportedModelError,)
    must_advise: bool = True


class Refused(BaseException):
    """A call was refused. No `Exception`, so that an idiom that catches those does not take it."""

    def __init__(self, error, changed):
        self.error, self.changed, self.by_limit = error, changed, False
        super().__init__(str(error))


class Run:
    """One run of an idiom's steps: calls the model, and notes what is seen after each call."""

    def __init__(self, model, printed, door=None):
        self.model, self.printed, self.door = model, printed, door
        self.notes, self.inputs = [], []

    def __call__(self, *args, values=True, loosely=False, **kwargs):
        """Call the model; note its outputs and all else. Returns the outputs.

        With ``values=False`` what is random has its shapes and dtypes compared, and no numbers.
        """
        self.inputs = [each for each in pytree.tree_leaves((args, kwargs)) if _is_data(each)]
        outputs = self._guarded(lambda: self.model(*args, **kwargs))
        self._note("call", outputs, values=values)
        return outputs

    def backward(self, loss=None, *, values=True, **how):
        """Go backward from a loss, and note all that is there then."""
        self._guarded(lambda: loss.backward(**how))
        self._note("backward", None, values=values)

    def gradients(self, of, to, **how):
        """``torch.autograd.grad``; its result is noted as outputs are."""
        found = self._guarded(lambda: torch.autograd.grad(of, to, **how))
        self._note("gradients", found)
        return found

    def fails(self, what):
        """Do what raises an error in eager: it must raise one of the same kind here, too."""
        try:
            self._guarded(what)
        except (Refused, PlanInfeasibleError):
            raise
        except Exception as error:
            self._note("error", error)
        else:
            self._note("no error", None)

    def note(self, value, *, values=True):
        """Note a value of the idiom's own: a global, an attribute of a class, what hooks saw."""
        self._note("noted", value, values=values)

    def enter(self, model):
        """Go on with another model, behind the same door."""
        self.model = model
        if self.door is not None:
            try:
                self._guarded(lambda: self.door.enter(model))
            except Refused as error:
                error.by_limit = True  # which knows parts by their names, and no lines
                raise

    def _guarded(self, what):
        if self.door is None:
            return what()
        before, printed = self._sight(None).found, self.printed.tell()
        try:
            return what()
        except self.door.refusals as error:
            changed = differences(self._sight(None).found, before)
            if self.printed.tell() != printed:
                changed.append("something was printed")
            raise Refused(error, changed) from None

    def _sight(self, outputs, *, values=True):
        sight = Sight(values=values)
        sight.look("output", outputs)
        sight.module("", self.model)
        for at, each in enumerate(self.inputs):
            sight.look(f"input {at}", each)
        return sight

    def _note(self, what, outputs, *, values=True):
        if isinstance(outputs, Exception):
            sight = self._sight(None, values=values)
            # how far backward came before its error is not compared
            for place in [each for each in sight.found if each.endswith(".grad")]:
                del sight.found[place]
            sight.found["raised"] = _Raised(type(outputs))
        else:
            sight = self._sight(outputs, values=values)
            sight.note_overlaps("output")
        self.notes.append((f"{what} {len(self.notes) + 1}", sight.found))


class _Raised:
    """An error's type; equal to those that an ``except`` for one of the two would catch."""

    def __init__(self, kind):
        self.kind = kind

    def __eq__(self, other):
        if not isinstance(other, _Raised):
            return False
        kinds = {self.kind, other.kind}
        related = any(a is not b and issubclass(a, b) for a in kinds for b in kinds)
        return len(kinds) == 1 or related

    __hash__ = None

    def __repr__(self):
        return f"raised {self.kind.__name__}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run left: notes, prints, warnings, how it ended, what it changed in the process."""

    notes: list
    printed: str
    warned: list
    ended: BaseException | None
    left: list


def outcome(idiom, door=None):
    """Run an idiom from the same seeds on, behind a door or as PyTorch does."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    ended, printed = None, io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        warnings.catch_warnings(record=True) as warned,
        process.watched() as left,
    ):
        warnings.simplefilter("always")
        run = Run(idiom.make(), printed, door)
        try:
            run.enter(run.model)
            idiom.steps(run)
        except Refused as error:
            ended = error
        except Exception as error:
            # a refusal where not the run, but a function of PyTorch's, calls the model
            refused = door is not None and isinstance(error, door.refusals)
            ended = Refused(error, []) if refused else error
    own = sorted({str(w.message) for w in warned if str(w.message).startswith(OWN_WARNING)})
    return Outcome(run.notes, printed.getvalue(), own, ended, left)


@functools.lru_cache(maxsize=1)
def in_eager(idiom):
    """What a run as PyTorch does it leaves.

    Raises
    ------
    AssertionError
        If it fails.
    """
    found = outcome(idiom)
    if found.ended is not None:
        raise AssertionError(f"{idiom.name} fails in eager") from found.ended
    return found


def judge(idiom, door):
    """What comes of an idiom behind a door. PlanInfeasibleError passes on."""
    ours, eager = outcome(idiom, door), in_eager(idiom)
    if isinstance(ours.ended, PlanInfeasibleError):
        raise ours.ended
    refused = isinstance(ours.ended, Refused)
    for (place, found), (_, expected) in zip(ours.notes, eager.notes, strict=False):
        if said := differences(found, expected, idiom.computed_in):
            return Verdict(DIFFERENT, f"{place}: {'; '.join(said[:3])}")
    if ours.left != eager.left:
        return Verdict(DIFFERENT, f"left changed in the process: {', '.join(ours.left)}")
    if refused:
        return _of_refusal(ours.ended, door)
    if ours.ended is not None:
        at = len(ours.notes) + 1
        return Verdict(DIFFERENT, f"step {at}: {type(ours.ended).__name__}: {ours.ended}"[:300])
    if len(ours.notes) != len(eager.notes):
        return Verdict(DIFFERENT, f"{len(ours.notes)} steps, {len(eager.notes)} in eager")
    if ours.printed != eager.printed:
        return Verdict(DIFFERENT, f"printed {ours.printed!r}, {eager.printed!r} in eager")
    if ours.warned != eager.warned:
        return Verdict(DIFFERENT, f"warned of {ours.warned}, of {eager.warned} in eager")
    return Verdict(EQUAL)


def _of_refusal(refused, door):
    said = " ".join(str(refused.error).split())
    if refused.changed:
        return Verdict(DIFFERENT, f"refused late: {'; '.join(refused.changed[:3])} ({said[:150]})")
    if door.must_advise and not refused.by_limit and not LINE.search(said):
        return Verdict(DIFFERENT, f"refused without a line: {said[:250]}")
    if door.must_advise and not ADVICE.search(LINE.sub("", said)):
        return Verdict(DIFFERENT, f"refused without advice: {said[:250]}")
    return Verdict(REFUSED, said)


def passes(idiom, verdict):
    """Whether that is what the table asks for: equal, or refused where that is allowed."""
    return verdict.kind == EQUAL or verdict.kind == idiom.expected == REFUSED


def as_expected(idiom, by_dynamo):
    """Whether TorchDynamo's verdict is what the table says of it."""
    if idiom.beyond:
        return idiom.expected == EQUAL and by_dynamo.kind == idiom.beyond
    if idiom.though:
        return idiom.expected == REFUSED and by_dynamo.kind == EQUAL
    return (by_dynamo.kind == EQUAL) == (idiom.expected == EQUAL)


def counted(idioms):
    """How many idioms are on either side of what TorchDynamo captures, in a sentence."""
    refused = sum(bool(idiom.though) for idiom in idioms)
    beyond = sum(bool(idiom.beyond) for idiom in idioms)
    return (
        f"{refused} may be refused though TorchDynamo captures them whole, {beyond} must be equal "
        "though it does not"
    )


def under(idiom, memory_limit):
    """An idiom under a limit. PlanInfeasibleError passes on."""
    return judge(idiom, Door(lambda model: ooc.limit(model, memory_limit)))


def under_an_ample(idiom):
    """An idiom under a limit that has room for all of it.

    Returns
    -------
    Verdict, int
        What came of it; the limit in bytes.
    """
    try:
        return under(idiom, AMPLE), AMPLE
    except PlanInfeasibleError as error:
        return Verdict(DIFFERENT, f"under {AMPLE} bytes: {error}"), AMPLE


def under_the_least(idiom):
    """An idiom under the least limit that there are plans for, found from refusals of less.

    Returns
    -------
    Verdict, int
        What came of it; the limit in bytes.
    """
    least = 1
    while True:
        try:
            return under(idiom, least), least
        except PlanInfeasibleError as error:
            if error.smallest_bytes is None or error.smallest_bytes <= least:
                return Verdict(DIFFERENT, f"under {least} bytes: {error}"), least
            least = error.smallest_bytes


def by_dynamo(idiom):
    """An idiom behind ``torch.compile`` that runs the graph as it stands: which may be expected."""
    import torch._dynamo as dynamo

    def enter(model):
        model.compile(backend="eager", fullgraph=True)

    dynamo.reset()
    refusals = (dynamo.exc.TorchDynamoException, torch._dynamo.exc.Unsupported)
    with dynamo.config.patch(skip_nnmodule_hook_guards=False, allow_rnn=True):
        return judge(idiom, Door(enter, refusals, must_advise=False))


def _is_data(value):
    return isinstance(value, torch.Tensor | np.ndarray)
