"""Co-design by gradients: many seeds descend the relaxed joint model, then local moves finish.

The one idea: every few steps every seed is rounded to a machine on the grid with whole mappings,
made to fit and scored by the exact model; what is kept is the best of those. Each round draws what
it needs from a generator of its own, so that a run that was cut off goes on from any round as if it
had not been.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxcomet.optimize.joint.local import LocalSearch, local_search, with_best_trees
from jaxcomet.optimize.joint.relaxation import ROUNDED, Relaxation, Seeds
from jaxcomet.optimize.joint.scoring import Aim, Joint, Points, Scores, joined

_DRAWN = 2  # random points for each seed that is kept as a start
_KICKS = 8  # of a target's best machine without success before its chains end


@dataclass
class Descent:
    """Where a descent stands; all arrays, so that it can be put away and taken up again.

    Attributes:
      seeds: state of the seeds.
      round: rounds made.
      rounds: rounds to make.
      best: best rounded point of each seed.
      scores: their exact results.
      totals: their totals, inf where none fitted.
      target: number of the target of each seed.
    """

    seeds: Seeds
    round: int
    rounds: int
    best: Points
    scores: Scores
    totals: np.ndarray
    target: np.ndarray


def begin(
    joint: Joint,
    relaxation: Relaxation,
    targets: Aim,
    tree: np.ndarray,
    *,
    seeds: int,
    steps: int,
    key: list[int],
    start: Points,
) -> Descent:
    """Seeds at random machines, those that are good among some more.

    Args:
      joint: what is searched.
      relaxation: its relaxed model.
      targets: what is minimised; seeds take turns.
      tree: number of the tree of each workload.
      seeds: how many.
      steps: steps of each.
      key: numbers that all randomness comes from.
      start: points that some of the seeds start from.
    """
    rng = np.random.default_rng([*key, 0])
    target = np.arange(seeds) % len(targets.limits)
    aim = targets.take(target)
    several = []
    for _ in range(_DRAWN):
        points = joint.random(rng, aim.limits)
        points.tree[:] = tree
        points.rows = joint.random_rows(rng, points.grid, points.tree)
        scores = joint.score(points)
        several.append(joint.fitted(points, scores))
    points, scores = several[0]
    totals = joint.total(scores, aim)
    for more, found in several[1:]:
        others = joint.total(found, aim)
        better = np.flatnonzero(others < totals)
        points.put(better, more.take(better))
        scores.put(better, found.take(better))
        totals[better] = others[better]
    if seeds > 1:
        # one seed in eight starts from what is known
        some = np.arange(0, seeds, 8)
        known = start.take(np.zeros(len(some), dtype=np.int64))
        known = joint.moved(known, joint.space.within(known.grid, aim.limits[some]))
        found = joint.score(known)
        points.put(some, known)
        scores.put(some, found)
        totals[some] = joint.total(found, aim.take(some))
    return Descent(
        seeds=relaxation.start(points, aim),
        round=0,
        rounds=max(1, steps // ROUNDED),
        best=points,
        scores=scores,
        totals=totals,
        target=target,
    )


def advance(
    joint: Joint, relaxation: Relaxation, targets: Aim, state: Descent, key: list[int]
) -> None:
    """One round: a few steps of all seeds, which are then rounded and scored exactly."""
    state.round += 1
    steps = state.rounds * ROUNDED
    at = (state.round - 1) * ROUNDED + np.arange(ROUNDED)
    rates = 0.1 + 0.45 * (1.0 + np.cos(np.pi * at / steps))
    state.seeds, finite = relaxation.advance(state.seeds, rates)
    joint.lanes += ROUNDED * len(finite) * len(joint.suite.items)
    aim = targets.take(state.target)
    points = relaxation.points(joint, state.seeds)
    points, scores = joint.fitted(points, joint.score(points))
    totals = joint.total(scores, aim)
    better = np.flatnonzero(totals < state.totals)
    state.best.put(better, points.take(better))
    state.scores.put(better, scores.take(better))
    state.totals[better] = totals[better]
    dead = np.flatnonzero(~finite)
    if len(dead):
        rng = np.random.default_rng([*key, state.round])
        fresh = joint.random(rng, aim.limits[dead])
        fresh.tree[:] = state.best.tree[dead]
        fresh.rows = joint.random_rows(rng, fresh.grid, fresh.tree)
        new = relaxation.start(fresh, aim.take(dead))
        state.seeds = jax.tree.map(lambda old, n: _with(old, dead, n), state.seeds, new)


def _with(old: Any, index: np.ndarray, new: Any) -> np.ndarray:
    found = np.array(old)
    found[index] = new
    return found


class _Renewal:
    """Where a chain that is stuck goes on: the next seed on another machine, then kicks.

    A kick moves a few numbers of the machine that is the best for the target so far.
    """

    def __init__(
        self,
        joint: Joint,
        targets: Aim,
        state: Descent,
        start: Points,
        rng: np.random.Generator,
    ) -> None:
        """Orders the seeds of each target, the best on each machine only."""
        self._joint = joint
        self._start = start
        self._targets = targets
        self._state = state
        self._rng = rng
        self._queues: list[list[int]] = []
        for target in range(len(targets.limits)):
            own = np.flatnonzero(state.target == target)
            order = own[np.argsort(state.totals[own], kind="stable")]
            machines: dict[bytes, int] = {}
            for seed in order.tolist():
                machines.setdefault(state.best.grid[seed].tobytes(), seed)
            self._queues.append(list(machines.values()))
        self.target = np.empty(0, dtype=np.int64)
        self._left = np.full(len(targets.limits), _KICKS)
        self._best = np.full(len(targets.limits), np.inf)
        self._known: dict[int, Points] = {}
        self._searched: dict[int, bytes] = {}

    def first(self, chains: int) -> tuple[Points, Scores]:
        """The first points of all chains, as many for each target."""
        picked: list[int] = []
        for queue in self._queues:
            picked += [queue.pop(0) for _ in range(min(chains, len(queue)))]
            del queue[chains // 2 :]
        self.target = self._state.target[picked]
        return self._seeds(picked)

    def _seeds(self, picked: list[int]) -> tuple[Points, Scores]:
        """Best points of seeds; workloads keep the start's mappings where those are better."""
        joint = self._joint
        points, scores = self._state.best.take(picked), self._state.scores.take(picked)
        aim = self._targets.take(self._state.target[picked])
        known = joint.moved(self._start.take(np.zeros(len(picked), dtype=np.int64)), points.grid)
        known, found = joint.fitted(known, joint.score(known))
        better = joint.each(found, aim, scores) < joint.each(scores, aim) - 1e-12
        points.tree[better], points.rows[better] = known.tree[better], known.rows[better]
        scores.latency[better], scores.energy[better] = found.latency[better], found.energy[better]
        scores.pressure[better] = found.pressure[better]
        joint.look(points, scores)
        return points, scores

    def __call__(self, over: np.ndarray, search: LocalSearch) -> tuple[np.ndarray, Points | None]:
        """Chains to go on, and their new points.

        Args:
          over: chains that are stuck.
          search: all chains.
        """
        totals = self._joint.total(search.scores, search.aim)
        chains: list[int] = []
        several: list[Points] = []
        for chain in over.tolist():
            target = int(self.target[chain])
            own = np.flatnonzero(self.target == target)
            best = int(own[totals[own].argmin()])
            if totals[best] < self._best[target] - 1e-12:
                self._best[target], self._left[target] = totals[best], _KICKS
                self._known[target] = search.points.take([best])
            grown = self._with_other_trees(search, best, target) if chain == best else None
            if grown is not None:
                several.append(grown)
            elif self._queues[target]:
                several.append(self._seeds([self._queues[target].pop(0)])[0])
            elif self._left[target] > 0:
                self._left[target] -= 1
                several.append(self._kicked(target))
            else:
                continue
            chains.append(chain)
        return np.array(chains, dtype=np.int64), joined(several) if several else None

    def _with_other_trees(self, search: LocalSearch, chain: int, target: int) -> Points | None:
        """The best point of a target with better trees, once for each machine that is the best."""
        points = search.points.take([chain])
        if points.grid.tobytes() == self._searched.get(target):
            return None
        self._searched[target] = points.grid.tobytes()
        aim = search.aim.take([chain])
        scores = search.scores.take([chain])
        found, better = with_best_trees(self._joint, points, scores, aim, self._rng)
        changed = (found.tree != points.tree).any()
        return found if changed and self._joint.total(better, aim)[0] < self._best[target] else None

    def _kicked(self, target: int) -> Points:
        joint, rng = self._joint, self._rng
        points = self._known[target]
        grid = points.grid.copy()
        for _ in range(int(rng.integers(2, 5))):
            number = int(rng.integers(grid.shape[1]))
            step = int(rng.choice((-2, -1, 1, 2)))
            grid[0, number] = np.clip(grid[0, number] + step, 0, joint.space.sizes[number] - 1)
        limits = self._targets.limits[target]
        return joint.moved(points, joint.space.within(grid, limits))


def polish(
    joint: Joint,
    targets: Aim,
    state: Descent,
    start: Points,
    chains: int,
    key: list[int],
    *,
    wide: int = 1,
) -> Iterator[None]:
    """Local moves from the best rounded points of each target; yields per joint evaluation.

    Args:
      joint: what is searched.
      targets: what is minimised.
      state: a descent that has ended.
      start: the start machine with its best mappings.
      chains: for each target.
      key: numbers that all randomness comes from.
      wide: moves of a machine that are scored at once.
    """
    rng = np.random.default_rng([*key, 1 << 20])
    renewal = _Renewal(joint, targets, state, start, rng)
    points, scores = renewal.first(chains)
    aim = targets.take(renewal.target)
    search = LocalSearch(joint, points, scores, aim, rng)
    return local_search(search, joint, renewal, wide=wide)
