"""The SRAM constants of 45nm.toml against a fit of their own to the points in benchmarks/."""

from pathlib import Path

import numpy as np
import pytest

from jaxcomet.hardware import Sram, load_technology

POINTS = Path(__file__).resolve().parents[2] / "benchmarks" / "sram_points.csv"
FIGURES = ("area", "read_energy", "write_energy")


def _used() -> dict[str, np.ndarray]:
    """Points of 16 to 512 byte with half as many rows as bits of width, in byte, um2, pJ/byte."""
    table = np.genfromtxt(POINTS, delimiter=",", names=True)
    bits, rows = 8 * table["width_bytes"], table["capacity_bytes"] / table["width_bytes"]
    used = table[(rows >= bits / 2) & (bits >= 8 * 16) & (bits <= 8 * 512)]
    return {
        "capacity": used["capacity_bytes"],
        "width": used["width_bytes"],
        "area": used["area_mm2"] * 1e6,
        "read_energy": used["read_energy_nj"] * 1e3 / used["width_bytes"],
        "write_energy": used["write_energy_nj"] * 1e3 / used["width_bytes"],
    }


def _of_the_file(sram: Sram, figure: str, points: dict[str, np.ndarray]) -> np.ndarray:
    function = {
        "area": sram.area_um2,
        "read_energy": sram.read_energy_pj_per_byte,
        "write_energy": sram.write_energy_pj_per_byte,
    }[figure]
    return np.asarray(function(points["capacity"], points["width"]))


@pytest.mark.parametrize("figure", FIGURES)
def test_the_constants_are_those_of_a_least_squares_fit_in_logs(figure: str):
    points, law = _used(), getattr(load_technology("45nm").sram, figure)
    # log2 here and natural logs in benchmarks/sram_fit.py: the exponents are the same
    capacity, width = np.log2(points["capacity"] / 2**16), np.log2(points["width"] / 2**6)
    terms = np.stack([capacity, width, np.ones_like(width)], axis=1)
    (a, b, log), *_ = np.linalg.lstsq(terms, np.log2(points[figure]), rcond=None)
    error = np.abs(2 ** (terms @ [a, b, log]) / points[figure] - 1)
    # the file gives five digits of the figure and four places of the rest
    assert law.at_reference == pytest.approx(2**log, rel=5e-5)
    found = [law.capacity_exponent, law.width_exponent, law.median_error, law.most_error]
    assert found == pytest.approx([a, b, np.median(error), error.max()], rel=0, abs=5e-5)


@pytest.mark.parametrize("figure", FIGURES)
def test_the_stated_errors_hold_for_what_is_computed(figure: str):
    points, sram = _used(), load_technology("45nm").sram
    law = getattr(sram, figure)
    error = np.abs(_of_the_file(sram, figure, points) / points[figure] - 1)
    # rounded exponents move a figure by up to 5e-5 * ln(512 + 8) < 4e-4
    assert np.median(error) == pytest.approx(law.median_error, abs=4e-4)
    assert error.max() == pytest.approx(law.most_error, abs=2 * 4e-4)


def test_the_stated_range_is_that_of_the_points():
    points, sram = _used(), load_technology("45nm").sram
    assert len(points["width"]) == 64
    assert (sram.least_width_bytes, sram.most_width_bytes) == (16.0, 512.0)
    assert set(points["width"]) == {16, 32, 64, 128, 256, 512}
    assert points["capacity"].min() == sram.least_capacity_bytes == 4 * 1024
    assert points["capacity"].max() == sram.most_capacity_bytes == 32 * 1024**2
    rows, bits = points["capacity"] / points["width"], 8 * points["width"]
    assert (rows / bits).min() == sram.least_aspect == 0.5
    assert (sram.reference_capacity_bytes, sram.reference_width_bytes) == (64.0 * 1024, 64.0)


def test_the_reference_is_where_the_power_laws_are_stated():
    sram = load_technology("45nm").sram
    assert sram.area_um2(65536.0, 64.0) == 2.45e5
    assert sram.read_energy_pj_per_byte(65536.0, 64.0) == 1.2189
    assert sram.write_energy_pj_per_byte(65536.0, 64.0) == 2.1152
