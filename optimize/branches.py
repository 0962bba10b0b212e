"""Branches of a space: mappings that share their outermost loops, and what none of them goes below.

The one idea: what crosses the outermost boundary depends on the loops of the outermost level and on
the units right below it, whatever the loops further in are. So this part of the energy, the time
that the outermost memory's ports need, and the least room that a step's tiles take in the memories
of the next level are known for a whole branch at once. With what everything else needs at least
(`bounds.part_bound`) that bounds the objective of all of its mappings.

Left out: masks, whose blocks depend on all loops; conventions under which bytes of the outermost
boundary count padded tiles.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxcomet.cost.conventions import DEFAULT, Conventions
from jaxcomet.cost.energy import traffic
from jaxcomet.cost.occupancy import occupancy
from jaxcomet.cost.placement import Placement
from jaxcomet.cost.transfer import move_time
from jaxcomet.mapping import Spatial, Temporal, loops_of, walk
from jaxcomet.optimize.bounds import part_bound
from jaxcomet.optimize.pricing import Objective, Part, objective_keys
from jaxcomet.optimize.space import Axis, Space
from jaxcomet.rewrite import rewritten

_MOST = 1 << 22
"""Most branches of a space that are looked at: some hundred bytes each."""

_PHYSICAL = ("read_stalls", "step_share", "windows", "fill_drain", "shared_bus", "overlap")
"""Conventions that at other values than their defaults let a latency be below what ports need."""

_ROUNDING = 1e-9
"""Share that is taken off a bound: more than sums of floats are off. What differs by no more is the
same."""


@dataclass(frozen=True)
class Branches:
    """The branches of a part; arrays of one dimension an axis, of the axis's groups of splits.

    Attributes:
      part: the part.
      groups: of each axis, the rows of each group: splits with the same outermost factors.
      first: no mapping of a branch has an objective below.
      second: nor a second metric below, which decides ties.
      fits: whether some mapping may.
    """

    part: Part
    groups: tuple[tuple[np.ndarray, ...], ...]
    first: np.ndarray
    second: np.ndarray
    fits: np.ndarray

    @cached_property
    def sizes(self) -> np.ndarray:
        """Mappings of each branch."""
        counts = [np.array([len(rows) for rows in each], dtype=np.int64) for each in self.groups]
        return math.prod(np.ix_(*counts)) if counts else np.ones((), dtype=np.int64)  # pyright: ignore[reportReturnType]

    @cached_property
    def fitting(self) -> np.ndarray:
        """Numbers of the branches of which mappings may fit, those of the least bounds first."""
        order = np.lexsort((self.second.ravel(), self.first.ravel()))
        return order[self.fits.ravel()[order]]

    def may_beat(self, numbers: np.ndarray, best: tuple[float, float]) -> np.ndarray:
        """Which branches may hold a better mapping, by more than what rounding makes."""
        first, second = self.first.ravel()[numbers], self.second.ravel()[numbers]
        objective, other = (x * (1.0 - 2.0 * _ROUNDING) for x in best)
        return (first < objective) | ((first <= best[0]) & (second < other))

    def rows(self, branch: int) -> tuple[np.ndarray, ...]:
        """Rows of each axis that a branch takes, by its number."""
        chosen = np.unravel_index(branch, self.first.shape)
        return tuple(each[i] for each, i in zip(self.groups, chosen, strict=True))

    def choices(self, branches: Sequence[int]) -> np.ndarray:
        """All mappings of some branches, as rows of the axes."""
        found = [
            np.stack(np.meshgrid(*self.rows(b), indexing="ij"), axis=-1).reshape(
                -1, len(self.groups)
            )
            for b in branches
        ]
        return np.concatenate(found)

    def only(self, branch: int) -> Part:
        """The part with the mappings of one branch alone."""
        axes = tuple(
            dataclasses.replace(axis, splits=axis.splits[rows])
            for axis, rows in zip(self.part.space.axes, self.rows(branch), strict=True)
        )
        return dataclasses.replace(self.part, space=Space(self.part.space.tree, axes))


def branches(part: Part, objective: Objective) -> Branches | None:
    """The branches of a part with their bounds; None where nothing can be said of them.

    Args:
      part: what is searched.
      objective: what is minimised.
    """
    if part.workload.mask is not None or part.conventions.refill_energy == "per-step":
        return None
    tree, machine = part.space.tree, part.machine
    if len(machine.levels) < 2:
        return None
    decided = {
        f
        for node, _ in walk(tree)
        for loop in loops_of(node)
        for f in loop.factors
        if (isinstance(node, Temporal) and node.level == machine.levels[0].name)
        or (isinstance(node, Spatial) and node.level == machine.levels[1].name)
    }
    spread = {
        f for n, _ in walk(tree) if isinstance(n, Spatial) for x in loops_of(n) for f in x.factors
    }
    groups = tuple(_groups(axis, decided) for axis in part.space.axes)
    shape = tuple(len(each) for each in groups)
    if math.prod(shape) > _MOST:
        return None
    factors: dict[str, np.ndarray] = {}
    for position, (axis, each) in enumerate(zip(part.space.axes, groups, strict=True)):
        place = [1] * len(shape)
        place[position] = len(each)
        for name, column in _least(part, axis, each, decided, spread).items():
            factors[name] = column.reshape(place)
    mapping = part.with_factors(factors)  # pyright: ignore[reportArgumentType]
    workload = rewritten(part.workload, mapping.rewrites)
    placement = Placement(workload, mapping, machine, part.conventions)
    with np.errstate(all="ignore"):
        energy, cycles, fits = _outermost(placement)
        least = part_bound(
            workload,
            machine,
            tree,
            dict(mapping.homes),
            spatial=part.space.units(),
            conventions=part.conventions,
        )
        latency = np.maximum(least[0], cycles if _physical(part.conventions) else 0.0)
        keys = objective_keys(objective, latency, least[1] + energy)
    first, second = (np.broadcast_to(x * (1.0 - _ROUNDING), shape) for x in keys)
    return Branches(part, groups, first, second, np.broadcast_to(fits, shape))


def _physical(rules: Conventions) -> bool:
    return all(getattr(rules, name) == getattr(DEFAULT, name) for name in _PHYSICAL)


def _groups(axis: Axis, decided: set[str]) -> tuple[np.ndarray, ...]:
    """Rows of an axis by the values of its outermost factors."""
    columns = [i for i, name in enumerate(axis.names) if name in decided]
    if not columns:
        return (np.arange(len(axis.splits)),)
    _, group = np.unique(axis.splits[:, columns], axis=0, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    ends = np.flatnonzero(np.diff(group.ravel()[order])) + 1
    return tuple(np.split(order, ends))


def _least(
    part: Part,
    axis: Axis,
    groups: Sequence[np.ndarray],
    decided: set[str],
    spread: set[str],
) -> dict[str, np.ndarray]:
    """Factors of each group with the least that is left further in, all in its first loop there."""
    first = np.array([rows[0] for rows in groups])
    found = {
        name: axis.splits[first, column] if name in decided else np.ones(len(groups))
        for column, name in enumerate(axis.names)
    }
    outer = math.prod(found.values(), start=np.ones(len(groups)))
    inner = [name for name in axis.names if name not in decided and name not in spread]
    if inner:
        sizes = rewritten(part.workload, part.mapping.rewrites).sizes
        found[inner[0]] = np.ceil(float(sizes[axis.dim]) / outer)
    return found


def _outermost(placement: Placement) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(pJ of the moves of the outermost memory, cycles of its ports, whether the tiles fit)."""
    machine = placement.machine
    root = machine.root
    energy, ports = np.zeros(1), {"fill": np.zeros(1), "drain": np.zeros(1)}
    for node, above in placement.temporals:
        if node.level != root.level:
            continue
        for move in placement.moves(node, above):
            for t in traffic(placement, move, move_time(placement, move)):
                energy = energy + t.parent_energy_pj + t.child_energy_pj
                ports[t.direction] = ports[t.direction] + t.parent_bytes
    busy = ports["fill"] + ports["drain"]
    if root.duplex:
        busy = np.maximum(ports["fill"], ports["drain"])
    pressure = np.zeros(1)
    for memory in machine.memories.values():
        if machine.level_index(memory.level) == 1:
            share = occupancy(placement, memory.name).share
            pressure = np.maximum(pressure, 0.0 if share is None else share)
    return energy, busy / root.child_bandwidth_bytes_per_cycle, pressure <= 1.0
