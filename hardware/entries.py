"""The entries of a machine file: numbers, switches and choices, each with source and kind.

The one idea: the class of an entry says what may stand there (a bandwidth may be unlimited, a count
is whole, ...), and its messages say so to who writes a file.

Left out: the tables that entries stand in, which are in schema.py.
"""

import math
from typing import ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, field_serializer, field_validator
from pydantic_core import PydanticCustomError

from jaxcomet.hardware import units
from jaxcomet.hardware.errors import one_of, show
from jaxcomet.hardware.machine import ArrayKind, RowReduction

Kind = Literal["published", "measured", "assumed"]
"""Where a number comes from: a document, a measurement, or a stated assumption."""

PROBLEM = "machine_file"
"""Type of the errors that already say what was got, what is allowed and what to do."""


def _problem(got: str, expected: str, advice: str) -> PydanticCustomError:
    return PydanticCustomError(
        PROBLEM, "{got}", {"got": got, "expected": expected, "advice": advice}
    )


class Table(BaseModel):
    """A table of the machine file: unknown keys are refused, nothing is coerced or changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Sourced(Table):
    """Anything that carries its origin.

    Attributes:
      source: document and page, or the reason of an assumption.
      kind: published, measured or assumed.
    """

    source: str
    kind: Kind

    @field_validator("source")
    @classmethod
    def _source_says_something(cls, source: str) -> str:
        if not source.strip():
            raise _problem(
                '""', "a document and page, or the reason of an assumption", "say where it is from"
            )
        return source


class Switch(Sourced):
    """A yes/no property with its source."""

    value: bool


class Choice(Sourced):
    """One of several kinds, with its source; `value` is a text in the subclasses."""

    value: str

    @classmethod
    def choices(cls) -> tuple[str, ...]:
        """The allowed values."""
        return get_args(cls.model_fields["value"].annotation)


class ArrayChoice(Choice):
    """How rows pass through an array."""

    value: ArrayKind  # pyright: ignore[reportIncompatibleVariableOverride]


class RowReductionChoice(Choice):
    """How a vector engine reduces rows."""

    value: RowReduction  # pyright: ignore[reportIncompatibleVariableOverride]


class Quantity(Sourced):
    """A number with its unit and source.

    Attributes:
      value: the number, in `unit`.
      unit: one of the units of `dimension`.
    """

    dimension: ClassVar[units.Dimension]
    zero_allowed: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    unlimited_allowed: ClassVar[bool] = False

    value: float
    unit: str

    @classmethod
    def allowed(cls) -> str:
        """The allowed values in words."""
        if cls.unlimited_allowed:
            return "a number above 0, or inf for unlimited"
        number = "whole number" if cls.whole else "finite number"
        return f"a {number}, 0 or above" if cls.zero_allowed else f"a {number} above 0"

    @classmethod
    def example(cls, value: object = 1) -> str:
        """The table as it may stand in a file."""
        unit = cls.dimension.example
        return (
            f'{{value = {show(value)}, unit = "{unit}", source = "document, page", '
            'kind = "published"}'
        )

    @field_validator("value")
    @classmethod
    def _value_is_possible(cls, value: float) -> float:
        if cls.unlimited_allowed and value == math.inf:
            return value
        if not math.isfinite(value):
            raise _problem(show(value), cls.allowed(), "give a number, or drop an optional key")
        if value < 0 or (value == 0 and not cls.zero_allowed):
            raise _problem(f"{value:g}", cls.allowed(), "correct the value")
        if cls.whole and not value.is_integer():
            raise _problem(f"{value:g}", cls.allowed(), "round it to what can be built")
        return value

    @field_serializer("value", when_used="json")
    def _unlimited_is_null(self, value: float) -> float | None:
        # JSON has no inf; capacities of the list of machines are null where unlimited, too
        return None if math.isinf(value) else value

    @field_validator("unit")
    @classmethod
    def _unit_fits(cls, unit: str) -> str:
        if unit not in cls.dimension.units:
            raise _problem(
                show(unit),
                f"{cls.dimension.name}: {one_of(cls.dimension.units)}",
                units.unit_advice(unit, cls.dimension),
            )
        return unit

    def base(self, *, clock_hz: float | None = None, access_bytes: float | None = None) -> float:
        """The value in the base unit of its dimension (see `units.to_base`)."""
        return units.to_base(
            self.value, self.unit, self.dimension, clock_hz=clock_hz, access_bytes=access_bytes
        )


class Bandwidth(Quantity):
    """Bytes or bits per cycle, or per second with a clock; ``inf`` = unlimited."""

    dimension = units.BANDWIDTH
    unlimited_allowed = True


class Capacity(Quantity):
    """Bytes of one instance, or of one access."""

    dimension = units.SIZE


class Width(Quantity):
    """Bits side by side; ``inf`` = unlimited."""

    dimension = units.WIDTH
    unlimited_allowed = True


class Latency(Quantity):
    """Cycles, or seconds with a clock."""

    dimension = units.TIME
    zero_allowed = True


class Energy(Quantity):
    """Energy of one operation."""

    dimension = units.ENERGY
    zero_allowed = True


class AccessEnergy(Quantity):
    """Energy per byte, per bit, or per access of a stated width."""

    dimension = units.ENERGY_PER_BYTE
    zero_allowed = True


class Count(Quantity):
    """How many."""

    dimension = units.COUNT
    whole = True


class Frequency(Quantity):
    """Clock frequency."""

    dimension = units.FREQUENCY


class Number(Quantity):
    """A factor without unit."""

    dimension = units.NUMBER


class Voltage(Quantity):
    """A supply voltage."""

    dimension = units.VOLTAGE


class Resistance(Quantity):
    """A resistance."""

    dimension = units.RESISTANCE


class Capacitance(Quantity):
    """A capacitance of a transistor of unit width."""

    dimension = units.CAPACITANCE


class WireCapacitance(Quantity):
    """A capacitance per length of wire."""

    dimension = units.WIRE_CAPACITANCE


class Pitch(Quantity):
    """A distance between wires."""

    dimension = units.PITCH


class FeatureSize(Quantity):
    """Half of the smallest drawn length."""

    dimension = units.FEATURE_SIZE
