"""The start machine with its best mappings: what a co-design is held against.

The one idea: whatever is small enough is enumerated; large spaces of mappings (a product of three
large extents has tens of millions) are searched by local moves from many points. Each workload
takes the tree that is best on the start machine into the descent.
"""

from dataclasses import dataclass

import numpy as np

from jaxcomet.optimize.joint.local import LocalSearch
from jaxcomet.optimize.joint.nested import Enumerator
from jaxcomet.optimize.joint.scoring import Aim, Joint, Points, Scores

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
    """

    points: Points
    scores: Scores
    proven: bool


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
    least = np.full(width, np.inf)
    best = Points(
        grid.copy(),
        np.array([[c[0] for c in suite.choices]]),
        np.zeros((1, width, suite.most_axes), dtype=np.int64),
    )
    scores = Scores(
        np.full((1, width), np.inf),
        np.full((1, width), np.inf),
        np.full((1, width), np.inf),
        joint.areas(grid),
    )
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
            each = joint.each(results, _log_aim(aim))[0]
            for item in several:
                if each[item] < least[item]:
                    least[item] = each[item]
                    best.tree[0, item] = number
                    best.rows[0, item] = points.rows[0, item]
                    for name in ("latency", "energy", "pressure"):
                        getattr(scores, name)[0, item] = getattr(results, name)[0, item]
    return Start(points=best, scores=scores, proven=proven)


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
