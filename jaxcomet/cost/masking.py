"""Steps of a loop over blocks of columns that a causal mask leaves.

A block of rows sees the columns up to that of its last row, so the loop over its column blocks
makes ``ceil(columns seen / columns of a block)`` steps and skips the rest. Row blocks differ; since
the time, traffic and work of a run are affine in its steps (from the second step on), the mean over
the row blocks gives the sum over all (docs/attention.md). The mean is exact; it need not be whole.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomet.arith import (
    Number,
    ceil,
    is_exact,
    maximum,
    minimum,
    on_host,
    product,
    relaxed,
    relu,
    temperature,
)
from jaxcomet.workload import CausalMask


def mean_steps(
    mask: CausalMask, rows: Number, columns: Number, *, all_rows: Number, all_columns: Number
) -> Number:
    """Mean number of column blocks that a block of rows may see.

    Args:
      mask: the mask.
      rows: rows of one block.
      columns: columns of one block.
      all_rows: extent of the rows.
      all_columns: extent of the columns.

    Returns:
      Between 1 and ceil(all_columns / columns). Gradient: that of a smooth mean, which is the exact
      one where the blocks divide each other and the offset. At a temperature (`arith.relaxed`) this
      mean itself, or between it and the exact one: the nearer to the exact one the lower the
      temperature, and only near whole blocks.
    """
    smooth = _smooth_steps(mask, rows, columns, all_rows=all_rows, all_columns=all_columns)
    if is_exact():
        exact = _exact_steps(mask, rows, columns, all_rows=all_rows, all_columns=all_columns)
        if on_host(exact):
            return exact
        return smooth + jax.lax.stop_gradient(exact - smooth)
    smooth, width = maximum(smooth, 1.0), temperature()
    if isinstance(width, float) and width == math.inf:
        return smooth
    near = [_nearest(rows), _nearest(columns)]
    with relaxed(0.0):
        exact = _exact_steps(mask, *near, all_rows=all_rows, all_columns=all_columns)
    closeness = product(
        [relu(1.0 - 2.0 * abs(x - n)) for x, n in zip((rows, columns), near, strict=True)]
    )
    return smooth + closeness / (1.0 + width) * (exact - smooth)


def _nearest(x: Number) -> Number:
    return np.round(x) if on_host(x) else jax.lax.stop_gradient(jnp.round(x))


def _smooth_steps(
    mask: CausalMask, rows: Number, columns: Number, *, all_rows: Number, all_columns: Number
) -> Number:
    """The mean without rounding.

    Blocks of r positions and c columns: the I-th block of P / r sees offset + r I columns. Where c
    divides r and the offset, the mean of (offset + r I) / c is (offset + (P + r) / 2) / c. Where c
    is k r, the mean of ceil(I / k) is (P / c + 1) / 2: the same with c in the place of r.
    """
    positions, block = all_rows / mask.rows_per_position, rows / mask.rows_per_position
    seen = mask.offset + 0.5 * (positions + maximum(block, columns))
    return minimum(all_columns, seen) / columns


def _exact_steps(
    mask: CausalMask, rows: Number, columns: Number, *, all_rows: Number, all_columns: Number
) -> Number:
    group, offset = mask.rows_per_position, mask.offset
    blocks = ceil(all_rows / rows)
    whole = ceil(all_columns / columns)
    width = columns * group
    # sum over the blocks but the last one of ceil((offset group + rows I) / width), I from 1
    start = offset * group + rows + width - 1.0
    if all(isinstance(x, float) for x in (blocks, width, rows, start, whole)):
        exact = (_floor_sum(int(blocks) - 1, int(width), int(rows), int(start)) + whole) / blocks
        return float(exact)
    return (_floor_sums(blocks - 1.0, width, rows, start) + whole) / blocks


def _floor_sum(count: int, modulus: int, slope: int, start: int) -> int:
    """Sum of floor((slope i + start) / modulus) for i < count, by Euclid's algorithm."""
    total = 0
    while count > 0:
        total += count * (count - 1) // 2 * (slope // modulus) + count * (start // modulus)
        slope, start = slope % modulus, start % modulus
        highest = slope * count + start
        count, start = divmod(highest, modulus)
        modulus, slope = slope, modulus
    return total


def _floor_sums(count: Number, modulus: Number, slope: Number, start: Number) -> Number:
    """As `_floor_sum`, for arrays of whole numbers held in floats."""
    host = on_host(count, modulus, slope, start)
    xp: Any = np if host else jnp
    values = xp.broadcast_arrays(count, modulus, slope, start)
    if not host:
        values = [jax.lax.stop_gradient(x.astype(jnp.result_type(float))) for x in values]

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        total, count, modulus, slope, start = state
        alive = count > 0
        safe = xp.where(alive, modulus, 1.0)
        quotient, first = xp.floor(slope / safe), xp.floor(start / safe)
        total = total + xp.where(alive, count * (count - 1.0) / 2.0 * quotient + count * first, 0.0)
        slope, start = slope - quotient * safe, start - first * safe
        highest = slope * count + start
        again = xp.where(alive, xp.floor(highest / safe), 0.0)
        return total, again, slope, safe, highest - again * safe

    def alive(state: tuple[Any, ...]) -> Any:
        return xp.any(state[1] > 0)

    state = (xp.zeros_like(values[0]), *values)
    if not host:
        return jax.lax.while_loop(alive, step, state)[0]
    while alive(state):
        state = step(state)
    return state[0]
