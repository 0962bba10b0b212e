"""Rivals that use no gradients: random points, and CMA-ES (package ``cma``).

Both have the same exact scores and the same counted budget as the other searches.
"""

import warnings
from collections.abc import Iterator

import numpy as np

from jaxcomet.optimize.problem import Problem
from jaxcomet.optimize.rounding import Rounding

_BATCH = 256


def random_search(problem: Problem, rng: np.random.Generator) -> Iterator[None]:
    """Scores points drawn uniformly; yields after each batch.

    Raises:
      BudgetSpentError: the evaluations are spent.
    """
    while True:
        problem.score(problem.random(rng, max(1, min(_BATCH, problem.left))))
        yield


def cma_es(problem: Problem, rng: np.random.Generator) -> Iterator[None]:
    """CMA-ES (arXiv:1604.00772) over the logs of all factors, with restarts; yields per generation.

    A point of the box [0, 1] per varying factor (and one number for the variant) is rounded to the
    nearest row of each axis. The score is the log of the objective; what does not fit is behind
    all, by its pressure. Settings are the package's own, the first step a quarter of the box.

    Raises:
      BudgetSpentError: the evaluations are spent.
    """
    import cma  # draws in scipy.stats and pyplot, a second that no other search should wait

    rounding = Rounding(problem)
    dims = max(2, rounding.dims)  # the package refuses one dimension
    while True:
        options = {
            "bounds": [0.0, 1.0],
            "seed": int(rng.integers(1, 2**31)),
            "verbose": -9,
            "verb_log": 0,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=UserWarning)  # about its own options
            strategy = cma.CMAEvolutionStrategy(rng.uniform(0.25, 0.75, dims), 0.25, options)
            while not strategy.stop():
                asked = np.array(strategy.ask())
                points = rounding.from_box(asked[:, : rounding.dims])
                scores = problem.score(points)[:, 0]
                strategy.tell(list(asked), list(np.log(scores)))
                yield
