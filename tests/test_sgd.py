"""The optimiser of the baseline against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from reference.layers import make_layer

from pcnn_baseline.sgd import Sgd
from pcnn_bench.layers.dense import DenseSpec
from pcnn_bench.optimizers import SgdSpec


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_three_updates_follow_the_formula(momentum: float, weight_decay: float) -> None:
    rng = np.random.default_rng(0)
    layer = make_layer(DenseSpec(out_features=2), (3,))
    for parameter in layer.parameters.values():
        parameter[...] = rng.standard_normal(parameter.shape)
    expected = {name: parameter.copy() for name, parameter in layer.parameters.items()}
    velocity = {name: np.zeros_like(parameter) for name, parameter in expected.items()}
    sgd = Sgd(
        SgdSpec(learning_rate=0.1, momentum=momentum, weight_decay=weight_decay), layer, float
    )
    for learning_rate in (0.1, 0.05, 0.0):
        for name, gradient in layer.gradients.items():
            gradient[...] = rng.standard_normal(gradient.shape)
            for index in np.ndindex(gradient.shape):
                slope = gradient[index] + weight_decay * expected[name][index]
                velocity[name][index] = momentum * velocity[name][index] + slope
                expected[name][index] -= learning_rate * velocity[name][index]
        sgd.update(learning_rate)
        for name, parameter in layer.parameters.items():
            np.testing.assert_array_equal(parameter, expected[name])
            np.testing.assert_array_equal(sgd.velocity[name], velocity[name])
    sgd.reset()
    assert all((value == 0).all() for value in sgd.velocity.values())
