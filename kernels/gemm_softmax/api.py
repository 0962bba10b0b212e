"""GEMM-softmax by any strategy, on one device or a mesh."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet.kernels import devices, errors, product, statistics
from jaxcomet.kernels.gemm_softmax import reference, sharded
from jaxcomet.kernels.partition import Axis, Partition, check_partitioner, partition
from jaxcomet.kernels.precision import Precision
from jaxcomet.kernels.statistics import REDUCTIONS, Columns


def gemm_softmax(
    a: Array,
    b: Array,
    where: Array | None = None,
    *,
    strategy: str = "fused-gemm-distsm",
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
) -> Array:
    """softmax(a @ b) over the last axis.

    The dimensions are m, n and k. Split n: each device has its columns, and sends two numbers a row
    (its maximum and its sum of exponentials). Split k: partial sums are reduce-scattered, and the
    result is split by rows. Split m: nothing is sent. Any of them together, over different mesh
    axes.

    Args:
      a: shape (..., m, k), float32, bfloat16, float16 or float64.
      b: shape (k, n).
      where: boolean, broadcastable to (..., m, n): True takes part.
      strategy: ``fused-gemm-distsm``, ``fused-distsm`` (the softmax waits for the whole product),
        ``fused-gemm-sm`` (rows are gathered first: what not to do) or ``unfused`` (six separate
        operations).
      mesh: the devices, or None for one.
      axis: the mesh axes of n, or a mapping such as ``{"m": "x", "n": "y"}``; None is all of them
        for n.
      partitioner: ``shard_map``, where the strategy says what is sent, or ``auto``, where XLA
        derives it from the shardings of arguments and result, and the strategy has no say.
      reduction: statistics over devices by one ``combined`` collective, or a maximum and a sum in
        ``separate`` ones.
      wire_dtype: dtype of what is sent; None is the accumulator's.
      precision: of the matrix product.

    Returns:
      Shape (..., m, n) in the common dtype of `a` and `b`. Conventions for empty rows, infinities
      and NaN: `jaxcomet.kernels.softmax.reference.softmax`.

    Raises:
      KernelError: arguments that do not fit together.

    Example:
      >>> print(gemm_softmax(jnp.eye(2), jnp.zeros((2, 4)))[0])
      [0.25 0.25 0.25 0.25]
    """
    name = "gemm_softmax"
    a, b = jnp.asarray(a), jnp.asarray(b)
    product.check(name, a, b)
    where = errors.mask(name, "where", where, (*a.shape[:-1], b.shape[1]))
    errors.one_of(name, "strategy", strategy, sharded.STRATEGIES)
    check_partitioner(name, partitioner, mesh)
    errors.one_of(name, "reduction", reduction, REDUCTIONS)
    split = partition(name, mesh, axis, dimensions=product.DIMENSIONS, default="n")
    if partitioner == "auto":
        result = _automatic(a, b, where, split=split, precision=precision)
    else:
        result = _manual(
            a,
            b,
            where,
            split=split,
            strategy=strategy,
            reduction=reduction,
            wire_dtype=wire_dtype,
            precision=precision,
        )
    return devices.guarded(result, mesh)


@functools.partial(jax.jit, static_argnames=("split", "precision"))
def _automatic(
    a: Array, b: Array, where: Array | None, *, split: Partition, precision: Precision
) -> Array:
    def operation(a: Array, b: Array) -> Array:
        return reference.gemm_softmax(a, b, where, precision=precision)

    return product.automatic_product(a, b, operation, split)


@functools.partial(
    jax.jit, static_argnames=("split", "strategy", "reduction", "wire_dtype", "precision")
)
def _manual(
    a: Array,
    b: Array,
    where: Array | None,
    *,
    split: Partition,
    strategy: str,
    reduction: str,
    wire_dtype: DTypeLike | None,
    precision: Precision,
) -> Array:
    dtype = jnp.result_type(a, b)

    def rows(logits: Array, columns: Columns, *visible: Array) -> Array:
        logits = statistics.masked(logits, columns, *visible)
        return sharded.rows(logits, columns, strategy, reduction, wire_dtype).astype(dtype)

    extras = () if where is None else (where,)
    return product.split_product(
        a,
        b,
        rows,
        split,
        extras=extras,
        extra_dimensions=[product.ROWS] * len(extras),
        precision=precision,
        wire_dtype=wire_dtype,
    )
