"""Normalizations that know nothing of other images: of groups of channels, or of each site."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.network.graph.autodiff_emit import Backward, Forward
from ooc_cudnn.network.graph.nodes.base import Node
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.core.operation import Operation
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.normalization import group as group_normalization
from ooc_cudnn.operations.normalization import layer as layer_normalization
from ooc_cudnn.operations.normalization.batch_two_phase import ParameterGradientsCall
from ooc_cudnn.operations.normalization.channel_reduction import SAVED, SUMS, OfStatistics
from ooc_cudnn.operations.normalization.layer_in_chain import NormaliseSites
from ooc_cudnn.operations.normalization.set_reduction import NormaliseSets
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import ACCUMULATOR


@dataclass(frozen=True)
class GroupNormalization(Node):
    """y = f(scale * (x - mean) / sqrt(variance + epsilon) + bias), in training as in inference.

    Mean and variance are those of each group of each image's channels; with no `groups`, of the
    channels of each site. They are a phase of their own, and all else forward is elementwise: so y
    can be made again. Backward, the gradients of scale and bias are sums that are made beside
    the gradient of x, or alone where nobody wants that. In training y of each site may have another
    type than x: it is rounded once. f is an activation of what groups of channels normalise, whose
    result is not rounded before.
    """

    x: Tensor
    scale: Tensor
    bias: Tensor
    groups: int
    epsilon: float
    mode: str = "identity"
    coef: float = 0.0

    def _gradient(self, settings: Settings, *, data: bool) -> OfStatistics:
        shape, dtype, deterministic = self.x.shape, self.x.dtype, settings.deterministic
        if not self.groups:
            return layer_normalization.LayerNormalizationGradientCall(
                shape, dtype, deterministic, data, self.y.dtype if self.y.dtype != dtype else ""
            )
        return group_normalization.GroupNormalizationGradientCall(
            shape, dtype, self.groups, deterministic, data, self.mode, self.coef
        )

    def _saved(self, emit: Forward | Backward, call: OfStatistics) -> dict[str, Tensor]:
        dtype = ACCUMULATOR[self.x.dtype]
        return {name: emit.saved(name, call.statistics_shape, dtype) for name in SAVED}

    def forward(self, emit: Forward) -> None:
        shape, dtype = self.x.shape, self.x.dtype
        binds = {"x": self.x, "scale": self.scale, "bias": self.bias, "y": self.y}
        call: OfStatistics = layer_normalization.LayerStatisticsCall(shape, dtype, self.epsilon)
        if self.groups:
            call = group_normalization.GroupStatisticsCall(
                shape, dtype, self.groups, self.epsilon, emit.settings.deterministic
            )
        elif not emit.is_training:  # a site needs no other one: in one go, along with others
            in_one = Chain((NormaliseSites(shape, dtype, self.epsilon),), dtype)
            emit.phase("forward", in_one, **binds)
            return
        saved = self._saved(emit, call)
        emit.phase("statistics", call, x=self.x, **saved)
        if self.y.dtype != dtype:
            cast = layer_normalization.LayerNormalizationCastCall(shape, dtype, self.y.dtype)
            emit.phase("forward", cast, **binds, **saved)
            return
        mean, inverse = saved.values()
        operations: tuple[Operation, ...] = (NormaliseSets(shape, dtype, by_site=not self.groups),)
        if self.mode != "identity":
            operations += (Activation(shape, self.mode, self.coef, dtype),)
        emit.phase(
            "forward", Chain(operations, dtype), **binds, mean=mean, inverse_deviation=inverse
        )

    def backward(self, emit: Backward, dy: Tensor) -> None:
        data, images = emit.wants(self.x), self.x.shape[0]
        call = self._gradient(emit.settings, data=data)
        reads = {"x": self.x, "dy": dy, **self._saved(emit, call)}
        if self.mode != "identity":
            reads |= {"scale": self.scale, "bias": self.bias}
        sums = {name: emit.saved(name, self.x.shape[:2], "float64") for name in SUMS}
        if data:
            reads["scale"] = self.scale
            emit.gradient("data gradient", call, {**reads, **sums}, dx=self.x)
        else:
            emit.phase("sums", call, **reads, **sums)
        parameters = ParameterGradientsCall(self.x.shape[1], self.x.dtype, images)
        makes = {"dscale": self.scale, "dbias": self.bias}
        emit.gradient("parameter gradients", parameters, sums, **makes)
