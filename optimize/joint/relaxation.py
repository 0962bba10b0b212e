"""The relaxed joint model: one program for the machine and all mappings of many seeds.

The one idea: a seed is the logs of the free machine numbers and, for each workload and axis, the
logs of the factors. The factors of a dimension add up (in logs) to its extent; what the units take,
which follows from the meshes, is taken from all alike, so that a mesh may grow under a mapping.
Budgets and room are constraints of an augmented Lagrangian, with multipliers of their own for each
seed and workload; objective and budgets are numbers of each seed, so that a whole front or a ladder
of budgets is one batch of one program.

Seeds are independent. They are split over all devices (`jax.shard_map`) and go through in blocks of
one size, whatever the number of devices, so that this number changes no result.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from jaxcomet.arith import relaxed
from jaxcomet.cost import Cost, cost_of
from jaxcomet.cost.conventions import Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.optimize.descent import settled
from jaxcomet.optimize.joint.design import DesignSpace
from jaxcomet.optimize.joint.scoring import Across, Aim, Joint, Points, needs
from jaxcomet.optimize.joint.suite import Suite, Tree

ROUNDED = 4
"""Steps between two roundings."""

NUMBER_RATE = 0.15
"""Step of Adam in logs of machine numbers."""

FACTOR_RATE = 0.3
"""Step of Adam in logs of factors."""

_PENALTY = 1.0  # of the augmented Lagrangian
_MULTIPLIER = 20.0  # its largest multiplier
_SHARPNESS = 0.05  # width of the smooth maximum over workloads, in logs
BLOCK = 8
"""Seeds that go through the program at once: more no longer fit the caches."""

_LEAST = 32  # seeds of the smallest program


class Seeds(NamedTuple):
    """State of the descent; every leaf has the seeds along its first axis.

    Attributes:
      numbers: logs of the free machine numbers, shape (seeds, numbers).
      factors: per tree and axis, logs of its factors, shape (seeds, workloads, columns).
      adam: state of the optimiser, one per seed.
      room: multipliers of the room for each workload, shape (seeds, workloads).
      budget: multipliers of the budgets, shape (seeds, budgets).
      exponents: of latency, energy and area in the objective, shape (seeds, 3).
      limits: of the budgets, shape (seeds, budgets).
    """

    numbers: Any
    factors: Any
    adam: Any
    room: Any
    budget: Any
    exponents: Any
    limits: Any


_ADAM = optax.scale_by_adam()


class Relaxation:
    """The relaxed model of a space and a suite with one tree for each workload."""

    def __init__(
        self,
        joint: Joint,
        suite: Suite,
        across: Across,
        devices: Any = None,
        derive: bool = False,
    ) -> None:
        """Compiles nothing yet.

        Args:
          joint: the space, and what the worst case is held against.
          suite: with one tree for each workload.
          across: how metrics are taken over workloads.
          devices: devices that share the seeds; all if left out.
          derive: capacities that the space marks so follow from the mappings.
        """
        self.derived = tuple(d for d, f in enumerate(joint.space.free) if derive and f.derived)
        self.space: DesignSpace = joint.space
        self.suite = suite
        self.across: Across = across
        self._conventions: Conventions = joint.conventions
        self._reference = np.asarray(joint.reference, dtype=np.float32)
        self._mesh = Mesh(np.array(jax.devices() if devices is None else devices), ("seeds",))
        order = [i for tree in suite.trees for i in tree.items]
        self._order = np.argsort(order)
        self._totals = tuple(
            tuple(np.log(np.asarray(tree.form.sizes[a.dim], dtype=np.float32)) for a in tree.axes)
            for tree in suite.trees
        )
        self._advance = jax.jit(self._sharded, static_argnames="blocks")
        self._values = jax.jit(self._loss_parts)

    @property
    def parameters(self) -> int:
        """Numbers that move in each seed, those of single-valued axes left out."""
        found = len(self.space.free)
        for tree, totals in zip(self.suite.trees, self._totals, strict=True):
            for axis, total in zip(tree.axes, totals, strict=True):
                columns = axis.tables.columns
                found += int((total > 0).sum()) * (columns if columns > 1 else 0)
        return found

    # -- between points and seeds ----------------------------------------------------------------

    def start(self, points: Points, aim: Aim) -> Seeds:
        """Seeds at points, whose trees are those of the suite."""
        logs = np.log(self.space.values(points.grid)).astype(np.float32)
        factors = []
        for tree, totals in zip(self.suite.trees, self._totals, strict=True):
            several = []
            for number, (axis, total) in enumerate(zip(tree.axes, totals, strict=True)):
                found = axis.tables.logs(points.rows[:, list(tree.items), number])
                whole = found.sum(axis=2, keepdims=True)
                scaled = np.where(whole > 0, found / np.maximum(whole, 1e-30), 1 / found.shape[2])
                several.append((scaled * total[:, None]).astype(np.float32))
            factors.append(tuple(several))
        count, width = points.tree.shape
        given = tuple(factors)
        return Seeds(
            numbers=logs,
            factors=given,
            adam=jax.tree.map(np.asarray, jax.vmap(_ADAM.init)((logs, given))),
            room=np.zeros((count, width), dtype=np.float32),
            budget=np.zeros((count, len(self.space.budgets)), dtype=np.float32),
            exponents=aim.exponents.astype(np.float32),
            limits=aim.limits.astype(np.float32),
        )

    def points(self, joint: Joint, seeds: Seeds) -> Points:
        """The seeds rounded to machines within their budgets and to mappings."""
        count = len(seeds.numbers)
        width = len(self.suite.items)
        grid = self.space.rounded(np.nan_to_num(seeds.numbers))
        if not self.derived:
            grid = self.space.within(grid, seeds.limits)
        tree = np.zeros((count, width), dtype=np.int64)
        rows = np.zeros((count, width, joint.suite.most_axes), dtype=np.int64)
        values = self.space.values(grid)
        for number, one in enumerate(self.suite.trees):
            items = list(one.items)
            tree[:, items] = one.number
            machine = self.space.machine(list(np.repeat(values, len(items), axis=0).T))
            tables = one.tables(np.tile(np.arange(len(items)), count), machine)
            for k, (axis, total) in enumerate(zip(one.axes, self._totals[number], strict=True)):
                extent = axis.tables.extent(tables[k]).reshape(count, len(items))
                scale = np.where(total > 0, extent / np.maximum(total, 1e-30), 0.0)
                logs = np.nan_to_num(np.asarray(seeds.factors[number][k])) * scale[..., None]
                near = axis.tables.nearest(tables[k], logs.reshape(-1, logs.shape[2]))
                rows[:, items, k] = near.reshape(count, len(items))
        points = Points(grid, tree, rows)
        if self.derived:
            self._set_derived(joint, points)
            points = joint.moved(points, self.space.within(points.grid, seeds.limits))
        return points

    def _set_derived(self, joint: Joint, points: Points) -> None:
        """The least capacities on the grid that hold what the mappings need."""
        needed = joint.needed(points, self.derived)
        for column, number in enumerate(self.derived):
            values = np.array(self.space.free[number].grid)
            found = np.searchsorted(values, needed[:, column] * (1 - 1e-12))
            points.grid[:, number] = np.minimum(found, len(values) - 1)

    # -- the relaxed objective -------------------------------------------------------------------

    def _cost(self, tree: Tree, machine: Machine, factors: Any, totals: Any) -> Cost:
        """Costs of the workloads of a tree, shape (seeds, workloads)."""
        form = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree.form)
        workloads = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree.workloads)
        given: dict[str, Any] = {}
        with relaxed(math.inf):
            per_axis = tree.units(form, machine)
            for axis, units, logs, total in zip(tree.axes, per_axis, factors, totals, strict=True):
                spread = functools.reduce(jnp.multiply, units.values(), jnp.float32(1.0))
                # what the units leave of the extent is split as the whole would be
                left = jnp.maximum(total - jnp.log(spread), 0.0)
                scale = jnp.where(total > 0, left / jnp.where(total > 0, total, 1.0), 0.0)
                given |= {n: jnp.broadcast_to(u, left.shape) for n, u in units.items()}
                for column, name in enumerate(axis.free):
                    given[name] = jnp.exp(logs[..., column] * scale)
            mapping = tree.mapping(given)
            mapping = dataclasses.replace(mapping, tree=settled(mapping.tree))
            return cost_of(workloads, mapping, machine, self._conventions)

    def _prices(self, tree: Tree, machine: Machine, factors: Any, totals: Any) -> Any:
        """Logs of latency, energy and pressure of the workloads of a tree, shape (3, seeds, n)."""
        with relaxed(math.inf):
            cost = self._cost(tree, machine, factors, totals)
            prices = (cost.latency_cycles, cost.energy_pj, jnp.maximum(cost.pressure, 1e-30))
        return jnp.stack([jnp.log(x) for x in jnp.broadcast_arrays(*prices)])

    def _with_derived(self, numbers: Any, factors: Any) -> Any:
        """Numbers with derived capacities in place: the smooth maximum of what mappings need."""
        if not self.derived:
            return numbers
        machine = self._machine(numbers)
        several: list[list[Any]] = [[] for _ in self.derived]
        for tree, own, totals in zip(self.suite.trees, factors, self._totals, strict=True):
            cost = self._cost(tree, machine, own, totals)
            for found, number in zip(several, self.derived, strict=True):
                for needed in needs(self.space, cost, number):
                    shape = (len(numbers), len(tree.items))
                    found.append(jnp.log(jnp.maximum(jnp.broadcast_to(needed, shape), 1e-30)))
        for found, number in zip(several, self.derived, strict=True):
            if not found:
                continue
            most = jnp.concatenate(found, axis=1)
            smooth = _SHARPNESS * jax.nn.logsumexp(most / _SHARPNESS, axis=1)
            low, high = np.log(self.space.low[number]), np.log(self.space.high[number])
            numbers = numbers.at[:, number].set(jnp.clip(smooth, low, high))
        return numbers

    def _machine(self, numbers: Any) -> Machine:
        values = [jnp.exp(numbers[:, d])[:, None] for d in range(len(self.space.free))]
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.space.machine(values))

    def _loss_parts(self, numbers: Any, factors: Any, exponents: Any, limits: Any) -> Any:
        """Objective of each seed, and by how much each constraint is broken, in logs."""
        machine = self._machine(self._with_derived(numbers, factors))
        several = [
            self._prices(tree, machine, own, totals)
            for tree, own, totals in zip(self.suite.trees, factors, self._totals, strict=True)
        ]
        latency, energy, pressure = jnp.concatenate(several, axis=2)[:, :, self._order]
        weights = jnp.asarray(self.suite.weights, jnp.float32)
        a, b, c = exponents.T
        if self.across == "geomean":
            value = a * (latency @ weights) + b * (energy @ weights)
        elif self.across == "total":
            logs = jnp.log(weights)
            value = a * jax.nn.logsumexp(latency + logs, axis=1)
            value = value + b * jax.nn.logsumexp(energy + logs, axis=1)
        else:
            against = jnp.log(self._reference)
            ratio = a[:, None] * (latency - against[0]) + b[:, None] * (energy - against[1])
            value = _SHARPNESS * jax.nn.logsumexp(ratio / _SHARPNESS, axis=1)
        uses = [jnp.reshape(u, (-1,)) for u in self.space.uses(machine)]
        over = [
            jnp.log(jnp.broadcast_to(u, len(limits)) / limits[:, k]) for k, u in enumerate(uses)
        ]
        excess = jnp.stack(over, axis=1) if over else jnp.zeros_like(limits)
        area = jnp.reshape(self.space.area_mm2(machine), (-1,))
        return value + c * jnp.log(area), pressure, excess

    def _loss(self, moving: Any, seeds: Seeds) -> Any:
        numbers, factors = moving
        value, pressure, excess = self._loss_parts(numbers, factors, seeds.exponents, seeds.limits)
        room = jnp.maximum(0.0, seeds.room + _PENALTY * pressure)
        budget = jnp.maximum(0.0, seeds.budget + _PENALTY * excess)
        weights = jnp.asarray(self.suite.weights, jnp.float32)
        terms = value + ((room**2 - seeds.room**2) @ weights) / (2.0 * _PENALTY)
        terms = terms + (budget**2 - seeds.budget**2).sum(axis=1) / (2.0 * _PENALTY)
        return terms.sum(), (value, pressure, excess)

    def values(self, seeds: Seeds) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log objective of each seed, and by how much each constraint is broken, in logs.

        Returns:
          Shapes (seeds,), (seeds, workloads) for the room and (seeds, budgets).
        """
        found = self._values(seeds.numbers, seeds.factors, seeds.exponents, seeds.limits)
        value, pressure, excess = jax.device_get(found)
        return value, pressure, excess

    # -- steps -----------------------------------------------------------------------------------

    def _block(self, seeds: Seeds, rates: Any) -> tuple[Seeds, Any]:
        low, high = (
            jnp.log(jnp.asarray(x, jnp.float32)) for x in (self.space.low, self.space.high)
        )

        def step(state: Seeds, rate: Any) -> tuple[Seeds, Any]:
            moving = (state.numbers, state.factors)
            (_, seen), found = jax.value_and_grad(self._loss, has_aux=True)(moving, state)
            gradient: Any = found
            # along the split: Adam would make equal steps of what is common to all its factors
            slopes = jax.tree.map(lambda g: g - g.mean(axis=2, keepdims=True), gradient[1])
            several: Any = jax.vmap(_ADAM.update)((gradient[0], slopes), state.adam)
            updates, adam = several
            numbers = jnp.clip(state.numbers - NUMBER_RATE * rate * updates[0], low, high)
            factors = tuple(
                tuple(
                    _project(x - FACTOR_RATE * rate * u, jnp.asarray(t))
                    for x, u, t in zip(own, moves, totals, strict=True)
                )
                for own, moves, totals in zip(state.factors, updates[1], self._totals, strict=True)
            )
            return state._replace(numbers=numbers, factors=factors, adam=adam), seen

        seeds, (values, pressure, excess) = jax.lax.scan(step, seeds, rates)
        finite = jnp.isfinite(values).all(axis=0) & jnp.isfinite(seeds.numbers).all(axis=1)
        return (
            seeds._replace(
                room=jnp.clip(seeds.room + _PENALTY * pressure[-1], 0.0, _MULTIPLIER),
                budget=jnp.clip(seeds.budget + _PENALTY * excess[-1], 0.0, _MULTIPLIER),
            ),
            finite,
        )

    def _sharded(self, seeds: Seeds, rates: Any, blocks: int) -> tuple[Seeds, Any]:
        """Blocks of seeds, split over the devices."""

        def local(own: Seeds, rates: Any) -> tuple[Seeds, Any]:
            return jax.lax.map(lambda s: self._block(s, rates), own)

        shaped = jax.tree.map(lambda x: x.reshape(blocks, -1, *x.shape[1:]), seeds)
        spread = PartitionSpec("seeds")
        found = jax.shard_map(
            local,
            mesh=self._mesh,
            in_specs=(spread, PartitionSpec()),
            out_specs=spread,
            check_vma=False,  # nothing is exchanged
        )(shaped, rates)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)

    def advance(self, seeds: Seeds, rates: np.ndarray) -> tuple[Seeds, np.ndarray]:
        """Moves the seeds by a few steps.

        Args:
          seeds: the seeds.
          rates: share of the full step, one per step.

        Returns:
          The seeds, and which of them stayed finite.
        """
        count = len(seeds.numbers)
        devices = self._mesh.size
        # few seeds share a program; those that only fill it repeat the last one
        blocks = -(-max(_LEAST, count) // (BLOCK * devices)) * devices
        padded = np.minimum(np.arange(blocks * BLOCK), count - 1)
        whole = jax.tree.map(lambda x: np.asarray(x)[padded], seeds)
        moved, finite = self._advance(whole, rates.astype(np.float32), blocks)
        return jax.tree.map(lambda x: np.asarray(x)[:count], (moved, finite))


def _project(logs: jax.Array, total: jax.Array) -> jax.Array:
    """Nearest logs >= 0 that add up to totals, shape (seeds, workloads, columns)."""
    columns = logs.shape[2]
    whole = jnp.broadcast_to(total, logs.shape[:2])
    if columns == 1:
        return whole[..., None]
    safe = jnp.maximum(whole, 1e-6)  # an extent of 1 has no logs to share
    flat = jax.vmap(optax.projections.projection_simplex)(
        logs.reshape(-1, columns), safe.reshape(-1)
    )
    return jnp.where(whole[..., None] > 0, flat.reshape(logs.shape), 0.0)
