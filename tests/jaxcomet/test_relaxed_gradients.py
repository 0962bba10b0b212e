"""Gradients of the relaxed model: finite everywhere, dead nowhere but where listed, of honest sign.

One reverse pass a strategy serves all of these tests: its rows are whole mappings, mappings between
whole ones, mappings on machines of which one number is scarce or unlimited, and shapes of one
element and of 2^20 a side. It is not compiled, which would take longer than to run it once.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet import strategies
from jaxcomet._compat import enable_x64
from jaxcomet.arith import relaxed
from jaxcomet.cost import (
    Conventions,
    Fabric,
    conventions,
    evaluate_relaxed,
    evaluate_totals,
    exchange,
)
from jaxcomet.cost.router import mesh_energy_pj, router_power
from jaxcomet.hardware import Machine, MatrixEngine, load
from tests.reference.splits import (
    USUAL,
    Batch,
    Kind,
    Sizes,
    batch,
    both,
    drawn,
    kinds,
    moves,
    workload_of,
)

WHOLE, BETWEEN, EXTREME = 64, 24, 8
"""Rows of a batch: whole mappings, mappings between, and of each extreme shape."""


def _numbers(machine: Machine) -> dict[str, Any]:
    """The numbers of a machine by name, in the order of its leaves."""
    paths, _ = jax.tree_util.tree_flatten_with_path(machine)
    return {jax.tree_util.keystr(p).lstrip(".").replace("'", ""): x for p, x in paths}


def _scarce(machine: Machine, index: int) -> Machine:
    """The machine with one number so scarce that it should be felt."""
    leaves, treedef = jax.tree.flatten(machine)
    names = list(_numbers(machine))
    name = names[index]
    if name.endswith(("bandwidth_bytes_per_cycle", "width_bits", "capacity_bytes")):
        leaves[index] /= 2.0**12
    elif name.endswith(("_cycles", "pipeline_stages")):
        leaves[index] *= 2.0**9
    elif name.endswith("num_ports"):  # two ports, slow enough to be felt
        leaves[index] = 2.0
        leaves[names.index(name.replace("num_ports", "port_bandwidth_bytes_per_cycle"))] /= 2.0**9
    elif name.endswith(("_rows", "_columns")):  # an array of one multiplier along this side
        side = name.rpartition("_")[2]
        for i in (i for i, n in enumerate(names) if n.endswith(f"_{side}")):
            leaves[i] = 1.0
    elif name.endswith(("lanes", "mesh_x", "mesh_y")):
        leaves[index] = 1.0
    return jax.tree.unflatten(treedef, leaves)


def _unlimited(machine: Machine, index: int | None) -> Machine:
    """The machine with one bandwidth or channel width, or all of them, without limit."""
    leaves, treedef = jax.tree.flatten(machine)
    for i, name in enumerate(_numbers(machine)):
        if name.endswith(("bandwidth_bytes_per_cycle", "width_bits")) and index in (i, None):
            leaves[i] = math.inf
    return jax.tree.unflatten(treedef, leaves)


def _extreme(kind: Kind, side: int) -> Sizes:
    """All sizes alike; of attention, one problem."""
    if kind.label in ("attention", "causal"):
        return (1, 1, 1, side, side, side)
    return (side, side, side)


def _batch(kind: Kind, seed: int = 1) -> tuple[Batch, dict[str, np.ndarray]]:
    """(whole mappings, their factors with some of them moved between whole numbers)."""
    rng, machines = np.random.default_rng(seed), both()
    usual, count = USUAL[kind.label], len(_numbers(machines[0]))
    rows = drawn(rng, kind, WHOLE + BETWEEN, machines, usual)
    for machine, side in ((machines[0], 1), (machines[1], 2**20)):
        rows += drawn(rng, kind, EXTREME, [machine], _extreme(kind, side))
    others = [*(_scarce(m, i) for m in machines for i in range(count))]
    others += [_unlimited(machines[i % 2], i) for i in range(count)]
    others += [_unlimited(m, None) for m in machines]
    rows += [(*drawn(rng, kind, 1, [m], usual)[0][:2], m) for m in others]
    found = batch(kind, rows)
    factors = {}
    for name, values in found.mapping.factors.items():
        moved = np.array(values)
        # half of these up or down by up to a half, the others anywhere between 1 and the factor
        near = np.maximum(values * np.exp(rng.uniform(-0.4, 0.4, len(rows))), 1.0)
        far = np.exp(rng.uniform(0.0, 1.0, len(rows)) * np.log(np.maximum(values, 4.0)))
        for i in range(WHOLE, WHOLE + BETWEEN):
            moved[i] = near[i] if i % 2 else far[i]
        factors[name] = moved
    return found, factors


@dataclass(frozen=True)
class Slopes:
    """Values of a batch and the gradients of each row.

    Those of the first `WHOLE` rows are of the latency, all others of latency, energy and pressure
    together, each relative to its value.
    """

    batch: Batch
    values: tuple[np.ndarray, ...]
    factors: dict[str, np.ndarray]
    machine: dict[str, np.ndarray]


@cache
def _slopes(
    kind: Kind, temperature: float = math.inf, preset: str = "default", *, wide: bool = True
) -> Slopes:
    found, factors = _batch(kind)
    dtype, rules = (np.float64 if wide else np.float32), conventions(preset)
    ones = np.ones(len(found.rows), dtype)

    def totals(factors: Any, machine: Any) -> Any:
        mapping = dataclasses.replace(found.mapping, factors=factors)
        workload = jax.tree.map(lambda x: jnp.asarray(x, dtype), found.workload)
        cost = evaluate_relaxed(
            workload, mapping, machine, temperature=temperature, conventions=rules
        )
        return tuple(x * ones for x in (cost.latency_cycles, cost.energy_pj, cost.pressure))

    with enable_x64(wide):
        arguments = jax.tree.map(lambda x: jnp.asarray(x, dtype), (factors, found.machine))
        values, pull = jax.vjp(totals, *arguments)
        assert all(v.dtype == dtype for v in values)
        values = tuple(np.asarray(v) for v in values)
        seeds = [np.where(np.arange(len(ones)) < WHOLE, 0.0, 1.0 / v).astype(dtype) for v in values]
        seeds[0][:WHOLE] = 1.0
        slope, machine = jax.device_get(pull(tuple(seeds)))
    return Slopes(found, values, slope, _numbers(machine))


TILE = Kind("gemm-softmax", "fused-gemm-distsm", (("reduce", "tile"),))
USUALLY = (Kind("gemm-softmax", "fused-gemm-distsm"), Kind("gemm", "tiled"))
"""Walked by default; the others are slow. Attention without a mask has the trees of that with."""

each_kind = pytest.mark.parametrize(
    "kind",
    [
        k if k in USUALLY else pytest.param(k, marks=pytest.mark.slow)
        for k in kinds(both()[0])
        if k.label != "attention"
    ],
    ids=str,
)


# -- finite --------------------------------------------------------------------------------------


def _check_health(slopes: Slopes) -> None:
    latency, energy, pressure = slopes.values
    for value in slopes.values:
        assert np.all(np.isfinite(value))
    assert latency.min() > 0.0
    assert energy.min() > 0.0
    assert pressure.min() > 0.0
    for name, slope in {**slopes.factors, **slopes.machine}.items():
        broken = np.flatnonzero(~np.isfinite(slope))
        assert not broken.size, f"{name}: rows {broken[:5]} of {len(slope)}"


@each_kind
def test_costs_are_positive_and_gradients_finite(kind: Kind):
    _check_health(_slopes(kind))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (USUALLY[0], {"wide": False}),
        (TILE, {"preset": "comet-program"}),
        (USUALLY[0], {"temperature": 0.0}),
        (USUALLY[1], {"temperature": 0.1}),
    ],
    ids=["float32", "comet-program", "exact", "warm"],
)
def test_so_are_those_in_float32_and_under_other_rules(kind: Kind, options: dict[str, Any]):
    _check_health(_slopes(kind, **options))


@pytest.mark.slow
def test_the_time_of_every_algorithm_has_finite_gradients():
    # counts of participants: whole and not, alone, on faces and off; sizes of nothing and of much
    x, y = np.array([[1, 1], [1, 2], [1.5, 1], [2, 2], [2.7, 3], [4, 4], [5, 1], [64, 64]] * 2).T
    sizes = np.repeat([1e-3, 2.0**40], len(x) // 2)

    def time(x: Any, y: Any, size: Any) -> Any:
        fabric = Fabric(topology="mesh", x=x, y=y, step_latency=7.0, bandwidth=64.0)
        with relaxed(math.inf):
            return exchange("all_reduce", size, fabric).time  # every one is priced, and compared

    times, pull = jax.vjp(time, *(jnp.asarray(v) for v in (x, y, sizes)))
    assert np.array_equal(times > 0.0, x * y > 1.0)
    assert all(np.all(np.isfinite(g)) for g in pull(jnp.ones(len(x))))


@pytest.mark.parametrize("preset", ["default", "comet-program"])
def test_the_energy_of_a_router_has_gradients_in_float32(preset: str):
    # capacitances are 1e-16 farad: 1 / farad^2 is all that float32 holds
    machine = load("edge")
    network = machine.memories["gb"].network
    assert network is not None

    rules = conventions(preset)

    def energy(technology: Any, wide: Any) -> Any:
        return mesh_energy_pj(
            router_power(technology, wide, rules),
            dataclasses.replace(network, channel_width_bits=wide),
            **{"x": 2.0, "y": 2.0, "hops": 2.0, "words": 1e9, "word_hops": 2e9},
            rules=rules,
        )

    numbers = jax.tree.map(jnp.float32, (machine.router, 512.0))
    slopes = jax.tree.leaves(jax.grad(energy, (0, 1))(*numbers))
    values, treedef = jax.tree.flatten((machine.router, 512.0))
    total = energy(machine.router, 512.0)
    for i, (value, slope) in enumerate(zip(values, slopes, strict=True)):
        up, down = (
            energy(*treedef.unflatten([*values[:i], value * (1 + step), *values[i + 1 :]]))
            for step in (1e-5, -1e-5)
        )
        # a difference of 1e-5 leaves 1e-10 of a curvature; some tens of roundings of 6e-8
        expected = (up - down) / 2e-5 / total
        assert value * float(slope) / total == pytest.approx(expected, abs=1e-5)
    # channels without limit: nothing is modelled that a word could switch
    assert energy(machine.router, math.inf) == 0.0


# -- dead ----------------------------------------------------------------------------------------

OUTERMOST = {
    "levels[0].mesh_x": "there is one outermost memory",
    "levels[0].mesh_y": "there is one outermost memory",
}

SWITCHED = {  # convention router_power
    "router.transistor_resistance_ohm": "energy is power / frequency, both as 1 / resistance",
    "router.fanout_delays_per_clock": "the same",
}


def _unused(why: str, *operations: str) -> dict[str, str]:
    numbers = ("cycles", "energy_pj")
    return {f"engines[simd].ops[{o}].{n}": why for o in operations for n in numbers}


_SIMD = ("ports[ob].bandwidth_bytes_per_cycle", "ports[ob].hop_latency_cycles", "lanes")
NO_VECTORS = {
    **_unused("a GEMM has no vector operation", "add", "div", "exp", "max", "mul", "sqrt"),
    **{f"engines[simd].{n}": "the same" for n in (*_SIMD, "pipeline_stages")},
    "memories[gb].link_bandwidth_bytes_per_cycle": "it has no collective",
    "memories[ob].link_bandwidth_bytes_per_cycle": "it has no collective",
}
SOFTMAX = _unused("a softmax takes no root and rescales nothing", "mul", "sqrt")
LAYERNORM = _unused("a LayerNorm has no exponential and no maximum", "exp", "max")
ONLINE = _unused("an online softmax takes no root", "sqrt")
GATHERED = {"memories[gb].link_bandwidth_bytes_per_cycle": "the gather is between the cores"}
ROTATED = {"memories[ob].link_bandwidth_bytes_per_cycle": "keys pass between the clusters only"}
PROGRAM = {
    "memories[ob].link_bandwidth_bytes_per_cycle": "convention partial_reductions: free",
    **{f"engines[gemm].ports[{b}].hop_latency_cycles": "engine_hops" for b in ("ib", "ob", "wb")},
    "engines[simd].ports[ob].hop_latency_cycles": "convention engine_hops: ignored",
    "engines[simd].pipeline_stages": "convention vector_pipeline: ignored",
}


def _expected_dead(kind: Kind) -> dict[str, str]:
    """Numbers of a machine that a strategy does not depend on, with the reason of each."""
    if kind.label == "gemm":
        return {**OUTERMOST, **SWITCHED, **NO_VECTORS}
    if kind.strategy in ("flash", "ring"):
        operations = ONLINE
    else:
        operations = LAYERNORM if kind.label == "gemm-layernorm" else SOFTMAX
    found = {**OUTERMOST, **SWITCHED, **operations}
    if kind.strategy in ("fused-gemm-sm", "fused-gemm-ln"):
        found |= GATHERED
    return found | ROTATED if kind.strategy == "ring" else found


def _dead(slopes: Slopes) -> set[str]:
    """Names of factors and numbers of the machine that change nothing, in no row."""
    numbers, found = _numbers(slopes.batch.machine), set()
    for name, slope in {**slopes.factors, **slopes.machine}.items():
        number = numbers.get(name, np.ones(len(slope)))
        limited = np.where(np.isfinite(number), number, 0.0)
        # what cancels leaves some 1e-16 of the cost behind
        if not np.any(np.abs(limited * slope)[WHOLE:] > 1e-12):
            found.add(name)
    return found


@each_kind
def test_every_factor_and_machine_number_is_felt_but_those_listed(kind: Kind):
    assert _dead(_slopes(kind)) == set(_expected_dead(kind))


@pytest.mark.slow
def test_what_the_conventions_of_the_program_leave_out():
    found = _dead(_slopes(TILE, preset="comet-program"))
    assert found == (set(_expected_dead(TILE)) | set(PROGRAM)) - set(SWITCHED)


def test_the_clock_is_no_part_of_the_cost_in_cycles():
    # nor has an edge machine one: results stay in cycles
    assert load("edge").clock_hz is None
    machine, workload = load("r2"), workload_of("gemm", (64, 64, 64))
    mapping = strategies.build(
        workload, machine, "tiled", {"M_comp": 64, "N_comp": 64, "K_comp": 64}
    )

    def cost(clock: Any) -> Any:
        found = evaluate_relaxed(workload, mapping, dataclasses.replace(machine, clock_hz=clock))
        return found.latency_cycles + found.energy_pj + 0.0 * clock

    assert jax.grad(cost)(1e9) == 0.0


# -- signs ---------------------------------------------------------------------------------------


def _agreement(slopes: Slopes, rules: Conventions) -> tuple[float, int]:
    """Share of the moves that change the exact latency whose sign the gradient predicts.

    A move doubles a factor in time and halves another one of the same dimension. The prediction is
    the derivative along the move where it starts, which is all that a descent has. In the middle of
    the move it is right more often (99 to 100 %; 94 % under a causal mask whose blocks do not
    divide each other), as the latency is convex along most moves.
    """
    found = slopes.batch
    pairs = moves(found.tree, found.graph)
    starts, ups, downs = zip(
        *(
            (i, up, down)
            for i, factors in enumerate(found.rows[:WHOLE])
            for up, down in pairs
            if factors[down] % 2 == 0
        ),
        strict=True,
    )
    rows, steps = np.array(starts), np.arange(len(starts))
    predicted = np.zeros(len(rows))
    factors = {n: np.array(v)[rows] for n, v in found.mapping.factors.items()}
    before = {n: v.copy() for n, v in factors.items()}
    for names, sign in ((np.array(ups), 1.0), (np.array(downs), -1.0)):
        for name in set(names):
            own = steps[names == name]
            predicted[own] += sign * before[name][own] * slopes.factors[name][rows[own]]
            factors[name][own] *= 2.0**sign
    workload, machine = (
        jax.tree.map(lambda x: x[rows], t) for t in (found.workload, found.machine)
    )
    old, new = (
        evaluate_totals(
            workload, dataclasses.replace(found.mapping, factors=f), machine, conventions=rules
        ).latency_cycles
        for f in (before, factors)
    )
    change = new / old - 1.0
    felt = np.abs(change) > 1e-9
    return float(np.mean(np.sign(predicted[felt]) == np.sign(change[felt]))), int(felt.sum())


@each_kind
def test_the_gradient_predicts_the_sign_of_nine_moves_in_ten(kind: Kind):
    share, count = _agreement(_slopes(kind), conventions())
    assert count > 300
    assert share >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [(TILE, {"preset": "comet-program"}), (USUALLY[0], {"temperature": 0.0})],
    ids=["comet-program", "exact"],
)
def test_so_does_that_of_the_program_and_of_the_exact_cost(kind: Kind, options: dict[str, Any]):
    rules = conventions(options.get("preset", "default"))
    share, count = _agreement(_slopes(kind, **options), rules)
    assert count > 300
    assert share >= 0.9


# -- ties ----------------------------------------------------------------------------------------


def _tied(rates: dict[str, Any], temperature: float) -> Any:
    """Latency of a GEMM whose work at three rates takes equal times where all are 1.

    96 x 96 x 96 on reference machine R2, M in six steps of 16. A step computes 16 rows in 3 x 3
    folds of the array of 32 x 32: 144 cycles. It moves, on the bus of the outermost memory, 16 x 96
    bytes of A and of C, and a sixth of the 96 x 96 bytes of B, which stay: 3 x 1,536 bytes, 144
    cycles at 32 bytes a cycle. The buffer gives the engine A for each of 3 folds of columns and,
    as the array has no registers, B for each row: 3 x 1,536 + 16 x 9,216 bytes, 144 cycles at 1,056
    bytes a cycle. Results leave through other ports, in less, and are not read back.
    """
    machine, workload = load("r2"), workload_of("gemm", (96, 96, 96))
    engine = machine.engines["gemm"]
    assert isinstance(engine, MatrixEngine)
    memories = {
        name: dataclasses.replace(memory, child_bandwidth_bytes_per_cycle=rate * rates[name])
        for (name, memory), rate in zip(machine.memories.items(), (32.0, 1056.0), strict=True)
    }
    engine = dataclasses.replace(engine, array_rows=32.0 * rates["array"])
    machine = dataclasses.replace(machine, memories=memories, engines={"gemm": engine})
    factors = {"M_dram_t": 6, "M_comp": 16, "N_comp": 96, "K_comp": 96}
    mapping = strategies.build(workload, load("r2"), "tiled", factors)
    # without first fills and last drains: the longest of the three, step after step
    cost = evaluate_relaxed(
        workload,
        mapping,
        machine,
        temperature=temperature,
        conventions=conventions("roofline", partial_sums="written"),
    )
    return cost.latency_cycles


def test_resources_that_tie_share_the_time():
    # the buffer, or the bus, or both twice as fast. In whole cycles the second one: each move on
    # the bus takes 48 of them, while those of the buffer would have to be rounded up.
    faster = {"glb": np.array([1, 2, 1, 2.0]), "dram": np.array([1, 1, 2, 2.0])}
    rates = {**faster, "array": np.ones(4)}
    tied = [{"dram", "glb", "array"}, {"dram", "array"}, {"glb", "array"}, {"array"}]
    for temperature, cases in ((math.inf, [0, 1, 2, 3]), (0.0, [1])):
        with enable_x64(True):
            times, pull = jax.vjp(lambda x, t=temperature: _tied(x, t), rates)
            times, (slope,) = jax.device_get((times, pull(jnp.ones(4))))
        np.testing.assert_allclose(times[cases], 6 * 144.0, rtol=1e-12)
        # times are work over rate: d time / d log rate is minus the resource's share
        shares = {n: -rates[n] * slope[n] for n in rates}
        whole = np.sum(list(shares.values()), axis=0)
        np.testing.assert_allclose(whole[cases], times[cases], rtol=1e-12)
        for case in cases:
            assert {n for n, share in shares.items() if share[case] > 0.0} == tied[case]


def _faster(machine: Machine, log: Any) -> Machine:
    """Everything faster by exp(log): rates up, delays down; so slow that no quotient is below 1.

    The rows of an array are a delay, that of loading it, and with the grid a rate.
    """
    rates = ("bandwidth_bytes_per_cycle", "width_bits")
    delays = ("hop_latency_cycles", "queuing_delay_cycles", "array_rows")
    leaves, treedef = jax.tree.flatten(machine)
    for i, name in enumerate(_numbers(machine)):
        if name.endswith(rates):
            leaves[i] = leaves[i] * 2.0**-12 * jnp.exp(log)
        elif name.endswith(delays):
            leaves[i] = leaves[i] * jnp.exp(-log)
        elif name.endswith("grid_rows"):
            leaves[i] = leaves[i] * 2.0**-12 * jnp.exp(2.0 * log)
    return jax.tree.unflatten(treedef, leaves)


@pytest.mark.slow
def test_the_derivatives_in_all_rates_sum_to_minus_the_time():
    # Euler: all times are work over rate, or delays, so that a machine that is faster in everything
    # takes that much less time, at every tie of which these mappings are full (A and B often move
    # in equal times). Not scaled: capacities, numbers of ports, the vector engine, which is idle.
    # The array has less than one row, so that each call streams longer than it loads.
    machine, kind = load("edge"), Kind("gemm", "tiled")
    engine = machine.engines["gemm"]
    assert isinstance(engine, MatrixEngine)
    engine = dataclasses.replace(engine, array_rows=0.5)
    machine = dataclasses.replace(machine, engines={**machine.engines, "gemm": engine})
    found = batch(kind, drawn(np.random.default_rng(4), kind, 64, [machine], USUAL["gemm"]))
    rules = conventions(weight_load="hidden", array_skew="ignored")

    def time(log: Any) -> Any:
        faster = _faster(found.machine, log)
        cost = evaluate_relaxed(found.workload, found.mapping, faster, conventions=rules)
        return cost.latency_cycles

    with enable_x64(True):
        times, slope = jax.device_get(jax.jvp(time, (0.0,), (1.0,)))
    np.testing.assert_allclose(slope, -times, rtol=1e-12)
