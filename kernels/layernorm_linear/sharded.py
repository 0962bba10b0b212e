"""A normalization and the linear layer behind it, on one device's part of rows, k and n.

The one idea: where k, which is both normalized and contracted, is split, partial products are
reduce-scattered over rows, and the statistics travel beside them in a collective of their own: a
few numbers a row, which the product of the deferred forms does not wait for.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcomet.kernels import collectives, statistics
from jaxcomet.kernels.layernorm.reference import affine
from jaxcomet.kernels.layernorm.sharded import Norm, normalized
from jaxcomet.kernels.layernorm_linear import narrow
from jaxcomet.kernels.layernorm_linear.folding import FoldedLinear, fold, sum_of, unfolded
from jaxcomet.kernels.precision import Precision, accumulator, matmul
from jaxcomet.kernels.statistics import Columns

STRATEGIES = ("deferred", "centred", "serial")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What each device does with its parts; static and hashable.

    Attributes:
      norm: which normalization, and how its statistics travel.
      strategy: one of STRATEGIES.
      columns: the split of k.
      wire_dtype: dtype of the partial products that are sent, or None for the accumulator's.
      precision: of the product.
    """

    norm: Norm
    strategy: str
    columns: Columns
    wire_dtype: DTypeLike | None
    precision: Precision


def linear(
    x: Array,
    weight: Array,
    plan: Plan,
    *,
    scale: Array | None = None,
    bias: Array | None = None,
    linear_bias: Array | None = None,
) -> Array:
    """The linear layer of normalized rows, by a strategy.

    Args:
      x: shape (m_local, k_local).
      weight: shape (k_local, n_local).
      plan: what to do.
      scale: shape (k_local,), or None for 1.
      bias: shape (k_local,), or None for 0.
      linear_bias: shape (n_local,), or None for 0.

    Returns:
      Shape (m_local / devices of k, n_local), in the accumulator's dtype.
    """
    wide, names = accumulator(x.dtype, weight.dtype), plan.columns.names
    if plan.strategy == "serial":
        rows = normalized(x.astype(wide), plan.columns, plan.norm, scale, bias)
        product = narrow.matmul(rows, weight.astype(wide), x.dtype, weight.dtype, plan.precision)
        product = collectives.reduce_scatter(product, names, 0, plan.wire_dtype)
        return affine(product, None, linear_bias)
    centred = plan.norm.centred
    if plan.strategy == "deferred" and jnp.result_type(x, weight) != wide:
        # Raw rows must not be rounded anew, so the scale goes into the weight.
        folded = fold(scale, bias, weight, stored=weight.dtype, wide=wide, centred=centred)
        scale = None
    else:
        folded = unfolded(scale, bias, weight.astype(wide), centred=centred)
    folded = _summed(folded, linear_bias, plan)
    return _folded_linear(x, folded, weight.dtype, plan, scale)


def stored_linear(
    x: Array,
    weight: Array,
    plan: Plan,
    *,
    column_sum: Array | None = None,
    linear_bias: Array | None = None,
) -> Array:
    """The linear layer of normalized rows, folded before.

    Args:
      x: shape (m_local, k_local).
      weight: folded, shape (k_local, n_local).
      plan: what to do, with a strategy other than ``serial``.
      column_sum: the sums of the columns of the whole weight, shape (n_local,); None for RMSNorm.
      linear_bias: shape (n_local,), or None for 0.

    Returns:
      Shape (m_local / devices of k, n_local), in the accumulator's dtype.
    """
    wide = accumulator(x.dtype, weight.dtype)
    rows = weight.astype(wide)
    if plan.strategy == "centred" and plan.columns.names:
        column_sum = rows.sum(axis=0)
    folded = FoldedLinear(weight=rows, column_sum=column_sum, bias=linear_bias)
    return _folded_linear(x, folded, weight.dtype, plan)


def _folded_linear(
    x: Array, folded: FoldedLinear, stored: DTypeLike, plan: Plan, scale: Array | None = None
) -> Array:
    """The linear layer of normalized rows, of which at least the deviation comes in behind it.

    With r = 1 / sqrt(variance + epsilon), the weight F and its column sums s, both with scale:

    * ``deferred``: r * (x @ F - mean * s).
    * ``centred``: each device takes the mean c of its own part of a row out before its product, and
      the rest of the mean comes in behind: r * (sum over devices of (x - c) @ F + (c - mean) * s),
      where s are the sums of the device's own part. What cancels is the parts' difference alone.

    Args:
      x: shape (m_local, k_local).
      folded: in the accumulator's dtype: this device's part of the weight, shape
        (k_local, n_local); s, for ``deferred`` over the devices of k too; the whole bias.
      stored: the dtype that holds the weight.
      plan: what to do, with a strategy other than ``serial``.
      scale: shape (k_local,), or None where it is in the weight. It is always in the sums.

    Returns:
      Shape (m_local / devices of k, n_local), in the accumulator's dtype.
    """
    wide = folded.weight.dtype
    rows = x.astype(wide)
    dtype = wide if jnp.result_type(x.dtype, stored) == wide else x.dtype
    if plan.strategy == "centred":
        operand, origin, missed = _shifted(rows, folded, plan)
        if dtype == jnp.float16:
            dtype = wide  # float16 cannot hold the difference of its largest numbers
    else:
        operand, origin, missed = rows, None, None
    moments = statistics.moments(
        rows if origin is None else rows - origin[:, None],
        plan.columns,
        centred=plan.norm.centred,
        reduction=plan.norm.reduction,
    )
    moments = jax.tree.map(lambda value: own_rows(value, plan.columns), moments)
    operand = affine(operand, scale, None)
    product = narrow.matmul(operand, folded.weight, dtype, stored, plan.precision)
    product = collectives.reduce_scatter(product, plan.columns.names, 0, plan.wire_dtype)
    if missed is not None:
        product = product + missed(moments.mean)
    elif folded.column_sum is not None:
        product = product - moments.mean[:, None] * folded.column_sum
    product = product * moments.inverse_deviation(plan.norm.epsilon)[:, None]
    return affine(product, None, folded.bias)


def _shifted(
    rows: Array, folded: FoldedLinear, plan: Plan
) -> tuple[Array, Array, Callable[[Array], Array]]:
    """What ``centred`` multiplies, and what it adds behind the product.

    The mean of a row that is far from 0 has few digits left for what matters. So the means of all
    parts, and of the row, are taken relative to one origin near them. Any origin and any shift is
    exact, so that they need no derivative.

    Returns:
      The rows without the means of this device's part, the origin, shape (m_local,), and a function
      from the mean of this device's rows of the result, relative to the origin, to what is missing
      in their product.
    """
    columns = plan.columns
    shift = lax.stop_gradient((rows / columns.count()).sum(axis=-1))
    assert folded.column_sum is not None, "RMSNorm has no mean to shift by"
    # In one collective, since both are small.
    parts = collectives.all_gather(jnp.concatenate([shift, folded.column_sum]), columns.names)
    shifts, sums = lax.stop_gradient(parts[:, : shift.size]), parts[:, shift.size :]
    weights = jnp.asarray(columns.counts, rows.dtype) / columns.total
    origin = (weights[:, None] * shifts).sum(axis=0)
    left = own_rows((shifts - origin).T, columns)

    def missed(mean: Array) -> Array:
        return matmul(left - mean[:, None], sums, lax.Precision.HIGHEST)

    return rows - shift[:, None], origin, missed


def own_rows(values: Array, columns: Columns, axis: int = 0) -> Array:
    """Of values of all rows those of the rows that this device keeps of a reduce-scatter.

    Args:
      values: one or more for each row, the rows along `axis`.
      columns: the split of the contracted dimension, over whose devices the rows are scattered.
      axis: of the rows.
    """
    if not columns.names:
        return values
    size = values.shape[axis] // columns.shards
    first = collectives.index(columns.names) * size
    return lax.dynamic_slice_in_dim(values, first, size, axis=axis)


def _summed(folded: FoldedLinear, linear_bias: Array | None, plan: Plan) -> FoldedLinear:
    """With what is summed over k summed over its devices, in one collective, and all of the bias.

    The column sums of ``centred`` stay those of each device's own part.
    """
    sums = {"bias": folded.bias}
    if plan.strategy == "deferred":
        sums["column_sum"] = folded.column_sum
    present = {key: value for key, value in sums.items() if value is not None}
    if present and plan.columns.names:
        stacked = jnp.stack(list(present.values()))
        totals = collectives.all_reduce_sum(stacked, plan.columns.names)
        folded = dataclasses.replace(folded, **dict(zip(present, totals, strict=True)))
    return dataclasses.replace(folded, bias=sum_of(folded.bias, linear_bias, folded.weight.dtype))
