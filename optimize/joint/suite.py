"""The workloads of a co-design, sorted by what one program can price.

The one idea: workloads of one structure whose mappings have one tree differ in numbers alone, so
they stand side by side in arrays. The number of programs is the number of trees, however many
workloads there are.
"""

import copy
import dataclasses
import math
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jaxcomet.arith import Number
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping, MappingError, Spatial, computes, loops_of, walk
from jaxcomet.optimize.joint.tables import AxisTables
from jaxcomet.optimize.result import ImpossibleError, SearchError
from jaxcomet.optimize.space import Tiles, axis_chains, parts_of
from jaxcomet.optimize.units import spatial_factors, without_idle
from jaxcomet.optimize.ways import Way, candidates, ways
from jaxcomet.rewrite import rewritten
from jaxcomet.workload import CompoundOp


@dataclass(frozen=True, kw_only=True)
class Item:
    """A workload of a suite.

    Attributes:
      name: as in tables.
      workload: a single shape.
      weight: its weight in the objective, > 0; those of a suite add up to 1.
    """

    name: str
    workload: CompoundOp
    weight: float


@dataclass(frozen=True, kw_only=True)
class JointAxis:
    """An axis of a tree: the factors that split one dimension.

    Attributes:
      dim: the dimension.
      names: factors, outermost first.
      over_units: those over units, outermost first.
      part: number of the part of the tree that it belongs to.
      tables: its splits.
    """

    dim: str
    names: tuple[str, ...]
    over_units: tuple[str, ...]
    part: int
    tables: AxisTables

    @property
    def free(self) -> tuple[str, ...]:
        """Factors in time and of the engine's call, outermost first."""
        return tuple(n for n in self.names if n not in self.over_units)


class Tree:
    """Workloads of one structure with one tree.

    Attributes:
      number: its number among the trees of the suite.
      way: the strategy with its options.
      items: numbers of the workloads in the suite.
      workloads: their leaves side by side, shape (workloads,).
      form: as `workloads`, after the rewrites of the tree.
      axes: the axes of the tree.
    """

    def __init__(
        self, number: int, way: Way, workloads: MappingABC[int, CompoundOp], tiles: Tiles
    ) -> None:
        """Sorts the axes of the tree."""
        assert way.plan is not None
        self.number = number
        self.way = way
        self._plan = way.plan
        self.items = tuple(workloads)
        self.workloads: CompoundOp = jax.tree.map(
            lambda *x: np.array(x, dtype=np.float64), *workloads.values()
        )
        self.form = rewritten(self.workloads, way.plan.rewrites)
        self.parts = parts_of(way.plan.tree)
        found: list[JointAxis] = []
        for number, part in enumerate(self.parts):
            nodes = [n for n, _ in walk(part) if isinstance(n, Spatial)]
            over = {f for n in nodes for loop in loops_of(n) for f in loop.factors}
            dims = dict.fromkeys(
                d
                for c in computes(part)
                for d in self.form.iteration_dims(self.form.operation(c.operation))
            )
            for dim in dims:
                for names in axis_chains(self.form, part, dim):
                    tables = AxisTables(names, tuple(n in over for n in names), tiles)
                    units = tuple(n for n in names if n in over)
                    found.append(
                        JointAxis(
                            dim=dim, names=names, over_units=units, part=number, tables=tables
                        )
                    )
        self.axes = tuple(found)

    @cached_property
    def place(self) -> dict[int, int]:
        """Position of each workload among `items`."""
        return {item: place for place, item in enumerate(self.items)}

    def only(self, items: Sequence[int]) -> "Tree":
        """The tree with some of its workloads; it shares the tables."""
        index = np.array([self.place[i] for i in items])
        found = copy.copy(self)
        found.items = tuple(items)
        found.workloads = jax.tree.map(lambda x: x[index], self.workloads)
        found.form = jax.tree.map(lambda x: x[index], self.form)
        found.__dict__.pop("place", None)
        return found

    def mapping(self, factors: dict[str, Any]) -> Mapping:
        """The mapping with factors; without a name, which would make a program of its own."""
        return Mapping(
            strategy="",
            tree=self._plan.tree,
            homes=tuple(sorted(self._plan.homes.items())),
            factors=factors,
            rewrites=self._plan.rewrites,
        )

    def units(self, form: CompoundOp, machine: Machine) -> tuple[dict[str, Number], ...]:
        """Units of each factor over units, per axis.

        Args:
          form: sizes of the workloads after the rewrites, alone or as arrays.
          machine: its meshes, alone or as arrays.
        """
        per_part = [spatial_factors(form, machine, part) for part in self.parts]
        return tuple(
            without_idle(form.sizes[a.dim], a.over_units, per_part[a.part]) if a.over_units else {}
            for a in self.axes
        )

    def tables(self, places: np.ndarray, machine: Machine) -> list[np.ndarray]:
        """Numbers of the tables of each axis, for lanes of workloads on machines.

        Args:
          places: positions among `items`, shape (lanes,).
          machine: leaves of shape (lanes,), or alone.
        """
        lanes = len(places)
        form: CompoundOp = jax.tree.map(lambda x: x[places], self.form)
        found = []
        for axis, units in zip(self.axes, self.units(form, machine), strict=True):
            columns = [np.broadcast_to(np.asarray(units[n]), lanes) for n in axis.over_units]
            given = np.stack(columns, axis=1) if columns else np.empty((lanes, 0))
            found.append(axis.tables.table(np.asarray(form.sizes[axis.dim]), given))
        return found

    def factors(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Factors of mappings, from the row of each axis, shape (lanes, axes)."""
        found: dict[str, np.ndarray] = {}
        for number, axis in enumerate(self.axes):
            values = axis.tables.factors(rows[:, number])
            found |= {name: values[:, column] for column, name in enumerate(axis.names)}
        return found


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Workloads with the trees that each may be mapped by.

    Attributes:
      items: the workloads.
      trees: all trees.
      choices: per workload, numbers of its trees.
      tiles: sizes of tiles.
    """

    items: tuple[Item, ...]
    trees: tuple[Tree, ...]
    choices: tuple[tuple[int, ...], ...]
    tiles: Tiles = "padded"

    @property
    def weights(self) -> np.ndarray:
        """Weights of the workloads, shape (workloads,); they add up to 1."""
        return np.array([item.weight for item in self.items])

    @property
    def most_axes(self) -> int:
        """Axes of the tree that has most."""
        return max(len(tree.axes) for tree in self.trees)

    def only(self, chosen: Sequence[int]) -> "Suite":
        """The suite with one tree for each workload, by its number; trees have no others."""
        kept = sorted(set(chosen))
        return dataclasses.replace(
            self,
            trees=tuple(
                self.trees[k].only([i for i, c in enumerate(chosen) if c == k]) for k in kept
            ),
            choices=tuple((kept.index(c),) for c in chosen),
        )


def make_suite(
    workloads: Iterable[CompoundOp] | MappingABC[str, CompoundOp],
    machine: Machine,
    *,
    weights: Sequence[float] | None = None,
    strategies: MappingABC[str, Sequence[str]] | None = None,
    options: MappingABC[str, str] | None = None,
    tiles: Tiles = "padded",
) -> Suite:
    """Sorts workloads by structure and tree.

    Args:
      workloads: single shapes, with names or without.
      machine: any machine of the space; trees depend on its levels alone.
      weights: of the workloads; equal if left out.
      strategies: by name of the compound operation, the strategies that may be chosen; all where
        left out.
      options: as for `optimize.map`; each strategy's default where left out.
      tiles: sizes of tiles.

    Raises:
      SearchError: no workloads, or weights that cannot be.
      ImpossibleError: a workload that no strategy can map on this machine.
    """
    if isinstance(workloads, MappingABC):
        named = {str(name): op for name, op in workloads.items()}
    else:
        named = {f"{n}: {_title(op)}": op for n, op in enumerate(workloads, 1)}
    if not named:
        raise SearchError("workloads: got none; expected at least one")
    there = {op.name for op in named.values()}
    for operation in strategies or {}:
        if operation not in there:
            raise SearchError(
                f"strategies: got {operation!r}, but no workload is one; there are "
                f"{', '.join(sorted(there))}"
            )
    given = [1.0] * len(named) if weights is None else list(weights)
    if len(given) != len(named):
        raise SearchError(f"weights: got {len(given)} for {len(named)} workloads")
    if not all(math.isfinite(w) and w > 0 for w in given):
        raise SearchError(f"weights: got {given}; expected numbers > 0")
    total = sum(given)
    items = tuple(
        Item(name=name, workload=jax.tree.map(float, op), weight=w / total)
        for (name, op), w in zip(named.items(), given, strict=True)
    )
    grouped: dict[Any, tuple[Way, dict[int, CompoundOp]]] = {}
    for number, item in enumerate(items):
        op = item.workload
        names = (strategies or {}).get(op.name)
        found = ways(op, machine, candidates(op.name, options or {}, names, tried=()))
        refusals = []
        for one in found:
            refusal = one.refusal or _refusal(op, machine, one)
            if refusal:
                refusals.append(refusal)
                continue
            assert one.plan is not None
            homes = tuple(sorted(one.plan.homes.items()))
            key = (jax.tree.structure(op), one.plan.tree, homes, one.plan.rewrites)
            grouped.setdefault(key, (one, {}))[1][number] = op
        if len(refusals) == len(found):
            raise ImpossibleError(item.name, machine.name, tuple(dict.fromkeys(refusals)))
    trees = tuple(
        Tree(number, one, several, tiles) for number, (one, several) in enumerate(grouped.values())
    )
    choices = tuple(
        tuple(k for k, tree in enumerate(trees) if number in tree.place)
        for number in range(len(items))
    )
    return Suite(items=items, trees=trees, choices=choices, tiles=tiles)


def _refusal(op: CompoundOp, machine: Machine, one: Way) -> str:
    try:
        one.check(op, machine)
    except MappingError as error:
        return str(error)
    return ""


def _title(op: CompoundOp) -> str:
    sizes = "x".join(f"{float(v):g}" for v in op.sizes.values())  # pyright: ignore[reportArgumentType]
    return f"{op.name} {sizes}"
