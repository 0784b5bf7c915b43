"""All idioms, by what they are about."""

from __future__ import annotations

from tests.torch.idioms import (
    arguments,
    attributes,
    between,
    bodies,
    changes,
    control,
    found,
    functions,
    gradients,
    hooked_views,
    indices,
    late_objects,
    late_reads,
    late_tensors,
    layers,
    masks_beside,
    outputs,
    several_results,
    shared_draws,
    statistics,
    values,
    without_gradient,
)

THEMES = (
    arguments,
    functions,
    several_results,
    masks_beside,
    without_gradient,
    bodies,
    gradients,
    hooked_views,
    indices,
    statistics,
    shared_draws,
    attributes,
    changes,
    values,
    outputs,
    late_objects,
    late_reads,
    late_tensors,
    layers,
    control,
    between,
    found,
)
TABLE = [idiom for theme in THEMES for idiom in theme.CASES]
