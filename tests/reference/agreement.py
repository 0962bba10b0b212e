"""Random mappings held against the walks: what the tests of `cycle_walk` and `value_walk` run.

One idea: in the test run every call of jaxcomet is checked against its annotations, which makes one
evaluation of one mapping several times slower. These functions are plain, take plain arguments
and return texts, so that the tests can run them in a process of its own (`apart`), unchecked.
"""

import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from jaxcomet.cost import Cost, evaluate
from jaxcomet.hardware import load
from jaxcomet.mapping import MappingError
from tests.reference import cycle_walk, drawing, step_walk, value_walk
from tests.reference.drawing import Case, Kind

SHARE = 1e-12  # relative; a share of whole bytes is divided out and multiplied back
WRONG_BY_DESIGN = ("reduce", "tile")
"""As released, adds different columns of F over the clusters (docs/strategies.md, Options)."""


def apart(function: Callable[..., Any], arguments: Sequence[tuple]) -> list[Any]:
    """Results of a function of this module, from processes without import hooks."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        return list(pool.map(function, *zip(*arguments, strict=True)))


def offered() -> list[tuple[str, str]]:
    """(builder of the workload, strategy), all that there are."""
    return list(dict.fromkeys((k.builder, k.strategy) for k in drawing.kinds()))


@cache
def _kinds(builder: str, strategy: str) -> tuple[list[Kind], list[Kind], str]:
    """(kinds that docs/equations.md describes, others, why not)."""
    known: list[Kind] = []
    others: list[Kind] = []
    reason = ""
    for kind in drawing.kinds():
        if (kind.builder, kind.strategy) == (builder, strategy):
            tree, graph = drawing.planned(kind, drawing.smallest(kind), load("edge"))
            refused = cycle_walk.refusal(graph, tree, load("edge"))
            (known if refused is None else others).append(kind)
            reason = refused or reason
    return known, others, reason


def _cases(kinds: Sequence[Kind], count: int, seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    for i, machine in zip(range(count), drawing.machines(rng), strict=False):
        yield drawing.draw(rng, kinds[i % len(kinds)], machine)


def _bytes(cost: Cost) -> dict[step_walk.Key, tuple[float, float]]:
    found: dict[step_walk.Key, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for t in cost.traffic:
        key = (t.tensor, t.direction, t.parent, t.child)
        up, down = found[key]
        found[key] = (up + float(t.parent_bytes), down + float(t.child_bytes))
    return found


def costs(builder: str, strategy: str, count: int, seed: int) -> tuple[int, list[str], str]:
    """(mappings compared, those whose cycles or bytes differ, what was left out and why)."""
    kinds, _, reason = _kinds(builder, strategy)
    wrong = []
    if not kinds:
        return 0, [], reason
    for case in _cases(kinds, count, seed):
        cost = evaluate(case.workload, case.mapping, case.machine)
        cycles = cycle_walk.cycles(case.graph, case.mapping, case.machine)
        if cost.latency_cycles != cycles:
            wrong.append(f"{case}: {cost.latency_cycles} cycles, walked {cycles}")
        found, moved = _bytes(cost), step_walk.count(case.graph, case.mapping, case.machine)
        for key in {**found, **moved}:
            want = moved.get(key, step_walk.Moved())
            walked = (want.parent_bytes, want.child_bytes)
            got = found.get(key, (0.0, 0.0))
            if not np.allclose(got, walked, rtol=SHARE, atol=0.0):
                wrong.append(f"{case}: {key} {got} bytes, walked {walked}")
    return count, wrong, reason


def disturbed_costs(
    builder: str, strategy: str, count: int, seed: int
) -> tuple[int, list[str], str]:
    """As `costs`, cycles alone, of trees that no strategy builds and that the model accepts."""
    kinds, _, reason = _kinds(builder, strategy)
    rng = np.random.default_rng(seed)
    wrong, number = [], 0
    for case in _cases(kinds, count, seed):
        other = drawing.disturbed(rng, case)
        if other is None:
            continue
        try:
            cost = evaluate(other.workload, other.mapping, other.machine)
        except MappingError:
            continue  # it has no meaning, and the model says so
        number += 1
        cycles = cycle_walk.cycles(other.graph, other.mapping, other.machine)
        if cost.latency_cycles != cycles:
            wrong.append(f"{other}: {cost.latency_cycles} cycles, walked {cycles}")
    return number, wrong, reason


def terms(builder: str, strategy: str, count: int, seed: int) -> dict[str, int]:
    """Loop nodes of which each term of (4.1c) is more than 0, or a later step is shorter."""
    found: dict[str, int] = defaultdict(int)
    for case in _cases(_kinds(builder, strategy)[0], count, seed):
        for n in cycle_walk.visited(case.graph, case.mapping, case.machine)[1]:
            for term in ("up", "down", "dependent", "stall", "extra", "refill"):
                found[term] += getattr(n, term) > 0
            found["saved"] += n.steps > 1 and n.later < n.first
    return dict(found)


def values(builder: str, strategy: str, count: int, seed: int) -> tuple[int, list[str], list[str]]:
    """(mappings run, faults of legal ones, faults of those that are wrong by design)."""
    known, others, _ = _kinds(builder, strategy)
    right: list[str] = []
    wrong: list[str] = []
    number = 0
    for case in _cases([*known, *others], count, seed):
        if case.graph.mask is not None:
            continue
        number += 1
        run = value_walk.execute(case.graph, case.mapping, case.machine)
        if WRONG_BY_DESIGN in case.kind.options:
            wrong += [f"{case}: {v}" for v in run.violations]
            continue
        right += [f"{case}: {v}" for v in run.violations]
        cost = evaluate(case.workload, case.mapping, case.machine)
        needed = {o.memory: float(o.needed_bytes) for o in cost.occupancy}
        for memory, live in run.live_bytes.items():
            if needed[memory] < live:
                right.append(f"{case}: {memory} needs {needed[memory]} bytes, {live} are alive")
    return number, right, wrong
