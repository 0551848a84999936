"""What every layer spec has: the shape arithmetic that config, engines and tables share."""

from __future__ import annotations

import unicodedata
from math import prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

Shape = tuple[int, ...]
"""Extents of an array, images first: (N, C, H, W) or (N, F)."""

FLOAT_BYTES = 4
FLOAT32_MIN, FLOAT32_MAX = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""The least number that float32 holds with all its digits, and the largest."""
MAX_INT = 2**31 - 1
"""Sizes and counts are C ints in the kernels; what is below and still too large is found by its memory."""


class SpecError(ValueError):
    """A layer does not fit its input; the message says what was found and what would do."""


def _to_pair(value: Any) -> Any:
    """5 -> (5, 5); [5, 3] -> (5, 3); anything else is left for pydantic to refuse."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, value)
    return tuple(value) if isinstance(value, list) else value


def _from_pair(value: tuple[int, int]) -> int | list[int]:
    """(5, 5) -> 5; (5, 3) -> [5, 3]: as one would write it."""
    return value[0] if value[0] == value[1] else list(value)


def _in_float32(value: float) -> float:
    """The value, if the engines can compute with it."""
    if value and not FLOAT32_MIN <= abs(value) <= FLOAT32_MAX:
        raise ValueError(
            f"give a number from {FLOAT32_MIN:.5g} to {FLOAT32_MAX:.5g}, the range of float32"
        )
    return value


def _visible(name: str | None) -> str | None:
    """The name, if each of its characters can be seen: others could forge what a terminal shows."""
    for character in name or "":
        if unicodedata.category(character).startswith("C"):
            raise ValueError(
                f"leave out the character U+{ord(character):04X}, which controls the terminal or"
                " cannot be seen"
            )
    return name


PositiveInt = Annotated[int, Field(gt=0, le=MAX_INT)]
Float32 = Annotated[float, AfterValidator(_in_float32)]
"""A number that is neither lost nor infinite in float32."""
Pair = Annotated[
    tuple[PositiveInt, PositiveInt], BeforeValidator(_to_pair), PlainSerializer(_from_pair)
]
"""(rows, columns), both positive; YAML takes 5 or [5, 3]."""
PaddingPair = Annotated[
    tuple[Annotated[int, Field(ge=0, le=MAX_INT)], Annotated[int, Field(ge=0, le=MAX_INT)]],
    BeforeValidator(_to_pair),
    PlainSerializer(_from_pair),
]
"""(rows, columns) of zeros added on each side; YAML takes 2 or [2, 0]."""


class Strict(BaseModel):
    """Frozen, strict (no silent conversions), unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )


class CudaChoice(Strict):
    """How the CUDA engine runs one layer, where it differs from the config's ``cuda`` section."""

    rung: str | None = None
    backward: Literal["push", "pull"] | None = None


class LayerSpec(Strict):
    """One layer as the user wrote it, and the arithmetic on its shapes; no arrays.

    Every count is for the whole batch ``x`` (images first). FLOPs count a multiplication and an addition as
    two; ``*_bytes`` is the least traffic: each operand read once, each result written once, float32.
    """

    is_activation: ClassVar[bool] = False

    kind: str
    name: Annotated[str | None, AfterValidator(_visible)] = Field(
        default=None, pattern=r"^[^\s+,*/\\]+$", max_length=64
    )
    cuda: CudaChoice | None = None

    def output_shape(self, x: Shape) -> Shape:
        """Shape of y for an input of shape ``x``.

        Raises:
            SpecError: the layer does not fit ``x``.
        """
        return x

    def parameter_shapes(self, x: Shape) -> dict[str, Shape]:
        """Trainable arrays by name (``weight``, ``bias``); empty for a layer without any."""
        return {}

    def fan_in(self, x: Shape) -> int:
        """Terms summed for one output unit; scales the initial weights."""
        return 1

    def forward_flops(self, x: Shape) -> int:
        """Operations of one forward pass."""
        return 0

    def backward_flops(self, x: Shape, needs_grad_x: bool) -> int:
        """Operations of one backward pass."""
        return 0

    def forward_bytes(self, x: Shape) -> int:
        """Least traffic of one forward pass: x and parameters read, y written."""
        return FLOAT_BYTES * (prod(x) + prod(self.output_shape(x)) + self.parameter_count(x))

    def backward_bytes(self, x: Shape, needs_grad_x: bool) -> int:
        """Least traffic of one backward pass."""
        return 0

    def parameter_count(self, x: Shape) -> int:
        """Number of trainable numbers."""
        return sum(prod(shape) for shape in self.parameter_shapes(x).values())


class ActivationSpec(LayerSpec):
    """An elementwise layer: y has the shape of x, and backward needs y alone."""

    is_activation: ClassVar[bool] = True
    forward_flops_each: ClassVar[int] = 1
    backward_flops_each: ClassVar[int] = 3

    def forward_flops(self, x: Shape) -> int:
        """One function value an element, counted as ``forward_flops_each``."""
        return self.forward_flops_each * prod(x)

    def backward_flops(self, x: Shape, needs_grad_x: bool) -> int:
        """The derivative from y, times grad_y."""
        return self.backward_flops_each * prod(x) if needs_grad_x else 0

    def backward_bytes(self, x: Shape, needs_grad_x: bool) -> int:
        """grad_y and y read, grad_x written."""
        return 3 * FLOAT_BYTES * prod(x) if needs_grad_x else 0


def require_images(kind: str, x: Shape) -> tuple[int, int, int, int]:
    """(N, C, H, W), or raise.

    Raises:
        SpecError: ``x`` is not a batch of maps.
    """
    if len(x) != 4:
        raise SpecError(
            f"{kind} needs maps (C, H, W) but gets a vector of {prod(x[1:])}; move it before flatten"
        )
    n, c, h, w = x
    return n, c, h, w


def require_vectors(kind: str, x: Shape) -> tuple[int, int]:
    """(N, F), or raise.

    Raises:
        SpecError: ``x`` is not a batch of vectors.
    """
    if len(x) != 2:
        raise SpecError(
            f"{kind} needs a vector but gets maps of {' x '.join(map(str, x[1:]))}; put a flatten before it"
        )
    return x[0], x[1]


def window_extent(kind: str, size: int, window: int, stride: int, padding: int = 0) -> int:
    """Number of whole windows along one axis: floor((size + 2 padding - window) / stride) + 1.

    Raises:
        SpecError: not even one window fits.
    """
    if size + 2 * padding < window:
        padded = f" ({size + 2 * padding} with padding)" if padding else ""
        raise SpecError(
            f"{kind}: a window of {window} exceeds the input's {size}{padded}; make it smaller"
        )
    return (size + 2 * padding - window) // stride + 1
