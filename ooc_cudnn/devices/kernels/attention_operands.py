"""Operands of attention's kernels: queries, keys and values as packed rows, and a bias."""

from __future__ import annotations

from typing import NamedTuple

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES
from ooc_cudnn.devices.kernels.checks import check, check_packed
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.attention.launches import Attention
from ooc_cudnn.operations.core.operation import Shape


class Operands(NamedTuple):
    """The views that both directions read, checked."""

    q: DeviceView
    k: DeviceView
    v: DeviceView
    bias: DeviceView | None

    @classmethod
    def of(cls, operation: Attention, call: Call) -> Operands:
        """Those of a call."""
        q, k, v, bias, *_ = call.inputs
        return cls(
            packed_rows("q", q, operation.q_shape, operation.dtype),
            packed_rows("k", k, operation.k_shape, operation.dtype),
            packed_rows("v", v, operation.v_shape, operation.dtype),
            None
            if operation.bias_shape is None
            else check("bias", bias, operation.bias_shape, operation.bias_dtype),
        )

    @property
    def bias_steps(self) -> dict[str, int]:
        """Strides of the bias, 0 where it is broadcast, as fields of the kernels' structs."""
        steps = [0, 0, 0, 0]
        if self.bias is not None:
            pairs = zip(self.bias.shape, self.bias.strides, strict=True)
            steps = [0 if extent == 1 else step for extent, step in pairs]
        names = ("bias_image", "bias_head", "bias_query", "bias_key")
        return dict(zip(names, steps, strict=True))


def bias_type(operation: Attention) -> str:
    """The type of a bias, or of a mask, as a template argument."""
    if operation.is_mask:
        return "unsigned char"
    return CUDA_TYPES[operation.bias_dtype or operation.dtype]


def packed_rows(name: str, view: DeviceView | None, shape: Shape, dtype: str = "") -> DeviceView:
    """(n, depth, heads, queries) as packed rows (n, heads, queries, depth), of any type without."""
    found = check(name, view, shape, dtype or (view.dtype if view else ""))
    n, depth, heads, queries = zip(found.shape, found.strides, strict=True)
    extents, strides = zip(n, heads, queries, depth, strict=True)
    turned = DeviceView(found.pointer, found.dtype, extents, strides)
    return check_packed(name, turned, extents, found.dtype)
