"""Search spaces: grids, ties, budgets and their files; tables of splits; the relaxed model."""

import itertools
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxcomet import gemm_softmax, optimize
from jaxcomet.cost.conventions import DEFAULT
from jaxcomet.hardware import numbers
from jaxcomet.optimize.enumeration import exact_cost
from jaxcomet.optimize.joint.files import SpaceFileError
from jaxcomet.optimize.joint.objectives import aim_of, make_targets, pareto
from jaxcomet.optimize.joint.relaxation import Relaxation
from jaxcomet.optimize.joint.scoring import Joint, Points
from jaxcomet.optimize.joint.suite import make_suite
from jaxcomet.optimize.joint.tables import AxisTables

GOOD = """
name = "good"
description = "d"
machine = "edge"

[numbers.lanes]
keys = ["engine.simd.lanes"]
unit = "count"
low = 8
high = 32
grid = "powers of two"
reason = "r"

[budgets.area]
limit = 530
unit = "mm2"
reason = "r"
"""


def _load(tmp_path: Path, text: str) -> optimize.DesignSpace:
    path = tmp_path / "space.toml"
    path.write_text(text, encoding="utf-8")
    return optimize.load_space(path)


@pytest.mark.parametrize(
    ("grid", "values"),
    [
        ('low = 3\nhigh = 32\ngrid = "powers of two"', None),  # 3, 6, 12, 24: without the start
        ('low = 4\nhigh = 40\ngrid = "powers of two"', (4, 8, 16, 32)),
        ('low = 3\nhigh = 48\ngrid = "divisors of 48"', (3, 4, 6, 8, 12, 16, 24, 48)),
        ('low = 9\nhigh = 33\ngrid = "steps of 8"', (16, 24, 32)),
        ("values = [16, 17, 40]", (16, 17, 40)),
    ],
)
def test_grids(tmp_path: Path, grid: str, values: tuple[int, ...] | None):
    text = GOOD.replace('low = 8\nhigh = 32\ngrid = "powers of two"', grid)
    if values is None:
        with pytest.raises(SpaceFileError, match="a grid without 16 count, which edge has"):
            _load(tmp_path, text)
    else:
        assert _load(tmp_path, text).free[0].grid == values


@pytest.mark.parametrize("name", optimize.space_names())
def test_shipped_spaces(name: str):
    space = optimize.load_space(name)
    assert len(space.free) == {"edge": 32, "cloud": 32, "edge-small": 4}.get(name, 9)
    np.testing.assert_allclose(space.values(space.start_grid), space.start_values, rtol=1e-12)
    assert space.excess(space.start_grid[None], space.limits)[0] <= 1.0
    for number in space.free:
        assert number.reason
        for key in number.keys:
            if ".mesh_" in key:  # collectives were checked on edges of 2 and above
                assert number.grid[0] >= 2.0
    # keys that are tied keep the ratio that they have in the start
    machine = space.single(space.sizes - 1)
    for number in space.free:
        first = number.keys[0]
        for key in number.keys[1:]:
            ratio = numbers.read(space.start, key) / numbers.read(space.start, first)  # pyright: ignore[reportOperatorIssue]
            changed = numbers.read(machine, key) / numbers.read(machine, first)  # pyright: ignore[reportOperatorIssue]
            assert changed == pytest.approx(ratio, rel=1e-12)


def test_a_machine_has_the_numbers_of_its_grid_and_nothing_else_but_energies(tmp_path: Path):
    space = _load(tmp_path, GOOD)
    machine = space.single(np.array([2]))
    assert numbers.read(machine, "engine.simd.lanes") == 32.0
    for key in numbers.keys(machine):
        if key != "engine.simd.lanes":
            assert numbers.read(machine, key) == numbers.read(space.start, key), key


def test_machines_over_a_budget_shrink_until_they_are_within_and_no_further():
    space = optimize.load_space("edge-9")
    rng = np.random.default_rng(0)
    wanted = space.random(rng, 200)
    limits = np.repeat(space.limits[None], 200, axis=0)
    found = space.within(wanted, limits)
    over = space.excess(wanted, limits) > 1.0
    assert over.any()
    assert not over.all()
    assert (space.excess(found, limits) <= 1.0).all()
    assert (found <= wanted).all()
    assert (found[~over] == wanted[~over]).all()
    # no single number could be one position larger
    for row, asked in zip(found[over][:20], wanted[over][:20], strict=True):
        for number in np.flatnonzero(row < asked):
            larger = row.copy()
            larger[number] += 1
            assert space.excess(larger[None], space.limits)[0] > 1.0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('unit = "count"', 'unit = "KiB"', 'numbers.lanes.unit: got "KiB"'),
        ('"engine.simd.lanes"', '"engine.simd.lane"', "did you mean engine.simd.lanes"),
        ("low = 8", "low = 64", "numbers.lanes: got low 64 and high 32"),
        (
            'low = 8\nhigh = 32\ngrid = "powers of two"',
            "values = [8.5, 16]",
            "which makes engine.simd.lanes 8.5",
        ),
        ("low = 8", "lowest = 8", "numbers.lanes.lowest: got unknown key lowest"),
        ('"powers of two"', '"powers of three"', 'numbers.lanes: got grid "powers of three"'),
        ('reason = "r"\n\n[budgets', 'reason = ""\n\n[budgets', 'numbers.lanes.reason: got ""'),
        ("limit = 530", "limit = -1", "budgets.area.limit: got -1"),
        ("limit = 530", "limit = 100", "the smallest machine takes"),
        ('unit = "mm2"', 'unit = "um2"', 'budgets.area.unit: got "um2"'),
        ("[budgets.area]", "[budgets.power]", "budgets.power: got unknown key power"),
        ('description = "d"\n', "", "description: got nothing"),
        ('machine = "edge"', 'machine = "egde"', "egde"),
        ('"engine.simd.lanes"]', '"memory.gb.capacity", "engine.simd.lanes"]', "unit"),
        ('name = "good"', "name = good", "no valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str):
    assert GOOD.count(old) >= 1
    with pytest.raises(ValueError) as error:  # noqa: PT011 - SpaceFileError or MachineFileError
        _load(tmp_path, GOOD.replace(old, new, 1))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_targets():
    space = optimize.load_space("edge-9")
    found = make_targets(space, ["edp", {"area": 2.0}], [{}, {"area": 100.0}])
    assert [t.name for t in found] == ["edp", "edp, area 100", "area^2", "area^2, area 100"]
    assert found[1].exponents == (1.0, 1.0, 0.0)
    assert found[1].limits == (100.0, 50.0, 64.0)
    weights = pareto(20)
    assert len(weights) == 20
    for one in weights:
        assert sum(one.values()) == pytest.approx(1.0)
        assert all(value > 0 for value in one.values())
    assert len({tuple(sorted(w.items())) for w in weights}) == 20
    for wrong, text in (
        ("speed", "objective: got 'speed'"),
        ({"power": 1.0}, "'power'"),
        ({"area": -1.0}, "expected numbers >= 0"),
    ):
        with pytest.raises(optimize.DesignError, match=text):
            make_targets(space, wrong, None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(optimize.DesignError, match="budgets: got 'power'"):
        make_targets(space, "edp", {"power": 1.0})


@pytest.mark.parametrize(("extent", "units"), [(12, ()), (12, (2,)), (7, (4,)), (96, (2, 2))])
def test_tables_have_every_split_once(extent: int, units: tuple[int, ...]):
    """By brute force: factors whose product covers the extent, tiles being its divisors."""
    names = (*(f"u{k}" for k in range(len(units))), "t", "c")
    over = (True,) * len(units) + (False, False)
    tables = AxisTables(names, over, "divisors")
    table = int(tables.table(np.array([extent]), np.array([units], dtype=np.float64))[0])
    start, stop = tables.span(table)
    rows = [tuple(row) for row in tables.factors(np.arange(start, stop)).tolist()]
    assert len(set(rows)) == len(rows)
    left = -(-extent // math.prod(units))
    expected = {(*units, t, c) for t in range(1, left + 1) for c in [left // t] if t * c == left}
    assert {tuple(int(x) for x in row) for row in rows} == expected
    logs = tables.logs(np.arange(start, stop))
    wanted = np.array([[0.3, 1.1]])
    nearest = int(tables.nearest(np.array([table]), wanted)[0]) - start
    distances = np.square(logs - wanted).sum(axis=1)
    assert distances[nearest] == distances.min()
    # made in the same order again, rows have the same numbers
    again = AxisTables(names, over, "divisors")
    again.remake(list(tables.keys))
    assert again.factors(np.arange(start, stop)).tolist() == [list(row) for row in rows]


@pytest.fixture(scope="module")
def joint() -> Joint:
    space = optimize.load_space("edge-9")
    suite = make_suite(
        {"a": gemm_softmax(64.0, 256.0, 64.0), "b": gemm_softmax(128.0, 512.0, 32.0)},
        space.start,
        strategies={"gemm-softmax": ["fused-gemm-distsm"]},
    )
    return Joint(space=space, suite=suite, conventions=DEFAULT, reference=np.ones((2, 2)))


def _drawn(joint: Joint, count: int) -> Points:
    rng = np.random.default_rng(3)
    return joint.random(rng, np.repeat(joint.space.limits[None], count, axis=0))


def test_scores_are_those_of_each_mapping_priced_alone(joint: Joint):
    points = _drawn(joint, 12)
    scores = joint.score(points)
    (tree,) = joint.suite.trees
    for number, item in itertools.product(range(12), range(2)):
        factors = tree.factors(points.rows[[number], item])
        mapping = tree.mapping({name: float(v[0]) for name, v in factors.items()})
        machine = joint.space.single(points.grid[number])
        cost = exact_cost(joint.suite.items[item].workload, mapping, machine, DEFAULT)
        assert scores.latency[number, item] == pytest.approx(cost.latency_cycles, rel=1e-12)
        assert scores.energy[number, item] == pytest.approx(cost.energy_pj, rel=1e-12)
        assert scores.pressure[number, item] == pytest.approx(cost.pressure, rel=1e-12)


def test_objectives_over_workloads_by_hand(joint: Joint):
    points = _drawn(joint, 4)
    scores = joint.score(points)
    scores.pressure[:] = 0.5
    joint.reference = np.array([[1e4, 2e4], [1e8, 3e8]])
    for across in ("geomean", "total", "worst"):
        aim = aim_of(make_targets(joint.space, {"latency": 1.0, "energy": 2.0}, None), across)
        got = joint.total(scores, aim.take(np.zeros(4, dtype=np.int64)))
        for row in range(4):
            ratios = [
                (scores.latency[row, i] / joint.reference[0, i])
                * (scores.energy[row, i] / joint.reference[1, i]) ** 2
                for i in range(2)
            ]
            if across == "geomean":
                expected = math.sqrt(ratios[0] * ratios[1])
            elif across == "worst":
                expected = max(ratios)
            else:
                expected = scores.latency[row].mean() * scores.energy[row].mean() ** 2
            assert math.exp(got[row]) == pytest.approx(expected, rel=1e-9)


def test_the_relaxed_model_equals_the_exact_one_at_whole_points(joint: Joint):
    """Extents and units here are powers of two, so that factors multiply to the extents."""
    points = _drawn(joint, 32)
    aim: Any = aim_of(make_targets(joint.space, "edp", None), "geomean")
    aim = aim.take(np.zeros(32, dtype=np.int64))
    scores = joint.score(points)
    joint.reference = np.ones((2, 2))
    relaxation = Relaxation(joint, joint.suite.only([0, 0]), "geomean", jax.devices()[:1])
    seeds = relaxation.start(points, aim)
    value, pressure, excess = relaxation.values(seeds)
    exact = 0.5 * (np.log(scores.latency) + np.log(scores.energy)).sum(axis=1)
    # the exact model rounds up: cycles of a transfer, fills of an array
    assert (np.asarray(value) - exact <= 1e-3).all()
    np.testing.assert_allclose(value, exact, rtol=0, atol=0.02)
    np.testing.assert_allclose(pressure, np.log(scores.pressure), rtol=0, atol=2e-3)
    assert (excess <= 1e-5).all()
