"""Errors of a failed capture: TorchDynamo's reason, the user's line, and a remedy."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ooc_cudnn.errors import OocError
from ooc_cudnn.torch.capture.hints import hint, is_of_dtypes
from ooc_cudnn.torch.capture.refusals import users_line
from ooc_cudnn.torch.errors import UnsupportedModelError, error_like
from ooc_cudnn.torch.places import NOT_THE_USERS, dtype_name
from ooc_cudnn.torch.tracing.scalar_inputs import BY_INDEX

#: What PyTorch and models raise of an argument that they do not take.
_OF_INPUTS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError, KeyError)
#: In what PyTorch says of tensors without data: a tensor with data might do.
_WITHOUT_DATA = re.compile(
    r"(?i)numpy\(\)|data pointer|storage|data-dependent|fake ?tensor|subcla|allocated|cannot view a"
)
_OF_DATA = re.compile(
    r"(?i)data.dependent|\.item\(\)|dynamic shape operator|DataDependent"
    r"|list with non-scalar tensor"
)
#: In what Dynamo says where the model itself raised an error.
_RAISED = re.compile(
    r"(?i)observed exception|failed to bind|fake tensors? call|with fake tensors|assert"
)
_OF_BACKWARD = re.compile(r"(?i)module.level backwards? hooks")
#: With what TorchDynamo goes on, behind what an error says.
_STACK = "\n\nfrom user code:"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in .*$')
#: What to do about all that has no remedy of its own.
_REMEDY = "take it out of forward, or limit the parts before and after it"
#: And about a backward hook of a layer.
_OF_AN_OUTPUT = (
    "in forward write y.register_hook(lambda gradient: ...) on its output, or limit the parts "
    "before and after it"
)
#: What is known by Dynamo's words: what forward does, and what to do.
_KNOWN = (
    (
        re.compile(r"numpy_random_stream"),
        "forward draws of numpy.random, whose stream TorchDynamo does not follow (torch.rand will "
        "do)",
        _REMEDY,
    ),
    (
        re.compile(r"HOP: [\w-]+ side effect\s+Higher Order Operator: \S*checkpoint"),
        "a checkpoint calls what sets an attribute or a buffer, or changes a list (so do counters "
        "and spectral norm), and PyTorch does so again in backward",
        "leave the checkpoint out, for the library computes again by itself what it does not keep; "
        "or set it behind the checkpoint",
    ),
    (
        re.compile(r"(?s)HOP: [\w-]+ side effect\s+(Explanation|.*ctx\.hook_fn\(grad\))"),
        "a hook of a tensor changes something outside (a list, an attribute), and a plan runs it "
        "without Python",
        "return the gradient and do no more; note y.detach() in forward. To note a gradient, limit "
        "the parts before and after y, and hook what goes from one to the other",
    ),
    (
        re.compile(r"HOP: [\w-]+ side effect\s+Higher Order Operator: autograd\.Function"),
        "forward or backward of an autograd.Function changes something outside (a list, an "
        "attribute), and a plan runs it without Python",
        "let it compute alone, and note what is to be noted in forward of the model",
    ),
    (
        re.compile(r"(?i)cannot view a tensor with shape"),
        "a view does not go with the strides that its tensor has, or has for TorchDynamo (of a "
        "batch norm without running statistics, those of its input)",
        "write reshape, or contiguous() before the view",
    ),
    (
        re.compile(r"Tensor\.retain_grad\(\)"),
        "forward calls y.retain_grad(), and a plan keeps no such gradient",
        "limit the parts before and after y, and call it on what goes from one to the other; to "
        "change the gradient, y.register_hook(...) in forward, with a hook that returns another",
    ),
    (
        re.compile(
            r"setattr\(TensorVariable\(\), ConstantVariable\(str: 'requires_grad'\)"
            r"|(?s:`setattr` with argument types \['Tensor', 'str', 'bool'\].*\.requires_grad = )"
        ),
        "forward, or the backward of an autograd.Function, sets y.requires_grad of a tensor",
        "write y.detach().requires_grad_() and torch.autograd.grad in a Function, and return what "
        "that gives. A Function that computes again in backward, as reversible blocks do, may be "
        "left out, for the library does so by itself; or limit the parts that it calls",
    ),
    (
        re.compile(r"returning intermediate with requires_grad_"),
        "forward makes a tensor that asks for a gradient of its own, by requires_grad_() or "
        "Variable(t, requires_grad=True), and what it returns has a history by that",
        "leave requires_grad out, for nobody reads that gradient; or make the tensor outside of "
        "forward, and give it as an argument",
    ),
    (
        re.compile(r"Unsupported Tensor\.requires_grad_\(\) call"),
        "forward, or the backward of an autograd.Function, calls requires_grad_(), which "
        "TorchDynamo does not follow of an argument, and before PyTorch 2.13 of no tensor",
        "leave requires_grad out, for nobody reads that gradient; or make the tensor outside of "
        "forward, and give it as an argument. A Function that computes again in backward, as "
        "checkpoints and reversible blocks do, may be left out, for the library does so by itself",
    ),
    (
        re.compile(r"builtin operator `print`|logging\.Logger method|builtin `_?warnings\.warn"),
        "forward prints, logs or warns, and a plan runs without Python",
        "write `if not torch.compiler.is_compiling():` before it, which is passed over under a "
        "limit; or do so after the call",
    ),
    (
        re.compile(
            r"setattr\(\w+\(<class 'torch\.utils\.hooks\.RemovableHandle'>\), .*'next_id'"
            r"|RemovableHandle\.next_id \+= 1"
        ),
        "forward registers a hook of a layer",
        "register it once, before the model is limited: it runs in each call",
    ),
    (
        re.compile(r"using `torch\.autograd\.grad`|`backward` in file \S*autograd"),
        "forward takes a derivative",
        "take it outside of forward, or write it out; the backward of an autograd.Function may "
        "call torch.autograd.grad",
    ),
    (
        re.compile(r"built-in function [gs]etitem>.* is not allocated"),
        "an index is a list that holds a tensor",
        "make a tensor of it, torch.stack([...])",
    ),
    (
        re.compile(r"functional\.py.* in gaussian_nll_loss\b"),
        "gaussian_nll_loss looks whether a variance is negative",
        "write it out, 0.5 * (var.log() + (input - target) ** 2 / var).mean(), with a var that is "
        "positive",
    ),
)


def explain_refusal(error: Exception, model: torch.nn.Module, forward: Any, call: Any) -> Exception:
    """Make the error to raise for one of a capture.

    Parameters
    ----------
    forward : callable
        The model's own.
    call
        With `args` and `kwargs`.
    """
    if isinstance(error, torch._dynamo.exc.BackendCompilerFailed):  # ours
        inner: Exception = error.inner_exception
        return inner.with_traceback(error.__traceback__)
    if isinstance(error.__context__, OocError):  # ours, raised as TorchDynamo traced
        return _as_raised(error.__context__)
    cause = _own_error(model, forward, call) if _RAISED.search(str(error)) else None
    if cause is not None:
        return _not_taken(model, cause, (call.args, call.kwargs))
    return _as_raised(error) if isinstance(error, OocError) else _refused(model, error)


def _as_raised(error: Exception) -> Exception:
    """An error of ours, without the stack that TorchDynamo has put behind what it says."""
    error.args = (str(error).partition(_STACK)[0].rstrip(), *error.args[1:])
    return error


def _refused(model: torch.nn.Module, error: Exception) -> UnsupportedModelError:
    text = str(error)
    known = (each for pattern, *each in _KNOWN if pattern.search(text))
    other = _OF_AN_OUTPUT if _OF_BACKWARD.search(text) else _REMEDY
    why, remedy = next(known, (_why(model, text), other))
    said = f"{type(model).__name__} cannot be captured: {why}: {remedy}"
    line = _line_in(text) or users_line(error, NOT_THE_USERS) or _line_of(model)
    return UnsupportedModelError(said + (f"\n  {line}" if line else ""))


def _why(model: torch.nn.Module, text: str) -> str:
    """Dynamo's reason, with what it does not say."""
    said = f"TorchDynamo says {_reason(text)}"
    if _OF_BACKWARD.search(text):
        said += f": those of backward of {', '.join(_with_hooks_of_backward(model))}"
    elif _OF_DATA.search(text):
        said += (
            ". The result of a branch, of a loop or of a size depends on data, or the place in a "
            f"list (torch.stack(maps)[t] will do). What is a tensor may stay one. {BY_INDEX}"
        )
    return said


def _line_of(model: torch.nn.Module) -> str:
    """The line at which a model's forward begins: Dynamo does not always name one."""
    code = getattr(type(model).forward, "__code__", None)
    if code is None:
        return ""
    return f'File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}'


def _with_hooks_of_backward(model: torch.nn.Module) -> list[str]:
    """The parts of a model that have hooks of backward: "4 (Conv2d)"."""
    return [
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if module is not model and (module._backward_hooks or module._backward_pre_hooks)
    ]


def _reason(text: str) -> str:
    """The first line of what Dynamo says, and its explanation."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return "nothing"
    summary = lines[0].rstrip(".:")
    explained = text.partition("Explanation:")[2].partition("\n\n")[0].partition("Hint:")[0]
    why = " ".join(explained.split())
    return f"{summary}: {why.rstrip('.')}" if why else summary


def _line_in(text: str) -> str:
    """The last line of the user's code that Dynamo names."""
    lines = text.partition("from user code:")[2].splitlines()
    place = ""
    for number, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame and not frame["file"].startswith(NOT_THE_USERS):
            code = lines[number + 1].strip() if number + 1 < len(lines) else ""
            place = f"{line.strip()}: {code}"
    return place


def _may_be_of_inputs(error: BaseException) -> bool:
    """True if an error may be one that a call without a capture has, too."""
    return (
        isinstance(error, _OF_INPUTS)
        and not isinstance(error, NotImplementedError)
        and not type(error).__module__.startswith("torch.")  # those are of tracing
        and not _WITHOUT_DATA.search(str(error))
    )


def _own_error(model: torch.nn.Module, forward: Any, call: Any) -> Exception | None:
    """The error of a call without a capture: of a copy, on fake tensors, so nothing is changed."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    held = (*model.parameters(), *model.buffers())
    if getattr(forward, "__self__", None) is not model:
        return None
    modes = (each.fake_mode for each in call.tensors if isinstance(each, FakeTensor))
    mode = next(modes, None) or FakeTensorMode(allow_non_fake_inputs=True)
    args, kwargs = pytree.tree_map_only(
        torch.Tensor,
        lambda each: each if isinstance(each, FakeTensor) else mode.from_tensor(each),
        (tuple(call.args), dict(call.kwargs)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            other = copy.deepcopy(model, {id(each): mode.from_tensor(each) for each in held})
        except Exception:  # not all that models hold can be copied: nothing is known of their error
            return None
    try:
        with mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forward.__func__(other, *args, **kwargs)
    except Exception as error:
        return error if _may_be_of_inputs(error) else None
    return None


def _not_taken(model: torch.nn.Module, error: Exception, arguments: Any) -> Exception:
    """The error to raise for arguments that the model itself does not take."""
    tensors = [each for each in pytree.tree_leaves(arguments) if isinstance(each, torch.Tensor)]
    said = ", ".join(f"{dtype_name(each)} {tuple(each.shape)}" for each in tensors)
    why = _first_line(error)
    of_types = isinstance(error, TypeError) or is_of_dtypes(why)
    line = users_line(error, NOT_THE_USERS)
    return error_like(error, TypeError if of_types else ValueError)(
        f"{type(model).__name__} does not take this input, {said}: {why.removesuffix('.')}"
        f"{hint(model, why, tensors)}" + (f"\n  {line}" if line else "")
    )


def _first_line(error: BaseException) -> str:
    said = [line for line in str(error).strip().splitlines() if line.strip()]
    return said[0] if said else type(error).__name__
