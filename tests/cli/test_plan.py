"""`ooc-cudnn plan`: every function, from its own signature; chains from text."""

import inspect
import json
import shlex
from typing import Any

import pytest

from ooc_cudnn import cli, operations
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.cli.arguments import Defaults, kind_of, parameters_of, sizes
from ooc_cudnn.cli.chain import OPERATIONS, read_chain
from ooc_cudnn.cli.plan import EXAMPLES, example, function_parser
from ooc_cudnn.functions.call.decorator import FUNCTIONS
from ooc_cudnn.tensor import TensorSpec

H200 = ("--machine", "h200", "--memory-limit", "1GiB")


def planned(capsys, *arguments):
    status = cli.main(["plan", *arguments, "--json"])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return Plan.from_json(json.loads(out))


def failed(capsys, *arguments):
    status = cli.main(["plan", *arguments])
    out, err = capsys.readouterr()
    assert (status, out) == (1, "")
    assert err.startswith("ooc-cudnn: error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_every_function_plans_it(capsys, name):
    words = shlex.split(example(name))
    assert words[:3] == ["ooc-cudnn", "plan", name]
    plan = planned(capsys, *words[2:])
    assert plan.function == name
    given = dict(plan.operands)
    assert {spec.placement for spec in given.values()} <= {"pinned", "device"}


def test_the_limit_has_the_name_that_other_commands_give_it(capsys):
    asked = ("activation_forward", "--x", "512x64x256x256", "--machine", "h200")
    short, long = (planned(capsys, *asked, name, "1GiB") for name in ("--limit", "--memory-limit"))
    assert short == long
    assert short.memory_limit == 2**30


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_of_every_function_names_all_its_arguments_and_shows_the_example(capsys, name):
    with pytest.raises(SystemExit) as stop:
        cli.main(["plan", name, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert example(name) in out
    for argument, parameter in parameters_of(FUNCTIONS[name]).items():
        if argument == "operations":
            assert "OPERATIONS" in out
        elif argument != "out":
            assert kind_of(parameter.annotation).read is not None, argument
            assert f"  --{argument.replace('_', '-')} " in out
    parser = function_parser(name)
    told = [action.help for action in parser._actions]
    assert all(told), "every argument says what it is"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_argument_of_a_public_function_is_any(name):
    for argument, parameter in parameters_of(FUNCTIONS[name]).items():
        assert parameter.annotation is not Any, argument
        assert parameter.annotation is not inspect.Parameter.empty, argument


def test_help_of_plan_lists_the_functions(capsys):
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    out = capsys.readouterr().out
    assert all(f"  {name}\n" in out for name in FUNCTIONS)


def test_arguments_are_those_of_the_function(capsys):
    plan = planned(
        capsys, "convolution_add_activation_pooling", "--x", "4x8x40x50@disk",
        "--w", "6x4x3x5@device", "--b", "6@pageable", "--window", "3x2",
        "--padding", "(0,1),2", "--stride", "1,2",
        "--groups", "2", "--activation", "elu", "--coef", "0.5",
        "--mode", "average_include_padding",
        "--pooling-padding", "1,0", "--pooling-stride", "2", "--alpha", "0.5", "--dtype", "float64",
        "--placement", "pageable", "--out-placement", "disk", *H200,
    )  # fmt: skip
    specs = dict(plan.operands)
    assert specs["y"].shape == (4, 6, 20, 12)
    assert {name: spec.placement for name, spec in specs.items()} == {
        "x": "disk", "w": "device", "b": "pageable", "y": "disk",
    }  # fmt: skip
    assert {spec.dtype for spec in specs.values()} == {"float64"}


def test_several_results_go_where_they_should(capsys):
    plan = planned(
        capsys, "convolution_add_activation_backward", "--x", "2x3x8x8", "--w", "4x3x3x3",
        "--y", "2x4x6x6", "--dy", "2x4x6x6", "--out-placement", "pageable", *H200,
    )  # fmt: skip
    found = {name: spec.placement for name, spec in plan.operands}
    assert {found[name] for name in ("dx", "dw", "db")} == {"pageable"}
    assert {found[name] for name in ("x", "w", "y", "dy")} == {"pinned"}


def test_vectors_of_half_types_are_as_the_functions_want_them(capsys):
    plan = planned(
        capsys, "batch-normalization-forward-training", "--x", "4x8x16x16", "--dtype", "float16",
        "--running-mean", "8", "--running-variance", "8", *H200,
    )  # fmt: skip
    specs = dict(plan.operands)
    assert specs["x"].dtype == "float16"
    assert {specs[name].dtype for name in ("scale", "bias", "running_mean")} == {"float32"}
    assert specs["scale"].shape == (8,)


def test_what_changes_in_place_does_so_unless_a_result_is_placed(capsys):
    words = ("add_tensor", "--b", "8", "--y", "4x8x16x16", *H200)
    assert [name for name, _ in planned(capsys, *words).operands] == ["b", "y"]
    apart = dict(planned(capsys, *words, "--out-placement", "disk").operands)
    assert apart["out"].placement == "disk"


def test_beta_needs_no_result_to_be_named(capsys):
    plan = planned(capsys, "activation", "--x", "4x8x16x16", "--beta", "0.5", *H200)
    assert plan.bytes_in == 2 * plan.bytes_out


@pytest.mark.parametrize("short", ["pooling", "pooling-forward", "pooling_f"])
def test_a_function_has_short_names(capsys, short):
    plan = planned(capsys, short, "--x", "1x3x8x8", "--window", "2", *H200)
    assert plan.function == "pooling_forward"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convolution_forwrd",), "did you mean 'convolution_forward'?"),
        (("poolin_forward",), "did you mean 'pooling_forward'?"),
        (("pooling", "--x", "1x3x8x8"), "--window"),
        (("pooling_backward", "--x", "1x3x8x8", "--window", "2"), "required: --y, --dy"),
        (("pooling", "--x", "1x3x8x8", "--window", "wide"), "argument --window: 'wide'"),
        (("pooling", "--x", "1x0x8x8", "--window", "2"), "argument --x: '1x0x8x8' is empty"),
        (("pooling", "--x", "1x8@pined", "--window", "2"), "did you mean 'pinned'?"),
        (("pooling", "--x", "1x3x8x8", "--w", "1x1"), "--window"),
        (("activation", "--x", "1x3", "--coef", "one"), "argument --coef: 'one' is not a number"),
        (("chain", "--x", "1x3x8x8"), "OPERATIONS"),
    ],
)
def test_a_wrong_command_line_names_the_argument(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        cli.main(["plan", *arguments])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert "usage: ooc-cudnn plan" in err


def test_an_error_of_the_function_is_one_line(capsys):
    err = failed(capsys, "pooling_backward", "--y", "1x3x4x4", "--dy", "1x3x5x5", "--x", "1x3x8x8",
                 "--window", "2", *H200)  # fmt: skip
    assert "dy must have shape (1, 3, 4, 4)" in err
    assert "activation" in failed(capsys, "convolution_add_activation", "--x", "1x3x8x8",
                                  "--w", "4x3x3x3", "--activation", "rellu", *H200)  # fmt: skip


@pytest.mark.parametrize(("text", "value"), [
    ("1", 1), ("1,2", (1, 2)), ("1x2", (1, 2)), ("(0,1),2", ((0, 1), 2)), ("(0, 1)", ((0, 1),)),
    ("((0,1),2)", None), ("True", None), ("1.5", None), ("", None), ("1,", None),
])  # fmt: skip
def test_sizes(text, value):
    if value is None:
        with pytest.raises(Exception, match="is not a size"):
            sizes(text)
    else:
        assert sizes(text) == value


class TestChain:
    def test_the_words_of_the_issue(self, capsys):
        plan = planned(
            capsys, "chain", "--x", "1x3x4096x4096",
            "convolution 64 window 3 padding 1; activation relu; pooling 2", *H200,
        )  # fmt: skip
        specs = dict(plan.operands)
        assert plan.function == "chain_forward"
        assert specs["w"].shape == (64, 3, 3, 3)
        assert specs["y"].shape == (1, 64, 2048, 2048)

    def test_every_operation_can_be_written(self):
        assert len(OPERATIONS) == len(operations.__all__)
        text = (
            "conv 8 window 3x5 stride 2 groups 4 @device; batch_norm epsilon 0.1; bias; "
            "elu coef 2; "
            "op_tensor maximum alpha-b 0.5 @disk; add 2x8x1x1; prelu; "
            "pool 2 mode average_exclude_padding; "
            "layer_norm epsilon 0.1; transposed 8x8x2x2; local_response 3; interpolation 9x9; "
            "pad 1x0; crop 1x2 8x6; adaptive 3 mode max"
        )
        half = Defaults("float16", "pinned")
        found = read_chain(text, TensorSpec((2, 4, 32, 32), "float16"), half)
        convolution, norm, bias, elu, maximum, add, prelu, pooling, layer, *shaping = found
        assert {type(each) for each in found} == {*OPERATIONS.values()}
        assert convolution.w == TensorSpec((8, 1, 3, 5), "float16", "device")
        assert (convolution.stride, convolution.groups) == (2, 4)
        assert norm.mean == TensorSpec((8,), "float32", "pinned")
        assert norm.epsilon == 0.1
        assert bias.b == TensorSpec((8,), "float16", "pinned")
        assert (elu.mode, elu.coef) == ("elu", 2.0)
        assert maximum.b == TensorSpec((2, 8, 15, 14), "float16", "disk")
        assert (maximum.op, maximum.alpha_b) == ("maximum", 0.5)
        assert add.b.shape == (2, 8, 1, 1)
        assert prelu.w == TensorSpec((8,), "float16", "pinned")
        assert (pooling.window, pooling.mode) == (2, "average_exclude_padding")
        assert layer.scale == TensorSpec((8,), "float32", "pinned")
        assert shaping[0].w == TensorSpec((8, 8, 2, 2), "float16", "pinned")
        assert (shaping[-1].output, shaping[-1].mode) == (3, "max")

    def test_filters_may_be_given_whole(self):
        x, defaults = TensorSpec((1, 3, 8, 8)), Defaults("float32", "pinned")
        (whole,) = read_chain("convolution 4x3x3x3@disk", x, defaults)
        (parts,) = read_chain("convolution 4 window 3 @disk", x, defaults)
        assert whole.w == parts.w == TensorSpec((4, 3, 3, 3), "float32", "disk")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("convolution", "write convolution 64 window 3"),
            ("convolution 64", "write convolution 64 window 3"),
            ("convolution 64 windw 3", "did you mean 'window'?"),
            ("convolution 4x3x3x3 window 3", "leave out window 3"),
            ("convolution 4 window 3 padding", "padding has no value"),
            ("convolution 4 window 3 window 3", "window is given twice"),
            ("convolution 4 window 3 @pined", "did you mean 'pinned'?"),
            ("convolution 4 window 3 groups 2", "groups"),
            ("convolution 4 window 99", "larger than x"),
            ("convolutoin 4 window 3", "did you mean 'convolution'?"),
            ("rellu", "did you mean 'relu'?"),
            ("activation rellu", "not 'rellu'"),
            ("pooling", "window is missing; pooling takes window, mode, padding, stride"),
            ("pooling two", "window: 'two' is not a size"),
            ("pooling 2 2", "'2' is no argument"),
            ("op_tensor", "op is missing"),
            ("relu;; relu", "number 2, '', on a tensor of 1 x 3 x 8 x 8: nothing is written there"),
            ("", "nothing is written there"),
        ],
    )
    def test_an_error_names_the_operation_and_the_remedy(self, capsys, text, message):
        err = failed(capsys, "chain", "--x", "1x3x8x8", text, *H200)
        assert message in err
        assert "operations: number" in err

    def test_a_later_operation_is_named_with_what_flows_in(self, capsys):
        err = failed(capsys, "chain", "--x", "1x3x8x8", "pooling 4; pooling 3", *H200)
        assert "number 2, 'pooling 3', on a tensor of 1 x 3 x 2 x 2: window (3, 3)" in err


def test_examples_are_of_arguments_that_exist():
    arguments = {name for function in FUNCTIONS.values() for name in parameters_of(function)}
    assert set(EXAMPLES) <= arguments
