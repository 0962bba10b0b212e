"""GEMM-LayerNorm and GEMM-RMSNorm by any strategy, on one device or a mesh."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet.kernels import devices, errors, product
from jaxcomet.kernels.gemm_layernorm import sharded
from jaxcomet.kernels.layernorm.api import check_parameters, plain
from jaxcomet.kernels.layernorm.sharded import Norm
from jaxcomet.kernels.partition import Axis, Partition, check_partitioner, partition
from jaxcomet.kernels.precision import Precision, matmul
from jaxcomet.kernels.statistics import REDUCTIONS, Columns


def gemm_layernorm(
    a: Array,
    b: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-6,
    strategy: str = "fused-gemm-distln",
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
) -> Array:
    """layernorm(a @ b) * scale + bias over the last axis.

    The dimensions are m, n and k. Split n: each device has its columns, and sends mean and
    deviation of its part of a row, two numbers, which are merged by the formula of Chan, Golub and
    LeVeque. Split k: partial sums are reduce-scattered, and the result is split by rows. Split m:
    nothing is sent. Any of them together, over different mesh axes.

    Args:
      a: shape (..., m, k), float32, bfloat16, float16 or float64.
      b: shape (k, n).
      scale: shape (n,), or None for 1.
      bias: shape (n,), or None for 0.
      epsilon: added to the variance.
      strategy: ``fused-gemm-distln``, ``fused-distln`` (the normalization waits for the whole
        product), ``fused-gemm-ln`` (rows are gathered first: what not to do) or ``unfused``
        (separate operations, and collectives, one after the other).
      mesh: the devices, or None for one.
      axis: the mesh axes of n, or a mapping such as ``{"m": "x", "n": "y"}``; None is all of them
        for n.
      partitioner: ``shard_map``, where the strategy says what is sent, or ``auto``, where XLA
        derives it from the shardings of arguments and result, and the strategy has no say.
      reduction: statistics by one ``combined`` collective, or by ``separate`` ones, first the mean
        and then the squares.
      wire_dtype: dtype of what is sent; None is the accumulator's.
      precision: of the matrix product.

    Returns:
      Shape (..., m, n) in the common dtype of `a` and `b`. Conventions:
      `jaxcomet.kernels.layernorm.reference`.

    Raises:
      KernelError: arguments that do not fit together.

    Example:
      >>> print(gemm_layernorm(jnp.eye(2), jnp.array([[1.0, 3.0], [5.0, 4.0]])).round(3))
      [[-1.  1.]
       [ 1. -1.]]
    """
    norm = Norm(refined=False, epsilon=epsilon, reduction=reduction, wire_dtype=wire_dtype)
    return _gemm_norm(
        "gemm_layernorm", a, b, scale, bias, norm, strategy, mesh, axis, partitioner, precision
    )


def gemm_rmsnorm(
    a: Array,
    b: Array,
    scale: Array | None = None,
    *,
    epsilon: float = 1e-6,
    strategy: str = "fused-gemm-distln",
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
) -> Array:
    """rmsnorm(a @ b) * scale over the last axis.

    Over the devices of n one number a row is sent. Arguments, result and errors as of
    `gemm_layernorm`.

    Example:
      >>> print(gemm_rmsnorm(jnp.eye(1), jnp.array([[3.0, -3.0]])).round(3))
      [[ 1. -1.]]
    """
    norm = Norm(centred=False, epsilon=epsilon, reduction=reduction, wire_dtype=wire_dtype)
    return _gemm_norm(
        "gemm_rmsnorm", a, b, scale, None, norm, strategy, mesh, axis, partitioner, precision
    )


def _gemm_norm(
    name: str,
    a: Array,
    b: Array,
    scale: Array | None,
    bias: Array | None,
    norm: Norm,
    strategy: str,
    mesh: Mesh | None,
    axis: Axis,
    partitioner: str,
    precision: Precision,
) -> Array:
    a, b = jnp.asarray(a), jnp.asarray(b)
    product.check(name, a, b)
    check_parameters(name, b.shape[1], scale=scale, bias=bias)
    errors.not_negative(name, "epsilon", norm.epsilon)
    errors.one_of(name, "strategy", strategy, sharded.STRATEGIES)
    check_partitioner(name, partitioner, mesh)
    errors.one_of(name, "reduction", norm.reduction, REDUCTIONS)
    split = partition(name, mesh, axis, dimensions=product.DIMENSIONS, default="n")
    if partitioner == "auto":
        result = _automatic(a, b, scale, bias, split=split, norm=norm, precision=precision)
    else:
        result = _manual(
            a, b, scale, bias, split=split, norm=norm, strategy=strategy, precision=precision
        )
    return devices.guarded(result, mesh)


@functools.partial(jax.jit, static_argnames=("split", "norm", "precision"))
def _automatic(
    a: Array,
    b: Array,
    scale: Array | None,
    bias: Array | None,
    *,
    split: Partition,
    norm: Norm,
    precision: Precision,
) -> Array:
    def operation(a: Array, b: Array) -> Array:
        result = plain(matmul(a, b, precision), scale, bias, norm)
        return result.astype(jnp.result_type(a, b))

    return product.automatic_product(a, b, operation, split)


@functools.partial(jax.jit, static_argnames=("split", "norm", "strategy", "precision"))
def _manual(
    a: Array,
    b: Array,
    scale: Array | None,
    bias: Array | None,
    *,
    split: Partition,
    norm: Norm,
    strategy: str,
    precision: Precision,
) -> Array:
    dtype = jnp.result_type(a, b)
    given = {"scale": scale, "bias": bias}
    present = {key: value for key, value in given.items() if value is not None}

    def rows(part: Array, columns: Columns, *parameters: Array) -> Array:
        named = dict(zip(present, parameters, strict=True))
        return sharded.rows(part, columns, strategy, norm, **named).astype(dtype)

    return product.split_product(
        a,
        b,
        rows,
        split,
        extras=tuple(present.values()),
        extra_dimensions=[("n",)] * len(present),
        precision=precision,
        wire_dtype=norm.wire_dtype,
    )
