"""Ways to map a workload: each strategy with each set of options and loop orders left open.

The one idea: what is not a factor is a choice among trees, and a way is one of them. Two ways whose
trees differ only in loops of a single step are one way, and so are two loop orders that let every
tensor stay for the same loops; pricing them again would find the same.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np

from jaxcomet import strategies
from jaxcomet.cost import evaluate_totals
from jaxcomet.cost.conventions import DEFAULT, Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import (
    Mapping,
    MappingError,
    Node,
    Spatial,
    Temporal,
    computes,
    reordered,
    walk,
)
from jaxcomet.optimize.pricing import Part
from jaxcomet.optimize.space import EVERYTHING, ConstraintError, Scope, Space, parts_of, spaces
from jaxcomet.rewrite import rewritten
from jaxcomet.strategies import Plan, Strategy
from jaxcomet.workload import CompoundOp

TRIED = ("weights", "spread", "order")
"""Options of which every value is tried where none is given, or every one of `Strategy.tried`."""

LoopOrders = Literal["fixed", "all"] | MappingABC[str, str]
"""Loop orders to try: those of the strategy (``fixed``), ``all``, or given ones by level."""

Candidates = tuple[tuple[Strategy, tuple[dict[str, str], ...]], ...]
"""Strategies with the sets of options that are tried for each."""


def candidates(
    workload: str,
    options: MappingABC[str, str],
    names: Sequence[str] | None = None,
    tried: Sequence[str] = TRIED,
) -> Candidates:
    """The strategies of a workload with the sets of options to try.

    Args:
      workload: name of the compound operation.
      options: a value by option, or ``all``; where none is given, the values of those in `tried`
        and the default of others.
      names: the strategies; None: all.
      tried: as `TRIED`.

    Raises:
      MappingError: an unknown strategy; an option or a value that no strategy has.
    """
    known = strategies.available(workload)
    available = known if names is None else tuple(strategies.get(workload, n) for n in names)
    for name, value in options.items():
        owners = [s for s in available if name in s.options]
        if owners and value != "all" and all(value not in s.options[name] for s in owners):
            owners[0].chosen({name: value})  # says which values there are
    found = []
    for strategy in available:
        own = {n: v for n, v in options.items() if n in strategy.options and v != "all"}
        free = [
            n for n in strategy.options if n not in own and (n in tried or options.get(n) == "all")
        ]
        values = itertools.product(
            *(
                strategy.options[n] if n in options else strategy.tried.get(n, strategy.options[n])
                for n in free
            )
        )
        found.append((strategy, tuple({**dict(zip(free, v, strict=True)), **own} for v in values)))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A strategy with one set of options and loop orders.

    Attributes:
      strategy: the strategy.
      options: its options.
      loop_orders: loop orders by level that are not the strategy's own.
      plan: its tree, homes and rewrites; None where the machine has none.
      spaces: its mappings, by part of the tree.
      refusal: why the machine has none; empty where it has some.
    """

    strategy: Strategy
    options: dict[str, str]
    loop_orders: dict[str, str] = dataclasses.field(default_factory=dict)
    plan: Plan | None = None
    spaces: tuple[Space, ...] = ()
    refusal: str = ""

    @cached_property
    def size(self) -> int:
        """Number of mappings to price: parts that share no factor are searched apart."""
        return sum(s.size for s in self.spaces)

    @property
    def label(self) -> str:
        """Name of the strategy with options and loop orders that are not its own."""
        return self.strategy.label(self.options, self.loop_orders)

    def parts(
        self,
        workload: CompoundOp,
        machine: Machine,
        conventions: Conventions = DEFAULT,
        scope: Scope = EVERYTHING,
    ) -> tuple[Part, ...]:
        """The parts, to be priced."""
        assert self.plan is not None
        floats = jax.tree.map(float, (workload, machine))
        homes = tuple(sorted(self.plan.homes.items()))
        return tuple(
            Part(
                workload=floats[0],
                machine=floats[1],
                mapping=Mapping(
                    strategy="",  # a static field: a name would make a program of its own
                    tree=space.tree,
                    homes=homes,
                    factors={},
                    rewrites=self.plan.rewrites,
                ),
                space=space,
                conventions=conventions,
                max_units=scope.max_units,
            )
            for space in self.spaces
        )

    def reordered(self, loop_orders: dict[str, str]) -> "Way":
        """The way with the loops of some levels in another order: its spaces have the same axes."""
        assert self.plan is not None
        plan = dataclasses.replace(self.plan, tree=reordered(self.plan.tree, loop_orders))
        spaces = tuple(
            Space(tree, space.axes)
            for tree, space in zip(parts_of(plan.tree), self.spaces, strict=True)
        )
        return dataclasses.replace(self, loop_orders=loop_orders, plan=plan, spaces=spaces)

    def check(
        self, workload: CompoundOp, machine: Machine, conventions: Conventions = DEFAULT
    ) -> None:
        """Refuses what the machine cannot run, whatever the factors and the order of loops.

        Raises:
          MappingError: the strategy cannot run on this machine.
        """
        for part in self.parts(workload, machine, conventions):
            one = part.points(np.zeros((1, len(part.space.axes)), dtype=int))
            named = dataclasses.replace(part.with_factors(one), strategy=self.label)
            evaluate_totals(workload, named, machine, conventions=conventions)

    def build(
        self, workload: CompoundOp, machine: Machine, factors: MappingABC[str, float]
    ) -> Mapping:
        """A checked mapping of this way."""
        return self.strategy.build(workload, machine, factors, self.loop_orders, **self.options)


def way(
    workload: CompoundOp,
    machine: Machine,
    strategy: Strategy,
    options: dict[str, str],
    loop_orders: MappingABC[str, str] | None = None,
    scope: Scope = EVERYTHING,
) -> Way:
    """One way with its spaces.

    Raises:
      MappingError: the machine has no mapping of it.
      ConstraintError: the scope leaves none.
    """
    plan = strategy.planned(workload, machine, loop_orders, **options)
    form = rewritten(workload, plan.rewrites)
    return Way(
        strategy=strategy,
        options=options,
        loop_orders=dict(loop_orders or {}),
        plan=plan,
        spaces=spaces(form, machine, plan.tree, scope),
    )


def ways(
    workload: CompoundOp,
    machine: Machine,
    tried: Candidates,
    *,
    loop_orders: LoopOrders = "fixed",
    scope: Scope = EVERYTHING,
) -> tuple[Way, ...]:
    """All ways to price, each once.

    Args:
      workload: a single shape.
      machine: a single machine.
      tried: the strategies with their sets of options.
      loop_orders: loop orders to try.
      scope: what the spaces range over.

    Returns:
      The ways; those that the machine or the scope refuse say why.
    """
    found: list[Way] = []
    for strategy, several in tried:
        seen: set[Any] = set()
        for options in several:
            try:
                own = way(workload, machine, strategy, options, scope=scope)
                for orders in _orders(workload, machine, own, loop_orders):
                    one = own.reordered(orders) if orders else own
                    form = _form(workload, one)
                    if form not in seen:
                        seen.add(form)
                        found.append(one)
            except (MappingError, ConstraintError) as error:
                found.append(Way(strategy=strategy, options=options, refusal=str(error)))
    return tuple(found)


def _form(workload: CompoundOp, one: Way) -> Any:
    """What the costs of a way depend on; of the order of loops, how long each tensor stays."""
    assert one.plan is not None
    columns = {
        name: axis.splits[:, column]
        for part in one.spaces
        for axis in part.axes
        for column, name in enumerate(axis.names)
    }
    single = {name for name, values in columns.items() if np.all(values == 1)}
    splits = tuple(
        (axis.dim, tuple((n, columns[n].tobytes()) for n in axis.names if n not in single))
        for part in one.spaces
        for axis in part.axes
    )
    homes = tuple(sorted(one.plan.homes.items()))
    tree = _without(one.plan.tree, single)
    stays = _stays(rewritten(workload, one.plan.rewrites), tree)
    return (_sorted(tree), stays, homes, one.plan.rewrites, splits)


def _without(item: Any, names: set[str]) -> Any:
    """A tree without factors that are 1, and without loops that have no others."""
    if isinstance(item, tuple):
        return tuple(_without(x, names) for x in item if not (isinstance(x, str) and x in names))
    if not dataclasses.is_dataclass(item) or isinstance(item, type):
        return item
    values = {f.name: _without(getattr(item, f.name), names) for f in dataclasses.fields(item)}
    for name in {"loops", "x", "y"} & values.keys() if isinstance(item, Temporal | Spatial) else ():
        values[name] = tuple(loop for loop in values[name] if loop.factors)
    return dataclasses.replace(item, **values)


def _sorted(tree: Node) -> Node:
    """A tree with the loops in time of each level by their dimensions."""
    dims: dict[str, set[str]] = {}
    for node, _ in walk(tree):
        if isinstance(node, Temporal):
            dims.setdefault(node.level, set()).update(x.dim for x in node.loops)
    return reordered(tree, {level: sorted(found) for level, found in dims.items()})


# -- loop orders ---------------------------------------------------------------------------------


def _orders(
    workload: CompoundOp, machine: Machine, one: Way, wanted: LoopOrders
) -> Iterator[dict[str, str]]:
    """Loop orders by level to try for a way, its own first."""
    assert one.plan is not None
    tree = one.plan.tree
    if not isinstance(wanted, str):
        levels = {n.level for n, _ in walk(tree) if isinstance(n, Temporal)}
        yield {level: order for level, order in wanted.items() if level in levels}
        return
    if wanted == "fixed":
        yield {}
        return
    form = rewritten(workload, one.plan.rewrites)
    # those of the outermost level are options of some strategies
    levels = machine.levels[1 if "order" in one.strategy.options else 0 :]
    per_level = [[None, *distinct_orders(form, tree, level.name)] for level in levels]
    for chosen in itertools.product(*per_level):
        named = zip(levels, chosen, strict=True)
        yield {level.name: order for level, order in named if order is not None}


def distinct_orders(workload: CompoundOp, tree: Node, level: str) -> tuple[str, ...]:
    """Orders of the loops in time of a level that can cost less than the tree's own.

    What an order changes is for how many innermost loops each tensor stays: the loops over
    dimensions that it lacks, up to the first one that it has. Orders that agree in this for all
    tensors, with every loop taking more than one step, are one order: where a loop takes a single
    step, another one of those returned costs no more. So of the six orders of a GEMM's three loops,
    which each of its tensors has two of, there are three: one for each innermost loop.

    Args:
      workload: after the rewrites.
      tree: the tree.
      level: the level.

    Returns:
      Dimensions, outermost first, as `mapping.reordered` takes them.
    """
    nodes = [n for n, _ in walk(tree) if isinstance(n, Temporal) and n.level == level]
    dims = list(dict.fromkeys(x.dim for n in nodes for x in n.loops))
    if any(len(d) > 1 for d in dims) or all(len(n.loops) < 2 for n in nodes):
        return ()

    seen = {_stays(workload, tree, level)}
    orders: list[str] = []
    for order in itertools.permutations(dims):
        signature = _stays(workload, reordered(tree, {level: order}), level)
        if signature not in seen:
            seen.add(signature)
            orders.append("".join(order))
    return tuple(orders)


def _stays(workload: CompoundOp, tree: Node, level: str | None = None) -> tuple[Any, ...]:
    """For how many innermost loops of each node, of a level or of all, each tensor stays."""
    found: list[Any] = []
    for node, _ in walk(tree):
        if not isinstance(node, Temporal) or level not in (None, node.level):
            continue
        for call in computes(node):
            operation = workload.operation(call.operation)
            for name in (*operation.inputs, operation.output):
                kept = itertools.takewhile(
                    lambda x, n=name: x.dim not in workload.tensor(n).dims, reversed(node.loops)
                )
                found.append(frozenset(kept))
    return tuple(found)
