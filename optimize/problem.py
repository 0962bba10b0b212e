"""What the searches that do not enumerate see: points, and their exact scores, counted.

The one idea: a point is the number of a tree and, for each axis of the space, the number of a row.
The trees of a problem are variants (loop orders, algorithms, bindings) over the same axes, so that
a move may change one as it changes a tile. Every score is the exact model's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxcomet.optimize.pricing import Objective, Part, Prices, front_of, objective_keys

_FORESEEN = 1 << 14  # prices kept for points that may be scored
_MISFIT = 1e200  # puts what does not fit behind all that does, by its pressure


class BudgetSpentError(Exception):
    """The evaluations are spent; the best so far is in the problem."""


@dataclass
class Problem:
    """One part of a tree, in several variants, to be searched.

    Attributes:
      parts: the variants; their axes are equal.
      objective: what is minimised.
      with_front: keep the mappings that no other beats in latency and energy.
      limit: evaluations allowed.
      evaluated: evaluations made.
      feasible: those of a mapping that fits.
      best: (score, second metric) of the best point.
      point: the best point: variant, then the row of each axis.
      front: latency, energy and point of the front.
    """

    parts: Sequence[Part]
    objective: Objective
    with_front: bool = False
    limit: int = 0
    evaluated: int = 0
    feasible: int = 0
    best: tuple[float, float] = (np.inf, np.inf)
    point: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    front: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    _foreseen: dict[bytes, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Values of each column of a point: variants, then rows of each axis."""
        return (len(self.parts), *self.parts[0].sizes)

    @property
    def left(self) -> int:
        """Evaluations that are left."""
        return self.limit - self.evaluated

    def random(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Points drawn uniformly, shape (count, 1 + axes)."""
        return np.stack([rng.integers(0, n, count) for n in self.sizes], axis=1)

    def spend(self, count: int) -> None:
        """Counts evaluations that are not scores: gradients of the relaxed model.

        Raises:
          BudgetSpentError: fewer are left; they are spent.
        """
        taken = min(count, self.left)
        self.evaluated += taken
        if taken < count:
            raise BudgetSpentError

    def score(self, points: np.ndarray) -> np.ndarray:
        """Exact scores: the objective and the second metric; what does not fit is behind all.

        Args:
          points: shape (points, 1 + axes).

        Returns:
          Shape (points, 2), to be compared in lexicographic order.

        Raises:
          BudgetSpentError: fewer evaluations were left; those were made and are in `best`.
        """
        taken = points[: max(0, self.left)]
        scores = self._scored(taken) if len(taken) else np.empty((0, 2))
        self.evaluated += len(taken)
        if len(taken) < len(points):
            raise BudgetSpentError
        return scores

    def foresee(self, points: np.ndarray) -> None:
        """Prices points in one batch that are likely to be scored next; counted only then."""
        if len(self._foreseen) > _FORESEEN:
            self._foreseen.clear()  # mostly what no chain came to
        new = [p for p in points if p.tobytes() not in self._foreseen]
        if new:
            prices = self.price(np.stack(new))
            for point, *found in zip(new, *prices, strict=True):
                self._foreseen[point.tobytes()] = tuple(found)

    def foresees(self, point: np.ndarray) -> bool:
        """Whether a point has been priced ahead of its score."""
        return point.tobytes() in self._foreseen

    def _scored(self, points: np.ndarray) -> np.ndarray:
        self.foresee(points)
        prices = Prices(*np.array([self._foreseen[p.tobytes()] for p in points]).T)
        for point in points:
            self._foreseen.pop(point.tobytes(), None)
        fits = prices.pressure <= 1.0
        self.feasible += int(fits.sum())
        first, second = objective_keys(self.objective, prices.latency_cycles, prices.energy_pj)
        first = np.where(fits, first, _MISFIT * prices.pressure)
        at = np.lexsort((second, first))[0]
        if (first[at], second[at]) < self.best:
            self.best = (float(first[at]), float(second[at]))
            self.point = points[at].copy()
        if self.with_front and fits.any():
            self._merge(prices, fits, points)
        return np.stack([first, second], axis=1)

    def _merge(self, prices: Prices, fits: np.ndarray, points: np.ndarray) -> None:
        latency, energy, kept = prices.latency_cycles[fits], prices.energy_pj[fits], points[fits]
        if self.front is not None:
            latency = np.concatenate([self.front[0], latency])
            energy = np.concatenate([self.front[1], energy])
            kept = np.concatenate([self.front[2], kept])
        first = front_of(latency, energy)
        self.front = latency[first], energy[first], kept[first]

    @property
    def fits(self) -> bool:
        """Whether a mapping was found that fits."""
        return self.best[0] < _MISFIT

    def price(self, points: np.ndarray) -> Prices:
        """Exact prices of points, not counted."""
        found = [np.empty(len(points)) for _ in range(3)]
        for variant in np.unique(points[:, 0]):
            chosen = points[:, 0] == variant
            prices = self.parts[variant].price(points[chosen, 1:])
            for array, values in zip(found, prices, strict=True):
                array[chosen] = values
        return Prices(*found)
