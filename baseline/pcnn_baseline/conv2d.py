"""Convolution: kernel columns are unrolled, then one matrix product makes one row of the output."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from pcnn_baseline.arrays import Array, in_memory, of_batch
from pcnn_baseline.base import BaselineLayer
from pcnn_bench.layers.conv2d import Conv2dSpec
from pcnn_bench.network import Layer


class Conv2d(BaselineLayer):
    """Cross-correlation of padded maps with K filters.

    y[n,k,p,q] = bias[k] + sum over c, r, s of weight[k,c,r,s] x[n,c,i,j]
    with i = p stride + r - padding, j = q stride + s - padding, and x zero outside the map.

    ``unrolled`` (H, C, S, Q, N) holds for each kernel column s the columns of the padded x that it
    meets. The R rows which output row p needs are neighbours in it, so they are a matrix without a
    further copy, and

        y[p] (K, Q*N) = weight (K, R*C*S) @ window[p] (R*C*S, Q*N).

    Source: Chellapilla, Puri, Simard 2006, High performance convolutional neural networks for
    document processing, section 3, which unrolls rows as well and so copies R times as much.
    """

    keeps: ClassVar[frozenset[str]] = frozenset({"unrolled"})

    def __init__(self, layer: Layer, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(layer, dtype)
        assert isinstance(layer.spec, Conv2dSpec)
        self._spec = layer.spec
        self._unrolled: Array = np.empty(0, dtype)

    @classmethod
    def pass_bytes(cls, layer: Layer, n: int, item_bytes: int) -> int:
        """y, the padded x and the unrolled one, and a gradient of each of the two where x needs one."""
        assert isinstance(layer.spec, Conv2dSpec)
        _, c, height, width = layer.batch_x(n)
        _, k, p, q = layer.batch_y(n)
        (r, s), (pad_h, pad_w) = layer.spec.kernel, layer.spec.padding
        padded = (height + 2 * pad_h) * c * (width + 2 * pad_w) * n
        unrolled = (height + 2 * pad_h) * c * s * q * n
        count = k * p * q * n + padded + unrolled
        count += 3 * r * c * s * k  # the weight in its other order, its gradient and one term of it
        if layer.needs_grad_x:
            count += padded + unrolled + r * c * s * q * n
        return item_bytes * count

    def forward(self, x: Array) -> Array:
        """x (N, C, H, W) -> y (N, K, P, Q)."""
        n, k, p, q = self.layer.batch_y(x.shape[0])
        rows: Array = self.workspace.array("y", (p, k, q * n))
        self._unrolled = self._unroll(x)
        np.matmul(self._weight_matrix(), self._windows(self._unrolled), out=rows)
        rows += self.parameters["bias"][:, None]
        return of_batch(rows.reshape(p, k, q, n))

    def backward(self, grad_y: Array) -> Array | None:
        """grad_y (N, K, P, Q) -> grad_x (N, C, H, W) or None."""
        n, k, p, q = grad_y.shape
        grad_rows = in_memory(grad_y).reshape(p, k, q * n)
        self.gradients["bias"][...] = grad_rows.sum(axis=(0, 2))
        self._backward_weight(grad_rows)
        return self._backward_x(grad_rows) if self.layer.needs_grad_x else None

    def _backward_weight(self, grad_rows: Array) -> None:
        """grad_weight^T = sum over p of window[p] @ grad_y[p]^T.

        The transpose, since OpenBLAS takes a sixth less time with the long side of the result first.
        """
        k, c, r, s = self.parameters["weight"].shape
        grad_matrix: Array = self.workspace.array("grad_weight_matrix", (r * c * s, k))
        term: Array = self.workspace.array("grad_weight_term", (r * c * s, k))
        grad_matrix.fill(0)
        for grad_row, window in zip(grad_rows, self._windows(self._unrolled), strict=True):
            grad_matrix += np.matmul(window, grad_row.T, out=term)
        self.gradients["weight"][...] = grad_matrix.reshape(r, c, s, k).transpose(3, 1, 0, 2)

    def _backward_x(self, grad_rows: Array) -> Array:
        """weight^T @ grad_y[p] added to window[p], then the columns added back to their places."""
        _, height, width = self.layer.x_shape
        (pad_h, pad_w), (stride_h, stride_w) = self._spec.padding, self._spec.stride
        h, c, s, q, n = self._unrolled.shape
        r = self._spec.kernel[0]

        weight = self._weight_matrix().T
        grad_unrolled: Array = self.workspace.array("grad_unrolled", (h, c, s, q, n))
        term: Array = self.workspace.array("grad_window", (r, c, s, q, n))
        grad_unrolled.fill(0)
        for p, grad_row in enumerate(grad_rows):
            np.matmul(weight, grad_row, out=term.reshape(r * c * s, q * n))
            grad_unrolled[p * stride_h : p * stride_h + r] += term

        grad_padded: Array = self.workspace.array("grad_padded", (h, c, width + 2 * pad_w, n))
        grad_padded.fill(0)
        for column in range(s):
            grad_padded[:, :, column::stride_w][:, :, :q] += grad_unrolled[:, :, column]
        return of_batch(grad_padded[pad_h : pad_h + height, :, pad_w : pad_w + width])

    def _unroll(self, x: Array) -> Array:
        """x (N, C, H, W) -> (H + 2 padding, C, S, Q, N)."""
        rows = in_memory(x)
        h, c, w, n = rows.shape
        (pad_h, pad_w), stride = self._spec.padding, self._spec.stride[1]
        if pad_h or pad_w:
            padded: Array = self.workspace.array("padded", (h + 2 * pad_h, c, w + 2 * pad_w, n))
            padded.fill(0)
            padded[pad_h : pad_h + h, :, pad_w : pad_w + w] = rows
            rows = padded
        columns = sliding_window_view(rows, self._spec.kernel[1], axis=2)[:, :, ::stride]
        h, c, q, n, s = columns.shape
        unrolled: Array = self.workspace.array("unrolled", (h, c, s, q, n))
        unrolled[...] = columns.transpose(0, 1, 4, 2, 3)
        return unrolled

    def _windows(self, unrolled: Array) -> Array:
        """(H, C, S, Q, N) -> (P, R*C*S, Q*N): views that overlap, each the R rows of one output row."""
        _, c, s, q, n = unrolled.shape
        r, stride = self._spec.kernel[0], self._spec.stride[0]
        lines = unrolled.reshape(-1, q * n)
        return sliding_window_view(lines, r * c * s, axis=0)[:: stride * c * s].transpose(0, 2, 1)

    def _weight_matrix(self) -> Array:
        """weight (K, C, R, S) -> (K, R*C*S), the order in which the unrolled rows lie."""
        weight = self.parameters["weight"]
        return weight.transpose(0, 2, 1, 3).reshape(weight.shape[0], -1)
