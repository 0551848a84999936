"""Average pooling."""

from __future__ import annotations

from typing import Literal

from pcnn_bench.layers.pooling import PoolingSpec


class AvgPool2dSpec(PoolingSpec):
    """The mean of each window; backward adds grad_y / cells to every cell of the window."""

    kind: Literal["avgpool2d"] = "avgpool2d"
