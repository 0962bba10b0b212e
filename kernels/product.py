"""A matrix product whose rows, columns and contraction are split, and what follows it on each row.

The one idea: GEMM-softmax and GEMM-LayerNorm differ only in what they do to a finished row. A split
contraction ends in a reduce-scatter over rows, so that no device ever holds sums it does not need;
what remains to send is what the row operation asks for, a few numbers a row.
"""

import math
from collections.abc import Callable, Sequence

from jax import Array
from jax.typing import DTypeLike

from jaxcomet.kernels import collectives, errors, statistics
from jaxcomet.kernels.partition import Dimensions, Partition
from jaxcomet.kernels.precision import Precision, matmul
from jaxcomet.kernels.rowwise import RowOperation

DIMENSIONS = ("m", "n", "k")
ROWS: Dimensions = (("m", "k"), "n")
"""Those of the result: the devices of a split contraction share its rows."""


def check(function: str, a: Array, b: Array) -> None:
    """Refuses matrices that cannot be multiplied.

    Raises:
      KernelError: another rank, sizes of k that differ, an empty axis, or no floating point.
    """
    errors.rank(function, "a", a, range(2, 9), "[..., m, k]")
    errors.rank(function, "b", b, 2, "[k, n]")
    errors.floating(function, a=a, b=b)
    errors.equal_sizes(
        function, (f"a axis {a.ndim - 1} (k)", a.shape[-1]), ("b axis 0 (k)", b.shape[0])
    )


def split_product(
    a: Array,
    b: Array,
    rows: RowOperation,
    partition: Partition,
    *,
    extras: Sequence[Array] = (),
    extra_dimensions: Sequence[Dimensions] = (),
    precision: Precision = None,
    wire_dtype: DTypeLike | None = None,
) -> Array:
    """rows(a @ b) with m, n and k split as the partition says.

    Sizes that do not divide are padded with zeros, which the row operation learns from its
    `Columns`. The result has the size that was asked for; where that does not divide its sharding
    is left to XLA, which then gathers it.

    Args:
      a: shape (..., m, k); the leading axes count as rows.
      b: shape (k, n).
      rows: the row operation; it sees this device's rows and columns.
      partition: the split of m, n and k. Over the devices of k the result is split by rows.
      extras: further arrays for `rows`.
      extra_dimensions: for each the dimensions of its axes, as of `Partition.map_padded`; rows are
        ``("m", "k")``.
      precision: of the product.
      wire_dtype: dtype of the partial sums that are sent, or None for the accumulator's.

    Returns:
      Shape (..., m, n), of the dtype that `rows` returns.
    """
    leading, n = a.shape[:-1], b.shape[1]
    sizes = {"m": math.prod(leading), "n": n, "k": a.shape[-1]}
    columns = statistics.columns(partition, "n", n)

    def body(a: Array, b: Array, *extras: Array) -> Array:
        partial = matmul(a, b, precision)
        logits = collectives.reduce_scatter(partial, partition.names("k"), 0, wire_dtype)
        return rows(logits, columns, *extras)

    result = partition.map_padded(
        body,
        (a.reshape(sizes["m"], -1), b, *extras),
        (("m", "k"), ("k", "n"), *extra_dimensions),
        ROWS,
        sizes,
    )
    return result.reshape(*leading, n)


def automatic_product(
    a: Array, b: Array, operation: Callable[[Array, Array], Array], partition: Partition
) -> Array:
    """operation(a, b) where XLA decides what moves: only the shardings of the ends are stated.

    Args:
      a: shape (..., m, k).
      b: shape (k, n).
      operation: the plain form, on whole arrays.
      partition: as of `split_product`; sizes that do not divide are left unsplit.

    Returns:
      What the operation returns, its rows split over the devices of m and k, its columns over n.
    """
    rows = partition.constrain(a.reshape(-1, a.shape[-1]), "m", "k")
    result = operation(rows, partition.constrain(b, "k", "n"))
    return partition.constrain(result, *ROWS).reshape(*a.shape[:-1], b.shape[1])
