"""One block of queries against one block of keys, and the state of a row between blocks.

The one idea: softmax over keys that come block by block needs of the past only the row's maximum,
its sum of exponentials and the weighted sum of values, both relative to that maximum (Milakov and
Gimelshein, arXiv:1805.02867, algorithm 3; Dao et al., arXiv:2205.14135, algorithm 1). The division
waits for the end.

Arrays come in the layout of the public function with the heads split into groups, and blocks of
them are turned so that the heads lead; turning whole arrays would cost a copy of each. Rows that
are not finite are cleaned block by block for the same reason. What is kept of an array as a whole
is whether its rows are finite.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcomet.kernels.attention.visibility import key_blocks
from jaxcomet.kernels.collectives import Names, varying
from jaxcomet.kernels.precision import Precision, accumulator
from jaxcomet.kernels.statistics import finite_shift, inverse_or_zero


@dataclass(frozen=True, kw_only=True)
class ScoreRule:
    """How scores are made of queries and keys; static.

    Attributes:
      scale: factor of the products.
      soft_cap: c in c * tanh(x / c), or None.
      precision: of all matrix products.
      names: the mesh axes over which what is computed may differ between devices.
    """

    scale: float
    soft_cap: float | None
    precision: Precision
    names: Names


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Operands:
    """One device's part of the arguments of attention.

    Attributes:
      query: [B, T, K, G, H].
      key: [B, S, K, H].
      value: [B, S, K, Hv].
      bias: [B or 1, K or 1, G or 1, T or 1, S or 1], or None.
      mask: booleans of such a shape, or None.
      limits: int32 [B, T], below which key each query sees.
      query_finite: booleans [B, T, K, G], whether a query is finite.
      key_finite: booleans [B, S, K], whether a key and its value are finite.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None
    mask: Array | None
    limits: Array
    query_finite: Array
    key_finite: Array

    @property
    def accumulator(self) -> jnp.dtype:
        """The dtype of scores, statistics and sums."""
        return accumulator(self.query.dtype, self.key.dtype, self.value.dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class QueryBlock:
    """A block of q queries, turned: heads lead, groups and queries are rows of one matrix.

    Attributes:
      query: [B, K, G, q, H], rows that are not finite replaced by zeros.
      taint: [B, K, G, q], NaN for such rows, else 0.
      bias: [B or 1, K or 1, G or 1, q or 1, S or 1], or None.
      mask: booleans of such a shape, or None.
      limits: int32 [B, q].
    """

    query: Array
    taint: Array
    bias: Array | None
    mask: Array | None
    limits: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class KeyBlock:
    """A block of s keys with their values, turned.

    Attributes:
      key: [B, K, s, H], rows that are not finite (or whose value is not) replaced by zeros.
      value: [B, K, s, Hv], likewise.
      taint: [B, K, s], NaN for such rows, else 0.
      start: the first of these keys.
    """

    key: Array
    value: Array
    taint: Array
    start: Array | int


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class RowState:
    """What a row keeps of the keys seen so far.

    Attributes:
      maximum: [B, K, G, q], of the scores; -inf for nothing yet.
      denominator: [B, K, G, q], sum of exponentials relative to the maximum.
      weighted: [B, K, G, q, Hv], sum of the values with these weights.
    """

    maximum: Array
    denominator: Array
    weighted: Array


def operands(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    limits: Array,
) -> Operands:
    """The arguments with what is known of their rows; shapes as in `Operands`."""
    return Operands(
        query=query,
        key=key,
        value=value,
        bias=bias,
        mask=mask,
        limits=limits,
        query_finite=jnp.isfinite(query).all(-1),
        key_finite=jnp.isfinite(key).all(-1) & jnp.isfinite(value).all(-1),
    )


def part(x: Array, start: Array | int, size: int, axis: int) -> Array:
    """`size` elements of an axis from `start` on, or the axis itself where it broadcasts."""
    return x if x.shape[axis] == 1 else lax.dynamic_slice_in_dim(x, start, size, axis)


def taint_of(finite: Array, dtype: DTypeLike) -> Array:
    """What is added to the scores of a row: 0, or NaN where it is not finite."""
    return jnp.where(finite, 0, jnp.nan).astype(dtype)


def turned_rows(x: Array) -> Array:
    """[B, q, K, G, ...] as [B, K, G, q, ...]."""
    return jnp.moveaxis(x, 1, 3)


def unturned_rows(x: Array) -> Array:
    """[B, K, G, q, ...] as [B, q, K, G, ...]."""
    return jnp.moveaxis(x, 3, 1)


def query_block(whole: Operands, start: Array | int, size: int) -> QueryBlock:
    """The queries from `start` on."""
    finite = lax.dynamic_slice_in_dim(whole.query_finite, start, size, 1)
    query = lax.dynamic_slice_in_dim(whole.query, start, size, 1)
    return QueryBlock(
        query=turned_rows(jnp.where(finite[..., None], query, 0)),
        taint=turned_rows(taint_of(finite, whole.accumulator)),
        bias=None if whole.bias is None else part(whole.bias, start, size, 3),
        mask=None if whole.mask is None else part(whole.mask, start, size, 3),
        limits=lax.dynamic_slice_in_dim(whole.limits, start, size, 1),
    )


def key_block(whole: Operands, start: Array | int, size: int) -> KeyBlock:
    """The keys from `start` on, and their values."""
    finite = lax.dynamic_slice_in_dim(whole.key_finite, start, size, 1)

    def cleaned(x: Array) -> Array:
        rows = lax.dynamic_slice_in_dim(x, start, size, 1)
        return jnp.where(finite[..., None], rows, 0).swapaxes(1, 2)

    return KeyBlock(
        key=cleaned(whole.key),
        value=cleaned(whole.value),
        taint=taint_of(finite, whole.accumulator).swapaxes(1, 2),
        start=start,
    )


def masked_scores(rule: ScoreRule, rows: QueryBlock, keys: KeyBlock) -> Array:
    """Scores [B, K, G, q, s], scaled, biased and capped; -inf for keys that are hidden."""
    size = keys.key.shape[2]
    scores = against_rows(rows.query, keys.key, rule.precision) * rule.scale
    seen = (keys.start + jnp.arange(size, dtype=jnp.int32)) < rows.limits[..., None]  # [B, q, s]
    seen = seen[:, None, None]
    if rows.mask is not None:
        seen = seen & part(rows.mask, keys.start, size, 4)
    if rows.bias is not None:
        bias = part(rows.bias, keys.start, size, 4)
        seen = seen & (bias != -jnp.inf)
        scores = scores + bias.astype(scores.dtype)
    if rule.soft_cap is not None:
        scores = rule.soft_cap * jnp.tanh(scores / rule.soft_cap)
    taint = rows.taint[..., None] + keys.taint[:, :, None, None, :]
    return jnp.where(seen, scores + taint, -jnp.inf)


def weighted_rows(weights: Array, rows: Array, precision: Precision) -> Array:
    """Sums of s rows: [B, K, G, q, s] and [B, K, s, a] give [B, K, G, q, a]."""
    product = _product("bkrs,bksa->bkra", _merged(weights), rows, precision)
    return product.reshape(*weights.shape[:-1], -1)


def against_rows(queries: Array, rows: Array, precision: Precision) -> Array:
    """Products with each of s rows: [B, K, G, q, a] and [B, K, s, a] give [B, K, G, q, s]."""
    product = _product("bkra,bksa->bkrs", _merged(queries), rows, precision)
    return product.reshape(*queries.shape[:-1], -1)


def weighted_queries(weights: Array, queries: Array, precision: Precision) -> Array:
    """Sums over groups and queries: [B, K, G, q, s] and [B, K, G, q, a] give [B, K, s, a]."""
    return _product("bkrs,bkra->bksa", _merged(weights), _merged(queries), precision)


def _merged(x: Array) -> Array:
    """Groups and queries as the rows of one matrix a key head."""
    batch, heads, groups, size, inner = x.shape
    return x.reshape(batch, heads, groups * size, inner)


def _product(formula: str, a: Array, b: Array, precision: Precision) -> Array:
    """One matrix product a key head. Nothing is transposed: the blocks would be copied for it."""
    wide = accumulator(a.dtype, b.dtype)
    return jnp.einsum(formula, a, b, precision=precision, preferred_element_type=wide)


def empty_state(rule: ScoreRule, whole: Operands, size: int) -> RowState:
    """The state of `size` rows before the first key."""
    batch, _, heads, groups, _ = whole.query.shape
    shape = (batch, heads, groups, size)
    dtype = whole.accumulator
    return RowState(
        maximum=varying(jnp.full(shape, -jnp.inf, dtype), rule.names),
        denominator=varying(jnp.zeros(shape, dtype), rule.names),
        weighted=varying(jnp.zeros((*shape, whole.value.shape[-1]), dtype), rule.names),
    )


def numerators(scores: Array, maximum: Array) -> tuple[Array, Array, Array]:
    """The maximum with these scores, their exponentials relative to it, the factor of older ones.

    Args:
      scores: [..., s].
      maximum: of the scores before, [...]; -inf for none.

    Returns:
      The new maximum [...], exponentials [..., s], and exp(old maximum - new maximum) [...].
    """
    latest = jnp.maximum(maximum, jnp.max(scores, axis=-1))
    shift = finite_shift(latest)
    return latest, jnp.exp(scores - shift[..., None]), jnp.exp(maximum - shift)


def advanced(rule: ScoreRule, state: RowState, scores: Array, value: Array) -> RowState:
    """The state after one more block of keys: scores [B, K, G, q, s], value [B, K, s, Hv]."""
    maximum, weights, factor = numerators(scores, state.maximum)
    weights = weights.astype(value.dtype)
    return RowState(
        maximum=maximum,
        denominator=state.denominator * factor
        + jnp.sum(weights, axis=-1, dtype=state.denominator.dtype),
        weighted=state.weighted * factor[..., None]
        + weighted_rows(weights, value, rule.precision).astype(state.weighted.dtype),
    )


def attend(
    rule: ScoreRule, whole: Operands, rows: QueryBlock, state: RowState, block_k: int
) -> RowState:
    """The state of a block of queries after all the keys, without the blocks that none sees."""

    def step(index: Array, state: RowState) -> RowState:
        keys = key_block(whole, index * block_k, block_k)
        return advanced(rule, state, masked_scores(rule, rows, keys), keys.value)

    return lax.fori_loop(0, key_blocks(rows.limits, block_k), step, state)


def finished(state: RowState) -> tuple[Array, Array, Array]:
    """What is kept of rows whose last key was seen.

    Returns:
      The output [B, K, G, q, Hv], and maximum and denominator [B, K, G, q].
    """
    out = state.weighted * inverse_or_zero(state.denominator)[..., None]
    return out, state.maximum, state.denominator
