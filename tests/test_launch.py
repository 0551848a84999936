"""Launch shapes, signatures read from the .cu, and the check of arguments against them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pcnn_bench.errors import DeviceError
from pcnn_cuda.device import DeviceArray, check_arguments
from pcnn_cuda.launch import (
    BLOCK_THREADS,
    MAX_INDEX,
    Launch,
    Parameter,
    kernel_sources,
    kernel_text,
    linear,
    reduction,
    signatures,
)

SOURCE = """
// extern "C" __global__ void in_a_comment(int M)
/* __global__ void in_another(int M) { } */
extern "C" __global__ void __launch_bounds__(256) scale(
    const float* __restrict__ x, float *y, int M, float factor)
{
}
__device__ float helper(float x) { return x; }
extern "C" __global__ void count(const unsigned char* x, unsigned* bins, int* total) {}
"""
SCALE = signatures(SOURCE)["scale"]
X = DeviceArray(256, (4,), "float32")


@pytest.mark.parametrize(
    ("elements", "grid"), [(1, 1), (255, 1), (256, 1), (257, 2), (512, 2), (MAX_INDEX, 2**23 - 1)]
)
def test_linear_rounds_the_grid_up_and_adds_no_block_too_many(elements: int, grid: int) -> None:
    assert linear(elements) == Launch((grid, 1, 1), (BLOCK_THREADS, 1, 1))


@pytest.mark.parametrize("elements", [0, -1, MAX_INDEX + 1])
def test_linear_refuses_what_32_bit_indices_cannot_reach(elements: int) -> None:
    with pytest.raises(DeviceError, match=rf"{elements} elements .* smaller batch_size"):
        linear(elements)


@pytest.mark.parametrize(
    ("images", "map_size", "threads"),
    [
        (1, 1, 32),  # never less than a warp
        (64, 1, 32),
        (64, 100, 64),  # 6400 terms / 128 = 50, to the next power of two
        (1000, 100, 128),  # as wide as the map
        (1000, 10_000, 256),  # and never wider than a block
    ],
)
def test_a_reduction_is_as_wide_as_its_map_and_its_terms_allow(
    images: int, map_size: int, threads: int
) -> None:
    assert reduction(7, images, map_size) == Launch((7, 1, 1), (threads, 1, 1))


@pytest.mark.parametrize("outputs", [0, 2**31])
def test_a_reduction_over_more_outputs_than_a_grid_has_blocks_is_refused(outputs: int) -> None:
    with pytest.raises(DeviceError, match=f"{outputs} blocks exceed a grid; use a smaller layer"):
        reduction(outputs, 1, 1)


def test_signatures_list_every_kernel_in_order_with_its_parameters_and_skip_comments() -> None:
    assert list(signatures(SOURCE)) == ["scale", "count"]
    assert list(SCALE.items()) == [
        ("x", Parameter("P", "float32")),
        ("y", Parameter("P", "float32")),
        ("M", Parameter("i")),
        ("factor", Parameter("f")),
    ]
    assert signatures(SOURCE)["count"] == {
        "x": Parameter("P", "uint8"),
        "bins": Parameter("P", "uint32"),
        "total": Parameter("P", "int32"),
    }


@pytest.mark.parametrize(
    "parameter", ["double x", "float4* x", "unsigned M", "size_t M", "float** x"]
)
def test_a_parameter_that_the_host_cannot_pack_is_refused_by_name(parameter: str) -> None:
    with pytest.raises(ValueError, match="kernel parameter"):
        signatures(f'extern "C" __global__ void kernel({parameter}) {{}}')


def test_right_arguments_pass_also_as_numpy_scalars_and_some_of_them_when_partial() -> None:
    scalars: dict[str, Any] = {"M": np.int64(4), "factor": np.float32(2)}
    check_arguments("scale", SCALE, {"x": X, "y": X, **scalars})
    check_arguments("scale", SCALE, {"x": X, "y": X, "M": 4, "factor": 2})
    check_arguments("scale", SCALE, {"factor": 3.0}, partial=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": X, "y": X, "M": 4}, r"missing \['factor'\]"),
        ({"x": X, "y": X, "M": 4, "factor": 1.0, "n": 4}, r".*unknown \['n'\]"),
        ({"x": X, "y": X, "M": 4.0, "factor": 1.0}, "M must be an int, not float"),
        ({"x": X, "y": X, "M": True, "factor": 1.0}, "M must be an int, not bool"),
        ({"x": X, "y": X, "M": 4, "factor": X}, "factor must be a float, not DeviceArray"),
        ({"x": 256, "y": X, "M": 4, "factor": 1.0}, "x must be float32 on the device, not int"),
        (
            {"x": DeviceArray(256, (4,), "int32"), "y": X, "M": 4, "factor": 1.0},
            "x must be float32 on the device, not int32",
        ),
    ],
)
def test_wrong_arguments_raise_before_the_launch(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"scale: {message}"):
        check_arguments("scale", SCALE, arguments)


def test_every_kernel_source_of_the_package_has_a_signature_that_parses() -> None:
    for source in kernel_sources():
        assert signatures(kernel_text(source)), source


def test_a_view_stays_within_its_array() -> None:
    array = DeviceArray(4096, (6, 4), "float32")
    assert array.view((2, 5), first=3) == DeviceArray(4096 + 12, (2, 5), "float32")
    assert array.view((24,)).byte_count == 96
    for shape, first in [((25,), 0), ((2, 4), 17), ((1,), -1)]:
        with pytest.raises(ValueError, match="leaves an array of 24"):
            array.view(shape, first=first)
