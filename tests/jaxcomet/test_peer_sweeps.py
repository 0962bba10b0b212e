"""Figures of R2 that the recorded file lacks, by the same arithmetic (peer_arithmetic.py)."""

import pytest

from jaxcomet import optimize, strategies
from jaxcomet.hardware import load
from jaxcomet.strategies import Strategy
from jaxcomet.workload import CompoundOp
from tests.jaxcomet.peer_arithmetic import (
    ARRAY,
    GEMM,
    GEMM_SOFTMAX,
    KIB,
    LANES,
    LAYERNORM,
    QUARTERS,
    ROWS_FUSED,
    STEADY,
    D,
    S,
    best,
    best_gemm,
    fused_bytes,
    gemm_energy,
    least_bytes,
    pipelined,
    priced,
    softmax_bytes,
)


def test_least_traffic_by_hand_is_that_of_the_table():
    """The table of minimum traffic, derived once with a pencil."""
    table = {32: 9, 64: 7, 96: 5, 128: 5, 256: 4, 257: 3}
    for kib, times in table.items():
        assert least_bytes(kib * KIB) == times * S * S
    for kib, times in {32: 7, 64: 6, 128: 5}.items():
        assert least_bytes(kib * KIB, only_divisors=False) == times * S * S


@pytest.mark.parametrize("capacity", [32_768, 65_536, 98_304, 131_072, 262_144, 263_168])
def test_gemm_energy_and_latency_at_every_buffer_size(capacity: int):
    cost = best_gemm(capacity)
    assert cost.root_traffic_bytes == least_bytes(capacity)
    assert cost.energy_pj == pytest.approx(gemm_energy(least_bytes(capacity), S**3), rel=1e-12)
    assert cost.latency_cycles == S**3 / ARRAY**2


@pytest.mark.parametrize("capacity", [4_096, 12_288, 32_768, 40_960, 98_304])
def test_the_search_finds_the_least_traffic_where_operands_pass_in_slices(capacity: int):
    # one tile stays, and of the others a row and a column are enough: the sum in least_bytes
    machine = load("r2", [("memory.glb.capacity", f"{capacity} B")])
    found = optimize.map(GEMM, machine, objective="energy", tiles="divisors", conventions=STEADY)
    assert found.proven
    assert found.cost.root_traffic_bytes == least_bytes(capacity)
    assert found.value == pytest.approx(gemm_energy(least_bytes(capacity), S**3), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [4_096, 12_288, 32_768, 40_960, 98_304])
def test_the_search_finds_the_least_traffic_of_tiles_of_any_size(capacity: int):
    machine = load("r2", [("memory.glb.capacity", f"{capacity} B")])
    found = optimize.map(GEMM, machine, objective="energy", tiles="any", conventions=STEADY)
    assert found.proven
    assert found.size > 2e9
    # partial columns of the array may cost more than what they save in main memory
    assert found.cost.root_traffic_bytes >= least_bytes(capacity, only_divisors=False)
    assert found.value <= gemm_energy(least_bytes(capacity), S**3) * (1.0 + 1e-12)


@pytest.mark.slow
def test_no_loop_order_beats_the_least_traffic():
    # of all orders the result-stationary ones reach it; no mapping of any order goes below
    orders = strategies.get("gemm", "tiled").options["order"]
    found = [best_gemm(131_072, order=order) for order in orders]
    assert min(c.root_traffic_bytes for c in found) == least_bytes(131_072)
    assert min(c.energy_pj for c in found) == gemm_energy(least_bytes(131_072), S**3)


@pytest.mark.parametrize(
    ("capacity", "m", "n"), [(64 * KIB, 256, 171), (64 * KIB, 171, 256), (128 * KIB, 171, 512)]
)
def test_tiles_that_do_not_divide_reach_the_least_traffic(capacity: int, m: int, n: int):
    factors = {"M_dram_t": -(-S // m), "M_comp": m, "N_dram_t": -(-S // n), "N_comp": n}
    factors |= {"K_dram_t": 32, "K_comp": 16}
    cost = priced(GEMM, "tiled", capacity, dict(factors), machine="r2")
    assert cost.feasible
    assert cost.root_traffic_bytes == least_bytes(capacity, only_divisors=False)


def test_a_buffer_of_256_bytes_a_cycle_is_hidden():
    # R2W, the mapping of the least traffic: 14,155,776 B through the buffer take 55,296 cycles
    machine = load(
        "r2w",
        [
            ("memory.glb.child_bandwidth", "256 byte/cycle"),
            ("memory.glb.parent_bandwidth", "256 byte/cycle"),
        ],
    )
    cost = priced(GEMM, "tiled", 0, dict(QUARTERS), STEADY, machine)
    glb = sum(t.parent_bytes for t in cost.traffic if t.parent == "glb")
    glb += sum(t.child_bytes for t in cost.traffic if t.child == "glb")
    assert glb == 14_155_776 == 3 * S**3 // ARRAY + 2 * S * S + 4 * S * S
    assert cost.root_traffic_bytes / 64 == 20_480
    assert cost.latency_cycles == S**3 / ARRAY**2


def test_unfused_latency_waits_for_dram():
    # an operation takes the longer of its elements / 64 and its bytes / 64
    softmax = softmax_bytes() / 64
    cycles = S**3 / ARRAY**2 + softmax
    assert cycles == 155_680
    assert best("gemm-softmax", "unfused", 131_072).latency_cycles == cycles
    layernorm = (4 * S * S + 5 * S) / 64
    assert best("layernorm", "unfused", 131_072).latency_cycles == S**3 / ARRAY**2 + layernorm
    attended = 2 * S * S * D / ARRAY**2 + softmax
    assert attended == 57_376
    assert best("attention", "unfused", 131_072).latency_cycles == attended


@pytest.mark.parametrize(
    ("workload", "strategy", "capacity", "recorded"),
    [
        ("gemm-softmax", "fused-gemm-distsm", 128 * KIB, 1_572_864),
        ("gemm-softmax", "fused-gemm-distsm", 64 * KIB, 2_621_440),
        ("layernorm", "fused", 128 * KIB, 1_572_864),
    ],
)
def test_fused_rows_in_place_are_the_best_of_divisors(
    workload: str, strategy: str, capacity: int, recorded: int
):
    hand = fused_bytes(capacity, only_divisors=True, live=1)
    assert hand == recorded
    cost = best(workload, strategy, capacity, weights="streamed")  # B alone takes 256 KiB
    assert cost.root_traffic_bytes == hand
    passes = 3 if workload == "layernorm" else 4
    assert cost.latency_cycles == S**3 / ARRAY**2 + passes * S * S / LANES


@pytest.mark.parametrize(
    ("workload", "strategy", "capacity", "block", "depth"),
    [
        # 103 rows of 512 leave 12,800 bytes: 16 of K of A and B at a time
        (GEMM_SOFTMAX, "fused-gemm-distsm", 64 * KIB, 103, 16),
        (GEMM_SOFTMAX, "fused-gemm-distsm", 128 * KIB, 171, 32),
        (LAYERNORM, ROWS_FUSED, 128 * KIB, 171, 32),
    ],
    ids=["softmax-64", "softmax-128", "layernorm-128"],
)
def test_fused_rows_that_do_not_divide_do_better(
    workload: CompoundOp, strategy: Strategy | str, capacity: int, block: int, depth: int
):
    blocks = -(-S // block)
    factors = {"M_dram_t": blocks, "M_comp": block, "N_comp": S}
    factors |= {"K_dram_t": S // depth, "K_comp": depth}
    cost = priced(workload, strategy, capacity, dict(factors), weights="streamed")
    assert cost.feasible
    hand = fused_bytes(capacity, only_divisors=False, live=1)
    assert cost.root_traffic_bytes == hand == (2 + blocks) * S * S
    assert hand == {103: 1_835_008, 171: 1_310_720}[block]


def test_a_pipeline_hides_the_vector_work_of_all_blocks_but_the_last():
    for workload, strategy, passes in (
        (GEMM_SOFTMAX, "fused-gemm-distsm", 4),
        (LAYERNORM, ROWS_FUSED, 3),
    ):
        cost = pipelined(workload, strategy)
        assert cost.feasible
        assert cost.latency_cycles == S**3 / ARRAY**2 + passes * S * S / LANES / 8
