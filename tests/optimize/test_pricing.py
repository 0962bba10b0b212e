"""Slabs and points of a space, on NumPy and compiled, against `evaluate` one by one."""

import numpy as np
import pytest

from jaxcomet import attention, evaluate, gemm_softmax, strategies
from jaxcomet.hardware import load
from jaxcomet.optimize import pricing
from jaxcomet.optimize.pricing import OBJECTIVES, Part, best_of, front_of
from jaxcomet.optimize.space import Scope
from jaxcomet.optimize.ways import Way, way

EDGE = load("edge")
OP = gemm_softmax(2, 64, 4)


def _way(name: str = "fused-gemm-distsm", scope: Scope | None = None) -> Way:
    strategy = strategies.get("gemm-softmax", name)
    return way(OP, EDGE, strategy, {}, None, scope or Scope())


def _part() -> Part:
    (part,) = _way().parts(OP, EDGE)
    return part


def _all(part: Part) -> tuple[np.ndarray, ...]:
    slabs = [part.slab(start) for start in part.slab_starts()]
    return tuple(np.concatenate(column) for column in zip(*slabs, strict=True))


@pytest.mark.parametrize("target", [1, 7, 64, 1 << 15])
def test_slabs_of_every_size_hold_the_space_in_its_order(
    target: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pricing, "_HOST_SLAB", target)
    part = _part()
    latency, energy, pressure = _all(part)
    assert len(latency) == part.size
    indices = np.arange(part.size)
    points = np.stack(np.unravel_index(indices, part.sizes), axis=1)
    single = part.price(points)
    np.testing.assert_array_equal(latency, single.latency_cycles)
    np.testing.assert_array_equal(energy, single.energy_pj)
    np.testing.assert_array_equal(pressure, single.pressure)
    by_name = part.space.factors(indices)
    for name, values in part.points(points).items():
        np.testing.assert_array_equal(values, by_name[name])


def test_a_price_is_that_of_evaluate():
    one, part = _way(), _part()
    latency, energy, _ = _all(part)
    for index in (0, 17, part.size - 1):
        factors = {n: float(v[0]) for n, v in part.space.factors(np.array([index])).items()}
        cost = evaluate(OP, one.build(OP, EDGE, factors), EDGE)
        assert cost.latency_cycles == latency[index]
        assert cost.energy_pj == pytest.approx(energy[index], rel=1e-14)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_compiled_best_of_a_slab_is_that_of_numpy(
    objective: pricing.Objective, monkeypatch: pytest.MonkeyPatch
):
    expected = [_part().slab_best(0, objective)]
    monkeypatch.setattr(pricing, "COMPILED", 1)
    monkeypatch.setattr(pricing, "_SLAB", _part().size)
    part = _part()
    assert part.is_large
    found = [part.slab_best(s, objective) for s in part.slab_starts()]
    for one, other in zip(found, expected, strict=True):
        assert one.first == pytest.approx(other.first, rel=1e-14)
        assert one.second == pytest.approx(other.second, rel=1e-14)
        assert (one.index, one.feasible, one.nearest) == (
            other.index,
            other.feasible,
            other.nearest,
        )


def test_ties_are_broken_by_the_second_metric_then_by_the_order():
    prices = pricing.Prices(
        np.array([5.0, 3.0, 3.0, 3.0, 1.0]),
        np.array([1.0, 9.0, 7.0, 7.0, 1.0]),
        np.array([1.0, 1.0, 1.0, 1.0, 1.5]),  # the last one does not fit
    )
    best = best_of(prices, "latency")
    assert (best.first, best.second, best.index, best.feasible) == (3.0, 7.0, 2, 4)
    nothing = best_of(pricing.Prices(*(x[4:] for x in prices)), "latency")
    assert nothing.first == np.inf
    assert (nothing.feasible, nothing.pressure, nothing.nearest) == (0, 1.5, 0)


def test_a_front_is_what_no_other_point_beats_in_both():
    rng = np.random.default_rng(0)
    latency, energy = rng.integers(0, 30, (2, 200)).astype(float)
    front = {(latency[i], energy[i]) for i in front_of(latency, energy)}
    points = set(zip(latency, energy, strict=True))
    expected = {
        p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)
    }
    assert front == expected


def test_limits_on_units_count_over_the_whole_machine():
    # edge has 2 x 2 clusters of 2 x 2 cores
    scope = Scope(max_units=(("core", 4),))
    (part,) = _way(scope=scope).parts(OP, EDGE, scope=scope)
    pressure = _all(part)[2]
    factors = part.space.factors(np.arange(part.size))
    units = np.prod([v for n, v in factors.items() if n.endswith(("_sx", "_sy"))], axis=0)
    assert set(units) > {1.0, 4.0, 16.0}
    assert (pressure[units > 4] > 1.0).all()
    assert (pressure[units <= 4] <= 1.0).any()


def test_a_size_beyond_32_bits_is_priced():
    op = attention(1, 1, 2**20, 2**20, 128)
    strategy = strategies.get("attention", "flash")
    (part,) = way(op, load("cloud"), strategy, {}).parts(op, load("cloud"))
    prices = part.price(np.zeros((1, len(part.sizes)), dtype=int))
    # 2 products of 2**20 x 2**20 x 128 multiply-accumulates
    assert prices.energy_pj[0] > 2 * 2.0**47 * 0.01
    assert np.isfinite(prices.latency_cycles).all()
