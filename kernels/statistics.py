"""Row statistics that are taken in parts and merged: maximum and sum, mean and deviation.

The one idea: each device knows a few numbers of a row's part, and a merge makes those of the row.

* Softmax: the maximum and the sum of exponentials relative to it (Milakov and Gimelshein,
  arXiv:1805.02867, section 3).
* LayerNorm: mean and root mean square deviation, merged by the formula of Chan, Golub and LeVeque
  (The American Statistician 37(3), 1983), which does not cancel for rows far from 0 as a
  difference of means of squares does.
* RMSNorm: the root mean square.

Two ways over the devices: ``combined`` sends each part's numbers to everyone by one all-gather and
merges there; ``separate`` is a maximum followed by a sum, or a sum followed by a sum: two
all-reduces, whose bytes do not grow with the number of devices. In ``combined`` the mean of a part
travels as one number: a row whose elements differ by a few units in the last place comes out as if
its parts were moved by up to half of one.

Squares are taken relative to the row's size, so that rows of 1e30 or 1e-30 have their statistics.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcomet.kernels import collectives
from jaxcomet.kernels.collectives import Names
from jaxcomet.kernels.partition import Partition, padded

REDUCTIONS = ("combined", "separate")

_EXPONENTS = (-60, 125)
"""Exponents of two that rows are scaled down by: 2**126 fits, and epsilon * 2**120 still does."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Moments:
    """Mean and variance of rows, the latter in units that keep it in range.

    Attributes:
      mean: shape (*rows,); zeros where rows are not centred (RMSNorm).
      spread: mean square deviation from `mean`, times scale**2, shape (*rows,).
      scale: a power of two per row, without derivative, shape (*rows,).
    """

    mean: Array
    spread: Array
    scale: Array

    def inverse_deviation(self, epsilon: float) -> Array:
        """1 / sqrt(variance + epsilon), shape (*rows,); 0 where that would be 1 / 0."""
        square = self.spread + epsilon * self.scale * self.scale
        zero = square == 0
        return jnp.where(zero, 0, self.scale / jnp.sqrt(jnp.where(zero, 1, square)))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How the n elements of a row lie on the devices: equal parts, the last ones padded.

    Attributes:
      total: n, without padding.
      local: elements on each device, with padding.
      names: the mesh axes that the row is split over.
      shards: how many parts there are.
    """

    total: int
    local: int
    names: Names = ()
    shards: int = 1

    @property
    def padded(self) -> bool:
        """Whether some device holds elements that are not there."""
        return self.total != self.local * self.shards

    @property
    def counts(self) -> tuple[int, ...]:
        """How many real elements each part has."""
        starts = (part * self.local for part in range(self.shards))
        return tuple(min(max(self.total - start, 0), self.local) for start in starts)

    def real(self) -> Array:
        """Which of this device's elements are real, shape (local,)."""
        first = collectives.index(self.names) * self.local
        return first + jnp.arange(self.local) < self.total

    def count(self) -> Array | int:
        """How many of this device's elements are real, and at least 1 to divide by."""
        if not self.padded:
            return self.local
        return jnp.maximum(jnp.asarray(self.counts)[collectives.index(self.names)], 1)


def columns(partition: Partition, dimension: str, total: int) -> Columns:
    """How rows of `total` elements along a dimension lie on the devices of a partition."""
    shards = partition.shards(dimension)
    return Columns(
        total=total,
        local=padded(total, shards) // shards,
        names=partition.names(dimension),
        shards=shards,
    )


def softmax_parts(
    logits: Array,
    columns: Columns,
    *,
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
) -> tuple[Array, Array]:
    """Numerators of a softmax over rows that are split over devices, and the factor that is due.

    The maximum that shifts the exponent carries no derivative: the result does not depend on it.
    Where a narrower dtype travels, the maximum is rounded before it is used, so that only the sum
    loses digits.

    Args:
      logits: this device's part, shape (*rows, local), in the accumulator's dtype; -inf where an
        element takes no part (padding, masks).
      columns: how rows lie on the devices.
      reduction: ``combined`` or ``separate``.
      wire_dtype: dtype of what is sent, or None for that of the logits.

    Returns:
      (numerators (*rows, local), factor (*rows,)): their product is the softmax. Rows without any
      finite element have factor 0. NaN or +inf in a row makes NaN of the row.
    """
    names = columns.names
    largest = _wire(lax.stop_gradient(logits).max(axis=-1), wire_dtype)
    if reduction == "separate":
        largest = collectives.all_reduce_max(largest, names)
    shift = finite_shift(largest)
    numerators = jnp.exp(logits - shift[..., None])
    total = numerators.sum(axis=-1)
    if reduction == "separate" or not names:
        return numerators, inverse_or_zero(collectives.all_reduce_sum(total, names, wire_dtype))
    parts = collectives.all_gather(jnp.stack([largest, total]), names, wire_dtype)
    overall = finite_shift(lax.stop_gradient(parts[:, 0]).max(axis=0))
    total = (parts[:, 1] * jnp.exp(lax.stop_gradient(parts[:, 0]) - overall)).sum(axis=0)
    return numerators, jnp.exp(largest - overall) * inverse_or_zero(total)


def masked(logits: Array, columns: Columns, visible: Array | None = None) -> Array:
    """Logits with -inf where an element is hidden or padding."""
    if visible is not None:
        logits = jnp.where(visible, logits, -jnp.inf)
    if columns.padded:
        logits = jnp.where(columns.real(), logits, -jnp.inf)
    return logits


def softmax(
    logits: Array,
    columns: Columns,
    *,
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
) -> Array:
    """The softmax itself; arguments as of `softmax_parts`, shape (*rows, local)."""
    numerators, factor = softmax_parts(logits, columns, reduction=reduction, wire_dtype=wire_dtype)
    return numerators * factor[..., None]


def moments(
    x: Array,
    columns: Columns,
    *,
    centred: bool = True,
    refined: bool = True,
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
) -> Moments:
    """Mean and variance (population, not sample) of rows that are split over devices.

    Args:
      x: this device's part, shape (*rows, local), in the accumulator's dtype; padding may hold
        anything finite.
      columns: how rows lie on the devices.
      centred: False takes the mean as 0: the mean square of RMSNorm.
      refined: whether a part's mean is corrected by one more pass over it, for elements that are
        exact and lie so far from 0 that rounding the mean to their digits would show. Where they
        carry rounding errors of their own, as a product does, there is nothing to gain. The mean
        over ``separate`` sums is always corrected, which costs nothing there.
      reduction: ``combined`` or ``separate``.
      wire_dtype: dtype of what is sent, or None for that of `x`.
    """
    _, result = deviations(
        x,
        columns,
        centred=centred,
        refined=refined,
        reduction=reduction,
        wire_dtype=wire_dtype,
    )
    return result


def deviations(
    x: Array,
    columns: Columns,
    *,
    centred: bool = True,
    refined: bool = True,
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
) -> tuple[Array, Moments]:
    """Rows without their mean, and their moments; arguments as of `moments`.

    The mean is taken out in two steps, first what one pass over the row gives, then the little that
    this missed: in one step it would be rounded to the digits of the elements.

    Returns:
      (x - mean, shape (*rows, local), or `x` itself if not `centred`; moments).
    """
    if columns.padded:
        x = jnp.where(columns.real(), x, 0)
    if reduction == "separate" and columns.names:
        about = _about_mean_by_sums(x, columns, centred, wire_dtype)
    else:
        about = _about_own_mean(x, columns, centred, refined)
        if columns.names:
            about = _merged(about, columns, centred, wire_dtype)
    if centred:
        x = (x - about.first[..., None]) - about.missed[..., None]
    mean = about.first + about.missed
    return x, Moments(mean=mean, spread=about.spread, scale=about.scale)


class _About(NamedTuple):
    """Moments about a first guess of the mean, each of shape (*rows,).

    Attributes:
      first: the guess.
      missed: mean - first.
      spread: mean square deviation from the mean, times scale**2.
      scale: a power of two.
    """

    first: Array
    missed: Array
    spread: Array
    scale: Array


def _about_own_mean(x: Array, columns: Columns, centred: bool, refined: bool) -> _About:
    """Of this device's part, by the two-pass algorithm.

    Each pass has its own expression of `x`: a shared one would be kept in memory, as large as `x`.
    The derivative of the mean is in `first`.
    """
    count = columns.count()
    scale = _power_of_two(jnp.abs(lax.stop_gradient(x)).max(axis=-1))
    first = missed = jnp.zeros_like(scale)
    if centred:
        first = (x / count).sum(axis=-1)
    scaled = _scaled(x, first, scale, columns, centred)
    spread = (scaled * scaled).sum(axis=-1) / count
    if centred and refined:
        again = _scaled(lax.stop_gradient(x), lax.stop_gradient(first), 2 * scale, columns, True)
        missed = again.sum(axis=-1) / count
        spread = jnp.maximum(spread - (missed / 2) ** 2, 0)
        missed = missed / (2 * scale)
    return _About(first, missed, spread, scale)


def _merged(about: _About, columns: Columns, centred: bool, wire_dtype: DTypeLike | None) -> _About:
    """Of the rows from those of their parts: each sends its mean and deviation to all."""
    deviation = _root(about.spread) / about.scale
    sent = jnp.stack([about.first + about.missed, deviation] if centred else [deviation])
    parts = collectives.all_gather(sent, columns.names, wire_dtype)
    spreads, missed = parts[:, -1], about.missed
    weights = jnp.asarray(columns.counts, spreads.dtype) / columns.total
    weights = weights.reshape(-1, *(1,) * (spreads.ndim - 1))
    offsets = jnp.zeros_like(spreads)
    if centred:
        origin = lax.stop_gradient(parts[0, 0])
        offsets = parts[:, 0] - origin
        mean = (weights * offsets).sum(axis=0)
        offsets = offsets - mean
        missed = (origin - about.first) + mean
    largest = jnp.maximum(spreads, jnp.where(weights > 0, jnp.abs(offsets), 0)).max(axis=0)
    scale = _power_of_two(largest)
    squares = (spreads * scale) ** 2 + (offsets * scale) ** 2
    return _About(about.first, missed, (weights * squares).sum(axis=0), scale)


def _about_mean_by_sums(
    x: Array, columns: Columns, centred: bool, wire_dtype: DTypeLike | None
) -> _About:
    """Two all-reduces: sizes and means, then squares of deviations from that mean."""

    def reduce(*sums: Array) -> Array:
        return collectives.all_reduce_sum(jnp.stack(sums), columns.names, wire_dtype)

    n = columns.total
    size = (jnp.abs(lax.stop_gradient(x)) / n).sum(axis=-1)
    first = missed = jnp.zeros_like(size)
    if centred:
        size, first = reduce(size, (lax.stop_gradient(x) / n).sum(axis=-1))
    else:
        (size,) = reduce(size)
    scale = _power_of_two(size)
    scaled = _scaled(x, first, scale, columns, centred)
    squares = (scaled * scaled / n).sum(axis=-1)
    if centred:
        again = _scaled(x, first, 2 * scale, columns, centred)
        spread, missed = reduce(squares, (again / n).sum(axis=-1))
    else:
        (spread,) = reduce(squares)
    missed = missed / (2 * scale)
    return _About(first, missed, jnp.maximum(spread - (missed * scale) ** 2, 0), scale)


def _scaled(x: Array, first: Array, scale: Array, columns: Columns, centred: bool) -> Array:
    """(x - first) * scale, and 0 in the padding; the products are exact."""
    scaled = x * scale[..., None]
    if centred:
        scaled = scaled - (first * scale)[..., None]
        scaled = jnp.where(columns.real(), scaled, 0) if columns.padded else scaled
    return scaled


def finite_shift(largest: Array) -> Array:
    """A maximum as the shift of an exponent: 0 where nothing is there, for -inf - -inf is NaN."""
    return jnp.where(largest == -jnp.inf, 0, largest)


def inverse_or_zero(total: Array) -> Array:
    """1 / total, and 0 for rows with nothing in them; NaN stays."""
    empty = total == 0
    return jnp.where(empty, 0, 1 / jnp.where(empty, 1, total))


def _root(spread: Array) -> Array:
    """The square root with derivative 0 at 0: a constant row has its minimum of variance there."""
    positive = spread > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, spread, 1)), spread)


def _power_of_two(size: Array) -> Array:
    """A factor that brings numbers of this size near 1 without rounding them."""
    _, exponent = jnp.frexp(lax.stop_gradient(size))
    return jnp.ldexp(jnp.ones_like(size), -jnp.clip(exponent, *_EXPONENTS))


def _wire(x: Array, wire_dtype: DTypeLike | None) -> Array:
    """`x` rounded to what can travel."""
    return x if wire_dtype is None else x.astype(wire_dtype).astype(x.dtype)
