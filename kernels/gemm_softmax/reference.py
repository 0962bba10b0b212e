"""What GEMM-softmax means: the specification that all other forms are held against."""

import jax.numpy as jnp
from jax import Array

from jaxcomet.kernels.precision import Precision, matmul
from jaxcomet.kernels.softmax.reference import softmax


def gemm_softmax(
    a: Array, b: Array, where: Array | None = None, *, precision: Precision = None
) -> Array:
    """softmax(a @ b) over the last axis, computed wide and rounded once.

    Args:
      a: shape (..., m, k).
      b: shape (k, n).
      where: boolean, broadcastable to (..., m, n): True takes part. None is all.
      precision: of the matrix product.

    Returns:
      Shape (..., m, n), in the common dtype of `a` and `b`. Conventions for empty rows, infinities
      and NaN are those of `jaxcomet.kernels.softmax.reference.softmax`.
    """
    return softmax(matmul(a, b, precision), where).astype(jnp.result_type(a, b))
