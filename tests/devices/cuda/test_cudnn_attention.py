"""When cuDNN computes attention, and on what: by a `cudnn` that computes by reference."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ooc_cudnn.devices.cuda.cudnn_attention import FusedAttention, may_be_fused
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.operations.attention.launches import Attention, AttentionBackward, as_channels
from tests.operations.attention.test_launches import near
from tests.support.attention import Case, by_pytorch, draw, terms_of
from tests.support.device_operand import Operand

CASE = Case((4, 2), (2, 5, 7, 8, 16))
FORWARD = Attention(CASE.q_shape, CASE.k_shape, 16, "float16", CASE.scale)


class Tensor(SimpleNamespace):
    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)

        def set_to(value):
            setattr(self, name.removeprefix("set_"), value)
            return self

        return set_to

    def array(self, addresses):
        dtype = {"HALF": "f2", "FLOAT": "f4"}[self.data_type]
        raw = (ctypes.c_char * (math.prod(self.dim) * np.dtype(dtype).itemsize)).from_address(
            addresses[self.uid]
        )
        strides = [step * np.dtype(dtype).itemsize for step in self.stride]
        return as_channels(np.ndarray(self.dim, dtype, raw, strides=strides))


class Graph:
    def __init__(self, cudnn, **types):
        self.cudnn, self.types = cudnn, types

    def tensor(self, **told):
        return Tensor(**told)

    def sdpa(self, *, generate_stats, use_causal_mask, attn_scale, name, **given):
        assert generate_stats
        assert not use_causal_mask
        assert attn_scale == CASE.scale
        self.given, self.made = given, (Tensor(), Tensor())
        return self.made

    def sdpa_backward(
        self, *, use_deterministic_algorithm, use_causal_mask, attn_scale, name, **given
    ):
        self.given, self.made = given, (Tensor(), Tensor(), Tensor())
        return self.made

    def validate(self):
        if self.cudnn.declines:
            raise self.cudnn.cudnnGraphNotSupportedError("no engine")

    def build_operation_graph(self):
        pass

    def create_execution_plans(self, modes):
        pass

    def check_support(self):
        pass

    def get_execution_plan_count(self):
        return 2

    def get_plan_name_at_index(self, index):
        return ("frost_fwd", "eng8_k24=0")[index]

    def build_plan_at_index(self, index):
        assert index == 1

    def get_workspace_size_plan_at_index(self, index):
        return 512

    def execute_plan_at_index(self, addresses, workspace, index, handle):
        if self.cudnn.fails:
            raise RuntimeError("it failed")
        given = {name: each.array(addresses).astype("f8") for name, each in self.given.items()}
        q, k, v = (given[name] for name in ("q", "k", "v"))
        wide = replace(FORWARD, dtype="float64")
        made = (
            AttentionBackward(wide).reference(q, k, v, None, given["dO"])[:3]
            if "dO" in given
            else wide.reference(q, k, v)
        )
        for tensor, value in zip(self.made, made, strict=True):
            tensor.array(addresses)[...] = value
        self.cudnn.ran += 1


@pytest.fixture
def cudnn():
    fake = SimpleNamespace(
        cudnnGraphNotSupportedError=type("NotSupported", (Exception,), {}),
        data_type=SimpleNamespace(HALF="HALF", BFLOAT16="BFLOAT16", FLOAT="FLOAT"),
        heur_mode=SimpleNamespace(A="A", FALLBACK="FALLBACK"),
        set_stream=lambda handle, stream: None,
        declines=False,
        fails=False,
        ran=0,
    )
    fake.pygraph = lambda **types: Graph(fake, **types)
    return fake


def fused(cudnn):
    return FusedAttention(cudnn, lambda: "handle")


def operands(random):
    given = {name: Operand(array.shape, "float16", "last", data=array)
             for name, array in draw(CASE, random, "float16").items()}  # fmt: skip
    return given, by_pytorch(CASE, {name: each.array for name, each in given.items()})


def call_of(inputs, output, nbytes=512):
    views = tuple(None if each is None else each.view for each in inputs)
    return Call(views, output.view, (4096, nbytes), SimpleNamespace(ptr=7))


def test_both_directions(cudnn, random):
    given, right = operands(random)
    q, k, v, dy = (given[name] for name in ("q", "k", "v", "dy"))
    y, lse = Operand(CASE.y_shape, "float16", "last"), Operand(CASE.lse_shape, "float32")
    attention = fused(cudnn)
    assert attention.plan(FORWARD).workspace_bytes == 512
    assert not attention.run(FORWARD, call_of((q, k, v, None, lse), y, 511))
    assert attention.run(FORWARD, call_of((q, k, v, None, lse), y))
    near(y.result(), right["y"], "float16", terms_of("float16"))
    near(lse.result(), right["lse"], "float32")
    backward = AttentionBackward(FORWARD)
    made = {name: Operand(right[name].shape, "float16", "last") for name in ("dq", "dk", "dv")}
    inputs = (q, k, v, None, y, dy, lse, made["dk"], made["dv"])
    assert attention.run(backward, call_of(inputs, made["dq"]))
    for name, result in made.items():
        near(result.result(), right[name], "float16", terms_of("float16", backward=True))
    wide = Operand(right["dk"].shape, "float32", "last")
    inputs = (q, k, v, None, y, dy, lse, wide, made["dv"])
    assert not attention.run(backward, call_of(inputs, made["dq"]))  # a sum over pieces
    assert cudnn.ran == 2


def test_what_cudnn_declines_or_fails_at_is_left_to_kernels(cudnn, random):
    given, _ = operands(random)
    q, k, v = (given[name] for name in ("q", "k", "v"))
    y, lse = Operand(CASE.y_shape, "float16", "last"), Operand(CASE.lse_shape, "float32")
    cudnn.declines = True
    assert fused(cudnn).plan(FORWARD) is None
    cudnn.declines, cudnn.fails = False, True
    attention = fused(cudnn)
    with pytest.warns(UserWarning, match="attention_forward failed, so kernels compute it"):
        assert not attention.run(FORWARD, call_of((q, k, v, None, lse), y))
    assert attention.plan(FORWARD) is None


@pytest.mark.parametrize(
    "told",
    [
        {"dtype": "float32"},
        {"v_depth": 136},
        {"v_depth": 12},
        {"bias_shape": (1, 1, 5, 7), "bias_dtype": "float16"},
        {"first": 3, "causal": True},
    ],
    ids=str,
)
def test_what_cudnn_is_not_asked_for(told):
    assert may_be_fused(FORWARD)
    assert may_be_fused(replace(FORWARD, causal=True))
    assert not may_be_fused(replace(FORWARD, **told))
    assert not may_be_fused(AttentionBackward(replace(FORWARD, **told)))
