"""The cost model against walks over every step: cycles and bytes of random mappings of every tree.

The mappings are small, so that each step can be visited; they are drawn over all workloads,
strategies and options that jaxcomet offers (`drawing`), on the edge and the cloud machine and on
random machines with the small numbers at which roundings and stalls show.
"""

import dataclasses
from functools import cache

import pytest

from jaxcomet import gemm, gemm_softmax, strategies
from jaxcomet.cost import evaluate
from jaxcomet.hardware import load
from jaxcomet.mapping import Compute, Group, Loop, Mapping, Node, Spatial, Temporal
from tests.reference import agreement, cycle_walk

OFFERED = agreement.offered()
each_strategy = pytest.mark.parametrize(("builder", "strategy"), OFFERED)


@cache
def _compared() -> dict[tuple[str, str], tuple[int, list[str], str]]:
    """All strategies, 30 mappings of each for GEMM-softmax and 6 for the others."""
    counts = [30 if b == "gemm_softmax" else 6 for b, _ in OFFERED]
    arguments = [(b, s, n, 1) for (b, s), n in zip(OFFERED, counts, strict=True)]
    return dict(zip(OFFERED, agreement.apart(agreement.costs, arguments), strict=True))


@each_strategy
def test_cycles_and_bytes_equal_those_of_a_walk_step_by_step(builder: str, strategy: str):
    count, wrong, reason = _compared()[builder, strategy]
    assert count > 0, f"docs/equations.md does not describe {reason}"
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.slow
@each_strategy
def test_cycles_and_bytes_equal_those_of_a_long_walk(builder: str, strategy: str):
    ((count, wrong, _),) = agreement.apart(agreement.costs, [(builder, strategy, 250, 2)])
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:5])


def test_the_drawn_mappings_show_every_term():
    drawn = [("gemm_softmax", s, 60, 3) for s in ("unfused", "fused-gemm-distsm")]
    found = agreement.apart(agreement.terms, drawn)
    for term in ("up", "down", "dependent", "stall", "extra", "refill", "saved"):
        assert sum(f.get(term, 0) for f in found) >= 10, term


# -- the walk itself, by hand ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "total"),
    [("fused-gemm-distsm", 450), ("fused-distsm", 525), ("unfused", 755), ("fused-gemm-sm", 798)],
)
def test_the_walk_counts_what_is_derived_by_hand(strategy: str, total: int):
    # tests/jaxcomet/test_latency.py works these four sums out term by term
    machine, workload = load("edge"), gemm_softmax(2, 32, 8)
    spread = dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2)
    calls = {"M_comp": 2, "N_comp": 2}
    factors = {**spread, **calls, "K_comp": 8}
    if strategy in ("unfused", "fused-distsm"):
        factors |= {f"softmax.{n}": f for n, f in {**spread, **calls}.items()}
    if strategy == "fused-gemm-sm":
        factors |= {"softmax.N_core_t": 16, "softmax.N_comp": 2}
    mapping = strategies.build(workload, machine, strategy, factors)
    assert cycle_walk.cycles(workload, mapping, machine) == total


def test_the_walk_counts_the_example_of_the_documentation():
    # docs/equations.md, 8
    machine, workload = load("edge"), gemm_softmax(64, 256, 128)
    units = dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2)
    steps = {"M_dram_t": 2, "M_gb_t": 2, "M_comp": 16, "N_comp": 16, "K_comp": 128}
    mapping = strategies.build(workload, machine, "fused-gemm-distsm", {**units, **steps})
    assert cycle_walk.cycles(workload, mapping, machine) == 4597


# -- trees that no strategy builds -----------------------------------------------------------------


def test_a_partial_result_that_has_stayed_is_not_read_back():
    # K in 2 x 2 steps, M in 2 between them. C leaves the engine in the second step of M, and comes
    # back when K goes on: 2 tiles. In the run that follows each, it has stayed.
    workload, machine = gemm(2, 1, 4), load("edge")
    call = Compute("gemm", tuple(Loop(d, (f"{d}_comp",)) for d in "MKN"))
    core = Temporal("core", (Loop("K", ("K_core_t",)),), Temporal("core", (), call))
    outer = tuple(Loop(d, (f"{d}_dram_t",)) for d in "KM")
    mapping = Mapping.from_factors(
        workload,
        strategy="by hand",
        tree=Temporal("dram", outer, Temporal("gb", (), core)),
        homes={},
        factors={"K_dram_t": 2, "M_dram_t": 2, "K_core_t": 2},
    )
    cycles, nodes = cycle_walk.visited(workload, mapping, machine)
    assert nodes[-1].refill == 2  # a tile of one byte, a cycle each
    cost = evaluate(workload, mapping, machine)
    assert cost.nodes[-1].refill_cycles == 2
    assert cost.latency_cycles == cycles


def test_stalls_that_add_up_to_whole_cycles_are_not_rounded_one_too_far():
    # The subtraction with rows outside columns, 4 x 6 steps of one cycle: a piece of C takes a
    # cycle of each step, the maximum D a sixth. Six steps before the last no D is needed any more:
    # 18 steps stall for a sixth of a cycle each, 3 cycles. In floating point 18 (1 + 1/6 - 1) > 3.
    workload, machine = gemm_softmax(4, 6, 1), load("edge")
    factors = {"M_comp": 4, "N_comp": 6, "softmax.M_comp": 4, "softmax.N_core_t": 6}
    built = strategies.build(workload, machine, "unfused", factors)

    def turned(node: Node) -> Node:
        match node:
            case Temporal(body=Compute(operation="sub")):
                return dataclasses.replace(node, loops=node.loops[::-1])
            case Temporal() | Spatial():
                return dataclasses.replace(node, body=turned(node.body))
            case Group():
                return dataclasses.replace(node, children=tuple(turned(c) for c in node.children))
            case _:
                return node

    mapping = dataclasses.replace(built, tree=turned(built.tree))
    cycles, nodes = cycle_walk.visited(workload, mapping, machine)
    (sub,) = (n for n in nodes if n.level == "core" and n.operations == ("sub",))
    assert (sub.steps, sub.stall) == (24, 3)
    assert evaluate(workload, mapping, machine).latency_cycles == cycles


@pytest.mark.slow
def test_trees_in_any_order_cost_what_a_walk_counts():
    arguments = [("gemm_softmax", s, 150, 4) for s in ("unfused", "fused-gemm-sm")]
    found = agreement.apart(agreement.disturbed_costs, arguments)
    assert sum(count for count, _, _ in found) >= 100
    wrong = [text for _, texts, _ in found for text in texts]
    assert not wrong, "\n".join(wrong[:5])
