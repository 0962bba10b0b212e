"""`jaxcomet machines`: the machines there are, or one of them with every number."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxcomet.cli import tables
from jaxcomet.cli.errors import InputError
from jaxcomet.cli.options import Json, Overrides, pairs

if TYPE_CHECKING:
    from rich.tree import Tree

    from jaxcomet.hardware import Choice, MachineSpec, Quantity, Switch


def machines(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE]", help="A machine's name or TOML file.")
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    r"""Lists the machines, or shows one with every number, unit and source.

    \b
    Examples:
      jaxcomet machines
      jaxcomet machines edge
      jaxcomet machines edge --set memory.dram.child_bandwidth=50
      jaxcomet machines my_machine.toml --json
    """
    from jaxcomet import hardware

    if name is None:
        if overrides:
            raise InputError("--set: got a change without a machine; name the machine to change")
        rows = [_summary(hardware.read_spec(n)) for n in hardware.machine_names()]
        if as_json:
            tables.print_json(rows)
        else:
            _print_list(rows)
        return
    spec = hardware.read_spec(name, list(pairs("--set", overrides).items()))
    if as_json:
        tables.print_json(spec.model_dump(mode="json", exclude_none=True))
    else:
        tables.output().print(_tree(spec))


def _summary(spec: "MachineSpec") -> dict[str, Any]:
    from jaxcomet.hardware import MatrixEngine, to_machine

    machine = to_machine(spec)
    units = 1.0
    meshes = []
    for level in machine.levels:
        units *= float(level.mesh_x) * float(level.mesh_y)
        meshes.append(
            {
                "name": level.name,
                "mesh_x": tables.whole(float(level.mesh_x)),
                "mesh_y": tables.whole(float(level.mesh_y)),
            }
        )
    macs = 0.0
    for engine in machine.engines.values():
        if isinstance(engine, MatrixEngine):
            array = float(engine.array_rows) * float(engine.array_columns)
            macs += array * float(engine.grid_rows) * float(engine.grid_columns)
    root = machine.root
    return {
        "name": spec.name,
        "description": spec.description,
        "levels": meshes,
        "cores": tables.whole(units),
        "macs_per_core": tables.whole(macs),
        "root_memory": root.name,
        "root_bandwidth_bytes_per_cycle": _limit(root.child_bandwidth_bytes_per_cycle),
        "capacities_bytes": {m.name: _limit(m.capacity_bytes) for m in machine.memories.values()},
        "clock_hz": machine.clock_hz,
    }


def _limit(value: Any) -> float | int | None:
    """A capacity or bandwidth for JSON; None where it is unlimited."""
    number = math.inf if value is None else float(value)
    return None if math.isinf(number) else tables.whole(number)


def _size(num_bytes: float | int) -> str:
    for unit, size in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:g} {unit}"
    return f"{num_bytes:g} B"


def _print_list(rows: list[dict[str, Any]]) -> None:
    columns = ("name", "levels", "cores", "MACs per core", "DRAM B/cycle", "buffers", "clock")
    table = tables.grid("Machines", columns, left=2, fold=("levels", "buffers"))
    table.columns[5].justify = "left"
    for row in rows:
        levels = " > ".join(
            level["name"]
            if level["mesh_x"] == level["mesh_y"] == 1
            else f"{level['mesh_x']}x{level['mesh_y']} {level['name']}"
            for level in row["levels"]
        )
        buffers = ", ".join(f"{n} {_size(b)}" for n, b in row["capacities_bytes"].items() if b)
        bandwidth = row["root_bandwidth_bytes_per_cycle"]
        table.add_row(
            row["name"],
            levels,
            tables.count(row["cores"]),
            tables.count(row["macs_per_core"]),
            "unlimited" if bandwidth is None else tables.count(bandwidth),
            buffers,
            "not stated" if row["clock_hz"] is None else f"{row['clock_hz'] / 1e9:g} GHz",
        )
    console = tables.output()
    tables.show(table, console)
    for row in rows:
        console.print(f"{row['name']}: {row['description']}")
    console.print("`jaxcomet machines NAME` shows one with every number, unit and source.")


def _value(entry: "Quantity | Switch | Choice") -> str:
    from jaxcomet.hardware import Choice, Quantity

    if isinstance(entry, Quantity):
        number = tables.exact(entry.value)
        return number if entry.unit == "1" or math.isinf(entry.value) else f"{number} {entry.unit}"
    if isinstance(entry, Choice):
        return entry.value
    return "yes" if entry.value else "no"


def _tree(spec: "MachineSpec") -> "Tree":
    """Levels with their memories, networks and engines; each number with kind and source."""
    from rich.text import Text
    from rich.tree import Tree

    from jaxcomet.hardware import Choice, Quantity, Switch

    def fill(branch: Tree, table: object) -> None:
        for key in type(table).model_fields:  # pyright: ignore[reportAttributeAccessIssue]
            value = getattr(table, key)
            if isinstance(value, Quantity | Switch | Choice):
                line = Text.assemble(
                    f"{key} = ",
                    (_value(value), "bold"),
                    (f"  [{value.kind}] {value.source}", "dim"),
                )
                branch.add(line)
            elif key in ("ports", "ops"):
                for name, part in _items(value):
                    fill(branch.add(f"{key.removesuffix('s')} {name}"), part)
            elif key == "network" and value is not None:
                fill(branch.add("network to its parent"), value)

    root = Tree(Text.assemble((spec.name, "bold"), f": {spec.description}"))
    if spec.clock is not None:
        fill(root.add("clock"), spec)
    for name, level in spec.levels.items():
        branch = root.add(Text.assemble("level ", (name, "bold")))
        fill(branch, level)
        memories = {n: m for n, m in spec.memory.items() if m.level == name}
        for memory_name, memory in memories.items():
            parent = f" below {memory.parent}" if memory.parent else ""
            fill(branch.add(Text.assemble("memory ", (memory_name, "bold"), parent)), memory)
        for engine_name, engine in spec.engine.items():
            if engine.result in memories:
                text = f": {engine.type}, {' and '.join(engine.operands)} to {engine.result}"
                fill(branch.add(Text.assemble("engine ", (engine_name, "bold"), text)), engine)
    if spec.router is not None:
        fill(root.add("router"), spec.router)
    return root


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return [(key, getattr(value, key)) for key in type(value).model_fields]
