"""What the cross-entropy means: the specification that all other forms are held against."""

import jax.numpy as jnp
from jax import Array, lax

from jaxcomet.kernels.precision import Precision, accumulator, matmul
from jaxcomet.kernels.statistics import finite_shift


def cross_entropy(
    logits: Array,
    labels: Array,
    where: Array | None = None,
    *,
    label_smoothing: float = 0.0,
) -> Array:
    """(1 - a) * -log p[label] + a * mean over all v classes of -log p, with p = softmax(logits).

    The maximum is subtracted from all logits before anything else, so that an offset that they
    share costs no digits: two logits of 1e8 have the loss log 2.

    * A logit of -inf has p = 0 and gradient 0. Under the label it makes the loss +inf (the gradient
      there is -1), and so does any of them where a > 0, since its class has a share of the target.
    * Logits that are NaN or +inf, or all -inf, make the loss and the gradient of their token NaN.
    * So does a label outside [0, v) of a token that counts: under jit nothing can be raised.
    * A token that does not count has loss 0 and gradient 0, whatever its logits and its label are.

    Args:
      logits: shape (..., v).
      labels: integers, shape (...).
      where: boolean, shape (...): True counts. None is all.
      label_smoothing: a, in [0, 1).

    Returns:
      Shape (...), float32, or the dtype of `logits` where that is wider.
    """
    wide = logits.astype(accumulator(logits.dtype))
    if where is not None:
        wide = jnp.where(where[..., None], wide, 0)
    shifted = wide - finite_shift(lax.stop_gradient(wide).max(axis=-1, keepdims=True))
    known = (labels >= 0) & (labels < logits.shape[-1])
    place = jnp.where(known, labels, 0)[..., None]
    target = jnp.take_along_axis(shifted, place, axis=-1)[..., 0]
    losses = jnp.log(jnp.exp(shifted).sum(axis=-1)) - (1 - label_smoothing) * target
    if label_smoothing:
        losses = losses - label_smoothing * shifted.mean(axis=-1)
    losses = losses * jnp.where(known, 1, jnp.nan)  # a factor, so that the gradient is NaN too
    return losses if where is None else jnp.where(where, losses, 0)


def linear_cross_entropy(
    x: Array,
    weight: Array,
    labels: Array,
    where: Array | None = None,
    *,
    label_smoothing: float = 0.0,
    precision: Precision = None,
) -> Array:
    """`cross_entropy` of the logits x @ weight, which stay in the accumulator's dtype.

    A token that does not count has no influence on the gradient of `weight`, whatever `x` holds.

    Args:
      x: shape (..., k).
      weight: shape (k, v).
      labels: integers, shape (...).
      where: boolean, shape (...): True counts. None is all.
      label_smoothing: a, in [0, 1).
      precision: of the matrix product.

    Returns:
      Shape (...), float32, or the common dtype of `x` and `weight` where that is wider.
    """
    if where is not None:
        x = jnp.where(where[..., None], x, 0)
    logits = matmul(x, weight, precision)
    return cross_entropy(logits, labels, where, label_smoothing=label_smoothing)
