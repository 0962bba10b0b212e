"""The softmax behind a product, on one device's part of the rows, for each strategy of the model.

The one idea: the softmax of a split row sends two numbers a row. What differs between strategies is
what may be fused, and how the parts of a row come together.
"""

import dataclasses

from jax import Array, lax
from jax.typing import DTypeLike

from jaxcomet.kernels import collectives, statistics
from jaxcomet.kernels.statistics import Columns

STRATEGIES = ("fused-gemm-distsm", "fused-distsm", "fused-gemm-sm", "unfused")


def rows(
    logits: Array,
    columns: Columns,
    strategy: str,
    reduction: str,
    wire_dtype: DTypeLike | None,
) -> Array:
    """The softmax of rows by a strategy.

    Args:
      logits: shape (m_local, n_local), -inf in hidden and padded columns.
      columns: the split of n.
      strategy: one of STRATEGIES.
      reduction: ``combined`` or ``separate``.
      wire_dtype: dtype of statistics that are sent.

    Returns:
      Shape (m_local, n_local).
    """
    if strategy == "fused-gemm-sm":
        return _gathered(logits, columns)
    if strategy == "fused-gemm-distsm":
        return statistics.softmax(logits, columns, reduction=reduction, wire_dtype=wire_dtype)
    (logits,) = lax.optimization_barrier((logits,))  # the GEMM ends before the softmax begins
    if strategy == "fused-distsm":
        return statistics.softmax(logits, columns, reduction=reduction, wire_dtype=wire_dtype)
    return _stepwise(logits, columns, wire_dtype)


def _gathered(logits: Array, columns: Columns) -> Array:
    """Every device takes in the whole rows and keeps its part of their softmax.

    The model's strategy moves the rows to one core. A program of equal devices has every device do
    that core's work, which is the same time; it is here to be compared, not to be used.
    """
    whole = collectives.gather_blocks(logits, columns.names, axis=1)
    here = dataclasses.replace(columns, local=whole.shape[1], names=(), shards=1)
    result = statistics.softmax(whole, here)
    first = collectives.index(columns.names) * columns.local
    return lax.dynamic_slice_in_dim(result, first, columns.local, axis=1)


def _stepwise(logits: Array, columns: Columns, wire_dtype: DTypeLike | None) -> Array:
    """One operation after the other, none fused with the next, as the model's six operations."""
    largest = logits.max(axis=-1)
    largest = collectives.all_reduce_max(largest, columns.names)
    (largest,) = lax.optimization_barrier((largest,))
    shifted = logits - statistics.finite_shift(largest)[:, None]
    (shifted,) = lax.optimization_barrier((shifted,))
    (numerators,) = lax.optimization_barrier((lax.exp(shifted),))
    total = collectives.all_reduce_sum(numerators.sum(axis=-1), columns.names, wire_dtype)
    (total,) = lax.optimization_barrier((total,))
    return numerators * statistics.inverse_or_zero(total)[:, None]
