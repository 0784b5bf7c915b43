"""`plan`: what the call itself would do, from specs, for this machine or another."""

import json

import numpy as np
import pytest

import ooc_cudnn
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.call.decorator import FUNCTIONS
from ooc_cudnn.functions.call.plan_api import plan
from ooc_cudnn.operations import AddTensor, Convolution
from ooc_cudnn.tensor import TensorSpec
from perfmodel import shipped

X = TensorSpec((512, 64, 256, 256))
W = TensorSpec((64, 64, 3, 3), placement="device")
B = TensorSpec((64,), placement="device")


POOLED = TensorSpec((512, 64, 128, 128))
VECTOR = {"scale": B, "bias": B}
SAVED = {"saved_mean": B, "saved_inverse_variance": B}
#: Arguments of each function, and the operands of its plan.
CALLS = {
    "convolution_forward": ({"x": X, "w": W, "padding": 1}, "x w y"),
    "convolution_backward_data": ({"w": W, "dy": X, "padding": 1}, "w dy dx"),
    "convolution_backward_filter": ({"x": X, "dy": X, "padding": 1}, "x dy dw"),
    "convolution_backward_bias": ({"dy": X}, "dy db"),
    "add_tensor": ({"b": B, "y": X}, "b y"),
    "activation_forward": ({"x": X}, "x y"),
    "activation_backward": ({"y": X, "dy": X, "x": X, "mode": "gelu"}, "x dy dx"),
    "pooling_forward": ({"x": X, "window": 2}, "x y"),
    "pooling_backward": ({"y": POOLED, "dy": POOLED, "x": X, "window": 2}, "y dy x dx"),
    "softmax_forward": ({"x": X, "mode": "instance"}, "x y"),
    "softmax_backward": ({"y": X, "dy": X}, "y dy dx"),
    "batch_normalization_forward_training": (
        {"x": X, **VECTOR, "running_mean": B, "running_variance": B},
        "x scale bias y saved_mean saved_inverse_variance running_mean running_variance",
    ),
    "batch_normalization_forward_inference": (
        {"x": X, **VECTOR, "mean": B, "variance": B},
        "x scale bias mean variance y",
    ),
    "batch_normalization_backward": (
        {"x": X, "dy": X, "scale": B, **SAVED},
        "x dy scale saved_mean saved_inverse_variance dx dscale dbias",
    ),
    "convolution_add_activation_forward": ({"x": X, "w": W, "b": B, "padding": 1}, "x w b y"),
    "convolution_add_activation_pooling_forward": (
        {"x": X, "w": W, "b": B, "padding": 1, "window": 2},
        "x w b y",
    ),
    "convolution_add_activation_backward": (
        {"x": X, "w": W, "y": X, "dy": X, "padding": 1},
        "x w y dy dx dw db",
    ),
    "chain_forward": (
        {"x": X, "operations": [Convolution(W, padding=1), AddTensor(B), Convolution(W)]},
        "x w0 b w2 y",
    ),
}


def planned(function="convolution_forward", **changes):
    arguments = {"x": X, "w": W, "padding": 1, "machine": "h200", "memory_limit": "1GiB"}
    return plan(function, **(arguments | changes))


class TestAnotherMachine:
    def test_no_device_is_asked(self, monkeypatch):
        def forbidden(setting):
            raise AssertionError("a device was asked for")

        monkeypatch.setattr("ooc_cudnn.functions.call.plan_api.get_device", forbidden)
        found = planned()
        assert found.machine == "h200"
        assert found.device_bytes <= found.memory_limit == 2**30
        assert found.workspace_bytes == 0

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_every_function_can_be_planned(self, function):
        arguments, operands = CALLS[function]
        found = plan(function, machine="h200", memory_limit="1GiB", **arguments)
        assert found.function == function
        assert [name for name, _ in found.operands] == operands.split()
        assert 0 < found.device_bytes <= 2**30
        # More than the link alone could do would be a lie; ten times slower is no plan.
        moved = max(found.bytes_in, found.bytes_out)
        assert moved / 60e9 < found.seconds < 10 * (found.bytes_in + found.bytes_out) / 50e9
        assert function in str(found)
        assert Plan.from_json(json.loads(json.dumps(found.to_json()))) == found

    def test_a_model_a_file_and_a_name_mean_the_same(self, tmp_path):
        shipped("h200").save(tmp_path / "mine.json")
        assert (
            planned(machine=shipped("h200")) == planned() == planned(machine=tmp_path / "mine.json")
        )

    @pytest.mark.parametrize(
        ("channels", "layout"), [(64, "channels_first"), (512, "channels_last")]
    )
    def test_windows_are_computed_in_another_memory_order_where_that_is_faster(
        self, channels, layout
    ):
        x = TensorSpec((16, channels, 64, 64), "float16", "device")
        w = TensorSpec((channels, channels, 3, 3), "float16", "device")
        assert planned(memory_limit="100GiB", x=x, w=w).layout == layout

    @pytest.mark.parametrize("machine", ["h201", "H200x"])
    def test_an_unknown_machine_is_named_with_the_nearest(self, machine):
        with pytest.raises(ValueError, match=r"did you mean 'h200'"):
            planned(machine=machine)

    def test_a_file_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(ValueError, match="no such file"):
            planned(machine=str(tmp_path / "none.json"))

    def test_a_folder_is_no_machine(self, tmp_path):
        with pytest.raises(ValueError, match="is a folder; give the file"):
            ooc_cudnn.plan("activation_forward", x=TensorSpec((1, 2, 3)), machine=tmp_path)


class TestLimit:
    def test_the_argument_the_setting_then_the_machine(self):
        with ooc_cudnn.settings(memory_limit="2GiB"):
            assert planned(memory_limit=None).memory_limit == 2**31
            assert planned(memory_limit="3GiB").memory_limit == 3 * 2**30
        assert planned(memory_limit=None).memory_limit == int(0.9 * 150_754_820_096)
        assert planned(memory_limit=0.5).memory_limit == 150_754_820_096 // 2

    def test_a_machine_that_does_not_say_needs_one(self):
        with pytest.raises(ValueError, match=r"'host' does not say.*memory_limit"):
            planned(machine="host", memory_limit=None)
        with pytest.raises(ValueError, match="memory_limit"):
            planned(machine="host", memory_limit=0.5)
        assert planned(machine="host", memory_limit=2**30).memory_limit == 2**30

    def test_what_lies_on_the_device_as_a_whole_needs_no_more(self):
        """Cut into single elements it would take slots; whole, only the vector takes one."""
        device = {name: TensorSpec((32, 64, 16, 56), placement="device") for name in ("y", "out")}
        given = dict(b=TensorSpec((64,)), **device, machine="h200")
        with pytest.raises(PlanInfeasibleError) as error:
            ooc_cudnn.plan("add_tensor", memory_limit=1, **given)
        assert error.value.smallest_bytes == 256
        assert ooc_cudnn.plan("add_tensor", memory_limit=256, **given).device_bytes == 256

    def test_a_limit_too_small_says_what_would_do(self):
        with pytest.raises(PlanInfeasibleError) as error:
            planned(memory_limit=1000)
        smallest = error.value.smallest_bytes
        assert planned(memory_limit=smallest).device_bytes <= smallest

    @pytest.mark.parametrize("limit", ["lots", -1, float("nan")])
    def test_a_limit_that_is_none_is_refused(self, limit):
        with pytest.raises(ValueError, match="memory_limit"):
            planned(memory_limit=limit)


class TestResult:
    def test_where_it_goes_is_the_functions_own_rule(self):
        placed = {"pinned": "pinned", "pageable": "pageable", "disk": "pageable"}
        for x, y in placed.items():
            found = planned(x=TensorSpec(X.shape, placement=x))
            assert dict(found.operands)["y"].placement == y
        on_device = TensorSpec((4, 64, 256, 256), placement="device")
        small = planned(x=on_device, memory_limit="1GiB")
        assert dict(small.operands)["y"].placement == "device"
        # the result takes its room from the limit
        assert small.memory_limit == 2**30 - on_device.nbytes
        large = planned(x=on_device, memory_limit="63MiB")
        assert dict(large.operands)["y"].placement == "pinned"

    def test_out_is_a_spec_or_an_array_and_checked(self):
        assert dict(planned(out=X).operands)["y"].placement == "pinned"
        with pytest.raises(ValueError, match="out must have shape"):
            planned(out=TensorSpec((1, 64, 256, 256)))
        with pytest.raises(TypeError, match="out must be float32"):
            planned(out=TensorSpec(X.shape, "float16"))

    def test_beta_needs_out(self):
        with pytest.raises(ValueError, match="beta"):
            planned(beta=1.0)
        assert planned(beta=1.0, out=X).bytes_in == 2 * X.nbytes


class TestArguments:
    def test_an_unknown_function_lists_all_and_suggests(self):
        with pytest.raises(ValueError, match=r"did you mean 'convolution_forward'.*one of conv"):
            planned("convolution_forwrd")
        with pytest.raises(ValueError, match="is not known; it is one of"):
            planned("xyz")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"paddin": 1}, "convolution_forward: got an unexpected keyword argument 'paddin'"),
            ({"w": 3}, "w must be an array or a TensorSpec, not 3"),
            ({"w": TensorSpec((64, 64, 3, 3), "float64")}, "w must be float32 like x"),
        ],
    )
    def test_bad_arguments_are_named(self, change, message):
        with pytest.raises(TypeError, match=message):
            planned(**change)

    def test_missing_arguments_are_named(self):
        with pytest.raises(TypeError, match="missing a required argument: 'w'"):
            plan("convolution_forward", x=X)

    def test_what_the_function_refuses_is_refused(self):
        with pytest.raises(ValueError, match="groups"):
            planned(groups=7)
        with pytest.raises(ValueError, match="activation"):
            planned("convolution_add_activation_forward", b=B, activation="rely")

    @pytest.mark.parametrize("shape", [(64,), (1, 64, 1, 1)])
    def test_a_bias_has_either_of_its_shapes(self, shape):
        found = planned("convolution_add_activation_forward", b=TensorSpec(shape))
        assert dict(found.operands)["b"].shape == (64,)


class TestHere:
    """Without `machine`: the plan of the call itself, on the device of the settings."""

    @pytest.mark.parametrize("out", [False, True])
    @pytest.mark.parametrize("limit", ["120kB", "1MB"])
    def test_it_is_the_plan_the_call_runs_by(self, limit, out, random):
        x = random.standard_normal((3, 6, 33, 20)).astype("f4")
        w = random.standard_normal((8, 6, 3, 3)).astype("f4")
        b = random.standard_normal(8).astype("f4")
        arguments = {"x": x, "w": w, "b": b, "padding": 1, "activation": "tanh"}
        if out:
            arguments["out"] = np.empty((3, 8, 33, 20), "f4")
        with ooc_cudnn.settings(memory_limit=limit):
            found = plan("convolution_add_activation_forward", **arguments)
            with ooc_cudnn.profile() as profile:
                ooc_cudnn.convolution_add_activation_forward(**arguments)
        assert profile.calls[0].plan == found
        assert profile.calls[0].peak_device_bytes == found.device_bytes
        assert found.workspace_bytes > 0

    def test_specs_will_do_and_nothing_is_allocated(self):
        before = get_device("host").arena.held_bytes
        found = plan("convolution_forward", x=X, w=W, padding=1, memory_limit="1GiB")
        assert found.machine == "host"
        assert get_device("host").arena.held_bytes == before

    def test_the_limit_of_the_settings_holds(self):
        with ooc_cudnn.settings(memory_limit="1GiB"):
            assert plan("convolution_forward", x=X, w=W).memory_limit == 2**30


@pytest.mark.parametrize("limit", ["1GiB", "100GiB"])
def test_a_plan_goes_to_json_and_back(limit):
    found = planned(
        "convolution_add_activation_forward", b=B, memory_limit=limit, x=TensorSpec((8, 64, 64, 64))
    )
    text = json.dumps(found.to_json(), allow_nan=False)
    assert Plan.from_json(json.loads(text)) == found
    here = plan("convolution_forward", x=TensorSpec((1, 3, 32, 32)), w=TensorSpec((8, 3, 3, 3)))
    assert here.algorithms
    assert Plan.from_json(json.loads(json.dumps(here.to_json()))) == here


def test_a_broadcast_axis_may_be_the_one_that_is_cut():
    """Rows of several elements are then of one: no line through two pieces tells their width."""
    x = np.broadcast_to(np.zeros((6, 10, 3, 1), "f4")[::2, ::2], (3, 5, 3, 19))
    w = np.zeros((12, 5, 3, 2), "f4")
    with (
        ooc_cudnn.settings(memory_limit=1280),
        pytest.raises(PlanInfeasibleError) as caught,
    ):
        ooc_cudnn.plan("convolution_forward", x=x, w=w, padding=((2, 2), (1, 1)))
    with ooc_cudnn.settings(memory_limit=caught.value.smallest_bytes):
        ooc_cudnn.plan("convolution_forward", x=x, w=w, padding=((2, 2), (1, 1)))
