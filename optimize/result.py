"""What a search answers: the best mapping, how sure that is, and how it was found."""

from dataclasses import dataclass
from typing import Any, Literal

from jaxcomet.cost import Cost
from jaxcomet.cost.conventions import Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping
from jaxcomet.optimize.bounds import Bound
from jaxcomet.optimize.pricing import Objective, objective_keys, pressure_of
from jaxcomet.optimize.space import Scope
from jaxcomet.workload import CompoundOp

Stopped = Literal["complete", "budget", "time", "interrupted"]
"""Why a search ended: all priced, evaluations spent, time spent, or Ctrl-C."""


class SearchError(ValueError):
    """A search that cannot start; the message says which argument, and what is allowed."""


class ImpossibleError(SearchError):
    """No strategy asked for can map the workload on the machine, within the scope.

    Attributes:
      reasons: why each way cannot, each reason once.
    """

    def __init__(self, workload: str, machine: str, reasons: tuple[str, ...]) -> None:
        """The message names the first two reasons."""
        more = f" (and {len(reasons) - 2} more)" if len(reasons) > 2 else ""
        shown = "; ".join(reasons[:2]) + more
        super().__init__(f"{workload}: no strategy is possible on {machine}: {shown}")
        self.reasons = reasons


@dataclass(frozen=True, kw_only=True)
class WayResult:
    """What became of one way (a strategy with options and loop orders).

    Attributes:
      strategy: name of the strategy.
      label: the name with options and loop orders that are not its own.
      size: mappings to price: its parts that share no factor are searched apart.
      evaluated: mappings priced.
      bound: no mapping of the way has an objective below this.
      value: objective of its best mapping that fits; None where none was found.
      skipped: no mapping of it is better than the best of another way: its bound is above, or those
        of all its branches that were not priced.
      refusal: why the machine has no mapping of it; empty where it has some.
    """

    strategy: str
    label: str
    size: int
    evaluated: int
    bound: float
    value: float | None
    skipped: bool
    refusal: str


@dataclass(frozen=True, kw_only=True)
class MapResult:
    """The answer of `map`. The cost is the exact model's, of the mapping that is reported.

    Attributes:
      workload: what was mapped.
      machine: where.
      objective: what was minimised.
      conventions: rules of accounting.
      scope: what was searched: tiles, units, constraints.
      strategy: name of the best strategy.
      options: all its options.
      loop_orders: loop orders by level that are not its own.
      mapping: the best mapping; the one nearest to fitting where none was found that fits.
      cost: its exact cost.
      bound: lower bounds of every mapping, with what sets them.
      proven: every mapping of every way was priced, or cannot be better; the answer is the best.
      stopped: why the search ended.
      method: ``enumerate``, ``gradient``, ``local``, ``random`` or ``cma``.
      size: mappings that there are to price.
      evaluated: mappings priced, or gradients taken.
      ways: what became of each way, best first.
      history: (evaluations, objective) each time a better mapping was found.
      settings: method, seeds, budget, key and versions: what is needed to find the same again.
    """

    workload: CompoundOp
    machine: Machine
    objective: Objective
    conventions: Conventions
    scope: Scope
    strategy: str
    options: dict[str, str]
    loop_orders: dict[str, str]
    mapping: Mapping
    cost: Cost
    bound: Bound
    proven: bool
    stopped: Stopped
    method: str
    size: int
    evaluated: int
    ways: tuple[WayResult, ...]
    history: tuple[tuple[int, float], ...]
    settings: dict[str, Any]

    @property
    def label(self) -> str:
        """The strategy with options and loop orders that are not its own."""
        return self.cost.strategy

    @property
    def value(self) -> float:
        """The objective: cycles, pJ, or their product."""
        latency, energy = float(self.cost.latency_cycles), float(self.cost.energy_pj)  # pyright: ignore[reportArgumentType]
        return objective_keys(self.objective, latency, energy)[0]

    @property
    def feasible(self) -> bool:
        """Whether the mapping can run, within the limits on units."""
        return float(pressure_of(self.cost, self.scope.max_units)) <= 1.0

    @property
    def gap(self) -> float:
        """Objective / bound - 1: how far the answer is, at most, from what is possible at all."""
        return self.value / self.bound.of(self.objective) - 1.0

    def reasons(self) -> tuple[str, ...]:
        """Why nothing fits: what the mapping nearest to fitting lacks; empty where it fits."""
        found = list(self.cost.reasons())
        units = 1.0
        for level in self.cost.spatial:
            units *= float(level.used_x) * float(level.used_y)  # pyright: ignore[reportArgumentType]
            limit = dict(self.scope.max_units).get(level.level)
            if limit is not None and units > limit:
                found.append(f"max_units {level.level}: uses {units:g} units, allowed {limit}")
        return tuple(found)
