"""Refusals before a capture: models that would be captured as something else than they are."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import linecache
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._C._functorch import peek_interpreter_stack as _peek_interpreter_stack
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import source_name, told_name, users_frame


def check_model(model: torch.nn.Module) -> None:
    """Refuse a model with parts that are not what a capture of them would be.

    Raises
    ------
    UnsupportedModelError
        If it is sharded (FSDP), is copied to several cards (DataParallel), has a part in
        DistributedDataParallel, is compiled by torch.jit, synchronises batch normalization by
        others than PyTorch, averages its statistics by a count, has a layer that is no module, or
        parameters that are no plain dense tensors of real numbers.
    """
    _check_layers(model)
    for name, module in model.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if "ScriptModule" in kinds:
            raise UnsupportedModelError(
                f"{_said(name, module)} is compiled by torch.jit (script, trace, load), and "
                "TorchDynamo does not look into it: put in the module of Python that it was made "
                "of, and call torch.jit behind the training, on the released model; or limit the "
                "parts before and after it"
            )
        if kinds & {"FSDPModule", "FullyShardedDataParallel"}:
            raise UnsupportedModelError(
                f"{_said(name, module)} is sharded by FSDP, and the library needs whole "
                "parameters: limit the model without fully_shard"
            )
        if "DataParallel" in kinds:
            raise UnsupportedModelError(
                f"{_said(name, module)} copies the model to several cards in each call: take "
                "DistributedDataParallel around a model under a limit, in a process for each card"
            )
        if "DistributedDataParallel" in kinds:
            raise UnsupportedModelError(
                f"{_said(name, module)} would not see backward, and add up no gradients: limit the "
                "model first, and wrap DistributedDataParallel around all of it"
            )
        if "SyncBatchNorm" in kinds and module.training and not _is_pytorchs(module):
            raise UnsupportedModelError(
                f"{_said(name, module)} takes statistics over several processes in a way of its "
                "own: put torch.nn.SyncBatchNorm in its place, or a BatchNorm and "
                'limit(..., statistics="global")'
            )
        if "_BatchNorm" in kinds and module.training and _counts(module):
            raise UnsupportedModelError(
                f"{_said(name, module)} has momentum=None: its averages depend on a count that is "
                "not known when the model is captured; give it a number. While swa_utils.update_bn "
                f"runs, ooc_cudnn.torch.release(model){users_frame()}"
            )
    for name, parameter in model.named_parameters():
        check_tensor(name, parameter)


def _check_layers(model: torch.nn.Module) -> None:
    """Refuse a layer that is no module: PyTorch itself does not go through such a model."""
    parts: dict[torch.nn.Module, str] = {model: ""}
    wanted = [model]
    while wanted:
        module = wanted.pop()
        for key, layer in module._modules.items():
            path = f"{parts[module]}.{key}".removeprefix(".")
            if layer is not None and not isinstance(layer, torch.nn.Module):
                raise UnsupportedModelError(
                    f"{path}, among the layers of {_said(parts[module], module)}, is a "
                    f"{type(layer).__name__} and no module: put a module there whose forward calls "
                    "it. PyTorch has no parameters() and no state_dict() of such a model, either"
                )
            if layer is not None and layer not in parts:
                parts[layer] = path
                wanted.append(layer)


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is sparse, nested, quantized, of complex numbers, or sharded.

    Raises
    ------
    UnsupportedModelError
        With what to do.
    """
    if type(tensor).__name__ == "DTensor":
        raise UnsupportedModelError(f"{name} is sharded over devices: give the whole tensor")
    if tensor.layout != torch.strided:
        raise UnsupportedModelError(
            f"{name} is a tensor of layout {tensor.layout}; make it dense by to_dense()"
        )
    if tensor.is_nested:
        raise UnsupportedModelError(
            f"{name} is a nested tensor; make it one of equal shapes by to_padded_tensor()"
        )
    if tensor.is_quantized:
        raise UnsupportedModelError(f"{name} is quantized; make it floating by dequantize()")
    if tensor.is_complex():
        raise _complex(name, tensor.dtype)


def _complex(name: str, dtype: Any) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{name} is of {dtype}, and the library has real numbers alone; "
        "torch.view_as_real makes two of each"
    )


def check_nested(model: torch.nn.Module) -> None:
    """Refuse what PyTorch would run on nested tensors: encoders with padding, in evaluation.

    It fills padded places with zeros then, and does not where it is captured.

    Raises
    ------
    UnsupportedModelError
        With what to do.
    """
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.TransformerEncoder):
            continue
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        nests = getattr(module, "use_nested_tensor", False) and not module.layers[0].training
        if nests and not trains and torch.backends.mha.get_fastpath_enabled():
            raise UnsupportedModelError(
                f"{_said(name, module)} has a src_key_padding_mask in evaluation, and PyTorch "
                "fills padded places with zeros then: build it with enable_nested_tensor=False, "
                f"or set its use_nested_tensor = False{users_frame()}"
            )


def check_python_state() -> None:
    """Refuse state that TorchDynamo traces now and does not follow from call to call.

    Raises
    ------
    UnsupportedModelError
        If forward draws of a `random.Random` that lasts longer than a call, appends to a `deque`
        with maxlen, or writes to a set of a derived class; with what to do.
    """
    deque = torch._dynamo.variables.lists.DequeVariable
    generator = torch._dynamo.variables.misc.RandomVariable
    own_set = torch._dynamo.variables.UserDefinedSetVariable
    output = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().output
    if torch.__version__ < "2.13":  # a TorchVersion, which compares so
        _check_properties(output)
    scope = {"L": output.local_scope, "G": output.global_scope}
    for variable in list(output.side_effects.id_to_variable.values()):
        if not isinstance(variable, deque | generator | own_set) or variable.source is None:
            continue
        name = source_name(variable.source)
        if isinstance(variable, generator):
            raise UnsupportedModelError(
                f"forward draws of a random.Random that it finds ({told_name(name)}), and "
                "TorchDynamo would draw the same number in every call: take random.random(), or "
                f"give the number as an argument{users_frame()}"
            )
        if not isinstance(variable, deque):
            if output.side_effects.is_modified(variable):
                raise UnsupportedModelError(
                    f"forward writes to {told_name(name)}, of a class derived from set, and "
                    f"TorchDynamo leaves it as it was: make it a plain set{users_frame()}"
                )
        elif eval(name, scope).maxlen is not None:
            raise UnsupportedModelError(
                f"forward has a deque with maxlen ({told_name(name)}), which TorchDynamo follows "
                f"as if it forgot nothing: take a list, and del its first{users_frame()}"
            )


def _check_properties(output: Any) -> None:
    """Refuse what sets a property: before PyTorch 2.13 TorchDynamo reads what was set, as it is."""
    for variable, names in output.side_effects.store_attr_mutations.items():
        kind = getattr(variable, "value_type", None) or type(getattr(variable, "value", None))
        for name in names:
            if isinstance(inspect.getattr_static(kind, name, None), property):
                raise UnsupportedModelError(
                    f"forward sets {kind.__name__}.{name}, a property with a setter, and PyTorch "
                    "before 2.13 calls that at the end of forward alone: set what is behind it, "
                    f"or call a method that does{users_frame()}"
                )


def check_arguments(model: torch.nn.Module, arguments: Sequence[Any]) -> None:
    """Refuse tensors and arrays that a call cannot be made with, whatever was captured before.

    Raises
    ------
    UnsupportedModelError
        If one is refused as by `check_tensor`, or stands for several, or for derivatives
        (torch.func, forward mode); with what to do.
    TypeError
        If an array is of another byte order than this machine's.
    """
    for index, leaf in enumerate(arguments):
        if isinstance(leaf, torch.Tensor):
            check_tensor(f"argument {index}", leaf)
        elif leaf.dtype.kind == "c":
            raise _complex(f"argument {index}", leaf.dtype)
        elif not leaf.dtype.isnative:
            raise TypeError(
                f"argument {index} is of {leaf.dtype.str}, another byte order than this machine's: "
                'give array.astype(array.dtype.newbyteorder("="))'
            )
    tensors = itertools.chain(arguments, model.parameters(), model.buffers())
    check_transforms(type(model).__name__, tensors)


def check_modes() -> None:
    """Refuse a call within a mode of torch functions, but a default device, before PyTorch 2.13.

    Raises
    ------
    UnsupportedModelError
        TorchDynamo traces none of what the mode does there; with what to do.
    """
    if torch._C._len_torch_function_stack() == 0 or torch.__version__ >= "2.13":
        return
    for mode in _get_current_function_mode_stack():
        if not isinstance(mode, DeviceContext):
            raise UnsupportedModelError(
                f"the call is within a {type(mode).__name__} (a TorchFunctionMode), which "
                "TorchDynamo does not follow before PyTorch 2.13: call the model outside of it, or "
                f"release(model){users_frame()}"
            )


def check_transforms(what: str, tensors: Iterable[Any]) -> None:
    """Refuse tensors that stand for several, or for derivatives.

    Raises
    ------
    UnsupportedModelError
        With what to do.
    """
    dual, transformed = forward_ad._current_level >= 0, _peek_interpreter_stack() is not None
    if not dual and not transformed:
        return
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        if dual and forward_ad.unpack_dual(tensor).tangent is not None:
            raise UnsupportedModelError(
                f"{what} is differentiated in forward mode (torch.func.jvp, jacfwd, forward_ad), "
                "and the library has backward alone: take loss.backward() or torch.autograd.grad, "
                "or release(model)"
            )
        if transformed and is_functorch_wrapped_tensor(tensor):
            raise UnsupportedModelError(
                f"{what} is called within a transformation of torch.func (grad, vjp, vmap, ...), "
                "which cannot see into a call under a limit: take loss.backward() or "
                "torch.autograd.grad, and a batch in place of vmap, or release(model)"
            )


def _is_pytorchs(module: torch.nn.Module) -> bool:
    return type(module).forward is torch.nn.SyncBatchNorm.forward


def _counts(module: Any) -> bool:
    return module.momentum is None and module.track_running_stats


def _said(name: str, module: torch.nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"


def users_line(error: BaseException, not_the_users: Sequence[str]) -> str:
    """The last line of the user's own code on the way to an error, or to what caused it."""
    line, seen = "", error
    while seen is not None and not line:
        step = seen.__traceback__
        while step is not None:
            code = step.tb_frame.f_code
            if not code.co_filename.startswith((*not_the_users, contextlib.__file__, "<")):
                text = linecache.getline(code.co_filename, step.tb_lineno).strip()
                line = (
                    f'File "{code.co_filename}", line {step.tb_lineno}, in {code.co_name}: {text}'
                )
            step = step.tb_next
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    return line
