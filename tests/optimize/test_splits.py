"""Tables of splits against brute force."""

import itertools
import math

import numpy as np
import pytest

from jaxcomet.optimize.splits import covers


def _minimal(extent: int, slots: int) -> set[tuple[int, ...]]:
    """From the outermost factor inwards: every number of steps that some tile needs."""
    if slots == 1:
        return {(extent,)}
    found = set()
    for tile in range(1, extent + 1):
        steps = math.ceil(extent / tile)
        least = math.ceil(extent / steps)  # the smallest tile for as many steps
        found |= {(steps, *rest) for rest in _minimal(least, slots - 1)}
    return found


@pytest.mark.parametrize("extent", [1, 2, 7, 12, 31, 64])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_tiles_of_any_size_are_all_those_that_are_just_large_enough(extent: int, slots: int):
    rows = covers(extent, slots, "any")
    assert {tuple(map(int, r)) for r in rows} == _minimal(extent, slots)
    assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize("extent", [1, 7, 12, 60])
def test_divisors_are_the_exact_products(extent: int):
    rows = {tuple(map(int, r)) for r in covers(extent, 3, "divisors")}
    every = itertools.product(range(1, extent + 1), repeat=3)
    assert rows == {r for r in every if math.prod(r) == extent}


def test_any_size_holds_the_divisors_and_padded_ones_too():
    divisors, padded, every = (
        {tuple(r) for r in covers(100, 2, tiles)} for tiles in ("divisors", "padded", "any")
    )
    assert divisors < padded
    assert divisors < every
    assert all(math.prod(r) >= 100 for r in padded | every)


def test_a_table_that_is_handed_out_again_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        covers(12, 2, "any")[0, 0] = 5.0
