"""The forward strategies on one device's part: unfused, partial and flash.

The one idea: the three differ only in what is kept between scores, softmax and the product with the
values: the whole matrix of scores and that of exponentials, that of exponentials alone, or nothing
but a block. Each returns the same.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcomet.kernels.attention.blocks import (
    Operands,
    RowState,
    ScoreRule,
    attend,
    empty_state,
    finished,
    key_block,
    masked_scores,
    numerators,
    query_block,
    unturned_rows,
    weighted_rows,
)
from jaxcomet.kernels.collectives import varying

Kept = tuple[Array, Array, Array]
"""The output [B, T, K, G, Hv], and the maximum of the scores and the sum of their exponentials
relative to it, [B, T, K, G]."""

Forward = Callable[[ScoreRule, Operands, int, int, DTypeLike], Kept]
"""Takes rule, operands, queries and keys of a block, and the dtype of the output."""


def unfused(rule: ScoreRule, whole: Operands, block_q: int, block_k: int, dtype: DTypeLike) -> Kept:
    """Scores, softmax and the product with the values one after the other, both matrices kept.

    Barriers keep the compiler from merging the steps. The block sizes do not matter.
    """
    rows = query_block(whole, 0, whole.query.shape[1])
    keys = key_block(whole, 0, whole.key.shape[1])
    scores = lax.optimization_barrier(masked_scores(rule, rows, keys))
    weights, denominator, maximum = lax.optimization_barrier(_softmax_parts(scores, whole))
    return _product(rule, whole, weights, denominator, maximum, dtype)


def partial(rule: ScoreRule, whole: Operands, block_q: int, block_k: int, dtype: DTypeLike) -> Kept:
    """Scores and softmax in one step by blocks of queries, the exponentials kept whole."""
    batch, queries, heads, groups, _ = whole.query.shape
    keys = key_block(whole, 0, whole.key.shape[1])

    def step(index: Array, kept: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rows = query_block(whole, index * block_q, block_q)
        made = _softmax_parts(masked_scores(rule, rows, keys), whole)
        return jax.tree.map(
            lambda rows, block: lax.dynamic_update_slice_in_dim(rows, block, index * block_q, 3),
            kept,
            made,
        )

    shape = (batch, heads, groups, queries)
    weights, denominator, maximum = lax.fori_loop(
        0,
        queries // block_q,
        step,
        (
            varying(jnp.zeros((*shape, whole.key.shape[1]), whole.value.dtype), rule.names),
            varying(jnp.zeros(shape, whole.accumulator), rule.names),
            varying(jnp.zeros(shape, whole.accumulator), rule.names),
        ),
    )
    weights, denominator, maximum = lax.optimization_barrier((weights, denominator, maximum))
    return _product(rule, whole, weights, denominator, maximum, dtype)


def flash(rule: ScoreRule, whole: Operands, block_q: int, block_k: int, dtype: DTypeLike) -> Kept:
    """Blocks over queries and keys; memory grows with T + S, and hidden blocks are not computed."""
    queries = whole.query.shape[1]

    def step(index: Array, kept: Kept) -> Kept:
        rows = query_block(whole, index * block_q, block_q)
        state = attend(rule, whole, rows, empty_state(rule, whole, block_q), block_k)
        made = results(state, dtype)
        return jax.tree.map(
            lambda rows, block: lax.dynamic_update_slice_in_dim(rows, block, index * block_q, 1),
            kept,
            made,
        )

    shape = whole.query.shape[:-1]
    zeros = (
        jnp.zeros((*shape, whole.value.shape[-1]), dtype),
        jnp.zeros(shape, whole.accumulator),
        jnp.zeros(shape, whole.accumulator),
    )
    start = jax.tree.map(lambda x: varying(x, rule.names), zeros)
    return lax.fori_loop(0, queries // block_q, step, start)


FORWARD: dict[str, Forward] = {"unfused": unfused, "partial": partial, "flash": flash}
"""The strategies that need no exchange while they run, by name."""


def _softmax_parts(scores: Array, whole: Operands) -> tuple[Array, Array, Array]:
    """Exponentials [..., S] in the dtype of the values, their sum [...] and the maximum [...]."""
    nothing = jnp.full_like(scores[..., 0], -jnp.inf)
    maximum, weights, _ = numerators(scores, nothing)
    weights = weights.astype(whole.value.dtype)
    return weights, jnp.sum(weights, axis=-1, dtype=whole.accumulator), maximum


def _product(
    rule: ScoreRule,
    whole: Operands,
    weights: Array,
    denominator: Array,
    maximum: Array,
    dtype: DTypeLike,
) -> Kept:
    """What is kept, from the exponentials of all queries."""
    value = key_block(whole, 0, whole.key.shape[1]).value
    weighted = weighted_rows(weights, value, rule.precision).astype(whole.accumulator)
    state = RowState(maximum=maximum, denominator=denominator, weighted=weighted)
    return results(state, dtype)


def results(state: RowState, dtype: DTypeLike) -> Kept:
    """What is kept of these rows, in the layout of whole arrays."""
    out, maximum, denominator = finished(state)
    return unturned_rows(out).astype(dtype), unturned_rows(maximum), unturned_rows(denominator)
