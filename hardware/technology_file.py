"""Reading of a technology: hardware/technologies/*.toml, or a file of the same tables.

The one idea: the constants of `jaxcomet.hardware.technology` stand in a file like a machine's, each
with unit, source and kind; it is checked as a whole, and all that is wrong comes together.

Left out: what the constants mean (technology.py), and overrides of single constants.
"""

import math
from collections.abc import Iterator
from os import PathLike
from typing import Any, get_args

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
from jaxcomet.hardware.shipped import Shipped
from jaxcomet.hardware.technology import PowerLaw, Sram, Technology

_FILES = Shipped(
    package="jaxcomet.hardware",
    folder="technologies",
    what="technology",
    page="docs/codesign.md",
    refuse=MachineFileError,
)


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
    return _FILES.names()


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
    file = _FILES.read(name_or_path)
    label, tables = file.label, file.tables
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
