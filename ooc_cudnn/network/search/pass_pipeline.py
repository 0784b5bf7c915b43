"""Rewrite a step as its policy takes it, and as its plan says."""

from __future__ import annotations

from collections.abc import Set

from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.passes.compress_activations import compress_activations
from ooc_cudnn.network.passes.fuse_activation_gradients import fuse_activation_gradients
from ooc_cudnn.network.passes.fuse_chains import fused
from ooc_cudnn.network.passes.fuse_gradient_sums import summed
from ooc_cudnn.network.passes.inplace_gradients import in_place
from ooc_cudnn.network.passes.microbatch import split_into_microbatches
from ooc_cudnn.network.passes.rematerialize import remade
from ooc_cudnn.network.passes.rematerialize_events import repeated
from ooc_cudnn.network.passes.row_tiling import banded, whole_maps
from ooc_cudnn.network.search.mo_sos.plan import CANDIDATES as WHOLE
from ooc_cudnn.network.search.mo_sos.plan import taken_whole


def canonicalize(step: Step, policy: str) -> Step:
    """The step that a policy takes: vDNN's keep whole maps for backward, as the paper does."""
    step = fuse_activation_gradients(step)
    if policy in WHOLE:
        return taken_whole(step)
    return fused(step if policy.startswith("vdnn") else compress_activations(step))


def apply_passes(
    step: Step, again: frozenset[str], parts: int, bands: int, anew: Set[str] | None = None
) -> Step:
    """A step with what is remade, in bands of rows, in micro-batches.

    With `anew`, a set of names, what is made again goes straight into its reader where it can.
    """
    step = banded(step, whole_maps(step), bands) if bands > 1 else in_place(summed(step))
    step = remade(step, again, anew or ())
    return split_into_microbatches(step if anew is None else fused(step), parts)


def repeated_in_parts(step: Step, again: tuple[RematEvent, ...], parts: int) -> Step:
    """A step that is rewritten but for what is made again as often as wanted."""
    return split_into_microbatches(repeated(step, again), parts)
