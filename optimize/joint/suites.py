"""Suite files: the workloads that one machine is designed for, with their weights.

The one idea: a workload is written in the words of `jaxcomet.operations.catalog`, so that whatever
is added there can stand in a suite. A file is refused with all that is wrong with it, one line per
problem, as a search space is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from jaxcomet.hardware.errors import Problem, nearest, one_of, show
from jaxcomet.hardware.shipped import Shipped
from jaxcomet.operations.catalog import CATALOG, Entry
from jaxcomet.optimize.joint.design import SuiteFileError
from jaxcomet.workload import CompoundOp, WorkloadError

_FILES = Shipped(
    package="jaxcomet.optimize",
    folder="suites",
    what="suite",
    page="docs/codesign.md",
    refuse=SuiteFileError,
)
_LARGEST = 2**53  # up to which every whole number is a float
_OWN = ("name", "operation", "weight", "options")
_EXPECTED = {
    "name": "a name in letters",
    "description": "what it stands for, in words",
    "operation": one_of(CATALOG),
    "weight": "a number above 0",
    "options": "a table, e.g. {causal = true}",
    "workload": "one table [[workload]] for each workload",
}


@dataclass(frozen=True, kw_only=True)
class WorkloadSuite:
    """Workloads that share a machine.

    Attributes:
      name: its name.
      description: what it stands for.
      workloads: single shapes by name; sizes are counts of elements.
      weights: one for each workload, > 0, as in the file; 1 where it says nothing.
    """

    name: str
    description: str
    workloads: dict[str, CompoundOp]
    weights: tuple[float, ...]


def suite_names() -> tuple[str, ...]:
    """Names of the suites that come with the package, sorted.

    Example:
      >>> suite_names()
      ('gpt-3-175b', 'llama-3-8b', 'three')
    """
    return _FILES.names()


def load_suite(name_or_path: str | PathLike[str]) -> WorkloadSuite:
    """The suite of a name or a file.

    Args:
      name_or_path: one of `suite_names`, or the path of a TOML file with ``name``, ``description``
        and tables ``[[workload]]``. Each has a ``name``, an ``operation`` of the catalog, its sizes
        as further keys (whole numbers of elements), and may have ``options`` and a ``weight``.

    Raises:
      SuiteFileError: the name or the file is wrong; lists everything found. Workloads are counted
        from 1.

    Example:
      >>> suite = load_suite("three")
      >>> {name: op.name for name, op in suite.workloads.items()}["attention"], suite.weights
      ('attention', (1.0, 1.0, 1.0))
    """
    file = _FILES.read(name_or_path)
    return _read(file.label, file.tables)


def _read(label: str, tables: Mapping[str, Any]) -> WorkloadSuite:
    problems = [
        Problem(key, f"unknown key {key}", one_of(_TOP), nearest(key, _TOP, _REMOVE))
        for key in tables
        if key not in _TOP
    ]
    problems += [found for key in ("name", "description") for found in _words(tables, key, key)]
    several = tables.get("workload")
    if not isinstance(several, list) or not several:
        got = "nothing" if several is None or several == [] else show(several)
        problems.append(Problem("workload", got, _EXPECTED["workload"], "add one"))
        several = []
    workloads: dict[str, CompoundOp] = {}
    weights: list[float] = []
    places: dict[str, int] = {}
    for number, table in enumerate(several, start=1):
        where = f"workload.{number}"
        if not isinstance(table, dict):
            problems.append(Problem(where, show(table), "a table", "write it as [[workload]]"))
            continue
        wrong = _words(table, "name", f"{where}.name")
        name = table.get("name")
        if not wrong and name in places:
            got = f"{show(name)}, which workload.{places[name]} has as well"
            wrong.append(Problem(f"{where}.name", got, "each name once", "rename one"))
        places.setdefault(str(name), number)
        weight = table.get("weight", 1.0)
        if not (_is_number(weight) and math.isfinite(weight) and weight > 0):
            wrong.append(
                Problem(f"{where}.weight", show(weight), _EXPECTED["weight"], "correct it")
            )
        operation = _operation(where, table, wrong)
        problems += wrong
        if operation is not None and not wrong:
            workloads[str(name)] = operation
            weights.append(float(weight))
    if problems:
        raise SuiteFileError(label, problems)
    return WorkloadSuite(
        name=tables["name"],
        description=tables["description"],
        workloads=workloads,
        weights=tuple(weights),
    )


_TOP = ("name", "description", "workload")
_REMOVE = "remove it: nothing would read it"


def _words(table: Mapping[str, Any], key: str, where: str) -> list[Problem]:
    """What is wrong with a key that must hold words."""
    value = table.get(key)
    if isinstance(value, str) and value.strip():
        return []
    got = "nothing" if value is None else show(value)
    advice = "add the key" if value is None else "correct it"
    return [Problem(where, got, _EXPECTED[key], advice)]


def _operation(where: str, table: Mapping[str, Any], wrong: list[Problem]) -> CompoundOp | None:
    """The compound operation of a table; what is wrong with it is added to the problems."""
    name = table.get("operation")
    if not isinstance(name, str) or name not in CATALOG:
        got = "nothing" if name is None else show(name)
        advice = "add the key" if name is None else nearest(str(name), tuple(CATALOG), "choose one")
        wrong.append(Problem(f"{where}.operation", got, _EXPECTED["operation"], advice))
        return None
    entry = CATALOG[name]
    before = len(wrong)
    _check_sizes(where, table, entry, wrong)
    _check_options(where, table.get("options", {}), entry, wrong)
    if len(wrong) > before:
        return None
    sizes = {size.name: table[size.name] for size in entry.sizes if size.name in table}
    try:
        return entry.build(sizes, table.get("options", {}))
    except WorkloadError as error:
        wrong.append(
            Problem(where, f"sizes that {name} cannot have", "ones that it can", str(error))
        )
        return None


def _check_sizes(where: str, table: Mapping[str, Any], entry: Entry, wrong: list[Problem]) -> None:
    names = tuple(size.name for size in entry.sizes)
    known = (*_OWN, *names)
    for key, value in table.items():
        if key not in known:
            advice = nearest(key, known, f"remove it: {entry.name} has no such size")
            wrong.append(Problem(f"{where}.{key}", f"unknown key {key}", one_of(known), advice))
        elif key in names and not (type(value) is int and 1 <= value <= _LARGEST):
            expected = "a whole number from 1 to 2**53"
            wrong.append(Problem(f"{where}.{key}", show(value), expected, "correct it"))
    for key in entry.required:
        if key not in table:
            expected = f"a whole number; {entry.name} needs {', '.join(entry.required)}"
            wrong.append(Problem(f"{where}.{key}", "nothing", expected, "add the key"))


def _check_options(where: str, options: object, entry: Entry, wrong: list[Problem]) -> None:
    if not isinstance(options, dict):
        wrong.append(Problem(f"{where}.options", show(options), _EXPECTED["options"], "correct it"))
        return
    known = {option.name: option for option in entry.options}
    for key, value in options.items():
        place = f"{where}.options.{key}"
        if key not in known:
            advice = nearest(key, tuple(known), f"remove it: {entry.name} has no such option")
            wrong.append(Problem(place, f"unknown key {key}", one_of(known), advice))
        elif not known[key].allows(value):
            wrong.append(Problem(place, show(value), known[key].allowed, "correct it"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
