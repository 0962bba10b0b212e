"""The descent of the relaxed model: projection, constraints, dead seeds, and that it descends."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet import gemm, strategies
from jaxcomet.hardware import load
from jaxcomet.optimize import descent
from jaxcomet.optimize.descent import Relaxed, descend
from jaxcomet.optimize.problem import BudgetSpentError, Problem
from jaxcomet.optimize.rounding import Rounding
from jaxcomet.optimize.ways import way

SEEDS = 8


@pytest.fixture(scope="module")
def problem() -> Problem:
    op, machine = gemm(64, 128, 256), load("r2", [("memory.glb.capacity", "8 KiB")])
    parts = way(op, machine, strategies.get("gemm", "tiled"), {}).parts(op, machine)
    return Problem(parts, "energy")


def _logs(rounding: Rounding, points: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(t[points[:, 1 + i]].astype(np.float32) for i, t in enumerate(rounding.logs))


def test_the_projection_is_the_nearest_split():
    # of all splits of 6 = log of the extent on a grid of 1/4, none is nearer
    point = np.array([[4.5, -1.0, 3.0]])
    found = np.asarray(descent._project(jnp.asarray(point), jnp.asarray(6.0)))[0]
    assert found.sum() == pytest.approx(6.0, rel=1e-6)
    grid = [g for g in itertools.product(np.arange(0, 6.25, 0.25), repeat=3) if sum(g) == 6.0]
    least = min(np.square(np.array(g) - point[0]).sum() for g in grid)
    assert np.square(found - point[0]).sum() <= least + 1e-6


def test_seeds_go_down_and_keep_to_the_extents_and_into_the_memory(problem: Problem):
    rounding = Rounding(problem)
    function = Relaxed(problem.parts[0], "energy", rounding)
    rng = np.random.default_rng(0)
    points = problem.random(rng, SEEDS)
    before = _logs(rounding, points)
    state = function.start(before)
    for _ in range(10):
        state, finite = function.advance(state, descent.ROUNDED)
        assert np.asarray(finite).all()
    for logs, total in zip(state.logs, rounding.totals, strict=True):
        assert (np.asarray(logs) >= 0).all()
        np.testing.assert_allclose(np.asarray(logs).sum(axis=1), total, rtol=1e-5)
    value, excess = (np.asarray(x) for x in function.values(state.logs))
    start, too_much = (np.asarray(x) for x in function.values(tuple(map(jnp.asarray, before))))
    outside = too_much > 0
    assert outside.any()  # some did not fit
    assert (excess[outside] < too_much[outside]).all()
    fitting = too_much <= 0
    assert (value[fitting] <= start[fitting] + 1e-3).all()
    assert np.median(value) < np.median(start)


def test_a_seed_that_is_no_number_any_more_is_drawn_anew(problem: Problem):
    rounding = Rounding(problem)
    function = Relaxed(problem.parts[0], "energy", rounding)
    points = problem.random(np.random.default_rng(0), SEEDS)
    logs = _logs(rounding, points)
    logs[0][2] = np.nan
    state, finite = function.advance(function.start(logs), descent.ROUNDED)
    assert np.flatnonzero(~np.asarray(finite)).tolist() == [2]
    fresh = problem.random(np.random.default_rng(1), 1)
    dead = np.flatnonzero(~np.asarray(finite))
    state = descent._revived(function, state, dead, _logs(rounding, fresh))
    state, finite = function.advance(state, descent.ROUNDED)
    assert np.asarray(finite).all()


def test_gradients_and_scores_are_both_counted_and_the_best_is_exact(problem: Problem):
    one = Problem(problem.parts, "energy", limit=400)
    kept: list[np.ndarray] = []
    with pytest.raises(BudgetSpentError):
        for _ in descend(one, np.random.default_rng(2), seeds=SEEDS, kept=kept):
            pass
    assert one.evaluated == 400
    # a round of 8 seeds: 16 drawn, 20 steps of 8, rounded 5 times: 216 evaluations
    assert len(kept) == SEEDS
    price = one.price(one.point[None])
    assert price.energy_pj[0] == one.best[0]
    assert price.pressure[0] <= 1.0
    slabs = [p.slab_best(s, "energy") for p in one.parts for s in p.slab_starts()]
    optimum = min(s.first for s in slabs)
    # 400 draws miss the best share q of a space with probability (1 - q)**400, 1 % for q = 1.14 %
    prices = [p.slab(s) for p in one.parts for s in p.slab_starts()]
    every = np.concatenate([np.where(x.pressure <= 1.0, x.energy_pj, np.inf) for x in prices])
    drawn = np.sort(every)[int(0.0114 * len(every))]
    assert optimum <= one.best[0] < drawn
