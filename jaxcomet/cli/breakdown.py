"""Breakdown tables: where cycles, energy and bytes go, for one mapping or several side by side."""

from collections.abc import Iterable, Mapping

from rich.table import Table

from jaxcomet.cli import tables
from jaxcomet.cli.record import exchanges
from jaxcomet.cost import Cost
from jaxcomet.hardware.machine import Machine
from jaxcomet.plot.groups import GROUPS, MEANING, latency_details, latency_groups

_LONGEST_NAME = 12


def _heads(names: Iterable[str]) -> list[str]:
    return [broken(name) for name in names]


def broken(label: str) -> str:
    """A strategy's label in lines: long names after a hyphen, options and values on their own."""
    name, bracket, options = label.partition("[")
    head, hyphen, tail = name.rpartition("-")
    if len(name) > _LONGEST_NAME and hyphen:
        name = f"{head}-\n{tail}"
    return name + (f"\n[{options}".replace(",", ",\n").replace("=", "=\n") if bracket else "")


def latency_table(costs: Mapping[str, Cost], machine: Machine, *, shares: bool = True) -> Table:
    """Cycles per group with its places below it, one column per strategy.

    Args:
      costs: a single mapping each, by name.
      machine: the machine, to tell matrix from vector engines.
      shares: whether each group shows its share of the total.
    """
    table = tables.grid("Latency, cycles", ("", *_heads(costs)), fold=("",))
    groups = {name: latency_groups(cost, machine) for name, cost in costs.items()}
    details = {name: latency_details(cost, machine) for name, cost in costs.items()}
    totals = {name: sum(parts.values()) for name, parts in groups.items()}
    extra = sorted({g for parts in groups.values() for g in parts} - set(GROUPS))
    for group in (*GROUPS, *extra):
        cells = []
        for name in costs:
            cycles = groups[name].get(group, 0.0)
            share = f" ({tables.percent(cycles, totals[name])})" if cycles and shares else ""
            cells.append(tables.count(cycles) + share)
        table.add_row(MEANING.get(group, group), *cells, style="bold")
        places = dict.fromkeys(w for d in details.values() for g, w in d if g == group)
        for place in places:
            values = [d.get((group, place), 0.0) for d in details.values()]
            if any(values):
                table.add_row(f"  {place}", *(tables.count(v) for v in values))
    table.add_section()
    table.add_row("total", *(tables.count(t) for t in totals.values()), style="bold")
    return table


def energy_table(costs: Mapping[str, Cost]) -> Table:
    """Energy per component, one column per strategy."""
    parts = {
        name: {k: float(v) for k, v in cost.energy_parts.items()}  # pyright: ignore[reportArgumentType]
        for name, cost in costs.items()
    }
    totals = {name: sum(found.values()) for name, found in parts.items()}
    scale, unit = tables.energy_unit(max(totals.values(), default=0.0))
    table = tables.grid(f"Energy, {unit}", ("", *_heads(costs)))
    for part in dict.fromkeys(p for found in parts.values() for p in found):
        table.add_row(
            part,
            *(
                f"{found.get(part, 0.0) / scale:.4g} "
                f"({tables.percent(found.get(part, 0.0), totals[name])})"
                for name, found in parts.items()
            ),
        )
    table.add_section()
    table.add_row("total", *(f"{t / scale:.4g}" for t in totals.values()), style="bold")
    return table


def traffic_table(cost: Cost) -> Table:
    """Bytes over each boundary of a single mapping."""
    table = tables.grid("Traffic, bytes over the whole run", ("boundary", "bytes"))
    for name, value in cost.traffic_bytes.items():
        source, _, target = name.removesuffix("_bytes").partition("_to_")
        table.add_row(f"{source} to {target}", tables.count(float(value)))  # pyright: ignore[reportArgumentType]
    return table


def collective_table(cost: Cost) -> Table:
    """The collectives of a single mapping, explicit ones first, then those that moves imply."""
    columns = ("collective", "where", "units", "bytes", "steps", "algorithm", "cycles", "times")
    table = tables.grid("Collectives", columns, left=2)
    entries = exchanges(cost)
    for position, c in enumerate(entries):
        if position and entries[position - 1].explicit and not c.explicit:
            table.add_section()
        table.add_row(
            f"{c.kind} of {c.tensor}",
            c.where,
            *(tables.count(x) for x in (c.participants, c.part_bytes, c.steps)),
            c.algorithm,
            *(tables.count(x) for x in (c.cycles, c.executions)),
        )
    return table


def occupancy_table(cost: Cost) -> Table:
    """How full each memory is with a single mapping; unlimited memories are left out."""
    columns = ("memory", "needed bytes", "capacity bytes", "share")
    table = tables.grid("Occupancy", columns)
    for o in cost.occupancy:
        if o.capacity_bytes is None:
            continue
        needed, capacity = float(o.needed_bytes), float(o.capacity_bytes)  # pyright: ignore[reportArgumentType]
        style = "bold red" if needed > capacity else None
        row = (tables.count(needed), tables.count(capacity), tables.percent(needed, capacity))
        table.add_row(o.memory, *row, style=style)
    return table
