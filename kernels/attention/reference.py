"""What attention means: the specification of every strategy, in plain jnp, scores kept whole.

For query i and key j of one head::

    s_ij = cap(scale * q_i . k_j + bias_ij)        cap(x) = c * tanh(x / c), or x without a soft cap
    m_i  = max_j s_ij,  p_ij = exp(s_ij - m_i),  l_i = sum_j p_ij       over the keys that i sees
    o_i  = (sum_j p_ij v_j) / l_i,               lse_i = m_i + log l_i

Conventions, which hold for values and for gradients:

* Query i sees key j if the mask allows it, the bias is not -inf, j < key length, i < query length
  and, if causal, j <= i + (key length - query length): the last query sees the last key (bottom
  right alignment, as in FlashAttention, arXiv:2307.08691).
* A query that sees nothing, or nothing but scores of -inf, has output 0, lse -inf and gradients 0.
* What is hidden never matters, be it NaN, inf or huge: rows of query, key and value that are not
  finite are replaced by zeros in the products, and a NaN is added to the scores of their query or
  key before hidden scores become -inf. So a query that sees such a key (or is such a query) has
  output NaN, and every other row is as if it did not exist. The gradient of a row that takes part
  in a NaN is NaN.
* A visible score of +inf (a bias of +inf, an overflow) makes its row NaN, as softmax([inf, 0]) is.
* The running maximum starts at -inf; where it still is, 0 takes its place as shift of the exponent.
  No finite number stands for "nothing yet", so scores of any size have their weight.
* Scores, statistics and sums are float32, or float64 for float64 arguments. The numerators p are
  rounded to the dtype of the values for the product with them, the denominator sums the rounded p,
  and the division by l comes after the product (deferred normalisation).
* The output has the dtype of the query, lse that of the scores.

It leaves out local windows and dropout.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcomet.kernels.precision import Precision, accumulator


def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    logits_soft_cap: float | None = None,
    precision: Precision = None,
) -> tuple[Array, Array]:
    """Attention of each query over the keys it sees, and the logarithm of its sum of exponentials.

    Args:
      query: [B, T, N, H].
      key: [B, S, K, H]; N is a multiple of K, and head n reads key head n // (N // K).
      value: [B, S, K, Hv].
      bias: added to the scaled scores, broadcastable to [B, N, T, S]; None for none.
      mask: booleans broadcastable to [B, N, T, S], True where a key takes part; None for all.
      scale: factor of the scores; None for 1 / sqrt(H).
      is_causal: whether later keys are hidden.
      query_seq_lengths: integers [B]; queries from there on see nothing. None for T.
      key_value_seq_lengths: integers [B]; keys from there on are hidden. None for S.
      logits_soft_cap: c in c * tanh(x / c), taken of scale * q . k + bias; None for no cap.
      precision: of the matrix products.

    Returns:
      The output [B, T, N, Hv] in the dtype of the query, and lse [B, T, N] in that of the scores.
    """
    batch, queries, heads, head_dim = query.shape
    keys, key_heads = key.shape[1:3]
    wide = accumulator(query.dtype, key.dtype, value.dtype)
    query_lengths = _lengths(query_seq_lengths, batch, queries)[:, None, None, None]
    key_lengths = _lengths(key_value_seq_lengths, batch, keys)[:, None, None, None]
    rows, columns = jnp.arange(queries)[:, None], jnp.arange(keys)[None, :]
    seen = (rows < query_lengths) & (columns < key_lengths)  # [B, 1, T, S]
    if is_causal:
        seen &= columns <= rows + (key_lengths - query_lengths)
    if mask is not None:
        seen = seen & mask
    if bias is not None:
        seen = seen & (bias != -jnp.inf)

    def per_head(x: Array) -> Array:  # [B, S, K, ...] -> [B, S, N, ...]
        return jnp.repeat(x, heads // key_heads, axis=2)

    query_finite = jnp.isfinite(query).all(-1)
    key_finite = per_head(jnp.isfinite(key).all(-1) & jnp.isfinite(value).all(-1))
    query = _cleaned(query, query_finite)
    key, value = _cleaned(per_head(key), key_finite), _cleaned(per_head(value), key_finite)
    taint = jnp.where(query_finite.swapaxes(1, 2), 0, jnp.nan).astype(wide)[..., None]
    taint = taint + jnp.where(key_finite.swapaxes(1, 2), 0, jnp.nan).astype(wide)[..., None, :]

    scores = jnp.einsum(
        "btnh,bsnh->bnts", query, key, precision=precision, preferred_element_type=wide
    )
    scores = jnp.where(seen, scores, 0) * (head_dim**-0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + jnp.where(seen, bias, 0).astype(wide)
    if logits_soft_cap is not None:
        scores = logits_soft_cap * jnp.tanh(scores / logits_soft_cap)
    scores = jnp.where(seen, scores + taint, -jnp.inf)
    maximum = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    maximum = jnp.where(maximum == -jnp.inf, 0, maximum)
    numerators = jnp.exp(scores - maximum).astype(value.dtype)
    denominator = jnp.sum(numerators, axis=-1, dtype=wide)[..., None]
    empty = denominator == 0
    weighted = jnp.einsum(
        "bnts,bsnh->bnth", numerators, value, precision=precision, preferred_element_type=wide
    )
    safe = jnp.where(empty, 1, denominator)
    out = (weighted / safe).swapaxes(1, 2).astype(query.dtype)
    lse = jnp.where(empty, -jnp.inf, maximum + jnp.log(safe))[..., 0].swapaxes(1, 2)
    return out, lse


def _lengths(lengths: Array | None, batch: int, size: int) -> Array:
    """Lengths [B], all of an axis for None, no more than it has."""
    return jnp.full((batch,), size) if lengths is None else jnp.clip(lengths, 0, size)


@jax.custom_jvp
def _cleaned(x: Array, finite: Array) -> Array:
    """`x` [..., H] with zeros in the rows that are not finite; its derivative is that of `x`."""
    return jnp.where(finite[..., None], x, 0)


@_cleaned.defjvp
def _cleaned_jvp(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Any]:
    return _cleaned(*primals), tangents[0]
