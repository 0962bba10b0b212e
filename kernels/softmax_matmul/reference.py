"""What softmax-matmul means: the specification that all other forms are held against."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcomet.kernels.precision import Precision, accumulator, matmul
from jaxcomet.kernels.softmax.reference import softmax


def softmax_matmul(
    x: Array, v: Array, where: Array | None = None, *, precision: Precision = None
) -> Array:
    """softmax(x) @ v.

    * Elements of x: as of `jaxcomet.kernels.softmax.reference.softmax`. What is hidden has no
      influence, a row with nothing in it is 0, a row with NaN or +inf in it is NaN.
    * Rows of v: one whose element of x is hidden or -inf has no influence on that row of the
      result, NaN and infinities included. To other rows a NaN or an infinity in v is NaN in its
      column.

    Args:
      x: shape (..., m, k).
      v: shape (k, n), or (..., k, n) with the leading axes of `x`.
      where: boolean, broadcastable to `x`: True takes part. None is all.
      precision: of the matrix product.

    Returns:
      Shape (..., m, n), in the common dtype of `x` and `v`. The probabilities are computed wide and
      rounded to the dtype of `v`; the product is computed wide and rounded once.
    """
    wide = x.astype(accumulator(x.dtype))
    probabilities = softmax(wide, where).astype(v.dtype)
    result = product(probabilities, v, lambda: _seen(wide, where), precision)
    return result.astype(jnp.result_type(x, v))


def _seen(x: Array, where: Array | None) -> Array:
    """Which elements take part."""
    return x != -jnp.inf if where is None else (x != -jnp.inf) & where


def product(
    weights: Array, v: Array, seen: Callable[[], Array], precision: Precision = None
) -> Array:
    """The product weights @ v, in which what a row does not see in v has no influence on it.

    Where the plain product is finite, that is it: 0 times what is not finite would be NaN.

    Args:
      weights: shape (..., m, k), of the dtype of `v`, 0 where a row sees nothing.
      v: shape (..., k, n).
      seen: makes the boolean array, shape (..., m, k), that tells what a row sees.
      precision: of the matrix product.

    Returns:
      Shape (..., m, n), in the accumulator's dtype.
    """

    def careful() -> Array:
        spoilt = matmul(seen().astype(v.dtype), (~jnp.isfinite(v)).astype(v.dtype))
        return matmul(weights, finite(v), precision) + jnp.where(spoilt > 0, jnp.nan, 0)

    plain = matmul(weights, v, precision)
    return lax.cond(_all_finite(lax.stop_gradient(plain)), lambda: plain, careful)


def finite(v: Array) -> Array:
    """`v` with 0 for NaN and infinities."""
    return jnp.where(jnp.isfinite(v), v, 0)


@jax.custom_batching.custom_vmap
def _all_finite(x: Array) -> Array:
    """Whether all elements are finite, under `jax.vmap` those of all examples together.

    One answer for all keeps `lax.cond` a branch, where one for each would compute both sides.
    """
    # Sums of numbers, along the last axis only at the end: XLA reduces booleans far more slowly.
    return jnp.isfinite((x * 0).sum(axis=tuple(range(x.ndim - 1)))).all()


@_all_finite.def_vmap
def _all_finite_vmap(axis_size: int, in_batched: list[bool], x: Array) -> tuple[Array, bool]:
    return _all_finite(x), False
