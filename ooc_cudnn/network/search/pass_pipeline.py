"""The pass pipeline: which rewrites of a step run, in which order."""

from __future__ import annotations

from collections.abc import Set

from ooc_cudnn.network.ir.step import RematEvent, Step
from ooc_cudnn.network.passes.compress_activations import compress_activations
from ooc_cudnn.network.passes.copy_skip_connections import copy_skip_connections, skipped_over
from ooc_cudnn.network.passes.fuse_activation_gradients import fuse_activation_gradients
from ooc_cudnn.network.passes.fuse_chains import fuse_chains
from ooc_cudnn.network.passes.fuse_gradient_sums import fuse_gradient_sums
from ooc_cudnn.network.passes.inplace_gradients import share_gradient_memory
from ooc_cudnn.network.passes.insert_remat_events import insert_remat_events
from ooc_cudnn.network.passes.microbatch import split_into_microbatches
from ooc_cudnn.network.passes.remat_for_backward import rematerialize
from ooc_cudnn.network.passes.row_tiling import tile_rows, whole_maps
from ooc_cudnn.network.passes.row_tiling_remakes import bind_bases
from ooc_cudnn.network.passes.split_concatenations import split_concatenations
from ooc_cudnn.network.search.mo_sos import POLICIES as WHOLE


def canonicalize(step: Step, policy: str) -> Step:
    """The step that a policy takes: vDNN's keep whole maps for backward, as the paper does."""
    step = fuse_activation_gradients(step)
    if policy in WHOLE:
        from ooc_cudnn.network.search.mo_sos.plan import canonicalize_whole_maps

        return canonicalize_whole_maps(step)
    return fuse_chains(step if policy.startswith("vdnn") else compress_activations(step))


def take_concatenations_apart(step: Step) -> Step:
    """A step without concatenations that need not be whole, and with copies into the others."""
    step = split_concatenations(step)
    return copy_skip_connections(step, skipped_over(step))


def apply_passes(
    step: Step, again: frozenset[str], parts: int, bands: int, anew: Set[str] | None = None
) -> Step:
    """A step with what is remade, in bands of rows, in micro-batches.

    With `anew`, a set of names, what is made again goes straight into its reader where it can. In
    bands these are what each region makes for itself.
    """
    if bands > 1:
        step = bind_bases(step) if anew else step
        step = tile_rows(step, whole_maps(step), bands, anew or frozenset())
        return split_into_microbatches(rematerialize(step, again), parts)
    step = share_gradient_memory(fuse_gradient_sums(step))
    step = rematerialize(step, again, anew or ())
    return split_into_microbatches(step if anew is None else fuse_chains(step), parts)


def rematerialize_in_parts(step: Step, again: tuple[RematEvent, ...], parts: int) -> Step:
    """A step that is rewritten but for what is made again as often as wanted."""
    return split_into_microbatches(insert_remat_events(step, again), parts)
