"""The library on dask arrays: images and volumes larger than a machine, on dask's own scheduler.

    import dask.array as da, ooc_cudnn.dask as ooc
    y = ooc.convolution_forward(da.from_zarr("slide.zarr"), w, padding=1)
    y.to_zarr("result.zarr")

Arrays are chunked along images and any spatial axis. Each block of a result is one task: it gathers
its chunk and the halo around it, and runs as a call of the plain library on its worker, out of core
if it is larger than the worker's memory limit. Needs the extra ``dask``.
"""

# `functions`, `normalization`, `models` and `networks` are what users call. `lazily` makes the
# graph of a call's blocks, `chunks` dask's slices of regions, `barriers` what dask reduces
# between blocks; `work` is what a task does on its worker. `storing` is Zarr, `planning` seconds
# on a cluster.

from ooc_cudnn.extras import brought_by

with brought_by("dask", "dask", "distributed", "zarr"):
    from ooc_cudnn.dask.functions import (
        activation_backward,
        activation_forward,
        add_tensor,
        batch_normalization_forward_inference,
        chain_forward,
        convolution_add_activation_backward,
        convolution_add_activation_forward,
        convolution_add_activation_pooling_forward,
        convolution_backward_bias,
        convolution_backward_data,
        convolution_backward_filter,
        convolution_forward,
        pooling_backward,
        pooling_forward,
        softmax_backward,
        softmax_forward,
    )
    from ooc_cudnn.dask.models import infer
    from ooc_cudnn.dask.networks import forward
    from ooc_cudnn.dask.normalization import (
        batch_normalization_backward,
        batch_normalization_forward_training,
    )
    from ooc_cudnn.dask.planning import ClusterPlan, plan
    from ooc_cudnn.dask.storing import to_zarr
    from ooc_cudnn.dask.workers import Worker, cluster, workers

__all__ = [
    "ClusterPlan",
    "Worker",
    "activation_backward",
    "activation_forward",
    "add_tensor",
    "batch_normalization_backward",
    "batch_normalization_forward_inference",
    "batch_normalization_forward_training",
    "chain_forward",
    "cluster",
    "convolution_add_activation_backward",
    "convolution_add_activation_forward",
    "convolution_add_activation_pooling_forward",
    "convolution_backward_bias",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "forward",
    "infer",
    "plan",
    "pooling_backward",
    "pooling_forward",
    "softmax_backward",
    "softmax_forward",
    "to_zarr",
    "workers",
]
