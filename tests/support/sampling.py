"""Of large products of parameters `make test` runs a sample; `make test-all` runs every case.

Tests of some folders and files, which go through everything that a function may be given, are
sampled where they have several parameters (`ONE_IN`). Of tests whose cases are alike some cases run
(`ALIKE`). The cases of other tests take turns (`TURNS`): many tests of a file go through the same
names, and each name is in some of them. Tests marked `every_case` run where every case does: what
they find others find too. What goes through cases of its own asks `number` how many it takes.

A sample is judged by mutants: code under test is edited in small ways (a comparison, an off by
one, a dropped term), and a sample should fail for each edit that all cases fail for. A case that
alone found one is named in `ALIKE`. `python -m tests.support.mutants` does so.
"""

from __future__ import annotations

import os
from collections import Counter

#: Of tests in these folders and files of `tests/` one case in so many runs.
ONE_IN = {
    "functions": 32, "devices": 6, "operations": 6,
}  # fmt: skip
#: Of other tests in these folders that still have `FEW` cases or more, one in so many runs, and in
#: each test of a file others do.
TURNS = {
    "benchmarks": 3, "calibration": 3, "dask": 3, "functions": 6, "fuzz": 3, "memory": 3,
    "network": 6, "operations": 2, "pipeline": 3, "call_planner": 3, "torch": 6,
}  # fmt: skip
FEW = 2
#: Of these tests one case in so many runs (0: none but those named), and those cases that alone
#: found a mutant. Of a product
#: of parameters the number has no factor in common with their counts: all values have their turn.
ALIKE = {
    "benchmarks/test_amp.py::test_a_network_is_trained_in_every_way": (17,),
    "benchmarks/test_benchmarks.py::test_a_quick_run_writes_verified_results": (6,),
    "benchmarks/test_contenders.py::"
    "test_a_tiny_case_runs_on_the_host_and_its_contents_are_right": (3,),
    "dask/test_drawn_calls.py::test_equal_to_one_call": (12,),
    "devices/cuda/test_added_gradients.py::test_under_every_split": (2,),
    "examples/test_examples.py::test_the_loss_falls_on_a_fixed_batch": (2,),
    "functions/test_in_place.py::test_whichever_axis_is_cut": (
        37, "dilated-fused backward-channels_last"
    ),
    "functions/test_nonfinite.py::test_cuts_change_nothing": (
        11, "average_exclude_padding backward: 2d"
    ),
    "fuzz/test_fuzz.py::test_drawn_modules": (1,),  # all: they find what nothing else does
    "network/test_attention.py::test_packed_steps_under_falling_limits": (2,),
    "network/test_attention.py::test_steps_under_falling_limits": (2,),
    "network/runtime/test_two_part.py::test_a_step_that_pauses_may_go_in_slabs": (2,),
    "network/test_steps.py::test_with_exactly_the_least_memory": (3,),
    "test_activity.py::test_long_things_are_silent_in_a_pipe_and_where_that_is_asked_for": (
        3, "Terminal-False-a plan"
    ),
    "test_activity.py::test_long_things_are_told_of": (3, "notebook-a plan"),
    "torch/test_changes_between_calls.py::test_a_change_is_seen": (8,),
    "torch/test_changes_between_calls.py::test_what_vars_reach_is_changed": (8,),
    "torch/test_checkpoints.py::test_a_checkpoint_has_the_history_that_it_has_in_eager": (4,),
    "torch/test_fallback_runner.py::test_a_weight_whose_rows_are_images_is_read_whole": (3,),
    "torch/test_extra_guards.py::test_a_change_is_seen": (8,),
    "torch/test_idioms.py::test_an_idiom_under_an_ample_limit": (37,),
    "torch/test_idioms.py::test_an_idiom_under_the_least_limit": (193,),
    "torch/test_idioms.py::test_an_idiom_of_images_of_several_sizes": (193,),
    "torch/test_idioms.py::test_eager_is_equal_to_eager": (97,),
    "torch/test_inference_blocks.py::test_blocks_are_those_of_the_whole_image": (23,),
    "torch/test_inference_blocks.py::test_drawn_models_are_exact_in_drawn_blocks": (3,),
    "torch/test_losses.py::test_a_loss_is_that_of_eager": (5,),
    "torch/test_memory_of_outputs.py::test_one_is_changed_in_place": (5,),
    "torch/test_models.py::test_a_model_is_the_same_under_limits": (100,),
    "torch/test_models_of_today.py::test_a_tiny_twin_trains_as_eager_does": (
        0, "wavenet"
    ),  # one on samples; others have models of torchvision and of MONAI
    "torch/test_modules.py::test_a_module_is_that_of_eager": (5,),
    "torch/test_numbers.py::test_a_number_is_taken_as_pytorch_takes_it": (11,),
    "torch/test_operations.py::test_an_operation_is_pytorchs": (19, "pad: both"),
    "torch/test_torchvision.py::test_a_model_of_torchvision_is_the_same_under_limits": (5,),
    "torch/test_special_values.py::test_values_and_gradients_are_those_of_eager": (11,),
    "torch/test_unbatched.py::test_a_map_without_images_is_computed_as_eager_does": (7,),
}  # fmt: skip
#: Whether every case runs: `make test-all`.
EVERY = bool(os.environ.get("OOC_TESTS_EVERY_CASE"))


def short_search():
    """Let searches for the plan of a step end after little work, but where every case runs.

    What a test says of a plan holds of the first one that is found. A test of what the search finds
    in the end says so. Returns the settings, for a fixture that is made before those of a test.
    """
    import ooc_cudnn

    return ooc_cudnn.settings(planning_seconds=number(0.05, of=10.0))


def number(few, *, of):
    """So few of the cases that a test goes through, or all where every case runs."""
    return of if EVERY else few


def sample(cases, one_in):
    """The places of one in so many cases, with each value of each parameter in at least one.

    Values are numbered in the order they come in. Where the numbers of a case sum to a multiple of
    `one_in` it is taken: of two parameters a diagonal, of three every pair of values that such a
    share has room for. Last come the values that no case has yet.

    Parameters
    ----------
    cases : list of tuples
        The values of each case, one a parameter.

    Examples
    --------
    >>> cases = [(a, b) for a in "xyz" for b in "pqr"]
    >>> [cases[at] for at in sample(cases, 3)]
    [('x', 'p'), ('y', 'r'), ('z', 'q')]
    >>> sample([("x", "p"), ("x", "q"), ("y", "q")], 3)
    [0, 1, 2]
    """
    numbers = {}  # of a parameter's value: a count of those before it
    counts = [0] * max(map(len, cases), default=0)
    for values in cases:
        for at, value in enumerate(values):
            if (at, value) not in numbers:
                numbers[at, value] = counts[at]
                counts[at] += 1
    taken = [
        place
        for place, values in enumerate(cases)
        if sum(numbers[each] for each in enumerate(values)) % one_in == 0
    ]
    seen = {each for place in taken for each in enumerate(cases[place])}
    for place, values in enumerate(cases):
        if not seen.issuperset(enumerate(values)):
            taken.append(place)
            seen.update(enumerate(values))
    return sorted(taken)


def values_of(item):
    """The values of a test's parameters; a name such as "gradient of data: 2d" has two."""
    found = []
    for value in item.callspec.params.values():
        found += value.split(": ") if isinstance(value, str) else [str(value)]
    return tuple(found)


def is_whole(config):
    """Whether all cases run: they are asked for, or what runs is named."""
    return EVERY or config.option.keyword or any("::" in argument for argument in config.args)


def left_out(items):
    """What is marked `every_case`, and cases that are not in the sample of their test."""
    found = {item for item in items if item.get_closest_marker("every_case")}
    cases = {}
    for item in items:
        if hasattr(item, "callspec") and item not in found:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    tests = Counter()  # of a file
    for test, of_test in cases.items():
        file = test.partition("::")[0]
        taken = {of_test[at] for at in places_taken(test.partition("/")[2], of_test, tests[file])}
        found |= set(of_test) - taken
        tests[file] += 1
    return found


def places_taken(test, items, turn):
    """The places of a test's cases that run.

    Parameters
    ----------
    test : str
        Its path in `tests/`, and name.
    items : list of pytest.Item
    turn : int
        How many tests with cases come before it in its file.
    """
    if test in ALIKE:
        one_in, *named = ALIKE[test]
        return [
            at for at, item in enumerate(items)
            if (one_in and at % one_in == 0) or item.callspec.id in named
        ]  # fmt: skip
    file = test.partition("::")[0]
    one_in = _of(ONE_IN, file)
    taken = range(len(items))
    if one_in > 1:
        taken = sample([values_of(item) for item in items], one_in)
    turns = _of(TURNS, file) if len(taken) >= FEW else 1
    return taken[turn % min(turns, len(taken)) :: turns]


def _of(table, file):
    """What a table has for a file of `tests/`, or for its folder."""
    return table.get(file, table.get(file.split("/")[0], 1))
