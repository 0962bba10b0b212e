"""Choose the rows of comet_program_fixture.csv from the recorded runs of the COMET program.

Usage, from anywhere: python tests/data/make_comet_fixture.py

Reads ../shared/data/comet_program_runs.csv (relative to the repository root; 1,551 runs of the
program github.com/d-matrix-ai/comet at HEAD 917af0d) and writes the fixture beside this script.
Lines are copied as they are, in their order. Nothing is random:

1. the fastest and the slowest row of each shape (first one on a tie);
2. every third of the rows that ran out of memory;
3. of each kind in `KINDS`, up to 12 rows, evenly spaced in file order;
4. the same number of rows of every shape, evenly spaced: as many as fit into 200 rows in all.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

Row = dict[str, str]

MAX_ROWS = 200
OOM_EVERY = 3
PER_KIND = 12
FACTORS = (
    "M_dram_t",
    "M_gb_t",
    "M_core_t",
    "M_comp",
    "N_core_t",
    "N_comp",
    "K_core_t",
    "K_comp",
)

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT.parent / "shared" / "data" / "comet_program_runs.csv"
FIXTURE = Path(__file__).resolve().parent / "comet_program_fixture.csv"


def _above_one(row: Row, *names: str) -> bool:
    return all(int(row[name]) > 1 for name in names)


def _one(row: Row, *names: str) -> bool:
    return all(int(row[name]) == 1 for name in names)


KINDS: dict[str, Callable[[Row], bool]] = {
    "all temporal factors above one": lambda r: _above_one(r, *FACTORS),
    "C leaves at every call (Kt > 1, Mt > 1)": lambda r: _above_one(r, "K_core_t", "M_core_t"),
    "C accumulates (Kt > 1, Mt = 1)": lambda r: (
        _above_one(r, "K_core_t", "M_dram_t") and _one(r, "M_core_t")
    ),
    "A reused over Nt (Mt = Kt = 1)": lambda r: (
        _above_one(r, "N_core_t", "M_dram_t") and _one(r, "M_core_t", "K_core_t")
    ),
    "B stays in the core (Kt = Nt = 1)": lambda r: (
        _above_one(r, "M_gb_t") and _one(r, "K_core_t", "N_core_t")
    ),
    "one row per step (m = 1), M above one": lambda r: (
        int(r["M"]) > 1 and _one(r, "M_core_t", "M_comp")
    ),
    "one DRAM step": lambda r: int(r["M"]) > 1 and _one(r, "M_dram_t"),
    "one GB step": lambda r: int(r["M"]) > 1 and _one(r, "M_gb_t"),
    "one column per call": lambda r: int(r["M"]) > 1 and _one(r, "N_comp"),
    "more than 16 columns per call": lambda r: int(r["M"]) > 1 and int(r["N_comp"]) > 16,
}


def spread(items: Sequence[int], count: int) -> list[int]:
    """At most `count` of the items, evenly spaced, the first one included."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def choose(rows: Sequence[Row]) -> list[int]:
    """Indices of the rows of the fixture, ascending."""
    fits = [i for i, row in enumerate(rows) if row["note"] != "OOM"]
    shapes: dict[tuple[str, ...], list[int]] = {}
    for i in fits:
        shapes.setdefault(tuple(rows[i][k] for k in ("platform", "M", "N", "K")), []).append(i)

    def cycles(i: int) -> int:
        return int(rows[i]["root_node_cycles"])

    chosen = {best(indices, key=cycles) for indices in shapes.values() for best in (min, max)}
    chosen.update([i for i, row in enumerate(rows) if row["note"] == "OOM"][::OOM_EVERY])
    for is_kind in KINDS.values():
        chosen.update(spread([i for i in fits if is_kind(rows[i])], PER_KIND))
    fixture = chosen
    for count in range(1, MAX_ROWS):
        more = chosen.union(*(spread(indices, count) for indices in shapes.values()))
        if len(more) > MAX_ROWS:
            break
        fixture = more
    return sorted(fixture)


def fixture_text() -> str:
    """Text of the fixture, made from the recorded runs."""
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    chosen = choose(list(csv.DictReader(lines)))
    return "\n".join([lines[0], *(lines[i + 1] for i in chosen)]) + "\n"


if __name__ == "__main__":
    FIXTURE.write_text(fixture_text(), encoding="utf-8")
