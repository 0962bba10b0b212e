"""An operation on each row of an array, with rows or columns split over devices.

The one idea: leading axes are rows; the row operation sees this device's part of rows and columns.
"""

import math
from collections.abc import Callable, Sequence

from jax import Array

from jaxcomet.kernels import statistics
from jaxcomet.kernels.partition import Dimensions, Partition

RowOperation = Callable[..., Array]
"""(part (m_local, n_local), columns, *extras) -> (m_local, n_local)."""

DIMENSIONS = ("m", "n")


def split_rows(
    x: Array,
    rows: RowOperation,
    partition: Partition,
    *,
    extras: Sequence[Array] = (),
    extra_dimensions: Sequence[Dimensions] = (),
) -> Array:
    """rows(x) with m and n split as the partition says.

    Args:
      x: shape (..., n); the leading axes are the rows m.
      rows: the row operation.
      partition: the split of m and n.
      extras: further arrays for `rows`.
      extra_dimensions: of their axes, as of `Partition.map_padded`.

    Returns:
      The shape of `x`, of the dtype that `rows` returns.
    """
    n = x.shape[-1]
    sizes = {"m": math.prod(x.shape[:-1]), "n": n}
    columns = statistics.columns(partition, "n", n)
    result = partition.map_padded(
        lambda x, *extras: rows(x, columns, *extras),
        (x.reshape(sizes["m"], n), *extras),
        (DIMENSIONS, *extra_dimensions),
        DIMENSIONS,
        sizes,
    )
    return result.reshape(x.shape)


def automatic_rows(x: Array, operation: Callable[[Array], Array], partition: Partition) -> Array:
    """operation(x) where XLA decides what moves: only the shardings of the ends are stated."""
    rows = partition.constrain(x.reshape(-1, x.shape[-1]), *DIMENSIONS)
    return partition.constrain(operation(rows), *DIMENSIONS).reshape(x.shape)
