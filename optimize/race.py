"""Searches spaces that are too large to enumerate: many ways, one budget.

The one idea: ways compete. All start with a small share of the evaluations; the better half goes on
with twice as many each, until one or two are left (successive halving, arXiv:1502.07943). Ways
whose spaces have the same axes are variants of one problem. Parts of a tree that share no factor
are problems of their own which one evaluation, of a whole mapping, prices side by side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jaxcomet.optimize.baselines import cma_es, random_search
from jaxcomet.optimize.descent import descend
from jaxcomet.optimize.enumeration import Best, Searched, best_sum, exact_cost
from jaxcomet.optimize.local import chains_for, local_search
from jaxcomet.optimize.pricing import Part, pressure_of
from jaxcomet.optimize.problem import BudgetSpentError, Problem
from jaxcomet.optimize.task import Answer, Clock, Counter, Task, answer
from jaxcomet.optimize.ways import Way

METHODS = ("gradient", "local", "random", "cma")


def method(
    name: str, problem: Problem, rng: np.random.Generator, evaluations: int, seeds: int
) -> Iterator[None]:
    """One search of a problem, by name.

    Args:
      name: one of `METHODS`.
      problem: what is searched.
      rng: source of all randomness.
      evaluations: that it may make, from those made so far on.
      seeds: most seeds that descend at once.
    """
    match name:
        case "random":
            return random_search(problem, rng)
        case "local":
            return local_search(problem, rng, chains=chains_for(evaluations))
        case "cma":
            return cma_es(problem, rng)
        case "gradient":
            return gradient_then_local(problem, rng, evaluations, seeds)
    raise ValueError(name)


def seeds_for(evaluations: int, most: int) -> int:
    """Seeds at once for a number of evaluations: few sizes, because each is a program."""
    return min(most, 2 if evaluations < 400 else 8 if evaluations < 4_000 else 32)


def gradient_then_local(
    problem: Problem, rng: np.random.Generator, evaluations: int, seeds: int
) -> Iterator[None]:
    """Half of the evaluations to seeds that descend, the rest to local search from the best."""
    until = problem.evaluated + evaluations // 2
    kept: list[np.ndarray] = [problem.point] if problem.fits else []
    for _ in descend(problem, rng, seeds=seeds_for(evaluations, seeds), kept=kept):
        yield
        if problem.evaluated >= until:
            break
    starts = [problem.point] if len(problem.point) else []
    starts += [p for p in kept if not any(np.array_equal(p, s) for s in starts)]
    chains = chains_for(evaluations)
    yield from local_search(problem, rng, chains=chains, starts=np.array(starts[: 2 * chains]))


@dataclass
class _Entrant:
    """Ways that are searched as one: variants, or one way of several parts."""

    ways: Sequence[tuple[Way, float]]
    problems: Sequence[Problem]

    @property
    def evaluated(self) -> int:
        return max(p.evaluated for p in self.problems)

    @property
    def size(self) -> int:
        return sum(way.size for way, _ in self.ways)

    def value(self, task: Task) -> tuple[float, float]:
        """Objective and second metric of the best mapping so far."""
        if task.objective != "edp" or len(self.problems) == 1:
            return tuple(np.sum([p.best for p in self.problems], axis=0).tolist())
        if any(p.front is None for p in self.problems):
            return sum(p.best[0] for p in self.problems), np.inf
        latency, energy, _ = self._sum()
        return latency * energy, latency

    def _sum(self) -> tuple[float, float, list[int]]:
        fronts = [p.front for p in self.problems if p.front is not None]
        return best_sum([(f[0], f[1]) for f in fronts])

    def points(self, task: Task) -> list[np.ndarray]:
        """The point of each problem that together are the best mapping."""
        fronts = [p.front for p in self.problems if p.front is not None]
        if task.objective == "edp" and len(self.problems) > 1 and len(fronts) == len(self.problems):
            *_, picks = self._sum()
            return [f[2][i] for f, i in zip(fronts, picks, strict=True)]
        return [p.point for p in self.problems]


def _entrants(task: Task) -> list[_Entrant]:
    groups: dict[object, list[tuple[Way, float, tuple[Part, ...]]]] = {}
    for way, bound in zip(task.ways, task.bounds, strict=True):
        parts = way.parts(task.workload, task.machine, task.conventions, task.scope)
        same: object = way.label
        if len(parts) == 1:
            same = tuple((a.names, a.splits.tobytes()) for a in parts[0].space.axes)
        groups.setdefault(same, []).append((way, bound, parts))
    found = []
    for group in groups.values():
        problems = [
            Problem(
                [parts[i] for *_, parts in group],
                task.objective,
                with_front=task.objective == "edp" and len(group[0][2]) > 1,
            )
            for i in range(len(group[0][2]))
        ]
        found.append(_Entrant([(way, bound) for way, bound, _ in group], problems))
    return found


class _Race:
    """Runs the entrants and writes the history."""

    def __init__(
        self, task: Task, budget: int, rng: np.random.Generator, clock: Clock, counter: Counter
    ) -> None:
        self.task = task
        self.entrants = _entrants(task)
        self.history: list[tuple[int, float]] = []
        self._budget = budget
        self._rng = rng
        self._clock = clock
        self._counter = counter
        self._spent = 0

    @property
    def left(self) -> int:
        """Evaluations that are left."""
        return self._budget - self._spent

    def run(self, entrant: _Entrant, name: str, evaluations: int, seeds: int) -> None:
        """Lets an entrant search on by some evaluations."""
        evaluations = min(evaluations, self.left, max(0, entrant.size))
        for problem in entrant.problems:
            problem.limit = entrant.evaluated + evaluations
        rngs = self._rng.spawn(len(entrant.problems))
        running = [
            (problem, method(name, problem, rng, evaluations, seeds))
            for problem, rng in zip(entrant.problems, rngs, strict=True)
        ]
        while running and not self._clock.over():
            before = entrant.evaluated
            # the one behind goes on, so that all are priced side by side
            behind = min(running, key=lambda r: r[0].evaluated)
            try:
                next(behind[1])
            except (BudgetSpentError, StopIteration):
                running.remove(behind)
            self._note(entrant, entrant.evaluated - before)

    def _note(self, entrant: _Entrant, more: int) -> None:
        self._spent += more
        self._counter.add(more)
        if all(p.fits for p in entrant.problems):
            value = entrant.value(self.task)[0]
            if not self.history or value < self.history[-1][1]:
                self.history.append((self._spent, value))


def race(
    task: Task,
    name: str,
    seeds: int,
    budget: int,
    rng: np.random.Generator,
    clock: Clock,
    counter: Counter,
) -> Answer:
    """Searches a task by one method.

    Args:
      task: what is searched.
      name: one of `METHODS`.
      seeds: most seeds that descend at once.
      budget: evaluations of all ways together.
      rng: source of all randomness.
      clock: when to end; the best so far is returned then.
      counter: counts the evaluations.
    """
    one = _Race(task, budget, rng, clock, counter)
    going = one.entrants
    # a gradient takes seconds to compile, so only what has qualified without is worth one
    qualifying, finalists = ("local", 1) if name == "gradient" else (name, 2)
    rounds = int(np.ceil(np.log2(max(1, len(going) / finalists))))
    for left in range(rounds, 0, -1):
        share = max(1, one.left // ((left + 1) * len(going)))
        for entrant in going:
            one.run(entrant, qualifying, share, seeds)
        going = sorted(going, key=lambda e: e.value(task))
        going = going[: max(finalists, len(going) // 2)]
    for left, entrant in zip(range(len(going), 0, -1), going, strict=True):
        one.run(entrant, name, one.left // left, seeds)
    if not any(all(len(p.point) for p in e.problems) for e in one.entrants):
        for problem in one.entrants[0].problems:  # stopped before the first: any answer but none
            problem.limit = problem.evaluated + 1
            problem.score(np.zeros((1, len(problem.sizes)), dtype=np.int64))
    results = [r for entrant in one.entrants for r in _results(task, entrant)]
    return answer(results, {}, one.history, clock.why() if clock.over() else "budget")


def _results(task: Task, entrant: _Entrant) -> list[tuple[Way, float, Best | None]]:
    """The best mapping of an entrant, exactly priced; its other variants have none."""
    if any(not len(p.point) for p in entrant.problems):
        return [(way, bound, None) for way, bound in entrant.ways]
    points = entrant.points(task)
    variant = int(points[0][0])
    factors: dict[str, float] = {}
    for problem, point in zip(entrant.problems, points, strict=True):
        found = problem.parts[variant].points(point[None, 1:])
        factors |= {n: float(v[0]) for n, v in found.items()}
    way, _ = entrant.ways[variant]
    mapping = way.build(task.workload, task.machine, factors)
    cost = exact_cost(task.workload, mapping, task.machine, task.conventions)
    best = Best(
        strategy=way.label,
        mapping=mapping,
        cost=cost,
        # an evaluation is of a whole mapping: it fits, at most, as often as each of its parts does
        searched=(
            Searched(
                size=entrant.size,
                evaluated=entrant.evaluated,
                feasible=min(p.feasible for p in entrant.problems),
            ),
        ),
        objective=task.objective,
        proven=False,
        pressure=float(pressure_of(cost, task.scope.max_units)),
    )
    return [
        (other, bound, best if i == variant else None)
        for i, (other, bound) in enumerate(entrant.ways)
    ]
