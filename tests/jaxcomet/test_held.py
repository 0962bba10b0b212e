"""What a memory holds at each moment: tensors read again whole, and results in place."""

from jaxcomet import gemm_layernorm, gemm_softmax, strategies
from jaxcomet.cost import evaluate
from jaxcomet.mapping import (
    Compute,
    Loop,
    Node,
    Temporal,
)
from tests.jaxcomet.softmax_trees import (
    FULL,
    IN_PLACE,
    SOFTMAX,
    calls,
    peak,
    priced,
    r2v,
    steps,
)


def test_a_tensor_that_is_reduced_and_read_again_is_held_whole():
    # blocks of 2 rows; the maximum and the exponentials walk over the columns in 4 steps each, so
    # between the two all 16 columns of the 2 rows are there, not the 4 of a step
    def vector(name: str) -> Node:
        loops = (Loop("N", ("N_glb_t",)),)
        return Temporal("glb", loops, Compute(name, (Loop("M", ("M_comp",)), Loop("N", ("N_v",)))))

    gemm = Temporal(
        "glb",
        (),
        Compute("gemm", (Loop("M", ("M_comp",)), Loop("K", ("K_comp",)), Loop("N", ("N_comp",)))),
    )
    tree = steps("M", gemm, *(vector(n) for n in SOFTMAX[1:]))
    factors = {"M_dram_t": 4, "M_comp": 2, "K_comp": 4, "N_comp": 16, "N_glb_t": 4, "N_v": 4}
    needed, held = peak(priced(tree, factors))
    # inputs and output stream through, with a place for the whole run: A 2 x 4, B 4 x 16, H 2 x 16
    streams = {"A": 8, "B": 64, "H": 32}
    assert held == {
        "gemm": {**streams, "C": 32},
        "rowmax": {**streams, "C": 32, "D": 2},
        "exp": {**streams, "C": 32, "D": 2, "F": 32},
        "rowsum": {**streams, "F": 32, "G": 2},
        "div": {**streams, "F": 32, "G": 2},
    }
    assert needed == 8 + 64 + 32 + 32 + 2 + 32


def test_in_place_a_result_takes_the_room_of_an_operand_that_nobody_reads_later():
    tree = steps("M", *calls(*SOFTMAX))
    factors = {"M_dram_t": 4, **FULL, "M_comp": 2}
    apart, _ = peak(priced(tree, factors))
    assert apart == 8 + 64 + 32 + (32 + 2 + 32)
    together, held = peak(priced(tree, factors, rules=IN_PLACE))
    # exp writes F over C, the division writes H over F: one matrix of 2 x 16 at any time
    for name in ("gemm", "rowmax", "exp", "rowsum"):
        assert sum(v for t, v in held[name].items() if t in "CFH") == 32
    assert together == 8 + 64 + (32 + 2)


def test_in_place_never_where_the_operand_is_read_again():
    # LayerNorm's square F may not take the room of the difference E, which the division reads
    workload = gemm_layernorm(8, 16, 4, vector_bits=8)
    strategy = strategies.get("gemm-layernorm", "fused-gemm-distln")
    mapping = strategy.build(workload, r2v(), {"M_dram_t": 4, **FULL, "M_comp": 2})
    _, held = peak(evaluate(workload, mapping, r2v(), conventions=IN_PLACE))
    matrices = {n: sorted(t for t in m if t in "CEFH") for n, m in held.items()}
    assert matrices["square"] == ["E", "F"]
    assert matrices["squaresum"] == ["E", "F"]


def test_in_place_not_where_the_result_is_wider():
    # F of 16 bits cannot take the room of C of 8 bits
    workload = gemm_softmax(8, 16, 4, fused_exp=True)
    tree = steps("M", *calls(*SOFTMAX))
    factors = {"M_dram_t": 4, **FULL, "M_comp": 2}
    _, held = peak(priced(tree, factors, workload, rules=IN_PLACE))
    assert {"C", "F"} <= set(held["exp"])
    assert held["exp"]["F"] == 2 * 32
