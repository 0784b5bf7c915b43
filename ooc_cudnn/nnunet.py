"""nnU-Net: a trainer whose steps are under a memory limit, and a predictor without windows.

    export nnUNet_extTrainer=$(python -m ooc_cudnn.nnunet_trainers)
    export nnUNet_memory_limit=8GiB
    nnUNetv2_train 1 3d_fullres 0 -tr nnUNetTrainerLimit

Needs the extra ``nnunet``.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ooc_cudnn.extras import brought_by

with brought_by("nnunet", "nnunetv2", "torch"):
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
    from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
    from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from torch.nn import functional

from ooc_cudnn.network.runtime.constraints_here import Limit
from ooc_cudnn.torch.inferring import infer
from ooc_cudnn.torch.limit import limit, limited_forward, release
from ooc_cudnn.torch.model_with_loss import with_loss
from ooc_cudnn.units import parse_limit

__all__ = ["MEMORY_LIMIT", "nnUNetPredictorLimit", "nnUNetTrainerLimit"]

#: The environment variable that has the limit: "8GiB". Without it the setting's counts.
MEMORY_LIMIT = "nnUNet_memory_limit"
#: nnU-Net clips the norm of gradients to it.
MOST_GRADIENT = 12


def limit_asked() -> str | None:
    """Return the limit that the environment has.

    Raises
    ------
    ValueError
        If it is none.
    """
    asked = os.environ.get(MEMORY_LIMIT) or None
    if asked is not None:
        parse_limit(asked, name=MEMORY_LIMIT)
    return asked


class nnUNetTrainerLimit(nnUNetTrainer):
    """nnU-Net's trainer with network and loss, deep supervision included, in a plan under a limit.

    The limit is that of the environment variable ``nnUNet_memory_limit``. All else is as
    `nnUNetTrainer` does it: scores of all scales are never whole, in training and for the online
    Dice. Not for several cards.

    Raises
    ------
    ValueError
        If the environment's limit is none.
    NotImplementedError
        If training is distributed.
    """

    def __init__(
        self,
        plans: dict[str, Any],
        configuration: str,
        fold: int,
        dataset_json: dict[str, Any],
        device: torch.device = torch.device("cuda"),  # noqa: B008
    ) -> None:
        self.memory_limit = limit_asked()
        super().__init__(plans, configuration, fold, dataset_json, device)
        if self.is_ddp:
            raise NotImplementedError(
                "nnUNetTrainerLimit trains on one card: leave out -num_gpus, or take nnUNetTrainer"
            )

    def initialize(self) -> None:
        """Make the network, and plan nothing yet: that takes a batch."""
        super().initialize()
        self.supervised = with_loss(self.network, self._loss_of, self.memory_limit)
        self.segmenting = _Segmenting(self.network)

    def _do_i_compile(self) -> bool:
        return False

    def _build_loss(self) -> torch.nn.Module:
        loss: torch.nn.Module = super()._build_loss()
        inner = loss.loss if isinstance(loss, DeepSupervisionWrapper) else loss
        if type(inner) is DC_and_CE_loss and type(inner.dc) is MemoryEfficientSoftDiceLoss:
            inner = DiceAndCrossEntropy(inner)
        self.takes_labels = isinstance(inner, DiceAndCrossEntropy)
        if not isinstance(loss, DeepSupervisionWrapper):
            return inner
        # a number of NumPy is a tensor where it is captured, and decides nothing
        return DeepSupervisionWrapper(inner, [float(each) for each in loss.weight_factors])

    def _loss_of(self, outputs: Any, targets: Any) -> torch.Tensor:
        found: torch.Tensor = self.loss(outputs, targets)
        return found

    def _autocast(self) -> Any:
        is_cuda = self.device.type == "cuda"
        return torch.autocast("cuda") if is_cuda else nullcontext()

    def _on_device(self, target: Any) -> Any:
        if isinstance(target, list):
            return [self._on_device(each) for each in target]
        return target.to(self.device, non_blocking=True)

    def _supervised(self, data: torch.Tensor, target: Any) -> torch.Tensor:
        """The loss of a batch, of network and loss in a plan."""
        if self.takes_labels:
            many = isinstance(target, list)
            labels = [each[:, 0].long() for each in (target if many else [target])]
            target = labels if many else labels[0]
        loss: torch.Tensor = self.supervised(data, target)
        return loss

    def train_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Take a step of training on a batch; return its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self._supervised(batch["data"], self._on_device(batch["target"]))
        parameters, scaler = self.network.parameters(), self.grad_scaler
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, MOST_GRADIENT)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        return {"loss": loss.detach().cpu().numpy()}

    def on_train_epoch_end(self, train_outputs: list[dict[str, Any]]) -> None:
        """Log what an epoch's steps took of memory, beside nnU-Net's own lines."""
        super().on_train_epoch_end(train_outputs)
        limited = limited_forward(self.supervised)
        assert limited is not None
        self.print_to_log_file(f"under the limit: {limited.plan!r}")

    def validation_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the loss of a batch, and counts for the online Dice of its labels."""
        target = self._on_device(batch["target"])
        with self._autocast():
            loss = self._supervised(batch["data"], target)
            found = self._segmented(batch["data"])
        whole = target[0] if self.enable_deep_supervision else target
        counts = self._counts(found, whole)
        foreground = slice(0 if self.label_manager.has_regions else 1, None)
        named = zip(("tp_hard", "fp_hard", "fn_hard"), counts, strict=True)
        return {"loss": loss.detach().cpu().numpy()} | {
            name: each.cpu().numpy()[foreground] for name, each in named
        }

    def _segmented(self, data: torch.Tensor) -> torch.Tensor:
        """Labels of sites (n, 1, ...), or whether each region has them (n, regions, ...)."""
        with self._without_scales():
            if self.label_manager.has_regions:
                made: torch.Tensor = infer(self.segmenting, data, memory_limit=self.memory_limit)
                return made
            labels = infer(self.network, data, memory_limit=self.memory_limit, reduce="argmax")
            return labels[:, None]

    def _counts(self, found: torch.Tensor, target: torch.Tensor) -> Iterator[torch.Tensor]:
        """Right, wrong and missed sites of each class or region, as floats."""
        found, heads = found.to(target.device), self.label_manager.num_segmentation_heads
        counted = torch.ones_like(target[:, :1], dtype=torch.bool)
        if self.label_manager.has_regions:
            if self.label_manager.has_ignore_label:
                counted, target = ~target[:, -1:].bool(), target[:, :-1]
            pairs = [(found[:, at, None], target[:, at, None].bool()) for at in range(heads)]
        else:
            if self.label_manager.has_ignore_label:
                counted = target != self.label_manager.ignore_label
            pairs = [(found == at, target == at) for at in range(heads)]
        sums = [
            [(a & b & counted).sum(), (a & ~b & counted).sum(), (~a & b & counted).sum()]
            for a, b in pairs
        ]
        return (torch.stack(each).float() for each in zip(*sums, strict=True))

    @contextmanager
    def _without_scales(self) -> Iterator[None]:
        """Let the network return the scores of full size alone."""
        self.set_deep_supervision_enabled(False)
        try:
            yield
        finally:
            self.set_deep_supervision_enabled(self.enable_deep_supervision)

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        """Predict the cases of validation by windows, as nnU-Net does, each under the limit."""
        limit(self.network, self.memory_limit)
        try:
            super().perform_actual_validation(save_probabilities)
        finally:
            release(self.network)


class _Segmenting(torch.nn.Module):
    """Mask of the sites where the scores of a network say that a region is."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x) > 0


class DiceAndCrossEntropy(torch.nn.Module):
    """nnU-Net's loss of labels, written so that scores are not whole for it, nor one-hot labels.

    Parameters
    ----------
    loss : DC_and_CE_loss
        Whose weights and options it has. Where all sites are ignored, the cross entropy is 0.
    """

    def __init__(self, loss: DC_and_CE_loss) -> None:
        super().__init__()
        dice = loss.dc
        self.smooth, self.of_batch = float(dice.smooth), bool(dice.batch_dice)
        self.first = 0 if dice.do_bg else 1
        self.ignored = None if loss.ignore_label is None else int(loss.ignore_label)
        self.weights = float(loss.weight_dice), float(loss.weight_ce)

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of scores (n, classes, ...) for labels (n, ...) of int64."""
        of_dice, of_entropy = self.weights
        dice: torch.Tensor = of_dice * self.dice(scores, labels)
        return of_entropy * self.entropy(scores, labels) + dice

    def entropy(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of the sites that count."""
        if self.ignored is None:
            return functional.cross_entropy(scores, labels)
        total = functional.cross_entropy(scores, labels, ignore_index=self.ignored, reduction="sum")
        return total / (labels != self.ignored).sum().clamp(min=1)

    def dice(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the negative mean of the soft Dice of all classes but the background."""
        axes, shares = tuple(range(2, scores.ndim)), scores.softmax(1)
        labels, counted = labels[:, None], None
        if self.ignored is not None:
            counted = labels != self.ignored
            labels = torch.where(counted, labels, 0)
        is_of = torch.zeros_like(shares).scatter_(1, labels, 1)
        shares, is_of = shares[:, self.first :], is_of[:, self.first :]
        if counted is not None:
            shares, is_of = shares * counted, is_of * counted
        sums = [each.sum(axes, dtype=torch.float32) for each in (shares * is_of, shares, is_of)]
        both, found, there = [each.sum(0) for each in sums] if self.of_batch else sums
        return -((2 * both + self.smooth) / (there + found + self.smooth).clamp_min(1e-8)).mean()


class nnUNetPredictorLimit(nnUNetPredictor):
    """nnU-Net's predictor without windows: the network sees the whole of each case at once.

    Cases are padded with zeros to multiples of what the network halves. Windows, their overlap and
    their weights have no part in it; mirrored cases have, as in `nnUNetPredictor`. Instance
    normalization takes the statistics of the case, and not those of patches.

    Parameters
    ----------
    memory_limit : int, float or str, optional
        As for `ooc_cudnn.torch.limit`; when left out, that of the environment variable
        ``nnUNet_memory_limit``.
    **options
        As for `nnUNetPredictor`; `tile_step_size`, `use_gaussian` and
        `perform_everything_on_device` change nothing.
    """

    def __init__(self, memory_limit: Limit = None, **options: Any) -> None:
        if memory_limit is not None:
            parse_limit(memory_limit, name="memory_limit")
        self.memory_limit = limit_asked() if memory_limit is None else memory_limit
        super().__init__(**options)

    def predict_sliding_window_return_logits(self, input_image: torch.Tensor) -> torch.Tensor:
        """Return the scores (classes, ...) of a case (channels, ...), in host memory.

        The name is nnU-Net's; there is no window. A network of two axes takes each slice.
        """
        pooled = self.configuration_manager.pool_op_kernel_sizes
        strides = [math.prod(each) for each in zip(*pooled, strict=True)]
        sites = input_image.shape[-len(strides) :]
        more = [-extent % stride for extent, stride in zip(sites, strides, strict=True)]
        padding = [word for each in reversed(more) for word in (0, each)]
        image, is_sliced = functional.pad(input_image.cpu(), padding), len(sites) < 3
        image = image.swapaxes(0, 1) if is_sliced else image[None]
        self.network: torch.nn.Module = self.network.to(self.device).eval()
        is_cuda = self.device.type == "cuda"
        with torch.no_grad(), torch.autocast("cuda") if is_cuda else nullcontext():
            kept: tuple[Any, ...] = (..., *map(slice, sites))
            scores = self._mirrored(image)[kept]
        return scores.swapaxes(0, 1) if is_sliced else scores[0]

    def _mirrored(self, image: torch.Tensor) -> torch.Tensor:
        """The mean of what is made of an image and of its mirror images."""
        allowed = self.allowed_mirroring_axes if self.use_mirroring else ()
        counts = range(len(allowed or ()) + 1)
        chosen = [axes for n in counts for axes in itertools.combinations(allowed or (), n)]
        total: torch.Tensor | None = None
        for axes in chosen:
            turned = [axis + 2 for axis in axes]
            scores = infer(self.network, image.flip(turned), memory_limit=self.memory_limit)
            scores = scores.cpu().float().flip(turned)
            total = scores if total is None else total.add_(scores)
        assert total is not None
        return total.div_(len(chosen))
