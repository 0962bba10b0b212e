"""Softmax-matmul by any strategy, on one device or a mesh."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet.kernels import devices, errors, product, statistics
from jaxcomet.kernels.partition import Axis, Dimensions, Partition, check_partitioner, partition
from jaxcomet.kernels.precision import Precision
from jaxcomet.kernels.softmax_matmul import reference, sharded
from jaxcomet.kernels.softmax_matmul.sharded import Plan
from jaxcomet.kernels.statistics import REDUCTIONS

_X: Dimensions = ("m", "k")
_V: Dimensions = ("k", "n")


def softmax_matmul(
    x: Array,
    v: Array,
    where: Array | None = None,
    *,
    strategy: str = "deferred",
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
) -> Array:
    """softmax(x) @ v, the softmax over the last axis of `x`.

    The dimensions are m, n and k; k is both what the softmax sums over and contracted. Split k:
    partial products are reduce-scattered, and the result is split by rows; the maximum and the sum
    of a row travel beside them. Split n or m: nothing is sent. Any of them together, over different
    mesh axes.

    Args:
      x: shape (..., m, k), float32, bfloat16, float16 or float64; (k,) is one row.
      v: shape (k, n); or (..., k, n) with the leading axes of `x`, which are not split.
      where: boolean, broadcastable to `x`: True takes part.
      strategy: ``deferred`` divides by the sum of a row behind the product (Salmani and
        Soloveychik, arXiv:2502.17728, here with the maximum taken off before, without which
        exponentials overflow at 89); ``serial`` makes the softmax first.
      mesh: the devices, or None for one.
      axis: the mesh axes of k, or a mapping such as ``{"m": "x", "k": "y"}``; None is all of them
        for k.
      partitioner: ``shard_map``, where the strategy says what is sent, or ``auto``, where XLA
        derives it from the shardings of arguments and result, and the strategy has no say.
      reduction: ``combined`` sends maxima and sums together, and no device waits for the maximum;
        ``separate`` sends the maximum first.
      wire_dtype: dtype of the partial products that are sent; None is the accumulator's. Maxima and
        sums are sent wide.
      precision: of the matrix product.

    Returns:
      Shape (..., m, n) in the common dtype of `x` and `v`. Exponentials are rounded to the dtype of
      `v` for the product, and the same rounded ones are summed. Conventions for hidden elements,
      empty rows, infinities and NaN: `jaxcomet.kernels.softmax_matmul.reference`.

    Raises:
      KernelError: arguments that do not fit together.

    Example:
      >>> x = jnp.array([[0.0, 0.0, -jnp.inf]])
      >>> print(softmax_matmul(x, jnp.array([[1.0], [2.0], [jnp.nan]])))
      [[1.5]]
    """
    name = "softmax_matmul"
    x, v = jnp.asarray(x), jnp.asarray(v)
    _check(name, x, v)
    where = errors.mask(name, "where", where, x.shape)
    errors.one_of(name, "strategy", strategy, sharded.STRATEGIES)
    check_partitioner(name, partitioner, mesh)
    errors.one_of(name, "reduction", reduction, REDUCTIONS)
    split = partition(name, mesh, axis, dimensions=product.DIMENSIONS, default="k")
    if partitioner == "auto":
        result = _automatic(x, v, where, split=split, precision=precision)
    else:
        plan = Plan(
            strategy=strategy,
            columns=statistics.columns(split, "k", x.shape[-1]),
            reduction=reduction,
            wire_dtype=wire_dtype,
            precision=precision,
        )
        result = _manual(x, v, where, split=split, plan=plan)
    return devices.guarded(result, mesh)


def _check(name: str, x: Array, v: Array) -> None:
    errors.rank(name, "v", v, range(2, 9), "[k, n] or [..., k, n]")
    if v.ndim == 2:
        errors.rank(name, "x", x, range(1, 9), "[..., m, k]")
    else:
        errors.rank(name, "x", x, v.ndim, f"[..., m, k] with the {v.ndim - 2} leading axes of v")
    errors.floating(name, x=x, v=v)
    errors.equal_sizes(
        name,
        (f"x axis {x.ndim - 1} (k)", x.shape[-1]),
        (f"v axis {v.ndim - 2} (k)", v.shape[-2]),
    )
    for axis in range(v.ndim - 2):
        errors.equal_sizes(
            name, (f"x axis {axis}", x.shape[axis]), (f"v axis {axis}", v.shape[axis])
        )


def _stacked(x: Array, v: Array, where: Array | None) -> list[Array]:
    """The arrays as matrices, for one v, or with one batch axis before them."""
    batch = () if v.ndim == 2 else (math.prod(v.shape[:-2]),)
    arrays = [x.reshape(*batch, -1, x.shape[-1]), v.reshape(*batch, *v.shape[-2:])]
    if where is not None:
        same = where.shape[0] == 1  # for all rows
        arrays.append(where.reshape(*(1 if same else size for size in batch), -1, where.shape[1]))
    return arrays


def _dimensions(v: Array, names: Dimensions) -> Dimensions:
    """The dimensions of an array's axes, with that of a batch before them."""
    return names if v.ndim == 2 else (None, *names)


@functools.partial(jax.jit, static_argnames=("split", "precision"))
def _automatic(
    x: Array, v: Array, where: Array | None, *, split: Partition, precision: Precision
) -> Array:
    rows, matrix, *visible = _stacked(x, v, where)
    rows = split.constrain(rows, *_dimensions(v, _X))
    matrix = split.constrain(matrix, *_dimensions(v, _V))
    result = reference.softmax_matmul(rows, matrix, *visible, precision=precision)
    result = split.constrain(result, *_dimensions(v, product.ROWS))
    return result.reshape(*x.shape[:-1], v.shape[-1])


@functools.partial(jax.jit, static_argnames=("split", "plan"))
def _manual(x: Array, v: Array, where: Array | None, *, split: Partition, plan: Plan) -> Array:
    stacked = _stacked(x, v, where)

    def body(x: Array, v: Array, *visible: Array) -> Array:
        return sharded.rows(x, v, plan, *visible).astype(jnp.result_type(x, v))

    result = split.map_padded(
        body,
        stacked,
        [_dimensions(v, names) for names in (_X, _V, _X)[: len(stacked)]],
        _dimensions(v, product.ROWS),
        {"m": stacked[0].shape[-2], "n": v.shape[-1], "k": x.shape[-1]},
    )
    return result.reshape(*x.shape[:-1], v.shape[-1])
