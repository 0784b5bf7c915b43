"""Run one drawn program by PyTorch and under a limit, and say everything that differs."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import re
import sys
import tempfile
import traceback
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.torch.errors import HiddenGradientError, LateChangeError, UnsupportedModelError
from tests.fuzz.compare_modules import Judge, Seen, roughness
from tests.support.torch_state import changed_state, global_state, mend_functorch

#: Limits that are tried one after another, where several calls each have their least.
MOST_LIMITS = 12
#: Of a judge's runs on numbers that are moved, and by how many units of rounding.
VARIED_RUNS, UNITS = 5, 4
TAIL = """

if __name__ == "__main__":  # what differs: PyTorch first, then this library
    import ooc_cudnn
    import ooc_cudnn.torch as ooc
    from torch.utils import _pytree as pytree

    ooc_cudnn.settings(device="{device}", machine="{device}", progress=False)
    torch.set_printoptions(threshold=8, edgeitems=1)
    runs = []
    for model in (make(), ooc.limit(make(), {limit})):
        saw = {{"use": use(model), **dict(model.named_parameters()), **dict(model.named_buffers())}}
        saw |= {{f"{{name}}.grad": each.grad for name, each in model.named_parameters()}}
        for path, module in model.named_modules():
            saw |= {{(path, name): each for name, each in vars(module).items() if name[0] != "_"}}
        leaves = pytree.tree_flatten_with_path(saw, is_leaf=lambda each: each is None)[0]
        runs.append({{pytree.keystr(path): each for path, each in leaves}})
    for path in {{**runs[0], **runs[1]}}:
        one, other = (run.get(path, "nothing") for run in runs)
        same = one is other or type(one) is not torch.Tensor and repr(one) == repr(other)
        if type(one) is type(other) is torch.Tensor and one.shape == other.shape:
            same = torch.allclose(one.double(), other.double(), 1e-4, 1e-5, True)
        if not same and "forward" not in path:
            print(path, one, other, sep="\\n")
"""


@dataclass
class Verdict:
    """What came of a program: findings, a line each; or why it was refused.

    `limit` is the last one that it ran under.
    """

    findings: list = field(default_factory=list)
    refused: str = ""
    limit: int = 0
    calls: int = 0


class RefusedError(Exception):
    """The library refused a call; `changed` says what it changed before."""

    def __init__(self, reason, changed):
        super().__init__(reason)
        self.reason, self.changed = reason, changed


class Watched:
    """A model as `use` sees it; of a call that is refused it says whether anything changed."""

    def __init__(self, model):
        self.__dict__["model"] = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __setattr__(self, name, value):
        setattr(self.model, name, value)

    def __deepcopy__(self, memo):
        return Watched(copy.deepcopy(self.model, memo))

    def __call__(self, *args, **kwargs):
        before, state, forward = self._seen(args, kwargs), global_state(), self._forward()
        try:
            return self.model(*args, **kwargs)
        except (UnsupportedModelError, PlanInfeasibleError) as error:
            changed = Judge(before, torch.float64, Seen, list).differences(self._seen(args, kwargs))
            changed += changed_state(state)
            if self._forward() is not forward:
                changed.append("forward is another")
            if isinstance(error, PlanInfeasibleError) and not changed:
                raise
            raise RefusedError(error, changed) from error

    def _seen(self, args, kwargs):
        seen = Seen()
        seen.add("arguments", (args, kwargs))
        seen.add_model(self.model)
        return seen

    def _forward(self):
        return vars(self.model).get("forward")


numbers = itertools.count()


@contextmanager
def imported(source):
    """A program as a module of Python in a file, so that errors can name its lines."""
    name = f"drawn_program_{next(numbers)}"
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            del sys.modules[name]
            vars(module).clear()  # what it keeps in lists of its own: TorchDynamo keeps its code


@contextmanager
def right_batch_norm():
    """PyTorch's batch norm with gradients laid in order: on the CPU, of one image, others are read
    as if they were."""
    functional = torch.nn.functional
    before = {name: getattr(functional, name) for name in ("batch_norm", "instance_norm")}

    def mended(function):
        def run(*args, **kwargs):
            y = function(*args, **kwargs)
            if y.requires_grad:
                y.register_hook(lambda gradient: gradient.contiguous())
            return y

        return run

    try:
        for name, function in before.items():
            setattr(functional, name, mended(function))
        yield
    finally:
        for name, function in before.items():
            setattr(functional, name, function)


@contextmanager
def default_dtype(dtype):
    """The dtype of what names none (``torch.eye(3)``)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def observe(source, limit=None, replaced=()):
    """Run a program; what it saw. Its header's lines are `replaced` for a judge."""
    for old, new in replaced:
        source = source.replace(old, new, 1)
    judge = right_batch_norm() if limit is None else nullcontext()
    with imported(source) as program, warnings.catch_warnings(), judge:
        warnings.simplefilter("ignore")
        torch.manual_seed(0)  # what another program has drawn is none of this one's
        model = program.make()
        if limit is not None:
            ooc.limit(model, limit)
        seen = Seen()
        made = program.use(model if limit is None else Watched(model))
        for name, value in made.items():
            seen.add(str(name), value)
        seen.add_model(model)
    return seen


def judge_of(source):
    """What compares with PyTorch's own run of a program."""
    unit = computed_in(source)
    stored = f"STORED = DTYPE = torch.{dtype_of(source)}"

    def exact():
        float64 = f"STORED, DTYPE = torch.{dtype_of(source)}, torch.float64"
        low = ("AUTOCAST, VARIED = torch.bfloat16, True", "AUTOCAST, VARIED = torch.float64, False")
        other = (low[0].replace("bfloat16", "float16"), low[1])
        with default_dtype(torch.float64):
            try:
                return observe(source, replaced=[(stored, float64), low, other])
            except RuntimeError:  # a kernel of float32 may take what that of float64 refuses
                return Seen()

    def varied():
        share = UNITS * roughness(unit)
        return [
            observe(source, replaced=[(", True, None\n", f", True, ({share}, {1000 * seed})\n")])
            for seed in range(1, VARIED_RUNS + 1)
        ]

    return Judge(observe(source), unit, exact, varied)


#: The lines of a program's header that have its tensors on a device.
PLACED = (
    ("dtype=torch.float64) * scale", 'dtype=torch.float64, device="cpu") * scale'),
    ("varied(drawn.to(STORED).to(DTYPE))", 'varied(drawn.to(STORED).to(DTYPE).to("{device}"))'),
)


def raises_there(source, device, error):
    """True if PyTorch raises the same on a device; the judge runs on the CPU, which may not."""
    if device == "host":
        return False
    placed = [(old, new.format(device=device)) for old, new in PLACED]
    try:
        with torch.device(device):
            observe(source, replaced=placed)
    except Exception as other:
        return type(other) is type(error) and str(other) == str(error)
    return False


def otherwise(source):
    """What PyTorch sees by other kernels, on numbers that are each moved by a rounding."""
    share = roughness(computed_in(source))
    moved = [(", True, None\n", f", True, ({share}, 77)\n")]
    enabled = torch.backends.mkldnn.enabled
    torch._C._set_mkldnn_enabled(False)
    try:
        return observe(source, replaced=moved)
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def dtype_of(source):
    return re.search(r"^STORED = DTYPE = torch\.(\w+)$", source, re.MULTILINE)[1]


def computed_in(source):
    """The dtype of the fewest bits that a program computes in."""
    kinds, (head, body) = [dtype_of(source)], source.split("def set_where", 1)
    if "(LOW)" in body:
        kinds.append(re.search(r"^LOW, .* = torch\.(\w+)", head, re.MULTILINE)[1])
    if "autocast(" in body:
        kinds.append("bfloat16")
    if "ardsigmoid" in body:  # PyTorch's slope is a sixth of single precision in float64, too
        kinds.append("float32")
    return max((getattr(torch, kind) for kind in kinds), key=roughness)


def run_module(program, device="host", *, eager=False):
    """Run a program under its limit beside PyTorch; with `eager`, PyTorch otherwise."""
    judge = judge_of(program.source)
    verdict = Verdict(limit=1 if program.limit == "least" else program.limit)
    if eager:
        verdict.findings, verdict.calls = judge.differences(otherwise(program.source)), 1
        return verdict
    arena, state = get_device(device).arena, global_state()
    with ooc_cudnn.settings(device=device, machine="host" if device == "host" else None,
                            progress=False, allow_tf32=False):  # fmt: skip
        for _ in range(MOST_LIMITS):
            verdict.calls += 1
            arena.release_block()  # a step before that waits for its backward leaves the device
            arena.reset_peak()
            before = arena.peak_bytes  # what a program before holds until it is collected
            try:
                found = observe(program.source, verdict.limit)
            except PlanInfeasibleError as error:
                if error.smallest_bytes is None:
                    verdict.refused = reason(error)
                    break
                if error.smallest_bytes <= verdict.limit:
                    verdict.findings.append(f"says that {error.smallest_bytes} bytes do: {error}")
                    break
                verdict.limit = error.smallest_bytes
                continue
            except RefusedError as error:
                verdict.refused = reason(error.reason)
                verdict.findings += [f"refused, and changed: {each}" for each in error.changed]
                break
            except (HiddenGradientError, LateChangeError) as error:  # in backward
                verdict.refused = reason(error)
                break
            except Exception as error:  # whatever PyTorch does not raise is a finding
                if not raises_there(program.source, device, error):
                    verdict.findings.append(raised(error))
                break
            used = arena.peak_bytes - before
            if used > verdict.limit:
                verdict.findings.append(f"used {used} bytes under {verdict.limit}")
            verdict.findings += judge.differences(found)
            break
        else:
            verdict.findings.append(f"{MOST_LIMITS} limits, each the least, were too little")
    verdict.findings += changed_state(state)
    mend_functorch()
    return verdict


def reason(error):
    """Why a program was refused, without what differs from program to program."""
    text = re.split(r'\n|;? File "', str(error))[0]
    text = re.sub(r"\b[a-z_]+\d+\b|\d+", "N", text)
    return f"{type(error).__name__}: {text[:140]}"


def raised(error):
    """An exception in a line, with where it was raised and the program's line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"line {f.lineno}: {f.line}" for f in frames if "drawn_program" in f.filename]
    ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "ooc_cudnn/" in f.filename]
    text = str(error).replace("\n", " ")
    where = "; ".join([" ".join(ours[-3:]), *own[-1:]])
    return f"raises {type(error).__name__}: {text[:300]} (at {where})"


def reproduction(program, verdict, device="host"):
    """A file that shows what differs, by itself."""
    tail = TAIL.format(device=device, limit=verdict.limit)
    said = f"# {program.function} under {verdict.limit} bytes: {', '.join(program.words)}\n"
    return f"{said}{program.source}{tail}"
