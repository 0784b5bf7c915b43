"""`benchmarks.amp`: every network in every way at a tiny size; what fails is a row that says so."""

import pytest

from ooc_cudnn.bench.record import load_record
from tests.support.torchvision_models import models

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.usefixtures("fewest_plans"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # PyTorch's own
]


@pytest.fixture
def amp():
    models()  # torchvision is there, or the test is skipped
    from benchmarks import amp

    return amp


def run(amp, folder, *words):
    given = ["--quick", "--device", "host", "--output", str(folder), "--tune-seconds", "0"]
    return amp.main([*given, "--seconds", "600", *words])


NETWORKS = (
    "vit_b16", "resnet50", "unet", "convnext_t", "swin_t", "efficientnet_v2_s", "deeplabv3",
    "r3d_18", "nnunet", "regnet_y_8gf", "densenet121", "swin_unetr", "diffusion", "nnunet-512",
    "unet-8192", "segresnet-384",
)  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_is_trained_in_every_way(network, amp, tmp_path, capsys):
    assert set(NETWORKS) == set(amp.CASES)
    assert run(amp, tmp_path, "--network", network) == 0
    record = load_record(f"amp_{network}_bfloat16", tmp_path)
    assert record["verified"]
    rows = record["measurements"]["rows"]
    assert set(rows) >= set(amp.WAYS)
    failed = {name: row["reason"] for name, row in rows.items() if row["status"] != "measured"}
    print(failed)
    assert set(failed) <= {"ours, 1/8", "ours, 1/4", "ours, 1/2"}
    assert all("PlanInfeasibleError" in reason for reason in failed.values())
    assert len(list(amp.rows_of(record))) == len(rows)
    for name, row in rows.items():
        if name.startswith("ours") and name not in failed:
            assert row["plan"]["device_bytes"] <= row["limit_bytes"]
            assert "ms" in (tmp_path / row["explain"]).read_text()
            assert row["tasks"]
