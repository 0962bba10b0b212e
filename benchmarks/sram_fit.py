"""Power laws of SRAM area and energy, fitted to CACTI's results.

    python benchmarks/sram_fit.py

The points (sram_points.csv beside this file) are our own runs of CACTI 7.0 ("3DD Prerelease", the
sources that the Python package hwcomponents_cacti 1.0.40 brings, compiled with g++ 12.2 -O2) with
that package's default configuration: 45 nm, 300 K, itrs-lstp cells and periphery, plain RAM, one
read-write port, one bank, no ECC, organization by least energy x delay^2. Written were size, block
size and bus width of each point: capacities of 4 KiB to 32 MiB and widths of 8 to 4096 byte, in
powers of two; what CACTI refused (fewer than 32 rows) is not there. Energies are those of one
access of the whole width.

Fitted is  y = y_0 * (capacity / 64 KiB)^a * (width / 64 byte)^b  in logs, by least squares, to the
points of 16 to 512 byte with at least half as many rows as bits of width. In flatter ones the width
of a word rules: CACTI lays a word out in one row of subarrays.

What is printed stands in hardware/technologies/45nm.toml.
"""

import csv
from pathlib import Path

import numpy as np

POINTS = Path(__file__).with_name("sram_points.csv")
CAPACITY, WIDTH = 64 * 1024, 64
LEAST_WIDTH, MOST_WIDTH, LEAST_ASPECT = 16, 512, 0.5


def read_points() -> dict[str, np.ndarray]:
    """Columns of the points by name."""
    with POINTS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def main() -> None:
    points = read_points()
    capacity, width = points["capacity_bytes"], points["width_bytes"]
    tall = capacity / width >= LEAST_ASPECT * 8 * width
    used = tall & (width >= LEAST_WIDTH) & (width <= MOST_WIDTH)
    capacity, width = capacity[used], width[used]
    terms = np.stack(
        [np.ones(len(width)), np.log(capacity / CAPACITY), np.log(width / WIDTH)], axis=1
    )
    fitted = {
        "area (um2)": points["area_mm2"][used] * 1e6,
        "read_energy (pJ/byte)": points["read_energy_nj"][used] * 1e3 / width,
        "write_energy (pJ/byte)": points["write_energy_nj"][used] * 1e3 / width,
    }
    print(f"{len(width)} of {len(used)} points, {capacity.min():.0f} to {capacity.max():.0f} byte")
    for name, values in fitted.items():
        (log, a, b), *_ = np.linalg.lstsq(terms, np.log(values), rcond=None)
        error = np.abs(np.exp(terms @ [log, a, b]) / values - 1)
        worst = int(error.argmax())
        print(
            f"{name}: at_reference {np.exp(log):.5g}, capacity_exponent {a:.4f}, "
            f"width_exponent {b:.4f}, median_error {np.median(error):.4f}, "
            f"most_error {error.max():.4f} (at {capacity[worst]:.0f} byte, {width[worst]:.0f} wide)"
        )


if __name__ == "__main__":
    main()
