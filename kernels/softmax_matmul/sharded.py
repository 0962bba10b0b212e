"""The softmax of rows and the product behind it, on one device's part of rows, k and n.

The one idea: the sum that a softmax divides by comes in behind the product. Where k is split, each
device's product is relative to the maximum of its own part, so that it waits for nothing; maxima
and sums travel beside it, two numbers a row.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcomet.kernels import collectives, statistics
from jaxcomet.kernels.layernorm_linear import narrow
from jaxcomet.kernels.layernorm_linear.sharded import own_rows
from jaxcomet.kernels.precision import Precision, accumulator, matmul
from jaxcomet.kernels.softmax_matmul import reference
from jaxcomet.kernels.statistics import Columns, finite_shift, inverse_or_zero

STRATEGIES = ("deferred", "serial")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What each device does with its parts; static and hashable.

    Attributes:
      strategy: one of STRATEGIES.
      columns: the split of k.
      reduction: ``combined`` or ``separate``.
      wire_dtype: dtype of the partial products that are sent, or None for the accumulator's.
      precision: of the product.
    """

    strategy: str
    columns: Columns
    reduction: str
    wire_dtype: DTypeLike | None
    precision: Precision


def rows(x: Array, v: Array, plan: Plan, *visible: Array) -> Array:
    """softmax(x) @ v by a strategy.

    Args:
      x: shape (*batch, m_local, k_local).
      v: shape (*batch, k_local, n_local).
      plan: what to do.
      *visible: nothing, or which elements take part, of a shape that broadcasts to that of `x`.

    Returns:
      Shape (*batch, m_local / devices of k, n_local), in the accumulator's dtype.
    """
    names, dtype = plan.columns.names, accumulator(x.dtype, v.dtype)
    axis = x.ndim - 2  # of the rows
    logits = statistics.masked(x.astype(dtype), plan.columns, *visible)

    def product(weights: Array) -> Array:
        return _product(weights, v.astype(dtype), x, visible, v.dtype, plan)

    if plan.strategy == "serial":
        partial = product(statistics.softmax(logits, plan.columns, reduction=plan.reduction))
        return collectives.reduce_scatter(partial, names, axis, plan.wire_dtype)
    largest = lax.stop_gradient(logits).max(axis=-1)
    if plan.reduction == "separate":
        largest = collectives.all_reduce_max(largest, names)
    numerators = jnp.exp(logits - finite_shift(largest)[..., None])
    numerators = narrow.rounded(numerators, v.dtype)  # the sum is of what the product sees
    partial, total = product(numerators), numerators.sum(axis=-1)
    if plan.reduction == "separate" or not names:
        factor = inverse_or_zero(collectives.all_reduce_sum(total, names))
        result = collectives.reduce_scatter(partial, names, axis, plan.wire_dtype)
        return result * own_rows(factor, plan.columns, axis)[..., None]
    # Parts are relative to their own maximum, and must be brought to one before they are summed.
    parts = collectives.all_gather(jnp.stack([largest, total]), names)
    maxima = lax.stop_gradient(parts[:, 0])
    overall = finite_shift(maxima.max(axis=0))
    factor = inverse_or_zero((parts[:, 1] * jnp.exp(maxima - overall)).sum(axis=0))
    partial = partial * (jnp.exp(largest - overall) * factor)[..., None]
    return collectives.reduce_scatter(partial, names, axis, plan.wire_dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def _product(
    weights: Array,
    v: Array,
    x: Array,
    visible: tuple[Array, ...],
    v_dtype: DTypeLike,
    plan: Plan,
) -> Array:
    """`reference.product` of operands that are rounded inside, with derivatives that are not.

    Args:
      weights: shape (*batch, m, k), in the accumulator's dtype.
      v: shape (*batch, k, n), in the accumulator's dtype.
      x: what the weights come from, shape (*batch, m, k).
      visible: as of `rows`.
      v_dtype: what both operands are rounded to.
      plan: the split of k and the precision.

    Returns:
      Shape (*batch, m, n), in the accumulator's dtype. The derivative takes what is not finite in v
      as 0, so that a hidden NaN reaches no gradient.
    """

    def seen() -> Array:
        logits = statistics.masked(x.astype(accumulator(x.dtype)), plan.columns, *visible)
        return logits != -jnp.inf

    weights, v = weights.astype(v_dtype), v.astype(v_dtype)
    return reference.product(weights, v, seen, plan.precision)


@_product.defjvp
def _product_jvp(
    v_dtype: DTypeLike,
    plan: Plan,
    primals: tuple[Array, Array, Array, tuple[Array, ...]],
    tangents: tuple[Array, Array, Array, tuple[Array, ...]],
) -> tuple[Array, Array]:
    weights, v = primals[:2]
    dweights, dv = tangents[:2]
    tangent = matmul(dweights, reference.finite(v.astype(v_dtype)), plan.precision)
    tangent = tangent + matmul(weights.astype(v_dtype), dv, plan.precision)
    return _product(*primals, v_dtype, plan), tangent
