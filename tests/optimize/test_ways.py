"""Which ways there are: options, loop orders, and what is left out because it is the same."""

import itertools

import pytest

from jaxcomet import attention, gemm, gemm_softmax, strategies
from jaxcomet.hardware import load
from jaxcomet.optimize.enumeration import enumerate_way
from jaxcomet.optimize.pricing import OBJECTIVES, Objective
from jaxcomet.optimize.space import Scope
from jaxcomet.optimize.ways import candidates, distinct_orders, way, ways
from jaxcomet.rewrite import rewritten


def test_the_orders_of_a_product_are_three_one_for_each_innermost_loop():
    op, machine = gemm(64, 64, 64), load("r2")
    tree = strategies.get("gemm", "tiled").planned(op, machine).tree
    for level in ("dram", machine.levels[-1].name):
        own_and_others = 1 + len(distinct_orders(op, tree, level))
        assert own_and_others == 3
    found = ways(op, machine, candidates("gemm", {}))
    assert len(found) == 3
    found = ways(op, machine, candidates("gemm", {"order": "all"}))
    orders = [w.options["order"] for w in found]
    assert [len(o) for o in orders] == [3] * 3 + [4] * 6
    assert len({o[2] for o in orders[:3]}) == 3
    # a slice belongs to the innermost loop and to one of the two dimensions of what that leaves
    assert len({o[2:] for o in orders[3:]}) == 6
    found = ways(op, machine, candidates("gemm", {"order": "all"}), loop_orders="all")
    assert len(found) == 27  # with three at the other level


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_orders_left_out_of_a_product_are_never_better(objective: Objective):
    # a small buffer makes the loop orders matter: three tiles of 8 x 8 take 192 B
    op = gemm(8, 16, 32)
    machine = load("r2", [("memory.glb.capacity", "150 B")])
    strategy = strategies.get("gemm", "tiled")
    kept = ways(op, machine, candidates("gemm", {"order": "all"}), loop_orders="all")
    best = min(enumerate_way(op, machine, w, objective=objective).key for w in kept)
    inner = machine.levels[-1].name
    slices = {o[2:]: o for o in strategy.options["order"] if len(o) == 4}
    outer = [("NMK", "".join(a)) for a in itertools.permutations("MNK")]
    # both orders of the two loops around what is sliced
    for last, sliced in itertools.permutations("MNK", 2):
        (third,) = set("MNK") - {last, sliced}
        option = slices[last + sliced]
        outer += [(option, sliced + third + last), (option, third + sliced + last)]
    every = [
        way(op, machine, strategy, {"order": option}, {"dram": order, inner: "".join(b)})
        for option, order in outer
        for b in itertools.permutations("MNK")
    ]
    keys = [enumerate_way(op, machine, w, objective=objective).key for w in every]
    assert len(keys) == (6 + 12) * 6
    assert best == min(keys)
    assert len(set(keys)) > 1  # the orders do differ


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["latency", "energy"])
def test_the_orders_left_out_of_attention_are_never_better(objective: Objective):
    op, machine = attention(1, 1, 8, 16, 4), load("r2v", [("memory.glb.capacity", "512 B")])
    strategy = strategies.get("attention", "flash")
    plan = strategy.planned(op, machine)
    level = machine.levels[-1].name
    orders = distinct_orders(rewritten(op, plan.rewrites), plan.tree, level)
    best = min(
        enumerate_way(
            op,
            machine,
            way(op, machine, strategy, {}, {level: o} if o else {}),
            objective=objective,
        ).key
        for o in ("", *orders)
    )
    every = ["".join(o) for o in itertools.permutations("MNKL")]
    keys = [
        enumerate_way(
            op, machine, way(op, machine, strategy, {}, {level: o}), objective=objective
        ).key
        for o in every
    ]
    assert best <= min(keys)


def test_what_is_not_given_is_tried_and_all_means_all():
    def options(given: dict[str, str]) -> set[tuple[str, str]]:
        (one,) = candidates("gemm-softmax", given, ["fused-gemm-distsm"])
        return {(o.get("weights", ""), o.get("binding", "")) for o in one[1]}

    assert options({}) == {("resident", ""), ("streamed", "")}
    assert options({"weights": "streamed"}) == {("streamed", "")}
    assert options({"weights": "resident", "binding": "all"}) == {
        ("resident", "sequential"),
        ("resident", "pipelined"),
    }


def test_a_way_that_the_scope_refuses_says_why():
    op, machine = gemm_softmax(4, 64, 8), load("edge")
    tried = candidates("gemm-softmax", {"weights": "resident"})
    found = ways(op, machine, tried, scope=Scope(fixed=(("N_dram_t", 2),)))
    refused = {w.strategy.name: w.refusal for w in found if w.refusal}
    assert set(refused) == {"fused-gemm-distsm", "fused-gemm-sm"}  # resident weights: no such loop
    assert "fixed N_dram_t: no such factor; there are M_dram_t" in refused["fused-gemm-distsm"]
    possible = [w for w in found if not w.refusal]
    assert {w.strategy.name for w in possible} == {"unfused", "fused-distsm"}
    for one in possible:
        columns = [a for s in one.spaces for a in s.axes if "N_dram_t" in a.names]
        assert all((a.splits[:, a.names.index("N_dram_t")] == 2).all() for a in columns)


def test_a_value_that_leaves_no_split_is_refused():
    op, machine = gemm(16, 16, 16), load("r2")
    found = ways(op, machine, candidates("gemm", {}), scope=Scope(fixed=(("M_dram_t", 17),)))
    assert all("fixed M_dram_t=17: leaves no split of M = 16" in w.refusal for w in found)
