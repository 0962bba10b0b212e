"""Area and access energy of a machine's parts in a technology.

The one idea: area is a sum over parts, each a smooth formula in the machine's numbers that grows
with each of them, so that a gradient reaches every number that takes room. Energies of SRAM are
those of the machine file, scaled by the ratio of a fit: a file's own figures are kept where nothing
is changed. The constants stand in technologies/*.toml with their sources.

Left out: control, clocks, registers and wires between the parts, leakage, other technology nodes
than the file's, what a second port costs (the SRAM fit has one read-write port), and other kinds of
memory: everything below the outermost memory counts as SRAM. Files: technology_file.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

from jaxcomet.hardware import units
from jaxcomet.hardware.errors import one_of
from jaxcomet.hardware.machine import Machine, MatrixEngine, Memory, RouterTechnology, Scalar

_UM_PER_MM = 1e3


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """A figure of an SRAM: at_reference * (capacity / reference)^a * (width / reference)^b.

    Attributes:
      at_reference: the figure at reference capacity and width, in its own unit.
      capacity_exponent: a.
      width_exponent: b.
      median_error: median of the relative error over the points of the fit.
      most_error: its maximum.
    """

    at_reference: Scalar
    capacity_exponent: Scalar
    width_exponent: Scalar
    median_error: Scalar
    most_error: Scalar

    def ratio(self, capacity: Scalar, width: Scalar) -> Scalar:
        """How the figure changes when capacity and width change by factors; 1 where by none."""
        return capacity**self.capacity_exponent * width**self.width_exponent


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Sram:
    """Area and energy of one SRAM by its capacity and the width of an access.

    A port wider than the range counts as the widest of it, with gradient 0 (at the widest itself,
    half of the fit's): it is built of banks, which this does not model.

    Attributes:
      reference_capacity_bytes: where the power laws are stated.
      reference_width_bytes: as well.
      least_capacity_bytes: range of the fit.
      most_capacity_bytes: range of the fit.
      least_width_bytes: range of the fit.
      most_width_bytes: range of the fit.
      least_aspect: range of the fit: rows per bit of width, the shape of the array.
      area: um2.
      read_energy: pJ/byte.
      write_energy: pJ/byte.
    """

    reference_capacity_bytes: Scalar
    reference_width_bytes: Scalar
    least_capacity_bytes: Scalar
    most_capacity_bytes: Scalar
    least_width_bytes: Scalar
    most_width_bytes: Scalar
    least_aspect: Scalar
    area: PowerLaw
    read_energy: PowerLaw
    write_energy: PowerLaw

    def area_um2(self, capacity_bytes: Scalar, width_bytes: Scalar) -> Scalar:
        """Area of one instance in um2."""
        return self._figure(self.area, capacity_bytes, width_bytes)

    def read_energy_pj_per_byte(self, capacity_bytes: Scalar, width_bytes: Scalar) -> Scalar:
        """Energy of reading in pJ/byte."""
        return self._figure(self.read_energy, capacity_bytes, width_bytes)

    def write_energy_pj_per_byte(self, capacity_bytes: Scalar, width_bytes: Scalar) -> Scalar:
        """Energy of writing in pJ/byte."""
        return self._figure(self.write_energy, capacity_bytes, width_bytes)

    def _figure(self, law: PowerLaw, capacity_bytes: Scalar, width_bytes: Scalar) -> Scalar:
        capacity = capacity_bytes / self.reference_capacity_bytes
        width = _at_most(width_bytes, self.most_width_bytes) / self.reference_width_bytes
        return law.at_reference * law.ratio(capacity, width)


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Technology:
    """Models and constants of a technology; see the module docstring.

    Attributes:
      name: its name.
      sram: model of memories with a capacity.
      matrix_multiplier_um2: multiplier of one multiply-accumulate.
      matrix_adder_um2: its adder.
      vector_adder_um2: adder of one lane.
      vector_multiplier_um2: its multiplier.
      flip_flop_um2: one bit of a router's buffer.
      dram_interface_um2_per_byte_per_cycle: interface to the outermost memory, per byte/cycle.
    """

    name: str = field(metadata={"static": True})
    sram: Sram
    matrix_multiplier_um2: Scalar
    matrix_adder_um2: Scalar
    vector_adder_um2: Scalar
    vector_multiplier_um2: Scalar
    flip_flop_um2: Scalar
    dram_interface_um2_per_byte_per_cycle: Scalar


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Area:
    """Area of a machine by part, all instances of a part together.

    Attributes:
      parts: um2 by the name of a memory or an engine, ``network``, and ``<memory> interface`` for
        the outermost memory.
      not_modelled: what counts as 0, and why. A number without limit is named where it is a float;
        in an array or traced it counts as 0 all the same.
    """

    parts: Mapping[str, Scalar]
    not_modelled: tuple[str, ...] = field(metadata={"static": True})

    @property
    def total_um2(self) -> Scalar:
        """Sum of the parts."""
        return sum(self.parts.values(), 0.0)

    @property
    def total_mm2(self) -> Scalar:
        """Sum of the parts in mm2."""
        return self.total_um2 / units.AREA.factors["mm2"]


def area(machine: Machine, technology: Technology) -> Area:
    """Area of a machine.

    A part stands as often as its level has units, over all levels above it together.

    - memory: the SRAM fit at its capacity and the width of its port towards below: its
      child_bandwidth, or what the ports of the engines at it take together where that is less and
      it fills no other memory. The outermost memory is off the chip and takes its interface
      instead.
    - matrix engine: rows * columns of array and grid, each a multiplier and an adder.
    - vector engine: lanes, each an adder and a multiplier.
    - network: each memory that has one brings a router for every unit of its level. A router is a
      matrix crossbar of (ports * bits * pitch)^2 (Orion, doi:10.1109/MICRO.2002.1176258) and
      buffers of ports * virtual channels * depth * bits flip-flops.

    Args:
      machine: its leaves may be arrays or traced.
      technology: constants.

    Returns:
      um2 by part, each of the shape that the leaves it depends on broadcast to. Differentiable in
      every number involved. Bandwidths and channels without limit have gradient 0.

    Example:
      >>> from jaxcomet.hardware import load, load_technology
      >>> found = area(load("edge"), load_technology("45nm"))
      >>> print(f"{found.parts['gemm'] / 1e6:.0f} mm2")  # 16 cores * 65536 * (282 + 137) um2
      439 mm2
    """
    t = technology
    parts: dict[str, Scalar] = {}
    missing: list[str] = []
    for memory in _outermost_first(machine):
        if memory.parent is None:
            continue
        capacity = _capacity(memory)
        if capacity is None:
            missing.append(f"{memory.name}: it has no capacity")
            continue
        one = t.sram.area_um2(capacity, _width(machine, memory))
        parts[memory.name] = _units(machine, memory.level) * one
    for name, engine in machine.engines.items():
        if isinstance(engine, MatrixEngine):
            count = engine.array_rows * engine.array_columns
            count = count * engine.grid_rows * engine.grid_columns
            one = count * (t.matrix_multiplier_um2 + t.matrix_adder_um2)
        else:
            one = engine.lanes * (t.vector_adder_um2 + t.vector_multiplier_um2)
        parts[name] = _units(machine, engine.level) * one
    if machine.router is None:
        missing.append("network: the machine has no router table")
    else:
        routers: Scalar = 0.0
        for memory in _outermost_first(machine):
            if memory.network is not None:
                bits = memory.network.channel_width_bits
                if _is_unlimited(bits):
                    missing.append(f"network of {memory.name}: its channel width has no limit")
                one = _router_um2(machine.router, t, _limited(bits, 0.0))
                routers = routers + _units(machine, memory.level) * one
        # A memory or an engine may be called so, too; the sum stays right.
        parts["network"] = parts.get("network", 0.0) + routers
    root = machine.root
    bandwidth = root.child_bandwidth_bytes_per_cycle
    if _is_unlimited(bandwidth):
        missing.append(f"{root.name} interface: its bandwidth has no limit")
    one = _limited(bandwidth, 0.0) * t.dram_interface_um2_per_byte_per_cycle
    parts[f"{root.name} interface"] = _units(machine, root.level) * one
    return Area(parts=parts, not_modelled=tuple(missing))


def scaled_energies(machine: Machine, start: Machine, technology: Technology) -> Machine:
    """A machine whose memories have the start's energies, scaled to their own size.

    energy = energy_0 * (C / C_0)^a * (w / w_0)^b with capacity C, width w as in `area` and the
    exponents of the SRAM fit. The outermost memory and those without limit of the capacity keep
    their own energies, and so does the network, whose energy the cost model computes.

    Args:
      machine: capacities and bandwidths to scale to; may be arrays or traced.
      start: machine with the same memories whose energies are known.
      technology: its SRAM fit.

    Returns:
      `machine` with other read and write energies; exactly those of `start` where capacity and
      width are the same. Differentiable.

    Raises:
      ValueError: a memory that is not in `start`.
    """
    sram = technology.sram
    memories: dict[str, Memory] = {}
    for name, memory in machine.memories.items():
        if name not in start.memories:
            raise ValueError(
                f"scaled_energies: got memory {name!r}, which machine {start.name!r} lacks; "
                f"expected {one_of(start.memories)}; start from a machine with the same memories"
            )
        first = start.memories[name]
        capacity, capacity_before = _capacity(memory), _capacity(first)
        if capacity is None or capacity_before is None:
            memories[name] = memory
            continue
        size, most = capacity / capacity_before, sram.most_width_bytes
        width = _at_most(_width(machine, memory), most) / _at_most(_width(start, first), most)
        read = first.read_energy_pj_per_byte * sram.read_energy.ratio(size, width)
        write = first.write_energy_pj_per_byte * sram.write_energy.ratio(size, width)
        memories[name] = replace(
            memory, read_energy_pj_per_byte=read, write_energy_pj_per_byte=write
        )
    return replace(machine, memories=memories)


def outside(machine: Machine, technology: Technology) -> tuple[str, ...]:
    """Which of a machine's numbers lie outside the range in which the SRAM model was fitted.

    Args:
      machine: its leaves are floats.
      technology: its SRAM fit.

    Returns:
      One message per number and range, with memory and value; empty where all lie within. `area`
      and `scaled_energies` continue the power law beyond the points, but for wider ports.

    Example:
      >>> from jaxcomet.hardware import load, load_technology
      >>> edge = load("edge", [("memory.gb.child_bandwidth", "2048")])
      >>> print(outside(edge, load_technology("45nm"))[0])
      memory.gb: ports of 2048 byte/cycle (counted as 512); the SRAM fit covers 16 to 512 byte wide
    """
    sram = technology.sram
    found: list[str] = []
    for memory in _outermost_first(machine):
        capacity = _capacity(memory)
        if capacity is None:
            continue
        key, width = f"memory.{memory.name}", _width(machine, memory)
        least, most = sram.least_capacity_bytes, sram.most_capacity_bytes
        if not least <= capacity <= most:
            found.append(
                f"{key}.capacity: {_text(capacity)} byte; "
                f"the SRAM fit covers {_text(least)} to {_text(most)} byte"
            )
        least, most = sram.least_width_bytes, sram.most_width_bytes
        if not least <= width <= most:
            counted = f" (counted as {_text(most)})" if width > most else ""
            found.append(
                f"{key}: ports of {_text(width)} byte/cycle{counted}; "
                f"the SRAM fit covers {_text(least)} to {_text(most)} byte wide"
            )
        width = min(width, most)
        shallowest = 8 * sram.least_aspect * width * width
        if capacity < shallowest:
            found.append(
                f"{key}.capacity: {_text(capacity)} byte at {_text(width)} byte/cycle; "
                f"the SRAM fit covers {_text(shallowest)} byte and above at this width"
            )
    return tuple(found)


def _router_um2(router: RouterTechnology, technology: Technology, bits: Scalar) -> Scalar:
    side = router.crossbar_ports * bits * router.channel_pitch * _UM_PER_MM
    stored = router.crossbar_ports * router.virtual_channels * router.buffer_depth * bits
    return side * side + stored * technology.flip_flop_um2


def _units(machine: Machine, level: str) -> Scalar:
    """Units of a level in the whole machine."""
    found: Scalar = 1.0
    for outer in machine.levels[: machine.level_index(level) + 1]:
        found = found * outer.mesh_x * outer.mesh_y
    return found


def _outermost_first(machine: Machine) -> list[Memory]:
    return sorted(machine.memories.values(), key=lambda m: machine.level_index(m.level))


def _capacity(memory: Memory) -> Scalar | None:
    """Byte of one instance; None for the outermost memory, which is no SRAM, and without limit."""
    capacity = memory.capacity_bytes
    if memory.parent is None or capacity is None or _is_unlimited(capacity):
        return None
    return capacity


def _is_unlimited(value: Scalar) -> bool:
    """Whether a number is known to be without limit; not known of arrays."""
    return isinstance(value, float) and math.isinf(value)


def _width(machine: Machine, memory: Memory) -> Scalar:
    """Byte that leave a memory towards below in a cycle."""
    width = memory.child_bandwidth_bytes_per_cycle
    if any(other.parent == memory.name for other in machine.memories.values()):
        return width
    taken = [
        engine.ports[memory.name].bandwidth_bytes_per_cycle
        for engine in machine.engines.values()
        if memory.name in engine.ports
    ]
    return _at_most(sum(taken[1:], taken[0]), width) if taken else width


def _at_most(value: Scalar, most: Scalar) -> Scalar:
    """The lesser of the two; where they are equal, half of the gradient of each."""
    if isinstance(value, jax.Array) or isinstance(most, jax.Array):
        return jnp.minimum(value, most)
    several = isinstance(value, np.ndarray) or isinstance(most, np.ndarray)
    return np.minimum(value, most) if several else min(value, most)


def _limited(value: Scalar, otherwise: Scalar) -> Scalar:
    """The value, or `otherwise` where it has no limit, with gradient 0 there."""
    if isinstance(value, jax.Array):
        return jnp.where(jnp.isinf(value), otherwise, value)
    if isinstance(value, np.ndarray):
        return np.where(np.isinf(value), otherwise, value)
    return otherwise if _is_unlimited(value) else value


def _text(value: Scalar) -> str:
    return f"{value:.10g}"
