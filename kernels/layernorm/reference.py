"""What LayerNorm and RMSNorm mean here: the specification that all other forms are held against.

Both leave a row that holds NaN or an infinity NaN, and no other row. A constant row has the output
`bias` where epsilon > 0, and with an epsilon of 0 where its variance comes out as 0. Squares are
taken as they are: in float64, which is what other forms are compared in, rows up to 1e150 are in
range.
"""

import jax.numpy as jnp
from jax import Array

from jaxcomet.kernels.precision import accumulator


def layernorm(
    x: Array, scale: Array | None = None, bias: Array | None = None, *, epsilon: float = 1e-6
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis.

    Ba, Kiros and Hinton, arXiv:1607.06450, section 3; the variance is that of the population.

    Args:
      x: shape (..., n).
      scale: shape (n,), or None for 1.
      bias: shape (n,), or None for 0.
      epsilon: added to the variance.

    Returns:
      The shape and dtype of `x`: computed in float32 where that is wider, scale and bias
      included, and rounded once.
    """
    wide = x.astype(accumulator(x.dtype))
    deviations = wide - wide.mean(axis=-1, keepdims=True)
    variance = (deviations * deviations).mean(axis=-1, keepdims=True)
    return affine(deviations * _inverse_root(variance + epsilon), scale, bias).astype(x.dtype)


def rmsnorm(x: Array, scale: Array | None = None, *, epsilon: float = 1e-6) -> Array:
    """RMSNorm, x / sqrt(mean square + epsilon) * scale over the last axis.

    Zhang and Sennrich, arXiv:1910.07467, eq. 4. Arguments and result as of `layernorm`.
    """
    wide = x.astype(accumulator(x.dtype))
    square = (wide * wide).mean(axis=-1, keepdims=True)
    return affine(wide * _inverse_root(square + epsilon), scale, None).astype(x.dtype)


def affine(x: Array, scale: Array | None, bias: Array | None) -> Array:
    """The products x * scale + bias, in the dtype of `x`."""
    if scale is not None:
        x = x * scale.astype(x.dtype)
    return x if bias is None else x + bias.astype(x.dtype)


def _inverse_root(square: Array) -> Array:
    """1 / sqrt(square), and 0 for 0."""
    zero = square == 0
    return jnp.where(zero, 0, 1 / jnp.sqrt(jnp.where(zero, 1, square)))
