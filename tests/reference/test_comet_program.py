"""Check the scalar reference of the COMET program against recorded runs and worked figures.

Sources: "notes" is the project's `comet_closed_form.md` (closed form of the program
github.com/d-matrix-ai/comet, HEAD 917af0d, of arXiv:2509.00599), sections 7, 8 and 9; the CSV files
are outputs of that program. Cycles must be equal. Energies were recorded and printed with 7 digits,
so they must agree within 1e-6; percentages must agree in every printed digit.
"""

import csv
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reference import comet_program
from tests.reference.comet_program import RULES, Numbers, Priced, cloud, edge, noc, price

TESTS = Path(__file__).resolve().parents[1]
FIXTURE = TESTS / "data" / "comet_program_fixture.csv"
RUNS = TESTS.parents[1] / "shared" / "data" / "comet_program_runs.csv"
ENERGY_RTOL = 1e-6  # 7 printed digits

MACHINES = {"edge": edge, "cloud": cloud}
SPATIAL = ("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy")
TEMPORAL = ("M_dram_t", "M_gb_t", "M_core_t", "M_comp", "N_core_t", "N_comp", "K_core_t", "K_comp")

# The five columns of notes section 8: machine, (M, N, K), (Md, Mg, Mt, Mc, Nt, Nc, Kt, Kc).
MAPPINGS = (
    ("edge", (1, 1024, 128), (1, 1, 1, 1, 1, 64, 1, 128)),
    ("edge", (1024, 1024, 256), (16, 4, 1, 16, 1, 64, 1, 256)),
    ("edge", (256, 256, 128), (32, 8, 1, 1, 1, 16, 1, 128)),
    ("edge", (256, 256, 128), (4, 2, 4, 8, 4, 4, 2, 64)),
    ("cloud", (1024, 1024, 512), (4, 4, 1, 64, 1, 4, 1, 512)),
)
# Columns of notes section 9 (it takes columns 1, 2, 5, 3 of section 8, in this order).
SECTION_9 = (0, 1, 4, 2)

# Notes section 8, typed from its table, one line a value and one figure a column.
SECTION_8 = {
    "tc": (95, 110, 95, 102, 316),
    "T": (1, 1, 1, 32, 1),
    "Wg": (112, 190, 100, 3273, 445),
    "rb": (16, 0, 4, 0, 0),
    "xA": (20, 330, 20, 330, 1694),
    "xB": (1034, 2058, 266, 266, 254),
    "xC": (18, 64, 1, 32, 16),
    "G": (1184, 3352, 1059, 7174, 4993),
    "Wmax": (19, 259, 6, 514, 258),
    "Wsub": (9, 69, 4, 132, 68),
    "Wexp": (16, 196, 5, 386, 194),
    "Wsum": (19, 259, 6, 514, 258),
    "Wdiv": (9, 69, 4, 132, 68),
    "dv": (11, 14, 11, 18, 44),
    "dm": (26, 266, 14, 138, 86),
    "S1": (30, 1092, 178, 1064, 1208),
    "S2": (62, 2395, 266, 1352, 1528),
    "S3": (80, 2164, 177, 1706, 1562),
    "R1": (22, 50, 22, 80, 720),
    "R2": (500, 7700, 140, 3860, 42300),
    "body": (1878, 40003, 2976, 19176, 181371),
    "yA": (24, 1690, 115, 850, 8796),
    "yB": (7301, 14592, 1833, 1833, 12052),
    "yH": (67, 3656, 124, 922, 6041),
}
LATENCY = (9270, 629116, 88934, 79511, 751611)
ENERGY = (1.333222e7, 2.318295e8, 1.811518e7, 1.616650e7, 3.859025e8)

# Notes section 9, latency table: change in cycles if the rules are made right.
LATENCY_EFFECTS = (
    (("c_drained",), (0, 7808, 864, 3040)),
    (("c_never_drained",), (-18, -1024, -64, -32)),
    (("read_stalls_every_step",), (0, 13440, 12824, 6720)),
    (("compulsory_once",), (0, -3888, -192, -3456)),
    (("read_stalls_every_step", "compulsory_once"), (0, 9552, 12824, 1344)),
    (("core_ramp",), (0, 0, 0, 510)),
    (("pipelined_moves",), (-2630, -28148, -7416, -3037)),
    (("ring_memory",), (-265, -271360, -272608, -17152)),
    (("ring_arithmetic",), (-116, -119296, -395472, -7424)),
    (("allreduce_rowsums",), (-478, -489600, -665280, -30208)),
)

# Notes section 9, energy list: change in % of the total, as printed, its first three columns.
ENERGY_EFFECTS = (
    ("dram_mesh_energy", ("+.09", "+.09", "+3.16")),
    ("all_clusters_mesh_energy", ("+.09", "+.47", "+49.5")),
    ("broadcast_all_receivers", ("0", "+.11", "+1.03")),
    ("b_moved_once", ("0", "-1.79", "-.57")),
    ("vector_all_cores", ("+.01", "+.47", "+4.58")),
    ("lane_ops_ceil", ("+.01", "+.65", "0")),
    ("allreduce_memory_energy_once", ("-.02", "-1.34", "-4.25")),
    ("c_mesh_every_step", ("0", "+.01", "+.07")),
)


def factors_of(machine: str, sizes: tuple[int, ...]) -> dict[str, int]:
    factors: dict[str, int] = {}
    for name in SPATIAL:
        factors[name] = MACHINES[machine]().mesh_edge
    for name, size in zip(TEMPORAL, sizes, strict=True):
        factors[name] = size
    return factors


def priced(column: int, *rules: str) -> Priced:
    machine, shape, sizes = MAPPINGS[column]
    return price(MACHINES[machine](), shape, factors_of(machine, sizes), frozenset(rules))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def disagreements(rows: list[dict[str, str]]) -> list[str]:
    found = []
    for number, row in enumerate(rows, start=2):
        shape = (int(row["M"]), int(row["N"]), int(row["K"]))
        result = price(MACHINES[row["platform"]](), shape, row)
        if (result.oom is not None) != (row["note"] == "OOM"):
            found.append(f"line {number}: out of memory {result.oom}, recorded {row['note']!r}")
        if row["note"] == "OOM":
            continue
        if result.latency_cycles != int(row["root_node_cycles"]):
            found.append(f"line {number}: {result.latency_cycles} cycles, not {row}")
        if result.energy_pj != pytest.approx(float(row["energy_pJ"]), rel=ENERGY_RTOL):
            found.append(f"line {number}: {result.energy_pj} pJ, not {row}")
    return found


@pytest.mark.parametrize("column", range(len(MAPPINGS)))
def test_worked_rows_of_the_notes_are_reproduced(column: int):
    result = priced(column)
    assert result.nodes == {name: values[column] for name, values in SECTION_8.items()}
    assert result.latency_cycles == LATENCY[column]
    assert result.energy_pj == pytest.approx(ENERGY[column], rel=ENERGY_RTOL)
    assert result.oom is None


def test_mesh_energy_agrees_with_the_two_checks_of_the_notes():
    # Section 7, "Checks, edge", 7 printed digits.
    machine = edge()
    assert noc(machine, machine.gb, 256, 16, 2) == pytest.approx(604.6422, rel=ENERGY_RTOL)
    assert noc(machine, machine.ib, 64, 8, 1) == pytest.approx(112.9319, rel=ENERGY_RTOL)


def test_smallest_row_follows_from_hand_arithmetic():
    # Edge, 1x1024x128 over 16 cores: 64 columns a core, 256 a cluster; h = 2 hops.
    nodes = priced(0).nodes
    assert nodes["Wg"] == (2 * 32 + 32 + 1 - 2) + max(128 // 64, 128 * 64 // 512) + 64 // 64
    assert nodes["xB"] == 4 * 128 * 64 // 64 + 2 * 5 + 128 * 64 * 2 * 8 // 512 * 2
    assert (
        nodes["R2"] == 2 * 32 * 4 + 32 + 2 * 2 * 5 + 2 * 256 * 2 * 16 // 512 * 2 + 256 * 2 * 4 // 16
    )
    assert nodes["yB"] == -(-4 * 128 * 256 // 25) + 2 * 5 + 128 * 256 * 2 * 8 // 512 * 2


@pytest.mark.parametrize(
    ("sizes", "ports"),
    [
        ((2, 2, 4, 16, 4, 4, 2, 64), (1, 512, 64)),
        ((2, 2, 2, 32, 4, 4, 2, 64), (64, 1, 64)),
        ((2, 2, 4, 16, 4, 4, 2, 64), (8, 1, 1)),
        ((4, 4, 1, 16, 4, 4, 1, 128), (1, 1, 1)),
        ((4, 4, 1, 16, 2, 8, 4, 32), (2, 1, 1)),
    ],
)
def test_core_stalls_are_the_sum_over_steps(sizes: tuple[int, ...], ports: tuple[int, int, int]):
    # Notes section 4.1, step by step; no recorded run at hand has such a stall.
    _, _, Mt, Mc, Nt, Nc, Kt, Kc = sizes
    machine = replace(edge(), ibE=ports[0], wbE=ports[1], obE=ports[2])
    nodes = price(machine, (256, 256, 128), factors_of("edge", sizes)).nodes
    T, tc = Mt * Kt * Nt, 94 + Mc
    tA, tB, tC = -(-Mc * Kc // ports[0]), -(-Kc * Nc // ports[1]), -(-Mc * Nc // ports[2])
    rA, rB, rC = Nt if Mt == Kt == 1 else 1, Mt, Kt if Mt == 1 else 1
    stall = 0
    for i in range(T):
        late_a = tA // rA - tc if i < T - rA else 0
        late_b = tB // rB - tc if i < T - rB else 0
        late_c = tC // rC - tc if i >= rC else 0
        stall += max(0, late_a, late_b, late_c)
    assert stall > 0
    assert nodes["Wg"] == T * tc + max(tA, tB) + tC + stall


@pytest.mark.parametrize(("corrected", "stalls_of_a"), [(False, 1), (True, 3)])
def test_slow_dram_stalls_a_once_or_at_every_later_step(corrected: bool, stalls_of_a: int):
    # Notes section 6, with 4 DRAM steps and 1 byte a cycle: A has 16*2048 bytes a step.
    sizes = (4, 1, 1, 16, 1, 1, 1, 2048)
    rules = {"read_stalls_every_step"} if corrected else set()
    machine = replace(edge(), dram_bytes_per_cycle=1)
    result = price(machine, (64, 16, 2048), factors_of("edge", sizes), rules)
    nodes = result.nodes
    assert nodes["yA"] == 16 * 2048 + 10 + 16 * 2048 * 2 * 8 // 512 * 2
    late_a, late_h = nodes["yA"] - nodes["body"], max(0, nodes["yH"] - nodes["body"])
    assert late_a > 0
    latency = 4 * nodes["body"] - 3 * (nodes["xB"] + nodes["rb"])
    latency += nodes["yA"] + nodes["yB"] + nodes["yH"] + stalls_of_a * late_a + 3 * late_h
    assert result.latency_cycles == latency


@pytest.mark.parametrize(("rules", "changes"), LATENCY_EFFECTS, ids=lambda x: "+".join(map(str, x)))
def test_latency_effect_of_corrected_rules(rules: tuple[str, ...], changes: tuple[int, ...]):
    found = [
        priced(column, *rules).latency_cycles - priced(column).latency_cycles
        for column in SECTION_9
    ]
    assert found == list(changes)


@pytest.mark.parametrize(("rule", "changes"), ENERGY_EFFECTS, ids=[r for r, _ in ENERGY_EFFECTS])
def test_energy_effect_of_corrected_rules(rule: str, changes: tuple[str, ...]):
    for column, printed in zip(SECTION_9, changes, strict=False):  # the list has three columns
        ratio = priced(column, rule).energy_pj / priced(column).energy_pj
        digits = len(printed.partition(".")[2]) or 2
        assert round(100 * (ratio - 1), digits) == float(printed), (column, ratio)


def test_energy_rules_leave_latency_alone():
    for rule, _ in ENERGY_EFFECTS:
        for column in range(len(MAPPINGS)):
            assert priced(column, rule).latency_cycles == priced(column).latency_cycles


def test_latency_rules_leave_energy_alone_except_the_smaller_all_reduce():
    for rules, _ in LATENCY_EFFECTS:
        for column in range(len(MAPPINGS)):
            same = priced(column, *rules).energy_pj == priced(column).energy_pj
            assert same == (rules != ("allreduce_rowsums",)), (rules, column)


def test_every_rule_has_its_figures_and_its_formula():
    tested = {rule for rules, _ in LATENCY_EFFECTS for rule in rules}
    tested |= {rule for rule, _ in ENERGY_EFFECTS}
    assert tested == set(RULES)
    assert all(text.strip() for text in RULES.values())


@pytest.mark.parametrize(
    ("machine", "shape", "sizes", "expected"),
    [
        # m = 512 rows of K = 128: 512*128 > 32768.
        (edge(), (512, 256, 128), (1, 1, 1, 512, 1, 16, 1, 128), ("IB", 65536, 32768)),
        # n = 256 columns of K = 256.
        (edge(), (1, 4096, 256), (1, 1, 1, 1, 1, 256, 1, 256), ("WB", 65536, 32768)),
        # m = 256, n = 256: 4*256*256 + 2*256.
        (edge(), (256, 4096, 64), (1, 1, 1, 256, 1, 256, 1, 64), ("OB", 262656, 131072)),
        # All 1024 rows in one DRAM step: 1024*256 + 256*256 + 1024 + 2*1024*256 fits in GB,
        # 4096 rows do not.
        (edge(), (1024, 1024, 256), (1, 64, 1, 16, 1, 64, 1, 256), None),
        (
            edge(),
            (4096, 1024, 256),
            (1, 256, 1, 16, 1, 64, 1, 256),
            ("GB", 4096 * 256 + 256 * 256 + 4096 + 2 * 4096 * 256, 2097152),
        ),
    ],
)
def test_first_overflowing_buffer_is_named(
    machine: Numbers,
    shape: tuple[int, int, int],
    sizes: tuple[int, ...],
    expected: tuple[str, int, int] | None,
):
    assert price(machine, shape, factors_of("edge", sizes)).oom == expected


def test_wrong_factors_and_rules_are_refused():
    factors = factors_of("edge", (1, 1, 1, 1, 1, 64, 1, 128))
    with pytest.raises(ValueError, match="factors of N: their product is 1024; expected 512"):
        price(edge(), (1, 512, 128), factors)
    with pytest.raises(ValueError, match="expected mesh edge 4"):
        price(cloud(), (1, 1024, 128), factors)
    with pytest.raises(ValueError, match="unknown rules"):
        price(edge(), (1, 1024, 128), factors, frozenset({"c_drian"}))
    with pytest.raises(ValueError, match="exclude each other"):
        price(edge(), (1, 1024, 128), factors, frozenset({"c_drained", "c_never_drained"}))


def test_reference_is_plain_python():
    path = comet_program.__file__
    assert path is not None
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    modules = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert modules == {"collections.abc", "dataclasses", "fractions", "itertools", "math"}


def test_fixture_rows_are_reproduced():
    rows = rows_of(FIXTURE)
    assert 150 <= len(rows) <= 200
    assert len({(r["platform"], r["M"], r["N"], r["K"]) for r in rows}) == 8
    assert disagreements(rows) == []


def test_recorded_runs_are_reproduced():
    if not RUNS.exists():
        pytest.skip("the 1,551 recorded runs (../shared/data/comet_program_runs.csv) are absent")
    rows = rows_of(RUNS)
    assert len(rows) == 1551
    assert sum(row["note"] == "OOM" for row in rows) == 79
    assert disagreements(rows) == []


def test_fixture_is_what_its_script_makes():
    if not RUNS.exists():
        pytest.skip("the 1,551 recorded runs (../shared/data/comet_program_runs.csv) are absent")
    path = TESTS / "data" / "make_comet_fixture.py"
    spec = importlib.util.spec_from_file_location("make_comet_fixture", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert FIXTURE.read_text(encoding="utf-8") == script.fixture_text()
