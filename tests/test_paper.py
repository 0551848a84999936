"""Launches on paper: the same as on a device, and held to the same limits."""

from collections import Counter

import numpy as np
import pytest

from pcnn_bench import engines
from pcnn_bench.errors import DeviceError
from pcnn_bench.layers import SPECS, LayerSpec
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.network import Network
from pcnn_bench.optimizers import SgdSpec
from pcnn_cuda.device import DeviceArray
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.engine import CudaEngine
from pcnn_cuda.launch import Launch
from pcnn_cuda.paper import Paper, launches_of
from pcnn_cuda.plan import Plan

OPTIMIZER = SgdSpec(learning_rate=0.1)


def _spec(kind: str, **arguments: object) -> LayerSpec:
    return SPECS[kind].model_validate({"kind": kind, **arguments})


def _network() -> Network:
    specs = [
        _spec("conv2d", out_channels=2, kernel=3), _spec("tanh"), _spec("avgpool2d", size=2),
        _spec("conv2d", out_channels=3, kernel=2), _spec("flatten"),
        _spec("dense", out_features=5), _spec("relu"), _spec("dense", out_features=4),
    ]  # fmt: skip
    return Network((1, 10, 8), specs, SoftmaxCrossEntropySpec())


@pytest.mark.parametrize("rung", engines.rungs())
def test_a_step_on_paper_launches_what_a_step_on_the_device_does(rung: str) -> None:
    device = EmulatedDevice()
    engine = CudaEngine(
        _network(), batch_size=3, optimizer=OPTIMIZER, device=device, rung=rung, keeps_data=True
    )
    engine.set_batch(np.zeros((3, 1, 10, 8), np.float32), np.zeros(3, np.int32))
    device.launched.clear()
    engine.step(engine.make_clock())
    launches = launches_of(engine.plan, 3)
    on_paper = Counter(each.kernel_name for group in launches.values() for each in group)
    assert on_paper
    assert device.launched - on_paper == {"load_batch_advance": 1}  # counts batches
    assert not on_paper - device.launched
    engine.close()
    device.close()


def test_launches_come_by_stage_and_phase() -> None:
    plan = Plan(_network(), rung="naive", batch_size=3, optimizer=OPTIMIZER)
    launches = launches_of(plan, 3)
    names = {key: [each.kernel_name for each in group] for key, group in launches.items()}
    assert names["conv2d1", "forward"] == ["conv2d_forward"]
    assert names["conv2d1", "update"] == ["sgd_update"]
    assert "conv2d_backward_input" not in names["conv2d1", "backward"]
    assert "conv2d_backward_input" in names["conv2d2", "backward"]
    assert ("flatten1", "forward") not in names


def test_paper_refuses_what_a_device_would() -> None:
    kernel = Paper().compile("relu.cu")["relu_forward"]
    x = DeviceArray(0, (4,), "float32")
    assert kernel.bind(Launch((1, 1, 1), (32, 1, 1)), x=x, y=x, count=4).kernel_name == kernel.name
    with pytest.raises(DeviceError, match="relu_forward: launch refused"):
        kernel.bind(Launch((1, 65536, 1), (32, 1, 1)), x=x, y=x, count=4)
    with pytest.raises(DeviceError, match="count = 2147483648 does not fit a 32-bit int"):
        kernel.bind(Launch((1, 1, 1), (32, 1, 1)), x=x, y=x, count=2**31)
    with pytest.raises(TypeError, match=r"missing \['count'\]"):
        kernel.bind(Launch((1, 1, 1), (32, 1, 1)), x=x, y=x)
