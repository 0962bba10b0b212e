"""The best points so far, for several targets at once, and the front of all that was seen.

The one idea: a target is an objective with budgets. Every point that is scored anywhere is held
against every target, so that targets learn from one another at no cost. Only points that fit, on
machines within the budgets, are kept.
"""

from dataclasses import dataclass, field

import moocore
import numpy as np

from jaxcomet.optimize.joint.scoring import Aim, Joint, Points, Scores, joined


@dataclass
class Incumbents:
    """The best point of each target.

    Attributes:
      joint: what is searched.
      targets: what is minimised, one row per target.
      totals: least total of each target, inf where nothing fits yet.
      points: the best points; of a target without one, any.
      scores: their exact results.
      history: (joint evaluations, totals of all targets) each time one got better.
      front: (latency, energy, area) of points that none beats in all three.
      front_points: these points.
      nearest: the point nearest to fitting, while none has fitted.
    """

    joint: Joint
    targets: Aim
    totals: np.ndarray
    points: Points | None = None
    scores: Scores | None = None
    history: list[tuple[float, tuple[float, ...]]] = field(default_factory=list)
    front: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    front_points: Points | None = None
    nearest: tuple[Points, Scores] | None = None

    @classmethod
    def empty(cls, joint: Joint, targets: Aim) -> "Incumbents":
        """Nothing has been seen."""
        return cls(joint, targets, np.full(len(targets.limits), np.inf))

    def see(self, points: Points, scores: Scores) -> None:
        """Keeps what is better than what was seen before."""
        fits = np.flatnonzero(scores.fits)
        if not len(fits):
            if self.points is None:
                self._see_nearest(points, scores)
            return
        points, scores = points.take(fits), scores.take(fits)
        uses = np.stack(
            [
                np.broadcast_to(np.asarray(u), len(points))
                for u in self.joint.space.uses(self.joint.space.machines(points.grid))
            ]
            or [np.zeros(len(points))],
            axis=1,
        )
        count = len(self.totals)
        better = False
        for target in range(count):
            rows = np.full(len(points), target)
            totals = self.joint.total(scores, self.targets.take(rows))
            limits = self.targets.limits[target]
            if len(limits):
                totals = np.where((uses <= limits).all(axis=1), totals, np.inf)
            at = int(totals.argmin())
            if totals[at] < self.totals[target]:
                better = True
                self.totals[target] = totals[at]
                if self.points is None or self.scores is None:
                    first = np.zeros(count, dtype=np.int64)
                    self.points, self.scores = points.take(first), scores.take(first)
                self.points.put([target], points.take([at]))
                self.scores.put([target], scores.take([at]))
        if better:
            self.history.append((self.joint.evaluated, tuple(self.totals.tolist())))
        self._extend_front(points, scores, uses)

    def _see_nearest(self, points: Points, scores: Scores) -> None:
        most = scores.pressure.max(axis=1)
        at = int(most.argmin())
        if self.nearest is None or most[at] < self.nearest[1].pressure.max():
            self.nearest = (points.take([at]), scores.take([at]))

    def _extend_front(self, points: Points, scores: Scores, uses: np.ndarray) -> None:
        widest = self.targets.limits.max(axis=0)
        inside = np.flatnonzero((uses <= widest).all(axis=1)) if len(widest) else slice(None)
        points, scores = points.take(inside), scores.take(inside)
        if not len(points):
            return
        found = np.stack([*metrics(self.joint, scores, self.targets), scores.area], axis=1)
        kept = moocore.is_nondominated(found, keep_weakly=False)
        found, points = found[kept], points.take(kept)
        if self.front_points is not None:
            found = np.concatenate([self.front, found])
            points = joined([self.front_points, points])
            kept = moocore.is_nondominated(found, keep_weakly=False)
            found, points = found[kept], points.take(kept)
        order = np.lexsort(found.T[::-1])
        self.front, self.front_points = found[order], points.take(order)


def metrics(joint: Joint, scores: Scores, targets: Aim) -> tuple[np.ndarray, np.ndarray]:
    """Latency and energy over workloads: sums, or geometric means."""
    weights = joint.suite.weights
    if targets.across == "total":
        return scores.latency @ weights, scores.energy @ weights
    if targets.across == "geomean":
        return np.exp(np.log(scores.latency) @ weights), np.exp(np.log(scores.energy) @ weights)
    return (
        (scores.latency / joint.reference[0]).max(axis=1),
        (scores.energy / joint.reference[1]).max(axis=1),
    )
