"""Steps that a causal mask leaves, against a loop over row blocks."""

import math
import random

import jax
import numpy as np
import pytest

from jaxcomet import attention
from jaxcomet._compat import enable_x64
from jaxcomet.cost.masking import mean_steps
from jaxcomet.workload import CausalMask


def _counted(rows: int, columns: int, group: int, queries: int, keys: int) -> float:
    """Mean blocks by looking at each row of each block."""
    total, blocks = 0, math.ceil(queries * group / rows)
    for block in range(blocks):
        inside = range(block * rows, min(queries * group, (block + 1) * rows))
        seen = max(keys - queries + row // group + 1 for row in inside)
        total += len({column // columns for column in range(seen)})
    return total / blocks


def _cases(count: int) -> list[tuple[int, int, int, int, int]]:
    rng = random.Random(5)
    found = []
    for _ in range(count):
        group, queries = rng.choice([1, 2, 3, 4]), rng.randint(1, 40)
        keys = queries + rng.randint(0, 40)
        found.append((rng.randint(1, queries * group), rng.randint(1, keys), group, queries, keys))
    return found


def test_mean_of_a_square_mask_by_hand():
    # 8 rows and 8 columns in blocks of 2: the row blocks see 1, 2, 3 and 4 column blocks
    mask = CausalMask(rows="M", columns="N", rows_per_position=1.0, offset=0.0)
    assert mean_steps(mask, 2.0, 2.0, all_rows=8.0, all_columns=8.0) == (1 + 2 + 3 + 4) / 4


def test_single_numbers_and_arrays_equal_a_count_of_every_row():
    cases = _cases(300)
    wanted = [_counted(*case) for case in cases]
    for (rows, columns, group, queries, keys), want in zip(cases, wanted, strict=True):
        mask = CausalMask(
            rows="M", columns="N", rows_per_position=float(group), offset=float(keys - queries)
        )
        found = mean_steps(
            mask,
            float(rows),
            float(columns),
            all_rows=float(queries * group),
            all_columns=float(keys),
        )
        assert found == pytest.approx(want, rel=1e-14)
    rows, columns, group, queries, keys = np.array(cases, dtype=np.float64).T
    mask = CausalMask(rows="M", columns="N", rows_per_position=group, offset=keys - queries)
    with enable_x64(True):
        batch = mean_steps(mask, rows, columns, all_rows=queries * group, all_columns=keys)
        np.testing.assert_allclose(np.asarray(batch), wanted, rtol=1e-14)


def test_gradient_follows_the_mean_without_rounding():
    mask = CausalMask(rows="M", columns="N", rows_per_position=1.0, offset=0.0)

    def steps(columns: jax.Array) -> jax.Array:
        found = mean_steps(mask, 64.0, columns, all_rows=1024.0, all_columns=1024.0)
        return found  # pyright: ignore[reportReturnType]

    with enable_x64(True):
        slope = jax.grad(steps)(jax.numpy.asarray(32.0))
    # 0.5 * 64 * 17 columns seen on average, in blocks of c: d/dc (544 / c) = -544 / c^2
    assert float(slope) == pytest.approx(-544 / 32**2)


def test_needed_work_counts_the_pairs_that_see_each_other():
    op = attention(2, 6, 5, 9, 4, kv_heads=3, causal=True)
    pairs = sum(1 for q in range(5) for k in range(9) if k <= q + 4)
    assert op.needed_points(op.operation("scores")) == 2 * 6 * pairs * 4
    assert op.needed_points(op.operation("exp")) == 2 * 6 * pairs
