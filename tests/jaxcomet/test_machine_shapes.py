"""Machines of two and four levels, and with several memories at a level, priced by hand."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxcomet.cost import Cost, conventions, evaluate
from jaxcomet.hardware import Machine, load
from jaxcomet.mapping import Compute, Loop, Mapping, Spatial, Temporal
from jaxcomet.workload import CompoundOp, Operation, Tensor, build

MACHINES = Path(__file__).parents[1] / "hardware" / "machines"
ROOFLINE = conventions("roofline")


def _product(M: int, N: int, K: int) -> CompoundOp:
    return build(
        "product",
        operations=(
            Operation(
                name="gemm", kind="contract", function="mac", inputs=("A", "B"), output="C", bits=8
            ),
        ),
        tensors=(
            Tensor(name="A", dims=("M", "K"), bits=8),
            Tensor(name="B", dims=("K", "N"), bits=8),
            Tensor(name="C", dims=("M", "N"), bits=8),
        ),
        sizes={"M": M, "N": N, "K": K},
    )


def _nest(levels: str, dims: str, spatial: str = "") -> Temporal:
    """Loops over `dims` at each of the levels; N dealt out to the units of the level `spatial`."""
    names = levels.split()
    body: Temporal | Spatial | Compute
    body = Compute("gemm", tuple(Loop(d, (f"{d}_comp",)) for d in dims))
    for level in reversed(names):
        body = Temporal(level, tuple(Loop(d, (f"{d}_{level}_t",)) for d in dims), body)
        if level == spatial:
            body = Spatial(level, (Loop("N", (f"N_{level}_sx",)),), (), body)
    assert isinstance(body, Temporal)
    return body


def _mapped(workload: CompoundOp, tree: Temporal, factors: dict[str, int]) -> Mapping:
    return Mapping.from_factors(workload, strategy="by-hand", tree=tree, homes={}, factors=factors)


def _reference(machine: Machine) -> Cost:
    """512 x 512 x 512: C tiles of 256 x 256 stay in the buffer while K streams through."""
    workload = _product(512, 512, 512)
    factors = {"N_dram_t": 2, "M_dram_t": 2, "K_dram_t": 16, "N_glb_t": 8}
    factors |= {"M_comp": 256, "K_comp": 32, "N_comp": 32}
    mapping = _mapped(workload, _nest("dram glb", "NMK"), factors)
    return evaluate(workload, mapping, machine, conventions=ROOFLINE)


@pytest.mark.parametrize("name", ["r2", "r2w", "r2v"])
def test_a_machine_of_two_levels_is_priced(name: str):
    cost = _reference(load(name))
    # 512**3 multiply-accumulates on 32 x 32 multipliers; 1,310,720 bytes at 64 B/cycle hide
    assert cost.latency_cycles == 131_072
    assert cost.utilization == 1.0
    assert cost.root_traffic_bytes == 524_288 + 524_288 + 262_144
    assert cost.engine_energy[0].energy_pj == 0.5 * 512**3
    assert cost.feasible


@pytest.mark.parametrize("name", ["r2", "r2v"])
def test_a_gradient_at_unlimited_bandwidths_is_finite_and_zero(name: str):
    machine = load(name)

    def total(m: Machine) -> Any:
        cost = _reference(m)
        return cost.latency_cycles + cost.energy_pj

    slope = jax.grad(total)(machine)
    leaves = jax.tree_util.tree_flatten_with_path(slope)[0]
    for (path, value), number in zip(leaves, jax.tree.leaves(machine), strict=True):
        assert np.isfinite(value), jax.tree_util.keystr(path)
        if np.isinf(number):
            assert value == 0.0, jax.tree_util.keystr(path)


def test_the_explanation_says_unlimited():
    text = _reference(load("r2")).explain()
    assert " / unlimited)" in text
    assert "inf" not in text.replace("infeasible", "")


def test_a_machine_of_four_levels_is_priced():
    workload = _product(16, 32, 24)
    factors = {"N_cluster_sx": 2, "N_cluster_t": 2, "K_core_t": 3, "M_comp": 16, "K_comp": 8}
    factors |= {"N_comp": 4, "N_gb_t": 2}
    tree = _nest("dram gb cluster core", "NMK", spatial="cluster")
    cost = evaluate(
        workload,
        _mapped(workload, tree, factors),
        load(MACHINES / "four_level.toml"),
        conventions=conventions("roofline", overlap="none"),
    )
    # 12 calls of 16 rows, one after the other in each of 2 clusters; the rest is waiting
    compute = sum(p.cycles for p in cost.latency_parts if p.kind == "compute")
    assert compute == 2 * 2 * 3 * 16
    assert cost.latency_cycles > compute
    crossed = {(t.parent, t.child) for t in cost.traffic}
    assert crossed == {("dram", "gb"), ("gb", "cluster"), ("cluster", "core"), ("core", "gemm")}


def test_a_machine_with_several_memories_at_two_levels_is_priced():
    workload = _product(16, 32, 24)
    factors = {"N_gb_t": 8, "K_core_t": 3, "M_comp": 16, "K_comp": 8, "N_comp": 4}
    cost = evaluate(
        workload,
        _mapped(workload, _nest("dram gb core", "NMK"), factors),
        load(MACHINES / "several_memories.toml"),
        conventions=ROOFLINE,
    )
    ways = {t.tensor: set[tuple[str, str]]() for t in cost.traffic}
    for t in cost.traffic:
        ways[t.tensor].add((t.parent, t.child))
    assert ways["A"] == {("dram", "inputs"), ("inputs", "ib"), ("ib", "gemm")}
    assert ways["B"] == {("dram", "weights"), ("weights", "wb"), ("wb", "gemm")}
    assert ways["C"] == {("dram", "inputs"), ("inputs", "ob"), ("ob", "gemm")}


def test_unlimited_and_finite_machines_are_one_batch():
    machines = [
        load("r2"),
        load("r2", [("memory.glb.child_bandwidth", "4"), ("memory.dram.child_bandwidth", "8")]),
    ]
    stacked = jax.tree.map(lambda *x: np.array(x), *machines)
    together = _reference(stacked)
    for row, machine in enumerate(machines):
        alone = _reference(machine)
        assert np.broadcast_to(together.latency_cycles, (2,))[row] == alone.latency_cycles
