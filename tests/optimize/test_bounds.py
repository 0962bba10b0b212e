"""Bounds by hand, below every mapping of every space, and how near the best mapping comes."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxcomet import attention, gemm, gemm_layernorm, gemm_softmax, strategies
from jaxcomet.cost import PRESETS, Conventions, Totals, conventions, evaluate, evaluate_totals
from jaxcomet.cost.conventions import RULES, allowed
from jaxcomet.hardware import Machine, MatrixEngine, VectorEngine, load
from jaxcomet.mapping import Mapping, MappingError, Node, Spatial, loops_of, walk
from jaxcomet.optimize.bounds import Bound, plan_bound, workload_bound
from jaxcomet.optimize.space import spaces
from jaxcomet.rewrite import rewritten
from jaxcomet.strategies import Plan
from jaxcomet.workload import CompoundOp
from tests.optimize.test_space import PUBLISHED
from tests.reference.drawing import small_machine

MACHINES = Path(__file__).parents[1] / "hardware" / "machines"
EXACT = 1e-11  # relative: a bound is lowered by 1e-12
BATCH = 1 << 16  # mappings priced at once, without compiling
METRICS = ("latency", "energy", "edp")


def _limit(bound: Bound, name: str) -> float:
    (found,) = [x.value for x in bound.limits if x.name == name]
    return found


def _planned(
    workload: CompoundOp, machine: Machine, strategy: str, options: dict[str, str] | None = None
) -> tuple[Plan, CompoundOp]:
    chosen = strategies.get(workload.name, strategy)
    plan = chosen.planned(workload, machine, **(options or {}))
    return plan, rewritten(workload, plan.rewrites)


def _over_units(tree: Node) -> set[str]:
    spread = [n for n, _ in walk(tree) if isinstance(n, Spatial)]
    return {f for n in spread for x in loops_of(n) for f in x.factors}


def _sampled(
    form: CompoundOp, machine: Machine, plan: Plan, count: int, rng: np.random.Generator
) -> Mapping:
    """Mappings of the strategy's space: all if they are few, else a random choice."""
    factors: dict[str, object] = {}
    for space in spaces(form, machine, plan.tree):
        every = np.arange(count) % space.size
        index = rng.integers(0, space.size, count) if space.size > count else every
        factors |= space.factors(index)
    return Mapping.from_factors(
        form,
        strategy="sampled",
        tree=plan.tree,
        homes=plan.homes,
        factors=factors,
        rewrites=plan.rewrites,
    )


def _spatial(mapping: Mapping) -> dict[str, int]:
    """The factors over units, the same in all mappings of a space."""
    found = {f: np.unique(np.asarray(mapping.factors[f])) for f in _over_units(mapping.tree)}
    assert all(len(values) == 1 for values in found.values())
    return {f: int(values[0]) for f, values in found.items()}


def _fitting(totals: Totals) -> tuple[np.ndarray, np.ndarray]:
    """Latency and energy of the mappings that can run."""
    fits = np.asarray(totals.pressure) <= 1.0
    return totals.latency_cycles[fits], totals.energy_pj[fits]


def _check(
    workload: CompoundOp,
    machine: Machine,
    strategy: str,
    rules: Conventions,
    *,
    count: int,
    rng: np.random.Generator,
    options: dict[str, str] | None = None,
) -> int:
    """Asserts that no mapping is below a bound, nor a tighter bound below a looser one.

    Returns how many could run.
    """
    plan, form = _planned(workload, machine, strategy, options)
    mapping = _sampled(form, machine, plan, count, rng)
    latency, energy = _fitting(evaluate_totals(workload, mapping, machine, conventions=rules))
    if not len(latency):
        return 0
    given = (form, machine, plan.tree, plan.homes)
    bounds = [
        workload_bound(workload, machine, conventions=rules),
        plan_bound(*given, conventions=rules),
        plan_bound(*given, spatial=_spatial(mapping), conventions=rules),
    ]
    least = {"latency": latency.min(), "energy": energy.min(), "edp": (latency * energy).min()}
    shown = f"{strategy} {options} {dict(workload.sizes)} {machine.name} {rules.preset}"
    for metric in METRICS:
        values = [*(b.of(metric) for b in bounds), float(least[metric])]
        assert values == sorted(values), f"{metric} {values}: {shown}"
    return len(latency)


# -- by hand ---------------------------------------------------------------------------------------

S, ARRAY = 512, 32
GEMM = gemm(S, S, S)
DRAM, GLB, MAC = 64.0, 2.0, 0.5  # pJ of r2: a byte, a byte, a multiply-accumulate


def test_a_gemm_on_r2():
    bound = workload_bound(GEMM, load("r2"))
    assert bound.latency_cycles == pytest.approx(S**3 / ARRAY**2, rel=EXACT)
    assert S**3 / ARRAY**2 == 131_072
    assert bound.limiting("latency").name == "matrix compute"
    assert bound.limiting("latency").reason == "134,217,728 points of gemm at 1,024 a cycle"
    # 786,432 bytes at 64 byte/cycle
    traffic = _limit(bound, "compulsory traffic of dram")
    assert traffic == pytest.approx(3 * S * S / 64, rel=EXACT)
    # an array without registers reads a weight for each multiply-accumulate; a row is read for each
    # fold of 32 columns, a result leaves for each fold of 32 products
    glb = 3 * S * S + S**3 / ARRAY + S**3 + S**3 / ARRAY
    assert _limit(bound, "energy of dram") == pytest.approx(DRAM * 3 * S * S, rel=EXACT)
    assert _limit(bound, "energy of glb") == pytest.approx(GLB * glb, rel=EXACT)
    assert _limit(bound, "energy of gemm") == pytest.approx(MAC * S**3, rel=EXACT)
    energy = DRAM * 3 * S * S + GLB * glb + MAC * S**3
    assert bound.energy_pj == pytest.approx(energy, rel=EXACT)
    assert bound.limiting("energy").name == "energy of glb"


def test_a_gemm_on_r2_reaches_its_bound_where_the_result_stays():
    # 512 x 512 results and a row and a column of the operands fit: all bytes move once
    machine = load("r2", [("memory.glb.capacity", "263168")])
    rules = conventions("roofline")
    plan, form = _planned(GEMM, machine, "tiled")
    bound = plan_bound(form, machine, plan.tree, plan.homes, spatial={}, conventions=rules)
    # of the 16 results of a fold, all but the first come back for the next one
    read_back = GLB * (S**3 / ARRAY - S * S)
    anywhere = workload_bound(GEMM, machine, conventions=rules)
    assert bound.energy_pj == pytest.approx(anywhere.energy_pj + read_back, rel=EXACT)
    (space,) = spaces(form, machine, plan.tree)
    found = []
    for start in range(0, space.size, BATCH):
        factors = space.factors(np.arange(start, min(start + BATCH, space.size)))
        mapping = Mapping(strategy="all", tree=plan.tree, homes=(), factors=factors)
        found.append(_fitting(evaluate_totals(form, mapping, machine, conventions=rules)))
    latency, energy = (np.concatenate(x) for x in zip(*found, strict=True))
    assert latency.min() == pytest.approx(bound.latency_cycles, rel=EXACT)
    assert energy.min() == pytest.approx(bound.energy_pj, rel=EXACT)
    assert (latency * energy).min() == pytest.approx(bound.edp, rel=EXACT)


def test_a_gemm_softmax_on_edge():
    M, N, K = 256, 512, 128
    bound = workload_bound(gemm_softmax(M, N, K), load("edge"))
    # 25 byte/cycle; A, B and the result have one byte an element
    traffic = (M * K + K * N + M * N) / 25
    assert _limit(bound, "compulsory traffic of dram") == pytest.approx(traffic, rel=EXACT)
    # 16 cores of 16 lanes: 4 cycles for each of the two reductions (a tree), 1, 3, 1 for the others
    vector = M * N * 13 / 256
    assert _limit(bound, "vector compute") == pytest.approx(vector, rel=EXACT)
    # a core has a 16th of the rows at least, and one fold of 32 x 32 arrays: load, rows, skew
    matrix = 32 + M / 16 + 32 + 32 - 2
    assert _limit(bound, "matrix compute") == pytest.approx(matrix, rel=EXACT)
    assert bound.latency_cycles == pytest.approx(max(traffic, vector, matrix), rel=EXACT)
    assert bound.limiting("latency").name == "compulsory traffic of dram"
    dram = 100 * (M * K + K * N + M * N)
    assert _limit(bound, "energy of dram") == pytest.approx(dram, rel=EXACT)
    macs = 0.2296 * M * N * K
    assert _limit(bound, "energy of gemm") == pytest.approx(macs, rel=EXACT)
    each = 4 * 0.0025 + 0.11 + 3.86 + 4 * 0.11 + 0.8  # max, sub, exp, sum, div
    assert _limit(bound, "energy of simd") == pytest.approx(each * M * N, rel=EXACT)
    assert bound.edp == bound.latency_cycles * bound.energy_pj == bound.of("edp")


def test_unfused_parts_add_up():
    M = N = 1024
    K = 256
    machine = load("edge")
    plan, form = _planned(gemm_softmax(M, N, K), machine, "unfused")
    bound = plan_bound(form, machine, plan.tree, plan.homes)
    # C has one byte, D to G two: what each operation reads and writes
    matrix, row = M * N, 2 * M
    parts = {
        "gemm": M * K + K * N + matrix,
        "rowmax": matrix + row,
        "sub": matrix + row + 2 * matrix,
        "exp": 4 * matrix,
        "rowsum": 2 * matrix + row,
        "div": 2 * matrix + row + matrix,
    }
    assert bound.latency_cycles == pytest.approx(sum(parts.values()) / 25, rel=EXACT)
    words = next(x.reason for x in bound.limits if x.name == "one after the other")
    assert words.split("; ") == [f"{name}: {v / 25:,.6g}" for name, v in parts.items()]
    assert _limit(bound, "energy of dram") == pytest.approx(100 * sum(parts.values()), rel=EXACT)


def test_a_single_row_waits_for_all_of_its_bytes():
    # nothing is looped over outside the clusters: fills, computing, exchanges and drain add up
    N, K = 1024, 128
    machine = load("edge")
    plan, form = _planned(gemm_softmax(1, N, K), machine, "fused-gemm-distsm")
    mapping = _sampled(form, machine, plan, 56, np.random.default_rng(0))
    spatial = _spatial(mapping)
    assert set(spatial.values()) == {2}
    bound = plan_bound(form, machine, plan.tree, plan.homes, spatial=spatial)
    dram = -(-K // 25) - (-K * N // 25) - (-N // 25)
    call = 2 * 32 + 32 + 1 - 2
    lanes = N // 16 // 16 * 13 + 5 * (6 - 1)  # each operation fills the pipeline of 6 stages
    exchanges = 4 * 30  # a row's maximum and sum, between 2 x 2 cores, then 2 x 2 clusters
    assert bound.latency_cycles >= dram + call + lanes + exchanges
    latency, energy = _fitting(evaluate_totals(form, mapping, machine))
    assert bound.latency_cycles <= latency.min() < 1.01 * bound.latency_cycles
    assert bound.energy_pj <= energy.min() < 1.001 * bound.energy_pj


@pytest.mark.parametrize("offset", [0, 48])
def test_causal_attention(offset: int):
    # queries see 1 + offset to Q + offset keys; r2v does 1,024 multiply-accumulates a cycle
    heads, Q, D = 3, 64, 32
    op, machine = attention(1, heads, Q, Q + offset, D, causal=True), load("r2v")
    pairs = heads * sum(range(offset + 1, offset + Q + 1))
    bound = workload_bound(op, machine)
    assert _limit(bound, "matrix compute") == pytest.approx(pairs * 2 * D / 1024, rel=EXACT)
    # blocks that are skipped: of two blocks, the last with a single key, one is half of the work
    blocks = heads * Q * (Q + offset) * (Q + 1) / (2 * Q)
    assert _limit(bound, "energy of gemm") == pytest.approx(MAC * blocks * 2 * D, rel=EXACT)
    factors = {"H_dram_t": heads, "M_dram_t": Q, "N_dram_t": 2, "N_comp": Q + offset - 1}
    factors |= {"K_comp": D, "L_comp": D}
    free = load("r2v", [("memory.glb.capacity", "1 GiB")])
    cost = evaluate(op, strategies.build(op, free, "flash", factors), free)
    assert cost.feasible
    work = {e.operation: float(e.work) for e in cost.engine_energy}
    assert work["scores"] == pytest.approx(blocks * D, rel=1e-12)
    assert work["scores"] <= pairs * D * (1 + 1e-12)


# -- below every mapping ---------------------------------------------------------------------------


def _varied(rng: np.random.Generator) -> Machine:
    """A small random machine with engines of any kind; a third of them without limits of room."""
    machine = small_machine(rng, "small")
    engines: dict[str, MatrixEngine | VectorEngine] = {}
    for name, engine in machine.engines.items():
        if isinstance(engine, MatrixEngine):
            array, kept = ("systolic", "broadcast")[rng.integers(2)], bool(rng.integers(2))
            engines[name] = dataclasses.replace(engine, array=array, weight_registers=kept)
        else:
            rows = ("tree", "lanes")[rng.integers(2)]
            engines[name] = dataclasses.replace(engine, row_reduction=rows)
    memories, free = dict(machine.memories), rng.random() < 1 / 3
    for name, memory in machine.memories.items() if free else ():
        memories[name] = dataclasses.replace(memory, capacity_bytes=None)
    return dataclasses.replace(machine, engines=engines, memories=memories)


@pytest.mark.parametrize(
    ("workload", "strategy", "machine", "preset"),
    [
        (gemm(60, 96, 17), "tiled", "edge", "default"),
        (gemm(60, 96, 17), "tiled", "r2", "comet-program"),
        (gemm_softmax(33, 64, 20), "fused-gemm-distsm", "r2v", "roofline"),
        (gemm_softmax(33, 64, 20), "fused-gemm-sm", "edge", "comet-program"),
        (attention(1, 2, 9, 14, 8, causal=True), "flash", "r2v", "default"),
    ],
)
def test_no_mapping_is_below(workload: CompoundOp, strategy: str, machine: str, preset: str):
    rng = np.random.default_rng(1)
    rules = conventions(preset)
    assert _check(workload, load(machine), strategy, rules, count=2000, rng=rng) > 0


def _workloads(rng: np.random.Generator) -> dict[str, CompoundOp]:
    """One of each, of random size, half of them with options."""

    def size() -> int:
        return int(rng.choice([1, 2, 3, 7, 8, 12, 17, 32, 48, 64, 100, 128, 256]))

    M, N, K = size(), size(), size()
    chance, groups, queries = (
        bool(rng.integers(2)),
        int(rng.integers(1, 4)),
        int(rng.integers(1, 40)),
    )
    softmax = gemm_softmax(M, N, K, fused_exp=chance)
    norm = gemm_layernorm(M, N, K, norm="rms" if chance else "layer", affine=bool(rng.integers(2)))
    keys = queries + int(rng.choice([0, 1, 30]))
    heads = attention(1, 2 * groups, queries, keys, 8, kv_heads=groups, value_dim=12, causal=chance)
    return {w.name: w for w in (gemm(M, N, K), softmax, norm, heads)}


def _walk_all(rng: np.random.Generator, rules: Callable[[], Conventions], turns: int) -> int:
    """Every strategy with random options, on machines of all kinds; how many mappings could run."""
    fixed = [load(x) for x in ("edge", "cloud", "r2v")]
    fixed += [load(MACHINES / f"{x}.toml") for x in ("two_level", "four_level", "several_memories")]
    priced = 0
    for _ in range(turns):
        for name, workload in _workloads(rng).items():
            for strategy in strategies.available(name):
                options = {n: str(rng.choice(v)) for n, v in strategy.options.items()}
                machine = _varied(rng) if rng.integers(2) else fixed[rng.integers(len(fixed))]
                try:
                    priced += _check(
                        workload,
                        machine,
                        strategy.name,
                        rules(),
                        count=300,
                        rng=rng,
                        options=options,
                    )
                except MappingError:
                    continue  # an algorithm that the collective, or links that the machine, lacks
    return priced


def test_no_mapping_of_any_strategy_is_below():
    presets = itertools.cycle(PRESETS)
    found = _walk_all(np.random.default_rng(2), lambda: conventions(next(presets)), 1)
    assert found > 2_000


@pytest.mark.slow  # as above, longer
def test_no_mapping_is_below_under_any_single_option():
    rng = np.random.default_rng(3)

    def single() -> Conventions:
        option = str(rng.choice(list(RULES)))
        preset = str(rng.choice(list(PRESETS)))
        return conventions(preset, **{option: str(rng.choice(allowed(option)))})

    assert _walk_all(rng, single, 16) > 40_000


# -- how near --------------------------------------------------------------------------------------

NEAR = {
    # best latency of `fused-gemm-distsm` / its bound. A single row: all moves wait for each other,
    # and so do they in the bound. More rows: in steps of a few rows each exchange and each fill
    # waits for its hops, in one step nothing overlaps; the bound has neither. Where DRAM limits
    # (2048 x 2048), this hides behind its traffic.
    ("edge", (256, 256, 128)): 1.71,
    ("edge", (1024, 1024, 256)): 1.27,
    ("edge", (1, 1024, 128)): 1.01,
    ("edge", (1, 512, 256)): 1.01,
    ("edge", (1, 2048, 256)): 1.01,
    ("edge", (512, 256, 128)): 1.69,
    ("cloud", (256, 256, 512)): 2.04,
    ("cloud", (2048, 2048, 256)): 1.02,
    ("cloud", (1, 4096, 512)): 1.01,
    ("cloud", (1, 8192, 128)): 1.01,
    ("cloud", (1, 16384, 128)): 1.01,
    ("cloud", (1024, 1024, 512)): 1.39,
}


@cache
def _nearness(name: str, shape: tuple[int, int, int], strategy: str) -> tuple[float, float]:
    """Best latency and energy of a strategy over their bounds."""
    machine = load(name)
    plan, form = _planned(gemm_softmax(*shape), machine, strategy)
    best, spatial = np.zeros(2), dict[str, int]()
    for space in spaces(form, machine, plan.tree):
        mapping = Mapping(
            strategy=strategy,
            tree=space.tree,
            homes=tuple(sorted(plan.homes.items())),
            factors=space.factors(np.arange(space.size)),
        )
        best += [x.min() for x in _fitting(evaluate_totals(form, mapping, machine))]
        spatial |= _spatial(mapping)
    bound = plan_bound(form, machine, plan.tree, plan.homes, spatial=spatial)
    return float(best[0] / bound.latency_cycles), float(best[1] / bound.energy_pj)


@pytest.mark.parametrize(("machine", "shape"), [key for key, near in NEAR.items() if near < 1.1])
def test_the_best_mapping_is_near_the_bound(machine: str, shape: tuple[int, int, int]):
    latency, energy = _nearness(machine, shape, "fused-gemm-distsm")
    assert 1.0 <= latency < NEAR[machine, shape]
    assert 1.0 <= energy < 1.0001


@pytest.mark.slow
def test_the_best_mappings_of_the_published_shapes_are_near_their_bounds():
    assert list(NEAR) == [(machine, shape) for machine, shape, _ in PUBLISHED]
    for (machine, shape), near in NEAR.items():
        latency, energy = _nearness(machine, shape, "fused-gemm-distsm")
        assert near - 0.021 < latency < near, (machine, shape)
        # everything moves, is computed and exchanged once, and the best mapping does just that
        assert 1.0 <= energy < 1.0001, (machine, shape)
        # one core's vector unit does all rows: the more it limits, the nearer
        latency, energy = _nearness(machine, shape, "fused-gemm-sm")
        assert 1.0 <= latency < 1.1, (machine, shape)
        assert 1.0 <= energy < 1.001, (machine, shape)


# -- what it depends on ----------------------------------------------------------------------------


def _changed(machine: Machine, **factors: float) -> Machine:
    """Numbers whose names end so, times a factor."""

    def change(path: Any, leaf: float) -> float:
        name = jax.tree_util.keystr(path)
        return leaf * math.prod(f for end, f in factors.items() if name.endswith(end))

    return jax.tree_util.tree_map_with_path(change, machine)


@pytest.mark.parametrize("name", ["edge", "r2v"])
def test_more_memory_changes_nothing_and_more_bandwidth_never_adds(name: str):
    machine, op = load(name), gemm_softmax(64, 128, 32)
    plan, form = _planned(op, machine, "fused-gemm-distsm")
    given = (form, machine, plan.tree, plan.homes)
    larger = _changed(machine, capacity_bytes=2.0)
    assert workload_bound(op, larger) == workload_bound(op, machine)
    assert plan_bound(form, larger, *given[2:]) == plan_bound(*given)
    faster = _changed(machine, bandwidth_bytes_per_cycle=2.0, channel_width_bits=2.0)
    assert plan_bound(form, faster, *given[2:]).latency_cycles < plan_bound(*given).latency_cycles


def test_twice_all_rates_halve_the_latency():
    # on a machine without hops, pipeline or skew nothing else takes time
    machine, op = load("r2v"), gemm_softmax(256, 512, 64)
    rates = {"bandwidth_bytes_per_cycle": 2.0, "grid_columns": 2.0, "lanes": 2.0}
    twice = _changed(machine, **rates)
    for strategy in ("unfused", "fused-gemm-distsm"):
        plan, form = _planned(op, machine, strategy)
        slow, fast = (plan_bound(form, m, plan.tree, plan.homes) for m in (machine, twice))
        assert slow.latency_cycles == pytest.approx(2 * fast.latency_cycles, rel=EXACT)
    slow, fast = workload_bound(op, machine), workload_bound(op, twice)
    assert slow.latency_cycles == pytest.approx(2 * fast.latency_cycles, rel=EXACT)


def test_unlimited_bandwidths_leave_the_computing():
    machine = _changed(load("r2v"), bandwidth_bytes_per_cycle=math.inf)
    bound = workload_bound(gemm_softmax(256, 512, 64), machine)
    assert [x.name for x in bound.limits if x.kind == "latency"] == [
        "matrix compute",
        "vector compute",
        "one after the other",
    ]
    assert _limit(bound, "matrix compute") == pytest.approx(256 * 512 * 64 / 1024, rel=EXACT)
    assert bound.latency_cycles == pytest.approx(256 * 512 * 5 / 64, rel=EXACT)


def test_sizes_beyond_what_a_float_counts():
    side = 2**30  # 2**90 multiply-accumulates
    bound = workload_bound(gemm(side, side, side), load("r2"))
    assert bound.latency_cycles == pytest.approx(2.0**80, rel=EXACT)
    assert _limit(bound, "energy of dram") == pytest.approx(DRAM * 3 * 2.0**60, rel=EXACT)


def test_duplex_memories_and_conventions_that_hide():
    op, edge = gemm_softmax(64, 128, 32), load("edge")
    both = 64 * 32 + 32 * 128 + 64 * 128
    name = "compulsory traffic of dram"
    assert _limit(workload_bound(op, edge), name) == pytest.approx(both / 25, rel=EXACT)
    apart = workload_bound(op, edge, conventions=conventions(shared_bus="per-direction"))
    assert _limit(apart, f"{name} fill") == pytest.approx((both - 64 * 128) / 25, rel=EXACT)
    assert _limit(apart, f"{name} drain") == pytest.approx(64 * 128 / 25, rel=EXACT)
    for option in ({"read_stalls": "first-step"}, {"windows": "first-step"}):
        hidden = workload_bound(op, edge, conventions=conventions(**option))
        assert sum(x.value for x in hidden.limits if x.name == name) < both / 25
    hidden = workload_bound(op, edge, conventions=conventions("comet-program"))
    assert hidden.limiting("latency").name == "vector compute"


def test_rotating_tiles_need_their_units():
    op, machine = attention(1, 2, 32, 64, 16), load("edge")
    plan, form = _planned(op, machine, "ring")
    bound = plan_bound(form, machine, plan.tree, plan.homes)
    assert bound.of("latency") >= workload_bound(op, machine).of("latency")
    spatial = _spatial(_sampled(form, machine, plan, 10, np.random.default_rng(0)))
    given = plan_bound(form, machine, plan.tree, plan.homes, spatial=spatial)
    assert given.of("latency") > bound.of("latency")
    assert any(x.name.startswith("collectives") for x in given.limits)


def test_limits_and_totals_agree():
    machine = load("edge")
    plan, form = _planned(gemm_softmax(64, 128, 32), machine, "fused-distsm")
    spatial = dict.fromkeys(_over_units(plan.tree), 2)
    bound = plan_bound(form, machine, plan.tree, plan.homes, spatial=spatial)
    times, energies = (
        [x.value for x in bound.limits if x.kind == kind] for kind in ("latency", "energy")
    )
    assert bound.latency_cycles == max(times)
    assert bound.energy_pj == pytest.approx(sum(energies), rel=EXACT)
    assert {"energy of mesh", "energy of collectives"} < {x.name for x in bound.limits}
    assert all(x.value > 0 and x.reason for x in bound.limits)


# -- wrong input -----------------------------------------------------------------------------------


def test_what_is_refused():
    edge, r2 = load("edge"), load("r2")
    op = gemm_softmax(64, 128, 32)
    plan, form = _planned(op, edge, "fused-gemm-distsm")
    bound = workload_bound(op, edge)
    with pytest.raises(ValueError, match="objective: got 'speed'; expected one of latency, energy"):
        bound.of("speed")
    with pytest.raises(ValueError, match="objective: got 'speed'"):
        bound.limiting("speed")
    with pytest.raises(ValueError, match=r"gemm: got array.*; expected single numbers, no batch"):
        workload_bound(gemm(np.array([1, 2]), 3, 4), edge)
    batch = jax.tree.map(lambda x: np.array([x, x]), edge)
    with pytest.raises(ValueError, match=r"machine edge: got array.*; expected single numbers"):
        workload_bound(op, batch)
    with pytest.raises(MappingError, match="has no vector engine, which operation rowmax needs"):
        workload_bound(op, r2)
    with pytest.raises(MappingError, match="has no level 'gb'"):
        plan_bound(form, load("r2v"), plan.tree, plan.homes)
    with pytest.raises(MappingError, match="spatial: got N_dram_sx; expected numbers >= 1 for all"):
        plan_bound(form, edge, plan.tree, plan.homes, spatial={"N_dram_sx": 2})
    with pytest.raises(
        MappingError, match=r"tree: runs gemm, rowmax, .*; expected once each: gemm"
    ):
        plan_bound(gemm(64, 128, 32), edge, plan.tree, plan.homes)
    with pytest.raises(MappingError, match="has no memory 'nowhere' for D"):
        plan_bound(form, edge, plan.tree, {"D": "nowhere"})
