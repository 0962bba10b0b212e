"""Ways to split an extent over a number of factors: the tables that spaces are made of.

The one idea: splits are rows of a table, outermost factor first, so that a mapping is one row
number per dimension.
"""

import functools
from typing import Literal

import numpy as np


@functools.lru_cache(maxsize=4096)
def _divisors(extent: int) -> tuple[int, ...]:
    low = [d for d in range(1, int(extent**0.5) + 1) if extent % d == 0]
    return tuple(sorted({*low, *(extent // d for d in low)}))


@functools.lru_cache(maxsize=65536)
def _exact(extent: int, slots: int) -> np.ndarray:
    if slots <= 1:
        return np.full((1, slots), float(extent))
    rows = [_in_front(d, _exact(extent // d, slots - 1)) for d in _divisors(extent)]
    return _shared(rows)


@functools.lru_cache(maxsize=65536)
def _any(extent: int, slots: int) -> np.ndarray:
    """All rows in which no factor can be made smaller without making another one larger."""
    if slots <= 1:
        return np.full((1, slots), float(extent))
    outer = sorted({-(-extent // -(-extent // steps)) for steps in _candidates(extent)})
    rows = [_in_front(steps, _any(-(-extent // steps), slots - 1)) for steps in outer]
    return _shared(rows)


def _candidates(extent: int) -> list[int]:
    """Numbers of steps, among them every one that some tile needs: about 2 sqrt(extent)."""
    root = int(extent**0.5) + 1
    return sorted(
        {*range(1, min(root, extent) + 1), *(-(-extent // t) for t in range(1, root + 1))}
    )


def _shared(rows: list[np.ndarray]) -> np.ndarray:
    table = np.concatenate(rows)
    table.setflags(write=False)  # it is kept and handed out again
    return table


def _in_front(factor: int, rest: np.ndarray) -> np.ndarray:
    return np.concatenate([np.full((len(rest), 1), float(factor)), rest], axis=1)


def factorizations(extent: int, slots: int) -> np.ndarray:
    """All ordered ways to write `extent` as a product of `slots` whole numbers.

    Returns:
      Shape (ways, slots), float64, in lexicographic order.

    Example:
      >>> factorizations(4, 2).tolist()
      [[1.0, 4.0], [2.0, 2.0], [4.0, 1.0]]
    """
    return _exact(extent, slots)


def _padded(extent: int) -> list[int]:
    """The extent, and those a little larger that have more divisors: at most an eighth more."""
    found = [extent]
    step = 2
    while step <= extent // 8:
        found.append(-(-extent // step) * step)
        step *= 2
    return sorted(set(found))


def covers(extent: int, slots: int, tiles: Literal["padded", "divisors", "any"]) -> np.ndarray:
    """Splits of an extent, or of slightly more, over factors.

    Args:
      extent: what is to be covered.
      slots: number of factors.
      tiles: ``divisors``: products that are the extent; ``padded``: also those that are the extent
        rounded up to a multiple of 2, 4, 8, ... (at most an eighth of it); ``any``: from the
        outermost factor inwards every number of steps, over tiles that are just large enough.

    Returns:
      Shape (ways, slots), float64, outermost factor first; the product of a row is at least the
      extent.

    Example:
      >>> covers(7, 2, "any").tolist()
      [[1.0, 7.0], [2.0, 4.0], [3.0, 3.0], [4.0, 2.0], [7.0, 1.0]]
    """
    if slots == 0:
        return np.ones((1, 0))
    if tiles == "any":
        return _any(extent, slots)
    extents = _padded(extent) if tiles == "padded" else [extent]
    return np.concatenate([_exact(e, slots) for e in extents])
