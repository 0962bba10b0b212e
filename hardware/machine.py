"""Machines as frozen pytrees: levels, memories, networks, engines.

The one idea: a machine is a chain of *levels* (outermost first). A level holds one or more memories
and, at the innermost end, engines; it exists ``mesh_x * mesh_y`` times below each unit of the level
above. Every memory names the memory above it (its parent) and owns the network that connects the
two. All numbers are pytree leaves, so a gradient reaches each of them and a batch of machines is a
machine with stacked leaves; names, yes/no switches and kinds of an engine are static. A bandwidth
or channel width may be ``inf``: unlimited, what passes takes no time, and its gradient is 0.

Left out: floor plan and area, clock domains (one clock per machine), caches with tags.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Float

ArrayKind = Literal["systolic", "broadcast"]
"""How rows pass through the arrays of a matrix engine."""

RowReduction = Literal["tree", "lanes"]
"""How a vector engine reduces rows."""

Scalar = float | Float[jax.Array | np.ndarray, "..."]
"""A number of a machine: a Python float, or an array when machines are batched or traced."""


def _static(**kwargs: Any) -> Any:
    return dataclasses.field(metadata={"static": True}, **kwargs)


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Network:
    """The two-dimensional mesh between a memory and its instances one level below the parent.

    Attributes:
      port_bandwidth_bytes_per_cycle: what one network port passes, per direction.
      hop_latency_cycles: router and link delay of one hop.
      queuing_delay_cycles: delay in a router's queue.
      channel_width_bits: bits that one mesh channel passes per cycle.
      num_ports: ports that the parent may drive at once.
      broadcast: the network copies one word to all children by itself.
      reduction: the network combines words of the children by itself.
    """

    port_bandwidth_bytes_per_cycle: Scalar
    hop_latency_cycles: Scalar
    queuing_delay_cycles: Scalar
    channel_width_bits: Scalar
    num_ports: Scalar
    broadcast: bool = _static()
    reduction: bool = _static()


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Memory:
    """One memory; instances of it are as many as its level has units.

    Attributes:
      name: unique name, e.g. ``gb``.
      level: name of the level it belongs to.
      parent: name of the memory that fills it; None for the outermost.
      capacity_bytes: bytes of one instance; None for an unlimited memory.
      child_bandwidth_bytes_per_cycle: ports towards the level below (or the engines), per direction
        when ``duplex``.
      parent_bandwidth_bytes_per_cycle: ports towards the parent; None for the outermost memory.
      link_bandwidth_bytes_per_cycle: peer links between instances, used by collectives; None where
        there are none.
      read_energy_pj_per_byte: energy of reading.
      write_energy_pj_per_byte: energy of writing.
      network: the network to the parent; None for the outermost memory.
      duplex: reads and writes have bandwidth of their own; else they share it (a DRAM bus).
      shared_ports: the parent side and the child side use the same ports, one at a time.
      double_buffered: the next tile may arrive while the present one is used.
    """

    name: str = _static()
    level: str = _static()
    parent: str | None = _static()
    capacity_bytes: Scalar | None
    child_bandwidth_bytes_per_cycle: Scalar
    parent_bandwidth_bytes_per_cycle: Scalar | None
    link_bandwidth_bytes_per_cycle: Scalar | None
    read_energy_pj_per_byte: Scalar
    write_energy_pj_per_byte: Scalar
    network: Network | None
    duplex: bool = _static()
    shared_ports: bool = _static()
    double_buffered: bool = _static()


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Port:
    """The connection of an engine to one buffer.

    Attributes:
      bandwidth_bytes_per_cycle: per direction.
      hop_latency_cycles: delay of the first word.
    """

    bandwidth_bytes_per_cycle: Scalar
    hop_latency_cycles: Scalar


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class MatrixEngine:
    """A grid of weight-stationary arrays that work as one large array.

    A systolic array fills and drains along its diagonals. In a broadcast array each row's inputs
    reach all columns at once and a tree adds up the products along the array's rows: one streamed
    row a cycle from the first cycle on.

    Attributes:
      name: unique name, e.g. ``gemm``.
      level: level it belongs to.
      operands: memories that the operands come from, in the order of the operation's inputs.
      result: memory that takes the result.
      ports: connection to each of these memories, by memory name.
      array_rows: rows of one array (the contracted dimension K lies along them).
      array_columns: columns of one array (the dimension N lies along them).
      grid_rows: arrays along K.
      grid_columns: arrays along N.
      mac_energy_pj: energy of one multiply-accumulate.
      array: systolic or broadcast.
      weight_registers: each multiplier keeps its weight while rows stream; else every streamed row
        reads the weights again.
    """

    name: str = _static()
    level: str = _static()
    operands: tuple[str, ...] = _static()
    result: str = _static()
    ports: Mapping[str, Port]
    array_rows: Scalar
    array_columns: Scalar
    grid_rows: Scalar
    grid_columns: Scalar
    mac_energy_pj: Scalar
    array: ArrayKind = dataclasses.field(default="systolic", metadata={"static": True})
    weight_registers: bool = dataclasses.field(default=True, metadata={"static": True})


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class VectorOp:
    """Cost of one elementary vector operation.

    Attributes:
      cycles: cycles per instruction (all lanes).
      energy_pj: energy per lane and instruction.
    """

    cycles: Scalar
    energy_pj: Scalar


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class VectorEngine:
    """A SIMD unit.

    With ``row_reduction="tree"`` the lanes of an instruction share a row, and reducing them takes
    ceil(log2(lanes)) steps of the elementary operation. With ``"lanes"`` each lane accumulates rows
    of its own: one elementary operation an element.

    Attributes:
      name: unique name, e.g. ``simd``.
      level: level it belongs to.
      operands: the memory that all operands come from, as a tuple of one name.
      result: memory that takes the result.
      ports: connection to each of these memories, by memory name.
      lanes: elements per instruction.
      pipeline_stages: stages from issue to write-back.
      ops: cost of each elementary operation by name (add, mul, div, exp, max, sqrt).
      row_reduction: tree or lanes.
    """

    name: str = _static()
    level: str = _static()
    operands: tuple[str, ...] = _static()
    result: str = _static()
    ports: Mapping[str, Port]
    lanes: Scalar
    pipeline_stages: Scalar
    ops: Mapping[str, VectorOp]
    row_reduction: RowReduction = dataclasses.field(default="tree", metadata={"static": True})


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Level:
    """One level of the hierarchy.

    Attributes:
      name: as used in the names of mapping factors, e.g. ``gb`` in ``M_gb_t``.
      mesh_x: units along x below each unit of the level above (1 for the outermost).
      mesh_y: units along y.
    """

    name: str = _static()
    mesh_x: Scalar
    mesh_y: Scalar


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class RouterTechnology:
    """Circuit constants of the router and link energy model (Orion type; docs/equations.md).

    Attributes are in volt, ohm, farad, mm, farad per mm, or pure numbers (see docs/machines.md).
    """

    supply_volt: Scalar
    transistor_resistance_ohm: Scalar
    gate_capacitance_farad: Scalar
    drain_capacitance_farad: Scalar
    overlap_capacitance_farad: Scalar
    fanout_delays_per_clock: Scalar
    metal_pitch: Scalar
    channel_pitch: Scalar
    wire_capacitance_farad: Scalar
    feature_size: Scalar
    repeater_factor: Scalar
    virtual_channels: Scalar
    buffer_depth: Scalar
    crossbar_ports: Scalar


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine: see the module docstring.

    Attributes:
      name: name of the machine.
      levels: levels, outermost first.
      memories: memories by name; in no order, since jax sorts the keys when it rebuilds a machine
        (`path` gives the order).
      engines: engines by name.
      router: constants of the network energy model; None where network energy is not modelled (it
        then counts 0).
      clock_hz: clock frequency; None where it is not known (results then stay in cycles).
    """

    name: str = _static()
    levels: tuple[Level, ...]
    memories: Mapping[str, Memory]
    engines: Mapping[str, MatrixEngine | VectorEngine]
    router: RouterTechnology | None
    clock_hz: Scalar | None

    def level(self, name: str) -> Level:
        """The level called `name`; KeyError that lists the known ones otherwise."""
        for level in self.levels:
            if level.name == name:
                return level
        raise KeyError(
            f"machine {self.name!r} has no level {name!r}; it has {[x.name for x in self.levels]}"
        )

    def level_index(self, name: str) -> int:
        """Position of a level, 0 = outermost."""
        return self.levels.index(self.level(name))

    @property
    def root(self) -> Memory:
        """The outermost memory."""
        return next(m for m in self.memories.values() if m.parent is None)

    def path(self, memory: str) -> tuple[str, ...]:
        """Names of the memories from the outermost one down to `memory`."""
        chain: list[str] = []
        name: str | None = memory
        while name is not None:
            chain.append(name)
            name = self.memories[name].parent
        return tuple(reversed(chain))
