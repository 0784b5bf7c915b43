"""What torch.export makes of a call, quietly; and what its errors come to."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.hints import hint, is_of_dtypes
from ooc_cudnn.torch.ranks import as_batch_normalization
from ooc_cudnn.torch.refusals import hooks_that_compute, users_line

#: Whose lines are not the user's.
NOT_THE_USERS = tuple(os.path.dirname(each) + os.sep for each in (torch.__file__, __file__))
#: What PyTorch and models raise of an argument that they do not take.
_OF_INPUTS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
#: In what PyTorch says of tensors without data: a tensor with data might do.
_WITHOUT_DATA = re.compile(r"(?i)numpy\(\)|data pointer|storage|data-dependent|fake ?tensor|subcla")


class _Plain(torch.nn.Module):
    """A model whose forward is called, and none of its own hooks."""

    def __init__(self, model: torch.nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._forward = model, forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own."""
        return self._forward(*args, **kwargs)


def exported(
    model: torch.nn.Module,
    forward: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """The program of a call.

    Parameters
    ----------
    model, forward, args, kwargs
        As of `capture`.

    Raises
    ------
    UnsupportedModelError
        If torch.export refuses, with what it says of the model's line.
    TypeError, ValueError
        If the model itself does not take these arguments.
    """
    plain = _Plain(model, forward)
    plain.training = model.training
    with hooks_that_compute(model), as_batch_normalization(model), quiet():
        try:
            return torch.export.export(plain, tuple(args), dict(kwargs), strict=False)
        except UnsupportedModelError:
            raise
        except Exception as error:
            own = _own_error(forward, args, kwargs) if _may_be_of_inputs(error) else None
            if own is not None:
                raise _not_taken(model, own, (args, kwargs)) from None
            if "data-dependent" in str(error):  # it says all that there is
                raise refused(model, error) from None
            raise refused(model, error) from error


def refused(model: torch.nn.Module, error: Exception) -> UnsupportedModelError:
    """What to say of an error of torch.export: the user's line, and what to do."""
    said = f"{type(model).__name__} cannot be captured: torch.export says {_first_line(error)}"
    if "data-dependent" in str(error):
        said += ". The result of a branch, of a loop or of a size depends on data: take it out of "
        said += "forward, or limit the parts before and after it"
    return UnsupportedModelError(said + _line_of(error))


def _may_be_of_inputs(error: Exception) -> bool:
    """Whether an error may be one that a call without torch.export has, too."""
    return (
        isinstance(error, _OF_INPUTS)
        and not isinstance(error, NotImplementedError)
        and not type(error).__module__.startswith("torch.")  # those are of tracing
        and not _WITHOUT_DATA.search(str(error))
    )


def _own_error(
    forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Exception | None:
    """The error of a call without torch.export: nothing is computed, for tensors are fake."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    modes = (each.fake_mode for each in leaves if isinstance(each, FakeTensor))
    mode = next(modes, None) or FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forward(*args, **kwargs)
    except Exception as error:
        return error if _may_be_of_inputs(error) else None
    return None


def _not_taken(model: torch.nn.Module, error: Exception, given: Any) -> Exception:
    """What to say of arguments that the model itself does not take."""
    tensors = [each for each in pytree.tree_leaves(given) if isinstance(each, torch.Tensor)]
    said = ", ".join(f"{_dtype(each)} {tuple(each.shape)}" for each in tensors)
    why = _first_line(error)
    kind = TypeError if isinstance(error, TypeError) or is_of_dtypes(why) else ValueError
    return kind(
        f"{type(model).__name__} does not take this input, {said}: {why.removesuffix('.')}"
        f"{hint(model, why, tensors)}"
        f"{_line_of(error)}"
    )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _line_of(error: Exception) -> str:
    line = users_line(error, NOT_THE_USERS)
    return f"\n  {line}" if line else ""


def _first_line(error: BaseException) -> str:
    said = [line for line in str(error).strip().splitlines() if line.strip()]
    return said[0] if said else type(error).__name__


class _WithoutDumps:
    """A stream that drops what torch.export prints of a graph that it gave up."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write what others write."""
        by = str(sys._getframe(1).f_globals.get("__name__", ""))
        return len(text) if by.startswith("torch.export.") else self._stream.write(text)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without PyTorch's logs and dumps of errors that are raised, too; with TORCH_LOGS, with them.

    >>> with quiet():
    ...     logging.getLogger("torch.export").error("a dump")
    """
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    logger = logging.getLogger("torch")  # a part of it that has a level of its own was asked for
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        if sys.stderr is None:
            yield
        else:
            with contextlib.redirect_stderr(_WithoutDumps(sys.stderr)):
                yield
    finally:
        logger.setLevel(level)
