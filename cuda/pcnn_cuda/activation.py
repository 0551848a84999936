"""What the activations share on the host: one thread an element, y over x and grad_x over grad_y."""

from __future__ import annotations

from math import prod

from pcnn_cuda.device import BoundLaunch
from pcnn_cuda.launch import linear
from pcnn_cuda.op import Op, Tensors


class Activation(Op):
    """An elementwise op whose backward needs y alone."""

    in_place = True
    backward_reads_y = True

    def forward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """x -> y, any shape; y may be x."""
        count = n * prod(self.layer.x_shape)
        return [self.kernels[f"{self.stem}_forward"].bind(linear(count), x=t.x, y=t.y, count=count)]

    def backward(self, n: int, t: Tensors) -> list[BoundLaunch]:
        """grad_y -> grad_x, any shape; grad_x may be grad_y."""
        assert t.grad_x is not None
        assert t.grad_y is not None
        count = n * prod(self.layer.x_shape)
        return [
            self.kernels[f"{self.stem}_backward"].bind(
                linear(count), y=t.y, grad_y=t.grad_y, grad_x=t.grad_x, count=count
            )
        ]
