"""PyTorch models on dask arrays equal PyTorch's own forward on the whole image."""

import numpy as np
import pytest

da = pytest.importorskip("dask.array", reason="the extra dask is not installed")
torch = pytest.importorskip("torch")

import dask  # noqa: E402

import ooc_cudnn.dask as ooc  # noqa: E402


def test_a_model_on_chunks_is_the_model_on_the_whole(searches_are_shared):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3, padding=1), torch.nn.BatchNorm2d(3), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Conv2d(3, 2, 5, padding=2),
        torch.nn.Upsample(scale_factor=2),
    ).double().eval()  # fmt: skip
    image = torch.randn(1, 1, 20, 36, dtype=torch.float64)
    made = ooc.infer(model, da.from_array(image.numpy(), chunks=(1, 1, 12, 18)))
    assert made.chunks[2:] == ((12, 8), (18, 18))
    with torch.no_grad(), dask.config.set(scheduler="synchronous"):
        expected = model(image).numpy()
        for parameter in model.parameters():  # what becomes of them later is nothing to it
            parameter.zero_()
        np.testing.assert_allclose(made.compute(), expected, rtol=0, atol=1e-14)


def test_a_model_that_does_not_end_in_a_map_is_refused():
    image = da.zeros((1, 1, 8, 8), chunks=(1, 1, 4, 4), dtype="float32")

    class Two(torch.nn.Conv2d):
        def forward(self, x):
            y = super().forward(x)
            return y, y + 1

    with pytest.raises(TypeError, match="Two does not end in one map"):
        ooc.infer(Two(1, 1, 3).eval(), image)
