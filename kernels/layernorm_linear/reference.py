"""What LayerNorm-linear and RMSNorm-linear mean: the specification of all other forms.

Conventions for infinities, NaN and constant rows are those of
`jaxcomet.kernels.layernorm.reference`: a row of `x` that is not finite makes NaN of its row of the
result, and of no other.
"""

import jax.numpy as jnp
from jax import Array

from jaxcomet.kernels.layernorm import reference as norm
from jaxcomet.kernels.precision import Precision, matmul


def layernorm_linear(
    x: Array,
    scale: Array | None,
    bias: Array | None,
    weight: Array,
    linear_bias: Array | None = None,
    *,
    epsilon: float = 1e-6,
    precision: Precision = None,
) -> Array:
    """layernorm(x, scale, bias) @ weight + linear_bias.

    The normalized rows are rounded to the dtype of `x`; the product and its bias are computed wide
    and rounded once.

    Args:
      x: shape (..., k).
      scale: shape (k,), or None for 1.
      bias: shape (k,), or None for 0.
      weight: shape (k, n).
      linear_bias: shape (n,), or None for 0.
      epsilon: added to the variance.
      precision: of the matrix product.

    Returns:
      Shape (..., n), in the common dtype of `x` and `weight`.
    """
    normalized = norm.layernorm(x, scale, bias, epsilon=epsilon)
    return _linear(normalized, weight, linear_bias, precision)


def rmsnorm_linear(
    x: Array,
    scale: Array | None,
    weight: Array,
    linear_bias: Array | None = None,
    *,
    epsilon: float = 1e-6,
    precision: Precision = None,
) -> Array:
    """rmsnorm(x, scale) @ weight + linear_bias; arguments and result as of `layernorm_linear`."""
    normalized = norm.rmsnorm(x, scale, epsilon=epsilon)
    return _linear(normalized, weight, linear_bias, precision)


def _linear(x: Array, weight: Array, bias: Array | None, precision: Precision) -> Array:
    product = matmul(x, weight, precision)
    return norm.affine(product, None, bias).astype(jnp.result_type(x, weight))
