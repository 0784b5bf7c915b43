"""A network beside its twin in PyTorch: results, every gradient, running statistics."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from tests.support.interpreter import run_step

#: Of the largest value.
TOLERANCE = 1e-11


def values(net, seed=0, inputs=None):
    """Drawn arrays of all inputs, parameters and running statistics, by name."""
    random = np.random.default_rng(seed)
    found = {}
    for name, tensor in net.graph.tensors.items():
        if tensor.kind == "input":
            given = (inputs or {}).get(name)
            found[name] = random.standard_normal(tensor.shape) if given is None else given
        elif tensor.kind in ("parameter", "running"):
            lasting = net.parameters if tensor.kind == "parameter" else net.running
            constant = name.endswith(".zero")
            noise = 0 if constant else random.uniform(-0.1, 0.1, tensor.shape)
            found[name] = (lasting[name] + noise).astype(tensor.dtype)
    return found


def assert_close(actual, expected, what, tolerance=TOLERANCE, least=1e-300):
    """Assert that two arrays agree, by the largest of the second, or `least` if that is more."""
    if isinstance(expected, torch.Tensor):
        expected = expected.detach().numpy()
    assert actual.shape == expected.shape, what
    scale = max(float(np.abs(expected).max(initial=0)), least)
    error = float(np.abs(actual - expected).max(initial=0)) / scale
    assert error <= tolerance, f"{what}: off by {error:.3g} of the largest, {scale:.3g}"


def twin_step(net, output, twin, given, seed_gradient):
    """What PyTorch makes of it: result, gradients, running statistics.

    `twin` takes an object whose item by a name is that input, parameter or running statistics, and
    whose `training` says what is asked; it returns the result.
    """
    tensors = {name: torch.tensor(array) for name, array in given.items()}
    for name in net.wanted:
        tensors[name].requires_grad_()
    result = twin(_Tensors(tensors, training=True))
    if result.requires_grad:
        result.backward(torch.tensor(seed_gradient).reshape(result.shape))
    gradients = {name: tensors[name].grad for name in net.wanted}
    running = {name: tensors[name] for name in net.running}
    return result, gradients, running


class _Tensors(SimpleNamespace):
    def __init__(self, tensors, *, training):
        super().__init__(torch=torch, tensors=tensors, training=training)

    def __getitem__(self, name):
        return self.tensors[name]


def sizes_of(gradients):
    """What counts as a large gradient: some are 0 but for rounding (a bias before batch norm)."""
    sizes = [float(each.abs().max()) for each in gradients.values() if each is not None]
    return 1e-3 * max(sizes, default=1.0)


def check_network(net, output, twin, *, inputs=None, run=run_step, inference=True):
    """Compare a network of float64 with its twin.

    Parameters
    ----------
    output : Tensor
        The loss, or any result: then from a drawn gradient of it.
    twin : callable
        The same in PyTorch; see `twin_step`.
    inputs : mapping, optional
        Inputs that are not to be drawn: labels.
    run : callable
        Runs a step on arrays by name and gradients of its outputs, and returns arrays by name.
    inference : bool
        Whether inference is compared, too.
    """
    given = values(net, 0, inputs)
    random = np.random.default_rng(1)
    seed_gradient = random.standard_normal(output.shape)
    if inference:
        step = net.forward_phases(output)
        with torch.no_grad():
            tensors = {name: torch.tensor(array) for name, array in given.items()}
            expected = twin(_Tensors(tensors, training=False))
        found = run(step, given)[output.name]
        assert_close(found, expected.reshape(output.shape), "inference")
    expected, gradients, running = twin_step(net, output, twin, given, seed_gradient)
    step = net.gradient_phases(output)
    arrays = run(step, given, {output.name: seed_gradient})
    assert_close(arrays[output.name], expected.reshape(output.shape), "result")
    least = sizes_of(gradients)
    for name, gradient in gradients.items():
        if gradient is None:
            assert name not in step.gradients, name
        else:
            made = arrays[step.gradients[name]]
            assert_close(made, gradient, f"gradient of {name}", least=least)
    for name, statistics in running.items():
        assert_close(given[name], statistics, name)
    return step
