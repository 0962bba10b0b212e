"""LayerNorm-linear and RMSNorm-linear by any strategy, on one device or a mesh."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet.kernels import devices, errors, product, statistics
from jaxcomet.kernels.layernorm.sharded import Norm
from jaxcomet.kernels.layernorm_linear import checks, reference, sharded
from jaxcomet.kernels.layernorm_linear.folding import FoldedLinear
from jaxcomet.kernels.layernorm_linear.sharded import Plan
from jaxcomet.kernels.partition import Axis, Partition, check_partitioner, partition
from jaxcomet.kernels.precision import Precision
from jaxcomet.kernels.statistics import REDUCTIONS

_DIMENSIONS = {"scale": "k", "bias": "k", "linear_bias": "n", "column_sum": "n"}
"""Of the vectors beside the weight."""


def layernorm_linear(
    x: Array,
    scale: Array | None,
    bias: Array | None,
    weight: Array,
    linear_bias: Array | None = None,
    *,
    epsilon: float = 1e-6,
    strategy: str = "deferred",
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
) -> Array:
    """layernorm(x, scale, bias) @ weight + linear_bias.

    The dimensions are m (all leading axes of `x`, as rows), n and k; k is both normalized and
    contracted. Split k: partial products are reduce-scattered, and the result is split by rows; the
    statistics of a row, two numbers, travel beside them. Split n or m: nothing is sent. Any of them
    together, over different mesh axes.

    How far a row may lie from 0, in units of q = |mean| / sqrt(variance + epsilon):

    * ``serial`` normalizes first, and the product waits for it. Its error holds q times the
      accumulator's roundoff, that of the mean.
    * ``centred`` takes the mean of each device's own part out before the product; what comes in
      behind it is the deviation, and the difference between the parts' means. Any q, as long as
      the parts are alike.
    * ``deferred`` multiplies `x` as it is, and mean and deviation both come in behind the product
      (Salmani and Soloveychik, arXiv:2502.17728). Its error holds q times the accumulator's
      roundoff: rows of q = 1000 lose three of float32's seven digits, and bfloat16 and float16 rows
      none of theirs. Where `x` and `weight` are narrower than float32, scale * weight is rounded to
      the dtype of `weight`, which must hold it.

    Derivatives are summed wide, over rows and over devices, and rounded once.

    Args:
      x: shape (..., k), float32, bfloat16, float16 or float64.
      scale: shape (k,), or None for 1.
      bias: shape (k,), or None for 0.
      weight: shape (k, n).
      linear_bias: shape (n,), or None for 0.
      epsilon: added to the variance.
      strategy: ``deferred``, ``centred`` or ``serial``.
      mesh: the devices, or None for one.
      axis: the mesh axes of k, or a mapping such as ``{"m": "x", "k": "y"}``; None is all of them
        for k.
      partitioner: ``shard_map``, where the strategy says what is sent, or ``auto``, where XLA
        derives it from the shardings of arguments and result, and the strategy has no say.
      reduction: statistics by one ``combined`` collective, or by ``separate`` ones, first the mean
        and then the squares.
      wire_dtype: dtype of the partial products that are sent; None is the accumulator's. In
        ``deferred`` these hold the mean, and lose q times its roundoff. Statistics are sent wide.
      precision: of the matrix product.

    Returns:
      Shape (..., n) in the common dtype of `x` and `weight`, rounded to it once. Conventions:
      `jaxcomet.kernels.layernorm_linear.reference`.

    Raises:
      KernelError: arguments that do not fit together.

    Example:
      >>> x = jnp.array([40000.0, 40001.0, 40002.0, 40003.0])
      >>> weight = jnp.array([[1.0], [0.0], [0.0], [-1.0]])
      >>> print(layernorm_linear(x, None, None, weight, strategy="centred").round(3))
      [-2.683]
    """
    parameters = {"scale": scale, "bias": bias, "linear_bias": linear_bias}
    return _norm_linear(
        "layernorm_linear",
        x,
        weight,
        parameters,
        norm=Norm(epsilon=epsilon, reduction=reduction),
        strategies=sharded.STRATEGIES,
        strategy=strategy,
        mesh=mesh,
        axis=axis,
        partitioner=partitioner,
        wire_dtype=wire_dtype,
        precision=precision,
    )


def rmsnorm_linear(
    x: Array,
    scale: Array | None,
    weight: Array,
    linear_bias: Array | None = None,
    *,
    epsilon: float = 1e-6,
    strategy: str = "deferred",
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
) -> Array:
    """rmsnorm(x, scale) @ weight + linear_bias.

    There is no mean to take out: strategies are ``deferred`` and ``serial``, and neither cares how
    far rows lie from 0. Other arguments, result and errors as of `layernorm_linear`.

    Example:
      >>> x = jnp.array([3e20, -3e20])
      >>> print(rmsnorm_linear(x, jnp.array([2.0, 1.0]), jnp.eye(2)))
      [ 2. -1.]
    """
    return _norm_linear(
        "rmsnorm_linear",
        x,
        weight,
        {"scale": scale, "linear_bias": linear_bias},
        norm=Norm(centred=False, epsilon=epsilon, reduction=reduction),
        strategies=("deferred", "serial"),
        strategy=strategy,
        mesh=mesh,
        axis=axis,
        partitioner=partitioner,
        wire_dtype=wire_dtype,
        precision=precision,
    )


def normalized_linear(
    x: Array,
    folded: FoldedLinear,
    *,
    epsilon: float = 1e-6,
    strategy: str = "deferred",
    mesh: Mesh | None = None,
    axis: Axis = None,
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
) -> Array:
    """The linear layer of normalized rows, from its folded form: for inference.

    What `fold_layernorm` has made is LayerNorm here, what `fold_rmsnorm` has made is RMSNorm.

    Args:
      x: shape (..., k).
      folded: from `fold_layernorm` or `fold_rmsnorm`.
      epsilon: added to the variance or mean square.
      strategy: ``deferred``, or for LayerNorm ``centred``.
      mesh: as of `layernorm_linear`, and so are the arguments behind it.
      axis: mesh axes.
      reduction: of statistics.
      wire_dtype: dtype of the partial products that are sent.
      precision: of the matrix product.

    Returns:
      Shape (..., n), in the common dtype of `x` and `folded.weight`.

    Raises:
      KernelError: arguments that do not fit together.

    Example:
      >>> from jaxcomet.kernels.layernorm_linear import fold_rmsnorm
      >>> folded = fold_rmsnorm(jnp.array([2.0, 1.0]), jnp.eye(2))
      >>> print(normalized_linear(jnp.array([3.0, -3.0]), folded).round(3))
      [ 2. -1.]
    """
    name = "normalized_linear"
    x = jnp.asarray(x)
    checks.inputs(name, x, folded.weight, epsilon)
    centred = folded.column_sum is not None
    errors.one_of(name, "strategy", strategy, ("deferred", "centred") if centred else ("deferred",))
    errors.one_of(name, "reduction", reduction, REDUCTIONS)
    split = partition(name, mesh, axis, dimensions=product.DIMENSIONS, default="k")
    plan = Plan(
        norm=Norm(centred=centred, epsilon=epsilon, reduction=reduction),
        strategy=strategy,
        columns=statistics.columns(split, "k", x.shape[-1]),
        wire_dtype=wire_dtype,
        precision=precision,
    )
    return devices.guarded(_folded(x, folded, split=split, plan=plan), mesh)


def _norm_linear(
    name: str,
    x: Array,
    weight: Array,
    parameters: dict[str, Array | None],
    *,
    norm: Norm,
    strategies: tuple[str, ...],
    strategy: str,
    mesh: Mesh | None,
    axis: Axis,
    partitioner: str,
    wire_dtype: DTypeLike | None,
    precision: Precision,
) -> Array:
    x, weight = jnp.asarray(x), jnp.asarray(weight)
    checks.inputs(name, x, weight, norm.epsilon)
    for key, value in parameters.items():
        dimension, size = _DIMENSIONS[key], weight.shape[_DIMENSIONS[key] == "n"]
        checks.vectors(name, dimension, size, **{key: value})
    errors.one_of(name, "strategy", strategy, strategies)
    check_partitioner(name, partitioner, mesh)
    errors.one_of(name, "reduction", norm.reduction, REDUCTIONS)
    split = partition(name, mesh, axis, dimensions=product.DIMENSIONS, default="k")
    given = _present(parameters)
    if partitioner == "auto":
        result = _automatic(x, weight, given, split=split, norm=norm, precision=precision)
    else:
        plan = Plan(
            norm=norm,
            strategy=strategy,
            columns=statistics.columns(split, "k", x.shape[-1]),
            wire_dtype=wire_dtype,
            precision=precision,
        )
        result = _manual(x, weight, given, split=split, plan=plan)
    return devices.guarded(result, mesh)


@functools.partial(jax.jit, static_argnames=("split", "norm", "precision"))
def _automatic(
    x: Array,
    weight: Array,
    given: dict[str, Array],
    *,
    split: Partition,
    norm: Norm,
    precision: Precision,
) -> Array:
    def operation(x: Array, weight: Array) -> Array:
        scale, bias, linear_bias = (given.get(key) for key in ("scale", "bias", "linear_bias"))
        options: dict[str, Any] = {"epsilon": norm.epsilon, "precision": precision}
        if norm.centred:
            return reference.layernorm_linear(x, scale, bias, weight, linear_bias, **options)
        return reference.rmsnorm_linear(x, scale, weight, linear_bias, **options)

    return product.automatic_product(x, weight, operation, split)


@functools.partial(jax.jit, static_argnames=("split", "plan"))
def _manual(
    x: Array, weight: Array, given: dict[str, Array], *, split: Partition, plan: Plan
) -> Array:
    def body(x: Array, weight: Array, *parameters: Array) -> Array:
        return sharded.linear(x, weight, plan, **dict(zip(given, parameters, strict=True)))

    return _mapped(body, x, weight, given, split)


@functools.partial(jax.jit, static_argnames=("split", "plan"))
def _folded(x: Array, folded: FoldedLinear, *, split: Partition, plan: Plan) -> Array:
    def body(x: Array, weight: Array, *sums: Array) -> Array:
        return sharded.stored_linear(x, weight, plan, **dict(zip(given, sums, strict=True)))

    given = _present({"column_sum": folded.column_sum, "linear_bias": folded.bias})
    return _mapped(body, x, folded.weight, given, split)


def _mapped(
    body: Callable[..., Array],
    x: Array,
    weight: Array,
    given: dict[str, Array],
    split: Partition,
) -> Array:
    """The body on each device's parts of x, weight and vectors, and what comes of it as a whole."""
    sizes = {"m": math.prod(x.shape[:-1]), "n": weight.shape[1], "k": x.shape[-1]}
    dimensions = [(_DIMENSIONS[key],) for key in given]
    result = split.map_padded(
        lambda *parts: body(*parts).astype(jnp.result_type(x, weight)),
        (x.reshape(sizes["m"], -1), weight, *given.values()),
        (("m", "k"), ("k", "n"), *dimensions),
        product.ROWS,
        sizes,
    )
    return result.reshape(*x.shape[:-1], sizes["n"])


def _present(arrays: dict[str, Array | None]) -> dict[str, Array]:
    """Those that are not None."""
    return {key: value for key, value in arrays.items() if value is not None}
