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

from jaxcomet.optimize.joint.local import LocalSearch, local_search
from jaxcomet.optimize.joint.relaxation import ROUNDED, Relaxation, Seeds
from jaxcomet.optimize.joint.scoring import Aim, Joint, Points, Scores

STEPS = 60
"""Steps of a seed."""

_DRAWN = 2  # random points for each seed that is kept as a start


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
    start: Points | None = None,
    drawn: int = _DRAWN,
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
      drawn: random points for each seed.
    """
    rng = np.random.default_rng([*key, 0])
    target = np.arange(seeds) % len(targets.limits)
    aim = targets.take(target)
    several = []
    for _ in range(drawn):
        points = joint.random(rng, aim.limits)
        points.tree[:] = tree
        points.rows = joint.random_rows(rng, points.grid, points.tree)
        scores = joint.score(points)
        several.append((*joint.fitted(points, scores),))
    points, scores = several[0]
    totals = joint.total(scores, aim)
    for more, found in several[1:]:
        others = joint.total(found, aim)
        better = np.flatnonzero(others < totals)
        points.put(better, more.take(better))
        scores.put(better, found.take(better))
        totals[better] = others[better]
    if start is not None and seeds > 1:
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


def polish(
    joint: Joint, targets: Aim, state: Descent, chains: int, key: list[int]
) -> Iterator[None]:
    """Local moves from the best rounded points of each target; yields per joint evaluation."""
    rng = np.random.default_rng([*key, 1 << 20])
    picked: list[int] = []
    count = len(targets.limits)
    each = max(1, chains // count)
    for target in range(count):
        own = np.flatnonzero(state.target == target)
        order = own[np.argsort(state.totals[own], kind="stable")]
        seen: list[bytes] = []
        for seed in order:
            point = state.best.take([seed])
            name = point.grid.tobytes() + point.rows.tobytes()
            if name not in seen and len(seen) < each:
                seen.append(name)
                picked.append(int(seed))
    rows = np.array(picked)
    aim = targets.take(state.target[rows])
    search = LocalSearch(joint, state.best.take(rows), state.scores.take(rows), aim, rng)
    return local_search(search, joint, aim.limits, rng, restarts=False)
