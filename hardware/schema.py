"""The machine file as pydantic models: every number with value, unit, source and kind.

The one idea: the class of an entry (entries.py) says what may stand there (`Bandwidth`, `Capacity`,
...), so that the model of a table reads as its documentation and nothing in a file is left unread.

Left out: rules that join several tables (parents, levels, ports), which stand in structure.py, and
conversion to base units, which loader.py asks for.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from jaxcomet.hardware.entries import (
    PROBLEM,
    AccessEnergy,
    ArrayChoice,
    Bandwidth,
    Capacitance,
    Capacity,
    Choice,
    Count,
    Energy,
    FeatureSize,
    Frequency,
    Kind,
    Latency,
    Number,
    Pitch,
    Quantity,
    Resistance,
    RowReductionChoice,
    Sourced,
    Switch,
    Table,
    Voltage,
    Width,
    WireCapacitance,
)
from jaxcomet.hardware.errors import Problem, nearest, one_of, show


class LevelSpec(Table):
    """``[levels.<name>]``: a mesh of units below each unit of the level above.

    Attributes:
      mesh_x: units along x; left out, or 1, for the outermost level.
      mesh_y: units along y.
    """

    mesh_x: Count | None = None
    mesh_y: Count | None = None


class NetworkSpec(Table):
    """``[memory.<name>.network]``: the mesh between a memory and its parent."""

    port_bandwidth: Bandwidth
    hop_latency: Latency
    queuing_delay: Latency
    channel_width: Width
    num_ports: Count
    broadcast: Switch
    reduction: Switch


class MemorySpec(Table):
    """``[memory.<name>]``: one memory. The outermost one has no parent, nor what leads to it."""

    level: str
    parent: str | None = None
    capacity: Capacity | None = None
    access_width: Capacity | None = None
    child_bandwidth: Bandwidth
    parent_bandwidth: Bandwidth | None = None
    link_bandwidth: Bandwidth | None = None
    read_energy: AccessEnergy
    write_energy: AccessEnergy
    duplex: Switch
    shared_ports: Switch | None = None
    double_buffered: Switch | None = None
    network: NetworkSpec | None = None


class PortSpec(Table):
    """``[engine.<name>.ports.<memory>]``: the connection of an engine to one memory."""

    bandwidth: Bandwidth
    hop_latency: Latency


class MatrixEngineSpec(Table):
    """``[engine.<name>]`` with ``type = "matrix"``: a grid of weight-stationary arrays.

    Attributes:
      array: left out = systolic.
      weight_registers: left out = true.
    """

    type: Literal["matrix"]
    operands: Annotated[tuple[str, str], Field(strict=False)]
    result: str
    ports: dict[str, PortSpec]
    array_rows: Count
    array_columns: Count
    grid_rows: Count
    grid_columns: Count
    mac_energy: Energy
    array: ArrayChoice | None = None
    weight_registers: Switch | None = None


class VectorOpSpec(Table):
    """``[engine.<name>.ops.<op>]``: cycles per instruction, energy per lane and instruction."""

    cycles: Latency
    energy: Energy


class VectorOpsSpec(Table):
    """The elementary operations that every vector engine has. Row reductions follow from them."""

    add: VectorOpSpec
    mul: VectorOpSpec
    div: VectorOpSpec
    exp: VectorOpSpec
    max: VectorOpSpec
    sqrt: VectorOpSpec


class VectorEngineSpec(Table):
    """``[engine.<name>]`` with ``type = "vector"``: a SIMD unit.

    Attributes:
      row_reduction: left out = tree.
    """

    type: Literal["vector"]
    operands: Annotated[tuple[str], Field(strict=False)]
    result: str
    ports: dict[str, PortSpec]
    lanes: Count
    pipeline_stages: Count
    row_reduction: RowReductionChoice | None = None
    ops: VectorOpsSpec


EngineSpec = Annotated[MatrixEngineSpec | VectorEngineSpec, Field(discriminator="type")]
"""One engine of either type."""


class RouterSpec(Table):
    """``[router]``: circuit constants of the network energy model."""

    supply: Voltage
    transistor_resistance: Resistance
    gate_capacitance: Capacitance
    drain_capacitance: Capacitance
    overlap_capacitance: Capacitance
    fanout_delays_per_clock: Number
    metal_pitch: Pitch
    channel_pitch: Pitch
    wire_capacitance: WireCapacitance
    feature_size: FeatureSize
    repeater_factor: Number
    virtual_channels: Count
    buffer_depth: Count
    crossbar_ports: Count


class MachineSpec(Table):
    """A whole machine file, as read: values in the units that were written, with sources.

    Attributes:
      name: name of the machine.
      description: what it is, in a sentence.
      clock: clock frequency; left out where it is not known.
      levels: levels by name, outermost first.
      memory: memories by name.
      engine: engines by name.
      router: constants of the network energy model; left out where that energy is not modelled.
    """

    name: str
    description: str
    clock: Frequency | None = None
    levels: dict[str, LevelSpec]
    memory: dict[str, MemorySpec]
    engine: dict[str, EngineSpec]
    router: RouterSpec | None = None

    def entries(self) -> Iterator[tuple[str, Quantity | Switch | Choice]]:
        """All numbers, switches and choices with their dotted keys, in the order of the models."""
        yield from _entries("", self)


def _entries(prefix: str, node: object) -> Iterator[tuple[str, Quantity | Switch | Choice]]:
    if isinstance(node, Quantity | Switch | Choice):
        yield prefix, node
        return
    if isinstance(node, BaseModel):
        children: Mapping[str, object] = {
            key: getattr(node, key) for key in type(node).model_fields
        }
    elif isinstance(node, dict):
        children = node
    else:
        return
    for key, child in children.items():
        yield from _entries(f"{prefix}.{key}" if prefix else key, child)


def model_at(path: Sequence[str], tables: Mapping[str, Any]) -> type[BaseModel] | None:
    """The model of the table at a path of keys, or None where the schema knows no table.

    Args:
      path: keys from the top, e.g. ``("memory", "gb", "capacity")``.
      tables: the file as parsed; decides which type of engine is meant.

    Returns:
      The class, e.g. `Capacity`.
    """
    annotation: Any = MachineSpec
    node: Any = tables
    for key in path:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if key not in annotation.model_fields:
                return None
            annotation = annotation.model_fields[key].annotation
        elif get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        else:
            return None
        node = node.get(key) if isinstance(node, dict) else None
        annotation = _without_choices(annotation, node)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def _without_choices(annotation: Any, node: Any) -> Any:
    """The one member of an optional, annotated or discriminated type that fits the node."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    members = [member for member in get_args(annotation) if member is not type(None)]
    kind = node.get("type") if isinstance(node, dict) else None
    for member in members:
        if len(members) == 1 or kind in get_args(member.model_fields["type"].annotation):
            return member
    return None


def problems(tables: Mapping[str, Any]) -> tuple[MachineSpec | None, list[Problem]]:
    """Reads the tables of a file by the schema.

    Args:
      tables: the file as parsed.

    Returns:
      The specification, or None, and what is wrong.
    """
    try:
        return MachineSpec.model_validate(tables), []
    except ValidationError as error:
        return None, [_translated(detail, tables) for detail in error.errors()]


def _path(detail: ErrorDetails) -> list[str]:
    """The keys of an error; pydantic adds the engine's type after its name."""
    path = [str(part) for part in detail["loc"]]
    if path[0] == "engine" and len(path) > 2 and path[2] in ("matrix", "vector"):
        del path[2]
    return path


def _translated(detail: ErrorDetails, tables: Mapping[str, Any]) -> Problem:
    path = _path(detail)
    key = ".".join(path)
    got = detail["input"]
    parent = model_at(path[:-1], tables)
    match detail["type"]:
        case kind if kind == PROBLEM:
            context = detail.get("ctx", {})
            return Problem(key, context["got"], context["expected"], context["advice"])
        case "missing":
            return _missing(path, parent, tables)
        case "extra_forbidden":
            return _unknown_key(path, parent)
        case "float_type" | "float_parsing" | "finite_number":
            allowed = parent.allowed() if parent and issubclass(parent, Quantity) else "a number"
            what = {str: " (a string)", bool: " (yes or no)"}.get(type(got), "")
            return Problem(key, show(got) + what, allowed, "write a plain number")
        case "bool_type":
            return Problem(key, show(got), "true or false", "write it without quotes")
        case "literal_error" if parent and issubclass(parent, Choice) and path[-1] == "value":
            advice = nearest(str(got), parent.choices(), "choose one of these")
            return Problem(key, show(got), one_of(parent.choices()), advice)
        case "literal_error":
            return Problem(key, show(got), one_of(get_args(Kind)), "say how the number is known")
        case "string_type":
            return Problem(key, show(got), "a text", "write it in quotes")
        case "union_tag_not_found" | "union_tag_invalid":
            kind = got.get("type") if isinstance(got, dict) else None
            return Problem(
                f"{key}.type",
                "nothing" if kind is None else show(kind),
                "one of matrix, vector",
                "say what the engine is",
            )
        case "tuple_type" | "too_long":
            return Problem(key, show(got), *_operands(tables, path))
        case "model_type" | "model_attributes_type" | "dict_type":
            return _not_a_table(path, got, tables)
        case _:
            return Problem(key, show(got), detail["msg"], "correct it (docs/machines.md)")


def _missing(path: list[str], parent: type[BaseModel] | None, tables: Mapping[str, Any]) -> Problem:
    key = ".".join(path)
    if parent is not None and issubclass(parent, Sourced):
        quantity = _node(tables, path[:-1])
        value = show(quantity["value"]) if "value" in quantity else "a table"
        example = _example(parent, quantity.get("value", 1))
        return Problem(
            ".".join(path[:-1]),
            f"{value} without {path[-1]}",
            f"e.g. {example}",
            f"add the {path[-1]}",
        )
    if "operands" in path[:-1]:
        listed = _node(tables, path[:-1])
        return Problem(".".join(path[:-1]), show(listed), *_operands(tables, path[:-1]))
    model = model_at(path, tables)
    expected = "the key" if model is None else _expected(model)
    return Problem(key, "nothing", expected, "add the key (docs/machines.md)")


def _operands(tables: Mapping[str, Any], path: list[str]) -> tuple[str, str]:
    if _node(tables, [*path[:2], "type"]) == "matrix":
        return "a list of 2 memory names", 'write e.g. operands = ["ib", "wb"]'
    return "a list of 1 memory name", 'write e.g. operands = ["ob"]'


def _example(model: type[Sourced], value: object) -> str:
    if issubclass(model, Quantity):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return model.example(value if is_number else 1)
    if issubclass(model, Choice):
        chosen = value if value in model.choices() else model.choices()[0]
        return f'{{value = {show(chosen)}, source = "document, page", kind = "published"}}'
    return '{value = true, source = "document, page", kind = "published"}'


def _expected(model: type[BaseModel]) -> str:
    if issubclass(model, Sourced):
        return f"e.g. {_example(model, True if model is Switch else 1)}"
    return f"a table with {one_of(model.model_fields).removeprefix('one of ')}"


def _unknown_key(path: list[str], parent: type[BaseModel] | None) -> Problem:
    known = list(parent.model_fields) if parent else []
    advice = nearest(path[-1], known, "remove it: nothing would read it")
    if parent and path[-1] == "unit" and issubclass(parent, Switch | Choice):
        what = "yes or no" if parent is Switch else "a choice"
        advice = f"remove it: {what} has no unit"
    return Problem(".".join(path), f"unknown key {path[-1]}", one_of(known), advice)


def _not_a_table(path: list[str], got: object, tables: Mapping[str, Any]) -> Problem:
    key = ".".join(path)
    model = model_at(path, tables)
    if model is None:
        header = key if len(path) > 1 else f"{key}.<name>"
        return Problem(key, show(got), "a table", f"write [{header}]")
    if issubclass(model, Quantity):
        example = _example(model, got)
        return Problem(key, f"{show(got)} without unit", f"e.g. {example}", "write it as a table")
    if issubclass(model, Switch | Choice):
        return Problem(
            key,
            f"{show(got)} without source",
            f"e.g. {_example(model, got)}",
            "write it as a table",
        )
    return Problem(key, show(got), _expected(model), f"write [{key}]")


def _node(tables: Mapping[str, Any], path: Sequence[str]) -> Any:
    node: Any = tables
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return node
