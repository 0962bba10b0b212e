"""Units of machine files, and their conversion to the base units of the model.

The one idea: a unit belongs to a *dimension* (a bandwidth, a size, ...) and is a factor to that
dimension's base unit; units per second need the machine's clock besides. GB is 1e9 byte and GiB is
2**30 byte. A lone ``b`` is refused, because it is read as bit by some and as byte by others.

Left out: arithmetic on units. Only the loader converts; the model computes in base units.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_BYTES = {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
_BYTES_SPELLED = {"byte": 1.0} | _BYTES
_BITS = {f"{prefix}bit": factor / 8 for prefix, factor in _DECIMAL.items()}


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """A kind of number and the units it may be written in.

    Attributes:
      name: as used in messages, with its article.
      base: unit that the model computes in.
      example: a unit to show in messages.
      factors: factor of each unit to the base unit.
      clocked: factor of each unit that counts seconds, to the base unit with seconds for cycles.
      per_second: the clocked units stand for something per second (else for seconds).
      per_access: units that are divided by the bytes of one access.
    """

    name: str
    base: str
    example: str
    factors: Mapping[str, float]
    clocked: Mapping[str, float] = field(default_factory=dict)
    per_second: bool = True
    per_access: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[str, ...]:
        """All units of the dimension."""
        return (*self.factors, *self.clocked)


BANDWIDTH = Dimension(
    name="a bandwidth",
    base="byte/cycle",
    example="byte/cycle",
    factors={"byte/cycle": 1.0, "bit/cycle": 1 / 8},
    clocked={f"{unit}/s": factor for unit, factor in (_BYTES_SPELLED | _BITS).items()},
)
SIZE = Dimension(name="a size", base="byte", example="KiB", factors=_BYTES_SPELLED | {"bit": 1 / 8})
WIDTH = Dimension(
    name="a width", base="bit", example="bit", factors={"bit": 1.0, "B": 8.0, "byte": 8.0}
)
TIME = Dimension(
    name="a time",
    base="cycle",
    example="cycle",
    factors={"cycle": 1.0},
    clocked={"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    per_second=False,
)
ENERGY = Dimension(
    name="an energy", base="pJ", example="pJ", factors={"pJ": 1.0, "nJ": 1e3, "fJ": 1e-3}
)
ENERGY_PER_BYTE = Dimension(
    name="an energy per byte",
    base="pJ/byte",
    example="pJ/byte",
    factors={"pJ/byte": 1.0, "pJ/bit": 8.0, "pJ/access": 1.0},
    per_access=("pJ/access",),
)
COUNT = Dimension(name="a count", base="count", example="count", factors={"count": 1.0})
FREQUENCY = Dimension(
    name="a frequency",
    base="Hz",
    example="GHz",
    factors={"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
)
NUMBER = Dimension(name="a pure number", base="1", example="1", factors={"1": 1.0})
VOLTAGE = Dimension(name="a voltage", base="V", example="V", factors={"V": 1.0, "mV": 1e-3})
RESISTANCE = Dimension(
    name="a resistance", base="ohm", example="ohm", factors={"ohm": 1.0, "kohm": 1e3}
)
CAPACITANCE = Dimension(
    name="a capacitance", base="F", example="fF", factors={"F": 1.0, "pF": 1e-12, "fF": 1e-15}
)
WIRE_CAPACITANCE = Dimension(
    name="a capacitance per length",
    base="F/mm",
    example="F/mm",
    factors={"F/mm": 1.0, "pF/mm": 1e-12, "fF/mm": 1e-15},
)
PITCH = Dimension(name="a pitch", base="mm", example="mm", factors={"mm": 1.0, "um": 1e-3})
FEATURE_SIZE = Dimension(
    name="a feature size", base="um", example="um", factors={"um": 1.0, "nm": 1e-3}
)
AREA = Dimension(name="an area", base="um2", example="um2", factors={"um2": 1.0, "mm2": 1e6})
AREA_PER_BANDWIDTH = Dimension(
    name="an area per bandwidth",
    base="um2/(byte/cycle)",
    example="mm2/(byte/cycle)",
    factors={"um2/(byte/cycle)": 1.0, "mm2/(byte/cycle)": 1e6},
)


def to_base(
    value: float,
    unit: str,
    dimension: Dimension,
    *,
    clock_hz: float | None = None,
    access_bytes: float | None = None,
) -> float:
    """A value in the base unit of its dimension.

    Args:
      value: the number as written.
      unit: its unit, one of ``dimension.units``.
      dimension: what kind of number it is.
      clock_hz: the machine's clock; needed by units that count seconds.
      access_bytes: bytes of one access; needed by units per access.

    Returns:
      The number in ``dimension.base``.

    Raises:
      ValueError: the unit is not one of the dimension, or the clock or the access width is missing.

    Example:
      >>> to_base(2.0, "MiB", SIZE)
      2097152.0
      >>> to_base(400.0, "Gbit/s", BANDWIDTH, clock_hz=1e9)
      50.0
    """
    if unit in dimension.clocked:
        if clock_hz is None:
            raise ValueError(f"{unit!r} counts seconds and needs the machine's clock")
        in_seconds = value * dimension.clocked[unit]
        return in_seconds / clock_hz if dimension.per_second else in_seconds * clock_hz
    if unit not in dimension.factors:
        raise ValueError(f"got unit {unit!r} for {dimension.name}; {unit_advice(unit, dimension)}")
    if unit in dimension.per_access:
        if access_bytes is None:
            raise ValueError(f"{unit!r} needs the width of one access")
        return value * dimension.factors[unit] / access_bytes
    return value * dimension.factors[unit]


def unit_advice(unit: str, dimension: Dimension) -> str:
    """What to write instead of a unit that is not one of the dimension.

    Example:
      >>> unit_advice("Gb/s", BANDWIDTH)
      'b may be bit or byte: write Gbit/s or GB/s'
    """
    lone_b = re.search(r"(?<![A-Za-z])([kKMGT]i?)?b(?![A-Za-z])", unit)
    if lone_b:
        before, after = unit[: lone_b.start()], unit[lone_b.end() :]
        prefix = lone_b[1] or ""
        byte = f"{prefix}B" if prefix or after == "/s" else "byte"
        return f"b may be bit or byte: write {before}{prefix}bit{after} or {before}{byte}{after}"
    folded = {known.lower(): known for known in dimension.units}
    if unit.lower() in folded:
        return f"write {folded[unit.lower()]}"
    return f"write it in {dimension.example}"
