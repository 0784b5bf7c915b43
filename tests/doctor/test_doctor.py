import ctypes
import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import ooc_cudnn
from ooc_cudnn.devices import get_device
from ooc_cudnn.doctor import diagnosis
from ooc_cudnn.doctor import probe as doctor_probe
from ooc_cudnn.doctor.diagnosis import (
    Calibration,
    Check,
    Diagnosis,
    Gpu,
    Library,
    diagnose,
    installed_packages,
    run_probe,
)
from ooc_cudnn.doctor.report import report
from ooc_cudnn.doctor.rules import extra, is_broken, judge
from ooc_cudnn.settings import describe
from perfmodel import shipped

H200 = Gpu("NVIDIA H200", 150 * 2**30, "9.0")
CUDNN = Library("/env/nvidia/cudnn/lib/libcudnn.so.9", 91900)
PARTS = (CUDNN, Library("/env/nvidia/cudnn/lib/libcudnn_graph.so.9"))
NO_CARD = Diagnosis(
    python="3.12.1",
    system="Linux",
    packages={"numpy": "2.4.6", "matplotlib": "3.11", "ml-dtypes": "0.6"},
    host_check=Check(1e-6),
    cache="/home/me/.cache/ooc_cudnn",
)
GOOD = dataclasses.replace(
    NO_CARD,
    packages={
        **NO_CARD.packages,
        "cupy-cuda13x": "14.2.0",
        "nvidia-cudnn-cu13": "9.19.0.2",
        "nvidia-cudnn-frontend": "1.28.0",
    },
    driver_installed=True,
    driver="580.65.06",
    driver_cuda=13000,
    gpus=(H200,),
    cuda_runtime=13000,
    cudnn_backend=91900,
    libraries=PARTS,
    cuda_check=Check(2e-6),
)


def but(packages=None, **changes):
    """GOOD with changes; a package whose version is None is not installed."""
    merged = {**GOOD.packages, **(packages or {})}
    changes["packages"] = {name: version for name, version in merged.items() if version}
    return dataclasses.replace(GOOD, **changes)


def on_device(facts, device):
    with ooc_cudnn.settings(device=device):
        return dataclasses.replace(facts, settings=tuple(describe()))


def test_a_good_set_up_has_nothing_to_say():
    assert judge(GOOD) == ()
    text = report(GOOD)
    for words in (
        "NVIDIA H200, 150.00 GiB, compute capability 9.0",
        "580.65.06, CUDA up to 13.0",
        "/env/nvidia/cudnn/lib/libcudnn.so.9  9.19.0",
        "libcudnn_graph.so.9",
        "cupy-cuda13x 14.2.0",
        "1.28.0",
        "This set-up works.",
    ):
        assert words in text


def test_the_nearest_profile_of_a_card_is_named():
    card = Gpu("NVIDIA GeForce RTX 4080", 16 * 2**30, "8.9")
    facts = but(gpus=(card,), calibrations=(Calibration("cuda", "/cache/cuda.json"),))
    (finding,) = judge(facts)
    label = "rtx4090 (not measured: from data sheets)"
    assert finding.what.endswith(f"calls may be slow. Until then they are planned by {label}")
    assert f"nearest profile: {label}" in report(facts)
    assert "nearest profile: h200\n" in report(GOOD)


def test_no_driver_is_worth_knowing_but_not_broken():
    (finding,) = judge(NO_CARD)
    assert finding.level == "note"
    assert "device='host'" in finding.what
    assert not is_broken(NO_CARD)


def test_no_driver_is_broken_where_cuda_is_asked_for():
    assert is_broken(on_device(NO_CARD, "cuda"))
    assert not is_broken(on_device(NO_CARD, "host"))


CASES = {
    "no CuPy": (
        but({"cupy-cuda13x": None}, cuda_runtime=None),
        "CuPy is not installed",
        "pip install 'ooc_cudnn[cuda13]'",
    ),
    "no CuPy, driver 12": (
        but({"cupy-cuda13x": None}, cuda_runtime=None, driver_cuda=12040),
        "CuPy is not installed",
        "pip install 'ooc_cudnn[cuda12]'",
    ),
    "two CuPys": (
        but({"cupy-cuda12x": "14.0"}),
        "several CuPys",
        "pip uninstall -y cupy-cuda13x cupy-cuda12x && pip install 'ooc_cudnn[cuda13]'",
    ),
    "old CuPy": (
        but({"cupy-cuda13x": "13.6.0"}),
        "13.6.0 is too old",
        "pip install --upgrade 'cupy-cuda13x[ctk]>=14'",
    ),
    "CuPy fails": (
        but(cupy_failure="ImportError: libnvrtc.so.13", cuda_runtime=None),
        "libnvrtc.so.13",
        "--force-reinstall 'cupy-cuda13x[ctk]>=14'",
    ),
    "CUDA 13 on a driver of CUDA 12": (
        but(driver_cuda=12080),
        "built for CUDA 13, the driver knows CUDA up to 12.8",
        "pip uninstall -y cupy-cuda13x nvidia-cudnn-cu13 && pip install 'ooc_cudnn[cuda12]'",
    ),
    "old driver": (but(driver_cuda=11080), "CUDA 12 is needed", "update the driver"),
    "driver does not start": (
        but(gpus=(), driver_status=803),
        "cuInit returns 803",
        "sudo reboot",
    ),
    "no frontend": (
        but({"nvidia-cudnn-frontend": None}, cudnn_backend=None),
        "nvidia-cudnn-frontend is not installed",
        "pip install 'ooc_cudnn[cuda13]'",
    ),
    "old frontend": (
        but({"nvidia-cudnn-frontend": "1.15.2"}),
        "1.15.2 is not a version",
        "pip install 'nvidia-cudnn-frontend>=1.16,<1.29'",
    ),
    "no cuDNN": (
        but({"nvidia-cudnn-cu13": None}, cudnn_backend=None),
        "cuDNN was not found",
        "pip install nvidia-cudnn-cu13",
    ),
    "two cuDNN wheels": (
        but({"nvidia-cudnn-cu12": "9.1"}),
        "write the same files",
        "pip uninstall -y nvidia-cudnn-cu13 nvidia-cudnn-cu12 && pip install nvidia-cudnn-cu13",
    ),
    "cuDNN for another CUDA": (
        but({"nvidia-cudnn-cu13": None, "nvidia-cudnn-cu12": "9.1"}),
        "another CUDA than CuPy",
        "pip uninstall -y nvidia-cudnn-cu12 && pip install nvidia-cudnn-cu13",
    ),
    "two cuDNNs are loaded": (
        but(libraries=(*PARTS, Library("/usr/lib/libcudnn.so.9", 90100))),
        "2 different cuDNNs are loaded in one process: "
        "/env/nvidia/cudnn/lib (9.19.0), /usr/lib (9.1.0)",
        "pip list | grep -i cudnn",
    ),
    "two cuDNNs by LD_LIBRARY_PATH": (
        but(
            libraries=(*PARTS, Library("/opt/cudnn/libcudnn.so.9", 90100)),
            environment={"LD_LIBRARY_PATH": "/lib:/opt/cudnn"},
        ),
        "2 different cuDNNs",
        "unset LD_LIBRARY_PATH",
    ),
    "cuDNN was replaced": (
        but(libraries_here=(dataclasses.replace(CUDNN, deleted=True),)),
        "was replaced after it was loaded",
        "again",
    ),
    "crash": (
        but(cuda_check=None, probe_failure="SIGABRT in a small convolution: Invalid handle"),
        "SIGABRT in a small convolution: Invalid handle",
        "pip install --force-reinstall nvidia-cudnn-cu13 'nvidia-cudnn-frontend>=1.16,<1.29'",
    ),
    "convolution fails": (
        but(cuda_check=Check(None, "CudnnError: no engine", "Run `ooc-cudnn doctor`.")),
        "no engine",
        "pip install --force-reinstall",
    ),
    "convolution fails with a remedy": (
        but(cuda_check=Check(None, "no room", "set memory_limit=1")),
        "no room",
        "set memory_limit=1",
    ),
    "wrong": (but(cuda_check=Check(0.5)), "do not use its results", "--force-reinstall"),
    "not a number": (but(cuda_check=Check(float("nan"))), "is wrong by nan", "--force-reinstall"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_broken_is_named_with_what_mends_it(name):
    facts, what, remedy = CASES[name]
    broken = [finding for finding in judge(facts) if finding.level == "broken"]
    assert any(what in finding.what and remedy in finding.remedy for finding in broken), broken
    assert len(broken) == 1
    assert what in report(facts)
    assert remedy in report(facts)
    assert "broken: see above" in report(facts)
    # Where only the host is asked for, the card may be as it likes.
    assert not is_broken(on_device(facts, "host"))


def test_an_older_runtime_on_a_newer_driver_is_fine():
    facts = but(
        {"cupy-cuda13x": None, "nvidia-cudnn-cu13": None, "cupy-cuda12x": "14.1",
         "nvidia-cudnn-cu12": "9.19"},
        cuda_runtime=12090,
    )  # fmt: skip
    assert judge(facts) == ()


def test_cuda_12_is_for_old_drivers_and_old_cards():
    assert extra(GOOD) == "cuda13"
    assert extra(but(driver_cuda=12080)) == "cuda12"
    assert extra(but(gpus=(H200, Gpu("Tesla V100", 2**34, "7.0")))) == "cuda12"


def test_a_hidden_card_is_worth_knowing():
    facts = but(gpus=(), environment={"CUDA_VISIBLE_DEVICES": ""}, cuda_check=None)
    assert not is_broken(facts)
    assert any(finding.remedy == "unset CUDA_VISIBLE_DEVICES" for finding in judge(facts))


def test_what_is_missing_but_optional_is_noted():
    facts = but(
        {"matplotlib": None, "ml-dtypes": None},
        cache_writable=False,
        calibrations=(Calibration("host", "/h"), Calibration("cuda", "/c")),
    )
    remedies = [finding.remedy for finding in judge(facts)]
    assert remedies == [
        "pip install 'ooc_cudnn[plot]'",
        "pip install 'ooc_cudnn[bfloat16]'",
        "export XDG_CACHE_HOME=/a/folder/of/yours",
        "ooc-cudnn calibrate --device cuda",
    ]
    assert not is_broken(facts)


def test_a_broken_host_is_broken_everywhere():
    facts = dataclasses.replace(NO_CARD, host_check=Check(None, "ImportError: numpy"))
    assert is_broken(on_device(facts, "host"))


# --- gathering ---------------------------------------------------------------------------------


SOURCES = {
    "installed_packages": lambda: {"numpy": "2"},
    "run_probe": lambda modules: [("driver", {}), ("ended", "")],
    "libraries": list,
    "convolution_error": lambda device: 1e-6,
    "describe": describe,
    "cache_directory": lambda: Path("/nowhere/ooc_cudnn"),
    "machine_path": lambda identity: Path("/nowhere/model.json"),
}


@pytest.fixture
def surroundings(monkeypatch):
    """Puts sources of facts in place; with none that are told apart from `SOURCES`."""

    def put(**changes):
        for name, source in {**SOURCES, **changes}.items():
            monkeypatch.setattr(diagnosis, name, source)

    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    put()
    return put


def fails(*arguments):
    raise RuntimeError("two\nlines")


def test_facts_come_from_the_surroundings(surroundings):
    facts = diagnose()
    assert facts.packages == {"numpy": "2"}
    assert facts.environment == {"LD_LIBRARY_PATH": "/lib"}
    assert facts.host_check == Check(1e-6)
    assert not facts.driver_installed
    assert [row.name for row in facts.settings] == [row.name for row in describe()]
    assert facts.calibrations[0].device == "host"
    assert not facts.calibrations[0].date


def test_facts_of_the_probe_are_taken_over(surroundings):
    told = [
        ("imports", {"torch": {"version": "2"}, "jax": {"error": "ImportError: x"}}),
        ("driver", {"version": "580", "cuda": 13000, "gpus": [dataclasses.asdict(H200)]}),
        ("cupy", {"version": "14.2", "cuda": 13000}),
        ("frontend", {"version": "1.28", "backend": 91900}),
        ("libraries", []),
        ("convolution", {"error_size": 1e-6}),
        ("libraries", [{"path": "/a/libcudnn.so.9", "version": 91900, "deleted": False}]),
        ("ended", ""),
    ]
    asked = []
    surroundings(run_probe=lambda modules: asked.append(modules) or told)
    facts = diagnose(("torch",))
    assert asked == [("torch",)]
    assert facts.gpus == (H200,)
    assert facts.cuda_check == Check(1e-6)
    assert facts.libraries == (Library("/a/libcudnn.so.9", 91900),)
    assert facts.imports == {"torch": "", "jax": "ImportError: x"}
    assert (facts.cuda_runtime, facts.cudnn_backend) == (13000, 91900)
    assert "jax cannot be imported" in report(facts)


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "machine_path"])
def test_nothing_that_fails_makes_it_raise(source, surroundings):
    surroundings(**{source: fails})
    with ooc_cudnn.settings(device="auto"):
        facts = diagnose()
    assert report(facts)
    told = source in ("convolution_error", "describe", "run_probe")
    assert ("RuntimeError: two lines" in report(facts)) == told
    assert is_broken(facts) == told


def test_a_host_that_has_no_identity_has_no_calibration(surroundings, monkeypatch):
    monkeypatch.setattr(type(get_device("host")), "identity", fails)
    assert not diagnose().calibrations


def test_this_machine_can_be_diagnosed():
    facts = diagnose()
    assert facts.host_check.error_size < 1e-4
    assert "numpy" in facts.packages
    assert facts.packages == installed_packages()
    assert not facts.probe_failure
    assert report(facts)


# --- the probe ---------------------------------------------------------------------------------


class FakeDriver:
    """libcuda and libnvidia-ml in one; one card."""

    def __init__(self, *, status=0, count=1):
        self.status, self.count = status, count

    def cuDriverGetVersion(self, version):
        version._obj.value = 12080
        return 0

    def cuInit(self, flags):
        return self.status

    def cuDeviceGetCount(self, count):
        count._obj.value = self.count

    def cuDeviceGet(self, device, index):
        device._obj.value = index

    def cuDeviceGetName(self, name, length, device):
        name.value = b"Tesla T4"

    def cuDeviceTotalMem_v2(self, size, device):
        size._obj.value = 2**34

    def cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = {75: 7, 76: 5}[attribute]

    def nvmlInit_v2(self):
        return 0

    def nvmlSystemGetDriverVersion(self, text, length):
        text.value = b"570.86.15"
        return 0


@pytest.fixture
def probed(monkeypatch, tmp_path):
    """Probe with stand-ins for what it loads, imports and runs; the facts."""

    def probe(*, load, import_module, check=fails):
        (tmp_path / "maps").write_text("")
        monkeypatch.setattr(doctor_probe, "MAPS", tmp_path / "maps")
        monkeypatch.setattr(doctor_probe, "_is_installed", lambda name: True)
        monkeypatch.setattr(doctor_probe, "convolution_error", check)
        facts = {}
        with monkeypatch.context() as at:
            at.setattr(ctypes, "CDLL", load)
            at.setattr(importlib, "import_module", import_module)
            at.setattr(doctor_probe, "get_device", fails)
            doctor_probe.probe(facts.__setitem__)
        return facts

    return probe


def no_library(name):
    raise OSError(name)


def not_to_be_imported(name):
    raise AssertionError(name)


def test_without_a_driver_nothing_of_cuda_is_imported(probed):
    facts = probed(load=no_library, import_module=not_to_be_imported)
    assert facts == {"imports": {}, "driver": {}, "libraries": []}


@pytest.mark.parametrize(("status", "shown"), [(100, {}), (803, {"status": 803})])
def test_a_driver_without_a_card(status, shown, probed):
    driver = FakeDriver(status=status)
    facts = probed(load=lambda name: driver, import_module=not_to_be_imported)
    assert facts["driver"] == {"version": "570.86.15", "cuda": 12080, "gpus": [], **shown}


def test_a_card_is_described_and_tried(probed):
    runtime = SimpleNamespace(runtimeGetVersion=lambda: 12090)
    modules = {
        "cupy": SimpleNamespace(__version__="14.2", cuda=SimpleNamespace(runtime=runtime)),
        "cudnn": SimpleNamespace(__version__="1.28", backend_version=lambda: 91900),
    }
    tried = []
    facts = probed(
        load=lambda name: FakeDriver(),
        import_module=modules.__getitem__,
        check=lambda device: tried.append(device) or 1e-7,
    )
    assert facts["driver"]["gpus"] == [
        {"name": "Tesla T4", "memory_bytes": 2**34, "compute_capability": "7.5"}
    ]
    assert facts["cupy"] == {"version": "14.2", "cuda": 12090}
    assert facts["frontend"] == {"version": "1.28", "backend": 91900}
    assert facts["convolution"] == {"error_size": 1e-7}
    assert tried == ["cuda"]


def test_a_package_that_fails_to_import_is_a_fact(probed):
    def broken(name):
        raise ImportError(f"{name}:\n no libcudnn.so.9")

    facts = probed(load=lambda name: FakeDriver(), import_module=broken, check=fails)
    assert facts["cupy"] == {"error": "ImportError: cupy: no libcudnn.so.9"}
    assert facts["convolution"] == {"error": "RuntimeError: two lines"}


MAPS = """\
7f00-7f01 r--p 00000000 fd:00 1  /env/nvidia/cudnn/lib/libcudnn.so.9
7f01-7f02 r-xp 00001000 fd:00 1  /env/nvidia/cudnn/lib/libcudnn.so.9
7f02-7f03 r--p 00000000 fd:00 2  /env/nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9
7f03-7f04 r--p 00000000 fd:00 3  /home/a b/torch/lib/libcudnn.so.8 (deleted)
7f04-7f05 r--p 00000000 fd:00 4  /usr/lib/libcublas.so.12
7f05-7f06 rw-p 00000000 00:00 0  [heap]
"""


@pytest.fixture
def mapped(monkeypatch, tmp_path):
    """Libraries of a text of maps, opened by a stand-in."""

    def libraries(text, load):
        (tmp_path / "maps").write_text(text)
        monkeypatch.setattr(doctor_probe, "MAPS", tmp_path / "maps")
        monkeypatch.setattr(doctor_probe, "_opened", load)
        return doctor_probe.libraries()

    return libraries


def test_every_loaded_libcudnn_is_found(mapped):
    opened = []

    def load(path):
        opened.append(path)
        return SimpleNamespace(cudnnGetVersion=lambda: 91900)

    found = mapped(MAPS, load)
    assert found == [
        {"path": "/env/nvidia/cudnn/lib/libcudnn.so.9", "version": 91900, "deleted": False},
        {
            "path": "/env/nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9",
            "version": None,
            "deleted": False,
        },
        {"path": "/home/a b/torch/lib/libcudnn.so.8", "version": None, "deleted": True},
    ]
    assert opened == ["/env/nvidia/cudnn/lib/libcudnn.so.9"]


def test_a_libcudnn_without_a_version_has_none(mapped):
    line = "7f00-7f01 r--p 00000000 fd:00 1  /env/libcudnn.so.9"
    for load in (no_library, lambda path: object()):
        assert mapped(line, load)[0]["version"] is None


def test_the_small_convolution_is_right_on_the_host():
    assert doctor_probe.convolution_error("host") < 1e-5


def program(text):
    return run_probe((), (sys.executable, "-c", text))


def test_a_probe_that_crashes_keeps_what_it_told():
    told = json.dumps({"fact": "driver", "value": {"version": "1"}})
    started = json.dumps({"fact": "started", "value": "a small convolution"})
    facts = dict(
        program(
            f"import os, sys; print({told!r}); print('noise'); print({started!r}, flush=True);"
            "sys.stderr.write('Invalid handle'); sys.stderr.flush(); os.abort()"
        )
    )
    assert facts["driver"] == {"version": "1"}
    assert facts["ended"] == "SIGABRT in a small convolution: Invalid handle"


def test_a_probe_that_fails_says_so():
    assert dict(program("import sys; sys.exit('no')"))["ended"] == "exit status 1: no"
    assert dict(program("pass"))["ended"] == ""


def test_a_probe_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr("ooc_cudnn.doctor.diagnosis.PROBE_SECONDS", 0.5)
    facts = dict(program("import time; print('{}', flush=True); time.sleep(60)"))
    assert facts["ended"].startswith("no answer in time")


def test_the_probe_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "ooc_cudnn.doctor.probe", "json", "no_such_module"],
        capture_output=True,
        text=True,
        check=True,
    )
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert facts[0]["fact"] == "imports"
    assert "error" in facts[0]["value"]["no_such_module"]
    assert "error" not in facts[0]["value"]["json"]


def test_a_bad_setting_is_all_that_is_wrong(monkeypatch):
    """It stops the small convolutions, which tells nothing of NumPy or cuDNN."""
    problem = "ValueError: environment variable OOC_CUDNN_VERIFY='many' is not a count"
    facts = but(
        settings_failure=problem,
        host_check=Check(failure=problem),
        cuda_check=Check(failure=problem),
    )
    (finding,) = judge(facts)
    assert finding.level == "broken"
    assert "OOC_CUDNN_VERIFY='many'" in finding.what
    assert finding.remedy.startswith("unset OOC_CUDNN_VERIFY")
    # what else fails is told all the same
    both = dataclasses.replace(facts, host_check=Check(failure="ImportError: numpy"))
    assert any("numpy scipy" in finding.remedy for finding in judge(both))


def test_a_machine_that_cannot_be_used_is_a_bad_setting(surroundings, tmp_path):
    path = tmp_path / "nosuch.json"
    shipped("h200").save(path)
    with ooc_cudnn.settings(machine=path):
        path.unlink()
        facts = diagnose()
    assert "nosuch" in facts.settings_failure
    assert is_broken(facts)
    with ooc_cudnn.settings(machine="h200"):
        assert not diagnose().settings_failure


def test_a_module_that_cannot_be_imported_is_broken():
    facts = but(imports={"torch": "", "nosuch.part": "ModuleNotFoundError: No module"})
    assert is_broken(facts)
    (finding,) = judge(facts)
    assert finding.what.startswith("nosuch.part cannot be imported")
    assert finding.remedy.startswith("pip install nosuch ")
    # also where no card is used
    assert is_broken(on_device(facts, "host"))


def test_the_command_says_so_by_its_exit_status():
    done = subprocess.run(
        [sys.executable, "-m", "ooc_cudnn.cli", "doctor", "--import", "nosuch_module"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "nosuch_module cannot be imported" in done.stdout
