"""What softmax means here: the specification that all other forms are held against."""

import jax.numpy as jnp
from jax import Array, lax

from jaxcomet.kernels.precision import accumulator


def softmax(x: Array, where: Array | None = None) -> Array:
    """exp(x - max x) / sum exp(x - max x) over the last axis.

    * An element that is -inf, or hidden by `where`, has probability 0. A hidden element has no
      influence whatever it holds, NaN included, and gets derivative 0.
    * A row in which every element is -inf or hidden is 0 (`jax.nn.softmax` makes NaN of the first).
    * A row with an element that is NaN or +inf, and not hidden, is NaN, as of `jax.nn.softmax`.

    Args:
      x: shape (..., n).
      where: boolean, broadcastable to `x`: True takes part. None is all.

    Returns:
      The shape and dtype of `x`; computed in float32 where that is wider.
    """
    wide = x.astype(accumulator(x.dtype))
    if where is not None:
        wide = jnp.where(where, wide, -jnp.inf)
    largest = lax.stop_gradient(wide.max(axis=-1, keepdims=True))
    numerators = jnp.exp(wide - jnp.where(largest == -jnp.inf, 0, largest))
    total = numerators.sum(axis=-1, keepdims=True)
    empty = total == 0
    return jnp.where(empty, 0, numerators / jnp.where(empty, 1, total)).astype(x.dtype)
