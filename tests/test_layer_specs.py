"""The arithmetic of the layer specs, counted again by loops; and the network made of them."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from pcnn_bench.layers import LOSSES, SPECS, LayerSpec, Shape, SpecError
from pcnn_bench.layers.avgpool2d import AvgPool2dSpec
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.layers.dense import DenseSpec
from pcnn_bench.layers.flatten import FlattenSpec
from pcnn_bench.layers.maxpool2d import MaxPool2dSpec
from pcnn_bench.layers.mean_squared_error import MeanSquaredErrorSpec
from pcnn_bench.layers.relu import ReluSpec
from pcnn_bench.layers.sigmoid import SigmoidSpec
from pcnn_bench.layers.softmax_cross_entropy import SoftmaxCrossEntropySpec
from pcnn_bench.layers.tanh import TanhSpec
from pcnn_bench.network import Network, NetworkError
from pcnn_bench.optimizers import SgdSpec

# N, C, H, W, kernel, stride, padding: all different, odd, prime, 1, one over a block, not square
CONVOLUTIONS: list[tuple[Shape, tuple[int, int], tuple[int, int], tuple[int, int]]] = [
    ((1, 1, 5, 7), (3, 2), (2, 3), (1, 0)),
    ((2, 3, 14, 14), (3, 3), (2, 2), (0, 0)),
    ((1, 1, 4, 4), (1, 1), (2, 2), (0, 0)),
    ((1, 1, 2, 2), (1, 1), (1, 1), (1, 1)),
    ((3, 2, 4, 4), (2, 2), (1, 1), (0, 0)),
    ((1, 1, 33, 17), (3, 3), (1, 1), (0, 0)),
    ((2, 5, 1, 1), (1, 1), (1, 1), (0, 0)),
    ((2, 3, 1, 6), (1, 4), (1, 1), (0, 0)),
    ((2, 3, 6, 1), (4, 1), (3, 1), (1, 0)),
    ((2, 1, 3, 3), (5, 5), (1, 1), (1, 1)),
]
WINDOWS: list[tuple[Shape, tuple[int, int], tuple[int, int]]] = [
    ((2, 3, 5, 5), (2, 2), (2, 2)),
    ((2, 3, 5, 4), (3, 2), (1, 1)),
    ((1, 2, 7, 9), (2, 3), (3, 4)),
    ((1, 1, 1, 1), (1, 1), (1, 1)),
    ((3, 2, 13, 1), (13, 1), (5, 1)),
]


def positions(size: int, window: int, stride: int, padding: int = 0) -> list[int]:
    """Where whole windows begin on a padded axis, found by trying every place."""
    return [
        at
        for at in range(size + 2 * padding)
        if at % stride == 0 and at + window <= size + 2 * padding
    ]


def bytes_of(*shapes: Shape) -> int:
    """Bytes of float32 (or int32) arrays of these shapes."""
    return sum(np.empty(shape, np.float32).nbytes for shape in shapes)


def written(kind: str, **fields: Any) -> Any:
    """The spec that these YAML values make."""
    return SPECS[kind].model_validate(fields)


def conv2d(
    kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Conv2dSpec:
    return Conv2dSpec(out_channels=4, kernel=kernel, stride=stride, padding=padding)


# Shapes


@pytest.mark.parametrize(("x", "kernel", "stride", "padding"), CONVOLUTIONS)
def test_convolution_has_one_output_for_each_place_of_its_window(
    x: Shape, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> None:
    rows, columns = (positions(*axis) for axis in zip(x[2:], kernel, stride, padding, strict=True))
    spec = conv2d(kernel, stride, padding)
    assert spec.output_shape(x) == (x[0], 4, len(rows), len(columns))
    assert spec.parameter_shapes(x) == {"weight": (4, x[1], *kernel), "bias": (4,)}
    assert spec.parameter_count(x) == 4 * x[1] * kernel[0] * kernel[1] + 4
    assert spec.fan_in(x) == x[1] * kernel[0] * kernel[1]


@pytest.mark.parametrize(
    ("x", "spec", "y"),
    [
        ((1, 1, 5, 7), conv2d((3, 2), (2, 3), (1, 0)), (1, 4, 3, 2)),
        ((1, 1, 4, 4), conv2d((1, 1), (2, 2), (0, 0)), (1, 4, 2, 2)),
        ((1, 1, 2, 2), conv2d((1, 1), (1, 1), (1, 1)), (1, 4, 4, 4)),
        ((1, 1, 4, 4), conv2d((2, 2), (1, 1), (0, 0)), (1, 4, 3, 3)),
        ((1, 1, 33, 17), conv2d((3, 3), (1, 1), (0, 0)), (1, 4, 31, 15)),
        ((9, 1, 29, 29), conv2d((5, 5), (2, 2), (0, 0)), (9, 4, 13, 13)),
        ((1, 3, 510, 510), written("maxpool2d", size=2), (1, 3, 255, 255)),
        ((1, 3, 511, 511), written("avgpool2d", size=2), (1, 3, 255, 255)),
        ((1, 1, 5, 5), written("avgpool2d", size=2, stride=2), (1, 1, 2, 2)),
        ((7, 2, 6, 5), MaxPool2dSpec(size=(3, 2), stride=(2, 1)), (7, 2, 2, 4)),
        ((5, 2, 3, 4), FlattenSpec(), (5, 24)),
        ((5, 24), FlattenSpec(), (5, 24)),
        ((5, 24), DenseSpec(out_features=7), (5, 7)),
        ((5, 2, 3, 4), TanhSpec(), (5, 2, 3, 4)),
        ((5, 7), SigmoidSpec(), (5, 7)),
        ((5, 7), SoftmaxCrossEntropySpec(), (5,)),
        ((5, 7), MeanSquaredErrorSpec(), (5,)),
    ],
)
def test_known_shapes(x: Shape, spec: LayerSpec, y: Shape) -> None:
    assert spec.output_shape(x) == y


@pytest.mark.parametrize("kind", [MaxPool2dSpec, AvgPool2dSpec])
@pytest.mark.parametrize(("x", "size", "stride"), WINDOWS)
def test_pooling_drops_windows_that_are_not_whole(
    x: Shape,
    size: tuple[int, int],
    stride: tuple[int, int],
    kind: type[MaxPool2dSpec] | type[AvgPool2dSpec],
) -> None:
    spec = kind(size=size, stride=stride)
    rows, columns = (positions(*axis) for axis in zip(x[2:], size, stride, strict=True))
    assert spec.output_shape(x) == (*x[:2], len(rows), len(columns))
    assert spec.parameter_count(x) == 0


# FLOPs


@pytest.mark.parametrize(("x", "kernel", "stride", "padding"), CONVOLUTIONS)
def test_convolution_flops_are_two_for_each_product(
    x: Shape, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> None:
    spec = conv2d(kernel, stride, padding)
    y = spec.output_shape(x)
    forward = grad_weight = grad_x = grad_bias = 0
    for _ in product(*map(range, y)):
        grad_bias += 1
        for _ in product(range(x[1]), range(kernel[0]), range(kernel[1])):
            forward += 2
            grad_weight += 2
            grad_x += 2
    assert spec.forward_flops(x) == forward
    assert spec.backward_flops(x, needs_grad_x=False) == grad_weight + grad_bias
    assert spec.backward_flops(x, needs_grad_x=True) == grad_weight + grad_bias + grad_x


def test_dense_flops_are_two_for_each_product() -> None:
    spec, x = DenseSpec(out_features=3), (5, 7)
    products = sum(1 for _ in product(range(5), range(3), range(7)))
    assert spec.forward_flops(x) == 2 * products
    assert spec.backward_flops(x, needs_grad_x=False) == 2 * products + 15
    assert spec.backward_flops(x, needs_grad_x=True) == 4 * products + 15


@pytest.mark.parametrize("kind", [MaxPool2dSpec, AvgPool2dSpec])
@pytest.mark.parametrize(("x", "size", "stride"), WINDOWS)
def test_pooling_flops_are_one_for_each_cell_of_each_window(
    x: Shape,
    size: tuple[int, int],
    stride: tuple[int, int],
    kind: type[MaxPool2dSpec] | type[AvgPool2dSpec],
) -> None:
    rows, columns = (positions(*axis) for axis in zip(x[2:], size, stride, strict=True))
    cells = sum(
        1 for _ in product(range(x[0]), range(x[1]), rows, columns, range(size[0]), range(size[1]))
    )
    spec = kind(size=size, stride=stride)
    assert spec.forward_flops(x) == cells
    assert spec.backward_flops(x, needs_grad_x=True) == cells
    assert spec.backward_flops(x, needs_grad_x=False) == 0


@pytest.mark.parametrize(
    "spec",
    [TanhSpec(), ReluSpec(), SigmoidSpec(), SoftmaxCrossEntropySpec(), MeanSquaredErrorSpec()],
)
def test_elementwise_work_is_a_constant_for_each_number(spec: LayerSpec) -> None:
    one = spec.forward_flops((1, 1)), spec.backward_flops((1, 1), needs_grad_x=True)
    assert min(one) > 0
    many = spec.forward_flops((5, 7)), spec.backward_flops((5, 7), needs_grad_x=True)
    assert many == (35 * one[0], 35 * one[1])
    assert spec.backward_flops((5, 7), needs_grad_x=False) == 0


# Bytes


@pytest.mark.parametrize(("x", "kernel", "stride", "padding"), CONVOLUTIONS)
def test_convolution_bytes_are_each_operand_once(
    x: Shape, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> None:
    spec = conv2d(kernel, stride, padding)
    y, weight, bias = spec.output_shape(x), (4, x[1], *kernel), (4,)
    assert spec.forward_bytes(x) == bytes_of(x, weight, bias, y)
    parameters_only = bytes_of(x, y, weight, bias)  # grad_y has y's shape, gradients their own
    assert spec.backward_bytes(x, needs_grad_x=False) == parameters_only
    assert spec.backward_bytes(x, needs_grad_x=True) == parameters_only + bytes_of(weight, x)


def test_dense_bytes_are_each_operand_once() -> None:
    spec, x, y, weight, bias = DenseSpec(out_features=3), (5, 7), (5, 3), (3, 7), (3,)
    assert spec.forward_bytes(x) == bytes_of(x, weight, bias, y)
    assert spec.backward_bytes(x, needs_grad_x=False) == bytes_of(x, y, weight, bias)
    assert spec.backward_bytes(x, needs_grad_x=True) == bytes_of(x, y, weight, bias, weight, x)


@pytest.mark.parametrize(("x", "size", "stride"), WINDOWS)
def test_pooling_bytes_are_each_operand_once(
    x: Shape, size: tuple[int, int], stride: tuple[int, int]
) -> None:
    average, largest = (
        AvgPool2dSpec(size=size, stride=stride),
        MaxPool2dSpec(size=size, stride=stride),
    )
    y = average.output_shape(x)
    assert average.forward_bytes(x) == bytes_of(x, y)
    assert average.backward_bytes(x, needs_grad_x=True) == bytes_of(y, x)
    assert largest.forward_bytes(x) == bytes_of(x, y, y)  # the positions are int32
    assert largest.backward_bytes(x, needs_grad_x=True) == bytes_of(y, y, x)
    for spec in (average, largest):
        assert spec.backward_bytes(x, needs_grad_x=False) == 0


def test_bytes_of_the_other_layers_are_each_operand_once() -> None:
    x = (5, 7)
    for spec in (TanhSpec(), ReluSpec(), SigmoidSpec()):
        assert spec.forward_bytes(x) == bytes_of(x, x)
        assert spec.backward_bytes(x, needs_grad_x=True) == bytes_of(x, x, x)
        assert spec.backward_bytes(x, needs_grad_x=False) == 0
    labels = losses = (5,)
    for loss, kept in ((SoftmaxCrossEntropySpec(), [x]), (MeanSquaredErrorSpec(), [])):
        assert loss.forward_bytes(x) == bytes_of(x, labels, losses, *kept)
        assert loss.backward_bytes(x, needs_grad_x=True) == bytes_of(x, labels, x)
    assert FlattenSpec().forward_bytes((5, 2, 3, 4)) == 0
    assert FlattenSpec().backward_bytes((5, 2, 3, 4), needs_grad_x=True) == 0


def test_sgd_updates_with_three_multiply_adds_a_parameter() -> None:
    spec = SgdSpec(learning_rate=0.1)
    gradient = velocity = parameter = (11,)
    assert spec.update_flops(11) == 11 * 3 * 2
    assert spec.update_bytes(11) == bytes_of(gradient, velocity, parameter, velocity, parameter)


# What does not fit


@pytest.mark.parametrize(
    ("spec", "x", "message"),
    [
        (
            conv2d((5, 3), (1, 1), (1, 0)),
            (1, 1, 2, 9),
            "conv2d: a window of 5 exceeds the input's 2 (4 with padding); make it smaller",
        ),
        (
            written("maxpool2d", size=[1, 3]),
            (1, 1, 5, 2),
            "maxpool2d: a window of 3 exceeds the input's 2; make it smaller",
        ),
        (
            written("avgpool2d", size=2),
            (5, 12),
            "avgpool2d needs maps (C, H, W) but gets a vector of 12; move it before flatten",
        ),
        (
            conv2d((1, 1), (1, 1), (0, 0)),
            (5, 12),
            "conv2d needs maps (C, H, W) but gets a vector of 12; move it before flatten",
        ),
        (
            DenseSpec(out_features=3),
            (5, 2, 3, 4),
            "dense needs a vector but gets maps of 2 x 3 x 4; put a flatten before it",
        ),
        (
            SoftmaxCrossEntropySpec(),
            (5, 2, 3, 4),
            "softmax_cross_entropy needs a vector but gets maps of 2 x 3 x 4; put a flatten before it",
        ),
    ],
)
def test_layer_that_does_not_fit_says_what_would(spec: LayerSpec, x: Shape, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec.output_shape(x)
    assert str(caught.value) == message


def test_window_as_large_as_the_padded_input_fits() -> None:
    assert conv2d((7, 7), (3, 3), (1, 1)).output_shape((1, 1, 5, 5)) == (1, 4, 1, 1)


# The specs as pydantic models


def test_one_number_stands_for_rows_and_columns() -> None:
    spec = MaxPool2dSpec(size=(3, 3), stride=(3, 3))
    assert written("maxpool2d", size=3) == spec
    assert written("maxpool2d", size=[3, 3], stride=None) == spec
    assert written("conv2d", out_channels=1, kernel=5) == Conv2dSpec(out_channels=1, kernel=(5, 5))


@pytest.mark.parametrize("kernel", [0, -1, 2.0, True, "3", [3], [3, 3, 3], [3, 0], [3, True], None])
def test_kernel_that_is_no_size_is_refused(kernel: object) -> None:
    with pytest.raises(ValidationError):
        written("conv2d", out_channels=1, kernel=kernel)


def test_pair_is_written_as_one_would_write_it() -> None:
    spec = Conv2dSpec(out_channels=1, kernel=(5, 3), padding=(2, 2))
    dumped = spec.model_dump(mode="json")
    assert (dumped["kernel"], dumped["stride"], dumped["padding"]) == ([5, 3], 1, 2)
    assert Conv2dSpec.model_validate(dumped) == spec


@pytest.mark.parametrize("table", [SPECS, LOSSES])
def test_tables_are_keyed_by_the_kind_of_the_spec(table: dict[str, type[LayerSpec]]) -> None:
    assert table
    for kind, spec in table.items():
        assert spec.model_fields["kind"].default == kind
        assert spec.__module__ == f"pcnn_bench.layers.{kind}"


def test_activations_know_that_they_are() -> None:
    activations = {kind for kind, spec in SPECS.items() if spec.is_activation}
    assert activations == {"tanh", "relu", "sigmoid"}


# The network


def small_network(*, needs_grad_x: bool = False) -> Network:
    specs = [
        TanhSpec(),
        Conv2dSpec(out_channels=3, kernel=(2, 3)),
        TanhSpec(),
        written("maxpool2d", size=2, name="shrink"),
        FlattenSpec(),
        DenseSpec(out_features=4),
    ]
    return Network((2, 7, 9), specs, SoftmaxCrossEntropySpec(), needs_grad_x=needs_grad_x)


def test_layers_are_named_by_kind_and_number_unless_they_have_a_name() -> None:
    network = small_network()
    names = ["tanh1", "conv2d1", "tanh2", "shrink", "flatten1", "dense1"]
    assert [layer.name for layer in network.layers] == names
    assert [layer.name for layer in network.all_layers] == [*names, "loss"]


def test_every_layer_gets_the_shape_of_the_one_before() -> None:
    network = small_network()
    shapes = [(2, 7, 9), (2, 7, 9), (3, 6, 7), (3, 6, 7), (3, 3, 3), (27,), (4,)]
    assert [layer.x_shape for layer in network.layers] == shapes[:-1]
    assert [layer.y_shape for layer in network.layers] == shapes[1:]
    assert network.output_shape == (4,)
    assert network.loss is not None
    assert (network.loss.x_shape, network.loss.y_shape) == ((4,), ())
    assert network.layers[3].batch_x(5) == (5, 3, 6, 7)
    assert network.layers[3].batch_y(5) == (5, 3, 3, 3)
    assert network.loss.batch_y(5) == (5,)
    assert network.parameter_count == 3 * 2 * 2 * 3 + 3 + 27 * 4 + 4


def test_input_gradient_is_needed_only_behind_the_first_parameters() -> None:
    network = small_network()
    assert [layer.needs_grad_x for layer in network.all_layers] == [False, False] + [True] * 5
    assert [layer.needs_backward for layer in network.all_layers] == [False] + [True] * 6
    asked = small_network(needs_grad_x=True)
    assert all(layer.needs_grad_x for layer in asked.all_layers)


def test_network_without_parameters_needs_no_backward() -> None:
    network = Network((3,), [TanhSpec()], MeanSquaredErrorSpec())
    assert not any(layer.needs_backward for layer in network.all_layers)


@pytest.mark.parametrize(
    ("specs", "index", "message"),
    [
        (
            [TanhSpec(name="a"), ReluSpec(), TanhSpec(name="a")],
            2,
            "the name 'a' is used by layers 0 and 2; choose another",
        ),
        (
            [TanhSpec(name="relu1"), ReluSpec()],
            1,
            "the name 'relu1' is used by layers 0 and 1; choose another",
        ),
        ([TanhSpec(name="loss")], 0, "the name 'loss' is taken by the program; choose another"),
        (
            [FlattenSpec(), Conv2dSpec(out_channels=1, kernel=(1, 1))],
            1,
            "layer conv2d1: conv2d needs maps (C, H, W) but gets a vector of 126; "
            "move it before flatten",
        ),
        (
            [TanhSpec()],
            None,
            "loss softmax_cross_entropy needs a vector but gets maps of 2 x 7 x 9; "
            "put a flatten before it",
        ),
    ],
)
def test_network_that_cannot_be_names_the_layer(
    specs: list[LayerSpec], index: int | None, message: str
) -> None:
    with pytest.raises(NetworkError) as caught:
        Network((2, 7, 9), specs, SoftmaxCrossEntropySpec())
    assert caught.value.layer_index == index
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["a b", "a+b", "a,b", "*", "a/b", "a\\b", "", "a\n", "n" * 65])
def test_layer_name_that_a_results_table_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        TanhSpec(name=name)


def test_initial_parameters_are_uniform_within_one_over_root_fan_in() -> None:
    specs = [
        Conv2dSpec(out_channels=40, kernel=(3, 5)),
        FlattenSpec(),
        DenseSpec(out_features=50, name="out"),
    ]
    network = Network((4, 9, 9), specs, SoftmaxCrossEntropySpec())
    parameters = network.initial_parameters(0)
    shapes = {
        "conv2d1.weight": (40, 4, 3, 5),
        "conv2d1.bias": (40,),
        "out.weight": (50, 40 * 7 * 5),
        "out.bias": (50,),
    }
    assert {name: values.shape for name, values in parameters.items()} == shapes
    for name, values in parameters.items():
        fan_in = prod(shapes[name.replace("bias", "weight")][1:])
        bound = fan_in**-0.5
        assert values.dtype == np.float32
        assert np.abs(values).max() <= np.float32(bound)
        if values.size > 1000:
            # Of n uniform values the standard deviation is within 5 of its own deviations,
            # bound * sqrt(1 / (15 n)), of bound / sqrt(3): fails once in a million seeds.
            allowed = 5 * bound * (15 * values.size) ** -0.5
            assert abs(values.std(dtype=np.float64) - bound * 3**-0.5) <= allowed
            assert abs(values.mean(dtype=np.float64)) <= 5 * bound * (3 * values.size) ** -0.5


def test_initial_parameters_repeat_and_differ_by_seed_and_layer() -> None:
    network = Network((8,), [DenseSpec(out_features=8), DenseSpec(out_features=8)], None)
    first, again, other = (network.initial_parameters(seed) for seed in (3, 3, 4))
    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name])
        assert not np.array_equal(values, other[name])
    assert not np.array_equal(first["dense1.weight"], first["dense2.weight"])


def test_changing_one_layer_leaves_the_others_initial_values_alone() -> None:
    def parameters(kernel: int, out_features: int) -> dict[str, np.ndarray]:
        specs = [
            written("conv2d", out_channels=2, kernel=kernel, padding=kernel // 2),
            FlattenSpec(),
            DenseSpec(out_features=out_features),
            DenseSpec(out_features=3),
        ]
        return dict(Network((1, 5, 5), specs, None).initial_parameters(1))

    base, wider = parameters(3, 4), parameters(5, 4)
    assert base["conv2d1.weight"].shape != wider["conv2d1.weight"].shape
    for name in ("dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"):
        np.testing.assert_array_equal(base[name], wider[name])
