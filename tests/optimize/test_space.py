"""The space of a strategy against brute force and against the authors' counts."""

import itertools
import math

import numpy as np
import pytest

from jaxcomet import gemm_softmax, strategies
from jaxcomet.hardware import load
from jaxcomet.mapping import Mapping, MappingError
from jaxcomet.optimize.space import spaces
from jaxcomet.optimize.splits import factorizations
from jaxcomet.workload import CompoundOp

# COMET's 12 shapes (arXiv:2509.00599) and the size of the space of its released mapping: all exact
# divisor factorisations of M over 4 slots, of N / units over 2, of K over 2 (counted with the
# program d-matrix-ai/comet 917af0d, test/iterative_mapper).
PUBLISHED = (
    ("edge", (256, 256, 128), 6600),
    ("edge", (1024, 1024, 256), 18018),
    ("edge", (1, 1024, 128), 56),
    ("edge", (1, 512, 256), 54),
    ("edge", (1, 2048, 256), 72),
    ("edge", (512, 256, 128), 8800),
    ("cloud", (256, 256, 512), 1650),
    ("cloud", (2048, 2048, 256), 13104),
    ("cloud", (1, 4096, 512), 50),
    ("cloud", (1, 8192, 128), 48),
    ("cloud", (1, 16384, 128), 56),
    ("cloud", (1024, 1024, 512), 8580),
)


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_factorizations_against_brute_force(slots: int):
    for extent in (1, 2, 7, 12, 16, 30):
        ways = (
            [
                way
                for way in itertools.product(range(1, extent + 1), repeat=slots)
                if math.prod(way) == extent
            ]
            if extent**slots <= 10**6
            else None
        )
        found = [tuple(int(x) for x in row) for row in factorizations(extent, slots)]
        assert len(found) == len(set(found))
        assert all(math.prod(row) == extent for row in found)
        if ways is not None:
            assert sorted(found) == sorted(ways)


def _tree(machine: str, name: str, **options: str):
    strategy = strategies.get("gemm-softmax", name)
    plan = strategy.planned(gemm_softmax(1, 1, 1), load(machine), **options)
    return plan.tree, plan.homes


@pytest.mark.parametrize(("machine", "shape", "size"), PUBLISHED)
def test_sizes_of_the_released_mapping(machine: str, shape: tuple[int, int, int], size: int):
    tree, _ = _tree(machine, "fused-gemm-distsm", reduce="tile")
    (space,) = spaces(gemm_softmax(*shape), load(machine), tree)
    assert space.size == size


def _all_factors(workload: CompoundOp, name: str) -> dict[str, np.ndarray]:
    tree, _ = _tree("edge", name)
    found: dict[str, np.ndarray] = {}
    for space in spaces(workload, load("edge"), tree):
        found |= space.factors(np.arange(space.size) if not found else np.zeros(1, dtype=int))
    return found


@pytest.mark.parametrize("name", ["unfused", "fused-distsm", "fused-gemm-sm", "fused-gemm-distsm"])
@pytest.mark.parametrize("shape", [(8, 64, 8), (7, 100, 13), (17, 35, 5), (1, 1, 1), (1, 3, 130)])
def test_every_mapping_of_a_space_is_accepted_and_none_comes_twice(
    name: str, shape: tuple[int, int, int]
):
    workload, machine = gemm_softmax(*shape), load("edge")
    tree, homes = _tree("edge", name)
    found = spaces(workload, machine, tree)
    for space in found:
        factors = space.factors(np.arange(space.size))
        rows = np.array(list(factors.values()))
        assert len(np.unique(rows, axis=1).T) == space.size
        others: dict[str, np.ndarray] = {}
        for other in found:
            if other is not space:
                others |= other.factors(np.array([0]))
        # raises for a factor that does not cover, or has steps with nothing to do
        Mapping.from_factors(
            workload, strategy=name, tree=tree, homes=homes, factors={**others, **factors}
        )
        for factor, values in factors.items():
            if factor.endswith(("_sx", "_sy")):
                assert np.all(values <= 2), factor


def test_all_units_are_used_where_there_is_work():
    factors = _all_factors(gemm_softmax(8, 64, 8), "fused-gemm-distsm")
    for factor in ("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"):
        assert np.all(factors[factor] == 2)
    # three columns occupy three cores of one cluster at most
    factors = _all_factors(gemm_softmax(8, 3, 8), "fused-gemm-distsm")
    spread = np.prod(
        [factors[f"N_{level}_{way}"] for level in ("dram", "gb") for way in ("sx", "sy")], axis=0
    )
    assert np.all(spread <= 4)
    assert np.all(spread >= 2)


def test_a_space_against_brute_force():
    # 4 x 32 x 4 on the edge machine: M over 4 slots, 2 columns a core over 2 slots, K over 2
    workload, machine = gemm_softmax(4, 32, 4), load("edge")
    tree, homes = _tree("edge", "fused-gemm-distsm")
    (space,) = spaces(workload, machine, tree)
    factors = space.factors(np.arange(space.size))
    slots = ("M_dram_t", "M_gb_t", "M_core_t", "M_comp", "N_core_t", "N_comp", "K_core_t", "K_comp")
    found = {tuple(int(factors[s][i]) for s in slots) for i in range(space.size)}
    spread = dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2)
    wanted = {
        values
        for values in itertools.product(
            (1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2), (1, 2), (1, 2, 4), (1, 2, 4)
        )
        if math.prod(values[:4]) == 4 and math.prod(values[4:6]) == 2 and math.prod(values[6:]) == 4
    }
    assert found == wanted
    one = dict(zip(slots, next(iter(wanted)), strict=True))
    assert Mapping.from_factors(
        workload, strategy="s", tree=tree, homes=homes, factors={**spread, **one}
    )
    with pytest.raises(MappingError):
        Mapping.from_factors(
            workload, strategy="s", tree=tree, homes=homes, factors={**spread, **one, "M_comp": 64}
        )


@pytest.mark.parametrize(
    ("name", "parts"), [("unfused", 2), ("fused-distsm", 2), ("fused-gemm-distsm", 1)]
)
def test_parts_share_no_factor(name: str, parts: int):
    tree, _ = _tree("edge", name)
    found = spaces(gemm_softmax(8, 64, 8), load("edge"), tree)
    assert len(found) == parts
    names = [set(space.factors(np.array([0]))) for space in found]
    assert all(not (a & b) for a, b in itertools.combinations(names, 2))
