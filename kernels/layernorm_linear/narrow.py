"""Operands that are rounded for a product, with derivatives that are not.

The one idea: a product of bfloat16 or float16 matrices reads narrow numbers and sums wide ones, and
so should its derivative. JAX hands the derivative of a narrow operand back in the operand's dtype,
before it is summed over devices and before terms that nearly cancel it are subtracted. Here the
operands come in wide, are rounded inside, and their derivatives leave wide.
"""

import functools

import jax
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcomet.kernels import precision as wide
from jaxcomet.kernels.precision import Precision

Tangents = tuple[Array, Array]


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def matmul(
    a: Array, b: Array, a_dtype: DTypeLike, b_dtype: DTypeLike, precision: Precision = None
) -> Array:
    """The product of operands that are rounded to narrower dtypes, summed wide.

    Args:
      a: shape (..., m, k), in the accumulator's dtype.
      b: shape (..., k, n), in the accumulator's dtype.
      a_dtype: what `a` is rounded to.
      b_dtype: what `b` is rounded to.
      precision: of the product.

    Returns:
      Shape (..., m, n), in the accumulator's dtype. The derivative takes rounding as the identity.
    """
    return wide.matmul(a.astype(a_dtype), b.astype(b_dtype), precision)


@matmul.defjvp
def _matmul_jvp(
    a_dtype: DTypeLike,
    b_dtype: DTypeLike,
    precision: Precision,
    primals: Tangents,
    tangents: Tangents,
) -> Tangents:
    a, b = primals[0].astype(a_dtype), primals[1].astype(b_dtype)
    da, db = tangents
    tangent = wide.matmul(da, b, precision) + wide.matmul(a, db, precision)
    return wide.matmul(a, b, precision), tangent


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def rounded(x: Array, dtype: DTypeLike) -> Array:
    """`x` rounded to a narrower dtype and back; the derivative takes that as the identity.

    XLA may leave out a conversion that another one undoes (jax issue 6283); the barrier between
    them keeps the rounding.
    """
    if x.dtype == dtype:
        return x
    return lax.optimization_barrier(x.astype(dtype)).astype(x.dtype)


@rounded.defjvp
def _rounded_jvp(dtype: DTypeLike, primals: tuple[Array], tangents: tuple[Array]) -> Tangents:
    return rounded(*primals, dtype), tangents[0]
