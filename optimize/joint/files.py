"""Search-space files: which machine numbers move, on which grids, within which budgets.

The one idea: a file is read as a whole, checked against the machine that it names, and refused with
all that is wrong with it, one line per problem (docs/codesign.md has the format).
"""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from jaxcomet.hardware import numbers, units
from jaxcomet.hardware.errors import MachineFileError, Problem, nearest, one_of, show
from jaxcomet.hardware.loader import load
from jaxcomet.hardware.machine import Machine
from jaxcomet.hardware.shipped import Shipped
from jaxcomet.hardware.technology_file import load_technology
from jaxcomet.optimize.joint.design import Budget, DesignSpace, FreeNumber, SpaceFileError

_FILES = Shipped(
    package="jaxcomet.optimize",
    folder="spaces",
    what="search space",
    page="docs/codesign.md",
    refuse=SpaceFileError,
)
_MOST = 4096  # values of a grid
_UNITS = {"area": "mm2", "bandwidth": "byte/cycle", "cores": "count"}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Number(_Table):
    keys: list[str]
    unit: str
    reason: str
    low: float | None = None
    high: float | None = None
    grid: str | None = None
    values: list[float] | None = None
    derived: bool = False


class _Budget(_Table):
    limit: float
    unit: str
    reason: str


class _Budgets(_Table):
    area: _Budget | None = None
    bandwidth: _Budget | None = None
    cores: _Budget | None = None


class _Space(_Table):
    name: str
    description: str
    machine: str
    technology: str = "45nm"
    numbers: dict[str, _Number]
    budgets: _Budgets = _Budgets()


_EXPECTED = {
    "keys": 'a list of keys of the machine, e.g. ["memory.gb.capacity"]',
    "unit": 'a unit, e.g. "KiB"',
    "reason": "why it is bounded so, in words",
    "low": "a number above 0",
    "high": "a number above 0",
    "grid": '"powers of two", "divisors of N" or "steps of N"',
    "values": "a list of numbers above 0, ascending",
    "derived": "true or false",
    "limit": "a number above 0",
    "numbers": "one table [numbers.<name>] for each number that moves",
    "machine": "the name or path of a machine",
}


def space_names() -> tuple[str, ...]:
    """Names of the search spaces that come with the package, sorted."""
    return _FILES.names()


def load_space(name_or_path: str | PathLike[str]) -> DesignSpace:
    """The search space of a name or a file.

    Args:
      name_or_path: one of `space_names`, or the path of a file (docs/codesign.md).

    Raises:
      SpaceFileError: the name or the file is wrong; lists everything found.
      MachineFileError: the machine that it names is.

    Example:
      >>> space = load_space("edge-9")
      >>> len(space.free), [b.name for b in space.budgets]
      (9, ['area', 'bandwidth', 'cores'])
    """
    file = _FILES.read(name_or_path)
    return _read(file.label, file.tables, file.folder)


def _read(label: str, tables: Mapping[str, Any], folder: Path | None) -> DesignSpace:
    try:
        spec = _Space.model_validate(tables)
    except ValidationError as error:
        raise SpaceFileError(
            label, [_translated(dict(d), tables) for d in error.errors()]
        ) from None
    start = load(_machine_path(spec.machine, folder))
    technology = load_technology(spec.technology)
    problems: list[Problem] = []
    free: list[FreeNumber] = []
    taken: dict[str, str] = {}
    for name, number in spec.numbers.items():
        found, wrong = _number(name, number, start)
        for key in number.keys:
            if key in taken:
                wrong.append(
                    Problem(
                        f"numbers.{name}.keys",
                        f"{key}, which numbers.{taken[key]} sets as well",
                        "each key once",
                        "remove it from one of the two",
                    )
                )
            taken[key] = name
        problems += wrong
        if found is not None:
            free.append(found)
    budgets: list[Budget] = []
    for name in _UNITS:
        budget: _Budget | None = getattr(spec.budgets, name)
        if budget is None:
            continue
        where = f"budgets.{name}"
        if budget.unit != _UNITS[name]:
            problems.append(
                Problem(f"{where}.unit", show(budget.unit), show(_UNITS[name]), "write it so")
            )
        if not (math.isfinite(budget.limit) and budget.limit > 0):
            problems.append(
                Problem(f"{where}.limit", show(budget.limit), "a number above 0", "correct it")
            )
        budgets.append(Budget(name=name, limit=budget.limit, unit=budget.unit))
    if not spec.numbers:
        problems.append(Problem("numbers", "none", _EXPECTED["numbers"], "add one"))
    if problems:
        raise SpaceFileError(label, problems)
    space = DesignSpace(
        name=spec.name,
        description=spec.description,
        start=start,
        technology=technology,
        free=tuple(free),
        budgets=tuple(budgets),
    )
    space.check_budgets(space.limits)
    return space


def _machine_path(machine: str, folder: Path | None) -> str:
    """A machine file beside the space file, or a name."""
    beside = None if folder is None else folder / machine
    return str(beside) if beside is not None and beside.is_file() else machine


@dataclass(frozen=True)
class _Grid:
    kind: Literal["powers", "divisors", "steps"]
    of: float


def _grid(text: str) -> _Grid | None:
    if text == "powers of two":
        return _Grid("powers", 2.0)
    match = re.fullmatch(r"(divisors|steps) of (\d+(?:\.\d+)?)", text)
    if match is None or float(match[2]) <= 0:
        return None
    return _Grid("divisors" if match[1] == "divisors" else "steps", float(match[2]))


def _values(number: _Number) -> list[float] | str:
    """Values of a grid in the file's unit; or what is wrong with it."""
    if number.values is not None:
        if number.low is not None or number.high is not None or number.grid is not None:
            return "values beside low, high or grid"
        return list(number.values)
    if number.low is None or number.high is None or number.grid is None:
        return "no values, and not all of low, high and grid"
    low, high = number.low, number.high
    if not (0 < low <= high and math.isfinite(high)):
        return f"low {low:g} and high {high:g}"
    grid = _grid(number.grid)
    if grid is None:
        return f"grid {show(number.grid)}"
    if grid.kind == "powers":
        count = math.floor(math.log2(high / low) + 1e-9) + 1
        return [low * 2.0**k for k in range(count)]
    if grid.kind == "steps":
        first = math.ceil(low / grid.of - 1e-9)
        count = math.floor(high / grid.of + 1e-9) - first + 1
        return [grid.of * (first + k) for k in range(min(count, _MOST + 1))]
    if not grid.of.is_integer():
        return f"divisors of {grid.of:g}"
    whole = int(grid.of)
    return [float(d) for d in range(math.ceil(low), math.floor(high) + 1) if whole % d == 0]


def _number(name: str, number: _Number, start: Machine) -> tuple[FreeNumber | None, list[Problem]]:
    where = f"numbers.{name}"
    problems: list[Problem] = []
    if not number.keys:
        return None, [Problem(f"{where}.keys", "none", _EXPECTED["keys"], "add one")]
    kinds = []
    for key in number.keys:
        try:
            kinds.append(numbers.quantity(key, start))
            value = numbers.value(start, key)
        except MachineFileError as error:
            problems += [
                Problem(f"{where}.keys", p.got, p.expected, p.advice) for p in error.problems
            ]
            continue
        if not (math.isfinite(value) and value > 0):
            got = f"{key}, which is {value:g} in {start.name}"
            problems.append(
                Problem(f"{where}.keys", got, "keys of finite numbers above 0", "leave it out")
            )
    if problems:
        return None, problems
    kind = kinds[0]
    if number.unit not in kind.dimension.units or number.unit in kind.dimension.per_access:
        usable = [u for u in kind.dimension.units if u not in kind.dimension.per_access]
        advice = units.unit_advice(number.unit, kind.dimension)
        return None, [Problem(f"{where}.unit", show(number.unit), one_of(usable), advice)]
    if number.unit in kind.dimension.clocked and start.clock_hz is None:
        got = f"{show(number.unit)}, but {start.name} has no clock"
        return None, [Problem(f"{where}.unit", got, "a unit per cycle", "write it per cycle")]
    clock = None if start.clock_hz is None else float(start.clock_hz)  # pyright: ignore[reportArgumentType]
    scale = units.to_base(1.0, number.unit, kind.dimension, clock_hz=clock)
    values = _values(number)
    if isinstance(values, str):
        expected = "0 < low <= high with grid = " + _EXPECTED["grid"] + ", or values = [...] alone"
        return None, [Problem(where, values, expected, "correct it")]
    ascending = all(a < b for a, b in itertools.pairwise(values))
    possible = all(math.isfinite(v) and v > 0 for v in values)
    if not values or not ascending or not possible or len(values) > _MOST:
        got = f"{len(values)} values" + ("" if ascending else " that do not ascend")
        expected = f"1 to {_MOST} numbers above 0, ascending"
        return None, [Problem(where, got, expected, "correct bounds or grid")]
    first = numbers.value(start, number.keys[0])
    for key, one in zip(number.keys, kinds, strict=True):
        ratio = numbers.value(start, key) / first
        broken = [v for v in values if one.whole and not (v * scale * ratio).is_integer()]
        if broken:
            got = f"{broken[0]:g} {number.unit}, which makes {key} {broken[0] * scale * ratio:g}"
            problems.append(
                Problem(where, got, f"whole numbers of {key}", "change the grid, or the tied keys")
            )
    if not any(math.isclose(first, v * scale, rel_tol=1e-9) for v in values):
        got = f"a grid without {first / scale:g} {number.unit}, which {start.name} has"
        problems.append(
            Problem(where, got, "a grid that the machine is on", "add the value, or change bounds")
        )
    if number.derived and not all(
        k.startswith("memory.") and k.endswith(".capacity") for k in number.keys
    ):
        problems.append(
            Problem(f"{where}.derived", "true", "false: only capacities follow", "remove it")
        )
    if not number.reason.strip():
        problems.append(Problem(f"{where}.reason", '""', _EXPECTED["reason"], "say why"))
    if problems:
        return None, problems
    return (
        FreeNumber(
            name=name,
            keys=tuple(number.keys),
            grid=tuple(v * scale for v in values),
            unit=number.unit,
            scale=scale,
            reason=number.reason,
            derived=number.derived,
        ),
        [],
    )


def _translated(detail: dict[str, Any], tables: Mapping[str, Any]) -> Problem:
    path = [str(part) for part in detail["loc"]]
    key, last = ".".join(path), path[-1]
    expected = _EXPECTED.get(last, "the key")
    match detail["type"]:
        case "missing":
            return Problem(key, "nothing", expected, "add the key (docs/codesign.md)")
        case "extra_forbidden":
            model: type[BaseModel] = _Space
            if path[0] == "numbers" and len(path) == 3:
                model = _Number
            elif path[0] == "budgets":
                model = _Budgets if len(path) == 2 else _Budget
            known = list(model.model_fields)
            advice = nearest(last, known, "remove it: nothing would read it")
            return Problem(key, f"unknown key {last}", one_of(known), advice)
        case _:
            return Problem(key, show(detail["input"]), expected, "correct it (docs/codesign.md)")
