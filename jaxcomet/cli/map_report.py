"""What `jaxcomet map` answers: how good, how sure, how, and what else was tried."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jaxcomet import strategies
from jaxcomet.cli import tables
from jaxcomet.cli.again import command
from jaxcomet.cli.breakdown import latency_table, occupancy_table
from jaxcomet.cli.nest import nest
from jaxcomet.cli.record import Record, title
from jaxcomet.explain import below_bound
from jaxcomet.optimize.result import MapResult, WayResult

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 12  # ways in the table
_TERMS = 3  # of the formula of the bound
_WHOLE = 1000.0  # from which on a bound is shown as a whole number

_NAMES = {"latency": "latency", "energy": "energy", "edp": "energy-delay product"}


def as_dict(record: Record, found: MapResult, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer as plain data: what `jaxcomet evaluate --json` prints of it, and the search.

    Args:
      record: the mapping.
      found: the answer.
      asked: arguments of the search by name.
    """
    limit = found.bound.limiting(found.objective)
    return {
        **record.as_dict(found.cost),
        "objective": found.objective,
        "feasible": found.feasible,
        "reasons": list(found.reasons()),
        "value": found.value if found.feasible else None,
        "bound": {
            "latency_cycles": _finite(found.bound.latency_cycles),
            "energy_pj": _finite(found.bound.energy_pj),
            "edp": _finite(found.bound.edp),
            "limiting": {"name": limit.name, "value": limit.value, "reason": limit.reason},
        },
        "gap": _finite(found.gap) if found.feasible else None,
        "proven": found.proven,
        "stopped": found.stopped,
        "method": found.method,
        "evaluated": found.evaluated,
        "size": found.size,
        "ways": [
            {
                "strategy": way.strategy,
                "label": way.label,
                "size": way.size,
                "evaluated": way.evaluated,
                "bound": _finite(way.bound),
                "value": way.value,
                "skipped": way.skipped,
                "refusal": way.refusal or None,
            }
            for way in found.ways
        ],
        "history": [[count, value] for count, value in found.history],
        "settings": {
            **found.settings,
            **{n: asked[n] for n in ("strategies", "without", "options", "loop_orders")},
        },
        "scope": {
            "tiles": found.scope.tiles,
            "units": found.scope.units,
            "fixed": dict(found.scope.fixed),
            "max_units": dict(found.scope.max_units),
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show(record: Record, found: MapResult, asked: dict[str, Any]) -> None:
    """Prints the answer.

    Args:
      record: the mapping.
      found: the answer.
      asked: arguments of the search by name.
    """
    console = tables.output()
    head = title(record.workload, record.sizes, record.workload_options, found.machine.name)
    console.print(head, style="bold")
    for line in _asked(record, found, asked):
        console.print(line)
    console.print()
    if found.feasible:
        _show_answer(console, record, found)
    else:
        _show_nothing(console, found)
    console.print()
    console.print(nest(found.mapping))
    console.print()
    if found.feasible:
        tables.show(latency_table({"cycles": found.cost}, found.machine))
    for part in (occupancy_table(found.cost), _ways(found)):
        if part.row_count:
            tables.show(part)
    for line in _others(found):
        console.print(line)
    if found.feasible:
        console.print("To price this mapping again:", style="bold")
        console.print(command(record), soft_wrap=True)


def _asked(record: Record, found: MapResult, asked: dict[str, Any]) -> Iterator[str]:
    """What was searched, in lines."""
    scope, orders = found.scope, asked["loop_orders"]
    if not isinstance(orders, str):
        orders = ", ".join(f"{level} {dims}" for level, dims in orders.items())
    units = "free" if scope.free_units else "all"
    yield f"objective {found.objective}, conventions {found.conventions.preset}"
    yield f"tiles {scope.tiles}, units {units}, loop orders {orders}"
    fixed = [f"{name} = {value}" for name, value in scope.fixed]
    limits = [f"at most {number} units of {level}" for level, number in scope.max_units]
    if fixed or limits:
        yield f"constraints: {', '.join([*fixed, *limits])}"
    for change in record.machine_overrides:
        yield f"machine changed: {change}"


def _amount(found: MapResult, value: float) -> str:
    """A value of the objective with its unit."""
    match found.objective:
        case "latency":
            return f"{tables.count(value)} cycles"
        case "energy":
            return tables.energy(value)
        case _:
            return f"{value:.5g} pJ × cycles"


def _show_answer(console: Console, record: Record, found: MapResult) -> None:
    strategy = strategies.get(record.workload, found.strategy)
    orders = ", ".join(f"{level} {dims}" for level, dims in found.loop_orders.items())
    label = strategy.label(found.options) + (f", loop orders {orders}" if orders else "")
    name = _NAMES[found.objective]
    console.print(f"{name} {_amount(found, found.value)}: {label}", style="bold green")
    console.print(_proof(found), style="green" if found.proven else "yellow")
    limit, bound = found.bound.limiting(found.objective), found.bound.of(found.objective)
    gap = "the bound is reached" if found.gap < 1e-9 else f"gap {tables.percent(found.gap)}"
    terms = limit.reason.split("; ")
    reason = "; ".join(terms[:_TERMS]) + ("; ..." if len(terms) > _TERMS else "")
    console.print(f"lower bound {_amount(found, _down(bound))}, {gap}; {limit.name}: {reason}")
    others = {
        "latency": f"latency {tables.count(float(found.cost.latency_cycles))} cycles",  # pyright: ignore[reportArgumentType]
        "energy": f"energy {tables.energy(float(found.cost.energy_pj))}",  # pyright: ignore[reportArgumentType]
        "utilization": f"utilization {tables.percent(float(found.cost.utilization))}",  # pyright: ignore[reportArgumentType]
    }
    console.print(", ".join(text for name, text in others.items() if name != found.objective))
    if below_bound(found.cost):
        console.print(below_bound(found.cost), style="bold yellow")


def _down(bound: float) -> float:
    """A bound without the digits that nobody reads; never more than it is."""
    return float(math.floor(bound)) if _WHOLE <= bound < math.inf else bound


def _proof(found: MapResult) -> str:
    """How sure the answer is."""
    priced, size = tables.count(found.evaluated), tables.count(found.size)
    if not found.proven:
        why = {
            "complete": "",
            "budget": "; the budget is spent",
            "time": "; the time is over",
            "interrupted": "; INTERRUPTED",
        }[found.stopped]
        return f"best found, not proven: {priced} evaluations by {found.method}, of {size}{why}"
    rest = found.size - found.evaluated
    parts = f": {priced} priced, {tables.count(rest)} ruled out by bounds" if rest else ""
    return f"PROVEN best of {size} mappings{parts}"


def _show_nothing(console: Console, found: MapResult) -> None:
    if found.stopped == "complete" and found.method == "enumerate":
        tried = f"none of {tables.count(found.size)} mappings fits"
    else:
        why = "INTERRUPTED after" if found.stopped == "interrupted" else "in"
        tried = f"no mapping that fits was found {why} {tables.count(found.evaluated)} evaluations"
    console.print(f"NOTHING FITS: {tried}; the nearest, {found.label}:", style="bold red")
    for reason in found.reasons():
        console.print(f"  {reason}", style="bold red")


def _ways(found: MapResult) -> "Table":
    """The best ways, and what became of each."""
    scale, unit = {"latency": (1.0, "cycles"), "edp": (1.0, "pJ × cycles")}.get(
        found.objective, (1.0, "pJ")
    )
    possible = [way for way in found.ways if not way.refusal]
    values = [way.bound for way in possible] + [way.value for way in possible if way.value]
    if found.objective == "energy":
        scale, unit = tables.energy_unit(max(values))

    def cell(value: float) -> str:
        if found.objective == "latency":
            return tables.count(value)
        return f"{value / scale:.5g}"

    columns = ("", "strategy", "options", f"best\n{unit}", f"bound\n{unit}", "mappings", "priced")
    table = tables.grid("Ways", columns, left=3, fold=("options",))
    for position, way in enumerate(possible[:_SHOWN], start=1):
        options = way.label.removeprefix(way.strategy).strip("[]").replace(",", ", ")
        best = _state(way, found) if way.value is None else cell(way.value)
        numbers = (tables.count(way.size), tables.count(way.evaluated))
        table.add_row(str(position), way.strategy, options, best, cell(_down(way.bound)), *numbers)
    return table


def _state(way: WayResult, found: MapResult) -> str:
    """What a way has in place of a best mapping."""
    if way.skipped:
        return "skipped"
    if found.method != "enumerate":
        return "-"
    if way.evaluated == 0:
        return "not tried"
    return "does not fit" if found.stopped == "complete" else "none found"


def _others(found: MapResult) -> Iterator[str]:
    """The ways that the table leaves out, and those that are not possible."""
    possible = [way for way in found.ways if not way.refusal]
    rest = possible[_SHOWN:]
    if rest:
        skipped = sum(way.skipped for way in rest)
        note = f", {tables.count(skipped)} of them skipped" if skipped else ""
        yield f"and {tables.count(len(rest))} more ways{note}"
    if any(way.skipped for way in possible):
        yield "skipped: no mapping of the way can be better than the best of another, by its bounds"
    if found.method != "enumerate" and any(way.value is None for way in possible):
        yield "-: nothing that fits, or nothing better than in a way searched along with it"
    refusals: dict[str, list[str]] = {}
    for way in found.ways:
        if way.refusal:
            refusals.setdefault(way.refusal, []).append(way.strategy)
    for reason, names in refusals.items():
        yield f"{', '.join(dict.fromkeys(names))}: not possible: {reason}"
