"""Softmax over rows, on one device or a mesh."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet.kernels import devices, errors, rowwise, statistics
from jaxcomet.kernels.partition import Axis, Partition, check_partitioner, partition
from jaxcomet.kernels.precision import accumulator
from jaxcomet.kernels.softmax import reference
from jaxcomet.kernels.statistics import REDUCTIONS, Columns


def distributed_softmax(
    x: Array,
    where: Array | None = None,
    *,
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
) -> Array:
    """softmax(x) over the last axis, of which each device may hold a part.

    The dimensions are m, all leading axes as rows, and n. Over the devices of n two numbers a row
    are sent, its maximum and its sum of exponentials.

    Args:
      x: shape (..., n), float32, bfloat16, float16 or float64.
      where: boolean, broadcastable to `x`: True takes part.
      mesh: the devices, or None for one.
      axis: the mesh axes of n, or a mapping such as ``{"m": "x", "n": "y"}``; None is all of them
        for n.
      partitioner: ``shard_map``, or ``auto``, where XLA derives from shardings what is sent.
      reduction: statistics over devices by one ``combined`` collective, or a maximum and a sum in
        ``separate`` ones.
      wire_dtype: dtype of what is sent; None is the accumulator's.

    Returns:
      The shape and dtype of `x`. Conventions for empty rows, infinities and NaN:
      `jaxcomet.kernels.softmax.reference.softmax`.

    Raises:
      KernelError: arguments that do not fit together.

    Example:
      >>> print(distributed_softmax(jnp.array([0.0, -jnp.inf, 0.0])))
      [0.5 0.  0.5]
    """
    name = "distributed_softmax"
    x = jnp.asarray(x)
    errors.rank(name, "x", x, range(1, 9), "[..., n]")
    errors.floating(name, x=x)
    where = errors.mask(name, "where", where, x.shape)
    check_partitioner(name, partitioner, mesh)
    errors.one_of(name, "reduction", reduction, REDUCTIONS)
    split = partition(name, mesh, axis, dimensions=rowwise.DIMENSIONS, default="n")
    if partitioner == "auto":
        result = _automatic(x, where, split=split)
    else:
        result = _manual(x, where, split=split, reduction=reduction, wire_dtype=wire_dtype)
    return devices.guarded(result, mesh)


@functools.partial(jax.jit, static_argnames=("split",))
def _automatic(x: Array, where: Array | None, *, split: Partition) -> Array:
    return rowwise.automatic_rows(x, lambda rows: reference.softmax(rows, where), split)


@functools.partial(jax.jit, static_argnames=("split", "reduction", "wire_dtype"))
def _manual(
    x: Array,
    where: Array | None,
    *,
    split: Partition,
    reduction: str,
    wire_dtype: DTypeLike | None,
) -> Array:
    def rows(x: Array, columns: Columns, *visible: Array) -> Array:
        wide = statistics.masked(x.astype(accumulator(x.dtype)), columns, *visible)
        result = statistics.softmax(wide, columns, reduction=reduction, wire_dtype=wire_dtype)
        return result.astype(x.dtype)

    extras = () if where is None else (where,)
    dimensions = [rowwise.DIMENSIONS] * len(extras)
    return rowwise.split_rows(x, rows, split, extras=extras, extra_dimensions=dimensions)
