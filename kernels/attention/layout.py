"""From the user's arrays to those that the partition and its blocks divide, and back.

The one idea: heads are split into groups, so that a key head and its queries stay together, and
each axis is padded to its multiple; what is padded no limit reaches, and the way back cuts it off.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from jaxcomet.kernels.attention.plan import KEY, LIMITS, QUERY, ROWS, Dimensions, Plan
from jaxcomet.kernels.partition import pad, padded


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the arrays of one call are laid out.

    Attributes:
      plan: the decisions.
      batch: B.
      queries: T.
      keys: S.
      heads: N.
      key_heads: K.
    """

    plan: Plan
    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int

    @property
    def repeats(self) -> int:
        """How often each key head is there."""
        groups = self.heads // self.key_heads
        return head_repeats(self.key_heads, groups, self.plan.partition.shards("heads"))

    def query(self, x: Array) -> Array:
        """[B, T, N, H] as [B, T, K, G, H]."""
        return self._fitted(self._grouped(self._placed_heads(x, QUERY[:3]), 2), QUERY)

    def key(self, x: Array) -> Array:
        """[B, S, K, H], its heads repeated."""
        x = self.plan.partition.resharded(x, *KEY)
        return self._fitted(jnp.repeat(x, self.repeats, axis=2) if self.repeats > 1 else x, KEY)

    def scores(self, x: Array | None) -> Array | None:
        """[B, N, T, S], each axis or 1, as [B, K, G, T, S]; None stays."""
        if x is None:
            return None
        whole = self.plan.score_dimensions((*x.shape[:2], 1, *x.shape[2:]))
        x = self._placed_heads(x, whole[:2] + whole[3:])
        x = self._grouped(x, 1) if x.shape[1] > 1 else x[:, :, None]
        return self._fitted(x, self.plan.score_dimensions(x.shape))

    def limits(self, x: Array) -> Array:
        """[B, T], 0 for queries that are not there."""
        return self._fitted(x, LIMITS)

    def result(self, out: Array, lse: Array) -> tuple[Array, Array]:
        """Output [B, T, N, Hv] and lse [B, T, N]."""
        shape = (self.batch, self.queries, self.heads)
        real = (*shape[:2], self.key_heads * self.repeats)

        def cut(x: Array, dimensions: Dimensions) -> Array:
            sizes = real + x.shape[3:]
            split = self.plan.partition
            x = split.resharded(x, *dimensions, sizes=sizes)  # explicit axes refuse the cut
            return x[tuple(slice(size) for size in sizes)]

        return cut(out, QUERY).reshape(*shape, -1), cut(lse, ROWS).reshape(shape)

    def _grouped(self, x: Array, axis: int) -> Array:
        """N as K and G."""
        key_heads = self.key_heads * self.repeats
        split = (key_heads, self.heads // key_heads)
        return x.reshape(*x.shape[:axis], *split, *x.shape[axis + 1 :])

    def _placed_heads(self, x: Array, dimensions: Dimensions) -> Array:
        """Resharded, an array with all heads in one axis: split only if the key heads can be."""
        key_heads, split = self.key_heads * self.repeats, self.plan.partition
        if key_heads % split.shards("heads"):
            dimensions = tuple(() if names == ("heads",) else names for names in dimensions)
        return split.resharded(x, *dimensions)

    def _fitted(self, x: Array, dimensions: Dimensions) -> Array:
        """Padded along each axis that is more than a broadcast one."""
        plan, split = self.plan, self.plan.partition
        sizes = {
            "batch": padded(self.batch, split.shards("batch")),
            "heads": padded(self.key_heads * self.repeats, split.shards("heads")),
            "queries": padded(self.queries, split.shards("queries", "sequence") * plan.block_q),
            "keys": padded(self.keys, split.shards("keys", "sequence") * plan.block_k),
        }
        for axis, names in enumerate(dimensions):
            if names:
                x = pad(x, axis, sizes[names[0]])
        return split.resharded(x, *dimensions)


def head_repeats(key_heads: int, groups: int, shards: int) -> int:
    """How often to repeat key heads so that the shards divide them; 1 where padding must do it.

    The smallest number that divides the groups, so that each copy has whole groups of its own.

    Example:
      >>> head_repeats(2, 4, 4), head_repeats(3, 1, 2)
      (2, 1)
    """
    for repeats in range(1, groups + 1):
        if groups % repeats == 0 and key_heads * repeats % shards == 0:
            return repeats
    return 1
