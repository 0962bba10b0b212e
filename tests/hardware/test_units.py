"""Units: conversion by hand, and refusal of what may be misread."""

import pytest

from jaxcomet.hardware import units
from jaxcomet.hardware.units import BANDWIDTH, SIZE, to_base


@pytest.mark.parametrize(
    ("value", "unit", "dimension", "expected"),
    [
        (1.0, "B", SIZE, 1.0),
        (1.0, "byte", SIZE, 1.0),
        (8.0, "bit", SIZE, 1.0),
        (1.0, "kB", SIZE, 1e3),
        (1.0, "MB", SIZE, 1e6),
        (1.0, "GB", SIZE, 1e9),
        (1.0, "KiB", SIZE, 1024.0),
        (1.0, "MiB", SIZE, 1024.0**2),
        (1.0, "GiB", SIZE, 1024.0**3),
        (25.0, "byte/cycle", BANDWIDTH, 25.0),
        (512.0, "bit/cycle", BANDWIDTH, 64.0),
        (2.0, "B", units.WIDTH, 16.0),
        (512.0, "bit", units.WIDTH, 512.0),
        (5.0, "cycle", units.TIME, 5.0),
        (2.0, "nJ", units.ENERGY, 2000.0),
        (500.0, "fJ", units.ENERGY, 0.5),
        (2.0, "pJ/bit", units.ENERGY_PER_BYTE, 16.0),
        (3.0, "pJ/byte", units.ENERGY_PER_BYTE, 3.0),
        (1.5, "GHz", units.FREQUENCY, 1.5e9),
        (80.0, "um", units.PITCH, 0.08),
        (16.0, "nm", units.FEATURE_SIZE, 0.016),
    ],
)
def test_factors_to_base_units(
    value: float, unit: str, dimension: units.Dimension, expected: float
):
    assert to_base(value, unit, dimension) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("value", "unit", "clock_hz", "expected"),
    [
        (400.0, "Gbit/s", 1e9, 50.0),
        (50.0, "GB/s", 2e9, 25.0),
        (1.0, "GiB/s", 2.0**30, 1.0),
        (8.0, "Tbit/s", 1e9, 1000.0),
        (1.0, "TB/s", 1e9, 1000.0),
    ],
)
def test_bandwidth_per_second_is_divided_by_the_clock(
    value: float, unit: str, clock_hz: float, expected: float
):
    assert to_base(value, unit, BANDWIDTH, clock_hz=clock_hz) == pytest.approx(expected, rel=1e-15)


def test_time_in_seconds_is_multiplied_by_the_clock():
    assert to_base(3.0, "ns", units.TIME, clock_hz=2e9) == pytest.approx(6.0, rel=1e-15)


@pytest.mark.parametrize(("size", "milliseconds"), [("GB", 20.0), ("GiB", 21.47)])
def test_a_network_port_in_bits_moves_a_message_in_bytes(size: str, milliseconds: float):
    # 400 Gbit/s = 50e9 byte/s; 1e9 byte take 20.0 ms and 2**30 byte take 21.47 ms. Bits read as
    # bytes would give 2.5 ms.
    clock_hz = 1.7e9
    bytes_per_cycle = to_base(400.0, "Gbit/s", BANDWIDTH, clock_hz=clock_hz)
    cycles = to_base(1.0, size, SIZE) / bytes_per_cycle
    assert cycles / clock_hz * 1e3 == pytest.approx(milliseconds, rel=1e-3)


def test_energy_per_access_is_divided_by_its_width():
    assert to_base(474.0, "pJ/access", units.ENERGY_PER_BYTE, access_bytes=2048.0) == 474 / 2048


def test_a_missing_clock_is_named():
    with pytest.raises(ValueError, match=r"'GB/s' counts seconds and needs the machine's clock"):
        to_base(1.0, "GB/s", BANDWIDTH)


def test_a_missing_access_width_is_named():
    with pytest.raises(ValueError, match="needs the width of one access"):
        to_base(1.0, "pJ/access", units.ENERGY_PER_BYTE)


@pytest.mark.parametrize(
    ("unit", "dimension", "advice"),
    [
        ("b", SIZE, "b may be bit or byte: write bit or byte"),
        ("kb", SIZE, "b may be bit or byte: write kbit or kB"),
        ("Gb/s", BANDWIDTH, "b may be bit or byte: write Gbit/s or GB/s"),
        ("b/cycle", BANDWIDTH, "b may be bit or byte: write bit/cycle or byte/cycle"),
        ("pJ/b", units.ENERGY_PER_BYTE, "b may be bit or byte: write pJ/bit or pJ/byte"),
        ("gb/s", BANDWIDTH, "write GB/s"),
        ("KB", SIZE, "write kB"),
        ("furlong", SIZE, "write it in KiB"),
    ],
)
def test_an_unknown_unit_comes_with_a_remedy(unit: str, dimension: units.Dimension, advice: str):
    assert units.unit_advice(unit, dimension) == advice
    with pytest.raises(ValueError, match=f"got unit '{unit}' for {dimension.name}"):
        to_base(1.0, unit, dimension)
