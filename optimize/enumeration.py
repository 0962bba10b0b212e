"""Enumeration: every mapping of a space is priced exactly, so the best one is proven.

The one idea: exact evaluation is cheap enough to price tens of millions of mappings, in batches of
one size so that one compiled program serves a space. Ties are broken by the second metric, then by
the order of enumeration.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import jax
import numpy as np

from jaxcomet.cost import Cost, evaluate_totals
from jaxcomet.cost.conventions import DEFAULT, Conventions
from jaxcomet.cost.evaluate import cost_of
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping
from jaxcomet.optimize.space import Axis, Space, spaces
from jaxcomet.rewrite import rewritten
from jaxcomet.strategies import Strategy
from jaxcomet.workload import CompoundOp

Objective = Literal["latency", "energy", "edp"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "energy", "edp")

_PRUNED = 2_000_000  # larger spaces first lose the splits that can fit nowhere
_BATCH = 65536  # one size, so that a strategy compiles once; small enough for the caches


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A space that was searched.

    Attributes:
      size: its mappings.
      evaluated: those priced; the others need more room than there is.
      feasible: those that can run.
    """

    size: int
    evaluated: int
    feasible: int


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best mapping of a strategy.

    Attributes:
      strategy: name of the strategy with its options.
      mapping: the best mapping, or the one nearest to fitting if none does.
      cost: its exact cost.
      searched: the spaces searched, one per part of the tree that shares no factor with others.
      objective: what was minimised.
    """

    strategy: str
    mapping: Mapping
    cost: Cost
    searched: tuple[Searched, ...]
    objective: Objective

    @property
    def evaluated(self) -> int:
        """Mappings priced, over all spaces."""
        return sum(s.evaluated for s in self.searched)


@dataclass(frozen=True)
class _Found:
    index: int
    key: tuple[float, float]
    feasible: int


_Value = TypeVar("_Value", float, np.ndarray)


def objective_keys(objective: Objective, latency: _Value, energy: _Value) -> tuple[_Value, _Value]:
    """What is minimised, then what decides a tie."""
    match objective:
        case "latency":
            return latency, energy
        case "energy":
            return energy, latency
        case "edp":
            return latency * energy, latency


def _prune(
    workload: CompoundOp,
    machine: Machine,
    space: Space,
    mapping: Mapping,
    conventions: Conventions,
) -> Space:
    """The space without those splits of a dimension that overflow a memory whatever the others are.

    A split is tried with all others at their smallest tiles and without second copies, which needs
    no more room than any mapping with that split. Where no split of a dimension fits, the one
    nearest to fitting is kept.
    """
    single = dataclasses.replace(conventions, double_buffer="ignored")
    smallest = [len(a.splits) - 1 for a in space.axes]  # all steps in the outermost factor
    kept: list[Axis] = []
    for position, axis in enumerate(space.axes):
        choices = [np.full(_BATCH, i) for i in smallest]
        choices[position] = np.minimum(np.arange(_BATCH), len(axis.splits) - 1)
        if len(axis.splits) > _BATCH:
            kept.append(axis)
            continue
        factors: dict[str, np.ndarray] = {}
        for other, choice in zip(space.axes, choices, strict=True):
            factors |= {n: other.splits[choice, i] for i, n in enumerate(other.names)}
        candidates = dataclasses.replace(mapping, factors={**mapping.factors, **factors})
        totals = evaluate_totals(workload, candidates, machine, conventions=single)
        pressure = np.asarray(totals.pressure)[: len(axis.splits)]
        fits = pressure <= max(1.0, float(pressure.min()))
        kept.append(dataclasses.replace(axis, splits=axis.splits[fits]))
    return Space(space.tree, tuple(kept))


def _search(
    workload: CompoundOp,
    machine: Machine,
    space: Space,
    mapping: Mapping,
    conventions: Conventions,
    objective: Objective,
    progress: Callable[[int], None] | None,
) -> _Found:
    best: tuple[float, float] = (np.inf, np.inf)
    nearest, best_index, feasible = np.inf, 0, 0
    for start in range(0, space.size, _BATCH):
        indices = np.minimum(np.arange(start, start + _BATCH), space.size - 1)
        candidates = dataclasses.replace(
            mapping, factors={**mapping.factors, **space.factors(indices)}
        )
        latency, energy, pressure = (
            np.asarray(x)
            for x in evaluate_totals(workload, candidates, machine, conventions=conventions)
        )
        count = min(_BATCH, space.size - start)
        fits = pressure[:count] <= 1.0
        feasible += int(fits.sum())
        first, second = objective_keys(objective, latency[:count], energy[:count])
        if fits.any():
            least = np.where(fits, first, np.inf).min()
            tied = fits & (first == least)
            choice = int(np.where(tied, second, np.inf).argmin())
            key = (float(first[choice]), float(second[choice]))
            if key < best:
                best, best_index = key, start + choice
        elif not np.isfinite(best[0]) and pressure[:count].min() < nearest:
            nearest = float(pressure[:count].min())
            best_index = start + int(pressure[:count].argmin())
        if progress is not None:
            progress(count)
    return _Found(index=best_index, key=best, feasible=feasible)


def size(workload: CompoundOp, machine: Machine, strategy: Strategy, **options: str) -> int:
    """Number of mappings that `enumerate_mappings` prices, whatever the loop orders."""
    plan = strategy.planned(workload, machine, **options)
    form = rewritten(workload, plan.rewrites)
    return sum(s.size for s in spaces(form, machine, plan.tree))


def enumerate_mappings(
    workload: CompoundOp,
    machine: Machine,
    strategy: Strategy,
    *,
    options: dict[str, str] | None = None,
    loop_orders: dict[str, str] | None = None,
    conventions: Conventions = DEFAULT,
    objective: Objective = "latency",
    progress: Callable[[int], None] | None = None,
) -> Best:
    """Prices all mappings of a strategy and returns the best.

    Of a space of more than two million mappings only those are priced whose every split fits with
    some others; the rest cannot run.

    Parts that share no factor are searched apart, which is exact for latency and energy; for their
    product it is exact only where there is one part.

    Args:
      workload: a single shape.
      machine: a single machine.
      strategy: the strategy.
      options: its options.
      loop_orders: other orders of the loops in time by level; see `mapping.reordered`.
      conventions: rules of accounting.
      objective: ``latency``, ``energy`` or ``edp``.
      progress: called with the number of mappings priced since the last call.

    Returns:
      The best mapping with its exact cost; if none fits, the one nearest to fitting (its cost says
      so).
    """
    options = options or {}
    plan = strategy.planned(workload, machine, loop_orders, **options)
    label = strategy.label(options, loop_orders)
    form = rewritten(workload, plan.rewrites)
    chosen: dict[str, object] = {}
    searched: list[Searched] = []
    for space in spaces(form, machine, plan.tree):
        part = Mapping(
            strategy=label,
            tree=space.tree,
            homes=tuple(sorted(plan.homes.items())),
            factors={},
            rewrites=plan.rewrites,
        )
        whole = space.size
        if whole > _PRUNED:
            space = _prune(workload, machine, space, part, conventions)
            if progress is not None:
                progress(whole - space.size)
        found = _search(workload, machine, space, part, conventions, objective, progress)
        chosen |= {n: float(v[0]) for n, v in space.factors(np.array([found.index])).items()}
        searched.append(Searched(size=whole, evaluated=space.size, feasible=found.feasible))
    mapping = strategy.build(workload, machine, chosen, loop_orders, **options)
    # unlike `evaluate`, which refuses it, this prices what is nearest to fitting though illegal
    floats = jax.tree.map(float, (workload, mapping, machine))
    cost = cost_of(floats[0], floats[1], floats[2], conventions)
    return Best(
        strategy=label,
        mapping=mapping,
        cost=cost,
        searched=tuple(searched),
        objective=objective,
    )
