"""The machines of a co-design: numbers that move on grids, what follows from them, and budgets.

The one idea: a machine of the space is a row of whole numbers, one grid position per free number.
All else is computed from it: keys that are tied to a number keep their ratio to it, energies per
byte follow the capacities (`jaxcomet.hardware.technology`), and what a budget limits is a function
of the machine. The same functions serve floats, arrays of machines and traced values.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jaxcomet.arith import Number, product
from jaxcomet.hardware import numbers
from jaxcomet.hardware.errors import Problem
from jaxcomet.hardware.machine import Machine
from jaxcomet.hardware.technology import Technology, area, scaled_energies
from jaxcomet.optimize.result import SearchError


class DesignError(SearchError):
    """A search space that cannot be; the message says where, what was got and what is allowed."""


class DesignFileError(DesignError):
    """A file of a co-design that cannot be used; lists everything found.

    Attributes:
      file: the file or name as it was given.
      problems: what is wrong, sorted by key.
    """

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        """One line per problem."""
        self.file = file
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(p.line(file) for p in self.problems))

    def __reduce__(self) -> tuple[type["DesignFileError"], tuple[str, tuple[Problem, ...]]]:
        """Pickled by its parts, since the message is made from them."""
        return type(self), (self.file, self.problems)


class SpaceFileError(DesignFileError):
    """A search-space file that cannot be used."""


class SuiteFileError(DesignFileError):
    """A suite file that cannot be used."""


class InfeasibleError(DesignError):
    """No machine of a space keeps to its budgets, or none can run the workloads."""


@dataclass(frozen=True, kw_only=True)
class FreeNumber:
    """A machine number that moves, or several that move together.

    Attributes:
      name: its name.
      keys: keys of the machine file that it sets; the others keep their ratio to the first.
      grid: its values, ascending, in the base unit of the first key.
      unit: the unit that it is shown in.
      scale: base units in one of these.
      reason: why it is bounded so.
      derived: it may follow from the mappings: the least capacity that holds what they need.
    """

    name: str
    keys: tuple[str, ...]
    grid: tuple[float, ...]
    unit: str
    scale: float
    reason: str
    derived: bool = False

    def text(self, value: float) -> str:
        """A value in the unit that it is shown in."""
        return f"{value / self.scale:g} {self.unit}"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit on what a machine may take.

    Attributes:
      name: ``area``, ``bandwidth`` or ``cores``.
      limit: the most, in `unit`.
      unit: mm2, byte/cycle or count.
    """

    name: str
    limit: float
    unit: str


def _cores(machine: Machine) -> Number:
    return product([x for level in machine.levels for x in (level.mesh_x, level.mesh_y)])


def _bandwidth(machine: Machine) -> Number:
    return machine.root.child_bandwidth_bytes_per_cycle


@dataclass(frozen=True, kw_only=True)
class DesignSpace:
    """Machines that a co-design chooses from.

    Attributes:
      name: its name.
      description: what it is.
      start: the machine around which it lies, which is on the grids.
      technology: models of area and energy.
      free: the numbers that move.
      budgets: limits.
    """

    name: str
    description: str
    start: Machine
    technology: Technology
    free: tuple[FreeNumber, ...]
    budgets: tuple[Budget, ...]

    # -- grids -----------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> np.ndarray:
        """Values of each free number."""
        return np.array([len(f.grid) for f in self.free])

    @property
    def size(self) -> int:
        """Number of machines, those over a budget included."""
        found = 1
        for count in self.sizes.tolist():
            found *= count
        return found

    @cached_property
    def _grids(self) -> np.ndarray:
        most = int(self.sizes.max())
        return np.array([f.grid + (f.grid[-1],) * (most - len(f.grid)) for f in self.free])

    @cached_property
    def low(self) -> np.ndarray:
        """Least value of each number."""
        return np.array([f.grid[0] for f in self.free])

    @cached_property
    def high(self) -> np.ndarray:
        """Largest value of each number."""
        return np.array([f.grid[-1] for f in self.free])

    @cached_property
    def start_values(self) -> np.ndarray:
        """Values of the free numbers in the start machine."""
        return np.array([numbers.value(self.start, f.keys[0]) for f in self.free])

    @cached_property
    def start_grid(self) -> np.ndarray:
        """Grid positions that are nearest to the start."""
        return self.rounded(np.log(self.start_values)[None])[0]

    def values(self, grid: np.ndarray) -> np.ndarray:
        """Values of the numbers at grid positions, shape (..., numbers)."""
        return self._grids[np.arange(len(self.free)), grid]

    def rounded(self, logs: np.ndarray) -> np.ndarray:
        """Grid positions nearest to logs of values, shape (points, numbers)."""
        distance = np.abs(np.log(self._grids)[None] - logs[:, :, None])
        return distance.argmin(axis=2)

    def random(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Grid positions drawn uniformly, shape (count, numbers)."""
        return rng.integers(0, self.sizes, (count, len(self.free)))

    # -- machines --------------------------------------------------------------------------------

    @cached_property
    def ratios(self) -> tuple[tuple[tuple[str, float], ...], ...]:
        """Keys that each number sets, with their ratios to its value."""
        found = []
        for number in self.free:
            first = numbers.value(self.start, number.keys[0])
            found.append(tuple((k, numbers.value(self.start, k) / first) for k in number.keys))
        return tuple(found)

    @cached_property
    def _slots(self) -> tuple[list[Any], Any, tuple[tuple[tuple[int, float], ...], ...]]:
        """Leaves of the nameless start, its structure, and where each number stands among them."""
        nameless = dataclasses.replace(self.start, name="")
        leaves, structure = jax.tree.flatten(nameless)
        marked = structure.unflatten([float(n) for n in range(len(leaves))])
        places = tuple(
            tuple((int(numbers.read(marked, key)), ratio) for key, ratio in ratios)  # pyright: ignore[reportArgumentType]
            for ratios in self.ratios
        )
        return leaves, structure, places

    def machine(self, values: Sequence[Any]) -> Machine:
        """The machine with given values of the free numbers.

        Args:
          values: one number or array per free number, in base units; may be traced.
        """
        leaves, structure, places = self._slots
        leaves = list(leaves)
        for value, several in zip(values, places, strict=True):
            for place, ratio in several:
                leaves[place] = value if ratio == 1.0 else value * ratio
        return scaled_energies(structure.unflatten(leaves), self.start, self.technology)

    def machines(self, grid: np.ndarray) -> Machine:
        """Machines at grid positions, shape (machines, numbers): leaves of shape (machines,)."""
        return self.machine(list(self.values(grid).T))

    def single(self, grid: np.ndarray) -> Machine:
        """The machine at one grid position; its leaves are floats."""
        machine = self.machine([float(v) for v in self.values(grid)])
        return dataclasses.replace(jax.tree.map(float, machine), name=self.name)

    # -- budgets ---------------------------------------------------------------------------------

    def uses(self, machine: Machine) -> list[Number]:
        """What machines take of each budget, in its unit."""
        functions: dict[str, Callable[[Machine], Number]] = {
            "area": self.area_mm2,
            "bandwidth": _bandwidth,
            "cores": _cores,
        }
        return [functions[b.name](machine) for b in self.budgets]

    def area_mm2(self, machine: Machine) -> Number:
        """Area of machines."""
        return area(machine, self.technology).total_mm2

    @cached_property
    def limits(self) -> np.ndarray:
        """Limits of the budgets."""
        return np.array([b.limit for b in self.budgets])

    def excess(self, grid: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """Largest ratio of used to allowed of machines; within all budgets up to 1.

        Args:
          grid: shape (machines, numbers).
          limits: of the budgets, shape (budgets,) or (machines, budgets).
        """
        if not self.budgets:
            return np.zeros(len(grid))
        uses = self.uses(self.machines(grid))
        limits = np.broadcast_to(limits, (len(grid), len(self.budgets)))
        ratios = [np.broadcast_to(u, len(grid)) / limits[:, b] for b, u in enumerate(uses)]
        return np.max(ratios, axis=0)

    @cached_property
    def _limited(self) -> np.ndarray:
        """Whether a number takes of any budget."""
        low = np.zeros((1, len(self.free)), dtype=np.int64)
        several = np.repeat(low, len(self.free), axis=0)
        np.fill_diagonal(several, self.sizes - 1)
        least = [np.asarray(u) for u in self.uses(self.machines(low))]
        most = [np.broadcast_to(u, len(self.free)) for u in self.uses(self.machines(several))]
        found = np.zeros(len(self.free), dtype=bool)
        for a, b in zip(least, most, strict=True):
            found |= b > a * (1 + 1e-12)
        return found

    def check_budgets(self, limits: np.ndarray) -> None:
        """Refuses budgets that even the smallest machine exceeds.

        Raises:
          InfeasibleError: it names the budget, and by how much.
        """
        smallest = np.zeros((1, len(self.free)), dtype=np.int64)
        limits = np.atleast_2d(limits)
        for column, (budget, use) in enumerate(
            zip(self.budgets, self.uses(self.machines(smallest)), strict=True)
        ):
            used, limit = float(np.ravel(use)[0]), float(limits[:, column].min())
            if used > limit:
                raise InfeasibleError(
                    f"space {self.name}, budgets.{budget.name}: the smallest machine takes "
                    f"{used:.6g} {budget.unit}, allowed {limit:.6g} ({used / limit - 1:.1%} too "
                    "little); raise the budget or lower bounds"
                )

    def within(self, grid: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """Machines within the budgets, near given ones: all numbers that take of a budget shrink.

        First all shrink by the same share of their positions, then one after the other grows back
        as far as the budgets allow.

        Args:
          grid: shape (machines, numbers).
          limits: shape (budgets,) or (machines, budgets).
        """
        over = np.flatnonzero(self.excess(grid, limits) > 1.0)
        if not len(over):
            return grid
        wanted = grid[over]
        limits = np.broadcast_to(limits, (len(grid), len(self.budgets)))[over]
        found = np.where(self._limited, 0, wanted)
        steps = 16
        for step in range(1, steps):
            tried = np.where(self._limited, wanted * step // steps, wanted)
            fits = self.excess(tried, limits) <= 1.0
            found = np.where(fits[:, None], tried, found)
        for column in np.flatnonzero(self._limited):
            while True:
                tried = found.copy()
                tried[:, column] = np.minimum(tried[:, column] + 1, wanted[:, column])
                better = (tried != found).any(axis=1) & (self.excess(tried, limits) <= 1.0)
                if not better.any():
                    break
                found = np.where(better[:, None], tried, found)
        grid = grid.copy()
        grid[over] = found
        return grid
