"""Reads machine files into `Machine` pytrees.

The one idea: a file is parsed, overridden, checked as a whole and only then converted to base
units; nothing is guessed on the way. This is the only module of the package that reads files.
"""

import math
import re
from collections.abc import Iterable
from copy import deepcopy
from os import PathLike
from typing import Any

from jaxcomet.hardware import schema, structure
from jaxcomet.hardware.entries import Bandwidth, Sourced
from jaxcomet.hardware.errors import MachineFileError, Problem, nearest
from jaxcomet.hardware.machine import (
    Level,
    Machine,
    MatrixEngine,
    Memory,
    Network,
    Port,
    RouterTechnology,
    VectorEngine,
    VectorOp,
)
from jaxcomet.hardware.shipped import Shipped

_FILES = Shipped(
    package="jaxcomet.hardware",
    folder="specs",
    what="machine",
    page="docs/machines.md",
    refuse=MachineFileError,
)

Override = tuple[str, str]
"""A dotted key and the text of its new value, e.g. ``("memory.dram.child_bandwidth", "50")``."""


def machine_names() -> tuple[str, ...]:
    """Names of the machines that come with the package, sorted.

    Example:
      >>> machine_names()
      ('cloud', 'edge', 'r2', 'r2v', 'r2w')
    """
    return _FILES.names()


def load(name_or_path: str | PathLike[str], overrides: Iterable[Override] = ()) -> Machine:
    """The machine of a name or a file, in base units.

    Args:
      name_or_path: one of `machine_names`, or the path of a machine file (docs/machines.md).
      overrides: dotted keys and new values; a value may bring its unit ("50 byte/cycle"), else the
        unit of the file stays.

    Returns:
      The machine; its leaves are Python floats.

    Raises:
      MachineFileError: the name, the file or an override is wrong; lists everything found.

    Example:
      >>> machine = load("edge", [("memory.dram.child_bandwidth", "50")])
      >>> machine.memories["dram"].child_bandwidth_bytes_per_cycle
      50.0
    """
    return to_machine(read_spec(name_or_path, overrides))


def read_spec(
    name_or_path: str | PathLike[str], overrides: Iterable[Override] = ()
) -> schema.MachineSpec:
    """The machine file as written, with units and sources.

    Args:
      name_or_path: as for `load`.
      overrides: as for `load`; an overridden entry says so in its source and counts as assumed.

    Returns:
      The checked specification.

    Raises:
      MachineFileError: as for `load`.

    Example:
      >>> read_spec("edge").memory["gb"].capacity.unit
      'MiB'
    """
    file = _FILES.read(name_or_path)
    label, tables = file.label, file.tables
    overrides = list(overrides)
    if overrides:
        label = f"{label} (with overrides)"
        tables = _overridden(label, tables, overrides)
    spec, found = schema.problems(tables)
    found = _most_telling([*structure.problems(tables), *found])
    if found or spec is None:
        raise MachineFileError(label, found)
    return spec


def to_machine(spec: schema.MachineSpec) -> Machine:
    """The machine of a specification, in base units.

    Args:
      spec: a specification as `read_spec` returns it.

    Returns:
      The machine; its leaves are Python floats.
    """
    clock_hz = None if spec.clock is None else spec.clock.base()
    depth = {name: index for index, name in enumerate(spec.levels)}
    outermost_first = sorted(spec.memory, key=lambda name: depth[spec.memory[name].level])
    return Machine(
        name=spec.name,
        levels=tuple(
            Level(
                name=name,
                mesh_x=1.0 if level.mesh_x is None else level.mesh_x.base(),
                mesh_y=1.0 if level.mesh_y is None else level.mesh_y.base(),
            )
            for name, level in spec.levels.items()
        ),
        memories={name: _memory(name, spec.memory[name], clock_hz) for name in outermost_first},
        engines={
            name: _engine(name, spec.memory[engine.result].level, engine, clock_hz)
            for name, engine in spec.engine.items()
        },
        router=None if spec.router is None else _router(spec.router),
        clock_hz=clock_hz,
    )


def _memory(name: str, spec: schema.MemorySpec, clock_hz: float | None) -> Memory:
    access_bytes = None if spec.access_width is None else spec.access_width.base()

    def bandwidth(quantity: Bandwidth | None) -> float | None:
        return None if quantity is None else quantity.base(clock_hz=clock_hz)

    return Memory(
        name=name,
        level=spec.level,
        parent=spec.parent,
        capacity_bytes=None if spec.capacity is None else spec.capacity.base(),
        child_bandwidth_bytes_per_cycle=spec.child_bandwidth.base(clock_hz=clock_hz),
        parent_bandwidth_bytes_per_cycle=bandwidth(spec.parent_bandwidth),
        link_bandwidth_bytes_per_cycle=bandwidth(spec.link_bandwidth),
        read_energy_pj_per_byte=spec.read_energy.base(access_bytes=access_bytes),
        write_energy_pj_per_byte=spec.write_energy.base(access_bytes=access_bytes),
        network=None if spec.network is None else _network(spec.network, clock_hz),
        duplex=spec.duplex.value,
        shared_ports=spec.shared_ports is not None and spec.shared_ports.value,
        double_buffered=spec.double_buffered is not None and spec.double_buffered.value,
    )


def _network(spec: schema.NetworkSpec, clock_hz: float | None) -> Network:
    return Network(
        port_bandwidth_bytes_per_cycle=spec.port_bandwidth.base(clock_hz=clock_hz),
        hop_latency_cycles=spec.hop_latency.base(clock_hz=clock_hz),
        queuing_delay_cycles=spec.queuing_delay.base(clock_hz=clock_hz),
        channel_width_bits=spec.channel_width.base(),
        num_ports=spec.num_ports.base(),
        broadcast=spec.broadcast.value,
        reduction=spec.reduction.value,
    )


def _engine(
    name: str,
    level: str,
    spec: schema.MatrixEngineSpec | schema.VectorEngineSpec,
    clock_hz: float | None,
) -> MatrixEngine | VectorEngine:
    ports = {
        memory: Port(
            bandwidth_bytes_per_cycle=port.bandwidth.base(clock_hz=clock_hz),
            hop_latency_cycles=port.hop_latency.base(clock_hz=clock_hz),
        )
        for memory, port in spec.ports.items()
    }
    if isinstance(spec, schema.MatrixEngineSpec):
        return MatrixEngine(
            name=name,
            level=level,
            operands=spec.operands,
            result=spec.result,
            ports=ports,
            array_rows=spec.array_rows.base(),
            array_columns=spec.array_columns.base(),
            grid_rows=spec.grid_rows.base(),
            grid_columns=spec.grid_columns.base(),
            mac_energy_pj=spec.mac_energy.base(),
            array="systolic" if spec.array is None else spec.array.value,
            weight_registers=spec.weight_registers is None or spec.weight_registers.value,
        )
    ops: dict[str, schema.VectorOpSpec] = {
        op: getattr(spec.ops, op) for op in schema.VectorOpsSpec.model_fields
    }
    return VectorEngine(
        name=name,
        level=level,
        operands=spec.operands,
        result=spec.result,
        ports=ports,
        lanes=spec.lanes.base(),
        pipeline_stages=spec.pipeline_stages.base(),
        ops={
            op: VectorOp(cycles=cost.cycles.base(clock_hz=clock_hz), energy_pj=cost.energy.base())
            for op, cost in ops.items()
        },
        row_reduction="tree" if spec.row_reduction is None else spec.row_reduction.value,
    )


def _router(spec: schema.RouterSpec) -> RouterTechnology:
    return RouterTechnology(
        supply_volt=spec.supply.base(),
        transistor_resistance_ohm=spec.transistor_resistance.base(),
        gate_capacitance_farad=spec.gate_capacitance.base(),
        drain_capacitance_farad=spec.drain_capacitance.base(),
        overlap_capacitance_farad=spec.overlap_capacitance.base(),
        fanout_delays_per_clock=spec.fanout_delays_per_clock.base(),
        metal_pitch=spec.metal_pitch.base(),
        channel_pitch=spec.channel_pitch.base(),
        wire_capacitance_farad=spec.wire_capacitance.base(),
        feature_size=spec.feature_size.base(),
        repeater_factor=spec.repeater_factor.base(),
        virtual_channels=spec.virtual_channels.base(),
        buffer_depth=spec.buffer_depth.base(),
        crossbar_ports=spec.crossbar_ports.base(),
    )


def _overridden(
    label: str, tables: dict[str, Any], overrides: Iterable[Override]
) -> dict[str, Any]:
    tables = deepcopy(tables)
    found: list[Problem] = []
    for key, text in overrides:
        path = key.split(".")
        model = schema.model_at(path, tables)
        table: Any = tables
        for part in path[:-1]:
            table = table.get(part) if isinstance(table, dict) else None
        if model is None or not issubclass(model, Sourced) or not isinstance(table, dict):
            found.append(_unknown_override(key, tables))
            continue
        old = table.get(path[-1])
        old = old if isinstance(old, dict) else {}
        new = dict(old) | {"kind": "assumed", "source": _override_source(old)}
        value, unit = _value(text)
        table[path[-1]] = new | {"value": value} | ({"unit": unit} if unit else {})
    if found:
        raise MachineFileError(label, found)
    return tables


def _override_source(old: dict[str, Any]) -> str:
    was = " ".join(str(old[key]) for key in ("value", "unit") if key in old)
    if old.get("value") == math.inf:
        was = "unlimited"
    return f"override of {was} ({old.get('source')})" if was else "override"


def _value(text: str) -> tuple[object, str | None]:
    """The value and the unit of an override such as ``50 byte/cycle``."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true", None
    # Longest number first, so that "1e3 Hz" is not read as 1 with the unit "e3 Hz".
    match = re.fullmatch(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf|nan)\s*(.*)", text)
    if match is None:
        return text, None
    number = int(match[1]) if re.fullmatch(r"[-+]?\d+", match[1]) else float(match[1])
    return number, match[2] or None


def _unknown_override(key: str, tables: dict[str, Any]) -> Problem:
    known = sorted(_quantity_paths("", tables))
    last = key.rpartition(".")[2]
    same_end = [path for path in known if path.rpartition(".")[2] == last]
    advice = nearest(key, known, f"{len(known)} keys can be set, e.g. {', '.join(known[:3])}")
    if advice.startswith(f"{len(known)}") and same_end:
        advice = f"did you mean {' or '.join(same_end[:3])}?"
    return Problem(key, "a key that is no number of this machine", "the key of a number", advice)


def _quantity_paths(prefix: str, table: dict[str, Any]) -> Iterable[str]:
    for key, child in table.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(child, dict):
            if "value" in child:
                yield path
            else:
                yield from _quantity_paths(path, child)


def _most_telling(found: list[Problem]) -> list[Problem]:
    """One problem per key and cause; the rules of structure come first and win."""
    kept: dict[tuple[str, str], Problem] = {}
    for problem in found:
        kept.setdefault((problem.key, problem.got), problem)
    return list(kept.values())
