"""`map`: proven answers against all ways priced one by one, constraints, limits, and its rivals."""

import dataclasses
import json
import signal
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from jaxcomet import attention, evaluate, gemm, gemm_softmax, optimize
from jaxcomet.cost import conventions
from jaxcomet.hardware import Machine, load
from jaxcomet.mapping import MappingError
from jaxcomet.optimize import ConstraintError, MapResult, SearchError, enumeration, search
from jaxcomet.optimize.enumeration import enumerate_way
from jaxcomet.optimize.pricing import OBJECTIVES, Objective
from jaxcomet.optimize.space import spaces
from jaxcomet.optimize.ways import candidates, ways
from jaxcomet.workload import CompoundOp

EDGE = load("edge")
SMALL = gemm_softmax(4, 64, 8)
STEADY = conventions("roofline", row_partials="free", in_place="elementwise")


def _median(op: CompoundOp, machine: Machine) -> float:
    """Median latency of all mappings of all ways, those that do not fit being behind all."""
    found = []
    for one in ways(op, machine, candidates(op.name, search.OPTIONS)):
        (part,) = one.parts(op, machine)
        for start in part.slab_starts():
            prices = part.slab(start)
            found.append(np.where(prices.pressure <= 1.0, prices.latency_cycles, np.inf))
    return float(np.median(np.concatenate(found)))


def _exact(result: MapResult) -> tuple[float, float]:
    cost = evaluate(result.workload, result.mapping, result.machine, conventions=result.conventions)
    return float(cost.latency_cycles), float(cost.energy_pj)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "objective", ["latency", *(pytest.param(o, marks=pytest.mark.slow) for o in OBJECTIVES[1:])]
)
def test_the_proven_answer_is_the_best_of_all_ways(objective: Objective):
    result = optimize.map(SMALL, EDGE, objective=objective)
    assert result.proven
    assert (result.stopped, result.method) == ("complete", "enumerate")
    tried = candidates("gemm-softmax", search.OPTIONS)
    keys = [
        enumerate_way(SMALL, EDGE, one, objective=objective).key for one in ways(SMALL, EDGE, tried)
    ]
    assert result.value == min(keys)[0]
    latency, energy = _exact(result)
    assert {"latency": latency, "energy": energy, "edp": latency * energy}[objective] == (
        pytest.approx(result.value, rel=1e-14)
    )
    assert result.gap >= 0
    assert result.history[-1][1] == result.value
    assert [v for _, v in result.history] == sorted((v for _, v in result.history), reverse=True)


def test_a_way_is_skipped_only_if_its_bound_is_above_the_answer():
    result = optimize.map(gemm_softmax(1, 1024, 128), EDGE)
    skipped = [w for w in result.ways if w.skipped]
    assert skipped
    assert all(w.bound > result.value and w.evaluated == 0 for w in skipped)
    priced = [w for w in result.ways if not w.skipped]
    assert all(w.value is None or w.value >= w.bound for w in priced)
    assert result.evaluated == sum(w.evaluated for w in priced)
    assert result.size == sum(w.size for w in result.ways)


def test_the_product_of_two_sums_is_proven_over_all_pairs():
    # the GEMM and the softmax of fused-distsm share no factor; the best product is neither part's
    op = gemm_softmax(2, 16, 4)
    result = optimize.map(op, EDGE, objective="edp", strategies="fused-distsm")
    (one,) = ways(op, EDGE, candidates("gemm-softmax", search.OPTIONS, ["fused-distsm"]))
    prices = []
    for part in one.parts(op, EDGE):
        points = np.stack(np.unravel_index(np.arange(part.size), part.sizes), axis=1)
        price = part.price(points)
        fits = price.pressure <= 1
        prices.append((price.latency_cycles[fits], price.energy_pj[fits]))
    (l1, e1), (l2, e2) = prices
    products = (l1[:, None] + l2) * (e1[:, None] + e2)
    assert result.value == pytest.approx(products.min(), rel=1e-13)
    assert result.proven


@pytest.mark.slow
def test_fixed_factors_limits_and_forbidden_strategies_are_obeyed():
    free = optimize.map(SMALL, EDGE)
    result = optimize.map(
        SMALL,
        EDGE,
        fixed={"M_comp": 2},
        max_units={"core": 4, "gb": 2},
        without=(free.strategy,),
    )
    assert result.strategy != free.strategy
    assert result.mapping.factors["M_comp"] == 2
    used = {s.level: float(s.used_x) * float(s.used_y) for s in result.cost.spatial}  # pyright: ignore[reportArgumentType]
    assert used["gb"] <= 2
    assert used["gb"] * used["core"] <= 4
    assert result.value > free.value
    assert result.proven


@pytest.mark.slow
def test_free_numbers_of_units_are_never_worse_and_sometimes_better():
    op = gemm_softmax(1, 64, 16)
    all_of_them, free = (optimize.map(op, EDGE, units=u) for u in ("all", "free"))
    assert free.value < all_of_them.value  # so short a row is not worth 16 cores
    assert free.size > all_of_them.size


def test_nothing_fits_says_which_memory_lacks_how_much():
    result = optimize.map(
        gemm_softmax(1, 16, 65536),
        EDGE,
        options={"weights": "resident"},
        strategies=("fused-gemm-distsm",),
    )
    assert not result.feasible
    assert result.history == ()
    assert any(r.startswith("ib: needs 65,536 bytes, has 32,768") for r in result.reasons())
    assert result.ways[0].value is None


def test_a_limit_that_nothing_meets_is_among_the_reasons():
    # 4 x 4 steps over columns are fixed to units, so no fewer than 16 cores can do
    fixed = {"N_dram_sx": 2, "N_dram_sy": 2, "N_gb_sx": 2, "N_gb_sy": 2}
    result = optimize.map(SMALL, EDGE, fixed=fixed, max_units={"core": 8})
    assert not result.feasible
    assert "max_units core: uses 16 units, allowed 8" in result.reasons()


@pytest.mark.parametrize("method", ["local", "random", "cma"])
def test_a_search_that_does_not_enumerate_keeps_to_its_budget(method: search.Method):
    op, machine = gemm(16, 16, 16), load("r2", [("memory.glb.capacity", "1 KiB")])
    result = optimize.map(op, machine, method=method, budget=80, key=5)
    assert (result.method, result.stopped, result.proven) == (method, "budget", False)
    assert 60 <= result.evaluated <= 80
    assert result.feasible
    latency, energy = _exact(result)
    assert latency == result.value
    assert energy == result.cost.energy_pj
    best = optimize.map(op, machine)
    assert best.value <= result.value <= _median(op, machine)  # of 80 draws none misses the half
    again = optimize.map(op, machine, method=method, budget=80, key=5)
    assert again.mapping == result.mapping
    assert again.history == result.history
    assert again.evaluated == result.evaluated


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradients_with_local_moves_reach_the_proven_answer(objective: Objective):
    op = gemm_softmax(256, 256, 128)
    best = optimize.map(op, EDGE, objective=objective)
    found = optimize.map(op, EDGE, objective=objective, method="gradient", budget=1_500)
    assert found.evaluated <= 1_500
    assert found.value == best.value
    if objective == "latency":
        again = optimize.map(op, EDGE, objective=objective, method="gradient", budget=1_500)
        assert (again.mapping, again.history) == (found.mapping, found.history)


def test_a_space_too_large_to_enumerate_goes_to_gradients(monkeypatch: pytest.MonkeyPatch):
    taken: list[str] = []

    def race(task: Any, name: str, *rest: Any) -> Any:
        taken.append(name)
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "race", race)
    monkeypatch.setattr(search, "ENUMERATED", 100)
    monkeypatch.setattr(search, "BRANCHED", 1_000)
    with pytest.raises(KeyboardInterrupt):
        optimize.map(SMALL, EDGE)
    with pytest.raises(KeyboardInterrupt):
        optimize.map(gemm(16, 16, 16), load("r2"), budget=1)
    assert taken == ["gradient", "gradient"]


def test_the_time_limit_and_ctrl_c_keep_the_best_so_far():
    def interrupt(done: int, most: int) -> None:
        if not sent:
            sent.append(done)
            signal.raise_signal(signal.SIGINT)

    sent: list[int] = []
    op = gemm_softmax(256, 256, 128)
    short = optimize.map(op, EDGE, time_limit_s=1e-6)
    assert (short.stopped, short.proven) == ("time", False)
    assert short.evaluated < short.size
    assert _exact(short)[0] == short.cost.latency_cycles
    stopped = optimize.map(SMALL, EDGE, method="local", budget=500, progress=interrupt)
    assert (stopped.stopped, stopped.proven) == ("interrupted", False)
    assert stopped.evaluated < 500
    assert _exact(stopped)[0] == stopped.value


def test_a_second_ctrl_c_interrupts_at_once_and_the_first_one_works_again_afterwards():
    def interrupt(done: int, most: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        optimize.map(SMALL, EDGE, method="local", budget=500, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert optimize.map(SMALL, EDGE, method="local", budget=100).stopped == "budget"


def test_parts_that_ways_share_are_searched_once(monkeypatch: pytest.MonkeyPatch):
    # the softmax of fused-distsm has nothing to do with the order of the loops over K
    op, machine = gemm_softmax(8, 16, 8), load("r2v")
    searched: list[Any] = []
    search_part = enumeration._search

    def counted(part: Any, *rest: Any) -> Any:
        searched.append(part)
        return search_part(part, *rest)

    monkeypatch.setattr(enumeration, "_search", counted)
    asked = {"strategies": ("fused-distsm",), "loop_orders": "all", "objective": "edp"}
    once = optimize.map(op, machine, **asked)
    calls = len(searched)
    monkeypatch.setattr(
        enumeration.Shared,
        "search",
        lambda self, part, objective, front, progress, stop, most: counted(
            part, objective, front, progress, stop, (np.inf, np.inf), most
        ),
    )
    searched.clear()
    again = optimize.map(op, machine, **asked)
    assert calls < len(searched)
    assert (again.mapping, again.ways, again.evaluated) == (once.mapping, once.ways, once.evaluated)


def test_progress_adds_up():
    seen: list[tuple[int, int]] = []
    result = optimize.map(SMALL, EDGE, progress=lambda done, most: seen.append((done, most)))
    assert seen[-1] == (result.size, result.size)
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


@pytest.mark.parametrize("objective", ["latency", "energy"])
@pytest.mark.parametrize("name", ["r2", pytest.param("r2v", marks=pytest.mark.slow)])
def test_more_memory_never_gives_a_worse_best_and_none_is_below_its_bound(
    name: str, objective: Objective
):
    # the same energy per access at all sizes
    op = gemm(32, 32, 32) if name == "r2" else gemm_softmax(16, 16, 16, vector_bits=8)
    values = []
    for capacity in ("64 B", "256 B", "700 B", "1 KiB", "4 KiB"):
        machine = load(name, [("memory.glb.capacity", capacity)])
        result = optimize.map(op, machine, objective=objective, tiles="divisors")
        assert result.proven
        values.append(result.value if result.feasible else np.inf)
        if result.feasible:
            assert result.value >= result.bound.of(objective)
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]


@pytest.mark.parametrize(
    ("arguments", "error", "part"),
    [
        ({"budget": 0}, SearchError, "budget: got 0; expected a whole number >= 1"),
        ({"time_limit_s": -1.0}, SearchError, "time_limit_s: got -1.0"),
        ({"fixed": {"M_comp": 0}}, SearchError, "fixed M_comp: got 0; expected a whole number"),
        ({"max_units": {"dram": 2}}, SearchError, "max_units dram: edge has no such level"),
        ({"strategies": ("flash",)}, MappingError, "strategy: got 'flash'"),
        ({"without": ("flash",)}, MappingError, "strategy: got 'flash'"),
        ({"options": {"weights": "x"}}, MappingError, "weights: got 'x'"),
        ({"fixed": {"Q_comp": 2}}, SearchError, "fixed Q_comp: no such factor"),
        ({"fixed": {"M_comp": 5}}, SearchError, "leaves no split of M = 4"),
        ({"loop_orders": {"core": "QN"}}, SearchError, "loop order of core: got dimension 'Q'"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], error: type[Exception], part: str):
    with pytest.raises(error) as caught:
        optimize.map(SMALL, EDGE, **arguments)
    assert part in str(caught.value)


def test_unknown_words_are_refused_also_where_annotations_are_not_checked():
    for words, part in (
        (("time", "auto"), "objective: got 'time'; expected one of latency, energy, edp"),
        (("edp", "magic"), "method: got 'magic'; expected one of auto"),
    ):
        with pytest.raises(SearchError, match=part):
            search._check(*words, 1, None, None)
    with pytest.raises(SearchError, match="key: got -3; expected a seed >= 0"):
        search._words(-3)
    with pytest.raises(SearchError, match="tiles: got 'odd'; expected one of padded"):
        search._scope("odd", "all", {}, {}, EDGE)
    with pytest.raises(SearchError, match="units: got 'few'; expected one of all, free"):
        search._scope("any", "few", {}, {}, EDGE)


def test_leaving_out_every_strategy_is_refused():
    with pytest.raises(SearchError, match="tiled left out, none is left"):
        optimize.map(gemm(4, 4, 4), load("r2"), without=("tiled",))


def test_a_fixed_factor_that_no_tree_has_is_refused_where_spaces_are_made():
    op = gemm(4, 4, 4)
    plan = ways(op, load("r2"), candidates("gemm", {}))[0].plan
    assert plan is not None
    with pytest.raises(ConstraintError, match="fixed Z: no such factor"):
        spaces(op, load("r2"), plan.tree, optimize.Scope(fixed=(("Z", 1),)))


def test_a_key_of_jax_and_its_seed_give_different_draws_but_each_the_same_again():
    machine = load("r2")

    def found(key: Any) -> Any:
        result = optimize.map(gemm(32, 32, 32), machine, method="random", budget=6, key=key)
        return result.history

    assert found(jax.random.key(7)) == found(jax.random.key(7))
    assert found(jax.random.key(7)) == found(jax.random.PRNGKey(7))
    assert found(7) != found(8)


_SCRIPT = """
import sys, json
from jaxcomet import kernels
kernels.emulate(int(sys.argv[1]))
from jaxcomet import gemm, optimize, hardware
machine = hardware.load("r2", [("memory.glb.capacity", "4 KiB")])
found = [
    optimize.map(gemm(64, 64, 64), machine, objective="energy", method=m, budget=300, key=1)
    for m in ("enumerate", "gradient", "local", "cma")
]
print(json.dumps([[f.mapping.factors, f.history, f.evaluated] for f in found]))
"""


@pytest.mark.slow
def test_the_same_answer_on_1_2_4_and_8_devices():
    answers = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", _SCRIPT, str(devices)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for devices in (1, 2, 4, 8)
    ]
    assert answers.count(answers[0]) == 4


def test_the_work_of_a_search_does_not_grow_with_those_before_it(monkeypatch: pytest.MonkeyPatch):
    # evaluations of each of several workloads, one after the other: the same as alone
    ops = [gemm(16, 16, 16), gemm(32, 16, 16), gemm(16, 16, 16)]
    counts = [optimize.map(op, load("r2")).evaluated for op in ops]
    assert counts[0] == counts[2]
    assert counts == [optimize.map(op, load("r2")).evaluated for op in ops]


@pytest.mark.slow
def test_attention_is_mapped_whole():
    result = optimize.map(attention(1, 2, 16, 16, 8), EDGE)
    assert result.proven
    assert {w.strategy for w in result.ways} == {"unfused", "partial", "row-fused", "flash", "ring"}
    assert dataclasses.asdict(result.scope)["tiles"] == "padded"


def test_a_product_on_the_reference_machine_takes_the_least_traffic_by_hand():
    # GEMM 512 with 128 KiB: C in quarters of 256 x 256 (64 KiB) stays while A and B stream, so A
    # and B cross twice and C once: 2 (2 x 512 x 512) + 512 x 512 = 1,310,720 B
    machine = load("r2", [("memory.glb.capacity", "128 KiB")])
    op, one_order = gemm(512, 512, 512), {"order": "NMK"}
    result = optimize.map(op, machine, objective="energy", conventions=STEADY, options=one_order)
    crossed = sum(
        float(t.parent_bytes)  # pyright: ignore[reportArgumentType]
        for t in result.cost.traffic
        if t.parent == "dram"
    )
    assert crossed == 1_310_720
