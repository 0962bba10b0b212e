"""Exact scores of points: a machine with one mapping for each workload.

The one idea: what is priced is a *lane*, one workload by one mapping on one machine, so that a move
of one mapping costs one lane and not all workloads anew. A point of W workloads is W lanes, or one
*joint evaluation*; everything that any method prices is counted in lanes. Lanes of one tree go
through one compiled program in blocks of a few sizes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import jax
import numpy as np

from jaxcomet._compat import enable_x64
from jaxcomet.cost import Cost, cost_of
from jaxcomet.cost.conventions import Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping
from jaxcomet.optimize.joint.design import DesignSpace
from jaxcomet.optimize.joint.suite import Suite, Tree
from jaxcomet.workload import CompoundOp

Across = Literal["geomean", "total", "worst"]
"""How a metric is taken over workloads: weighted geometric mean, weighted sum, or the worst ratio
to the start machine."""

MISFIT = 1e6
"""Log score that puts what does not fit behind all that does, by its pressure."""

_BLOCKS = (256, 2048, 16384)  # lanes of a compiled program


@partial(jax.jit, static_argnames="conventions")
def _lane_prices(
    workload: CompoundOp, mapping: Mapping, machine: Machine, conventions: Conventions
) -> tuple[Any, Any, Any]:
    cost = cost_of(workload, mapping, machine, conventions)
    return cost.latency_cycles, cost.energy_pj, cost.pressure


def needs(space: DesignSpace, cost: Cost, number: int) -> list[Any]:
    """Values that a free number must have for each memory that it sets to hold what is needed.

    Args:
      space: the space.
      cost: of any shape.
      number: of a capacity, or of several that keep their ratio.

    Returns:
      Base units, of the shape of the cost; one per memory in use.
    """
    ratios = {key.split(".")[1]: ratio for key, ratio in space.ratios[number]}
    return [o.needed_bytes / ratios[o.memory] for o in cost.occupancy if o.memory in ratios]


@partial(jax.jit, static_argnames=("conventions", "memories"))
def _lane_needs(
    workload: CompoundOp,
    mapping: Mapping,
    machine: Machine,
    conventions: Conventions,
    memories: tuple[str, ...],
) -> dict[str, Any]:
    cost = cost_of(workload, mapping, machine, conventions)
    return {o.memory: o.needed_bytes for o in cost.occupancy if o.memory in memories}


@dataclass
class Points:
    """Several machines, each with one mapping for each workload.

    Attributes:
      grid: grid positions of the free numbers, shape (points, numbers).
      tree: number of the tree of each workload, shape (points, workloads).
      rows: row of each axis of that tree, shape (points, workloads, axes).
    """

    grid: np.ndarray
    tree: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        """Number of points."""
        return len(self.grid)

    def take(self, index: Any) -> "Points":
        """Some of the points."""
        return Points(self.grid[index].copy(), self.tree[index].copy(), self.rows[index].copy())

    def put(self, index: Any, other: "Points") -> None:
        """Replaces some of the points."""
        self.grid[index], self.tree[index], self.rows[index] = other.grid, other.tree, other.rows


def joined(several: Sequence[Points]) -> Points:
    """Points one after the other."""
    return Points(
        np.concatenate([p.grid for p in several]),
        np.concatenate([p.tree for p in several]),
        np.concatenate([p.rows for p in several]),
    )


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What is minimised, for each of several points.

    Attributes:
      exponents: of latency, energy and area, shape (points, 3): their weighted product.
      limits: of the budgets, shape (points, budgets).
      across: how latency and energy are taken over workloads.
    """

    exponents: np.ndarray
    limits: np.ndarray
    across: Across

    def take(self, index: Any) -> "Aim":
        """The aims of some of the points."""
        return dataclasses.replace(self, exponents=self.exponents[index], limits=self.limits[index])


@dataclass
class Scores:
    """Exact results of points.

    Attributes:
      latency: cycles of each workload, shape (points, workloads).
      energy: pJ of each workload.
      pressure: largest ratio of needed to there; fits up to 1.
      area: mm2, shape (points,).
    """

    latency: np.ndarray
    energy: np.ndarray
    pressure: np.ndarray
    area: np.ndarray

    def __len__(self) -> int:
        """Number of points."""
        return len(self.area)

    @property
    def fits(self) -> np.ndarray:
        """Whether all workloads fit, shape (points,)."""
        return np.all(self.pressure <= 1.0, axis=1)

    def take(self, index: Any) -> "Scores":
        """Those of some of the points."""
        return Scores(
            self.latency[index].copy(),
            self.energy[index].copy(),
            self.pressure[index].copy(),
            self.area[index].copy(),
        )

    def put(self, index: Any, other: "Scores") -> None:
        """Replaces those of some of the points."""
        self.latency[index], self.energy[index] = other.latency, other.energy
        self.pressure[index], self.area[index] = other.pressure, other.area


@dataclass
class Joint:
    """A space of machines and a suite of workloads, with exact scores that are counted.

    Attributes:
      space: the machines.
      suite: the workloads.
      conventions: rules of accounting.
      reference: latency and energy of each workload on the start machine with its best mappings,
        shape (2, workloads); ratios to it are taken for the worst case.
      lanes: lanes priced so far.
      machines: machines so far whose mappings were all priced.
      by_machine: what is counted: machines, and not lanes.
      seen: called with the points of every scoring, their scores and aims.
    """

    space: DesignSpace
    suite: Suite
    conventions: Conventions
    reference: np.ndarray
    lanes: int = 0
    machines: int = 0
    by_machine: bool = False
    seen: Callable[[Points, Scores], None] | None = None

    @cached_property
    def moving(self) -> tuple[bool, ...]:
        """Whether each leaf of a machine may differ between machines of the space."""
        corners = np.zeros((2, len(self.space.free)), dtype=np.int64)
        corners[1] = self.space.sizes - 1
        return tuple(
            np.ndim(x) > 0 or float(np.ravel(x)[0]) != float(start)
            for x, start in zip(
                jax.tree.leaves(self.space.machines(corners)),
                jax.tree.leaves(self.space.start),
                strict=True,
            )
        )

    @property
    def evaluated(self) -> float:
        """Joint evaluations so far, or machines."""
        return float(self.machines) if self.by_machine else self.lanes / len(self.suite.items)

    # -- prices ----------------------------------------------------------------------------------

    def price(
        self, grid: np.ndarray, items: np.ndarray, trees: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Latency, energy and pressure of lanes.

        Args:
          grid: grid positions of their machines, shape (lanes, numbers).
          items: numbers of their workloads, shape (lanes,).
          trees: numbers of their trees.
          rows: rows of the axes, shape (lanes, axes).
        """
        found = np.empty((3, len(items)))
        for number in np.unique(trees):
            tree = self.suite.trees[number]
            lanes = np.flatnonzero(trees == number)
            place = np.array([tree.place[i] for i in items[lanes]])
            for at in range(0, len(lanes), _BLOCKS[-1]):
                part = slice(at, at + _BLOCKS[-1])
                found[:, lanes[part]] = self.price_tree(
                    tree, self.space.values(grid[lanes[part]]), place[part], rows[lanes[part]]
                )
        self.lanes += len(items)
        return found[0], found[1], found[2]

    def price_tree(
        self, tree: Tree, values: np.ndarray, place: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """As `price` for lanes of one tree, shape (3, lanes); not counted.

        Args:
          tree: the tree.
          values: values of the free numbers, shape (lanes, numbers).
          place: positions of the workloads among those of the tree.
          rows: rows of the axes, shape (lanes, axes).
        """
        return self.price_lanes(tree, self.space.machine(list(values.T)), place, rows)

    def price_lanes(
        self, tree: Tree, machine: Machine, place: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """As `price_tree`, on machines that need not be on the grid: leaves of shape (lanes,)."""
        count = len(place)
        size = next((b for b in _BLOCKS if b >= count), count)
        prices = self.started(tree, machine, place, rows, size)
        return np.stack([np.broadcast_to(x, size)[:count] for x in jax.device_get(prices)])

    def started(
        self,
        tree: Tree,
        machine: Machine,
        place: np.ndarray,
        rows: np.ndarray,
        size: int,
        memories: tuple[str, ...] = (),
    ) -> Any:
        """As `price_lanes`, in a program for `size` lanes, whose results may still be under way.

        Args:
          tree: the tree.
          machine: leaves of shape (lanes,), or floats where all lanes share the machine.
          place: positions of the workloads among those of the tree.
          rows: rows of the axes, shape (lanes, axes).
          size: lanes of the program; those beyond the given ones repeat the last.
          memories: instead of prices, the bytes that are needed of these.
        """
        count = len(place)
        padded = np.minimum(np.arange(size), count - 1)
        leaves, structure = jax.tree.flatten(machine)
        alone = not any(np.ndim(x) for x in leaves)

        def leaf(x: Any, moves: bool) -> Any:
            # what does not move is a scalar, so that the program works it out once
            if alone:
                return np.asarray(x, dtype=np.float64)
            several = np.broadcast_to(np.asarray(x, dtype=np.float64), count)
            return several[padded] if moves else several[0]

        numbers: Machine = structure.unflatten(map(leaf, leaves, self.moving))
        workload = jax.tree.map(lambda x: x[place][padded], tree.workloads)
        mapping = tree.mapping(tree.factors(rows[padded]))
        with enable_x64(True):
            if memories:
                return _lane_needs(workload, mapping, numbers, self.conventions, memories)
            return _lane_prices(workload, mapping, numbers, self.conventions)

    def needed(self, points: Points, derived: Sequence[int]) -> np.ndarray:
        """Least values of capacities that hold what all mappings of points need.

        Args:
          points: the points.
          derived: numbers of the capacities.

        Returns:
          Base units of the free numbers, shape (points, capacities).
        """
        space, count = self.space, len(points)
        several = [{k.split(".")[1]: r for k, r in space.ratios[d]} for d in derived]
        memories = tuple(sorted({m for ratios in several for m in ratios}))
        found = np.zeros((count, len(derived)))
        values = space.values(points.grid)
        for number, tree in enumerate(self.suite.trees):
            point, item = np.nonzero(points.tree == number)
            for at in range(0, len(point), _BLOCKS[-1]):
                own = slice(at, at + _BLOCKS[-1])
                machine = space.machine(list(values[point[own]].T))
                place = np.array([tree.place[i] for i in item[own]])
                size = next(b for b in _BLOCKS if b >= len(place))
                rows = points.rows[point[own], item[own]]
                needed = jax.device_get(self.started(tree, machine, place, rows, size, memories))
                for column, ratios in enumerate(several):
                    for memory, ratio in ratios.items():
                        if memory in needed:
                            each = np.broadcast_to(needed[memory], size)[: len(place)]
                            np.maximum.at(found[:, column], point[own], each / ratio)
        return found

    def score(self, points: Points) -> Scores:
        """Exact results of points; each counts as one joint evaluation."""
        count, width = points.tree.shape
        latency, energy, pressure = self.price(
            np.repeat(points.grid, width, axis=0),
            np.tile(np.arange(width), count),
            points.tree.ravel(),
            points.rows.reshape(count * width, -1),
        )
        shape = (count, width)
        scores = Scores(
            latency.reshape(shape),
            energy.reshape(shape),
            pressure.reshape(shape),
            self.areas(points.grid),
        )
        self.look(points, scores)
        return scores

    def areas(self, grid: np.ndarray) -> np.ndarray:
        """Areas of machines, mm2."""
        area = self.space.area_mm2(self.space.machines(grid))
        return np.broadcast_to(np.asarray(area), len(grid)).astype(np.float64)

    def look(self, points: Points, scores: Scores) -> None:
        """Shows points and their scores to who keeps the best."""
        if self.seen is not None:
            self.seen(points, scores)

    # -- objectives ------------------------------------------------------------------------------

    def total(self, scores: Scores, aim: Aim) -> np.ndarray:
        """Log of what is minimised; the more the more workloads do not fit, shape (points,).

        The budgets are no part of it: points keep to them.
        """
        fits = scores.pressure <= 1.0
        weights = self.suite.weights
        a, b, c = aim.exponents.T
        if aim.across == "total":
            both = a * np.log(np.where(fits, scores.latency, 1.0) @ weights)
            both = both + b * np.log(np.where(fits, scores.energy, 1.0) @ weights)
        else:
            several = a[:, None] * np.log(scores.latency / self.reference[0])
            several = several + b[:, None] * np.log(scores.energy / self.reference[1])
            several = np.where(fits, several, 0.0)
            both = several @ weights if aim.across == "geomean" else several.max(axis=1)
        over = np.where(fits, 0.0, MISFIT + np.log(np.maximum(scores.pressure, 1.0))) @ weights
        return both + c * np.log(scores.area) + over

    def each(self, scores: Scores, aim: Aim, at: Scores | None = None) -> np.ndarray:
        """What each workload adds; lowering it lowers the total, shape (points, workloads).

        Args:
          scores: of the points.
          aim: what is minimised.
          at: where sums over workloads are linearised: the log of a sum lies below its tangent, so
            what lowers the tangent lowers the sum. None: at the scores themselves.
        """
        a, b, _ = aim.exponents.T
        fits = scores.pressure <= 1.0
        if aim.across == "total":
            around = scores if at is None else at
            weights = self.suite.weights
            found = a[:, None] * scores.latency / (around.latency @ weights)[:, None]
            found = found + b[:, None] * scores.energy / (around.energy @ weights)[:, None]
        else:
            found = a[:, None] * np.log(scores.latency) + b[:, None] * np.log(scores.energy)
        return np.where(fits, found, MISFIT + np.log(np.maximum(scores.pressure, 1.0)))

    # -- points ----------------------------------------------------------------------------------

    def tables(self, grid: np.ndarray, tree: np.ndarray) -> np.ndarray:
        """Tables of the axes of points, shape (points, workloads, axes)."""
        count, width = tree.shape
        found = np.zeros((count, width, self.suite.most_axes), dtype=np.int64)
        values = self.space.values(grid)
        for number in np.unique(tree):
            one = self.suite.trees[number]
            point, item = np.nonzero(tree == number)
            place = np.array([one.place[i] for i in item])
            machine = self.space.machine(list(values[point].T))
            for axis, tables in enumerate(one.tables(place, machine)):
                found[point, item, axis] = tables
        return found

    def random(self, rng: np.random.Generator, limits: np.ndarray) -> Points:
        """Random machines within budgets, one per row of limits, with random mappings."""
        count = len(limits)
        grid = self.space.within(self.space.random(rng, count), limits)
        tree = np.stack([rng.choice(c, count) for c in self.suite.choices], axis=1)
        return Points(grid, tree, self.random_rows(rng, grid, tree))

    def random_rows(
        self, rng: np.random.Generator, grid: np.ndarray, tree: np.ndarray
    ) -> np.ndarray:
        """Random mappings by given trees on given machines."""
        rows = np.zeros((*tree.shape, self.suite.most_axes), dtype=np.int64)
        tables = self.tables(grid, tree)
        for number, one in enumerate(self.suite.trees):
            point, item = np.nonzero(tree == number)
            for axis in range(len(one.axes)):
                drawn = one.axes[axis].tables.random(rng, tables[point, item, axis])
                rows[point, item, axis] = drawn
        return rows

    def moved(self, points: Points, grid: np.ndarray) -> Points:
        """The points on other machines: mappings split anew where units have changed."""
        tables, rows = self.tables(grid, points.tree), points.rows.copy()
        for number, one in enumerate(self.suite.trees):
            point, item = np.nonzero(points.tree == number)
            for axis, joint_axis in enumerate(one.axes):
                several = joint_axis.tables
                old, table = rows[point, item, axis], tables[point, item, axis]
                changed = ~several.within(old, table)
                if changed.any():
                    logs = several.logs(old[changed])
                    extent = several.extent(table[changed])
                    whole = logs.sum(axis=1)
                    # the same shares of what is to be covered; all of it at the engine where
                    # nothing was
                    shares = np.where(
                        whole[:, None] > 0, logs / np.maximum(whole, 1e-30)[:, None], 0
                    )
                    shares[whole <= 0, -1] = 1.0
                    near = several.nearest(table[changed], shares * extent[:, None])
                    rows[point[changed], item[changed], axis] = near
        return Points(grid.copy(), points.tree.copy(), rows)

    def fitted(self, points: Points, scores: Scores) -> tuple[Points, Scores]:
        """The points with smaller tiles where they do not fit.

        Of a mapping that needs too much room, the steps go to the outermost loops by quarters until
        it fits; each try is a lane.
        """
        points, scores = points.take(slice(None)), scores.take(slice(None))
        tables = self.tables(points.grid, points.tree)
        origin = points.rows.copy()
        for share in (0.25, 0.5, 0.75, 1.0):
            point, item = np.nonzero(scores.pressure > 1.0)
            if not len(point):
                break
            rows = origin[point, item].copy()
            for number in np.unique(points.tree[point, item]):
                lanes = np.flatnonzero(points.tree[point, item] == number)
                for axis, joint_axis in enumerate(self.suite.trees[number].axes):
                    several = joint_axis.tables
                    logs = several.logs(rows[lanes, axis])
                    outer = np.zeros_like(logs)
                    outer[:, 0] = logs.sum(axis=1)
                    wanted = (1.0 - share) * logs + share * outer
                    table = tables[point[lanes], item[lanes], axis]
                    rows[lanes, axis] = several.nearest(table, wanted)
            found = self.price(points.grid[point], item, points.tree[point, item], rows)
            better = found[2] < scores.pressure[point, item]
            at = (point[better], item[better])
            points.rows[at] = rows[better]
            scores.latency[at], scores.energy[at] = found[0][better], found[1][better]
            scores.pressure[at] = found[2][better]
        self.look(points, scores)
        return points, scores
