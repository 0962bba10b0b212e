"""The space of mappings of a strategy, read off its tree.

The one idea: a tree says which factors split which dimension, so its space is the product, over
dimensions, of all splits of the dimension over the temporal factors. Spatial factors are set to
what the machine's meshes offer, or are split as well (`Scope.units`). Parts of a tree that share no
factor (operations that run apart) form spaces of their own: the best of the whole is the best of
each.

Left out: other loop orders, which are other trees (`jaxcomet.optimize.ways`).
"""

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import jax
import numpy as np

from jaxcomet.arith import Number
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import (
    Group,
    Node,
    Spatial,
    computes,
    factor_names,
    loops_of,
    walk,
)
from jaxcomet.optimize.splits import covers
from jaxcomet.optimize.units import chains, spatial_factors, without_idle
from jaxcomet.workload import CompoundOp

Tiles = Literal["padded", "divisors", "any"]
"""Sizes of tiles: ``divisors`` of the extent; ``padded``, also those of extents a little larger
that have more divisors; ``any`` size, the last tile being partial."""

Units = Literal["all", "free"]
"""Units that spatial factors take: ``all`` that are there and find work, or any number of them."""

TILES: tuple[Tiles, ...] = ("padded", "divisors", "any")
UNITS: tuple[Units, ...] = ("all", "free")


class ConstraintError(ValueError):
    """A constraint that no mapping meets; the message names it and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a space ranges over.

    Attributes:
      tiles: sizes of tiles.
      units: numbers of units.
      fixed: (factor, value) pairs that hold for all mappings.
      max_units: (level, number) pairs: units of a level, over the whole machine, that a mapping may
        use; such a limit makes the numbers of units free.
    """

    tiles: Tiles = "padded"
    units: Units = "all"
    fixed: tuple[tuple[str, int], ...] = ()
    max_units: tuple[tuple[str, int], ...] = ()

    @property
    def free_units(self) -> bool:
        """Whether the numbers of units are free."""
        return self.units == "free" or bool(self.max_units)


EVERYTHING = Scope()


@dataclass(frozen=True)
class Axis:
    """All splits of one dimension.

    Attributes:
      dim: the dimension.
      names: factors, one per column.
      splits: values, shape (splits, factors), float64.
    """

    dim: str
    names: tuple[str, ...]
    splits: np.ndarray


@dataclass(frozen=True)
class Space:
    """The mappings of a tree, or of a part of it that shares no factor with the rest.

    Attributes:
      tree: the part.
      axes: one or more per dimension; a mapping picks one split of each.
    """

    tree: Node
    axes: tuple[Axis, ...]

    @cached_property
    def size(self) -> int:
        """Number of mappings."""
        size = 1
        for axis in self.axes:
            size *= len(axis.splits)
        return size

    def units(self) -> dict[str, int] | None:
        """The factors over units, where each has one value in all mappings; else None."""
        nodes = [n for n, _ in walk(self.tree) if isinstance(n, Spatial)]
        names = {f for n in nodes for loop in loops_of(n) for f in loop.factors}
        found: dict[str, int] = {}
        for axis in self.axes:
            for column, name in enumerate(axis.names):
                values = axis.splits[:, column]
                if name in names and (values == values[0]).all():
                    found[name] = int(values[0])
        return found if set(found) == names else None

    def factors(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Factors of the mappings with the given numbers (0 to size - 1)."""
        found: dict[str, np.ndarray] = {}
        rest = indices
        for axis in reversed(self.axes):
            rest, choice = np.divmod(rest, len(axis.splits))
            picked = axis.splits[choice]
            for column, name in enumerate(axis.names):
                found[name] = picked[:, column]
        return found


def axes(
    workload: CompoundOp,
    machine: Machine,
    tree: Node,
    dim: str,
    spatial: dict[str, float],
    scope: Scope = EVERYTHING,
) -> tuple[Axis, ...]:
    """All splits of one dimension over the factors of a tree.

    Args:
      workload: its size of `dim` is the bound; a single shape, no batch.
      machine: its meshes are the most that spatial factors may take.
      tree: the tree.
      dim: the dimension.
      spatial: the spatial factors; those of the dimension are lowered where units would idle.
      scope: what the space ranges over.

    Returns:
      One axis per set of factors: operations that split the dimension by factors of their own
      have an axis of their own.
    """
    found = axis_chains(workload, tree, dim)
    return tuple(_axis(workload, machine, tree, dim, c, spatial, scope) for c in found)


def axis_chains(workload: CompoundOp, tree: Node, dim: str) -> tuple[tuple[str, ...], ...]:
    """Factors, outermost first, that split a dimension: once per set that shares some."""
    found: list[tuple[str, ...]] = []
    for chain_dim, chain in chains(workload, tree):
        if chain_dim != dim:
            continue
        related = [x for x in found if set(x) & set(chain)]
        found = [x for x in found if x not in related]
        found.append(max([*related, chain], key=len))
    return tuple(found)


def _axis(
    workload: CompoundOp,
    machine: Machine,
    tree: Node,
    dim: str,
    chain: tuple[str, ...],
    spatial: dict[str, float],
    scope: Scope,
) -> Axis:
    bound = int(workload.sizes[dim])  # pyright: ignore[reportArgumentType]
    fixed = {n: v for n, v in scope.fixed if n in chain}
    units = [n for n in chain if n in spatial and n not in fixed]
    if scope.free_units:
        most = _mesh_edges(machine, tree)
        choices = itertools.product(*(range(1, min(most[n], bound) + 1) for n in units))
        spreads = [{**fixed, **dict(zip(units, c, strict=True))} for c in choices]
    else:
        spatial |= _floats(without_idle(float(bound), units, spatial))
        spreads = [{**fixed, **{n: spatial[n] for n in units}}]
    free = [n for n in chain if n not in units and n not in fixed]
    found: list[np.ndarray] = []
    for given in spreads:
        spread = int(np.prod([*given.values(), 1]))
        ways = covers(-(-bound // spread), len(free), scope.tiles)
        full = np.ones((len(ways), len(chain)))
        for column, name in enumerate(chain):
            full[:, column] = given[name] if name in given else ways[:, free.index(name)]
        found.append(full[reaches(full, bound)])
    splits = np.unique(np.concatenate(found), axis=0)
    if len(splits) == 0:
        named = ", ".join(f"{n}={v}" for n, v in fixed.items())
        raise ConstraintError(
            f"fixed {named}: leaves no split of {dim} = {bound} over {', '.join(chain)} in which "
            "every step has work; give other values, or fix fewer factors"
        )
    return Axis(dim=dim, names=chain, splits=splits)


def _floats(factors: dict[str, Number]) -> dict[str, float]:
    return {n: float(v) for n, v in factors.items()}  # pyright: ignore[reportArgumentType]


def _mesh_edges(machine: Machine, tree: Node) -> dict[str, int]:
    """Units along the edge of the mesh that each spatial factor of a tree is laid over."""
    found: dict[str, int] = {}
    for node, _ in walk(tree):
        if isinstance(node, Spatial):
            level = machine.level(node.level)
            for loops, edge in ((node.x, level.mesh_x), (node.y, level.mesh_y)):
                found |= {f: int(edge) for loop in loops for f in loop.factors}
    return found


def reaches(splits: np.ndarray, bound: int) -> np.ndarray:
    """Which rows (outermost factor first) reach the bound without an empty step."""
    good = np.prod(splits, axis=1) >= bound
    inner = np.ones(len(splits))
    for column in range(splits.shape[1] - 1, -1, -1):
        factor = splits[:, column]
        good &= ~((factor > 1) & (inner * (factor - 1) >= bound))
        inner = inner * factor
    return good


def parts_of(tree: Node) -> tuple[Node, ...]:
    """The parts of a tree that share no factor."""
    several = (
        list(tree.children) if isinstance(tree, Group) and tree.binding == "sequential" else [tree]
    )
    clusters: list[tuple[set[str], list[Node]]] = []
    for part in several:
        names, nodes = set(factor_names(part)), [part]
        for cluster in [c for c in clusters if c[0] & names]:
            clusters.remove(cluster)
            names |= cluster[0]
            nodes = cluster[1] + nodes
        clusters.append((names, nodes))
    return tuple(n[0] if len(n) == 1 else Group(tuple(n)) for _, n in clusters)


def spaces(
    workload: CompoundOp, machine: Machine, tree: Node, scope: Scope = EVERYTHING
) -> tuple[Space, ...]:
    """The spaces of a tree: one, or one per set of parts that share no factor.

    Args:
      workload: a single shape.
      machine: a single machine.
      tree: the mapping tree.
      scope: what they range over.

    Raises:
      ConstraintError: a fixed factor that the tree does not have, or that leaves no split.
    """
    known = factor_names(tree)
    for name, _ in scope.fixed:
        if name not in known:
            raise ConstraintError(f"fixed {name}: no such factor; there are {', '.join(known)}")
    found = []
    floats = jax.tree.map(float, (workload, machine))
    for part in parts_of(tree):
        dims = dict.fromkeys(
            d
            for c in computes(part)
            for d in workload.iteration_dims(workload.operation(c.operation))
        )
        spatial = _floats(spatial_factors(floats[0], floats[1], part))
        per_dim = [axes(workload, machine, part, d, spatial, scope) for d in dims]
        found.append(Space(part, tuple(a for several in per_dim for a in several)))
    return tuple(found)
