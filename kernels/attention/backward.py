"""The gradients of attention on one device's part, from what was kept of each row.

The one idea: the weights of a block are exp(score - maximum) / denominator, so nothing of the size
of the scores has to be kept; the scores of each block are made once more (Dao et al.,
arXiv:2205.14135, algorithm 4; arXiv:2307.08691, section 3.1.2, with exp(score - lse), which loses
its digits where scores are large). With P the weights, dO and dlse the cotangents::

    delta_i = dO_i . O_i - dlse_i           dV = P^T dO
    dS = P * (dO V^T - delta)               dQ = scale * dS K,  dK = scale * dS^T Q,  dB = dS

each a sum over blocks, in one pass of five products a block. A weight of 0 has a dS of 0 whatever
stands beside it, so that hidden values stay out. A row whose cotangent is not finite has its dO
replaced by zeros and its weights by NaN: only what it sees becomes NaN.
"""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcomet.kernels.attention.blocks import (
    KeyBlock,
    Operands,
    QueryBlock,
    ScoreRule,
    against_rows,
    key_block,
    masked_scores,
    query_block,
    taint_of,
    turned_rows,
    unturned_rows,
    weighted_queries,
    weighted_rows,
)
from jaxcomet.kernels.attention.visibility import key_blocks
from jaxcomet.kernels.collectives import varying
from jaxcomet.kernels.statistics import inverse_or_zero


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Cotangents:
    """Of the results, and the results themselves: what the gradients are made of.

    Attributes:
      out: the output, [B, T, K, G, Hv].
      maximum: of the scores, [B, T, K, G].
      denominator: sum of exponentials relative to it, [B, T, K, G].
      d_out: cotangent of the output.
      d_lse: cotangent of lse.
    """

    out: Array
    maximum: Array
    denominator: Array
    d_out: Array
    d_lse: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Sums over blocks in the accumulator's dtype, without the factor `scale` in query and key.

    Attributes:
      query: [B, T, K, G, H].
      key: [B, S, K, H].
      value: [B, S, K, Hv].
      bias: of the bias's own shape, or None.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None


def zero_gradients(rule: ScoreRule, whole: Operands) -> Gradients:
    """The sums before the first block."""

    def zeros(x: Array) -> Array:
        return varying(jnp.zeros(x.shape, whole.accumulator), rule.names)

    return Gradients(
        query=zeros(whole.query),
        key=zeros(whole.key),
        value=zeros(whole.value),
        bias=None if whole.bias is None else zeros(whole.bias),
    )


def accumulated(
    rule: ScoreRule,
    whole: Operands,
    given: Cotangents,
    sums: Gradients,
    block_q: int,
    block_k: int,
) -> Gradients:
    """The sums with all blocks of these queries and keys added; hidden blocks are not computed."""

    def rows_step(index: Array, sums: Gradients) -> Gradients:
        start = index * block_q
        terms = _row_terms(given, start, block_q)
        rows = query_block(whole, start, block_q)
        rows = dataclasses.replace(rows, taint=rows.taint + terms.taint)

        def keys_step(index: Array, carry: tuple[Array, Gradients]) -> tuple[Array, Gradients]:
            d_query, sums = carry
            keys = key_block(whole, index * block_k, block_k)
            weights, d_scores = _weights(rule, rows, keys, terms)
            factor = _operand(d_scores, keys.key)
            d_query = d_query + weighted_rows(factor, keys.key, rule.precision)
            d_key = weighted_queries(factor, rows.query, rule.precision)
            shares = _operand(weights, keys.value)
            d_value = weighted_queries(shares, terms.d_out, rule.precision)
            return d_query, dataclasses.replace(
                sums,
                key=_added(sums.key, d_key.swapaxes(1, 2), {1: keys.start}),
                value=_added(sums.value, d_value.swapaxes(1, 2), {1: keys.start}),
                bias=_added_bias(sums.bias, d_scores, start, keys.start),
            )

        d_query = jnp.zeros(rows.query.shape, whole.accumulator)
        d_query, sums = lax.fori_loop(
            0,
            key_blocks(rows.limits, block_k),
            keys_step,
            (varying(d_query, rule.names), sums),
        )
        d_query = _added(sums.query, unturned_rows(d_query), {1: start})
        return dataclasses.replace(sums, query=d_query)

    return lax.fori_loop(0, whole.query.shape[1] // block_q, rows_step, sums)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class _RowTerms:
    """What the gradients of a block of queries need of each row.

    Attributes:
      d_out: dO [B, K, G, q, Hv], rows that are not finite replaced by zeros.
      taint: NaN for such rows, and for those whose output is NaN, else 0, [B, K, G, q].
      shift: of the exponents, [B, K, G, q]; finite.
      inverse: of the denominator, [B, K, G, q]; finite, 0 for rows that see nothing.
      delta: [B, K, G, q].
    """

    d_out: Array
    taint: Array
    shift: Array
    inverse: Array
    delta: Array


def _row_terms(given: Cotangents, start: Array, size: int) -> _RowTerms:
    """The terms of `size` queries from `start` on."""

    def rows(x: Array) -> Array:
        return turned_rows(lax.dynamic_slice_in_dim(x, start, size, 1))

    d_out, d_lse, maximum = rows(given.d_out), rows(given.d_lse), rows(given.maximum)
    out = rows(given.out).astype(maximum.dtype)
    finite = jnp.isfinite(d_out).all(-1)
    whole = finite & jnp.isfinite(d_lse) & (maximum < jnp.inf)
    return _RowTerms(
        d_out=jnp.where(finite[..., None], d_out, 0),
        taint=taint_of(whole, maximum.dtype),
        shift=jnp.where(jnp.isfinite(maximum), maximum, 0),
        inverse=jnp.where(whole, inverse_or_zero(rows(given.denominator)), 0),
        delta=jnp.sum(d_out.astype(out.dtype) * out, axis=-1) - d_lse,
    )


def _weights(
    rule: ScoreRule, rows: QueryBlock, keys: KeyBlock, terms: _RowTerms
) -> tuple[Array, Array]:
    """The weights of a block and the gradient of its scores before scaling: [B, K, G, q, s]."""
    scores = masked_scores(rule, rows, keys)
    weights = jnp.exp(scores - terms.shift[..., None]) * terms.inverse[..., None]
    d_weights = against_rows(terms.d_out, keys.value, rule.precision)
    slope = weights * (d_weights - terms.delta[..., None])
    if rule.soft_cap is not None:
        slope = slope * (1 - jnp.square(scores / rule.soft_cap))
    return weights, jnp.where(weights == 0, 0, slope)


def _operand(factor: Array, other: Array) -> Array:
    """A factor of a product, rounded to the dtype of the other one where that has its range.

    float16 has not: weights and gradients of long rows lie below its smallest normal number.
    """
    wide_range = jnp.finfo(other.dtype).maxexp >= jnp.finfo(jnp.float32).maxexp
    return factor.astype(other.dtype) if wide_range else factor


def _added(sums: Array, block: Array, starts: dict[int, Array | int]) -> Array:
    """The sums with a block added, in place, at these starts of its axes."""
    at = [jnp.asarray(starts.get(axis, 0), jnp.int32) for axis in range(sums.ndim)]
    old = lax.dynamic_slice(sums, at, block.shape)
    return lax.dynamic_update_slice(sums, old + block, at)


def _added_bias(
    sums: Array | None, d_scores: Array, query_start: Array, key_start: Array | int
) -> Array | None:
    """The gradient of the bias with a block added, summed over the axes that broadcast."""
    if sums is None:
        return None
    broadcast = tuple(axis for axis in range(5) if sums.shape[axis] == 1)
    block = jnp.sum(d_scores, axis=broadcast, keepdims=True)
    starts = {3: query_start, 4: key_start}
    return _added(sums, block, {axis: s for axis, s in starts.items() if axis not in broadcast})
