"""LayerNorm and RMSNorm over rows, on one device or a mesh."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet.kernels import devices, errors, rowwise
from jaxcomet.kernels.layernorm import reference, sharded
from jaxcomet.kernels.layernorm.sharded import Norm
from jaxcomet.kernels.partition import Axis, Partition, check_partitioner, partition
from jaxcomet.kernels.precision import accumulator
from jaxcomet.kernels.statistics import REDUCTIONS, Columns


def distributed_layernorm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-6,
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis.

    The dimensions are m, all leading axes as rows, and n. Over the devices of n two numbers a row
    are sent, mean and deviation of each part, and merged by the formula of Chan, Golub and LeVeque;
    rows far from 0 keep their digits, and rows of any size stay in range.

    Args:
      x: shape (..., n), float32, bfloat16, float16 or float64.
      scale: shape (n,), or None for 1.
      bias: shape (n,), or None for 0.
      epsilon: added to the variance.
      mesh: the devices, or None for one.
      axis: the mesh axes of n, or a mapping such as ``{"m": "x", "n": "y"}``; None is all of them
        for n.
      partitioner: ``shard_map``, or ``auto``, where XLA derives from shardings what is sent.
      reduction: statistics by one ``combined`` collective, or by ``separate`` ones, first the mean
        and then the squares.
      wire_dtype: dtype of what is sent; None is the accumulator's.

    Returns:
      The shape and dtype of `x`; statistics, scale and bias in float32 where that is wider.
      Conventions: `jaxcomet.kernels.layernorm.reference`.

    Raises:
      KernelError: arguments that do not fit together.

    Example:
      >>> row = distributed_layernorm(jnp.array([40000.0, 40001.0, 40002.0, 40003.0]))
      >>> [f"{number:.3f}" for number in row.tolist()]
      ['-1.342', '-0.447', '0.447', '1.342']
    """
    norm = Norm(epsilon=epsilon, reduction=reduction, wire_dtype=wire_dtype)
    return _distributed("distributed_layernorm", x, scale, bias, norm, mesh, axis, partitioner)


def distributed_rmsnorm(
    x: Array,
    scale: Array | None = None,
    *,
    epsilon: float = 1e-6,
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
) -> Array:
    """RMSNorm, x / sqrt(mean square + epsilon) * scale over the last axis.

    One number a row is sent over the devices of n. Arguments, result and errors as of
    `distributed_layernorm`.

    Example:
      >>> print(distributed_rmsnorm(jnp.array([1e30, -1e30])))
      [ 1. -1.]
    """
    norm = Norm(centred=False, epsilon=epsilon, reduction=reduction, wire_dtype=wire_dtype)
    return _distributed("distributed_rmsnorm", x, scale, None, norm, mesh, axis, partitioner)


def check_parameters(name: str, n: int, **parameters: Array | None) -> None:
    """Refuses a scale or bias that is no vector of n floating-point numbers.

    Raises:
      KernelError: it is not.
    """
    for key, value in parameters.items():
        if value is not None:
            errors.rank(name, key, value, 1, "[n]")
            errors.floating(name, **{key: value})
            errors.equal_sizes(name, (f"{key} axis 0 (n)", value.shape[0]), ("n", n))


def _distributed(
    name: str,
    x: Array,
    scale: Array | None,
    bias: Array | None,
    norm: Norm,
    mesh: Mesh | None,
    axis: Axis,
    partitioner: str,
) -> Array:
    x = jnp.asarray(x)
    errors.rank(name, "x", x, range(1, 9), "[..., n]")
    errors.floating(name, x=x)
    check_parameters(name, x.shape[-1], scale=scale, bias=bias)
    errors.not_negative(name, "epsilon", norm.epsilon)
    check_partitioner(name, partitioner, mesh)
    errors.one_of(name, "reduction", norm.reduction, REDUCTIONS)
    split = partition(name, mesh, axis, dimensions=rowwise.DIMENSIONS, default="n")
    run = _automatic if partitioner == "auto" else _manual
    return devices.guarded(run(x, scale, bias, split=split, norm=norm), mesh)


@functools.partial(jax.jit, static_argnames=("split", "norm"))
def _automatic(
    x: Array, scale: Array | None, bias: Array | None, *, split: Partition, norm: Norm
) -> Array:
    return rowwise.automatic_rows(x, lambda rows: plain(rows, scale, bias, norm), split)


@functools.partial(jax.jit, static_argnames=("split", "norm"))
def _manual(
    x: Array, scale: Array | None, bias: Array | None, *, split: Partition, norm: Norm
) -> Array:
    given = {"scale": scale, "bias": bias}
    present = {key: value for key, value in given.items() if value is not None}

    def rows(x: Array, columns: Columns, *parameters: Array) -> Array:
        wide = x.astype(accumulator(x.dtype))
        named = dict(zip(present, parameters, strict=True))
        return sharded.normalized(wide, columns, norm, **named).astype(x.dtype)

    return rowwise.split_rows(
        x,
        rows,
        split,
        extras=tuple(present.values()),
        extra_dimensions=[("n",)] * len(present),
    )


def plain(x: Array, scale: Array | None, bias: Array | None, norm: Norm) -> Array:
    """The reference form of a normalization."""
    if norm.centred:
        return reference.layernorm(x, scale, bias, epsilon=norm.epsilon)
    return reference.rmsnorm(x, scale, epsilon=norm.epsilon)
