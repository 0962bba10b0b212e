"""What GEMM-LayerNorm and GEMM-RMSNorm mean: the specification of all other forms."""

import jax.numpy as jnp
from jax import Array

from jaxcomet.kernels.layernorm import reference as norm
from jaxcomet.kernels.precision import Precision, matmul


def gemm_layernorm(
    a: Array,
    b: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-6,
    precision: Precision = None,
) -> Array:
    """layernorm(a @ b) * scale + bias over the last axis, computed wide and rounded once.

    Args:
      a: shape (..., m, k).
      b: shape (k, n).
      scale: shape (n,), or None for 1.
      bias: shape (n,), or None for 0.
      epsilon: added to the variance.
      precision: of the matrix product.

    Returns:
      Shape (..., m, n), in the common dtype of `a` and `b`.
    """
    result = norm.layernorm(matmul(a, b, precision), scale, bias, epsilon=epsilon)
    return result.astype(jnp.result_type(a, b))


def gemm_rmsnorm(
    a: Array,
    b: Array,
    scale: Array | None = None,
    *,
    epsilon: float = 1e-6,
    precision: Precision = None,
) -> Array:
    """rmsnorm(a @ b) * scale over the last axis; arguments and result as of `gemm_layernorm`."""
    result = norm.rmsnorm(matmul(a, b, precision), scale, epsilon=epsilon)
    return result.astype(jnp.result_type(a, b))
