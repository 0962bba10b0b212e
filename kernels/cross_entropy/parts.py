"""What a part of the vocabulary contributes to the loss of a token, and how parts are merged.

The one idea: a part knows its maximum, its sum of exponentials relative to it (Milakov and
Gimelshein, arXiv:1805.02867, section 3), the logit under the label, if that is in it, and its share
of the mean logit, relative to the maximum as well. Parts are blocks of columns that one device goes
through, or the columns of several devices.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcomet.kernels import collectives
from jaxcomet.kernels.precision import accumulator
from jaxcomet.kernels.statistics import Columns, finite_shift


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The options of a loss; static and hashable.

    Attributes:
      label_smoothing: share of the target that all classes have in equal parts, in [0, 1).
      reduction: ``combined`` or ``separate``, as of the API.
      wire_dtype: dtype of statistics that are sent, or None for the accumulator's.
    """

    label_smoothing: float
    reduction: str
    wire_dtype: DTypeLike | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Part:
    """Statistics of each token over some columns of the vocabulary, shape (m,) each.

    Attributes:
      largest: the maximum, without derivative; -inf where there is nothing.
      total: sum of exp(logit - largest).
      target: the logit under the label; 0 where the label is elsewhere.
      deviation: sum of logit - largest over the columns, divided by v; without smoothing of no
        meaning.
    """

    largest: Array
    total: Array
    target: Array
    deviation: Array


def first_column(columns: Columns) -> Array | int:
    """The place of this device's first column in the vocabulary."""
    return collectives.index(columns.names) * columns.local


def nothing(like: Array) -> Part:
    """The part of no columns, for rows as of `like` (m,), whose dtype and variation it has."""
    zero = jnp.zeros_like(like)
    return Part(largest=zero - jnp.inf, total=zero, target=zero, deviation=zero)


def part(
    logits: Array, labels: Array, columns: Columns, loss: Loss, start: Array | int = 0
) -> Part:
    """The statistics of a block of this device's columns.

    Args:
      logits: shape (m, width), of any floating-point dtype.
      labels: int32, shape (m,), in the whole vocabulary.
      columns: how the vocabulary lies on the devices.
      loss: the options.
      start: the block's first column among those of this device.
    """
    wide = visible(logits, columns, start)
    largest = lax.stop_gradient(wide).max(axis=-1)
    shifted = wide - finite_shift(largest)[:, None]
    place = labels - first_column(columns) - start
    inside = (place >= 0) & (place < logits.shape[1])
    picked = jnp.take_along_axis(logits, place[:, None], axis=1, mode="clip")[:, 0]
    deviation = jnp.zeros_like(largest)
    if loss.label_smoothing:
        # Behind a barrier, or XLA would write down `wide - shift` to share it between the two sums.
        (apart,) = lax.optimization_barrier((finite_shift(largest),))
        terms = wide - apart[:, None]
        if columns.padded:
            terms = jnp.where(_real(columns, start, logits.shape[1]), terms, 0)
        deviation = terms.sum(axis=-1) / columns.total
    return Part(
        largest=largest,
        total=jnp.exp(shifted).sum(axis=-1),
        target=jnp.where(inside, picked.astype(wide.dtype), 0),
        deviation=deviation,
    )


def visible(logits: Array, columns: Columns, start: Array | int = 0) -> Array:
    """Logits of a block in the accumulator's dtype, with -inf in the padding."""
    wide = logits.astype(accumulator(logits.dtype))
    if columns.padded:
        wide = jnp.where(_real(columns, start, logits.shape[1]), wide, -jnp.inf)
    return wide


def joined(before: Part, block: Part, columns: Columns, start: Array | int, width: int) -> Part:
    """The part of a device's columns up to `start`, and the block of `width` columns behind it."""
    largest = jnp.maximum(before.largest, block.largest)
    shift = finite_shift(largest)
    deviation = _deviation(before, shift, _share(columns, 0, start))
    deviation += _deviation(block, shift, _share(columns, start, width))
    return Part(
        largest=largest,
        total=_total(before, shift) + _total(block, shift),
        target=before.target + block.target,
        deviation=deviation,
    )


def losses(part: Part, labels: Array, columns: Columns, loss: Loss) -> Array:
    """The losses of tokens from each device's part, and what their gradient needs.

    Sent are the four numbers of `Part`, or three without smoothing: to everyone by one all-gather
    (``combined``), or a maximum and then sums by two all-reduces (``separate``). The logit under
    the label travels relative to a maximum, so that a narrow dtype rounds a small number.

    Args:
      part: all columns of this device.
      labels: int32, shape (m,); -1 where one is not in the vocabulary.
      columns: how the vocabulary lies on the devices.
      loss: the options.

    Returns:
      Shape (4, m): the losses; the maximum that is to be subtracted from logits; 1 / (sum of
      exponentials); the derivative by the logit under the label. The same on every device of the
      vocabulary.
    """
    names, wire = columns.names, loss.wire_dtype
    own = labels // columns.local == collectives.index(names)
    share = _share(columns, 0, columns.local)
    largest = part.largest
    if wire is not None and names:
        largest = largest.astype(wire).astype(largest.dtype)
    if loss.reduction == "separate" or not names:
        shift = finite_shift(collectives.all_reduce_max(largest, names))
        sums = collectives.all_reduce_sum(_relative(part, shift, own, share, loss), names, wire)
    else:
        shift = finite_shift(largest)
        sent = jnp.stack([largest, *_relative(part, shift, own, share, loss)])
        largest, *numbers = jnp.moveaxis(collectives.all_gather(sent, names, wire), 1, 0)
        every = Part(
            largest=lax.stop_gradient(largest),
            total=numbers[0],
            target=numbers[1] + finite_shift(largest),
            deviation=numbers[-1],
        )
        shift = finite_shift(every.largest.max(axis=0))
        devices = jnp.arange(columns.shards)[:, None]
        shares = jnp.asarray(columns.counts)[:, None] / columns.total
        sums = _relative(every, shift, labels // columns.local == devices, shares, loss).sum(axis=1)
    total, target, *deviation = sums
    smoothing, known = loss.label_smoothing, labels >= 0
    result = jnp.log(total) - (1 - smoothing) * target
    chosen = jnp.exp(target) / total - (1 - smoothing)
    if smoothing:
        result = result - smoothing * deviation[0]
        chosen = chosen - smoothing / columns.total
    return jnp.stack(
        [
            jnp.where(known, result, jnp.nan),
            shift,
            jnp.where(known, 1 / total, jnp.nan),  # NaN in the gradient as in the loss
            chosen,
        ]
    )


def slopes(
    logits: Array,
    labels: Array,
    rows: Array,
    cotangent: Array,
    columns: Columns,
    loss: Loss,
    dtype: DTypeLike,
    *,
    start: Array | int = 0,
    where: Array | None = None,
) -> Array:
    """The derivative of sum(losses * cotangent) by a block of this device's logits.

    It is p - 1 under the label: a difference of near numbers for a sure prediction, so it is taken
    in the accumulator's dtype and rounded once (Liger-Kernel PR 1329). It is set into the finished
    others: to compare each column with the label takes a CPU longer than to make the exponentials.

    Args:
      logits: shape (m, width), of any floating-point dtype.
      labels: int32, shape (m,).
      rows: the last three of what `losses` returns, shape (3, m).
      cotangent: shape (m,).
      columns: how the vocabulary lies on the devices.
      loss: the options.
      dtype: of the result.
      start: the block's first column among those of this device.
      where: boolean, shape (m,), or None: which tokens count; the others get 0.

    Returns:
      Shape (m, width); in the padding a number without meaning that is finite where the others are.
    """
    shift, inverse, chosen = rows
    width = logits.shape[1]
    wide = visible(logits, columns, start)
    result = jnp.exp(wide - shift[:, None]) * (inverse * cotangent)[:, None]
    if loss.label_smoothing:
        result = result - (loss.label_smoothing / columns.total * cotangent)[:, None]
    result, chosen = counted(result, where).astype(dtype), counted(chosen * cotangent, where)
    place = labels - first_column(columns) - start
    place = jnp.where((place >= 0) & (place < width), place, width)  # width: dropped
    return result.at[jnp.arange(len(labels)), place].set(
        chosen.astype(dtype), mode="drop", indices_are_sorted=True, unique_indices=True
    )


def counted(values: Array, where: Array | None = None) -> Array:
    """Values of tokens along the leading axis, and 0 for tokens that do not count."""
    if where is None:
        return values
    return jnp.where(where.reshape(-1, *(1,) * (values.ndim - 1)), values, 0)


def _real(columns: Columns, start: Array | int, width: int) -> Array:
    """Which columns of a block are no padding, shape (width,)."""
    return first_column(columns) + start + jnp.arange(width) < columns.total


def _share(columns: Columns, start: Array | int, width: Array | int) -> Array:
    """The real columns of a block, as a share of the vocabulary."""
    available = columns.total - first_column(columns)
    return (jnp.clip(available, start, start + width) - start) / columns.total


def _total(part: Part, shift: Array) -> Array:
    """The sum of exponentials relative to `shift`."""
    return part.total * jnp.exp(part.largest - shift)


def _deviation(part: Part, shift: Array, share: Array) -> Array:
    """The share of the mean logit relative to `shift`."""
    return part.deviation + share.astype(shift.dtype) * (finite_shift(part.largest) - shift)


def _relative(part: Part, shift: Array, own: Array, share: Array, loss: Loss) -> Array:
    """Total, target and, with smoothing, deviation relative to `shift`, to be summed over parts."""
    numbers = [_total(part, shift), jnp.where(own, part.target - shift, 0)]
    if loss.label_smoothing:
        numbers.append(_deviation(part, shift, share))
    return jnp.stack(numbers)
