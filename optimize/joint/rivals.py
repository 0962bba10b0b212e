"""Searches without gradients: random points, CMA-ES over everything, CMA-ES around enumeration.

The one idea: they see the same exact scores, counted the same way, and are given the same help:
machines are brought within their budgets and tiles are made to fit before a point is judged.
"""

import warnings
from collections.abc import Callable, Iterator

import numpy as np

from jaxcomet.optimize.joint.nested import Enumerator
from jaxcomet.optimize.joint.scoring import Aim, Joint, Points

_BATCH = 32


def random_search(joint: Joint, aim: Aim, rng: np.random.Generator) -> Iterator[None]:
    """Scores points drawn uniformly, for one target after the other; yields after each batch."""
    targets = len(aim.limits)
    turn = 0
    while True:
        rows = (turn + np.arange(_BATCH)) % targets
        turn += _BATCH
        points = joint.random(rng, aim.limits[rows])
        joint.fitted(points, joint.score(points))
        yield


def _strategy(dims: int, rng: np.random.Generator) -> object:
    import cma  # draws in scipy.stats and pyplot, a second that no other search should wait

    options = {
        "bounds": [0.0, 1.0],
        "seed": int(rng.integers(1, 2**31)),
        "verbose": -9,
        "verb_log": 0,
        # a full matrix of thousands of numbers would take longer than the model
        "CMA_diagonal": dims > 500,
    }
    start = rng.uniform(0.25, 0.75, dims)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)  # about its own options
        return cma.CMAEvolutionStrategy(start, 0.25, options)


def _generations(
    dims: int, rng: np.random.Generator, score: Callable[[np.ndarray], np.ndarray]
) -> Iterator[None]:
    """CMA-ES (arXiv:1604.00772) in the box [0, 1], with restarts; yields per generation."""
    dims = max(2, dims)  # the package refuses one dimension
    while True:
        strategy = _strategy(dims, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=UserWarning)
            while not strategy.stop():  # pyright: ignore[reportAttributeAccessIssue]
                asked = np.array(strategy.ask())  # pyright: ignore[reportAttributeAccessIssue]
                strategy.tell(list(asked), list(score(asked)))  # pyright: ignore[reportAttributeAccessIssue]
                yield


def cma_es(joint: Joint, aim: Aim, rng: np.random.Generator) -> Iterator[None]:
    """CMA-ES over all machine numbers and all logs of factors, for the first target."""
    space, suite = joint.space, joint.suite
    single = aim.take(slice(0, 1))
    own = [suite.trees[c[0]] for c in suite.choices]
    columns = [[a.tables.columns for a in tree.axes] for tree in own]
    choices = [i for i, c in enumerate(suite.choices) if len(c) > 1]
    if choices:
        # factors of other trees have the same numbers where their axes are alike; else the first
        # ones of what is there
        most = max(sum(a.tables.columns for a in t.axes) for t in suite.trees)
    else:
        most = max(sum(c) for c in columns)
    dims = len(space.free) + len(own) * most + len(choices)

    def score(asked: np.ndarray) -> np.ndarray:
        points = decode(asked)
        limits = np.repeat(single.limits, len(asked), axis=0)
        points.grid = space.within(points.grid, limits)
        points = joint.moved(points, points.grid)
        points, scores = joint.fitted(points, joint.score(points))
        return joint.total(scores, single.take(np.zeros(len(asked), dtype=np.int64)))

    def decode(asked: np.ndarray) -> Points:
        count = len(asked)
        at = len(space.free)
        grid = np.minimum((asked[:, :at] * space.sizes).astype(np.int64), space.sizes - 1)
        grid = space.within(grid, np.repeat(single.limits, count, axis=0))
        tree = np.stack([np.full(count, c[0]) for c in suite.choices], axis=1)
        for place, item in enumerate(choices):
            several = np.array(suite.choices[item])
            picked = asked[:, dims - len(choices) + place] * len(several)
            tree[:, item] = several[np.minimum(picked.astype(np.int64), len(several) - 1)]
        tables = joint.tables(grid, tree)
        rows = np.zeros((count, len(own), suite.most_axes), dtype=np.int64)
        for item in range(len(own)):
            numbers = asked[:, at + item * most : at + (item + 1) * most]
            for number in np.unique(tree[:, item]):
                lanes = np.flatnonzero(tree[:, item] == number)
                column = 0
                for k, axis in enumerate(suite.trees[number].axes):
                    table = tables[lanes, item, k]
                    width = axis.tables.columns
                    logs = numbers[lanes, column : column + width]
                    logs = logs * axis.tables.extent(table)[:, None]
                    rows[lanes, item, k] = axis.tables.nearest(table, logs)
                    column += width
        return Points(grid, tree, rows)

    return _generations(dims, rng, score)


def nested(
    joint: Joint, aim: Aim, rng: np.random.Generator, enumerator: Enumerator
) -> Iterator[None]:
    """CMA-ES over the machine numbers, with all mappings enumerated on each machine."""
    space = joint.space
    single = aim.take(slice(0, 1))
    known: dict[bytes, float] = {}

    def score(asked: np.ndarray) -> np.ndarray:
        grid = np.minimum(
            (asked[:, : len(space.free)] * space.sizes).astype(np.int64), space.sizes - 1
        )
        grid = space.within(grid, np.repeat(single.limits, len(grid), axis=0))
        new = {g.tobytes(): g for g in grid if g.tobytes() not in known}
        if new:
            machines = np.stack(list(new.values()))
            one = single.take(np.zeros(len(machines), dtype=np.int64))
            totals = joint.total(enumerator.best(machines, one)[1], one)
            known.update(zip(new, totals.tolist(), strict=True))
        return np.array([known[g.tobytes()] for g in grid])

    return _generations(len(space.free), rng, score)


def enumerate_machines(
    joint: Joint, aim: Aim, enumerator: Enumerator, batch: int = 64
) -> Iterator[None]:
    """All machines within the widest budgets, each with all mappings: what is best is proven."""
    space = joint.space
    widest = aim.limits.max(axis=0)
    for start in range(0, space.size, 4096):
        index = np.arange(start, min(start + 4096, space.size))
        grid = np.stack(np.unravel_index(index, tuple(space.sizes)), axis=1)
        grid = grid[space.excess(grid, np.repeat(widest[None], len(grid), 0)) <= 1.0]
        for at in range(0, len(grid), batch):
            machines = grid[at : at + batch]
            for exponents in np.unique(aim.exponents, axis=0):
                several = Aim(
                    exponents=np.repeat(exponents[None], len(machines), 0),
                    limits=np.repeat(widest[None], len(machines), 0),
                    across=aim.across,
                )
                enumerator.best(machines, several)
            yield
