"""Collective nodes of a mapping: every kind and algorithm by hand on the edge machine."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxcomet import gemm_softmax, strategies
from jaxcomet._compat import enable_x64
from jaxcomet.cost import algorithms, conventions, evaluate
from jaxcomet.cost.collective import CollectiveCost, check_collective, collective_cost
from jaxcomet.cost.placement import Placement
from jaxcomet.hardware import load
from jaxcomet.mapping import Collective, Loop, Mapping, MappingError, Ranks

# The clusters of the edge machine: 2 x 2, links and ports of 64 bytes per cycle, channels of 512
# bits, 5 + 2 cycles a hop, 16 lanes at 1 cycle. 1,024 elements of 16 bits are 2,048 bytes: 32
# cycles on a link.
NODE = Collective("all_reduce", "F", "gb", ("X",), ("Y",), (Loop("M", ("M",)),), function="add")
FACTORS = {"X": 2.0, "Y": 2.0, "OX": 2.0, "OY": 2.0, "M": 1024.0}
SPREAD = {
    **dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2),
    **{"M_dram_t": 16, "M_comp": 16, "N_comp": 64, "K_comp": 64},
}
MACHINE = dataclasses.replace(load("edge"), router=None)


def _placement(preset: str = "default", machine: Any = MACHINE, **factors: Any) -> Placement:
    mapping = Mapping(strategy="by hand", tree=NODE, homes=(), factors={**FACTORS, **factors})
    return Placement(gemm_softmax(1024, 64, 64), mapping, machine, conventions(preset))


def _cost(placement: Placement, **changes: Any) -> CollectiveCost:
    node = dataclasses.replace(NODE, **changes)
    check_collective(placement, node)
    return collective_cost(placement, node, 1.0, 1.0)


@pytest.mark.parametrize(
    ("algorithm", "steps", "cycles"),
    [
        ("mesh", 4, 96 + 48),  # 2 x 1.5 x 32 at the links, 3/4 of 1,024 elements on 16 lanes
        ("direct", 2, 2 * (14 + 16) + 48),  # 2 hops; two messages of 512 bytes on a link
        ("ring", 6, 6 * (7 + 8) + 48),
        ("bidirectional-ring", 6, 6 * (7 + 4) + 48),
        ("halving-doubling", 4, 2 * (7 + 16) + 2 * (7 + 8) + 48),
        ("hierarchical", 4, 2 * (7 + 16) + 2 * (7 + 8) + 48),
        ("recursive-doubling", 2, 2 * (7 + 32) + 128),
        ("tree", 4, 4 * (7 + 32) + 128),
        ("one-shot", 1, 14 + 64 + 192),
        ("auto", 2, 108),
    ],
)
def test_all_reduce_by_every_algorithm(algorithm: str, steps: int, cycles: int):
    cost = _cost(_placement(), algorithm=algorithm)
    assert cost.cycles == cycles
    assert cost.steps == steps
    assert cost.algorithm == ("direct" if algorithm == "auto" else algorithm)
    assert cost.part_bytes == 2048


@pytest.mark.parametrize(
    ("kind", "mesh", "ring_or_direct"),
    [
        # by the mesh: the longer of links and mesh, and what is combined
        ("broadcast", 14 + 32, None),  # the network copies it
        ("reduce", 14 + 96 + 192, None),  # the root takes 3 parts and adds 3 x 1,024 elements
        ("gather", 14 + 96, None),
        ("scatter", 14 + 96, None),
        ("all_gather", 2 * 96, 3 * (7 + 32)),  # each reads 3 x 2,048 bytes and writes as many
        ("reduce_scatter", 28 + 24 + 48, 3 * (7 + 8) + 48),
        ("all_to_all", 48, 14 + 16),  # by the mesh 1.5 x 32 at the links
        ("permute", 64, 7 + 32),
    ],
)
def test_every_kind(kind: Any, mesh: int, ring_or_direct: int | None):
    assert _cost(_placement(), kind=kind).cycles == mesh
    if ring_or_direct is not None:
        name = "direct" if kind in ("all_to_all", "permute") else "ring"
        assert _cost(_placement(), kind=kind, algorithm=name).cycles == ring_or_direct


@pytest.mark.parametrize(
    ("kind", "cycles"),
    [
        # links, then hops x 5 + words x 2 (as many words as hops), down with the arithmetic
        ("broadcast", 32 + 2 * 5 + 2 * 64),
        ("gather", 96 + 2 * 5 + 2 * 64),
        ("reduce", 96 + 2 * 5 + 2 * 64 + 2 * 4 * 64),
        ("all_gather", 192 + 4 * 5 + 2 * 128),
        ("permute", 64 + 5 + 2 * 32),
    ],
)
def test_kinds_with_the_rules_of_the_program(kind: Any, cycles: int):
    assert _cost(_placement("comet-program"), kind=kind).cycles == cycles


def test_energy_of_an_algorithm():
    # 2 x 3 x 2,048 bytes read at 474 / 2,048 pJ and written at 532 / 2,048; 3 x 1,024 additions
    cost = _cost(_placement(), algorithm="ring")
    assert cost.sent_bytes == 12288
    assert cost.energy_pj == pytest.approx(6 * (474 + 532) + 3072 * 0.11, rel=1e-12)
    # 64 bytes a word, each over one router
    with_routers = _cost(_placement(machine=load("edge")), algorithm="ring")
    twice = _cost(_placement(machine=load("edge")), algorithm="ring", bits=32)
    assert with_routers.mesh_energy_pj > 0
    assert with_routers.energy_pj == pytest.approx(cost.energy_pj + with_routers.mesh_energy_pj)
    assert twice.mesh_energy_pj == pytest.approx(2 * with_routers.mesh_energy_pj, rel=1e-12)


def test_payload_width_scales_bytes_and_not_the_arithmetic():
    full = _cost(_placement(), algorithm="ring")
    half = _cost(_placement(), algorithm="ring", bits=8)
    assert half.cycles == 6 * (7 + 4) + 48
    assert half.arithmetic_cycles == full.arithmetic_cycles == 48
    assert half.sent_bytes == full.sent_bytes / 2
    assert half.energy_pj == pytest.approx(3 * (474 + 532) + 3072 * 0.11, rel=1e-12)
    assert _cost(_placement(), bits=8).cycles == 28 + 24 + 48  # by the mesh, links take 48
    # an input moves at the width of the operation that reads it: gemm's 8 bits
    assert _cost(_placement(), kind="permute", tensor="B").part_bytes == 1024


def test_levels():
    """Cores of a cluster, 2 x 2, then clusters, 2 x 2: halves of 2,048 bytes along four sides."""
    outer = (Ranks("gb", ("OX",), ("OY",)),)
    cost = _cost(_placement(), memory="ob", outer=outer, algorithm="hierarchical")
    assert cost.participants == 16
    assert cost.steps == 8
    assert cost.cycles == 2 * (4 * 7 + 16 + 8 + 4 + 2) + 60
    # inside, 4 clusters x 2 x 3 x 2,048 bytes at 201 / 4,096 pJ; across, 2 x 3 x 2,048 bytes
    inside, across = 24 * 2048 * (72 + 129) / 4096, 6 * (474 + 532)
    assert cost.energy_pj == pytest.approx(inside + across + 15 * 1024 * 0.11, rel=1e-12)
    assert _cost(_placement(), memory="ob", outer=outer, algorithm="auto").cycles == cost.cycles


def test_one_participant_costs_nothing():
    for kind in ("broadcast", "reduce", "gather", "all_gather", "all_reduce", "permute"):
        for algorithm in ("mesh", "auto", "direct"):
            for preset in ("default", "comet-program"):
                place = _placement(preset, X=1.0, Y=1.0)
                cost = _cost(place, kind=kind, algorithm=algorithm)
                assert (cost.cycles, cost.energy_pj, cost.sent_bytes) == (0.0, 0.0, 0.0)


def _changed(node: Any, **changes: Any) -> Any:
    """A tree with all its collectives changed."""
    if isinstance(node, Collective):
        return dataclasses.replace(node, **changes)
    if hasattr(node, "body"):
        return dataclasses.replace(node, body=_changed(node.body, **changes))
    if hasattr(node, "children"):
        return dataclasses.replace(
            node, children=tuple(_changed(c, **changes) for c in node.children)
        )
    return node


def test_auto_takes_the_fastest_for_each_row_of_a_batch():
    elements = np.array([1.0, 16.0, 64.0, 1024.0, 65536.0])
    names = ("mesh", *algorithms("all_reduce", "mesh"))
    with enable_x64(True):
        place = _placement(M=elements, X=4.0, Y=4.0)
        auto = _cost(place, algorithm="auto")
        each = [np.asarray(_cost(place, algorithm=name).cycles) for name in names]
    np.testing.assert_array_equal(auto.cycles, np.min(each, axis=0))
    chosen = [auto.algorithm_at(row) for row in range(elements.size)]
    assert chosen == [names[i] for i in np.argmin(each, axis=0)]
    assert len(set(chosen)) > 1
    for row, one in enumerate(elements):
        single = _cost(_placement(M=float(one), X=4.0, Y=4.0), algorithm="auto")
        assert (single.algorithm, single.cycles) == (chosen[row], np.asarray(auto.cycles)[row])


def test_a_mapping_takes_the_algorithm_of_its_nodes():
    op, machine = gemm_softmax(256, 1024, 64), load("edge")
    mesh = strategies.build(op, machine, "fused-gemm-distsm", SPREAD)
    auto = dataclasses.replace(mesh, tree=_changed(mesh.tree, algorithm="auto"))
    before, after = evaluate(op, mesh, machine), evaluate(op, auto, machine)
    # 16 elements of 16 bits between 2 x 2, half of a cycle a message: mesh 28 + 1 and 1 to add,
    # direct 28 + 1/2 and 1; recursive doubling 2 x 7.5 and 2; one-shot 14 + 1 and 3
    assert {(c.algorithm, c.cycles) for c in before.collectives} == {("mesh", 30.0)}
    assert {(c.algorithm, c.cycles) for c in after.collectives} == {("recursive-doubling", 17.0)}
    saved = sum(13.0 * float(c.executions) for c in after.collectives)
    assert float(before.latency_cycles) - float(after.latency_cycles) == saved > 0


def test_the_list_of_collectives_holds_the_implied_ones():
    op, machine = gemm_softmax(256, 1024, 64), load("edge")
    cost = evaluate(op, strategies.build(op, machine, "fused-gemm-distsm", SPREAD), machine)
    found = cost.collective_list()
    explicit = [c for c in found if c.explicit]
    assert {(c.kind, c.where, c.algorithm) for c in explicit} == {
        ("all_reduce", "between gb", "mesh"),
        ("all_reduce", "between ob", "mesh"),
    }
    assert [c.cycles for c in explicit] == [float(c.cycles) for c in cost.collectives]
    assert {c.executions for c in explicit} == {16.0}
    implied = {(c.tensor, c.where): c for c in found if not c.explicit}
    # every cluster needs the same 16 x 64 rows of A, its own 64 x 256 columns of B
    a, b = implied["A", "dram to gb"], implied["B", "dram to gb"]
    assert (a.kind, a.participants, a.part_bytes, a.steps) == ("broadcast", 4, 1024, 2)
    assert (b.kind, b.participants, b.part_bytes, b.steps) == ("scatter", 4, 16384, 2)
    assert (a.executions, b.executions, a.algorithm) == (16, 1, "mesh")
    h = implied["H", "gb to dram"]
    assert (h.kind, h.part_bytes) == ("gather", 16 * 256)
    record = cost.as_dict()["collectives"][0]
    assert record["algorithm"] == "mesh"
    assert record["steps"] == 4.0
    assert "choice" not in record


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algorithm": "fast"},
            "all_reduce of F: got algorithm 'fast'; expected auto or one of me",
        ),
        ({"kind": "permute", "algorithm": "ring"}, "expected auto or one of mesh, direct"),
        ({"algorithm": "pairwise"}, "got algorithm 'pairwise'"),
        ({"outer": (Ranks("gb", (), ()),)}, "'mesh' over 2 levels; expected auto or one of hier"),
        (
            {"kind": "permute", "algorithm": "auto", "outer": (Ranks("gb", (), ()),)},
            "got 2 levels; expected one",
        ),
        ({"memory": "l2"}, "got memory 'l2'; expected one of dram, gb"),
        ({"memory": "ib"}, "memory.ib has no peer links; give it link_bandwidth"),
        ({"function": None}, "got no function"),
        ({"bits": 0}, "got bits 0; expected at least 1"),
    ],
)
def test_a_collective_that_cannot_be_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(MappingError, match=message):
        check_collective(_placement(), dataclasses.replace(NODE, **changes))
