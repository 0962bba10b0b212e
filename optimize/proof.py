"""Prices every mapping of every way that may hold the best one, which proves the best.

The one idea: ways come in the order of their lower bounds, and one whose bound is above the best
mapping so far is skipped, because it cannot hold a better one. Of two ways of a strategy the later
one is left as soon as it is known to hold none better than the earlier one's best; of every
strategy the best mapping is found so.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jaxcomet.optimize.enumeration import Best, Shared, enumerate_way
from jaxcomet.optimize.pruning import BeatenError
from jaxcomet.optimize.task import Answer, Clock, Counter, Task, answer
from jaxcomet.optimize.ways import Way

_THREADS = 2


def enumerate_ways(
    task: Task, clock: Clock, counter: Counter, most: float | int = np.inf
) -> Answer:
    """Prices all ways of a task; see the module docstring.

    Args:
      task: what is searched.
      clock: when to end; the best so far is returned then.
      counter: counts the mappings priced; those of skipped ways too, which are done with.
      most: mappings that may be priced.

    Raises:
      TooManyError: it takes more.
    """

    def price(way: Way) -> Best:
        return enumerate_way(
            task.workload,
            task.machine,
            way,
            conventions=task.conventions,
            objective=task.objective,
            scope=task.scope,
            progress=counter.add,
            stop=clock.over,
            above=own.get(way.strategy.name, (np.inf, np.inf)),
            most=most - priced,
            shared=shared,
        )

    results: list[tuple[Way, float, Best | None]] = []
    skipped: dict[int, int] = {}
    own: dict[str, tuple[float, float]] = {}  # best of each strategy
    history: list[tuple[int, float]] = []
    best, priced = (np.inf, np.inf), 0
    shared = Shared()
    waiting = list(zip(task.ways, task.bounds, strict=True))
    # two at a time, because one compiles while another is priced; what is skipped depends on whole
    # rounds alone, not on which of the two is faster
    with ThreadPoolExecutor(_THREADS) as pool:
        while waiting and not (clock.over() and results):
            possible = []
            while waiting and len(possible) < _THREADS:
                way, bound = waiting.pop(0)
                if bound > best[0]:
                    skipped[len(results)] = 0
                    results.append((way, bound, None))
                    counter.add(way.size)
                else:
                    possible.append((way, bound))
            futures = [pool.submit(price, way) for way, _ in possible]
            for (way, bound), future in zip(possible, futures, strict=True):
                try:
                    found = future.result()
                except BeatenError as error:
                    skipped[len(results)] = error.evaluated
                    results.append((way, bound, None))
                    priced += error.evaluated
                    continue
                results.append((way, bound, found))
                name = way.strategy.name
                own[name] = min(found.key, own.get(name, (np.inf, np.inf)))
                for count, value in found.history:
                    if not history or value < history[-1][1]:
                        history.append((priced + count, value))
                priced += found.evaluated
                best = min(best, found.key)
    results += [(way, bound, None) for way, bound in waiting]
    complete = all(
        i in skipped or (b is not None and b.proven) for i, (*_, b) in enumerate(results)
    )
    return answer(results, skipped, history, "complete" if complete else clock.why())
