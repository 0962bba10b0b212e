"""Single moves: what they change, where they lead, and what local search makes of them."""

import numpy as np
import pytest

from jaxcomet import gemm, strategies
from jaxcomet.hardware import load
from jaxcomet.optimize.local import local_search
from jaxcomet.optimize.moves import Lines, Moves
from jaxcomet.optimize.pricing import Prices
from jaxcomet.optimize.problem import BudgetSpentError, Problem
from jaxcomet.optimize.rounding import Rounding
from jaxcomet.optimize.space import Axis
from jaxcomet.optimize.splits import covers
from jaxcomet.optimize.ways import way


def _axis(extent: int, slots: int, tiles) -> Axis:
    return Axis("M", tuple(f"f{i}" for i in range(slots)), covers(extent, slots, tiles))


@pytest.mark.parametrize(
    ("extent", "slots", "tiles"),
    [(64, 4, "divisors"), (360, 3, "divisors"), (100, 3, "padded"), (97, 3, "any"), (1, 3, "any")],
)
def test_moves_change_two_factors_at_most_and_lead_everywhere(extent: int, slots: int, tiles: str):
    axis = _axis(extent, slots, tiles)
    lines = Lines(axis)
    reached, ahead = {0}, [0]
    while ahead:
        row = ahead.pop()
        for other in lines.neighbours(row):
            changed = (axis.splits[row] != axis.splits[other]).sum()
            assert changed in ((2,) if tiles == "divisors" else (1, 2))
            if other not in reached:
                reached.add(int(other))
                ahead.append(int(other))
    assert len(reached) == len(axis.splits)


def test_moves_of_a_power_of_two_are_those_of_one_prime_factor():
    axis = _axis(16, 3, "divisors")
    lines = Lines(axis)
    for row, split in enumerate(axis.splits):
        expected = set()
        for give in range(3):
            for take in range(3):
                if give != take and split[give] > 1:
                    moved = split.copy()
                    moved[give] /= 2
                    moved[take] *= 2
                    expected.add(tuple(moved))
        assert {tuple(axis.splits[i]) for i in lines.neighbours(row)} == expected


def _problem(limit: int) -> Problem:
    op, machine = gemm(16, 16, 16), load("r2", [("memory.glb.capacity", "300 B")])
    strategy = strategies.get("gemm", "tiled")
    parts = [
        way(op, machine, strategy, {}, {"dram": order}).parts(op, machine)[0]
        for order in ("NMK", "NKM", "MKN")
    ]
    return Problem(parts, "energy", limit=limit)


@pytest.mark.slow
def test_one_chain_ends_where_no_single_move_is_better():
    problem = _problem(400)
    rng = np.random.default_rng(3)
    with pytest.raises(BudgetSpentError):
        for _ in local_search(problem, rng, chains=1):
            pass
    assert problem.evaluated == 400
    around = Moves(problem).neighbours(problem.point, rng)
    assert {tuple(p[:1]) for p in around} == {(0,), (1,), (2,)}  # to the other trees as well
    assert not (problem._scored(around)[:, 0] < problem.best[0] - 1e-9).any()


def test_the_budget_is_kept_to_the_last_evaluation():
    problem = _problem(100)
    with pytest.raises(BudgetSpentError):
        for _ in local_search(problem, np.random.default_rng(0), chains=7):
            pass
    assert (problem.evaluated, problem.left) == (100, 0)
    with pytest.raises(BudgetSpentError):
        problem.spend(1)


def test_what_does_not_fit_is_behind_all_that_does_by_its_pressure():
    problem = _problem(10_000)
    points = problem.random(np.random.default_rng(1), 2_000)
    prices = problem.price(points)
    order = np.argsort(problem.score(points)[:, 0], kind="stable")
    fits = (prices.pressure <= 1.0)[order]
    assert fits.any()
    assert not fits.all()
    assert not fits[int(fits.sum()) :].any()
    assert (np.diff(prices.energy_pj[order][fits]) >= 0).all()
    assert (np.diff(prices.pressure[order][~fits]) >= 0).all()


def test_rounding_finds_the_nearest_row_and_knows_the_corners_of_the_box():
    problem = _problem(0)
    rounding = Rounding(problem)
    rng = np.random.default_rng(0)
    logs = rng.uniform(0, 4, (50, 3))
    table = rounding.logs[0]
    nearest = [int(np.square(table - x).sum(axis=1).argmin()) for x in logs]
    np.testing.assert_array_equal(rounding.rows(0, logs), nearest)
    assert rounding.dims == 3 * 3 + 1
    corners = rounding.from_box(np.stack([np.zeros(10), np.ones(10)]))
    assert corners[:, 0].tolist() == [0, 2]


def test_what_is_priced_ahead_counts_when_it_is_scored_and_changes_nothing():
    problem, plain = _problem(100), _problem(100)
    points = problem.random(np.random.default_rng(3), 12)
    problem.foresee(points[:8])
    assert problem.evaluated == 0
    assert not len(problem.point)
    assert problem.foresees(points[7])
    assert not problem.foresees(points[8])
    calls: list[int] = []
    price = Problem.price

    def counted(self: Problem, some: np.ndarray) -> Prices:
        calls.append(len(some))
        return price(self, some)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Problem, "price", counted)
        ahead = problem.score(points[:4])
        assert calls == []
        mixed = problem.score(points[4:])
        assert calls == [4]
    assert problem.evaluated == 12
    assert not problem.foresees(points[0])
    np.testing.assert_array_equal(np.concatenate([ahead, mixed]), plain.score(points))
    assert problem.best == plain.best
    assert problem.feasible == plain.feasible
