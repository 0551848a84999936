"""Every baseline layer against scalar loops, finite differences and PyTorch, on awkward shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference.layers import assert_derivative, make_layer, make_loss, run_layer
from reference.loops import LOSS_REFERENCES, REFERENCES

from pcnn_bench.layers import LOSSES, SPECS, LayerSpec

N = 3
"""Images; differs from every C and K below, so that swapped axes cannot hide."""

WINDOWS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"size": 2}, (2, 6, 4)),
    ({"size": 2}, (4, 5, 7)),
    ({"size": 3, "stride": 2}, (2, 7, 9)),
    ({"size": [3, 2], "stride": [1, 3]}, (2, 5, 8)),
    ({"size": 2, "stride": 3}, (1, 8, 7)),
    ({"size": [5, 6]}, (2, 5, 6)),
    ({"size": 1}, (2, 3, 1)),
]

CASES: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"kind": "conv2d", "out_channels": 4, "kernel": 3}, (2, 7, 5)),
    ({"kind": "conv2d", "out_channels": 4, "kernel": [3, 2], "stride": [2, 3], "padding": [1, 0]}, (2, 5, 8)),
    ({"kind": "conv2d", "out_channels": 5, "kernel": 5, "padding": 2}, (1, 6, 7)),
    ({"kind": "conv2d", "out_channels": 5, "kernel": 5, "stride": 2}, (2, 9, 12)),
    ({"kind": "conv2d", "out_channels": 2, "kernel": 1, "stride": 2}, (4, 5, 4)),
    ({"kind": "conv2d", "out_channels": 2, "kernel": 1, "padding": 1}, (4, 2, 3)),
    ({"kind": "conv2d", "out_channels": 1, "kernel": [4, 2], "padding": [0, 3]}, (2, 6, 5)),
    ({"kind": "conv2d", "out_channels": 4, "kernel": 2, "stride": 3}, (2, 8, 7)),
    ({"kind": "conv2d", "out_channels": 4, "kernel": [5, 7]}, (2, 5, 7)),
    ({"kind": "conv2d", "out_channels": 2, "kernel": 1}, (1, 1, 1)),
    ({"kind": "conv2d", "out_channels": 2, "kernel": [1, 3]}, (1, 1, 17)),
    ({"kind": "conv2d", "out_channels": 2, "kernel": [3, 1]}, (1, 17, 1)),
    *(
        ({"kind": kind, **windows}, shape)
        for kind in ("maxpool2d", "avgpool2d")
        for windows, shape in WINDOWS
    ),
    ({"kind": "dense", "out_features": 5}, (7,)),
    ({"kind": "dense", "out_features": 1}, (1,)),
    ({"kind": "dense", "out_features": 33}, (65,)),
    ({"kind": "flatten"}, (2, 4, 5)),
    ({"kind": "flatten"}, (7,)),
    *(
        ({"kind": kind}, shape)
        for kind in ("tanh", "relu", "sigmoid")
        for shape in [(2, 4, 5), (7,), (1,)]
    ),
]  # fmt: skip


def _spec(options: dict[str, Any]) -> LayerSpec:
    return SPECS[options["kind"]].model_validate(options)


def _name(value: Any) -> str:
    return "-".join(map(str, value.values() if isinstance(value, dict) else value))


each_case = pytest.mark.parametrize(("options", "shape"), CASES, ids=_name)


def _integers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Small integers, with ties: sums of products of them are exact in any order."""
    return rng.integers(-4, 5, shape).astype(np.float64)


def test_every_kind_has_cases() -> None:
    assert {options["kind"] for options, _ in CASES} == set(SPECS) == set(REFERENCES)
    assert set(LOSSES) == set(LOSS_REFERENCES)


@each_case
def test_layer_equals_scalar_loops(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    layer = make_layer(_spec(options), shape)
    x, grad_y = _integers(rng, (N, *shape)), _integers(rng, layer.layer.batch_y(N))
    for parameter in layer.parameters.values():
        parameter[...] = _integers(rng, parameter.shape)
    actual = run_layer(layer, x, grad_y)
    expected = REFERENCES[options["kind"]](layer.layer.spec, x, layer.parameters, grad_y)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        # integers are exact; a division or a function value rounds at about 1e-16 of at most 1e3
        np.testing.assert_allclose(actual[name], value, rtol=1e-13, atol=1e-13, err_msg=name)
        if options["kind"] in ("conv2d", "dense", "flatten", "maxpool2d"):
            np.testing.assert_array_equal(actual[name], value, err_msg=name)


@each_case
def test_gradients_equal_finite_differences(
    options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(2)
    layer = make_layer(_spec(options), shape)
    x, grad_y = rng.standard_normal((N, *shape)), rng.standard_normal(layer.layer.batch_y(N))
    for parameter in layer.parameters.values():
        parameter[...] = rng.standard_normal(parameter.shape)
    results = run_layer(layer, x, grad_y)

    def weighted_sum() -> float:
        return float(np.vdot(grad_y, layer.forward(x)))

    for name, at in {"x": x, **layer.parameters}.items():
        assert_derivative(weighted_sum, at, results[f"grad_{name}"], rng)


@each_case
def test_layer_equals_pytorch(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    rng = np.random.default_rng(3)
    layer = make_layer(_spec(options), shape)
    spec: Any = layer.layer.spec
    x, grad_y = rng.standard_normal((N, *shape)), rng.standard_normal(layer.layer.batch_y(N))
    for parameter in layer.parameters.values():
        parameter[...] = rng.standard_normal(parameter.shape)
    actual = run_layer(layer, x, grad_y)

    inputs = {
        name: torch.tensor(value, requires_grad=True)
        for name, value in {"x": x, **layer.parameters}.items()
    }
    forward = {
        "conv2d": lambda x, w, b: functional.conv2d(x, w, b, spec.stride, spec.padding),
        "maxpool2d": lambda x: functional.max_pool2d(x, spec.size, spec.stride),
        "avgpool2d": lambda x: functional.avg_pool2d(x, spec.size, spec.stride),
        "dense": functional.linear,
        "flatten": lambda x: x.flatten(1),
        "tanh": torch.tanh,
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
    }
    y = forward[options["kind"]](*inputs.values())
    y.backward(torch.tensor(grad_y))
    np.testing.assert_allclose(actual["y"], y.detach().numpy(), rtol=1e-12, atol=1e-12)
    for name, tensor in inputs.items():
        np.testing.assert_allclose(
            actual[f"grad_{name}"], tensor.grad.numpy(), rtol=1e-12, atol=1e-12, err_msg=name
        )


@each_case
def test_smaller_batch_sees_nothing_of_the_larger_one(
    options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(4)
    used, fresh = make_layer(_spec(options), shape), make_layer(_spec(options), shape)
    for name, parameter in used.parameters.items():
        parameter[...] = rng.standard_normal(parameter.shape)
        fresh.parameters[name][...] = parameter
    run_layer(used, rng.standard_normal((5, *shape)), rng.standard_normal(used.layer.batch_y(5)))
    x, grad_y = rng.standard_normal((2, *shape)), rng.standard_normal(used.layer.batch_y(2))
    expected = run_layer(fresh, x, grad_y)
    for name, value in run_layer(used, x, grad_y).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@each_case
def test_layout_of_the_input_does_not_matter(
    options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(5)
    layer = make_layer(_spec(options), shape)
    for parameter in layer.parameters.values():
        parameter[...] = rng.standard_normal(parameter.shape)
    x, grad_y = rng.standard_normal((N, *shape)), rng.standard_normal(layer.layer.batch_y(N))
    expected = run_layer(layer, x, grad_y)
    sliced_x, sliced_grad_y = np.repeat(x, 2, axis=-1)[..., ::2], np.asfortranarray(grad_y)
    for name, value in run_layer(layer, sliced_x, sliced_grad_y).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-13, atol=1e-13, err_msg=name)


@each_case
def test_inputs_are_left_as_they_are(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(6)
    layer = make_layer(_spec(options), shape)
    x, grad_y = rng.standard_normal((N, *shape)), rng.standard_normal(layer.layer.batch_y(N))
    x.flags.writeable = grad_y.flags.writeable = False
    run_layer(layer, x, grad_y)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("class_count", [1, 2, 7, 10])
def test_loss_equals_scalar_loops(kind: str, class_count: int) -> None:
    rng = np.random.default_rng(7)
    x = 3 * rng.standard_normal((5, class_count))
    labels = rng.integers(0, class_count, 5).astype(np.int32)
    loss = make_loss(LOSSES[kind](kind=kind), class_count)
    expected = LOSS_REFERENCES[kind](x, labels)
    np.testing.assert_allclose(loss.forward(x, labels), expected["losses"], rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(loss.backward(), expected["grad_x"], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kind", LOSSES)
def test_loss_gradient_equals_finite_differences(kind: str) -> None:
    rng = np.random.default_rng(8)
    x, labels = rng.standard_normal((5, 7)), rng.integers(0, 7, 5).astype(np.int32)
    loss = make_loss(LOSSES[kind](kind=kind), 7)
    loss.forward(x, labels)
    gradient = loss.backward().copy()
    assert_derivative(lambda: float(loss.forward(x, labels).mean()), x, gradient, rng)


@pytest.mark.parametrize("kind", LOSSES)
def test_loss_equals_pytorch(kind: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(9)
    x, labels = rng.standard_normal((5, 7)), rng.integers(0, 7, 5).astype(np.int32)
    loss = make_loss(LOSSES[kind](kind=kind), 7)
    losses = loss.forward(x, labels)
    scores = torch.tensor(x, requires_grad=True)
    target = torch.tensor(labels, dtype=torch.long)
    if kind == "softmax_cross_entropy":
        mean = torch.nn.functional.cross_entropy(scores, target)
    else:
        onehot = torch.nn.functional.one_hot(target, 7).double()
        mean = torch.nn.functional.mse_loss(scores, onehot)
    mean.backward()
    np.testing.assert_allclose(losses.mean(), mean.item(), rtol=1e-13)
    np.testing.assert_allclose(loss.backward(), scores.grad.numpy(), rtol=1e-12, atol=1e-15)
