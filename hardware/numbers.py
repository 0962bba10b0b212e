"""The numbers of a machine by the dotted key that they have in a machine file.

The one idea: where a number stands in a `Machine` follows from the schema of the file. The tables
have the same names, and an attribute is called as its key, with the unit behind it
(``memory.gb.capacity`` is ``machine.memories["gb"].capacity_bytes``). Nothing is converted and no
value is checked, so that numbers may be arrays or traced.

Left out: switches, choices and names, which are no numbers, and ``access_width``, which the loader
divides out and a machine does not have.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from jaxcomet.hardware import schema
from jaxcomet.hardware.entries import Quantity
from jaxcomet.hardware.errors import MachineFileError, Problem, nearest
from jaxcomet.hardware.machine import Machine, MatrixEngine, Scalar

_RENAMED = {"memory": "memories", "engine": "engines"}


def read(machine: Machine, key: str) -> Scalar:
    """The number of a key, in base units.

    Args:
      machine: its leaves may be arrays or traced.
      key: dotted key of a machine file, one of `keys`.

    Returns:
      The leaf itself.

    Raises:
      MachineFileError: the machine has no number of this key; names close ones.

    Example:
      >>> from jaxcomet.hardware import load
      >>> read(load("edge"), "memory.gb.capacity")
      2097152.0
    """
    return _find(machine, key)[1]


def value(machine: Machine, key: str) -> float:
    """As `read`, of a single machine.

    Example:
      >>> from jaxcomet.hardware import load
      >>> value(load("edge"), "engine.simd.lanes")
      16.0
    """
    return float(read(machine, key))  # pyright: ignore[reportArgumentType]


def replaced(machine: Machine, values: Mapping[str, Scalar]) -> Machine:
    """The machine with other numbers.

    Args:
      machine: the machine to start from, which stays as it is.
      values: numbers in base units by key; floats, arrays or traced. They are taken as they are.

    Returns:
      A new machine. Gradients pass through to `values` and to all numbers that stay.

    Raises:
      MachineFileError: the machine has no number of a key; names close ones.

    Example:
      >>> from jaxcomet.hardware import load
      >>> larger = replaced(load("edge"), {"memory.gb.capacity": 2.0**22})
      >>> larger.memories["gb"].capacity_bytes
      4194304.0
    """
    for key, value in values.items():
        machine = _with(machine, _find(machine, key)[0], value)
    return machine


def keys(machine: Machine) -> tuple[str, ...]:
    """Keys of all numbers that a machine has, in the order of a machine file.

    The mesh of the outermost level is among them, which a file may leave out.

    Example:
      >>> from jaxcomet.hardware import load
      >>> keys(load("edge"))[:3]
      ('levels.dram.mesh_x', 'levels.dram.mesh_y', 'levels.gb.mesh_x')
    """
    return tuple(".".join(path) for path in _walk((), machine, machine))


def quantity(key: str, machine: Machine) -> type[Quantity]:
    """The class of a key's entry, which says its dimension and whether it is whole.

    Args:
      key: as for `read`.
      machine: decides which names there are, and which type of engine is meant.

    Raises:
      MachineFileError: as for `read`.

    Example:
      >>> from jaxcomet.hardware import load
      >>> quantity("levels.gb.mesh_x", load("edge")).whole
      True
    """
    _find(machine, key)
    model = _model(tuple(key.split(".")), machine)
    assert model is not None
    assert issubclass(model, Quantity)
    return model


def _model(path: tuple[str, ...], machine: Machine) -> type[Any] | None:
    """The model of the table or entry at a path."""
    name = path[1] if len(path) > 1 and path[0] == "engine" else None
    engine = None if name is None else machine.engines.get(name)
    kind = "matrix" if isinstance(engine, MatrixEngine) else "vector"
    return schema.model_at(path, {"engine": {name: {"type": kind}}})


def _step(node: object, path: tuple[str, ...], machine: Machine) -> str | int | None:
    """Attribute, key or position in `node` of what stands at a path; None where nothing does."""
    name = path[-1]
    if isinstance(node, Mapping):
        return name if name in node else None
    if isinstance(node, tuple):
        return next((i for i, level in enumerate(node) if level.name == name), None)
    table = _model(path[:-1], machine)
    if not dataclasses.is_dataclass(node) or table is None or name not in table.model_fields:
        return None
    leaves = [f.name for f in dataclasses.fields(node) if not f.metadata.get("static")]
    if (exact := _RENAMED.get(name, name)) in leaves:
        return exact
    model = _model(path, machine)
    if model is None or not issubclass(model, Quantity):
        return None
    return next((leaf for leaf in leaves if leaf.startswith(f"{name}_")), None)


def _at(node: Any, step: str | int) -> Any:
    return getattr(node, str(step)) if dataclasses.is_dataclass(node) else node[step]


def _with(node: Any, steps: tuple[str | int, ...], value: Scalar) -> Any:
    if not steps:
        return value
    step, *rest = steps
    child = _with(_at(node, step), tuple(rest), value)
    if isinstance(node, Mapping):
        return {**node, step: child}
    if isinstance(node, tuple):
        return tuple(child if index == step else old for index, old in enumerate(node))
    return dataclasses.replace(node, **{str(step): child})


def _find(machine: Machine, key: str) -> tuple[tuple[str | int, ...], Scalar]:
    """The way to the leaf of a key, and the leaf."""
    path = tuple(key.split("."))
    node: Any = machine
    steps: list[str | int] = []
    for depth in range(1, len(path) + 1):
        step = _step(node, path[:depth], machine)
        if step is None:
            raise _unknown(machine, key)
        steps.append(step)
        node = _at(node, step)
    if node is None or isinstance(node, Mapping | tuple) or dataclasses.is_dataclass(node):
        raise _unknown(machine, key)
    return tuple(steps), node


def _walk(path: tuple[str, ...], node: Any, machine: Machine) -> Iterator[tuple[str, ...]]:
    """Paths of all numbers below a node."""
    if node is None:
        return
    model = _model(path, machine)
    if model is not None and issubclass(model, Quantity):
        yield path
        return
    if model is not None:
        names = list(model.model_fields)
    elif path == ("memory",):
        depth = {level.name: index for index, level in enumerate(machine.levels)}
        names = sorted(node, key=lambda name: depth[node[name].level])
    else:
        names = [x if isinstance(x, str) else x.name for x in node]
    for name in names:
        step = _step(node, (*path, name), machine)
        if step is not None:
            yield from _walk((*path, name), _at(node, step), machine)


def _unknown(machine: Machine, key: str) -> MachineFileError:
    known = keys(machine)
    last = key.rpartition(".")[2]
    same_end = [x for x in known if x.rpartition(".")[2] == last]
    examples = f"{len(known)} keys have a number, e.g. {', '.join(known[:3])}"
    same = f"did you mean {' or '.join(same_end[:3])}?" if same_end else examples
    problem = Problem(
        key,
        "a key that this machine has no number for",
        "the dotted key of a number of the machine file",
        same if key == last else nearest(key, known, same),
    )
    return MachineFileError(machine.name, [problem])
