"""What an attention call decides before anything runs: strategy, partition, blocks.

The one idea: all of it is static and hashable, so one compiled program serves every call that makes
the same decisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxcomet.kernels.attention.blocks import ScoreRule
from jaxcomet.kernels.partition import Partition, padded
from jaxcomet.kernels.precision import Precision

Dimensions = tuple[tuple[str, ...], ...]
"""For each axis of an array the dimensions along it: their mesh axes split it."""

STRATEGIES = ("unfused", "partial", "flash", "ring")
"""From all of the scores kept to none, and blocks of keys that go round the devices."""

DIMENSIONS = ("batch", "heads", "queries", "keys", "sequence")
"""What may be split; "sequence" is queries and keys together, over the same mesh axes."""

BLOCK_Q, BLOCK_K = 256, 512
"""Most queries and keys of a block: measured, larger ones gain nothing and smaller ones lose."""

QUERY = (("batch",), ("queries", "sequence"), ("heads",), (), ())
"""The dimensions of the query and the output, [B, T, K, G, H]."""

KEY = (("batch",), ("keys", "sequence"), ("heads",), ())
"""Of key and value, [B, S, K, H]."""

ROWS = QUERY[:-1]
"""Of lse and other numbers of a row, [B, T, K, G]."""

LIMITS = QUERY[:2]
"""Of the limits, [B, T]."""

_BLOCK_ELEMENTS = 2**19
"""Most scores in a block, over all batches and heads (2 MiB in float32): a larger one falls out of
the caches, and from 32 MiB on each call pays for fresh pages (measured: half as fast)."""

_SMALLEST_BLOCK = 128
"""Smaller blocks cost more in the loop than they save."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The static half of an attention call.

    Attributes:
      strategy: one of `STRATEGIES`.
      partition: which dimension is split over which mesh axes.
      automatic: whether XLA decides what moves.
      reduction: how results over split keys are merged: "combined" or "separate".
      wire_dtype: name of the dtype in which keys, values and sums travel; None for their own.
      scale: factor of the scores.
      soft_cap: of the scores, or None.
      precision: of the matrix products.
      block_q: queries of a block; divides each device's.
      block_k: keys of a block; divides each device's.
    """

    strategy: str
    partition: Partition
    automatic: bool
    reduction: str
    wire_dtype: str | None
    scale: float
    soft_cap: float | None
    precision: Precision
    block_q: int
    block_k: int

    @property
    def local(self) -> Partition:
        """The partition as the bodies see it: none where XLA decides."""
        return Partition(mesh=None) if self.automatic else self.partition

    @property
    def rule(self) -> ScoreRule:
        """How scores are made."""
        return ScoreRule(
            scale=self.scale,
            soft_cap=self.soft_cap,
            precision=self.precision,
            names=self.local.names(*DIMENSIONS),
        )

    @property
    def backward_blocks(self) -> tuple[int, int]:
        """Queries and keys of a block in the backward pass, which holds twice as many matrices."""
        return _halved(self.block_q), _halved(self.block_k)

    def score_dimensions(self, shape: Sequence[int]) -> Dimensions:
        """Of a bias or mask [B, K, G, T, S], none where it broadcasts.

        Its keys are split with "keys" alone: in a sequence each device meets all of them.
        """
        dimensions = (("batch",), ("heads",), (), ("queries", "sequence"), ("keys",))
        return tuple(
            names if size > 1 else () for names, size in zip(dimensions, shape, strict=True)
        )

    def broadcast_names(self, shape: Sequence[int]) -> tuple[str, ...]:
        """The mesh axes over which the gradient of a bias of this (whole) shape is a sum."""
        split = [name for names in self.score_dimensions(shape) for name in names]
        held = self.local.names(*split)
        return tuple(name for name in self.local.names(*DIMENSIONS) if name not in held)


def _halved(size: int) -> int:
    """Half of a block, if it divides it and is not too small."""
    half, odd = divmod(size, 2)
    return size if odd or half < _SMALLEST_BLOCK else half


def block_size(most: int, size: int) -> int:
    """The size of blocks, at most `most`, that covers `size` with the fewest blocks evenly.

    Rounded up to a multiple of 8, where there are several, for the sake of vectors.

    Example:
      >>> block_size(256, 300), block_size(256, 5)
      (152, 5)
    """
    if size <= most:
        return size
    blocks = -(-size // most)
    return min(most, padded(-(-size // blocks), 8))


def usual_blocks(rows: int) -> tuple[int, int]:
    """Queries and keys of a block for so many matrices of scores (batches times heads).

    Example:
      >>> usual_blocks(4), usual_blocks(64)
      ((256, 512), (128, 128))
    """
    block_q, block_k = BLOCK_Q, BLOCK_K
    while rows * block_q * block_k > _BLOCK_ELEMENTS and block_k > _SMALLEST_BLOCK:
        if block_k > block_q:
            block_k //= 2
        else:
            block_q //= 2
    return block_q, block_k
