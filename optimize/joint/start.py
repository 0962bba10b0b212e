"""The start machine with its best mappings: what a co-design is held against.

The one idea: whatever is small enough is enumerated; large spaces of mappings (a product of three
large extents has tens of millions) are searched by local moves from many points. The workloads of
an operation go into the descent with the tree that serves them best on the start machine.
"""

from dataclasses import dataclass

import numpy as np

from jaxcomet.optimize.joint.local import LocalSearch
from jaxcomet.optimize.joint.nested import Enumerator
from jaxcomet.optimize.joint.scoring import MISFIT, Aim, Joint, Points, Scores
from jaxcomet.optimize.joint.suite import Suite

_ENUMERATED = 1_000_000
"""Mappings of a workload by one tree up to which they are enumerated."""

_CHAINS = 32
_SWEEPS = 400


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start machine with its best mappings.

    Attributes:
      points: one point.
      scores: its exact results.
      proven: all mappings were priced.
      descent: the start machine with the trees that a descent takes: one for all workloads of an
        operation, so that there are few programs to compile.
    """

    points: Points
    scores: Scores
    proven: bool
    descent: Points


def best_on_start(joint: Joint, aim: Aim, rng: np.random.Generator) -> Start:
    """The best mappings of the start machine.

    Args:
      joint: what is searched; its `reference` is set.
      aim: one target.
      rng: source of all randomness.
    """
    suite, space = joint.suite, joint.space
    grid = space.start_grid[None]
    width = len(suite.items)
    values = np.full((len(suite.trees), width), np.inf)
    rows = np.zeros((len(suite.trees), width, suite.most_axes), dtype=np.int64)
    prices = np.full((3, len(suite.trees), width), np.inf)
    proven = True
    enumerator = Enumerator(joint)
    for number, tree in enumerate(suite.trees):
        sizes = enumerator.sizes(tree, grid[0])
        items = np.array(tree.items)
        small, large = items[sizes <= _ENUMERATED], items[sizes > _ENUMERATED]
        found: list[tuple[np.ndarray, Points, Scores]] = []
        if len(small):
            found.append((small, *enumerator.best_by(number, grid[0], small, aim)))
        if len(large):
            proven = False
            found.append((large, *_local(joint, number, grid[0], large, aim, rng)))
        for several, points, results in found:
            values[number, several] = joint.each(results, _log_aim(aim))[0, several]
            rows[number, several] = points.rows[0, several]
            three = np.stack([results.latency, results.energy, results.pressure])
            prices[:, number, several] = three[:, 0, several]
    best = values.argmin(axis=0)
    every = np.arange(width)
    points = Points(grid.copy(), best[None].copy(), rows[best, every][None])
    latency, energy, pressure = (x[None].copy() for x in prices[:, best, every])
    scores = Scores(latency, energy, pressure, joint.areas(grid))
    shared = _shared(suite, values, best)
    descent = Points(grid.copy(), shared[None].copy(), rows[shared, every][None])
    return Start(points=points, scores=scores, proven=proven, descent=descent)


def _shared(suite: Suite, values: np.ndarray, best: np.ndarray) -> np.ndarray:
    """One tree for all workloads that have the same trees to choose from, the best in sum."""
    found = best.copy()
    groups: dict[tuple[int, ...], list[int]] = {}
    for item, choices in enumerate(suite.choices):
        groups.setdefault(choices, []).append(item)
    for choices, items in groups.items():
        sums = values[np.ix_(choices, items)].sum(axis=1)
        if np.isfinite(sums).any() and sums.min() < MISFIT:
            found[items] = choices[int(sums.argmin())]
    return found


def _log_aim(aim: Aim) -> Aim:
    """Each workload by the logs of its own metrics."""
    return Aim(exponents=aim.exponents, limits=aim.limits, across="geomean")


def _local(
    joint: Joint,
    number: int,
    grid: np.ndarray,
    items: np.ndarray,
    aim: Aim,
    rng: np.random.Generator,
) -> tuple[Points, Scores]:
    """The best mappings by one tree that chains of local moves find."""
    suite = joint.suite
    width = len(suite.items)
    several = Points(
        np.repeat(grid[None], _CHAINS, axis=0),
        np.tile(np.array([c[0] for c in suite.choices]), (_CHAINS, 1)),
        np.zeros((_CHAINS, width, suite.most_axes), dtype=np.int64),
    )
    several.tree[:, items] = number
    several.rows = joint.random_rows(rng, several.grid, several.tree)
    points, scores = joint.fitted(several, joint.score(several))
    wide = _log_aim(aim.take(np.zeros(_CHAINS, dtype=np.int64)))
    search = LocalSearch(joint, points, scores, wide, rng, trees=False)
    others = np.setdiff1d(np.arange(width), items)
    search.freeze(others)
    for _ in range(_SWEEPS):
        if search.settled().all():
            break
        search.sweep(np.arange(_CHAINS))
    each = joint.each(search.scores, wide)
    chain = each.argmin(axis=0)
    item = np.arange(width)
    best = Points(grid[None].copy(), search.points.tree[:1].copy(), search.points.rows[:1].copy())
    best.rows[0] = search.points.rows[chain, item]
    found = search.scores.take([0])
    for name in ("latency", "energy", "pressure"):
        getattr(found, name)[0] = getattr(search.scores, name)[chain, item]
    return best, found
