"""Which keys a query sees: a limit for each query, and a mask where there is one.

The one idea: lengths, causality, padding and the place of a device's part in the whole sequence all
say the same kind of thing, that query i of a batch sees the keys below some limit. So one array of
limits [B, T] carries them all: a row of 0 sees nothing, a part of the keys that starts at s sees
the limits less s, and a block of queries needs no key block from its largest limit on. Masks and
biases hide further keys below the limit, element by element.
"""

import jax.numpy as jnp
from jax import Array


def key_limits(
    batch: int,
    queries: int,
    keys: int,
    *,
    is_causal: bool,
    query_lengths: Array | None,
    key_lengths: Array | None,
) -> Array:
    """Below which key each query sees: int32 [B, T], 0 for a query that sees nothing.

    Args:
      batch: B.
      queries: T.
      keys: S.
      is_causal: whether query i sees key j only for j <= i + (key length - query length).
      query_lengths: integers [B], queries from there on see nothing; None for T.
      key_lengths: integers [B], keys from there on are not seen; None for S.

    Example:
      >>> print(key_limits(1, 3, 5, is_causal=True, query_lengths=None, key_lengths=None))
      [[3 4 5]]
    """
    rows = jnp.arange(queries, dtype=jnp.int32)
    query_lengths = _clipped(query_lengths, batch, queries)
    key_lengths = _clipped(key_lengths, batch, keys)
    limits = jnp.broadcast_to(key_lengths, (batch, queries))
    if is_causal:
        limits = jnp.clip(rows + 1 + (key_lengths - query_lengths), 0, key_lengths)
    return jnp.where(rows < query_lengths, limits, 0)


def part_limits(limits: Array, start: Array | int, keys: int) -> Array:
    """The limits within a part of the keys that begins at `start` and has `keys` of them."""
    return jnp.clip(limits - start, 0, keys)


def key_blocks(limits: Array, block_k: int) -> Array:
    """How many blocks of keys some of these queries see: from the first on, in one piece."""
    return (jnp.max(limits) + (block_k - 1)) // block_k


def _clipped(lengths: Array | None, batch: int, size: int) -> Array:
    """Lengths as int32 [B, 1], none of them outside the axis."""
    if lengths is None:
        return jnp.full((batch, 1), size, dtype=jnp.int32)
    return jnp.clip(lengths, 0, size).astype(jnp.int32)[:, None]
