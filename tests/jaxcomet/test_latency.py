"""Latency by hand, term by term, of a small mapping of each strategy under the default conventions.

Shape M = 2, N = 32, K = 8 on the edge machine; N over 2 x 2 clusters of 2 x 2 cores, 2 columns
each; every other factor 1 but the engine calls: 2 rows, all of K, 2 columns. Numbers of the machine
(edge.toml): DRAM 25 B/cycle for both directions together; every mesh 64 B/cycle a port, 512 bits a
channel, hop 5 and queue 2 cycles; engine ports 64 B/cycle (512 to the weights) with a hop of 1
cycle; 32 x 32 arrays; 16 lanes; 6 pipeline stages.

A move through a 2 x 2 mesh takes max(bytes at the ports, ceil(2 hops x (5 + 2) + words)), words =
bits of all distinct tiles / 512 ("mesh_volume", "mesh_queuing", "staging" of RULES); first fills
out of one memory add up, and nothing else moves, since every loop of a level above the cores has
one step.
"""

from math import ceil

import pytest

from jaxcomet import gemm_softmax, strategies
from jaxcomet.cost import Cost, evaluate
from jaxcomet.hardware import load

SPREAD = dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2)
CALLS = {"M_comp": 2, "N_comp": 2}


def _cost(strategy: str, **options: str) -> Cost:
    machine, workload = load("edge"), gemm_softmax(2, 32, 8)
    factors = {**SPREAD, **CALLS, "K_comp": 8}
    if strategy in ("unfused", "fused-distsm"):
        factors |= {f"softmax.{n}": f for n, f in {**SPREAD, **CALLS}.items()}
    if strategy == "fused-gemm-sm":
        factors |= {"softmax.N_core_t": 16, "softmax.N_comp": 2}
    return evaluate(
        workload, strategies.build(workload, machine, strategy, factors, **options), machine
    )


def move(tile_bytes: float, *, tiles: int = 1, bandwidth: float = 64, hops: int = 2) -> int:
    """A tile of so many bytes to or from each child, `tiles` of them different."""
    ports = max(ceil(tiles * tile_bytes / bandwidth), ceil(tile_bytes / 64))
    mesh = ceil(hops * (5 + 2) + (tiles * tile_bytes * 8 / 512 if hops else 0))
    return max(ports, mesh)


# -- engines, one run in a core: cycles of the calls, first fill and last drain with a hop each ----
# A is 2 x 8 and B 8 x 2 bytes from two memories at the same time, C 2 x 2 bytes.
GEMM = (2 * 32 + 32 + 2 - 2) + max(ceil(16 / 64) + 1, ceil(16 / 512) + 1) + ceil(4 / 64) + 1
# Vector operations: 2 rows of 2 elements, one instruction each; log2(16) = 4 steps a reduction; one
# piece of 4 bytes in, one row value of 2 bytes or one piece of 4 out; pipeline of 6 filled: 5.
REDUCTION = 2 * 4 + (1 + 1) + (1 + 1) + 5
EXP = 2 * 3 + (1 + 1) + (1 + 1) + 5
# Two operands through one port: 2 cycles for a step of 1, so the second row's fill stalls by 1.
TWO_OPERANDS = 2 * 1 + 2 * (1 + 1) + (1 + 1) + 1 + 5


def all_reduce(participants: int, hops: int) -> int:
    """2 row values of 2 bytes: ring bound read and written; hops of both phases; 16 lanes add."""
    ring = 2 * (participants - 1) / participants
    memory = ceil(2 * ring * 4 / 64)
    mesh = ceil(2 * hops * (5 + 2) + ring * 2 * 16 / 512)
    return max(memory, mesh) + ceil(2 * (participants - 1) / participants / 16)


EXCHANGE = all_reduce(4, 2)  # between cores, or between clusters: both are 2 x 2

# -- between the cluster memory and the cores ------------------------------------------------------
A_CORES, B_CORES = move(16), move(16, tiles=4)
C_UP = move(4, tiles=4)  # 2 x 2 results of 1 byte
PIECE = move(8, tiles=4)  # 2 x 2 elements of 2 bytes: C, E, F down, E, F, H up
ROWS_UP = move(4)  # 2 row values, equal in all cores after their exchange
ROWS_DOWN = move(4, tiles=4)  # the network of OB does not broadcast

# -- between DRAM and the clusters -----------------------------------------------------------------
A_DRAM, B_DRAM = move(16, bandwidth=25), move(64, tiles=4, bandwidth=25)
BYTES_DRAM = move(16, tiles=4, bandwidth=25)  # C or H, 2 x 8 of 1 byte a cluster
WORDS_DRAM = move(32, tiles=4, bandwidth=25)  # E or F, 2 bytes
ROWS_DRAM = move(4, bandwidth=25)  # D or G: equal in all clusters, broadcast on the way down

ROWMAX_PHASE = REDUCTION + EXCHANGE + ROWS_UP
SUM_PHASE = ROWS_DOWN + TWO_OPERANDS + EXP + REDUCTION + EXCHANGE + ROWS_UP
DIV_PHASE = ROWS_DOWN + TWO_OPERANDS + PIECE


def test_terms():
    # the numbers behind the names, worked out on paper
    assert (GEMM, REDUCTION, EXP, TWO_OPERANDS, EXCHANGE) == (100, 17, 15, 14, 30)
    assert (A_CORES, B_CORES, C_UP, PIECE, ROWS_UP, ROWS_DOWN) == (15,) * 6
    assert (A_DRAM, B_DRAM, BYTES_DRAM, WORDS_DRAM, ROWS_DRAM) == (15, 18, 15, 16, 15)


def test_fused_gemm_distsm():
    # C stays in OB, where rowmax and sub read it; D and G go to GB and back.
    gemm = GEMM + A_CORES + B_CORES
    softmax = ROWMAX_PHASE + EXCHANGE + SUM_PHASE + EXCHANGE + DIV_PHASE
    total = gemm + softmax + A_DRAM + B_DRAM + BYTES_DRAM
    assert total == 450
    assert _cost("fused-gemm-distsm").latency_cycles == total


def test_fused_gemm_distsm_with_the_exchange_of_the_matrix():
    # F (2 x 8 elements a cluster) is exchanged before the row sums, which go nowhere: F goes to GB,
    # is exchanged there and comes back; the sums of a cluster's cores are exchanged between them.
    ring = 2 * 3 / 4
    exchange = max(ceil(2 * ring * 32 / 64), ceil(4 * 7 + ring * 16 * 16 / 512))
    exchange += ceil(16 * 3 / 4 / 16)
    gemm = GEMM + A_CORES + B_CORES
    exps = ROWS_DOWN + TWO_OPERANDS + EXP + PIECE
    sums = PIECE + REDUCTION + EXCHANGE + TWO_OPERANDS + PIECE
    softmax = ROWMAX_PHASE + EXCHANGE + exps + exchange + sums
    total = gemm + softmax + A_DRAM + B_DRAM + BYTES_DRAM
    assert _cost("fused-gemm-distsm", reduce="tile").latency_cycles == total


def test_fused_distsm():
    # C goes to DRAM; it comes back to GB once, and to the cores twice: for rowmax and for sub.
    gemm = GEMM + A_CORES + B_CORES + C_UP + A_DRAM + B_DRAM + BYTES_DRAM
    softmax = PIECE + ROWMAX_PHASE + EXCHANGE + PIECE + SUM_PHASE + EXCHANGE + DIV_PHASE
    total = gemm + BYTES_DRAM + softmax + BYTES_DRAM
    assert total == 525
    assert _cost("fused-distsm").latency_cycles == total


def test_unfused():
    gemm = GEMM + A_CORES + B_CORES + C_UP + A_DRAM + B_DRAM + BYTES_DRAM
    rowmax = BYTES_DRAM + PIECE + REDUCTION + EXCHANGE + ROWS_UP + EXCHANGE + ROWS_DRAM
    sub = BYTES_DRAM + ROWS_DRAM + PIECE + ROWS_DOWN + TWO_OPERANDS + PIECE + WORDS_DRAM
    exp = WORDS_DRAM + PIECE + EXP + PIECE + WORDS_DRAM
    rowsum = WORDS_DRAM + PIECE + REDUCTION + EXCHANGE + ROWS_UP + EXCHANGE + ROWS_DRAM
    div = WORDS_DRAM + ROWS_DRAM + PIECE + ROWS_DOWN + TWO_OPERANDS + PIECE + BYTES_DRAM
    total = gemm + rowmax + sub + exp + rowsum + div
    assert total == 755
    assert _cost("unfused").latency_cycles == total


def test_fused_gemm_sm():
    # The 16 parts of C (4 bytes each) are gathered over the 4 x 4 cores of all clusters: 6 hops, 15
    # parts follow each other. One core then does 16 column tiles of 2 rows: 32 steps.
    gather = max(ceil(15 * 4 / 64), ceil(6 * 7 + 15 * 4 * 8 / 512))
    # 15 of 16 partial maxima, or sums, of each row are combined with what was there: 1 cycle each
    reduction = 32 * 4 + 2 + 2 + 5 + 2 * 15 * 1
    exp = 32 * 3 + 2 + 2 + 5
    two_operands = 32 * 1 + 4 + 2 + 5 + 31 * 1
    result = move(2 * 2 * 32, hops=0)  # from the one core to its cluster: no mesh to cross
    softmax = gather + 2 * reduction + exp + 2 * two_operands + result
    gemm = GEMM + A_CORES + B_CORES
    total = gemm + softmax + A_DRAM + B_DRAM + move(2 * 32, bandwidth=25, hops=0)
    assert total == 798
    assert _cost("fused-gemm-sm").latency_cycles == total


@pytest.mark.parametrize(
    "strategy", ["unfused", "fused-distsm", "fused-gemm-sm", "fused-gemm-distsm"]
)
def test_parts_of_the_small_mapping(strategy: str):
    cost = _cost(strategy)
    assert sum(p.cycles for p in cost.latency_parts) == cost.latency_cycles
    parts = {(p.kind, p.what): p.cycles for p in cost.latency_parts}
    # engine time as above: calls and pipeline, without first fills, last drains and stalls
    assert parts["compute", "gemm"] == 96
    steps = 32 if strategy == "fused-gemm-sm" else 2
    assert parts["compute", "exp"] == 3 * steps + 5
    assert parts["compute", "sub"] == steps + 5
