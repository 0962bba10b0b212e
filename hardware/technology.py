"""Area and access energy of a machine's parts in a technology.

The one idea: area is a sum over parts, each a smooth formula in the machine's numbers that grows
with each of them, so that a gradient reaches every number that takes room. Energies of SRAM are
those of the machine file, scaled by the ratio of a fit: a file's own figures are kept where nothing
is changed. The constants stand in technologies/*.toml with their sources.

Left out: control, clocks, registers and wires between the parts, leakage, other technology nodes
than the file's, and what a second port costs (the SRAM fit has one read-write port).
"""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from importlib.resources.abc import Traversable
from os import PathLike, fspath
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from pydantic import BaseModel, ValidationError, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from jaxcomet.hardware import units
from jaxcomet.hardware.entries import (
    PROBLEM,
    AccessEnergy,
    Capacity,
    Kind,
    Number,
    Quantity,
    Table,
)
from jaxcomet.hardware.errors import MachineFileError, Problem, nearest, one_of, show
from jaxcomet.hardware.machine import Machine, MatrixEngine, Memory, RouterTechnology, Scalar

_UM_PER_MM = 1e3

# -- the model -------------------------------------------------------------------------------------


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

    A port wider than the range counts as the widest of it, with gradient 0: it is built of banks,
    which this does not model.

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
      not_modelled: what counts as 0, and why.
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
      child_bandwidth, or what the ports of the engines at it take together where that is less. The
      outermost memory is off the chip and takes its interface instead.
    - matrix engine: rows * columns of array and grid, each a multiplier and an adder.
    - vector engine: lanes, each an adder and a multiplier.
    - network: each memory that has one brings a router for every unit of its level. A router is a
      matrix crossbar of (ports * bits * pitch)^2 (Orion, doi:10.1109/MICRO.2002.1176258) and
      buffers of ports * virtual channels * depth * bits flip-flops.

    Args:
      machine: its leaves may be arrays or traced.
      technology: constants.

    Returns:
      um2 by part, of the shape that the machine's leaves broadcast to. Differentiable in every
      number involved. Bandwidths and channels without limit have gradient 0.

    Example:
      >>> from jaxcomet.hardware import load
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
        if memory.capacity_bytes is None or _is_unlimited(memory.capacity_bytes):
            missing.append(f"{memory.name}: it has no capacity")
            continue
        one = t.sram.area_um2(memory.capacity_bytes, _width(machine, memory))
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
        parts["network"] = routers
    root = machine.root
    bandwidth = root.child_bandwidth_bytes_per_cycle
    if _is_unlimited(bandwidth):
        missing.append(f"{root.name} interface: its bandwidth has no limit")
    parts[f"{root.name} interface"] = (
        _limited(bandwidth, 0.0) * t.dram_interface_um2_per_byte_per_cycle
    )
    return Area(parts=parts, not_modelled=tuple(missing))


def scaled_energies(machine: Machine, start: Machine, technology: Technology) -> Machine:
    """A machine whose memories have the start's energies, scaled to their own size.

    energy = energy_0 * (C / C_0)^a * (w / w_0)^b with capacity C, width w as in `area` and the
    exponents of the SRAM fit. Memories without limit of the capacity keep their energies, and so
    does the network, whose energy the cost model computes.

    Args:
      machine: capacities and bandwidths to scale to; may be arrays or traced.
      start: machine with the same memories whose energies are known.
      technology: its SRAM fit.

    Returns:
      `machine` with other read and write energies; exactly those of `start` where capacity and
      bandwidth are the same. Differentiable.

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
        if (
            memory.capacity_bytes is None
            or first.capacity_bytes is None
            or _is_unlimited(first.capacity_bytes)
        ):
            memories[name] = memory
            continue
        capacity = memory.capacity_bytes / first.capacity_bytes
        most = sram.most_width_bytes
        width = _at_most(_width(machine, memory), most) / _at_most(_width(start, first), most)
        read = first.read_energy_pj_per_byte * sram.read_energy.ratio(capacity, width)
        write = first.write_energy_pj_per_byte * sram.write_energy.ratio(capacity, width)
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
      One message per number, with memory, value and range; empty where all lie within. `area` and
      `scaled_energies` then continue the power law beyond the points.

    Example:
      >>> from jaxcomet.hardware import load
      >>> edge = load("edge", [("memory.gb.child_bandwidth", "2048")])
      >>> print(outside(edge, load_technology("45nm"))[0])
      memory.gb: ports of 2048 byte/cycle (counted as 512); the SRAM fit covers 16 to 512 byte wide
    """
    sram = technology.sram
    found: list[str] = []
    for memory in _outermost_first(machine):
        capacity = memory.capacity_bytes
        if memory.parent is None or capacity is None or _is_unlimited(capacity):
            continue
        key, width = f"memory.{memory.name}", _width(machine, memory)
        least, most = sram.least_capacity_bytes, sram.most_capacity_bytes
        if not least <= capacity <= most:
            found.append(
                f"{key}.capacity: {capacity:g} byte; the SRAM fit covers {least:g} to {most:g} byte"
            )
        least, most = sram.least_width_bytes, sram.most_width_bytes
        if not least <= width <= most:
            counted = f" (counted as {most:g})" if width > most else ""
            found.append(
                f"{key}: ports of {width:g} byte/cycle{counted}; "
                f"the SRAM fit covers {least:g} to {most:g} byte wide"
            )
        width = min(width, most)
        shallowest = 8 * sram.least_aspect * width * width
        if capacity < shallowest:
            found.append(
                f"{key}.capacity: {capacity:g} byte at {width:g} byte/cycle; the SRAM fit covers "
                f"{shallowest:g} byte and above at this width"
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


def _is_unlimited(value: Scalar) -> bool:
    """Whether a number is known to be without limit; not known of arrays."""
    return isinstance(value, float) and math.isinf(value)


def _width(machine: Machine, memory: Memory) -> Scalar:
    """Byte that leave a memory towards below in a cycle."""
    taken = [
        engine.ports[memory.name].bandwidth_bytes_per_cycle
        for engine in machine.engines.values()
        if memory.name in engine.ports
    ]
    width = memory.child_bandwidth_bytes_per_cycle
    return _at_most(sum(taken[1:], taken[0]), width) if taken else width


def _at_most(value: Scalar, most: Scalar) -> Scalar:
    """The lesser of the two."""
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


# -- the file --------------------------------------------------------------------------------------


class PartArea(Quantity):
    """Area of one part."""

    dimension = units.AREA


class AreaPerBandwidth(Quantity):
    """Area per byte/cycle."""

    dimension = units.AREA_PER_BANDWIDTH


class Exponent(Quantity):
    """An exponent, which may be negative."""

    dimension = units.NUMBER

    @classmethod
    def allowed(cls) -> str:
        """The allowed values in words."""
        return "a finite number"

    @field_validator("value")
    @classmethod
    def _value_is_possible(cls, value: float) -> float:
        if not math.isfinite(value):
            context = {"got": show(value), "expected": cls.allowed(), "advice": "give a number"}
            raise PydanticCustomError(PROBLEM, "{got}", context)
        return value


class _LawSpec(Table):
    capacity_exponent: Exponent
    width_exponent: Exponent
    median_error: Number
    most_error: Number


class _AreaLawSpec(_LawSpec):
    at_reference: PartArea


class _EnergyLawSpec(_LawSpec):
    at_reference: AccessEnergy


class _SramSpec(Table):
    reference_capacity: Capacity
    reference_width: Capacity
    least_capacity: Capacity
    most_capacity: Capacity
    least_width: Capacity
    most_width: Capacity
    least_aspect: Number
    area: _AreaLawSpec
    read_energy: _EnergyLawSpec
    write_energy: _EnergyLawSpec


class _ArithmeticSpec(Table):
    multiplier: PartArea
    adder: PartArea


class _RouterSpec(Table):
    flip_flop: PartArea


class _DramInterfaceSpec(Table):
    area_per_bandwidth: AreaPerBandwidth


class _TechnologySpec(Table):
    name: str
    description: str
    sram: _SramSpec
    matrix: _ArithmeticSpec
    vector: _ArithmeticSpec
    router: _RouterSpec
    dram_interface: _DramInterfaceSpec


def technology_names() -> tuple[str, ...]:
    """Names of the technologies that come with the package, sorted.

    Example:
      >>> technology_names()
      ('45nm',)
    """
    files = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def load_technology(name_or_path: str | PathLike[str] = "45nm") -> Technology:
    """The technology of a name or a file, in base units.

    Args:
      name_or_path: one of `technology_names`, or the path of a file with the tables of
        hardware/technologies/45nm.toml.

    Returns:
      The technology; its leaves are Python floats.

    Raises:
      MachineFileError: the name or the file is wrong; lists everything found.

    Example:
      >>> load_technology("45nm").matrix_multiplier_um2
      282.0
    """
    label, content = _content(name_or_path)
    try:
        tables = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        problem = Problem("file", f"byte {error.start} that is not UTF-8", "UTF-8 text", "save so")
        raise MachineFileError(label, [problem]) from None
    except tomllib.TOMLDecodeError as error:
        problem = Problem("file", f"no valid TOML ({error})", "TOML 1.0", "correct the line")
        raise MachineFileError(label, [problem]) from None
    try:
        spec = _TechnologySpec.model_validate(tables)
    except ValidationError as error:
        found = [_translated(detail) for detail in error.errors()]
        raise MachineFileError(label, found) from None
    if found := list(_disordered(spec.sram)):
        raise MachineFileError(label, found)
    return _converted(spec)


def _converted(spec: _TechnologySpec) -> Technology:
    sram = spec.sram

    def law(one: _AreaLawSpec | _EnergyLawSpec) -> PowerLaw:
        return PowerLaw(
            at_reference=one.at_reference.base(access_bytes=sram.reference_width.base()),
            capacity_exponent=one.capacity_exponent.base(),
            width_exponent=one.width_exponent.base(),
            median_error=one.median_error.base(),
            most_error=one.most_error.base(),
        )

    return Technology(
        name=spec.name,
        sram=Sram(
            reference_capacity_bytes=sram.reference_capacity.base(),
            reference_width_bytes=sram.reference_width.base(),
            least_capacity_bytes=sram.least_capacity.base(),
            most_capacity_bytes=sram.most_capacity.base(),
            least_width_bytes=sram.least_width.base(),
            most_width_bytes=sram.most_width.base(),
            least_aspect=sram.least_aspect.base(),
            area=law(sram.area),
            read_energy=law(sram.read_energy),
            write_energy=law(sram.write_energy),
        ),
        matrix_multiplier_um2=spec.matrix.multiplier.base(),
        matrix_adder_um2=spec.matrix.adder.base(),
        vector_adder_um2=spec.vector.adder.base(),
        vector_multiplier_um2=spec.vector.multiplier.base(),
        flip_flop_um2=spec.router.flip_flop.base(),
        dram_interface_um2_per_byte_per_cycle=spec.dram_interface.area_per_bandwidth.base(),
    )


def _disordered(sram: _SramSpec) -> Iterator[Problem]:
    for what, least, most in (
        ("capacity", sram.least_capacity, sram.most_capacity),
        ("width", sram.least_width, sram.most_width),
    ):
        if least.base() > most.base():
            got = f"{least.value:g} {least.unit}, above most_{what}"
            expected = f"at most {most.value:g} {most.unit}"
            yield Problem(f"sram.least_{what}", got, expected, "swap the two")


def _folder() -> Traversable:
    return resources.files("jaxcomet.hardware") / "technologies"


def _content(name_or_path: str | PathLike[str]) -> tuple[str, bytes]:
    """The label for messages and the content of a file."""
    given, known = fspath(name_or_path), technology_names()
    if isinstance(name_or_path, str) and given in known:
        return f"hardware/technologies/{given}.toml", (_folder() / f"{given}.toml").read_bytes()
    path = Path(given)
    if path.is_dir():
        problem = Problem("file", "a folder", "a technology in TOML", "name the file in it")
        raise MachineFileError(given, [problem])
    if not path.is_file():
        expected = f"{one_of(known)}, or the path of a .toml file"
        advice = nearest(given, known, "choose one of these or check the path")
        raise MachineFileError(given, [Problem("technology", "no such file", expected, advice)])
    return given, path.read_bytes()


def _model(path: list[str]) -> type[BaseModel] | None:
    """The model of the table or entry at a path of keys; None where there is none."""
    model: Any = _TechnologySpec
    for key in path:
        fields = model.model_fields if _is_model(model) else {}
        model = fields[key].annotation if key in fields else None
    return model if _is_model(model) else None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _translated(detail: ErrorDetails) -> Problem:
    path = [str(part) for part in detail["loc"]]
    key, got = ".".join(path), detail["input"]
    parent, model = _model(path[:-1]), _model(path)
    expected = "a text in quotes"
    if model is not None:
        is_entry = issubclass(model, Quantity)
        keys = one_of(model.model_fields).removeprefix("one of ")
        expected = f"e.g. {model.example()}" if is_entry else f"a table with {keys}"
    match detail["type"]:
        case kind if kind == PROBLEM:
            context = detail.get("ctx", {})
            return Problem(key, context["got"], context["expected"], context["advice"])
        case "missing" if parent is not None and issubclass(parent, Quantity):
            whole = ".".join(path[:-1])
            example = f"e.g. {parent.example(got.get('value', 1))}"
            return Problem(whole, f"a number without {path[-1]}", example, f"add the {path[-1]}")
        case "missing":
            return Problem(key, "nothing", expected, "add the key")
        case "extra_forbidden":
            known = list(parent.model_fields) if parent else []
            advice = nearest(path[-1], known, "remove it: nothing would read it")
            return Problem(key, f"unknown key {path[-1]}", one_of(known), advice)
        case "literal_error":
            return Problem(key, show(got), one_of(get_args(Kind)), "say how the number is known")
        case "float_type" if parent is not None and issubclass(parent, Quantity):
            return Problem(key, show(got), parent.allowed(), "write a plain number")
        case _:
            return Problem(key, show(got), expected, "write it so")
