"""The example labels a slide, goes on where it was ended, and is right at the seams."""

import shutil

import numpy as np
import pytest

pytest.importorskip("dask.array", reason="the extra dask is not installed")
zarr = pytest.importorskip("zarr", reason="the extra dask is not installed")
pytest.importorskip("distributed", reason="the extra dask is not installed")

from examples.slide_cluster import label, main, u_net  # noqa: E402

SMALL = ("--size=300", "--chunk=150", "--width=2", "--workers=0", "--device=host")


def test_labels_are_those_of_the_whole_slide_and_a_run_goes_on(tmp_path, capsys):
    assert callable(label)
    assert main([*SMALL, f"--folder={tmp_path}"]) == 0
    assert "labels: 4 chunks" in capsys.readouterr().out
    store = zarr.open(tmp_path / "slide.zarr", mode="r")
    slide, found = store["slide"][:], store["labels/0"][:]
    assert slide.dtype == found.dtype == "uint8"
    net, labels = u_net(slide.shape, 2)
    expected = net.forward(labels, slide=slide)[:, 0]
    assert len(np.unique(found)) > 1
    assert (found == expected).mean() > 0.9999  # logits that are equal but for rounding
    np.testing.assert_array_equal(store["labels/1"][:], found[:, ::2, ::2])
    shutil.rmtree(tmp_path / "slide.zarr" / "labels" / "0" / "c" / "0" / "1")
    assert main([*SMALL, f"--folder={tmp_path}"]) == 0
    np.testing.assert_array_equal(store["labels/0"][:], found)


def test_what_makes_no_sense_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--chunk=0"])
    assert "--chunk must be at least 1, not 0" in capsys.readouterr().err
