"""`verify` must catch every fault planted in a kernel: else it would also miss a real one."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pcnn_bench.awkward import awkward_cases
from pcnn_bench.verify import verify, verify_resident
from pcnn_cuda import load_batch
from pcnn_cuda.emulated_device import EmulatedDevice
from pcnn_cuda.ladder import LAYERS
from pcnn_cuda.launch import kernel_text
from pcnn_cuda.sgd import Sgd

FAULTS: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(
    Path(__file__).parent.joinpath("faults", "faults.yaml").read_text()
)
KINDS = {
    "block_sum.cuh": ["conv2d"],
    "pooling.cuh": ["avgpool2d", "maxpool2d"],
    "sgd.cu": ["dense"],
}

FEW_CONVOLUTIONS = (1, 6, 14)
"""Uneven kernel, stride and padding; the common 5 x 5 with more channels than images; blocks of several warps."""


def _plant(fault: dict[str, Any]) -> dict[str, str]:
    text = kernel_text(fault["source"])
    count = text.count(fault["find"])
    assert count == 1 or (count > 1 and fault.get("all")), (
        f"{fault['find']!r} occurs {count} times in {fault['source']}"
    )
    return {fault["source"]: text.replace(fault["find"], fault["put"])}


def test_there_are_at_least_twenty_faults_and_every_source_has_one() -> None:
    assert len(FAULTS) >= 20
    assert len({fault["name"] for fault in FAULTS}) == len(FAULTS)
    computing = {
        Sgd.source,
        load_batch.SOURCE,
        *(f"{op.stem}.cu" for op in LAYERS.values() if not op.is_view),
    }
    assert computing <= {fault["source"] for fault in FAULTS}


@pytest.mark.parametrize("fault", FAULTS, ids=[fault["name"] for fault in FAULTS])
def test_verify_catches(fault: dict[str, Any]) -> None:
    kinds = KINDS.get(fault["source"], [fault["source"].removesuffix(".cu")])
    cases = [case for case in awkward_cases() if len(case.kinds) == 1 and case.kinds[0] in kinds]
    if kinds == ["conv2d"]:  # each window is compiled anew; what some catch, all do
        cases = [cases[index] for index in FEW_CONVOLUTIONS]
    device = EmulatedDevice(sources=_plant(fault))
    try:
        if fault["source"] == "load_batch.cu":
            rows = verify_resident(device, "naive")
        else:
            rows = verify(None, device=device, rung="naive", cases=cases).rows
    finally:
        device.close()
    assert any(row.status != "ok" for row in rows), f"not caught: {fault['name']}"
