"""Every strategy on every kind of machine: runs each operation once, and is legal or refused."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet import (
    CompoundOp,
    Cost,
    MappingError,
    attention,
    evaluate,
    gemm,
    gemm_layernorm,
    gemm_softmax,
    strategies,
)
from jaxcomet._compat import enable_x64
from jaxcomet.cost import conventions
from jaxcomet.cost.occupancy import Occupancy
from jaxcomet.cost.transfer import MoveTime
from jaxcomet.hardware import Machine, load
from jaxcomet.mapping import Spatial, Temporal, computes, factor_names, reordered, walk
from jaxcomet.optimize.space import spaces
from jaxcomet.rewrite import rewritten
from jaxcomet.strategies import Strategy

FOUR = Path(__file__).parents[1] / "hardware" / "machines" / "four_level.toml"
MACHINES = ("edge", "cloud", "r2v", str(FOUR))
WORKLOADS: tuple[CompoundOp, ...] = (
    gemm(8, 32, 8),
    gemm_softmax(8, 32, 8),
    gemm_layernorm(8, 32, 8),
    gemm_layernorm(8, 32, 8, norm="rms", affine=True),
    attention(1, 4, 8, 32, 8, kv_heads=2),
    attention(1, 4, 8, 32, 8, kv_heads=2, causal=True),
)
REFUSED = {
    # two levels: no units between memory and cores that could pass keys around
    ("ring", "r2v"): "between the outermost memory and the cores",
    # no peer links anywhere
    ("fused-gemm-sm", "four_level"): "has no peer links",
    ("fused-gemm-ln", "four_level"): "has no peer links",
}


@pytest.mark.parametrize("machine_name", MACHINES, ids=lambda name: Path(name).stem)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: f"{w.name}-{len(w.operations)}")
def test_every_strategy_maps_every_operation_once_and_legally(
    workload: CompoundOp, machine_name: str
):
    machine = load(machine_name)
    for strategy in strategies.available(workload.name):
        for options in _together(strategy):
            reason = REFUSED.get((strategy.name, machine.name))
            if reason is not None:
                with pytest.raises(MappingError, match=reason):
                    _priced(workload, machine, strategy, options)
                continue
            _is_possible(_priced(workload, machine, strategy, options))


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: f"{w.name}-{len(w.operations)}")
def test_every_option_alone_maps_every_operation_once_and_legally(workload: CompoundOp):
    machine = load("edge")
    for strategy in strategies.available(workload.name):
        for name, values in strategy.options.items():
            for value in values[1:]:
                _is_possible(_priced(workload, machine, strategy, {name: value}))


def _together(strategy: Strategy) -> list[dict[str, str]]:
    """The defaults, and the last value of every option."""
    return [{}, {n: v[-1] for n, v in strategy.options.items()}]


def _is_possible(cost: Cost) -> None:
    assert cost.illegal == ()
    assert cost.latency_cycles > 0
    assert cost.energy_pj > 0
    assert all(t.parent_bytes >= 0 and t.child_bytes >= 0 for t in cost.traffic)
    assert 0 < cost.utilization <= 1
    assert cost.root_traffic_bytes >= cost.compulsory_bytes * (1 - 1e-12)


def _priced(
    workload: CompoundOp, machine: Machine, strategy: Strategy, options: dict[str, str]
) -> Cost:
    """The cost of the mapping in the middle of the space."""
    plan = strategy.planned(workload, machine, **options)
    form = rewritten(workload, plan.rewrites)
    assert [c.operation for c in computes(plan.tree)] == [o.name for o in form.operations]
    factors: dict[str, object] = {}
    for space in spaces(form, machine, plan.tree):
        picked = space.factors(np.array([space.size // 2]))
        factors |= {n: float(v[0]) for n, v in picked.items()}
    mapping = strategy.build(workload, machine, factors, **options)
    return evaluate(workload, mapping, machine)


def test_single_units_are_not_spread_over():
    plan = strategies.get("gemm-softmax", "fused-gemm-distsm").planned(
        gemm_softmax(8, 8, 8), load("r2v")
    )
    assert not any(isinstance(n, Spatial) for n, _ in walk(plan.tree))
    assert factor_names(plan.tree)[:1] == ("M_dram_t",)


def test_free_tiling_has_every_dimension_of_a_contraction_at_every_level():
    plan = strategies.get("gemm-softmax", "fused-gemm-distsm").planned(
        gemm_softmax(8, 8, 8), load("edge"), tiling="free"
    )
    assert {"N_gb_t", "K_gb_t", "M_gb_t"} <= set(factor_names(plan.tree))


@pytest.mark.parametrize("order", ["".join(o) for o in itertools.permutations("MNK")])
def test_outer_loop_order_decides_what_is_read_again(order: str):
    """A 12 x 12 x 12 product in tiles of 4: each operand by a formula of the order alone."""
    workload, machine = gemm(12, 12, 12), load("r2")
    tiles = {f"{d}_dram_t": 3 for d in "MNK"} | {f"{d}_comp": 4 for d in "MNK"}
    mapping = strategies.build(workload, machine, "tiled", tiles, order=order)
    cost = evaluate(workload, mapping, machine, conventions=conventions("roofline"))

    def moves(dims: str) -> int:
        """Tile moves: the loops outside the innermost one that the tensor depends on, that incl."""
        innermost = max(order.index(d) for d in dims)
        return 3 ** (innermost + 1)

    bytes_of = {"A": moves("MK") * 16, "B": moves("KN") * 16}
    moved = {t.tensor: t for t in cost.traffic if t.parent == "dram" and t.direction == "fill"}
    assert moved["A"].parent_bytes == bytes_of["A"]
    assert moved["B"].parent_bytes == bytes_of["B"]
    written = moves("MN") * 16
    drained = sum(
        t.parent_bytes
        for t in cost.traffic
        if t.tensor == "C" and t.direction == "drain" and t.parent == "dram"
    )
    assert drained == written
    # partial sums that left for the memory are read back, all but the first of each tile
    read = moved["C"].parent_bytes if "C" in moved else 0
    assert read == written - 9 * 16


def test_slices_of_one_operand_pass_beside_the_others():
    """A 12 x 12 x 12 product: all of C is held, 4 of the 12 steps of K of B, and 2 rows of A."""
    workload, machine = gemm(12, 12, 12), load("r2")
    tiles = {"K_dram_t": 3, "K_comp": 4, "M_dram_slices": 6, "M_comp": 2, "N_comp": 12}
    mapping = strategies.build(workload, machine, "tiled", tiles, order="NMKM")
    cost = evaluate(workload, mapping, machine, conventions=conventions("roofline"))
    moved = {(t.tensor, t.direction): t.parent_bytes for t in cost.traffic if t.parent == "dram"}
    # each byte once: a slice of A belongs to one step, and C is finished before it leaves
    assert moved == {("A", "fill"): 144, ("B", "fill"): 144, ("C", "drain"): 144}
    # K in 3 steps, each of which A passes in 6 slices: tiles of 2 x 4, 4 x 12 and 12 x 12
    moves = {m.tensor: (float(n), float(m.tile_elements)) for n, m in _moves(cost, "dram")}
    assert moves == {"A": (6, 8), "B": (3, 48), "C": (1, 144)}
    held = {h.tensor: h.total_bytes for h in _of_memory(cost, "glb").moments[0]}
    assert held == {"A": 8, "B": 48, "C": 144}
    double = evaluate(workload, mapping, machine)  # the next slice, and the next tile, beside them
    held = {h.tensor: h.total_bytes for h in _of_memory(double, "glb").moments[0]}
    assert held == {"A": 2 * 8, "B": 2 * 48, "C": 144}
    # without slices, the same tiles need the whole tile of A
    whole = tiles | {"M_dram_slices": 1, "M_glb_t": 6}
    mapping = strategies.build(workload, machine, "tiled", whole, order="NMKM")
    cost = evaluate(workload, mapping, machine, conventions=conventions("roofline"))
    held = {h.tensor: h.total_bytes for h in _of_memory(cost, "glb").moments[0]}
    assert held == {"A": 48, "B": 48, "C": 144}


def _moves(cost: Cost, level: str) -> list[tuple[Any, MoveTime]]:
    nodes = [n for n in cost.nodes if n.level == level]
    return [x for n in nodes for x in zip(n.moves_per_run, n.moves, strict=True)]


def _of_memory(cost: Cost, name: str) -> Occupancy:
    (found,) = (o for o in cost.occupancy if o.memory == name)
    return found


def test_a_tree_that_streams_what_cannot_be_is_refused():
    workload, machine = gemm(12, 12, 12), load("r2")
    calls = {f"{d}_comp": 12 for d in "MNK"}
    mapping = strategies.build(workload, machine, "tiled", calls, order="NMKM")
    outer = mapping.tree
    assert isinstance(outer, Temporal)
    inner = outer.body
    assert isinstance(inner, Temporal)
    assert inner.streams == ("A",)
    other = dataclasses.replace(outer, body=dataclasses.replace(inner, streams=("X",)))
    with pytest.raises(MappingError, match="streams X at dram; expected some of A, B, C"):
        evaluate(workload, dataclasses.replace(mapping, tree=other), machine)
    with pytest.raises(MappingError, match="streams A at dram, where no node further out"):
        evaluate(workload, dataclasses.replace(mapping, tree=inner), machine)


def test_loop_orders_of_any_level():
    workload, machine = gemm(12, 12, 12), load("edge")
    strategy = strategies.get("gemm", "tiled")
    plan = strategy.planned(workload, machine, {"gb": "KMN"})
    (node,) = (n for n, _ in walk(plan.tree) if isinstance(n, Temporal) and n.level == "gb")
    assert [x.dim for x in node.loops] == ["K", "M", "N"]
    mapping = strategy.build(
        workload, machine, {"M_comp": 12, "N_comp": 12, "K_comp": 12}, {"gb": "K"}
    )
    assert mapping.strategy == "tiled[gb:K]"
    with pytest.raises(MappingError, match=r"loop order: got level 'l2'; the tree has loops at"):
        reordered(plan.tree, {"l2": "MNK"})
    with pytest.raises(MappingError, match=r"loop order of gb: got dimension 'X'; there are loops"):
        reordered(plan.tree, {"gb": "XM"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "name"),
    [(w, s.name) for w in WORKLOADS for s in strategies.available(w.name)],
    ids=lambda x: x if isinstance(x, str) else f"{x.name}-{len(x.operations)}",
)
def test_gradients_reach_the_numbers_of_the_machine(workload: CompoundOp, name: str):
    """Finite for every number; more DRAM bandwidth is never slower, a read costs its bytes."""
    machine = load("edge")
    strategy = strategies.get(workload.name, name)
    plan = strategy.planned(workload, machine)
    factors: dict[str, object] = {}
    for space in spaces(rewritten(workload, plan.rewrites), machine, plan.tree):
        picked = space.factors(np.array([space.size // 3]))
        factors |= {n: float(v[0]) for n, v in picked.items()}
    mapping = strategy.build(workload, machine, factors)

    def total(made: Machine) -> jax.Array:
        # latency depends on no energy and energy on no bandwidth: one sum shows both slopes
        cost = evaluate(workload, mapping, made)
        return jnp.asarray(cost.latency_cycles + cost.energy_pj)

    with enable_x64(True):
        slope = jax.device_get(jax.jit(jax.grad(total))(jax.tree.map(jnp.asarray, machine)))
    for path, leaf in jax.tree_util.tree_flatten_with_path(slope)[0]:
        assert np.isfinite(leaf), jax.tree_util.keystr(path)
    dram = slope.memories["dram"]
    assert dram.child_bandwidth_bytes_per_cycle <= 0  # 0 where the mesh is slower
    assert slope.memories["gb"].network.hop_latency_cycles > 0
    macs = evaluate(workload, mapping, machine).engine_energy
    assert slope.engines["gemm"].mac_energy_pj == pytest.approx(
        sum(float(e.work) for e in macs if e.engine == "gemm"), rel=1e-9
    )
    cost = evaluate(workload, mapping, machine)
    read = sum(
        float(t.parent_bytes) for t in cost.traffic if t.parent == "dram" and t.direction == "fill"
    )
    assert dram.read_energy_pj_per_byte == pytest.approx(read, rel=1e-9)
    needed = any(o.function == "exp" for o in workload.operations)
    if needed:
        assert slope.engines["simd"].ops["exp"].energy_pj > 0
