"""The normalization behind a product, on one device's part, for each strategy of the model.

The one idea: the strategies of GEMM-softmax, with mean and deviation in the place of maximum and
sum: what may be fused, and how the parts of a row come together.
"""

import dataclasses

from jax import Array, lax

from jaxcomet.kernels import collectives
from jaxcomet.kernels.layernorm.reference import affine
from jaxcomet.kernels.layernorm.sharded import Norm, normalized
from jaxcomet.kernels.statistics import Columns

STRATEGIES = ("fused-gemm-distln", "fused-distln", "fused-gemm-ln", "unfused")


def rows(
    product: Array,
    columns: Columns,
    strategy: str,
    norm: Norm,
    scale: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """The normalized rows by a strategy.

    Args:
      product: shape (m_local, n_local), in the accumulator's dtype.
      columns: the split of n.
      strategy: one of STRATEGIES.
      norm: which normalization.
      scale: shape (n_local,), or None for 1.
      bias: shape (n_local,), or None for 0.

    Returns:
      Shape (m_local, n_local).
    """
    if strategy == "fused-gemm-ln":
        return affine(_gathered(product, columns, norm), scale, bias)
    if strategy == "fused-gemm-distln":
        return normalized(product, columns, norm, scale, bias)
    (product,) = lax.optimization_barrier((product,))  # the GEMM ends before the rest begins
    if strategy == "fused-distln":
        return normalized(product, columns, norm, scale, bias)
    return affine(_stepwise(product, columns, norm), scale, bias)


def _gathered(product: Array, columns: Columns, norm: Norm) -> Array:
    """Every device takes in the whole rows and keeps its part of what becomes of them.

    The model's strategy moves the rows to one core. A program of equal devices has every device do
    that core's work, which is the same time; it is here to be compared, not to be used.
    """
    whole = collectives.gather_blocks(product, columns.names, axis=1)
    here = dataclasses.replace(columns, local=whole.shape[1], names=(), shards=1)
    first = collectives.index(columns.names) * columns.local
    return lax.dynamic_slice_in_dim(normalized(whole, here, norm), first, columns.local, axis=1)


def _stepwise(product: Array, columns: Columns, norm: Norm) -> Array:
    """One operation after the other, none fused with the next: sums in collectives of their own."""
    separate = dataclasses.replace(norm, reduction="separate")
    (result,) = lax.optimization_barrier((normalized(product, columns, separate),))
    return result
