"""What is priced for a setting: each strategy with each set of options left open.

The one idea: two ways whose trees differ only in loops of a single step are one way. A spread that
finds no work for one of its dimensions is such a case; pricing it again would compile for nothing.
"""

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcomet import strategies
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import MappingError, Spatial
from jaxcomet.optimize.space import spaces
from jaxcomet.rewrite import rewritten
from jaxcomet.strategies import Strategy
from jaxcomet.workload import CompoundOp

TRIED = ("weights", "spread", "order")
"""Options of which every value is tried where none is given."""

Candidates = tuple[tuple[Strategy, tuple[dict[str, str], ...]], ...]
"""Strategies with the sets of options that are tried for each."""


def candidates(workload: str, options: dict[str, str]) -> Candidates:
    """The strategies of a workload with the sets of options to try.

    Every value of the options in `TRIED`, unless one is given; of others the one given, or the
    default.

    Raises:
      MappingError: a value that no strategy has which has the option.
    """
    available = strategies.available(workload)
    for name, value in options.items():
        owners = [s for s in available if name in s.options]
        if owners and all(value not in s.options[name] for s in owners):
            owners[0].chosen({name: value})  # says which values there are
    found = []
    for strategy in available:
        own = {n: v for n, v in options.items() if n in strategy.options}
        free = [n for n in TRIED if n in strategy.options and n not in own]
        values = itertools.product(*(strategy.options[n] for n in free))
        found.append((strategy, tuple({**dict(zip(free, v, strict=True)), **own} for v in values)))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A strategy with one set of options.

    Attributes:
      strategy: the strategy.
      options: its options.
      size: its mappings.
      refusal: why the machine has none; empty where it has some.
    """

    strategy: Strategy
    options: dict[str, str]
    size: int
    refusal: str = ""


def ways(workload: CompoundOp, machine: Machine, tried: Candidates) -> tuple[Way, ...]:
    """All ways to price, each once.

    Args:
      workload: a single shape.
      machine: a single machine.
      tried: the strategies with their sets of options.
    """
    found: list[Way] = []
    for strategy, several in tried:
        seen: list[Any] = []
        for options in several:
            try:
                number, form = _look(workload, machine, strategy, options)
            except MappingError as error:
                way = Way(strategy=strategy, options=options, size=0, refusal=str(error))
                found.append(way)
                continue
            if form not in seen:
                seen.append(form)
                found.append(Way(strategy=strategy, options=options, size=number))
    return tuple(found)


def _look(
    workload: CompoundOp, machine: Machine, strategy: Strategy, options: dict[str, str]
) -> tuple[int, Any]:
    """Number of mappings, and what their costs depend on."""
    plan = strategy.planned(workload, machine, **options)
    parts = spaces(rewritten(workload, plan.rewrites), machine, plan.tree)
    columns = {
        name: axis.splits[:, column]
        for part in parts
        for axis in part.axes
        for column, name in enumerate(axis.names)
    }
    single = {name for name, values in columns.items() if np.all(values == 1)}
    splits = [
        (axis.dim, tuple((n, columns[n].tobytes()) for n in axis.names if n not in single))
        for part in parts
        for axis in part.axes
    ]
    form = (_without(plan.tree, single), plan.homes, plan.rewrites, splits)
    return sum(part.size for part in parts), form


def _without(item: Any, names: set[str]) -> Any:
    """A tree without factors that are 1, and without loops over units that have no others."""
    if isinstance(item, tuple):
        return tuple(_without(x, names) for x in item if not (isinstance(x, str) and x in names))
    if not dataclasses.is_dataclass(item) or isinstance(item, type):
        return item
    values = {f.name: _without(getattr(item, f.name), names) for f in dataclasses.fields(item)}
    if isinstance(item, Spatial):
        for mesh in ("x", "y"):
            values[mesh] = tuple(loop for loop in values[mesh] if loop.factors)
    return dataclasses.replace(item, **values)
