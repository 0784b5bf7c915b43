"""Runners of set_statistics.cu: statistics of sets, and what is normalised by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, boolean, real_type
from ooc_cudnn.devices.kernels.checks import check, check_packed, workspace_pointer
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import (
    BLOCK_THREADS,
    Rows,
    grid_of,
    is_aligned,
    pack_size,
)
from ooc_cudnn.devices.kernels.normalise import moments_result
from ooc_cudnn.devices.view import ITEM_BYTES, DeviceView
from ooc_cudnn.operations.normalization.batch_launches import MomentsResult
from ooc_cudnn.operations.normalization.layer_in_chain import NormaliseSites
from ooc_cudnn.operations.normalization.set_reduction import (
    FoldImages,
    GroupSums,
    MergeGroups,
    NormaliseSets,
    NormaliseSetsBackward,
    NormaliseSitesBackward,
    SetMoments,
    SetSums,
)
from ooc_cudnn.tensor import ACCUMULATOR, packed_strides

SOURCE = "set_statistics.cu"
#: Sets that a block of threads sums up side by side, `ACROSS` in the kernels: a warp each where
#: members lie side by side, else as many as a warp has lanes.
ALONG, ACROSS = BLOCK_THREADS // 32, 32
#: Neighbouring channels of a site that a thread of `site_products` has.
WIDE = 4
#: Of a site's channels, how many a lane may hold in registers; and bytes of an element of those.
KEPT, KEPT_BYTES = (4, 8, 16, 24, 32, 48), 4

#: Threads of a block that adds up states: few columns have more multiprocessors then.
STATE_THREADS = 32

Triple = tuple[int, int, int]


def broadcast_strides(view: DeviceView | None) -> Triple:
    """Strides (n, c, sites) of what is broadcast over a tensor; 0 where it is.

    >>> broadcast_strides(DeviceView(0, "float32", (3,), (1,)))
    (0, 1, 0)
    >>> broadcast_strides(DeviceView(0, "float32", (2, 1, 4, 5), (20, 20, 5, 1)))
    (20, 0, 1)
    """
    if view is None:
        return 0, 0, 0
    if len(view.shape) == 1:
        return 0, view.strides[0], 0
    sizes, (n, c, sites) = view.flat()
    return n * (sizes[0] > 1), c * (sizes[1] > 1), sites * (sizes[2] > 1)


def _units(operation: SetMoments | SetSums) -> int:
    return -(-operation.members // operation.unit)


def _workspace_bytes(operation: SetMoments | SetSums) -> int:
    """Two numbers of each unit of each set."""
    return 16 * operation.shape[0] * operation.sets * _units(operation)


def _sum(
    operation: SetMoments | SetSums,
    tensors: Sequence[DeviceView | None],
    state: DeviceView | None,
    call: Call,
    of_y: Sequence[DeviceView | None] = (None, None),
    mode: str = "identity",
    coef: float = 0.0,
) -> None:
    """Sum up units, and then sets; of x and dy, and of what is broadcast over them.

    `of_y` are scale and bias of what an activation of a mode was applied to.
    """
    check_packed("the result", call.output, operation.output_shape, "float64")
    if state is not None:
        check_packed("state", state, operation.output_shape, "float64")
    nbytes = _workspace_bytes(operation)
    partial = workspace_pointer(call.workspace, nbytes) if nbytes else 0
    x, dy, *vectors = tensors
    units, images, sets = _units(operation), operation.shape[0], operation.sets

    kind = boolean(isinstance(operation, SetSums))

    def plan(*, of_units: bool) -> Launch | None:
        if images * sets * (units if of_units else 1) == 0:
            return None
        triples = [view.flat()[1] if view else (0, 0, 0) for view in (x, dy)]
        triples += map(broadcast_strides, vectors)
        if operation.by_site:
            triples = [(n, sites, c) for n, c, sites in triples]
        along = triples[0][2] == 1
        sizes = {"images": images, "sets": sets, "members": operation.members}
        units_each = {"unit": operation.unit, "units": units}
        strides = zip(("x", "dy", "mean", "inverse", "scale"), triples, strict=True)
        struct = fill_struct(SOURCE, "Sets", **sizes, **units_each, **dict(strides))
        if not of_units:
            grid = grid_of(images * sets, BLOCK_THREADS)
            return Launch(SOURCE, f"set_totals<{kind}>", grid, struct)
        blocks = images * units * -(-sets // (ALONG if along else ACROSS))
        of_x, of_dy = (CUDA_TYPES[view.dtype if view else operation.dtype] for view in (x, dy))
        if isinstance(operation, SetSums) and _are_of_sites(operation, tensors, triples):
            kernel = f"site_products<{of_x}, {of_dy}, {WIDE}>"
            return Launch(SOURCE, kernel, grid_of(blocks), struct)
        template = f"{of_x}, {kind}, {mode.upper()}, {boolean(along)}, {of_dy}"
        return Launch(SOURCE, f"set_partials<{template}>", grid_of(blocks), struct)

    numbers_after = (partial, real_type(operation.dtype)(coef))
    every = (*tensors, *of_y)
    launch(operation, every, lambda: plan(of_units=True), numbers_after, call.stream)
    launch(
        (operation, "totals"),
        (call.output, state),
        lambda: plan(of_units=False),
        (partial,),
        call.stream,
    )


def _are_of_sites(
    operation: SetSums, tensors: Sequence[DeviceView | None], triples: Sequence[Triple]
) -> bool:
    """True if `site_products` finds them: of channels side by side, with a mean of each site."""
    x, dy, _, inverse, scale = tensors
    per_site = all(steps[2] != 0 for steps in triples[2:4])
    if operation.by_site or operation.mode != "identity" or inverse is None or scale is not None:
        return False
    pairs = list(zip((x, dy), triples[:2], strict=True))
    return (
        per_site
        and operation.sets % WIDE == 0
        and all(steps[1] == 1 for _, steps in pairs)
        and all(view is not None and is_aligned(view, steps[::2], WIDE) for view, steps in pairs)
    )


def set_moments(operation: SetMoments, call: Call) -> None:
    """Run `SetMoments` on (x, state)."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    _sum(operation, (x, None, None, None, None), call.inputs[1], call)


def set_sums(operation: SetSums, call: Call) -> None:
    """Run `SetSums` on (x, dy, mean, inverse deviation, scale, state)."""
    x, dy, mean, inverse, scale, *of_y, state = call.inputs
    check("x", x, operation.shape, operation.dtype)
    check("dy", dy, operation.shape, operation.dy_dtype or operation.dtype)
    vectors = ACCUMULATOR[operation.dtype]
    check_packed("mean", mean, operation.statistics_shape, vectors)
    if inverse is not None:
        check_packed("the inverse deviation", inverse, operation.statistics_shape, vectors)
    if scale is not None:
        check_packed("scale", scale, operation.shape[1:2], vectors)
    for name, view in zip(("scale of y", "bias of y"), of_y, strict=False):
        check_packed(name, view, operation.shape[1:2], vectors)
    after = (of_y or (None, None), operation.mode, operation.coef)
    _sum(operation, (x, dy, mean, inverse, scale), state, call, *after)


# States ---------------------------------------------------------------------------------------


def _on_states(
    operation: Any, call: Call, kernel: str, groups: int, columns: int, threads: int
) -> None:
    """Launch a kernel on states of images, with so many columns each."""

    def plan() -> Launch | None:
        if threads == 0:
            return None
        sizes = {"images": operation.images, "sets": columns, "groups": groups}
        struct = fill_struct(SOURCE, "ImageStates", **sizes)
        return Launch(SOURCE, kernel, grid_of(threads, STATE_THREADS), struct, (STATE_THREADS, 1))

    launch(operation, (call.output, *call.inputs), plan, (), call.stream)


def fold_images(operation: FoldImages, call: Call) -> None:
    """Run `FoldImages` on (images, state); the former may have one axis less if it has one row."""
    images, state = call.inputs
    rows, sets = operation.rows, operation.sets
    flat = rows == 1 and images is not None and len(images.shape) == 2
    shape = (operation.images, sets)
    check_packed("images", images, shape if flat else (rows, *shape), "float64")
    check_packed("the result", call.output, operation.output_shape, "float64")
    if state is not None:
        check_packed("state", state, operation.output_shape, "float64")
    _on_states(operation, call, f"fold_images<{rows}>", 1, sets, sets)


def merge_groups(operation: MergeGroups, call: Call) -> None:
    """Run `MergeGroups` on (state,)."""
    for name, view in (("the result", call.output), ("state", call.inputs[0])):
        check_packed(name, view, operation.output_shape, "float64")
    groups = operation.groups
    _on_states(
        operation, call, "merge_groups<3>", groups, operation.channels, operation.images * groups
    )


def group_sums(operation: GroupSums, call: Call) -> None:
    """Run `GroupSums` on (sums, scale)."""
    for name, view in (("the result", call.output), ("sums", call.inputs[0])):
        check_packed(name, view, operation.output_shape, "float64")
    check_packed("scale", call.inputs[1], (operation.channels,), operation.dtype)
    kernel, groups = f"group_sums<{CUDA_TYPES[operation.dtype]}>", operation.groups
    _on_states(operation, call, kernel, groups, operation.channels, operation.images * groups)


# Elements -------------------------------------------------------------------------------------


def plan_normalise_sets(
    dtype: str,
    mode: str,
    tensors: tuple[DeviceView, DeviceView, DeviceView | None],
    mean: DeviceView,
    scale: DeviceView,
) -> Launch | None:
    """Choose the kernel for (result, x, dy); None if there is nothing to do."""
    result, x, dy = tensors
    (n, c, sites), (_, of_channels, of_sites) = result.flat()
    if result.size == 0:
        return None
    views = [result, x, *([dy] if dy else [])]
    inner_is_channel = c > 1 and of_channels == 1 and not (sites > 1 and of_sites == 1)
    order = (0, 2, 1) if inner_is_channel else (0, 1, 2)

    def turned(triple: Triple) -> Triple:
        outer, middle, inner = (triple[axis] for axis in order)
        return outer, middle, inner

    sizes, strides = turned((n, c, sites)), tuple(turned(view.flat()[1]) for view in views)
    contiguous = all(steps[2] == 1 for steps in strides)
    count = pack_size(Rows(sizes, strides, inner_is_channel, contiguous), views)
    packs = -(-sizes[2] // count)
    statistic, channel = (turned(broadcast_strides(view)) for view in (mean, scale))
    of_result, of_dy = (CUDA_TYPES[view.dtype if view else dtype] for view in (result, dy))
    backward = boolean(dy is not None)
    template = f"{CUDA_TYPES[dtype]}, {mode.upper()}, {backward}, {count}, {of_result}, {of_dy}"
    return Launch(
        SOURCE,
        f"normalise_sets<{template}>",
        grid_of(sizes[0] * sizes[1] * packs, BLOCK_THREADS),
        fill_struct(
            *(SOURCE, "Elements"),
            size=sizes,
            result=strides[0],
            x=strides[1],
            dy=strides[2] if dy else (0, 0, 0),
            statistic=statistic,
            channel=channel,
            packs=packs,
            sets=mean.size,
        ),
    )


def _normalise(
    operation: NormaliseSets | NormaliseSetsBackward,
    call: Call,
    vectors: tuple[DeviceView | None, ...],
    dy: DeviceView | None = None,
    sums: DeviceView | None = None,
    share: float = 0.0,
) -> None:
    """Launch on scale, bias, mean and inverse deviation, and backward dy and sums."""
    mode, coef = operation.mode, operation.coef
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    y_dtype = operation.y_dtype if isinstance(operation, NormaliseSets) else ""
    output = check("the result", call.output, operation.shape, y_dtype or operation.dtype)
    narrow, channels = ACCUMULATOR[operation.dtype], operation.shape[1:2]
    scale, bias, mean, inverse = vectors
    scale = check_packed("scale", scale, channels, narrow)
    mean = check_packed("mean", mean, operation.statistics_shape, narrow)
    check_packed("the inverse deviation", inverse, operation.statistics_shape, narrow)
    launch(
        operation,
        (output, x, dy, scale, bias, mean, inverse, sums),
        lambda: plan_normalise_sets(operation.dtype, mode, (output, x, dy), mean, scale),
        (np.float64(share), real_type(operation.dtype)(coef)),
        call.stream,
    )


def normalise_sets(operation: NormaliseSets, call: Call) -> None:
    """Run `NormaliseSets` on (x, scale, bias, mean, inverse deviation)."""
    check_packed("bias", call.inputs[2], operation.shape[1:2], ACCUMULATOR[operation.dtype])
    _normalise(operation, call, call.inputs[1:])


def normalise_sets_backward(operation: NormaliseSetsBackward, call: Call) -> None:
    """Run `NormaliseSetsBackward` on (x, dy, scale, mean, inverse deviation, sums, bias)."""
    _, dy, scale, mean, inverse, sums, *biases = call.inputs
    bias = biases[0] if biases else None
    if bias is not None:
        check_packed("bias", bias, operation.shape[1:2], ACCUMULATOR[operation.dtype])
    check("dy", dy, operation.shape, operation.dy_dtype or operation.dtype)
    sets = math.prod(operation.statistics_shape[1:])
    check_packed("sums", sums, (2, operation.statistics_shape[0], sets), "float64")
    _normalise(operation, call, (scale, bias, mean, inverse), dy, sums, 1 / operation.count)


def _sites_sums_bytes(operation: NormaliseSitesBackward) -> int:
    """Sums of each site, and what finding them takes."""
    return 16 * math.prod(operation.statistics_shape) + _workspace_bytes(operation.sums)


def normalise_sites_backward(operation: NormaliseSitesBackward, call: Call) -> None:
    """Run `NormaliseSitesBackward` on (x, dy, scale, mean, inverse deviation).

    In one pass where channels lie side by side; else by the sums of each site.
    """
    x, dy, scale, mean, inverse = call.inputs
    views = [
        check(name, view, operation.shape, dtype or operation.dtype)
        for name, view, dtype in (
            ("x", x, ""), ("dy", dy, operation.dy_dtype), ("dx", call.output, "")
        )
    ]  # fmt: skip
    x, dy, dx = views
    nbytes = _sites_sums_bytes(operation)
    start = workspace_pointer(call.workspace, nbytes) if nbytes else 0
    if any(view.strides[1] != 1 for view in views):
        shape = operation.sums.output_shape
        sums = DeviceView(start, "float64", shape, packed_strides(shape))
        taken = sums.size * sums.item_bytes
        rest = call._replace(workspace=(start + taken, nbytes - taken))
        found = rest._replace(inputs=(x, dy, mean, inverse, scale, None), output=sums)
        set_sums(operation.sums, found)
        normalise_sets_backward(operation.by_sums, rest._replace(inputs=(*call.inputs, sums)))
        return
    vectors = ACCUMULATOR[operation.dtype]
    check_packed("scale", scale, operation.shape[1:2], vectors)
    for name, view in (("mean", mean), ("the inverse deviation", inverse)):
        check_packed(name, view, operation.statistics_shape, vectors)

    def plan() -> Launch | None:
        images, members, sites = x.flat()[0]
        if images * members * sites == 0:
            return None
        triples = (view.flat()[1] for view in views)
        strides = {
            name: (n, each, c)
            for name, (n, c, each) in zip(("x", "dy", "dx"), triples, strict=True)
        }
        sizes = {"images": images, "sites": sites, "members": members}
        struct = fill_struct(SOURCE, "Sites", **sizes, **strides)
        fits = ITEM_BYTES[operation.dtype] <= KEPT_BYTES
        kept = next((each for each in KEPT if fits and 32 * each >= members), 0)
        types = CUDA_TYPES[operation.dtype], CUDA_TYPES[dy.dtype]
        kernel = f"normalise_sites_backward<{types[0]}, {kept}, {types[1]}>"
        return Launch(SOURCE, kernel, grid_of(images * sites, ALONG), struct)

    share = np.float64(1 / operation.shape[1])
    launch(operation, (dx, x, dy, scale, mean, inverse), plan, (share,), call.stream)


def _sites_workspace(operation: NormaliseSites) -> int:
    """Moments, mean and inverse deviation of each site, and what finding them takes."""
    sites = math.prod(operation.statistics_shape)
    return (24 + 2 * ITEM_BYTES[ACCUMULATOR[operation.dtype]]) * sites + _workspace_bytes(
        operation.moments
    )


def normalise_sites(operation: NormaliseSites, call: Call) -> None:
    """Run `NormaliseSites` on (x, scale, bias): all that layer normalisation takes, in order."""
    x, *vectors = call.inputs
    kept, dtype = operation.statistics_shape, ACCUMULATOR[operation.dtype]
    nbytes = _sites_workspace(operation)
    start = workspace_pointer(call.workspace, nbytes) if nbytes else 0
    end = start + nbytes

    def taken(shape: tuple[int, ...], of: str) -> DeviceView:
        """The next part of the workspace."""
        nonlocal start
        view = DeviceView(start, of, shape, packed_strides(shape))
        start += view.size * view.item_bytes
        return view

    state = taken(operation.moments.output_shape, "float64")
    saved = {what: taken(kept, dtype) for what in ("mean", "inverse_deviation")}
    rest = call._replace(workspace=(start, end - start))
    set_moments(operation.moments, rest._replace(inputs=(x, None), output=state))
    for what, vector in saved.items():
        result = MomentsResult(kept, what, dtype, operation.epsilon)
        moments_result(result, rest._replace(inputs=(state, None), output=vector))
    normalise = NormaliseSets(operation.shape, operation.dtype, by_site=True)
    normalise_sets(normalise, rest._replace(inputs=(x, *vectors, *saved.values())))


RUNNERS: dict[type, Runner] = {
    SetMoments: set_moments,
    SetSums: set_sums,
    FoldImages: fold_images,
    MergeGroups: merge_groups,
    GroupSums: group_sums,
    NormaliseSets: normalise_sets,
    NormaliseSetsBackward: normalise_sets_backward,
    NormaliseSitesBackward: normalise_sites_backward,
    NormaliseSites: normalise_sites,
}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    SetMoments: _workspace_bytes,
    SetSums: _workspace_bytes,
    NormaliseSites: _sites_workspace,
    NormaliseSitesBackward: _sites_sums_bytes,
}
