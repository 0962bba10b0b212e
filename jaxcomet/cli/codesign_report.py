"""What a folder of co-designs holds: as tables, as plain data, and as what a figure is made of.

The one idea: all is read from the files, so a sweep that is half done can be looked at.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jaxcomet.cli import tables
from jaxcomet.cli.errors import InputError, near

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

_SHOWN = 4  # targets in the table of numbers
_FEW = 12  # targets in the table of targets
_NOTES = 4  # on what lies outside the range of the models
_WHOLE = 1e12  # machines up to which a space's size is shown in full
_OVER = {
    "geomean": "geometric means over the workloads",
    "total": "weighted sums over the workloads",
    "worst": "largest ratios to the start over the workloads",
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a folder holds.

    Attributes:
      folder: its path.
      tasks: names of all tasks, in order.
      records: of the finished ones by name, as `jaxcomet.optimize.joint.record.as_dict`.
      files: their files.
    """

    folder: str
    tasks: tuple[str, ...]
    records: dict[str, dict[str, Any]]
    files: dict[str, str]

    @property
    def infeasible(self) -> dict[str, str]:
        """Messages of the tasks for which no machine was found."""
        return {n: r["infeasible"] for n, r in self.records.items() if "infeasible" in r}

    @property
    def finished(self) -> str:
        """How many tasks are finished, in words."""
        return f"{len(self.records)} of {len(self.tasks)} tasks finished"

    def only(self, task: str) -> "Found":
        """The same with one task.

        Raises:
          InputError: there is no such task.
        """
        if task not in self.tasks:
            raise InputError(f"--task: got {task!r}; {near(task, self.tasks)}")
        kept = {name: record for name, record in self.records.items() if name == task}
        return dataclasses.replace(self, tasks=(task,), records=kept)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is no finite number becomes null."""
        return {
            "folder": self.folder,
            "tasks": list(self.tasks),
            "finished": len(self.records),
            "records": {name: _finite(record) for name, record in self.records.items()},
        }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_folder(folder: str) -> Found:
    """What a folder holds.

    Raises:
      InputError: it is no folder of a co-design.
      CheckpointError: one of its files is damaged.
    """
    from jaxcomet.optimize.joint.sweep import read_record

    path = Path(folder)
    try:
        settings = json.loads((path / "settings.json").read_text(encoding="utf-8"))
        tasks = tuple(settings)
    except FileNotFoundError:
        raise InputError(
            f"{folder}: holds no co-design (no settings.json); name a folder given as --out before"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{folder}: settings.json cannot be read ({type(error).__name__}); run the co-design "
            "anew in another folder"
        ) from None
    found: dict[str, tuple[dict[str, Any], str]] = {}
    for file in sorted((path / "designs").glob("*.json")):
        if not file.name.startswith("."):
            one = read_record(file)
            found[one["task"]] = (one["record"], str(file))
    there = [name for name in tasks if name in found]
    return Found(
        folder=folder,
        tasks=tasks,
        records={name: found[name][0] for name in there},
        files={name: found[name][1] for name in there},
    )


# -- text ------------------------------------------------------------------------------------------


def show(found: Found) -> None:
    """Prints what a folder holds."""
    console = tables.output()
    if len(found.records) < len(found.tasks):
        console.print(found.finished, style="bold yellow")
        console.print()
    for name in found.tasks:
        if name not in found.records:
            continue
        console.print(name, style="bold")
        record = found.records[name]
        if "infeasible" in record:
            console.print(f"NO MACHINE FOUND: {record['infeasible']}", style="bold red")
        else:
            _show_task(console, record)
        console.print(f"file: {found.files[name]}", soft_wrap=True)
        console.print()
    table = Path(found.folder) / "results.csv"
    if table.is_file():
        console.print(f"table of all targets and seeds: {table}", soft_wrap=True)


def _show_task(console: Console, record: Mapping[str, Any]) -> None:
    for line in _about(record):
        console.print(line)
    console.print()
    tables.show(_targets(record))
    left_out = len(record["points"]) - _FEW
    if left_out > 0:
        console.print(f"and {left_out} more targets (--json has all)")
    machine, unchanged = _machine(record)
    if machine.row_count:
        tables.show(machine)
    else:
        console.print("The machines chosen are the start.")
    if unchanged and machine.row_count:
        console.print(f"as in the start: {', '.join(unchanged)}")
    notes = list(dict.fromkeys(r for p in record["points"] for r in p["remarks"]))
    for note in notes[:_NOTES]:
        console.print(f"note: {note}", style="yellow")
    if len(notes) > _NOTES:
        console.print(f"and {_some(len(notes) - _NOTES, 'more note')} (--json has all)")
    console.print(_front(record))


def _about(record: Mapping[str, Any]) -> Iterator[str]:
    """What was searched, and how it ended."""
    settings, names = record["settings"], record["workloads"]
    yield f"{_some(len(names), 'workload')}: {', '.join(names)}; {_OVER[settings['across']]}"
    how = f"method {record['method']}, key {settings['key']}"
    if record["method"] == "gradient":
        how += f", {_some(settings['seeds'], 'seed')} of {_some(settings['steps'], 'step')}"
    unit = {"enumerate": "machine", "nested": "machine"}.get(record["method"], "joint evaluation")
    ended = {"budget": "; the budget is spent", "time": "; the time is over"}
    yield f"{how}; {_some(round(record['evaluated']), unit)}{ended.get(record['stopped'], '')}"
    if record["proven"]:
        yield "PROVEN: every machine within the budgets was priced with every mapping"


def _some(number: float | int, word: str) -> str:
    return f"{tables.count(number)} {word}{'' if number == 1 else 's'}"


def _metrics(point: Mapping[str, Any]) -> tuple[float, float]:
    """Latency and energy of a point: cycles and pJ, or ratios to the start's."""
    from jaxcomet.optimize.joint.record import latency_and_energy

    return latency_and_energy(dict(point))


def _targets(record: Mapping[str, Any]) -> "Table":
    """A row for the start and one for each target."""
    worst = record["settings"]["across"] == "worst"
    points = [record["start"], *record["points"][:_FEW]]
    scale, unit = tables.energy_unit(max(_metrics(p)[1] for p in points))
    latency, energy = (
        ("latency\nof start's", "energy\nof start's")
        if worst
        else (
            "latency\ncycles",
            f"energy\n{unit}",
        )
    )
    columns = ("target", "improvement", latency, energy, "area\nmm2", "budgets that bind")
    table = tables.grid("Targets", columns, fold=("target", "budgets that bind"))
    for point in points:
        binding = [
            f"{name} ({use['used']:,.4g} of {use['limit']:,.4g} {use['unit']})"
            for name, use in point["budgets"].items()
            if use["binds"]
        ]
        table.add_row(
            point["target"],
            _times(point["improvement"]),
            f"{_metrics(point)[0]:.4g}" if worst else f"{_metrics(point)[0]:,.0f}",
            f"{_metrics(point)[1]:.4g}" if worst else f"{_metrics(point)[1] / scale:,.4g}",
            f"{point['area_mm2']:,.1f}",
            ", ".join(binding) or "-",
        )
    if any(use["binds"] for point in points for use in point["budgets"].values()):
        table.caption = "binds: a step of some number more would be better, but takes too much"
        table.caption_justify = "left"
    return table


def _times(improvement: float) -> str:
    """How many times better; the start may not fit, and then nothing can be said."""
    return f"{improvement:.3f}x" if math.isfinite(improvement) else "-"


def _machine(record: Mapping[str, Any]) -> tuple["Table", list[str]]:
    """The numbers that changed, with those at a bound marked; and the names of the others."""
    points = record["points"][:_SHOWN]
    start = record["start"]["numbers"]
    heads = ["-> " + "\n".join(p["target"].replace(",", "").split()) for p in points]
    table = tables.grid("Machine", ("number", "start", *heads))
    bounds = [_bounds(p) for p in points]
    unchanged = []
    for name, before in start.items():
        if all(p["numbers"][name] == before for p in points):
            unchanged.append(name + bounds[0].get(name, ""))
            continue
        cells = []
        for point, at in zip(points, bounds, strict=True):
            text = point["numbers"][name]
            cells.append(("same" if text == before else text) + at.get(name, ""))
        table.add_row(name, before, *cells)
    marks = [m for m in ("lower", "upper") if any(f" ({m})" in b.values() for b in bounds)]
    if marks:
        table.caption = f"({'), ('.join(marks)}): at this bound of its grid"
        table.caption_justify = "left"
    return table, unchanged


def _bounds(point: Mapping[str, Any]) -> dict[str, str]:
    """Marks of the numbers at the ends of their grids."""
    found = {}
    for text in point["at_bounds"]:
        name, _, rest = text.partition(": ")
        found[name] = " (lower)" if rest.endswith("lower bound") else " (upper)"
    return found


def _front(record: Mapping[str, Any]) -> str:
    count = len(record["front"])
    return (
        f"Pareto front: {_some(count, 'machine')} that no other one seen beats in latency, energy "
        f"and area at once; hypervolume {record['hypervolume']:.4f} of the box up to twice the "
        "start's latency and energy and the area allowed"
    )


# -- spaces and suites -----------------------------------------------------------------------------


def shipped() -> dict[str, Any]:
    """The search spaces and suites that come with the package, as plain data."""
    from jaxcomet.optimize import load_space, space_names
    from jaxcomet.optimize.joint.suites import load_suite, suite_names

    spaces, suites = [], []
    for name in space_names():
        space = load_space(name)
        spaces.append(
            {
                "name": name,
                "description": space.description,
                "start": space.start.name,
                "numbers": [f.name for f in space.free],
                "machines": space.size,
                "budgets": {b.name: {"limit": b.limit, "unit": b.unit} for b in space.budgets},
            }
        )
    for name in suite_names():
        suite = load_suite(name)
        suites.append(
            {
                "name": name,
                "description": suite.description,
                "workloads": {n: op.name for n, op in suite.workloads.items()},
            }
        )
    return {"spaces": spaces, "suites": suites}


def show_shipped(listed: Mapping[str, Any]) -> None:
    """Prints search spaces and suites."""
    columns = ("space", "description", "budgets", "numbers", "machines")
    table = tables.grid("Search spaces", columns, left=3, fold=("description", "budgets"))
    for space in listed["spaces"]:
        limits = [f"{n} {b['limit']:g} {b['unit']}" for n, b in space["budgets"].items()]
        size = space["machines"]
        machines = f"{size:,}" if size < _WHOLE else f"{size:.1e}"
        row = (space["name"], space["description"], ", ".join(limits) or "-")
        table.add_row(*row, str(len(space["numbers"])), machines)
    tables.show(table)
    columns = ("suite", "description", "workloads")
    table = tables.grid("Suites of workloads", columns, left=3, fold=columns[1:])
    for suite in listed["suites"]:
        table.add_row(suite["name"], suite["description"], ", ".join(suite["workloads"]))
    tables.show(table)


# -- figure ----------------------------------------------------------------------------------------


def figure(found: Found) -> "Figure":
    """The figure of a folder's only task.

    Raises:
      InputError: none or several tasks are finished, or no machine was found.
    """
    from jaxcomet.plot import codesign as plot

    names = list(found.records)
    if len(names) != 1:
        what = f"several tasks ({', '.join(names)}); choose one with --task"
        raise InputError(f"--figure: got {what if names else 'no finished task; resume it first'}")
    (name,) = names
    record = found.records[name]
    if "infeasible" in record:
        raise InputError(f"--figure: nothing to draw for {name}: {record['infeasible']}")
    best, start = record["points"][0], record["start"]
    bounds = _bounds(best)

    def place(point: Mapping[str, Any]) -> "plot.Place":
        latency, energy = _metrics(point)
        return plot.Place(latency=latency, energy=energy, area_mm2=point["area_mm2"])

    return plot.codesign_figure(
        f"{name}: {', '.join(record['workloads'])}",
        front=[place(p) for p in record["front"]],
        start=place(start),
        chosen={p["target"]: place(p) for p in record["points"]},
        history=[(at, tuple(values)) for at, values in record["history"]],
        evaluated=record["evaluated"],
        numbers=[
            plot.Change(
                name=number,
                ratio=best["numbers_base"][number] / start["numbers_base"][number],
                before=start["numbers"][number].partition(" ")[0],
                after=best["numbers"][number].removesuffix(" count") + bounds.get(number, ""),
            )
            for number in start["numbers"]
        ],
        across=record["settings"]["across"],
    )
