"""NumPy in forward: TorchDynamo computes it by PyTorch's functions, with other dtypes at times.

NumPy itself says what a call makes: it is called with zeros in place of the arrays.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import dtype_name, source_line

#: Functions of PyTorch's that take a NumPy scalar's dtype.
_OF_DTYPES = (torch.tensor, torch.as_tensor, torch.asarray)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def check_numpy(module: torch.fx.GraphModule) -> None:
    """Refuse calls of NumPy that are captured as something else than they are.

    Raises
    ------
    UnsupportedModelError
        If NumPy makes another dtype or shape, or a NumPy scalar that forward returns or keeps,
        which would be an array, or that PyTorch takes for a number; with what to do.
    """
    scalars: set[Any] = set()
    given: set[Any] = set()
    for node in module.graph.nodes:
        if node.op == "output":
            _check_outputs(node, scalars)
        if not all(map(_is_known, pytree.tree_leaves(node.meta.get("example_value")))):
            return  # a shape depends on data, which is refused where it is recorded
        if _is_scalar_given(node):
            given.add(node)
        if node.op not in ("call_function", "call_method"):
            continue
        if node.target in (abs, operator.abs) and any(map(_is_from_numpy, node.all_input_nodes)):
            _check_kernel(node)
        if not _is_of_numpy(node.target):
            _check_as_number(node, scalars | given)
            continue
        _check_kernel(node)
        by_numpy = _by_numpy(node, scalars)
        if isinstance(by_numpy, np.generic):
            scalars.add(node)
        results = pytree.tree_leaves(node.meta.get("example_value"))
        for one, other in zip(results, pytree.tree_leaves(by_numpy), strict=False):
            _compare(node, one, other)


def _is_of_numpy(target: Any) -> bool:
    utils = torch._dynamo.utils
    kinds = (
        utils.numpy_to_tensor_wrapper,
        utils.numpy_method_wrapper,
        utils.numpy_operator_wrapper,
    )
    return isinstance(target, kinds)


def _is_scalar_given(node: Any) -> bool:
    """True for a NumPy scalar that is given, or read: an array without axes, for TorchDynamo."""
    of_numpy = node.op == "placeholder" and _is_from_numpy(node)
    return of_numpy and node.meta["example_value"].ndim == 0


def _is_from_numpy(node: Any) -> bool:
    """True for an array that is given, and for what a function of NumPy makes."""
    if node.op != "placeholder":
        return _is_of_numpy(node.target)
    source = getattr(node.meta.get("grapharg"), "source", None)
    return isinstance(source, torch._dynamo.source.NumpyTensorSource)


def _check_as_number(node: Any, scalars: set[Any]) -> None:
    """Refuse a function of PyTorch's of a scalar, if of a number it makes another dtype."""
    if scalars.isdisjoint(node.all_input_nodes) or node.target in _OF_DTYPES:
        return

    def seen(argument: Any) -> Any:
        value = argument.meta.get("example_value")
        if argument in scalars:
            return np.ones((), dtype_name(value))[()]
        if isinstance(value, torch.Tensor):
            return torch.empty(_shape(value), dtype=value.dtype, device="meta")
        return pytree.tree_map(_now, value)

    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), seen)
    function = getattr(torch.Tensor, node.target) if node.op == "call_method" else node.target
    made = node.meta.get("example_value")
    try:
        by_number = function(*args, **kwargs)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        return  # it takes no number there
    if not isinstance(made, torch.Tensor) or not isinstance(by_number, torch.Tensor):
        return
    if by_number.dtype != made.dtype:
        raise UnsupportedModelError(
            f"{_name(node)} of a NumPy scalar makes {dtype_name(by_number)} in PyTorch, which "
            f"takes it for a number, and TorchDynamo would make {dtype_name(made)}: write float() "
            f"around it where it is made, or use math{_line(node)}"
        )


def _check_kernel(node: Any) -> None:
    """Refuse what PyTorch has no kernel for, of such dtypes: `abs` of booleans, `~` of floats."""

    def of_one(argument: Any) -> Any:
        seen = argument.meta.get("example_value")
        if isinstance(seen, torch.Tensor):
            return torch.zeros((1,) * seen.ndim, dtype=seen.dtype)
        return pytree.tree_map(_now, seen)

    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), of_one)
    try:
        node.target(*args, **kwargs)
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"{_name(node)} of NumPy is computed by PyTorch, which says {error}: convert what it "
            f"is given, by astype or float(), or do it outside of forward{_line(node)}"
        ) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        return  # not of one element


def _by_numpy(node: Any, scalars: set[Any]) -> Any:
    """The result of NumPy for zeros in place of a call's arrays; None where that is not known."""

    def zeros(argument: Any) -> Any:
        seen = argument.meta.get("example_value")
        if not isinstance(seen, torch.Tensor):
            return pytree.tree_map(_now, seen)
        array = np.zeros(_shape(seen), dtype_name(seen))
        is_scalar = array.ndim == 0 and (argument.op == "placeholder" or argument in scalars)
        return array[()] if is_scalar else array

    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), zeros)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _numpys(node.target)(*args, **kwargs)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # not of zeros
        return None


def _numpys(target: Any) -> Any:
    """NumPy's own of what Dynamo has put in its place."""
    utils = torch._dynamo.utils
    if isinstance(target, utils.numpy_to_tensor_wrapper):
        function: Any = target.f
        return torch._dynamo.variables.misc.get_tnp_to_np_map()[function]
    if isinstance(target, utils.numpy_operator_wrapper):
        return target.op
    return lambda array, *args, **kwargs: getattr(array, target.method)(*args, **kwargs)


def _compare(node: Any, result: Any, by_numpy: Any) -> None:
    if not isinstance(result, torch.Tensor) or not isinstance(by_numpy, np.ndarray | np.generic):
        return
    dtype = dtype_name(result)
    if by_numpy.dtype.name == dtype and by_numpy.shape == _shape(result):
        return
    raise UnsupportedModelError(
        f"{_name(node)} makes {by_numpy.dtype.name} {by_numpy.shape} in NumPy, and TorchDynamo "
        f"would make {dtype} {_shape(result)} of it: divide by a float (7.0), give the dtype "
        f"(dtype=, astype), take the function of PyTorch, or do it outside of forward{_line(node)}"
    )


def _check_outputs(node: Any, scalars: set[Any]) -> None:
    for source in node.all_input_nodes:
        if source in scalars:
            raise UnsupportedModelError(
                f"forward returns or keeps a NumPy scalar (of {_name(source)}), and TorchDynamo "
                "would make an array of it: take a number of Python (int, float) or a tensor"
                f"{_line(source)}"
            )


def _is_known(seen: Any) -> bool:
    numbers = seen.shape if isinstance(seen, torch.Tensor) else (seen,)
    return all(each.node.has_hint() for each in numbers if isinstance(each, _SYMBOLIC))


def _now(number: Any) -> Any:
    """The value of a number in this call; no guard compares it."""
    return number.node.hint if isinstance(number, _SYMBOLIC) else number


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(_now(each) for each in tensor.shape)


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target)).removeprefix("wrapped_")


def _line(node: Any) -> str:
    where = source_line(node)
    return f"\n  {where}" if where else ""
