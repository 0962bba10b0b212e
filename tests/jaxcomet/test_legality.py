"""What no machine can execute is refused: five rules, each with a tree that breaks it.

The trees are written by hand for a softmax after a GEMM (five operations: gemm, rowmax, exp,
rowsum, div) on machine r2v, a buffer below DRAM. A single illegal mapping raises, an illegal row of
a batch is infeasible and says why, and a search never returns one.
"""

import dataclasses

import numpy as np
import pytest

from jaxcomet import attention, strategies
from jaxcomet.cost import evaluate
from jaxcomet.hardware import Machine, Memory
from jaxcomet.mapping import (
    Collective,
    Compute,
    Group,
    Loop,
    Mapping,
    MappingError,
    Node,
    Spatial,
    Temporal,
    factor_names,
    walk,
)
from jaxcomet.optimize.enumeration import enumerate_mappings
from jaxcomet.rewrite import rewritten
from jaxcomet.strategies import Strategy
from jaxcomet.strategies.strategy import Plan
from jaxcomet.workload import CompoundOp, Operation, Tensor, build
from tests.jaxcomet.softmax_trees import (
    FULL,
    HOMES,
    IN_PLACE,
    RULES,
    SOFTMAX,
    call,
    calls,
    mapping_of,
    peak,
    priced,
    r2v,
    refused,
    softmax,
    steps,
    units_along,
)

# -- the legal tree, and the five rules ------------------------------------------------------------


def test_rows_in_steps_are_legal():
    cost = priced(steps("M", *calls(*SOFTMAX)), {"M_dram_t": 4, **FULL, "M_comp": 2})
    assert cost.feasible
    assert cost.reasons() == ()
    assert cost.root_traffic_bytes == cost.compulsory_bytes == 8 * 4 + 4 * 16 + 8 * 16


def test_order_an_operand_is_made_before_it_is_read():
    refused(
        "mapping by-hand: exp reads D before it is made; put its maker before it",
        steps("M", *calls("gemm", "exp", "rowmax", "rowsum", "div")),
        FULL,
    )


def test_loops_a_reduction_ends_before_its_result_is_used():
    tree = steps("N", *calls(*SOFTMAX))
    refused(
        "mapping by-hand: exp reads D inside a loop over N, along which rowmax is not finished "
        "before the loop's end",
        tree,
        {**FULL, "N_dram_t": 4, "N_comp": 4},
    )
    # a loop of one step harms nobody
    assert priced(tree, FULL).feasible


def test_loops_a_contraction_ends_before_its_result_is_used():
    refused(
        "mapping by-hand: rowmax reads C inside a loop over K, along which gemm is not finished "
        "before the loop's end",
        steps("K", *calls(*SOFTMAX)),
        {**FULL, "K_dram_t": 2, "K_comp": 2},
    )


def _spread(*combined: str) -> Node:
    """Columns over the units; the row results named are combined between them."""
    nodes: list[Node] = []
    for name in SOFTMAX:
        nodes.append(units_along("N", call(name)))
        tensor, function = {"rowmax": ("D", "max"), "rowsum": ("G", "add")}.get(name, ("", ""))
        if tensor in combined:
            part = (Loop("M", ("M_comp",)),)
            nodes.append(
                Collective("all_reduce", tensor, "glb", ("N_dram_sx",), (), part, function)
            )
    return Temporal("dram", (), Group(tuple(nodes)))


SPREAD = {**FULL, "N_dram_sx": 4, "N_comp": 4}


@pytest.mark.parametrize(
    ("combined", "user", "tensor"), [(("G",), "exp", "D"), (("D",), "div", "G")]
)
def test_units_parts_are_combined_before_they_are_used(
    combined: tuple[str, ...], user: str, tensor: str
):
    refused(
        f"mapping by-hand: {user} uses {tensor}, of which each unit along N_dram_sx has a part "
        f"only; put an all_reduce of {tensor} before it",
        _spread(*combined),
        SPREAD,
        machine=r2v(units=4),
    )
    one = priced(_spread(*combined), FULL, machine=r2v(units=4))
    assert one.feasible


def test_units_combined_parts_are_legal():
    assert priced(_spread("D", "G"), SPREAD, machine=r2v(units=4)).feasible


def test_units_a_result_is_not_left_in_parts():
    # the GEMM's contraction over the units, and nothing adds up
    tree = Temporal("dram", (), units_along("K", call("gemm")))
    workload = build(
        "product",
        operations=(softmax().operations[0],),
        tensors=tuple(Tensor(name=n, dims=tuple(d), bits=8) for n, d in _SHAPES[:3]),
        sizes={"M": 8, "N": 16, "K": 4},
    )
    refused(
        "mapping by-hand: result C is left in parts on the units along K_dram_sx; put a reduce or "
        "an all_reduce of C after its maker",
        tree,
        {**FULL, "K_dram_sx": 4, "K_comp": 1},
        workload=workload,
        machine=r2v(units=4),
        homes={},
    )


_SHAPES = (("A", "MK"), ("B", "KN"), ("C", "MN"))


def test_place_a_value_is_read_on_the_units_that_made_it():
    nodes = [
        units_along("M" if name == "gemm" else "N", call(name, "MKN" if name == "gemm" else "MN"))
        for name in SOFTMAX
    ]
    refused(
        "mapping by-hand: C is made by gemm on units spread by M_dram_sx and read in glb by rowmax "
        "on units spread by N_dram_sx; spread them alike, or put a gather, broadcast or all_to_all "
        "of C between",
        Temporal("dram", (), Group(tuple(nodes))),
        # every operation is covered without the units, so only the place is wrong
        {**FULL, "M_dram_sx": 1, "N_dram_sx": 1},
        machine=r2v(units=4),
    )


def test_place_a_value_is_handed_over_on_the_way_to_its_user():
    # a second buffer, to which no engine is connected
    machine = r2v()
    glb = machine.memories["glb"]
    other = dataclasses.replace(glb, name="aside")
    both: dict[str, Memory] = {**machine.memories, "aside": other}
    refused(
        "mapping by-hand: C is handed over in aside, which is not on its way to gemm (dram > glb); "
        "expected dram or glb",
        steps("M", *calls(*SOFTMAX)),
        FULL,
        machine=dataclasses.replace(machine, memories=both),
        homes={**HOMES, "C": "aside"},
    )


def test_siblings_at_work_in_parallel_need_nothing_of_each_other():
    body = (*calls("gemm", "rowmax"), Group(calls("exp", "rowsum"), "parallel"), call("div"))
    refused(
        "mapping by-hand: rowsum reads F of exp, which runs beside it in a parallel group; bind "
        "them sequential or pipelined",
        steps("M", *body),
        FULL,
    )


def test_a_tree_that_leaves_out_an_operation_is_refused():
    for missing in SOFTMAX:
        tree = steps("M", *calls(*(n for n in SOFTMAX if n != missing)))
        factors = {n: FULL[n] for n in factor_names(tree) if n in FULL}
        with pytest.raises(MappingError) as error:
            mapping_of(tree, factors)
        assert str(error.value) == (
            f"tree: runs {missing} of gemm-softmax 0 times; expected every operation once"
        )
    with pytest.raises(MappingError) as error:
        mapping_of(steps("M", *calls(*SOFTMAX, "div")), FULL)
    assert str(error.value).startswith("tree: runs div of gemm-softmax 2 times")


# -- batches and searches --------------------------------------------------------------------------


def test_in_a_batch_only_the_rows_that_break_a_rule_are_infeasible():
    tree = steps("N", *calls(*SOFTMAX))
    factors = {**FULL, "N_dram_t": np.array([1, 4, 1, 2]), "N_comp": np.array([16, 4, 16, 8])}
    cost = priced(tree, factors)
    assert np.asarray(cost.feasible).tolist() == [True, False, True, False]
    assert cost.row(0).reasons() == ()
    assert cost.row(1).reasons() == (
        "exp reads D inside a loop over N, along which rowmax is not finished before the loop's "
        "end",
        "div reads G inside a loop over N, along which rowsum is not finished before the loop's "
        "end",
    )


def test_in_a_batch_units_that_are_not_used_need_no_exchange():
    spread = priced(
        _spread("G"),
        {**FULL, "N_dram_sx": np.array([4, 1]), "N_comp": np.array([4, 16])},
        machine=r2v(units=4),
    )
    assert np.asarray(spread.feasible).tolist() == [False, True]
    # the exponentials of different maxima, and their sums, are of no use either
    assert spread.row(0).reasons()[0] == (
        "exp uses D, of which each unit along N_dram_sx has a part only; put an all_reduce of D "
        "before it"
    )


def _columns_outside(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    """A loop over the columns around all five operations."""
    return Plan(steps("MN", *calls(*SOFTMAX)), dict(HOMES))


def test_a_search_returns_no_illegal_mapping():
    # 16 splits of M = 8 times N = 16 times K = 4; legal are those with all columns in one step
    strategy = Strategy(name="columns-outside", options={}, plan=_columns_outside)
    for objective in ("latency", "energy"):
        found = enumerate_mappings(
            softmax(), r2v(), strategy, conventions=RULES, objective=objective
        )
        (space,) = found.searched
        # M in 4 ways over two factors, N in 5, K in none but its call
        assert space.size == 4 * 5
        assert space.feasible == 4
        assert found.mapping.factors["N_dram_t"] == 1
        assert found.cost.feasible


# -- what other tools map so -----------------------------------------------------------------------

SIDE = {"M": 512, "N": 512, "K": 512}
"""GEMM-softmax and GEMM-layernorm of the comparison with other tools."""


def test_one_loop_around_the_maximum_and_its_use_is_refused():
    """accelforge 1.0.489 at 128 KiB: n in 4 outermost; GEMM, max, exp, sum, normalise inside."""
    factors = {"N_dram_t": 4, "N_comp": 128, "M_comp": 512, "K_dram_t": 16, "K_comp": 32}
    gemm = steps("K", call("gemm"))
    refused(
        "mapping by-hand: exp reads D inside a loop over N, along which rowmax is not finished "
        "before the loop's end",
        steps("N", gemm, *calls(*SOFTMAX[1:])),
        factors,
        workload=softmax(**SIDE),
    )


def test_sibling_loops_need_the_whole_of_what_passes_between_them():
    """accelforge 1.0.467 at 128 KiB: the order is right, but C does not fit.

    Two sibling loops over n, in which it reserves a tile of C: 83,968 bytes. C and then F live as a
    whole from the first loop to the last use: 262,144 bytes of each.
    """
    gemm = steps("K", call("gemm"))
    tree = steps(
        "M",
        steps("N", gemm, call("rowmax")),
        steps("N", *calls("exp", "rowsum")),
        steps("N", call("div")),
    )
    factors = {"N_dram_t": 4, "N_comp": 128, "M_comp": 512, "K_dram_t": 16, "K_comp": 32}
    cost = priced(tree, factors, softmax(**SIDE), rules=IN_PLACE)
    assert not cost.feasible
    needed, held = peak(cost)
    streams = 512 * 32 + 32 * 128  # the tiles of A and B; H takes the place of F
    assert held["gemm"] == {"A": 512 * 32, "B": 32 * 128, "C": 512 * 512}
    assert held["rowmax"]["C"] == 512 * 512
    assert held["exp"]["F"] == 512 * 512  # in the place of C
    assert needed == 512 * 512 + streams + 512  # and a row of maxima, or of sums
    (reason,) = cost.reasons()
    assert reason.startswith(f"glb: needs {needed:,.0f} bytes, has 131,072; during ")
    # with room for it, the same tree is fine and moves what it must
    roomy = priced(tree, factors, softmax(**SIDE), r2v(1 << 20), rules=IN_PLACE)
    assert roomy.feasible


def _op(name: str, kind: str, inputs: str, output: str) -> Operation:
    return Operation(
        name=name,
        kind=kind,  # pyright: ignore[reportArgumentType]
        function={"contract": "mac", "reduce": "add", "map": "div"}[kind],
        inputs=tuple(inputs.split()),
        output=output,
        bits=8,
    )


def test_three_sibling_loops_of_a_layernorm_do_not_fit():
    """accelforge at 128 KiB: m in 2; three loops over n: GEMM + mean | variance | normalise."""
    workload = build(
        "three-pass-layernorm",
        operations=(
            _op("gemm", "contract", "A B", "C"),
            _op("mean", "reduce", "C", "U"),
            _op("variance", "reduce", "C U", "G"),
            _op("normalize", "map", "C U G", "H"),
        ),
        tensors=tuple(
            Tensor(name=n, dims=tuple(d), bits=8)
            for n, d in (*_SHAPES, ("U", "M"), ("G", "M"), ("H", "MN"))
        ),
        sizes=SIDE,
    )
    tree = steps(
        "M",
        steps("N", steps("K", call("gemm")), call("mean", "MN")),
        steps("N", call("variance", "MN")),
        steps("N", call("normalize", "MN")),
    )
    factors = {"M_dram_t": 2, "M_comp": 256, "N_dram_t": 4, "N_comp": 128}
    factors |= {"K_dram_t": 16, "K_comp": 32}
    homes = dict.fromkeys("CUG", "glb")
    cost = priced(tree, factors, workload, homes=homes, rules=IN_PLACE)
    assert not cost.feasible
    # C's 256 x 512 alone fill the 131,072 bytes; A and B need room, too
    needed, held = peak(cost)
    assert held["gemm"] == {"A": 256 * 32, "B": 32 * 128, "C": 131_072}
    assert needed > 131_072
    # half the rows fit
    half = {**factors, "M_dram_t": 4, "M_comp": 128}
    assert priced(tree, half, workload, homes=homes, rules=IN_PLACE).feasible


ROW = {"M": 1, "N": 65_536, "K": 32}
"""One row of 65,536 bytes; the buffer holds 16,384."""


def test_a_row_longer_than_the_buffer_cannot_stay_in_it():
    for strategy, options in (
        ("fused-gemm-distsm", {"weights": "streamed"}),
        ("fused-gemm-distsm", {}),
    ):
        found = enumerate_mappings(
            softmax(**ROW),
            r2v(16_384),
            strategies.get("gemm-softmax", strategy),
            options=options,
            conventions=IN_PLACE,
            objective="energy",
        )
        assert found.searched[0].feasible == 0
        assert not found.cost.feasible
        (reason,) = found.cost.reasons()
        assert "glb: needs " in reason
        assert "C 65,536 x 1 B" in reason


def test_a_row_longer_than_the_buffer_goes_through_dram():
    """Where other tools return nothing, the mapping with C and F in DRAM is there and is legal."""
    product = Loop("M", ("M_comp",)), Loop("K", ("K_comp",)), Loop("N", ("N_gemm_comp",))
    gemm = Temporal(
        "dram",
        (Loop("N", ("N_gemm_t",)),),
        Temporal("glb", (), Compute("gemm", product)),
    )
    tree = Group((gemm, *(steps("MN", node) for node in calls(*SOFTMAX[1:]))))
    factors = {"N_gemm_t": 256, "N_gemm_comp": 256, "K_comp": 32}  # 8 KiB of B at a time
    factors |= {"N_dram_t": 16, "N_comp": 4096}  # a piece of the row for each vector operation
    cost = priced(tree, factors, softmax(**ROW), r2v(16_384), homes={})
    assert cost.feasible
    n = 65_536
    # A, B, C out; C in, D out; C and D in, F out; F in, G out; F and G in, H out
    by_hand = (32 + 32 * n + n) + (n + 1) + (n + 1 + n) + (n + 1) + (n + 1 + n)
    assert cost.root_traffic_bytes == by_hand


# -- flash attention -------------------------------------------------------------------------------

ATTENTION = attention(1, 1, 8, 16, 4, vector_bits=8, fused_exp=True)


def _rebuilt(node: Node, change: dict[int, Node | None]) -> Node:
    """The tree with nodes replaced, or left out of their group."""
    if id(node) in change:
        new = change[id(node)]
        assert new is not None
        return new
    match node:
        case Temporal() | Spatial():
            return dataclasses.replace(node, body=_rebuilt(node.body, change))
        case Group():
            kept = [c for c in node.children if change.get(id(c), c) is not None]
            return dataclasses.replace(node, children=tuple(_rebuilt(c, change) for c in kept))
        case _:
            return node


def _flash_refused(
    machine: Machine, tree: Node, plan: Plan, factors: dict[str, object], sentence: str
) -> None:
    mapping = Mapping.from_factors(
        rewritten(ATTENTION, plan.rewrites),
        strategy="by-hand",
        tree=tree,
        homes=plan.homes,
        factors=factors,
        rewrites=plan.rewrites,
    )
    with pytest.raises(MappingError) as error:
        evaluate(ATTENTION, mapping, machine, conventions=RULES)
    assert str(error.value) == sentence


def test_flash_divides_after_the_last_block_of_keys():
    machine = r2v()
    flash = strategies.get("attention", "flash")
    plan = flash.planned(ATTENTION, machine)
    # rows: sequential group of (loop over key blocks, normalize)
    assert isinstance(plan.tree, Temporal)
    group = plan.tree.body
    assert isinstance(group, Group)
    blocks, normalize = group.children
    assert isinstance(blocks, Temporal)
    inside = dataclasses.replace(blocks, body=Group((blocks.body, normalize)))
    tree = dataclasses.replace(plan.tree, body=inside)
    factors: dict[str, object] = {"M_comp": 8, "N_dram_t": 4, "N_comp": 4}
    factors |= {"K_comp": 4, "L_comp": 4}
    legal = flash.build(ATTENTION, machine, factors)
    assert evaluate(ATTENTION, legal, machine, conventions=RULES).feasible
    _flash_refused(
        machine,
        tree,
        plan,
        factors,
        "mapping by-hand: normalize reads U inside a loop over N, along which rescale is not "
        "finished before the loop's end",
    )


def test_flash_with_keys_on_several_units_needs_one_maximum():
    machine = r2v(units=4)
    flash = strategies.get("attention", "flash")
    plan = flash.planned(ATTENTION, machine, spread="keys")
    (exchange,) = (
        n for n, _ in walk(plan.tree) if isinstance(n, Collective) and n.function == "max"
    )
    assert (exchange.function, exchange.tensor) == ("max", "X")
    tree = _rebuilt(plan.tree, {id(exchange): None})
    factors: dict[str, object] = {"M_comp": 8, "N_dram_t": 2, "N_dram_sx": 4, "N_comp": 2}
    factors |= {"K_comp": 4, "L_comp": 4}
    legal = flash.build(ATTENTION, machine, factors, spread="keys")
    assert evaluate(ATTENTION, legal, machine, conventions=RULES).feasible
    _flash_refused(
        machine,
        tree,
        plan,
        factors,
        "mapping by-hand: runmax uses X, of which each unit along N_dram_sx, N_dram_sy has a "
        "part only; put an all_reduce of X before it",
    )
