"""Results over parts of the keys, merged into the result over all of them.

The one idea: the output of a part counts with the share of its sum of exponentials in that of all,
both taken relative to the largest maximum (as in FlashDecoding and in ring attention,
arXiv:2310.01889). A part without keys (output 0, maximum -inf, sum 0) changes nothing, and nothing
but such parts is such a part.

Maximum and sum stay two numbers until the end: their lse = maximum + log(sum) has no digits left of
the sum where scores are large, and weights made of it would not sum to 1.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jaxcomet.kernels.collectives import Names, all_gather, all_reduce_max, all_reduce_sum
from jaxcomet.kernels.statistics import finite_shift, inverse_or_zero


def merge(
    out: Array,
    maximum: Array,
    denominator: Array,
    names: Names,
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
) -> tuple[Array, Array, Array]:
    """The result over the keys of all devices along `names`.

    Args:
      out: this device's output [..., Hv], over its own keys.
      maximum: of its scores [...]; -inf where it saw no key.
      denominator: the sum of their exponentials relative to the maximum [...]; 0 for no key.
      names: mesh axes that the keys are split over.
      reduction: "combined", one all-gather of maxima and sums; "separate", an all-reduce for each.
      wire_dtype: in which the outputs travel; the statistics travel as they are.

    Returns:
      Output, maximum and denominator over all keys, the same on each of these devices.
    """
    if not names:
        return out, maximum, denominator
    if reduction == "combined":
        parts = all_gather(jnp.stack([maximum, denominator]), names)
        largest = jnp.max(parts[:, 0], axis=0)
        total = jnp.sum(parts[:, 1] * jnp.exp(parts[:, 0] - finite_shift(largest)), axis=0)
        share = denominator * jnp.exp(maximum - finite_shift(largest))
    else:
        largest = all_reduce_max(maximum, names)
        share = denominator * jnp.exp(maximum - finite_shift(largest))
        total = all_reduce_sum(share, names)
    weight = share * inverse_or_zero(total)
    return all_reduce_sum(out * weight[..., None], names, wire_dtype), largest, total


def log_of_sum(maximum: Array, denominator: Array) -> Array:
    """Lse from a maximum and the sum of exponentials relative to it; -inf where the sum is 0."""
    empty = denominator == 0
    logarithm = jnp.log(jnp.where(empty, 1, denominator))
    return jnp.where(empty, -jnp.inf, finite_shift(maximum) + logarithm)
