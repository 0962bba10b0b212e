"""Exact prices of the mappings of a space: whole slabs of it, or single points.

The one idea: a space is a product of axes, and the equations broadcast. A slab holds some rows of
the leading axes against the whole of the trailing ones, each axis along an array dimension of its
own, so that what depends on one dimension of the workload is computed once for each of its splits
and not once for each mapping. Small spaces are priced on NumPy and compile nothing; large ones by
one program, which also finds the best of a slab, so that only that leaves it.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomet._compat import enable_x64
from jaxcomet.arith import maximum, product
from jaxcomet.cost import Cost, cost_of
from jaxcomet.cost.conventions import Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping
from jaxcomet.optimize.space import Space
from jaxcomet.workload import CompoundOp

Objective = Literal["latency", "energy", "edp"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "energy", "edp")

_Value = TypeVar("_Value", float, np.ndarray, jax.Array)

COMPILED = 1_000_000
"""Mappings from which on a space is priced by a compiled program."""

_HOST_SLAB = 1 << 15  # mappings at once on NumPy: small enough for the caches
_SLAB = 1 << 17  # mappings at once in a compiled program


def objective_keys(objective: Objective, latency: _Value, energy: _Value) -> tuple[_Value, _Value]:
    """What is minimised, then what decides a tie."""
    match objective:
        case "latency":
            return latency, energy
        case "energy":
            return energy, latency
        case "edp":
            return latency * energy, latency


class Prices(NamedTuple):
    """Exact prices of several mappings of a part.

    Attributes:
      latency_cycles: latency of the part.
      energy_pj: its energy.
      pressure: largest ratio of needed to there; feasible up to 1.
    """

    latency_cycles: Any
    energy_pj: Any
    pressure: Any


class SlabBest(NamedTuple):
    """The best mapping of a slab.

    Attributes:
      first: least objective of the feasible ones; inf where there is none.
      second: least second metric among those.
      index: its position in the slab.
      feasible: number of feasible mappings.
      pressure: least pressure.
      nearest: position of the mapping of least pressure.
    """

    first: Any
    second: Any
    index: Any
    feasible: Any
    pressure: Any
    nearest: Any


def pressure_of(cost: Cost, max_units: tuple[tuple[str, int], ...]) -> Any:
    """`Cost.pressure`, with the ratio of used to allowed units of each limited level."""
    ratios: list[Any] = [cost.pressure]
    units: Any = 1.0
    limits = dict(max_units)
    for level in cost.spatial:
        units = product([units, level.used_x, level.used_y])
        if level.level in limits:
            ratios.append(units / float(limits[level.level]))
    return maximum(*ratios)


def _prices(
    workload: CompoundOp,
    mapping: Mapping,
    machine: Machine,
    conventions: Conventions,
    max_units: tuple[tuple[str, int], ...],
) -> Prices:
    cost = cost_of(workload, mapping, machine, conventions)
    return Prices(cost.latency_cycles, cost.energy_pj, pressure_of(cost, max_units))


@partial(jax.jit, static_argnums=(3, 4, 5))
def _slab_best(
    workload: CompoundOp,
    mapping: Mapping,
    machine: Machine,
    conventions: Conventions,
    max_units: tuple[tuple[str, int], ...],
    objective: Objective,
    count: Any,
) -> SlabBest:
    latency, energy, pressure = (
        x.ravel()
        for x in jnp.broadcast_arrays(*_prices(workload, mapping, machine, conventions, max_units))
    )
    there = jnp.arange(latency.size) < count
    fits = there & (pressure <= 1.0)
    first, second = objective_keys(objective, latency, energy)
    first = jnp.where(fits, first, jnp.inf)
    least = first.min()
    second = jnp.where(fits & (first == least), second, jnp.inf)
    pressure = jnp.where(there, pressure, jnp.inf)
    return SlabBest(
        least, second.min(), second.argmin(), fits.sum(), pressure.min(), pressure.argmin()
    )


_compiled_prices = jax.jit(_prices, static_argnums=(3, 4))


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a strategy's tree that shares no factor with the others, on one machine.

    Attributes:
      workload: a single shape; its leaves are floats.
      machine: a single machine; its leaves are floats.
      mapping: the mapping without its factors.
      space: its mappings.
      conventions: rules of accounting.
      max_units: see `space.Scope`.
    """

    workload: CompoundOp
    machine: Machine
    mapping: Mapping
    space: Space
    conventions: Conventions
    max_units: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        """Number of mappings."""
        return self.space.size

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of splits of each axis."""
        return tuple(len(a.splits) for a in self.space.axes)

    def with_factors(self, factors: dict[str, Any]) -> Mapping:
        """The mapping with factors."""
        return dataclasses.replace(self.mapping, factors=factors)

    def points(self, choices: np.ndarray) -> dict[str, np.ndarray]:
        """Factors of single mappings, from the row of each axis, shape (mappings, axes)."""
        return {
            name: axis.splits[choices[:, position], column]
            for position, axis in enumerate(self.space.axes)
            for column, name in enumerate(axis.names)
        }

    def choices(self, indices: np.ndarray) -> np.ndarray:
        """Rows of the axes of mappings by their numbers, shape (mappings, axes)."""
        return np.stack(np.unravel_index(indices, self.sizes), axis=1)

    def price(self, choices: np.ndarray, *, compiled: bool = False) -> Prices:
        """Exact prices of single mappings.

        Args:
          choices: row of each axis, shape (mappings, axes).
          compiled: by a program, which is worth while for many calls of one size.
        """
        mapping = self.with_factors(self.points(choices))
        return self._priced(mapping, (len(choices),), compiled)

    def _priced(self, mapping: Mapping, shape: tuple[int, ...], compiled: bool = False) -> Prices:
        if compiled:
            with enable_x64(True):
                workload, machine = self._arrays
                found = _compiled_prices(
                    workload, mapping, machine, self.conventions, self.max_units
                )
            prices = jax.device_get(found)
        else:
            with np.errstate(all="ignore"):  # `select` drops what was divided by zero
                prices = _prices(
                    self.workload, mapping, self.machine, self.conventions, self.max_units
                )
        return Prices(*(np.broadcast_to(x, shape) for x in prices))

    @cached_property
    def _arrays(self) -> tuple[CompoundOp, Machine]:
        """Leaves as arrays and no machine name: other numbers compile nothing."""
        nameless = dataclasses.replace(self.machine, name="")
        return jax.tree.map(np.float64, (self.workload, nameless))

    # -- slabs -----------------------------------------------------------------------------------

    @cached_property
    def is_large(self) -> bool:
        """Whether the space is priced by a compiled program."""
        return self.size >= COMPILED

    @cached_property
    def _trailing(self) -> int:
        """Number of axes that every slab holds whole."""
        target, held, axes = (_SLAB if self.is_large else _HOST_SLAB), 1, 0
        for size in reversed(self.sizes):
            if held * size > target:
                break
            held *= size
            axes += 1
        return axes

    @cached_property
    def slab_size(self) -> int:
        """Mappings of a slab, which are neighbours in the order of enumeration."""
        split = len(self.sizes) - self._trailing
        held = math.prod(self.sizes[split:])
        target = _SLAB if self.is_large else _HOST_SLAB
        return held * min(math.prod(self.sizes[:split]), max(1, target // held))

    def slab_starts(self) -> Iterator[int]:
        """Index of the first mapping of each slab."""
        yield from range(0, self.size, self.slab_size)

    def _slab(self, start: int) -> tuple[dict[str, np.ndarray], int, int]:
        """Factors of a slab in broadcasting shapes, its rows, and its mappings."""
        split = len(self.sizes) - self._trailing
        held = math.prod(self.sizes[split:])
        rows = self.slab_size // held
        leading = math.prod(self.sizes[:split])
        # the last slab repeats the last row, so that all have one shape
        indices = np.minimum(np.arange(start // held, start // held + rows), leading - 1)
        count = min(rows, leading - start // held) * held
        dims = 1 + self._trailing
        factors: dict[str, np.ndarray] = {}
        rest = indices
        for position in reversed(range(len(self.space.axes))):
            axis = self.space.axes[position]
            if position >= split:
                picked = axis.splits
                place = 1 + position - split
            else:
                rest, choice = np.divmod(rest, len(axis.splits))
                picked, place = axis.splits[choice], 0
            shape = [1] * dims
            shape[place] = len(picked)
            for column, name in enumerate(axis.names):
                factors[name] = np.ascontiguousarray(picked[:, column]).reshape(shape)
        return factors, rows, count

    def _slab_shape(self, rows: int) -> tuple[int, ...]:
        return (rows, *self.sizes[len(self.sizes) - self._trailing :])

    def slab(self, start: int) -> Prices:
        """Exact prices of all mappings of a slab, in the order of enumeration."""
        factors, rows, count = self._slab(start)
        mapping = self.with_factors(factors)
        prices = self._priced(mapping, self._slab_shape(rows), self.is_large)
        return Prices(*(x.reshape(-1)[:count] for x in prices))

    def slab_best(self, start: int, objective: Objective) -> SlabBest:
        """The best mapping of a slab."""
        if not self.is_large:
            return best_of(self.slab(start), objective)
        factors, _, count = self._slab(start)
        workload, machine = self._arrays
        with enable_x64(True):
            found = _slab_best(
                workload,
                self.with_factors(factors),
                machine,
                self.conventions,
                self.max_units,
                objective,
                np.float64(count),
            )
        return SlabBest(*(x.item() for x in jax.device_get(found)))


def best_of(prices: Prices, objective: Objective) -> SlabBest:
    """The best of several mappings; ties by the second metric, then by the order."""
    latency, energy, pressure = prices
    fits = pressure <= 1.0
    first, second = objective_keys(objective, latency, energy)
    first = np.where(fits, first, np.inf)
    least = first.min()
    second = np.where(fits & (first == least), second, np.inf)
    return SlabBest(
        float(least),
        float(second.min()),
        int(second.argmin()),
        int(fits.sum()),
        float(pressure.min()),
        int(pressure.argmin()),
    )


def front_of(latency: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Positions of the points that no other beats in both, by latency; equal ones once."""
    order = np.lexsort((energy, latency))
    least = np.minimum.accumulate(energy[order])
    first = np.ones(len(order), dtype=bool)
    first[1:] = energy[order][1:] < least[:-1]
    return order[first]
