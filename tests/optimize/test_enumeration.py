"""The best mapping of a space is the best: against brute force and against published runs."""

import itertools
import math

import numpy as np
import pytest

from jaxcomet import gemm_softmax, strategies
from jaxcomet.cost import conventions
from jaxcomet.hardware import load
from jaxcomet.optimize import enumeration
from jaxcomet.optimize.enumeration import enumerate_mappings, size
from jaxcomet.optimize.pricing import OBJECTIVES
from tests.reference.sampling import TILE, Row, joined, priced

SPREAD = dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2)

# Best latency over all mappings of a shape, found with the authors' program (d-matrix-ai/comet
# 917af0d).
PUBLISHED = (
    ("edge", (1, 1024, 128), 9270),
    ("edge", (1, 512, 256), 8963),
    ("edge", (1, 2048, 256), 34948),
    ("cloud", (1, 4096, 512), 52484),
    ("cloud", (1, 8192, 128), 30613),
    ("cloud", (1, 16384, 128), 60640),
)


@pytest.mark.parametrize(("machine", "shape", "cycles"), PUBLISHED)
def test_best_mapping_of_the_authors_program(
    machine: str, shape: tuple[int, int, int], cycles: int
):
    best = enumerate_mappings(
        gemm_softmax(*shape),
        load(machine),
        strategies.get("gemm-softmax", "fused-gemm-distsm"),
        options={"reduce": "tile"},
        conventions=conventions("comet-program"),
    )
    assert best.cost.latency_cycles == cycles
    assert best.cost.feasible
    assert best.strategy == "fused-gemm-distsm[reduce=tile]"


def _splits(extent: int, slots: int) -> list[tuple[int, ...]]:
    divisors = [d for d in range(1, extent + 1) if extent % d == 0]
    return [w for w in itertools.product(divisors, repeat=slots) if math.prod(w) == extent]


def _values(objective: str, latency: np.ndarray, energy: np.ndarray) -> np.ndarray:
    return {"latency": latency, "energy": energy, "edp": latency * energy}[objective]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_best_of_a_small_space_against_brute_force(objective: str):
    shape, machine = (4, 64, 8), load("edge")
    rows = [
        Row(
            shape,
            {
                **SPREAD,
                **dict(zip(("M_dram_t", "M_gb_t", "M_core_t", "M_comp"), m, strict=True)),
                **dict(zip(("N_core_t", "N_comp"), n, strict=True)),
                **dict(zip(("K_core_t", "K_comp"), k, strict=True)),
            },
            machine,
        )
        for m in _splits(4, 4)
        for n in _splits(64 // 16, 2)
        for k in _splits(8, 2)
    ]
    costs = priced(TILE, rows, "comet-program")
    latency, energy = (
        joined(costs, lambda c, a=a: getattr(c, a)) for a in ("latency_cycles", "energy_pj")
    )
    best = enumerate_mappings(
        gemm_softmax(*shape),
        machine,
        strategies.get("gemm-softmax", "fused-gemm-distsm"),
        options={"reduce": "tile"},
        conventions=conventions("comet-program"),
        objective=objective,  # pyright: ignore[reportArgumentType]
    )
    assert best.evaluated == len(rows)
    assert best.searched[0].feasible == int(joined(costs, lambda c: c.feasible).sum())
    found = _values(
        objective, np.asarray(best.cost.latency_cycles), np.asarray(best.cost.energy_pj)
    )
    assert float(found) == pytest.approx(_values(objective, latency, energy).min(), rel=1e-12)
    assert best.objective == objective


def test_best_of_two_parts_is_the_best_of_all_pairs():
    # GEMM and softmax of fused-distsm share no factor: 2 x 32 x 2, 36 mappings of one and 8 of the
    # other
    shape, machine, chosen = (
        (2, 32, 2),
        load("edge"),
        strategies.get("gemm-softmax", "fused-distsm"),
    )
    slots = ("M_dram_t", "M_gb_t", "M_core_t", "M_comp")
    gemm = [
        dict(
            zip(
                (*slots, "N_dram_t", "N_core_t", "N_comp", "K_dram_t", "K_core_t", "K_comp"),
                (*m, *n, *k),
                strict=True,
            )
        )
        for m in _splits(2, 4)
        for n in _splits(2, 3)
        for k in _splits(2, 3)
    ]
    softmax = [
        dict(zip((*slots, "N_core_t", "N_comp"), (*m, *n), strict=True))
        for m in _splits(2, 4)
        for n in _splits(2, 2)
    ]
    stage = {f"softmax.{n}": 2 for n in SPREAD}
    rows = [
        Row(shape, {**SPREAD, **stage, **g, **{f"softmax.{n}": f for n, f in s.items()}}, machine)
        for g in gemm
        for s in softmax
    ]
    costs = priced(("fused-distsm", ()), rows)
    best = enumerate_mappings(gemm_softmax(*shape), machine, chosen)
    assert best.evaluated == 36 + 8
    assert size(gemm_softmax(*shape), machine, chosen) == 36 + 8
    assert best.cost.latency_cycles == joined(costs, lambda c: c.latency_cycles).min()
    # among the fastest, the one of least energy
    latency, energy = (
        joined(costs, lambda c, a=a: getattr(c, a)) for a in ("latency_cycles", "energy_pj")
    )
    least = energy[latency == latency.min()].min()
    assert best.cost.energy_pj == pytest.approx(least, rel=1e-12)
    assert set(best.mapping.factors) >= set(rows[0].factors)


def test_progress_counts_every_mapping_and_nothing_fits_is_said():
    # one row of K = 65,536 bytes does not fit the input buffer of 32 KiB, whatever the mapping
    counted: list[int] = []
    best = enumerate_mappings(
        gemm_softmax(1, 16, 65536),
        load("edge"),
        strategies.get("gemm-softmax", "fused-gemm-distsm"),
        options={"reduce": "tile"},
        conventions=conventions("comet-program"),
        progress=counted.append,
    )
    assert sum(counted) == best.evaluated
    assert [s.feasible for s in best.searched] == [0]
    assert not best.cost.feasible
    assert best.cost.reasons()


def test_a_pruned_space_has_the_same_best(monkeypatch: pytest.MonkeyPatch):
    op, machine = gemm_softmax(512, 1024, 512), load("edge")
    strategy = strategies.get("gemm-softmax", "fused-gemm-distsm")
    whole = enumerate_mappings(op, machine, strategy)
    monkeypatch.setattr(enumeration, "_PRUNED", 0)
    pruned = enumerate_mappings(op, machine, strategy)
    assert pruned.searched[0].evaluated < pruned.searched[0].size == whole.searched[0].evaluated
    assert pruned.searched[0].feasible == whole.searched[0].feasible
    assert pruned.mapping == whole.mapping
    assert pruned.cost.latency_cycles == whole.cost.latency_cycles
