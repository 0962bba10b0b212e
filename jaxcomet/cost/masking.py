"""Steps of a loop over blocks of columns that a causal mask leaves.

A block of rows sees the columns up to that of its last row, so the loop over its column blocks
makes ``ceil(columns seen / columns of a block)`` steps and skips the rest. Row blocks differ; since
the time, traffic and work of a run are affine in its steps (from the second step on), the mean over
the row blocks gives the sum over all (docs/attention.md). The mean is exact; it need not be whole.
"""

import jax
import jax.numpy as jnp

from jaxcomet.arith import Number, ceil, minimum
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
      Between 1 and ceil(all_columns / columns). Gradient: that of the mean without rounding.
    """
    group, offset = mask.rows_per_position, mask.offset
    blocks = ceil(all_rows / rows)
    whole = ceil(all_columns / columns)
    width = columns * group
    # sum over the blocks but the last one of ceil((offset group + rows I) / width), I from 1
    start = offset * group + rows + width - 1.0
    if all(isinstance(x, float) for x in (blocks, width, rows, start, whole)):
        exact = (_floor_sum(int(blocks) - 1, int(width), int(rows), int(start)) + whole) / blocks
        return float(exact)
    exact = (_floor_sums(blocks - 1.0, width, rows, start) + whole) / blocks
    smooth = minimum(
        all_columns / columns, (offset + 0.5 * (rows / group) * (blocks + 1.0)) / columns
    )
    smooth = jnp.asarray(smooth)
    return smooth + jax.lax.stop_gradient(exact - smooth)


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


def _floor_sums(count: Number, modulus: Number, slope: Number, start: Number) -> jax.Array:
    """As `_floor_sum`, for arrays of whole numbers held in floats."""
    values = jnp.broadcast_arrays(
        *(
            jax.lax.stop_gradient(jnp.asarray(x, dtype=jnp.result_type(float)))
            for x in (count, modulus, slope, start)
        )
    )

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        total, count, modulus, slope, start = state
        alive = count > 0
        safe = jnp.where(alive, modulus, 1.0)
        quotient, first = jnp.floor(slope / safe), jnp.floor(start / safe)
        total = total + jnp.where(
            alive, count * (count - 1.0) / 2.0 * quotient + count * first, 0.0
        )
        slope, start = slope - quotient * safe, start - first * safe
        highest = slope * count + start
        again = jnp.where(alive, jnp.floor(highest / safe), 0.0)
        return total, again, slope, safe, highest - again * safe

    def alive(state: tuple[jax.Array, ...]) -> jax.Array:
        return jnp.any(state[1] > 0)

    total = jnp.zeros_like(values[0])
    return jax.lax.while_loop(alive, step, (total, *values))[0]
