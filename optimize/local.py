"""Local search: the first single move that improves is taken; at a local optimum it starts anew.

Several chains run side by side, so that their moves are priced in one batch; one chain alone is the
plain first-improvement search, which wins where evaluations are few. Each chain's next moves are
priced along with the one that is due, since a batch takes hardly longer than a single mapping; what
an improvement makes pointless is not counted.
"""

from collections.abc import Iterator

import numpy as np

from jaxcomet.optimize.moves import Moves
from jaxcomet.optimize.problem import Problem

_AHEAD = 32  # moves of a chain that are priced at once


def chains_for(evaluations: int) -> int:
    """Chains for a number of evaluations: each should reach a local optimum or two."""
    return int(np.clip(evaluations // 200, 1, 64))


def local_search(
    problem: Problem,
    rng: np.random.Generator,
    *,
    chains: int,
    starts: np.ndarray | None = None,
) -> Iterator[None]:
    """Searches until the evaluations are spent; yields after each batch of them.

    Args:
      problem: what is searched.
      rng: source of all randomness.
      chains: chains side by side.
      starts: points at which the first chains start, shape (points, 1 + axes); random ones follow.

    Raises:
      BudgetSpentError: the evaluations are spent.
    """
    moves = Moves(problem)
    waiting = [] if starts is None else list(starts)

    def fresh() -> np.ndarray:
        return waiting.pop(0) if waiting else problem.random(rng, 1)[0]

    points = np.stack([fresh() for _ in range(chains)])
    scores = problem.score(points)
    yield
    ahead: list[list[np.ndarray]] = [list(moves.neighbours(p, rng)) for p in points]
    while True:
        due = [several[-1] for several in ahead if several]
        if not all(problem.foresees(p) for p in due):
            most = max(1, min(_AHEAD, problem.left))
            problem.foresee(np.concatenate([s[-most:] for s in ahead if s]))
        ended = np.array([not several for several in ahead])
        proposed = np.stack([several.pop() if several else fresh() for several in ahead])
        found = problem.score(proposed)
        better = (found[:, 0] < scores[:, 0]) | (
            (found[:, 0] == scores[:, 0]) & (found[:, 1] < scores[:, 1])
        )
        for i in np.flatnonzero(better | ended):
            points[i], scores[i] = proposed[i], found[i]
            ahead[i] = list(moves.neighbours(points[i], rng))
        yield
