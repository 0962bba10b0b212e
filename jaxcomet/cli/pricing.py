"""Prices a table of mappings: one batched call per machine and 65,536 rows.

The one idea: columns are matched by name (the workload's sizes and the strategy's factors); all
others are carried through as they are, so that a table keeps what its owner wrote beside the
numbers.
"""

import dataclasses
import re
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass

import numpy as np

from jaxcomet.cli.errors import InputError, near
from jaxcomet.cli.files import CsvTable
from jaxcomet.cli.options import load_machine, parse_whole
from jaxcomet.cli.tables import exact
from jaxcomet.cost import Cost, evaluate
from jaxcomet.cost.conventions import Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping, MappingError, factor_names
from jaxcomet.operations.catalog import Entry, OptionValue
from jaxcomet.strategies import Strategy
from jaxcomet.workload import CompoundOp, WorkloadError

ADDED = ("latency_cycles", "energy_pj", "feasible", "reason")
MACHINE_COLUMNS = ("machine", "platform")

_BATCH = 65536  # rows priced at once; bounds the memory that their breakdowns take
_FACTOR_LIKE = re.compile(r"(\w+\.)?[A-Z]_\w+")


@dataclass(frozen=True, kw_only=True)
class PricedTable:
    """A table with its costs.

    Attributes:
      columns: those of the input, then `ADDED`.
      rows: cells.
      feasible: rows that can run.
      machines: rows per machine.
    """

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    feasible: int
    machines: dict[str, int]


def price_table(
    table: CsvTable,
    *,
    workload: Entry,
    workload_options: MappingABC[str, OptionValue],
    strategy: Strategy,
    options: MappingABC[str, str],
    machine: str | None,
    overrides: tuple[str, ...],
    conventions: Conventions,
    loop_orders: MappingABC[str, str] | None = None,
) -> PricedTable:
    """Prices every row of a table.

    Args:
      table: sizes and factors by name; a size without a column takes its default, a factor is 1. A
        column `machine` or `platform` names each row's machine.
      workload: the workload of all rows.
      workload_options: its options.
      strategy: the strategy of all rows.
      options: its options.
      machine: the machine of all rows; None to take each row's own.
      overrides: changes of machine numbers, PATH=VALUE.
      conventions: rules of accounting.
      loop_orders: other orders of the loops in time by level; see `mapping.reordered`.

    Raises:
      InputError: a missing, unknown or clashing column, a cell that is no whole number >= 1, a row
        of another machine than `machine`, factors that do not cover a row's sizes.
      MachineFileError: a machine that cannot be used.
      MappingError: an unknown option or loop order.
    """
    strategy.chosen(options)
    for column in workload.required:
        if column not in table.columns:
            raise InputError(
                f"{table.label}: got no column {column}; expected {', '.join(workload.required)} "
                "and the strategy's factors by name"
            )
    for column in ADDED:
        if column in table.columns:
            raise InputError(
                f"{table.label}: got a column {column}, which would be added; rename or remove it"
            )
    cells: list[tuple[str, str, str, str]] = [("", "", "", "")] * len(table.rows)
    counts: dict[str, int] = {}
    task = _Task(workload, dict(workload_options), strategy, dict(options), dict(loop_orders or {}))
    for name, rows in _by_machine(table, machine, overrides).items():
        loaded = load_machine(name, overrides)
        counts[name] = len(rows)
        costs = _price(table, rows, task, loaded, conventions)
        for row, cell in zip(rows, costs, strict=True):
            cells[row] = cell
    return PricedTable(
        columns=(*table.columns, *ADDED),
        rows=[(*row, *cell) for row, cell in zip(table.rows, cells, strict=True)],
        feasible=sum(cell[2] == "true" for cell in cells),
        machines=counts,
    )


def _by_machine(
    table: CsvTable, machine: str | None, overrides: tuple[str, ...]
) -> dict[str, list[int]]:
    """Row numbers (from 0) per machine."""
    present = [c for c in MACHINE_COLUMNS if c in table.columns]
    if len(present) > 1:
        raise InputError(f"{table.label}: got columns {' and '.join(present)}; keep one of them")
    if not present:
        load_machine(machine, overrides)  # says which machines there are if none is named
        assert machine is not None
        return {machine: list(range(len(table.rows)))}
    named = [cell.strip() for cell in table.column(present[0])]
    if machine is None:
        groups: dict[str, list[int]] = {}
        for row, name in enumerate(named):
            if not name:
                raise InputError(f"{table.place(row, present[0])}: got nothing; name the machine")
            groups.setdefault(name, []).append(row)
        return groups
    accepted = {machine, load_machine(machine, overrides).name}
    for row, name in enumerate(named):
        if name not in accepted:
            raise InputError(
                f"{table.place(row, present[0])}: got {name!r}; expected {machine!r}, the machine "
                "of --machine; leave out --machine to price each row on the machine that it names"
            )
    return {machine: list(range(len(table.rows)))}


def _numbers(table: CsvTable, column: str, rows: list[int]) -> np.ndarray:
    cells = table.column(column)
    numbers = np.empty(len(rows), dtype=np.float64)
    for index, row in enumerate(rows):
        number = parse_whole(cells[row])
        if number is None:
            raise InputError(
                f"{table.place(row, column)}: got {cells[row]!r}; "
                "expected a whole number from 1 to 2**53"
            )
        numbers[index] = number
    return numbers


@dataclass(frozen=True)
class _Task:
    """What all rows have in common."""

    workload: Entry
    workload_options: dict[str, OptionValue]
    strategy: Strategy
    options: dict[str, str]
    loop_orders: dict[str, str]

    def operation(self, sizes: MappingABC[str, object]) -> CompoundOp:
        return self.workload.build(sizes, self.workload_options)

    def mapping(
        self, workload: CompoundOp, machine: Machine, factors: MappingABC[str, object]
    ) -> Mapping:
        return self.strategy.build(workload, machine, factors, self.loop_orders, **self.options)


def _price(
    table: CsvTable, rows: list[int], task: _Task, machine: Machine, conventions: Conventions
) -> list[tuple[str, str, str, str]]:
    strategy = task.strategy
    sizes = {
        s.name: _numbers(table, s.name, rows)
        for s in task.workload.sizes
        if s.name in table.columns
    }
    try:
        workload = task.operation(sizes)
    except WorkloadError:
        _refuse_first(table, rows, task, machine, sizes, None)
        raise
    plan = strategy.planned(workload, machine, task.loop_orders, **task.options)
    names = factor_names(plan.tree)
    for column in table.columns:
        if _FACTOR_LIKE.fullmatch(column) and column not in names:
            raise InputError(
                f"{table.label}: column {column}: no factor of strategy "
                f"{strategy.label(task.options)} "
                f"on {machine.name}; {near(column, names)}"
            )
    factors = {n: _numbers(table, n, rows) for n in names if n in table.columns}
    try:
        mapping = task.mapping(workload, machine, factors)
    except MappingError:
        _refuse_first(table, rows, task, machine, sizes, factors)
        raise
    cells: list[tuple[str, str, str, str]] = []
    batch = min(len(rows), _BATCH)
    for start in range(0, len(rows), batch):
        # all batches have one size, so that one compiled program serves them
        picked = np.minimum(np.arange(start, start + batch), len(rows) - 1)
        part = _take((workload, mapping), picked)
        cost = evaluate(*part, machine, conventions=conventions)
        cells += _cells(cost, batch)[: len(rows) - start]
    return cells


def _take(arguments: tuple[CompoundOp, Mapping], rows: np.ndarray) -> tuple[CompoundOp, Mapping]:
    import jax

    return jax.tree.map(lambda x: x[rows] if np.ndim(x) else x, arguments)


def _refuse_first(
    table: CsvTable,
    rows: list[int],
    task: _Task,
    machine: Machine,
    sizes: dict[str, np.ndarray],
    factors: dict[str, np.ndarray] | None,
) -> None:
    """Names the first row whose sizes or factors do not fit, found by halving."""

    def build(part: slice) -> None:
        workload = task.operation({n: s[part] for n, s in sizes.items()})
        if factors is not None:
            task.mapping(workload, machine, {n: f[part] for n, f in factors.items()})

    first, last = 0, len(rows)
    while last - first > 1:
        middle = (first + last) // 2
        try:
            build(slice(first, middle))
        except (MappingError, WorkloadError):
            last = middle
        else:
            first = middle
    row = rows[first]
    try:
        workload = task.operation({n: float(s[first]) for n, s in sizes.items()})
        single = {n: float(f[first]) for n, f in (factors or {}).items()}
        task.mapping(workload, machine, single)
    except (MappingError, WorkloadError) as error:
        place = f"{table.label}: row {row + 1} (line {table.lines[row]})"
        raise InputError(f"{place}: {error}") from None


def _cells(cost: Cost, count: int) -> list[tuple[str, str, str, str]]:
    """Latency, energy, feasible and reason as text."""
    latency = np.broadcast_to(np.asarray(cost.latency_cycles), (count,))
    energy = np.broadcast_to(np.asarray(cost.energy_pj), (count,))
    feasible = np.broadcast_to(np.asarray(cost.feasible), (count,))
    # the reasons need none of the large breakdowns
    lean = dataclasses.replace(
        cost, latency_parts=(), traffic=(), engine_energy=(), collectives=(), nodes=()
    )
    found = []
    for index in range(count):
        fits = bool(feasible[index])
        reason = "" if fits else "; ".join(lean.row(index).reasons())
        found.append(
            (
                exact(float(latency[index])),
                exact(float(energy[index])),
                "true" if fits else "false",
                reason,
            )
        )
    return found
