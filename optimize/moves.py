"""Single moves between mappings: from one slot of a dimension to another, or to another tree.

The one idea: rows of a table of splits that differ in two factors alone form lines; a move goes to
the next row on a line, or to the one at about twice or half the factor. On exact divisors of a
power of two these are the moves of one prime factor; tables with tiles of any size have moves too.
"""

import itertools

import numpy as np

from jaxcomet.optimize.problem import Problem
from jaxcomet.optimize.space import Axis

_VARIANTS = 8  # other trees tried from one point, if there are more


class Lines:
    """The lines of a table of splits."""

    def __init__(self, axis: Axis) -> None:
        """Sorts the table along each of its lines."""
        splits = axis.splits
        varying = [c for c in range(splits.shape[1]) if np.ptp(splits[:, c]) > 0]
        self._pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        for first, second in itertools.combinations(varying, 2):
            others = [c for c in range(splits.shape[1]) if c not in (first, second)]
            columns = [splits[:, second], splits[:, first], *(splits[:, c] for c in others)]
            order = np.lexsort(columns)
            ordered = splits[order]
            new = np.ones(len(order), dtype=bool)
            new[1:] = (ordered[1:][:, others] != ordered[:-1][:, others]).any(axis=1)
            starts = np.flatnonzero(new)
            line = np.cumsum(new) - 1
            stops = np.append(starts[1:], len(order))
            place = np.empty(len(order), dtype=np.int64)
            place[order] = np.arange(len(order))
            self._pairs.append((order, place, starts[line], stops[line], ordered[:, first]))

    def neighbours(self, row: int) -> np.ndarray:
        """Rows a single move away, each once, ascending."""
        found: set[int] = set()
        for order, place, starts, stops, values in self._pairs:
            at = place[row]
            start, stop = starts[at], stops[at]
            line = values[start:stop]
            for wanted in (0.5 * values[at], 2.0 * values[at]):
                near = min(int(np.searchsorted(line, wanted)), len(line) - 1)
                found.add(int(order[start + near]))
            if at > start:
                found.add(int(order[at - 1]))
            if at + 1 < stop:
                found.add(int(order[at + 1]))
        found.discard(row)
        return np.array(sorted(found), dtype=np.int64)


class Moves:
    """All single moves from the points of a problem."""

    def __init__(self, problem: Problem) -> None:
        """Prepares the tables of the problem's axes."""
        self._variants = len(problem.parts)
        self._lines = [Lines(axis) for axis in problem.parts[0].space.axes]

    def neighbours(self, point: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Points a single move away, in random order, shape (neighbours, 1 + axes)."""
        found = []
        others = [v for v in range(self._variants) if v != point[0]]
        if len(others) > _VARIANTS:
            others = rng.choice(others, _VARIANTS, replace=False)
        for variant in others:
            found.append((0, variant))
        for axis, lines in enumerate(self._lines, 1):
            found += [(axis, row) for row in lines.neighbours(int(point[axis]))]
        points = np.tile(point, (len(found), 1))
        for i, (column, value) in enumerate(found):
            points[i, column] = value
        return rng.permutation(points)
