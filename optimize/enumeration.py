"""Enumeration: every mapping of a space is priced exactly, so the best one is proven.

The one idea: exact evaluation is cheap enough to price tens of millions of mappings a second, slab
by slab, in memory that does not grow with the space. Ties are broken by the second metric, then by
the order of enumeration. Parts of a tree that share no factor are searched apart: for latency and
energy, which add up over them, each for its best; for their product each for its front (the
mappings that no other beats in both), and the best pair of points is the best of the whole.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass

import jax
import numpy as np

from jaxcomet.cost import Cost, cost_of
from jaxcomet.cost.conventions import DEFAULT, Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping
from jaxcomet.optimize.pricing import (
    Objective,
    Part,
    Prices,
    front_of,
    objective_keys,
    pressure_of,
)
from jaxcomet.optimize.pruning import Found, TooManyError, search_branches
from jaxcomet.optimize.space import EVERYTHING, Axis, Scope, Space
from jaxcomet.optimize.ways import Way, way
from jaxcomet.strategies import Strategy
from jaxcomet.workload import CompoundOp

_PRUNED = 2_000_000  # larger spaces first lose the splits that can fit nowhere


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A space that was searched.

    Attributes:
      size: its mappings.
      evaluated: those priced; of a whole search, the others need more room than there is.
      feasible: those priced that can run.
    """

    size: int
    evaluated: int
    feasible: int


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best mapping of a way.

    Attributes:
      strategy: name of the strategy with its options.
      mapping: the best mapping, or the one nearest to fitting if none does.
      cost: its exact cost.
      searched: the spaces searched, one per part of the tree that shares no factor with others.
      objective: what was minimised.
      proven: every mapping was priced, so none of these spaces is better.
      pressure: largest ratio of needed to there, limits on units included; it fits up to 1.
      history: (mappings priced, objective) each time a better one was found, over all parts; of a
        way of several parts from when each has a mapping that fits.
    """

    strategy: str
    mapping: Mapping
    cost: Cost
    searched: tuple[Searched, ...]
    objective: Objective
    proven: bool = True
    history: tuple[tuple[int, float], ...] = ()
    pressure: float = 0.0

    @property
    def evaluated(self) -> int:
        """Mappings priced, over all spaces."""
        return sum(s.evaluated for s in self.searched)

    @property
    def key(self) -> tuple[float, float]:
        """What was minimised, then what decides a tie; inf where nothing fits."""
        if self.pressure > 1.0:
            return np.inf, np.inf
        return objective_keys(
            self.objective,
            float(self.cost.latency_cycles),  # pyright: ignore[reportArgumentType]
            float(self.cost.energy_pj),  # pyright: ignore[reportArgumentType]
        )


def pruned(part: Part) -> Part:
    """The part without those splits of a dimension that overflow a memory whatever the others are.

    A split is tried with all others at their smallest tiles and without second copies, which needs
    no more room than any mapping with that split. Where no split of a dimension fits, the one
    nearest to fitting is kept.
    """
    single = dataclasses.replace(
        part, conventions=dataclasses.replace(part.conventions, double_buffer="ignored")
    )
    smallest = [size - 1 for size in part.sizes]  # all steps in the outermost factor
    kept: list[Axis] = []
    for position, axis in enumerate(part.space.axes):
        choices = np.tile(np.array(smallest), (len(axis.splits), 1))
        choices[:, position] = np.arange(len(axis.splits))
        pressure = single.price(choices).pressure
        fits = pressure <= max(1.0, float(pressure.min()))
        kept.append(dataclasses.replace(axis, splits=axis.splits[fits]))
    return dataclasses.replace(part, space=Space(part.space.tree, tuple(kept)))


def _search(
    part: Part,
    objective: Objective,
    front: bool,
    progress: Callable[[int], None],
    stop: Callable[[], bool],
    above: tuple[float, float],
    most: float | int,
) -> Found:
    if not front:
        found = search_branches(part, objective, progress, stop, above, most)
        if found is not None:
            return found
    whole = part.size
    if whole > _PRUNED:
        part = pruned(part)
        progress(whole - part.size)
    if part.size > most:
        raise TooManyError
    best: tuple[float, float] = (np.inf, np.inf)
    empty = np.empty(0)
    latency, energy, index = empty, empty, np.empty(0, dtype=np.int64)
    least, nearest = np.inf, 0
    feasible = evaluated = 0
    history: list[tuple[int, float, float]] = []
    for start in part.slab_starts():
        if stop():
            break
        if front:
            latency, energy, index, seen = _merged(part.slab(start), start, latency, energy, index)
            pressure, position, fits = seen
        else:
            found = part.slab_best(start, objective)
            pressure, position, fits = found.pressure, found.nearest, found.feasible
            if fits and (found.first, found.second) < best:
                best = (found.first, found.second)
                index = np.array([start + found.index])
        if pressure < least:
            least, nearest = pressure, start + position
        count = min(part.slab_size, part.size - start)
        evaluated += count
        feasible += int(fits)
        progress(count)
        if front and len(index):
            position = int(np.argmin(latency * energy))
            history.append((evaluated, float(latency[position]), float(energy[position])))
        elif not front and (not history or history[-1][1:] != best) and best[0] < np.inf:
            history.append((evaluated, *best))
    if not front and len(index):
        prices = part.price(part.choices(index))
        latency, energy = prices.latency_cycles, prices.energy_pj
    complete = evaluated == part.size
    return Found(
        part, latency, energy, index, nearest, evaluated, feasible, tuple(history), complete
    )


def _merged(
    prices: Prices, start: int, latency: np.ndarray, energy: np.ndarray, index: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[float, int, int]]:
    """The front with the mappings of a slab."""
    fits = np.flatnonzero(prices.pressure <= 1.0)
    seen = float(prices.pressure.min()), int(prices.pressure.argmin()), len(fits)
    latency = np.concatenate([latency, prices.latency_cycles[fits]])
    energy = np.concatenate([energy, prices.energy_pj[fits]])
    index = np.concatenate([index, start + fits])
    kept = front_of(latency, energy)
    return latency[kept], energy[kept], index[kept], seen


def best_sum(
    fronts: Sequence[tuple[np.ndarray, np.ndarray]],
) -> tuple[float, float, list[int]]:
    """Point of each part's front whose sums have the least product; ties by latency.

    Args:
      fronts: latency and energy of each part's front.

    Returns:
      Latency and energy of the whole, and the point of each part.
    """
    latency, energy = np.zeros(1), np.zeros(1)
    picks = np.zeros((1, 0), dtype=np.int64)
    for more_latency, more_energy in fronts:
        latency = (latency[:, None] + more_latency[None, :]).ravel()
        energy = (energy[:, None] + more_energy[None, :]).ravel()
        count = len(more_latency)
        last = np.tile(np.arange(count), len(picks))[:, None]
        picks = np.concatenate([np.repeat(picks, count, axis=0), last], axis=1)
        kept = front_of(latency, energy)
        latency, energy, picks = latency[kept], energy[kept], picks[kept]
    product = latency * energy
    at = int(np.where(product == product.min(), latency, np.inf).argmin())
    return float(latency[at]), float(energy[at]), picks[at].tolist()


def _joined(found: Sequence[Found], objective: Objective) -> tuple[tuple[int, float], ...]:
    """History of the whole from those of its parts, which were searched one after the other."""
    at = [f.history[-1] if f.history else None for f in found[:-1]]
    if any(x is None for x in at) or not found:
        return ()
    before = sum(f.evaluated for f in found[:-1])

    def value(points: Sequence[tuple[int, float, float]]) -> float:
        if objective == "edp" and len(found) > 1:  # latency and energy of each part's front
            return sum(p[1] for p in points) * sum(p[2] for p in points)
        return sum(p[1] for p in points)

    settled = [x for x in at if x is not None]
    return tuple((before + p[0], value([*settled, p])) for p in found[-1].history)


def enumerate_way(
    workload: CompoundOp,
    machine: Machine,
    one: Way,
    *,
    conventions: Conventions = DEFAULT,
    objective: Objective = "latency",
    scope: Scope = EVERYTHING,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    above: tuple[float, float] = (np.inf, np.inf),
    most: float | int = np.inf,
    shared: "Shared | None" = None,
) -> Best:
    """Prices all mappings of a way that may be the best, and returns the best.

    Not priced are branches that cannot hold it (`jaxcomet.optimize.branches`); and, of a space of
    more than two million mappings that is priced whole, those of which a split fits with no others.

    Args:
      workload: a single shape.
      machine: a single machine.
      one: the way.
      conventions: rules of accounting.
      objective: ``latency``, ``energy`` or ``edp``.
      scope: what its spaces range over.
      progress: called with the number of mappings priced since the last call.
      stop: asked before each slab; where it says so, the best so far is returned, not proven.
      above: key of a mapping of another way: this one need not be searched for what is no better.
      most: mappings that may be priced.
      shared: parts that other ways have as well; they count as priced in each.

    Returns:
      The best mapping with its exact cost; if none fits, the one nearest to fitting (its cost says
      so).

    Raises:
      BeatenError: it has turned out that none is better than `above`.
      TooManyError: more than `most` mappings would have to be priced.
    """
    advance = progress or (lambda _: None)
    chosen: dict[str, float] = {}
    searched: list[Searched] = []
    found: list[Found] = []
    parts = one.parts(workload, machine, conventions, scope)
    front = objective == "edp" and len(parts) > 1
    complete = True
    stopped = stop or (lambda: False)
    if len(parts) > 1:
        above = (np.inf, np.inf)
    for part in parts:
        if shared is None or len(parts) == 1:
            result = _search(part, objective, front, advance, stopped, above, most)
        else:
            result = shared.search(part, objective, front, advance, stopped, most)
        found.append(result)
        complete &= result.complete
        searched.append(
            Searched(size=part.size, evaluated=result.evaluated, feasible=result.feasible)
        )
    possible = all(len(f.index) for f in found)
    picks = [0] * len(found)
    if front and possible:
        *_, picks = best_sum([(f.latency, f.energy) for f in found])
    for result, pick in zip(found, picks, strict=True):
        index = int(result.index[pick]) if len(result.index) else result.nearest
        factors = result.part.points(result.part.choices(np.array([index])))
        chosen |= {n: float(v[0]) for n, v in factors.items()}
    mapping = one.build(workload, machine, chosen)
    cost = exact_cost(workload, mapping, machine, conventions)
    return Best(
        strategy=one.label,
        mapping=mapping,
        cost=cost,
        pressure=float(pressure_of(cost, scope.max_units)),
        searched=tuple(searched),
        objective=objective,
        proven=complete,
        history=_joined(found, objective) if possible else (),
    )


class Shared:
    """Parts of several ways, each searched once, whichever thread comes first."""

    def __init__(self) -> None:
        """Nothing has been searched."""
        self._lock = threading.Lock()
        self._found: dict[object, tuple[threading.Lock, list[Found]]] = {}

    def search(
        self,
        part: Part,
        objective: Objective,
        front: bool,
        progress: Callable[[int], None],
        stop: Callable[[], bool],
        most: float | int,
    ) -> Found:
        """The best mapping, or the front, of a part of a way that has others."""
        mapping = part.mapping
        axes = tuple((a.names, a.splits.tobytes()) for a in part.space.axes)
        with self._lock:
            lock, known = self._found.setdefault(
                (mapping.tree, mapping.homes, mapping.rewrites, axes), (threading.Lock(), [])
            )
        with lock:
            if known:
                progress(part.size)
                return known[0]
            found = _search(part, objective, front, progress, stop, (np.inf, np.inf), most)
            if found.complete:
                known.append(found)
            return found


def exact_cost(
    workload: CompoundOp, mapping: Mapping, machine: Machine, conventions: Conventions
) -> Cost:
    """As `evaluate`, but prices what is nearest to fitting though a rule forbids it."""
    floats = jax.tree.map(float, (workload, mapping, machine))
    return cost_of(floats[0], floats[1], floats[2], conventions)


def size(workload: CompoundOp, machine: Machine, strategy: Strategy, **options: str) -> int:
    """Number of mappings that `enumerate_mappings` prices, whatever the loop orders."""
    return way(workload, machine, strategy, options).size


def enumerate_mappings(
    workload: CompoundOp,
    machine: Machine,
    strategy: Strategy,
    *,
    options: dict[str, str] | None = None,
    loop_orders: MappingABC[str, str] | None = None,
    conventions: Conventions = DEFAULT,
    objective: Objective = "latency",
    scope: Scope = EVERYTHING,
    progress: Callable[[int], None] | None = None,
) -> Best:
    """Prices all mappings of a strategy and returns the best; see `enumerate_way`.

    Args:
      workload: a single shape.
      machine: a single machine.
      strategy: the strategy.
      options: its options.
      loop_orders: other orders of the loops in time by level; see `mapping.reordered`.
      conventions: rules of accounting.
      objective: ``latency``, ``energy`` or ``edp``.
      scope: what the space ranges over.
      progress: called with the number of mappings priced since the last call.

    Raises:
      MappingError: the strategy cannot run on this machine.
    """
    one = way(workload, machine, strategy, options or {}, loop_orders, scope)
    one.check(workload, machine, conventions)
    return enumerate_way(
        workload,
        machine,
        one,
        conventions=conventions,
        objective=objective,
        scope=scope,
        progress=progress,
    )
