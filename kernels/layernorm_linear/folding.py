"""Scale and bias of a normalization, folded into the linear layer behind it.

The one idea: with r = 1 / sqrt(variance + epsilon),

    layernorm(x, scale, bias) @ W + c = r * (x @ F - mean * s) + (bias @ W + c),   F = scale * W,

where s are the sums of the columns of F (Salmani and Soloveychik, arXiv:2502.17728). So the product
needs no statistics: it runs beside them, and they come in at the end. The paper takes the mean out
of F itself, whose columns then sum to 0; but rounding F undoes that, and the error grows with the
mean of a row. Here F stays as it is, and `s` are the sums of F *as stored*, after rounding, so that
the mean cancels whatever F was rounded to. The bias comes behind the row's factor r, not under it.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcomet.kernels.layernorm_linear import checks, narrow
from jaxcomet.kernels.precision import accumulator, matmul


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class FoldedLinear:
    """A linear layer with the normalization before it folded in; made by `fold_layernorm`.

    Attributes:
      weight: scale * weight, shape (k, n), in the dtype that it is stored in.
      column_sum: the sums over k of `weight` as stored, shape (n,), float32 or wider; None for
        RMSNorm, which takes no mean out.
      bias: bias @ weight + linear_bias, shape (n,), float32 or wider; None where both are.
    """

    weight: Array
    column_sum: Array | None
    bias: Array | None


def fold_layernorm(
    scale: Array | None,
    bias: Array | None,
    weight: Array,
    linear_bias: Array | None = None,
    *,
    dtype: DTypeLike | None = None,
) -> FoldedLinear:
    """The folded form of a LayerNorm and the linear layer behind it, for `normalized_linear`.

    Args:
      scale: of the normalization, shape (k,), or None for 1.
      bias: of the normalization, shape (k,), or None for 0.
      weight: of the linear layer, shape (k, n).
      linear_bias: of the linear layer, shape (n,), or None for 0.
      dtype: in which the folded weight is stored; None is that of `weight`. It must hold
        scale * weight, which float16 may not.

    Returns:
      Computed in float32, or in float64 where an argument is, and rounded once.

    Raises:
      KernelError: arguments that do not fit together.

    Example:
      >>> folded = fold_layernorm(jnp.array([2.0, 3.0]), jnp.ones(2), jnp.ones((2, 1)))
      >>> print(folded.weight.T, folded.column_sum, folded.bias)
      [[2. 3.]] [5.] [2.]
    """
    return _fold("fold_layernorm", True, scale, bias, weight, linear_bias, dtype)


def fold_rmsnorm(
    scale: Array | None,
    weight: Array,
    linear_bias: Array | None = None,
    *,
    dtype: DTypeLike | None = None,
) -> FoldedLinear:
    """The folded form of an RMSNorm and the linear layer behind it; as of `fold_layernorm`."""
    return _fold("fold_rmsnorm", False, scale, None, weight, linear_bias, dtype)


def _fold(
    name: str,
    centred: bool,
    scale: Array | None,
    bias: Array | None,
    weight: Array,
    linear_bias: Array | None,
    dtype: DTypeLike | None,
) -> FoldedLinear:
    weight = jnp.asarray(weight)
    checks.weight(name, weight)
    checks.vectors(name, "k", weight.shape[0], scale=scale, bias=bias)
    checks.vectors(name, "n", weight.shape[1], linear_bias=linear_bias)
    given = [value for value in (scale, bias, weight, linear_bias) if value is not None]
    wide = accumulator(*(value.dtype for value in given))
    stored = weight.dtype if dtype is None else jnp.dtype(dtype)
    folded = fold(scale, bias, weight, stored=stored, wide=wide, centred=centred)
    return FoldedLinear(
        weight=folded.weight.astype(stored),
        column_sum=folded.column_sum,
        bias=sum_of(folded.bias, linear_bias, wide),
    )


def fold(
    scale: Array | None,
    bias: Array | None,
    weight: Array,
    *,
    stored: DTypeLike,
    wide: DTypeLike,
    centred: bool,
) -> FoldedLinear:
    """The folded form of some rows of k, its sums over these rows alone, without linear bias.

    Args:
      scale: shape (k_local,), or None.
      bias: shape (k_local,), or None.
      weight: shape (k_local, n).
      stored: the dtype that the folded weight is rounded to.
      wide: the dtype to compute in, and of all results.
      centred: LayerNorm; False is RMSNorm.
    """
    unscaled = weight.astype(wide)
    scaled = unscaled if scale is None else unscaled * scale.astype(wide)[:, None]
    rounded = narrow.rounded(scaled, stored)
    return FoldedLinear(
        weight=rounded,
        column_sum=column_sum(None, rounded) if centred else None,
        bias=None if bias is None else column_sum(bias, unscaled),
    )


def unfolded(
    scale: Array | None, bias: Array | None, weight: Array, *, centred: bool
) -> FoldedLinear:
    """The weight as it is, with the sums of its folded form: for rows that the scale goes into.

    Arguments as of `fold`, the weight in the dtype to compute in.
    """
    ones = jnp.ones_like(weight[:, 0])
    factors = {"column_sum": (ones if scale is None else scale) if centred else None, "bias": bias}
    present = {
        key: value.astype(weight.dtype) for key, value in factors.items() if value is not None
    }
    sums: dict[str, Array | None] = dict.fromkeys(factors)
    if present:  # one reading of the weight
        product = matmul(jnp.stack(list(present.values())), weight, lax.Precision.HIGHEST)
        sums |= dict(zip(present, product, strict=True))
    return FoldedLinear(weight=weight, **sums)


def column_sum(factors: Array | None, weight: Array) -> Array:
    """The product of a vector, None for ones, and a weight; a reduction makes no copy of it."""
    if factors is not None:
        weight = weight * factors.astype(weight.dtype)[:, None]
    return weight.sum(axis=0)


def sum_of(bias: Array | None, linear_bias: Array | None, wide: DTypeLike) -> Array | None:
    """The sum of those that are there, or None."""
    if linear_bias is None:
        return bias
    linear_bias = linear_bias.astype(wide)
    return linear_bias if bias is None else bias + linear_bias
