"""What holds for every mapping: random mappings of the four strategies on both machines."""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet import gemm_softmax, strategies
from jaxcomet._compat import enable_x64
from jaxcomet.cost import Cost, conventions, evaluate, evaluate_totals
from jaxcomet.hardware import Machine, load
from tests.reference.sampling import (
    ROWS,
    STRATEGIES,
    TILE,
    Row,
    arguments,
    both,
    named,
    priced,
    random_rows,
)

PRESETS = ("default", "comet-program")
SUM = 1e-12  # relative; sums of at most some hundred float64 terms
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s[0])
each_preset = pytest.mark.parametrize("preset", PRESETS)


@cache
def _rows(strategy: tuple) -> list[Row]:
    return random_rows(strategy, ROWS, seed=2, machines=both())


@cache
def _cost(strategy: tuple, preset: str) -> Cost:
    (cost,) = priced(strategy, _rows(strategy), preset)
    return cost


def _column(value: Any) -> np.ndarray:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (ROWS,))


def _machine_column(strategy: tuple, number: Callable[[Machine], Any]) -> np.ndarray:
    return np.array([number(r.machine) for r in _rows(strategy)], dtype=np.float64)


# -- sums and bounds -----------------------------------------------------------------------------


@each_preset
@each_strategy
def test_parts_sum_to_the_totals_and_none_is_negative(strategy: tuple, preset: str):
    cost = _cost(strategy, preset)
    parts = np.array([_column(p.cycles) for p in cost.latency_parts])
    np.testing.assert_allclose(parts.sum(axis=0), cost.latency_cycles, rtol=SUM)
    assert parts.min() >= 0.0
    energy = np.array([_column(v) for v in cost.energy_parts.values()])
    np.testing.assert_allclose(energy.sum(axis=0), cost.energy_pj, rtol=SUM)
    assert energy.min() >= 0.0
    each = [t.parent_energy_pj + t.child_energy_pj + t.mesh_energy_pj for t in cost.traffic]
    each += [e.energy_pj for e in cost.engine_energy]
    each += [c.total_energy_pj for c in cost.collectives]
    np.testing.assert_allclose(sum(_column(e) for e in each), cost.energy_pj, rtol=SUM)
    for t in cost.traffic:
        assert _column(t.parent_bytes).min() >= 0
        assert _column(t.child_bytes).min() >= 0
    for o in cost.occupancy:
        assert _column(o.excess_bytes).min() >= 0


@each_preset
@each_strategy
def test_cycles_are_whole(strategy: tuple, preset: str):
    cycles = _column(_cost(strategy, preset).latency_cycles)
    broken = np.flatnonzero(cycles != np.round(cycles))
    assert not broken.size, [(_rows(strategy)[i].factors, repr(cycles[i])) for i in broken[:3]]


@each_strategy
def test_traffic_never_below_compulsory(strategy: tuple):
    cost = _cost(strategy, "default")
    workload, _, _ = arguments(strategy, _rows(strategy))
    for name in ("A", "B", "H"):
        moved = sum(
            _column(t.parent_bytes) for t in cost.traffic if t.parent == "dram" and t.tensor == name
        )
        least = workload.elements(name) * workload.tensor(name).bits / 8
        assert np.all(moved >= least * (1 - SUM)), name
    assert np.all(cost.root_traffic_bytes >= cost.compulsory_bytes * (1 - SUM))


@each_strategy
def test_latency_is_at_least_every_single_bound(strategy: tuple):
    cost, rows = _cost(strategy, "default"), _rows(strategy)
    latency = _column(cost.latency_cycles) * (1 + SUM)
    dram = _machine_column(strategy, lambda m: m.memories["dram"].child_bandwidth_bytes_per_cycle)
    assert np.all(latency >= _column(cost.root_traffic_bytes) / dram)

    def units(prefix: str) -> np.ndarray:
        spatial = [f"{prefix}N_{level}_{way}" for level in ("dram", "gb") for way in ("sx", "sy")]
        return np.array(
            [np.prod([r.factors.get(n, 1) for n in spatial]) for r in rows], dtype=float
        )

    M, N, K = np.array([r.sizes for r in rows], dtype=float).T
    stage = "softmax." if strategy[0] != "fused-gemm-distsm" else ""
    macs = 32 * 8 * 32 * 8
    assert np.all(latency >= M * N * K / (macs * units("")))
    assert np.all(latency >= np.ceil(np.ceil(M * N * K / units("")) / macs))
    # 4 + 1 + 3 + 4 + 1 cycles for 16 elements: rowmax, sub, exp, rowsum, div run on one engine
    assert np.all(latency >= M * np.ceil(N / units(stage) / 16) * 13)

    for c in cost.collectives:
        assert np.all(latency >= _column(c.total_cycles))
    assert np.all(latency >= sum(_column(c.total_cycles) for c in cost.collectives))


@each_preset
@each_strategy
def test_utilization_is_a_share(strategy: tuple, preset: str):
    share = _column(_cost(strategy, preset).utilization)
    assert share.min() > 0.0
    assert share.max() <= 1.0


# -- more is never worse -------------------------------------------------------------------------


def _paths(machine: Machine, ends: tuple[str, ...]) -> list[int]:
    """Positions of the leaves whose names end so."""
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(machine)[0]]
    return [i for i, p in enumerate(paths) if p.endswith(ends)]


def _one_number_doubled(machines: list[Machine], positions: list[int]) -> list[Machine]:
    """Row i with one of the numbers doubled, in turn."""
    found = []
    for i, machine in enumerate(machines):
        leaves, treedef = jax.tree.flatten(machine)
        leaves[positions[i // 2 % len(positions)]] *= 2.0
        found.append(jax.tree.unflatten(treedef, leaves))
    return found


def _doubled(strategy: tuple, ends: tuple[str, ...], first: int = 3) -> tuple[Cost, int]:
    rows = _rows(strategy)
    positions = _paths(rows[0].machine, ends)
    assert len(positions) >= first
    machines = _one_number_doubled([r.machine for r in rows], positions)
    changed = [dataclasses.replace(r, machine=m) for r, m in zip(rows, machines, strict=True)]
    (cost,) = priced(strategy, changed, "default")
    return cost, len(positions)


@each_strategy
def test_more_bandwidth_or_room_is_never_slower(strategy: tuple):
    before = _cost(strategy, "default")
    ends = (
        "bandwidth_bytes_per_cycle",
        "capacity_bytes",
        "channel_width_bits",
        "num_ports",
    )
    after, count = _doubled(strategy, ends, 20)
    assert count <= ROWS // 4  # each number on both machines at least twice
    assert np.all(_column(after.latency_cycles) <= _column(before.latency_cycles))
    assert np.all(after.feasible | ~before.feasible)
    assert np.any(_column(after.latency_cycles) < _column(before.latency_cycles))


@each_strategy
def test_longer_hops_or_queues_are_never_faster(strategy: tuple):
    before = _cost(strategy, "default")
    after, _ = _doubled(strategy, ("hop_latency_cycles", "queuing_delay_cycles"))
    assert np.all(_column(after.latency_cycles) >= _column(before.latency_cycles))
    assert np.any(_column(after.latency_cycles) > _column(before.latency_cycles))


@each_preset
def test_row_sums_are_never_slower_than_the_matrix(preset: str):
    rows_strategy = ("fused-gemm-distsm", ())
    rows = _rows(rows_strategy)
    (tile,) = priced(TILE, rows, preset)
    fast = _cost(rows_strategy, preset)
    cycles = np.array([_column(fast.latency_cycles), _column(tile.latency_cycles)])
    slower = np.flatnonzero(cycles[0] > cycles[1])
    shown = [(rows[i].sizes, rows[i].factors, cycles[:, i].tolist()) for i in slower[:3]]
    assert not slower.size, f"{slower.size} of {ROWS}: {shown}"
    payload = {c.tensor: c for c in fast.collectives if c.memory == "gb"}
    steps = np.array([r.factors["M_core_t"] * r.factors["M_comp"] for r in rows], dtype=float)
    for tensor in ("D", "G"):
        assert np.array_equal(_column(payload[tensor].part_elements), steps)
        assert np.array_equal(_column(payload[tensor].part_bytes), 2 * steps)
    tile_payload = {c.tensor: c for c in tile.collectives if c.memory == "gb"}
    assert set(tile_payload) == {"D", "F"}


# -- batches -------------------------------------------------------------------------------------


@each_preset
@each_strategy
def test_a_batch_equals_its_rows(strategy: tuple, preset: str):
    cost = _cost(strategy, preset)
    for i in (0, 1, 50, 255):
        row = _rows(strategy)[i]
        workload = gemm_softmax(*row.sizes)
        mapping = strategies.build(
            workload, row.machine, strategy[0], dict(row.factors), **dict(strategy[1])
        )
        one = evaluate(workload, mapping, row.machine, conventions=conventions(preset))
        assert one.latency_cycles == _column(cost.latency_cycles)[i]
        assert one.energy_pj == pytest.approx(float(_column(cost.energy_pj)[i]), rel=SUM)
        assert bool(one.feasible) == bool(cost.feasible[i])
        assert one.reasons() == cost.row(i).reasons()


STRATEGY = ("fused-gemm-distsm", ())


def _grid() -> tuple[Any, Any, Machine]:
    """One shape, `ROWS` mappings, and three machines along an axis in front of theirs."""
    edge = load("edge")
    slow = dataclasses.replace(edge.memories["dram"], child_bandwidth_bytes_per_cycle=3.0)
    machines = [
        named(edge),
        named(dataclasses.replace(edge, memories={**edge.memories, "dram": slow})),
        named(load("cloud")),
    ]
    rows = random_rows(STRATEGY, ROWS, seed=8, machines=machines[:1], sizes=[(96, 256, 128)])
    _, mapping, _ = arguments(STRATEGY, rows)
    columns = [
        np.array([[x] for x in leaves])
        for leaves in zip(*map(jax.tree.leaves, machines), strict=True)
    ]
    return (
        gemm_softmax(96, 256, 128),
        mapping,
        jax.tree.unflatten(jax.tree.structure(machines[0]), columns),
    )


def test_machines_and_mappings_are_two_axes():
    workload, mapping, machines = _grid()
    grid = evaluate_totals(workload, mapping, machines)
    assert np.shape(grid[0]) == (3, ROWS)
    for number in range(3):
        machine = jax.tree.map(lambda leaf, n=number: float(leaf[n, 0]), machines)
        factors = [{n: float(f[i]) for n, f in mapping.factors.items()} for i in (0, 17, 255)]
        for i, values in zip((0, 17, 255), factors, strict=True):
            one = evaluate(workload, dataclasses.replace(mapping, factors=values), machine)
            assert grid[0][number, i] == one.latency_cycles
            assert grid[1][number, i] == pytest.approx(one.energy_pj, rel=SUM)
            assert (grid[2][number, i] <= 1.0) == one.feasible


def _count_compilations(work: Callable[[], object]) -> int:
    logged: list[str] = []
    with jax.log_compiles(), _records(logged):
        work()
    return len(logged)


class _records:
    def __init__(self, into: list[str]) -> None:
        self.into = into

    def __enter__(self) -> None:
        import logging

        into = self.into

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.getMessage().startswith("Compiling"):
                    into.append(record.getMessage())

        self.handler = Handler()
        self.logger = logging.getLogger("jax")
        self.propagate = self.logger.propagate
        self.logger.propagate = False
        self.logger.addHandler(self.handler)

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self.handler)
        self.logger.propagate = self.propagate


@each_strategy
def test_other_numbers_compile_nothing(strategy: tuple):
    _cost(strategy, "default")
    other = random_rows(strategy, ROWS, seed=3, machines=both()[::-1], largest=(50, 900, 400))
    assert _count_compilations(lambda: priced(strategy, other, "default")) == 0
    # the count does count
    assert _count_compilations(lambda: jax.jit(lambda x: x * 3.25 + 1)(jnp.ones(7))) >= 1


def test_totals_of_another_machine_and_shape_compile_nothing():
    rows = [_rows(STRATEGY), random_rows(STRATEGY, ROWS, seed=4, machines=both()[::-1])]
    first, second = (arguments(STRATEGY, r) for r in rows)
    evaluate_totals(*first)
    assert _count_compilations(lambda: evaluate_totals(*second)) == 0
    whole = _cost(STRATEGY, "default")
    latency, energy, pressure = evaluate_totals(*first)
    assert np.array_equal(latency, whole.latency_cycles)
    np.testing.assert_allclose(energy, whole.energy_pj, rtol=SUM)
    assert np.array_equal(np.asarray(pressure) <= 1.0, whole.feasible)


# -- transforms ----------------------------------------------------------------------------------


def test_jit_and_vmap_give_the_same():
    expected = _cost(STRATEGY, "default")
    with enable_x64(True):
        workload, mapping, machine = jax.tree.map(jnp.asarray, arguments(STRATEGY, _rows(STRATEGY)))

        def latency(*a: Any) -> Any:
            return evaluate(*a).latency_cycles

        found = jax.jit(jax.vmap(latency))(workload, mapping, machine)
    assert np.array_equal(found, expected.latency_cycles)


@pytest.mark.slow  # compiled in 9 s each; the gradient at one mapping is taken below
@pytest.mark.parametrize(
    ("strategy", "preset"), [(STRATEGY, "default"), (TILE, "comet-program")], ids=PRESETS
)
def test_gradients_reach_every_number_of_the_machine(strategy: tuple, preset: str):
    rows = random_rows(strategy, ROWS, seed=2, machines=both())
    rules = conventions(preset)
    with enable_x64(True):
        workload, mapping, machine = jax.tree.map(jnp.asarray, arguments(strategy, rows))

        def total(mach: Machine) -> Any:
            # latency depends on no energy and energy on no bandwidth: one sum shows both slopes
            cost = evaluate(workload, mapping, mach, conventions=rules)
            return jnp.sum(cost.latency_cycles) + jnp.sum(cost.energy_pj)

        slope = jax.device_get(jax.jit(jax.grad(total))(machine))
    for path, leaf in jax.tree_util.tree_flatten_with_path(slope)[0]:
        assert np.all(np.isfinite(leaf)), jax.tree_util.keystr(path)
    assert np.all(slope.memories["dram"].child_bandwidth_bytes_per_cycle <= 0)
    assert np.any(slope.memories["dram"].child_bandwidth_bytes_per_cycle < 0)
    # energy is linear in a DRAM access: the slope is the bytes read
    (cost,) = priced(strategy, rows, preset)
    read = sum(
        _column(t.parent_bytes)
        for t in cost.traffic
        if t.parent == "dram" and t.direction == "fill"
    )
    np.testing.assert_allclose(slope.memories["dram"].read_energy_pj_per_byte, read, rtol=1e-9)


@pytest.mark.parametrize(("reduce", "preset"), [("rows", "default"), ("tile", "comet-program")])
def test_gradient_of_a_single_mapping_in_float32(reduce: str, preset: str):
    machine, workload = load("edge"), gemm_softmax(7, 130, 48)
    factors = {"M_gb_t": 4, "M_comp": 2, "N_dram_sx": 2, "N_gb_sx": 2, "N_core_t": 3, "N_comp": 11}
    factors["K_comp"] = 48
    mapping = strategies.build(workload, machine, "fused-gemm-distsm", factors, reduce=reduce)

    def latency(m: Machine) -> Any:
        return evaluate(workload, mapping, m, conventions=conventions(preset)).latency_cycles

    slope = jax.grad(latency)(machine)
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(slope))
    assert slope.memories["dram"].child_bandwidth_bytes_per_cycle <= 0
    assert slope.memories["gb"].network.hop_latency_cycles > 0
