"""Attention: bytes and work of every strategy by hand, from one head to 131,072 keys.

T03 of the users' list (NVlabs/timeloop 218 and 259) and what else attention
asks of a cost model: grouped heads, decoding, unequal lengths, a causal mask whose hidden blocks
are skipped, the online softmax with its price, and keys that travel round a ring.
"""

import functools
import math
from pathlib import Path

import pytest

from jaxcomet import attention, gemm, gemm_layernorm, gemm_softmax, strategies
from jaxcomet.cost import Conventions, Cost, conventions, evaluate
from jaxcomet.hardware import Machine, load
from jaxcomet.mapping import MappingError
from jaxcomet.rewrite import online_softmax, rewritten
from jaxcomet.workload import CompoundOp, Operation, Tensor, WorkloadError, build

CORE = Path(__file__).resolve().parents[1] / "data" / "attention_core.toml"
RULES = conventions("roofline")
MIB = 1 << 20


@functools.cache
def _core() -> Machine:
    return load(str(CORE))


@functools.cache
def _r2v(capacity: int = MIB) -> Machine:
    return load("r2v", [("memory.glb.capacity", f"{capacity} B")])


def _cost(
    workload: CompoundOp,
    strategy: str,
    factors: dict[str, int],
    machine: Machine | None = None,
    rules: Conventions = RULES,
    **options: str,
) -> Cost:
    made = machine or _r2v()
    mapping = strategies.get("attention", strategy).build(workload, made, dict(factors), **options)
    return evaluate(workload, mapping, made, conventions=rules)


def _dram(cost: Cost) -> dict[str, float]:
    """Bytes of each tensor between DRAM and the chip, both ways together."""
    found: dict[str, float] = {}
    for t in cost.traffic:
        if t.parent == "dram":
            found[t.tensor] = found.get(t.tensor, 0.0) + float(t.parent_bytes)
    return found


def _work(cost: Cost) -> dict[str, float]:
    return {e.operation: float(e.work) for e in cost.engine_energy}


def _check_no_negative_count(cost: Cost) -> None:
    for t in cost.traffic:
        for x in (t.parent_bytes, t.child_bytes, t.refetch, t.parent_energy_pj, t.child_energy_pj):
            assert float(x) >= 0.0
    for e in cost.engine_energy:
        assert float(e.work) > 0.0
        assert float(e.energy_pj) >= 0.0
    assert all(float(p.cycles) >= 0.0 for p in cost.latency_parts)
    assert all(float(m) >= 0.0 for n in cost.nodes for m in n.moves_per_run)


# -- T03: the fused attention core (NVlabs/timeloop 218, 259) --------------------------------------


def _one_step(M: int, N: int, K: int, bits: int) -> CompoundOp:
    """Attention with the softmax as one operation that reads S and writes P."""

    def op(name: str, kind: str, function: str, inputs: tuple[str, ...], out: str) -> Operation:
        return Operation(
            name=name,
            kind=kind,  # pyright: ignore[reportArgumentType]
            function=function,
            inputs=inputs,
            output=out,
            bits=bits,
        )

    shapes = {"Q": "HMK", "KT": "HKN", "S": "HMN", "P": "HMN", "V": "HNL", "O": "HML"}
    return build(
        "attention",
        operations=(
            op("scores", "contract", "mac", ("Q", "KT"), "S"),
            op("softmax", "map", "exp", ("S",), "P"),
            op("values", "contract", "mac", ("P", "V"), "O"),
        ),
        tensors=tuple(Tensor(name=n, dims=tuple(d), bits=bits) for n, d in shapes.items()),
        sizes={"H": 1, "M": M, "N": N, "K": K, "L": K},
    )


T03 = attention(1, 1, 128, 128, 64, operand_bits=16, vector_bits=16, output_bits=16, fused_exp=True)
SIDES = 4 * 128 * 64 * 2  # Q, K, V and O in fp16


def _t03(strategy: str, factors: dict[str, int], workload: CompoundOp = T03) -> Cost:
    cost = _cost(workload, strategy, factors, _core())
    assert cost.feasible
    macs = sum(w for name, w in _work(cost).items() if name in ("scores", "values"))
    assert macs == cost.matrix_work == 2 * 128 * 128 * 64 == 2_097_152
    _check_no_negative_count(cost)
    return cost


def _t03_accesses(cost: Cost) -> float:
    """Accesses of 8 bytes, from the energy at 512 pJ each."""
    return float(cost.energy_parts["dram"]) / 512


@pytest.mark.parametrize(
    ("strategy", "factors"),
    [
        ("row-fused", {"M_comp": 128, "N_comp": 128, "K_comp": 64, "L_comp": 64}),
        (
            "row-fused",
            {"M_dram_t": 4, "M_comp": 32, "N_comp": 128, "K_comp": 64, "L_comp": 64},
        ),
        ("flash", {"M_comp": 128, "N_comp": 128, "K_comp": 64, "L_comp": 64}),
        (
            "flash",
            {"M_comp": 128, "N_dram_t": 4, "N_comp": 32, "K_comp": 64, "L_comp": 64},
        ),
    ],
)
def test_t03_fused_scores_and_probabilities_cause_no_dram_traffic(
    strategy: str, factors: dict[str, int]
):
    cost = _t03(strategy, factors)
    assert cost.root_traffic_bytes == SIDES == 65_536
    assert set(_dram(cost)) == {"Q", "KT", "V", "O"}
    assert _t03_accesses(cost) == pytest.approx(8192, rel=1e-6)
    assert cost.energy_parts["dram"] == pytest.approx(4.194e6, rel=1e-4)
    assert cost.energy_pj == pytest.approx(64.0 * SIDES, rel=1e-6)  # nothing else has a price


def test_t03_unfused_scores_and_probabilities_go_out_and_come_in():
    factors = {"M_comp": 128, "N_comp": 128, "K_comp": 64}
    factors |= {"softmax.M_comp": 128, "softmax.N_comp": 128}
    factors |= {"values.M_comp": 128, "values.N_comp": 128, "values.L_comp": 64}
    cost = _t03("unfused", factors, _one_step(128, 128, 64, 16))
    square = 128 * 128 * 2
    assert cost.root_traffic_bytes == SIDES + 4 * square == 196_608
    assert _dram(cost)["S"] == _dram(cost)["P"] == 2 * square
    assert _t03_accesses(cost) == pytest.approx(24_576, rel=1e-6)
    assert cost.energy_parts["dram"] == pytest.approx(12.583e6, rel=1e-4)


# -- grouped heads, decoding, unequal lengths ------------------------------------------------------

D = 16


def _flash_factors(
    problems: int, rows: int, keys: int, row_blocks: int, key_blocks: int, width: int = D
) -> dict[str, int]:
    return {
        "H_dram_t": problems,
        "M_dram_t": row_blocks,
        "M_comp": -(-rows // row_blocks),
        "N_dram_t": key_blocks,
        "N_comp": -(-keys // key_blocks),
        "K_comp": width,
        "L_comp": width,
    }


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("strategy", ["row-fused", "flash"])
def test_grouped_heads_read_keys_and_values_once_per_kv_head(kv_heads: int, strategy: str):
    batch, heads, q, kv = 2, 8, 32, 64
    workload = attention(batch, heads, q, kv, D, kv_heads=kv_heads, vector_bits=8, fused_exp=True)
    rows = heads // kv_heads * q
    factors = _flash_factors(batch * kv_heads, rows, kv, 4, 1)
    if strategy == "row-fused":
        del factors["N_dram_t"]
    cost = _cost(workload, strategy, factors)
    assert _dram(cost) == {
        "Q": batch * heads * q * D,
        "KT": batch * kv_heads * kv * D,
        "V": batch * kv_heads * kv * D,
        "O": batch * heads * q * D,
    }
    assert cost.matrix_work == 2 * batch * heads * q * kv * D


def test_decoding_reads_the_cache_once():
    heads, kv_heads, kv = 8, 2, 1000
    workload = attention(
        1, heads, 1, kv, D, kv_heads=kv_heads, causal=True, vector_bits=8, fused_exp=True
    )
    assert workload.sizes["M"] == heads // kv_heads
    cost = _cost(workload, "flash", _flash_factors(kv_heads, 4, kv, 1, 8))
    # the last query sees all keys, so the mask hides nothing
    assert _work(cost)["scores"] == heads * kv * D
    assert _dram(cost) == {
        "Q": heads * D,
        "KT": kv_heads * kv * D,
        "V": kv_heads * kv * D,
        "O": heads * D,
    }
    # one row of queries on 32 x 32 multipliers: bound by DRAM
    assert cost.latency_cycles >= cost.root_traffic_bytes / 64


def test_unequal_lengths_and_widths():
    q, kv, values = 48, 80, 24
    workload = attention(1, 3, q, kv, D, value_dim=values, vector_bits=8, fused_exp=True)
    factors = {**_flash_factors(3, q, kv, 3, 5), "L_comp": values}
    cost = _cost(workload, "flash", factors)
    assert _work(cost)["scores"] == 3 * q * kv * D
    assert _work(cost)["values"] == 3 * q * kv * values
    assert cost.compulsory_bytes == 3 * (q * D + kv * D + kv * values + q * values)
    # keys and values come again for each of 3 row blocks
    assert _dram(cost) == {
        "Q": 3 * q * D,
        "KT": 3 * 3 * kv * D,
        "V": 3 * 3 * kv * values,
        "O": 3 * q * values,
    }


# -- the causal mask -------------------------------------------------------------------------------


def _visited(q: int, kv: int, group: int, row_block: int, key_block: int) -> int:
    """Key blocks that all row blocks visit together, row by row."""
    total = 0
    for first in range(0, q * group, row_block):
        rows = range(first, min(first + row_block, q * group))
        seen = max(kv - q + row // group + 1 for row in rows)
        total += len({key // key_block for key in range(seen)})
    return total


CAUSAL = [
    # queries, keys, heads, kv heads, row blocks, key blocks
    (32, 64, 8, 2, 8, 8),
    (64, 64, 4, 4, 4, 8),
    (64, 64, 6, 2, 16, 16),
    (48, 96, 3, 1, 9, 6),
    (16, 128, 2, 2, 1, 4),
    (128, 128, 1, 1, 8, 32),
    (5, 40, 6, 3, 2, 10),
]


@pytest.mark.parametrize(("q", "kv", "heads", "kv_heads", "row_blocks", "key_blocks"), CAUSAL)
def test_causal_flash_works_on_the_visited_blocks_alone(
    q: int, kv: int, heads: int, kv_heads: int, row_blocks: int, key_blocks: int
):
    group = heads // kv_heads
    workload = attention(
        1, heads, q, kv, D, kv_heads=kv_heads, causal=True, vector_bits=8, fused_exp=True
    )
    factors = _flash_factors(kv_heads, group * q, kv, row_blocks, key_blocks)
    rows, keys = factors["M_comp"], factors["N_comp"]
    assert rows * row_blocks == group * q
    assert keys * key_blocks == kv
    blocks = kv_heads * _visited(q, kv, group, rows, keys)
    cost = _cost(workload, "flash", factors)
    work, dram = _work(cost), _dram(cost)
    assert work["scores"] == pytest.approx(blocks * rows * keys * D, rel=1e-12)
    assert work["values"] == pytest.approx(blocks * rows * keys * D, rel=1e-12)
    assert work["exp"] == pytest.approx(blocks * rows * keys, rel=1e-12)
    assert work["runmax"] == pytest.approx(blocks * rows, rel=1e-12)
    assert dram["Q"] == dram["O"] == heads * q * D
    if row_blocks > 1:
        # each visit brings the block: after the last one of a row block comes the first again
        assert dram["KT"] == pytest.approx(blocks * keys * D, rel=1e-12)
    else:
        assert dram["KT"] == kv_heads * kv * D
    assert dram["V"] == dram["KT"]
    assert cost.utilization <= 1.0


def test_causal_utilization_counts_what_is_needed():
    # bound by the array: half of the points are needed, and no more than what the blocks do
    n, width = 4096, 128
    full, masked = (
        _cost(
            attention(1, 1, n, n, width, causal=causal, vector_bits=8, fused_exp=True),
            "flash",
            _flash_factors(1, n, n, 32, 32, width),
            _r2v(16 * MIB),
        )
        for causal in (False, True)
    )
    assert full.matrix_work == 2 * n * n * width
    assert masked.matrix_work == 2 * (n * (n + 1) // 2) * width
    assert masked.matrix_work < _work(masked)["scores"] + _work(masked)["values"]
    assert 0.5 < masked.utilization <= full.utilization <= 1.0
    assert masked.latency_cycles < 0.55 * full.latency_cycles
    # T11: the whole mask, not the blocks: about half
    assert masked.matrix_work / full.matrix_work == pytest.approx(0.5, abs=1e-3)


def test_more_queries_than_keys_are_refused_under_a_mask():
    with pytest.raises(WorkloadError, match="causal: got more queries than keys"):
        attention(1, 1, 9, 8, D, causal=True)
    with pytest.raises(WorkloadError, match="kv_heads: got 3 for 8 heads; expected a divisor"):
        attention(1, 8, 8, 8, D, kv_heads=3)


# -- the online softmax ----------------------------------------------------------------------------


@pytest.mark.parametrize("fused_exp", [True, False])
@pytest.mark.parametrize("blocks", [1, 4, 16])
def test_online_softmax_costs_more_vector_work(blocks: int, fused_exp: bool):
    m, n = 64, 128
    workload = attention(1, 1, m, n, D, vector_bits=8, fused_exp=fused_exp)
    cost = _cost(workload, "flash", _flash_factors(1, m, n, 2, blocks))
    matrix, row, result = m * n, m * blocks, m * D * blocks
    wanted = {
        "scores": m * n * D,
        "rowmax": matrix,  # of the block
        "runmax": row,  # with the one so far
        **({} if fused_exp else {"sub": matrix}),
        "exp": matrix,
        "shift": row,  # the maximum before minus that after
        "correct": row,  # its exponential
        "rowsum": matrix,
        "scale_sum": row,
        "add_sum": row,
        "rescale": result,  # the result so far
        "values": m * n * D,
        "normalize": m * D,  # once, after the last block
    }
    assert _work(cost) == wanted
    # against whole rows: no division of the probabilities, but all this
    plain = _work(
        _cost(workload, "row-fused", {"M_dram_t": 2, "M_comp": 32, "N_comp": n, **_WIDTHS})
    )
    more = sum(wanted.values()) - sum(plain.values())
    assert more == 5 * m * blocks + m * D * blocks + m * D - m * n


_WIDTHS = {"K_comp": D, "L_comp": D}


@pytest.mark.parametrize("row_blocks", [1, 4])
def test_one_block_of_keys_moves_what_whole_rows_move(row_blocks: int):
    m, n = 64, 128
    workload = attention(1, 4, m, n, D, vector_bits=8, fused_exp=True)
    rows = {"H_dram_t": 4, "M_dram_t": row_blocks, "M_comp": m // row_blocks, "N_comp": n}
    whole = _cost(workload, "row-fused", {**rows, **_WIDTHS})
    online = _cost(workload, "flash", {**rows, **_WIDTHS})
    assert _dram(whole) == _dram(online)
    assert whole.root_traffic_bytes == whole.compulsory_bytes == 4 * (2 * m * D + 2 * n * D)


def test_flash_needs_no_room_for_whole_rows():
    n = 4096
    workload = attention(1, 1, n, n, D, vector_bits=8, fused_exp=True)
    small = _r2v(64 * 1024)
    online = _cost(workload, "flash", _flash_factors(1, n, n, 64, 64), small)
    assert online.feasible
    whole = _cost(
        workload,
        "row-fused",
        {"M_dram_t": 64, "M_comp": 64, "N_dram_t": 64, "N_comp": 64, **_WIDTHS},
        small,
        weights="streamed",
    )
    assert not whole.feasible
    (reason,) = whole.reasons()
    assert "S 262,144 x 1 B" in reason  # 64 rows of 4,096 scores


def test_flash_holds_its_running_values_in_all_of_its_loop():
    m, n, blocks = 64, 64, 4
    workload = attention(1, 1, m, n, D, vector_bits=8, fused_exp=True)
    cost = _cost(workload, "flash", _flash_factors(1, m, n, 1, blocks))
    (chip,) = (o for o in cost.occupancy if o.memory == "glb")
    held = {
        name: {h.tensor: float(h.total_bytes) for h in moment}
        for name, moment in zip(chip.operations, chip.moments, strict=True)
    }
    block = n // blocks
    streams = {"Q": m * D, "KT": D * block, "V": block * D, "O": m * D}
    running = {"D": m, "G": m, "U": m * D}  # maximum, sum and result so far
    for name in held:
        if name != "normalize":
            assert held[name].items() >= {**streams, **running}.items(), name
    assert held["scores"] == {**streams, **running, "S": m * block}
    assert held["values"] == {**streams, **running, "F": m * block}
    assert held["normalize"] == {**streams, "G": m, "U": m * D}
    # the correction W, the block's sum Y and the scaled sum Z are there for a while
    summed = {**streams, **running, "F": m * block, "W": m, "Y": m, "Z": m}
    assert held["add_sum"] == summed
    # fullest where the powers F are made of the scores S
    assert held["exp"] == {**streams, **running, "S": m * block, "F": m * block}
    assert chip.needed_bytes == sum(held["exp"].values())


# -- ring attention --------------------------------------------------------------------------------


@pytest.mark.parametrize(("x", "y"), [(2, 2), (2, 1), (1, 1)])
def test_ring_passes_each_shard_to_the_neighbour(x: int, y: int):
    """On edge: keys and values sharded over the clusters, 16-bit vector engine."""
    m, n, d = 256, 256, 64
    p = x * y
    factors = {"M_dram_sx": x, "M_dram_sy": y, "M_gb_sx": 2, "M_gb_sy": 2, "M_comp": m // p // 4}
    factors |= {"N_comp": 32, "N_gb_t": n // p // 32, "K_comp": d, "L_comp": d}
    workload = attention(1, 1, m, n, d)
    cost = _cost(workload, "ring", factors, load("edge"), conventions())
    # each shard is read by one cluster and by no other
    dram = _dram(cost)
    assert dram == {"Q": m * d, "KT": n * d, "V": n * d, "O": m * d}
    assert cost.root_traffic_bytes == cost.compulsory_bytes
    assert {c.kind for c in cost.collectives} <= {"permute"}
    for tensor in ("KT", "V"):
        (one,) = (c for c in cost.collectives if c.tensor == tensor)
        shard = n // p * d
        assert one.part_bytes == shard
        assert one.participants == p
        # in each of p rounds every cluster sends its shard; one cluster sends to nobody
        assert one.executions == p
        assert one.total_sent_bytes == (p * p * shard if p > 1 else 0)
    assert _work(cost)["scores"] == m * n * d


def test_ring_needs_a_level_between_memory_and_cores():
    with pytest.raises(MappingError, match="got 2 levels; strategy ring passes keys and values"):
        strategies.get("attention", "ring").planned(attention(1, 1, 8, 8, D), _r2v())


# -- large sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "keys", "causal"),
    [(96, 2048, False), (96, 2048, True), (96, 131_072, False), (1, 131_072, True)],
)
def test_large_attention_is_finite_and_above_its_bounds(heads: int, keys: int, causal: bool):
    """GPT-3 (96 heads of 128) at 2,048 keys, and at 131,072."""
    width, block = 128, 512
    workload = attention(
        1, heads, keys, keys, width, causal=causal, operand_bits=16, output_bits=16
    )
    blocks = keys // block
    cost = _cost(
        workload,
        "flash",
        _flash_factors(heads, keys, keys, blocks, blocks, width),
        _r2v(4 * MIB),
        conventions(),
    )
    assert cost.feasible
    pairs = keys * (keys + 1) // 2 if causal else keys * keys
    assert cost.matrix_work == 2 * heads * pairs * width  # exact in float64, beyond 2**48
    visited = blocks * (blocks + 1) // 2 if causal else blocks * blocks
    macs = 2 * heads * visited * block * block * width
    work = _work(cost)
    assert work["scores"] + work["values"] == macs
    # keys and values come again for each block of rows
    moved = 2 * (heads * keys * width + heads * visited * block * width) * 2
    assert cost.root_traffic_bytes == moved
    for x in (cost.latency_cycles, cost.energy_pj, cost.utilization):
        assert math.isfinite(x)
        assert x > 0
    assert cost.latency_cycles >= macs / 1024
    assert cost.latency_cycles >= moved / 64
    assert cost.energy_pj >= 64 * moved + 0.5 * macs
    _check_no_negative_count(cost)


def test_whole_rows_of_131072_keys():
    # one row of queries at a time, keys and values streamed
    keys, width = 131_072, 128
    workload = attention(1, 1, keys, keys, width)
    factors = {"M_dram_t": keys // 8, "M_comp": 8, "N_dram_t": 512, "N_comp": 256}
    factors |= {"K_comp": width, "L_comp": width}
    cost = _cost(workload, "row-fused", factors, _r2v(16 * MIB), weights="streamed")
    assert cost.feasible
    assert cost.matrix_work == 2 * keys * keys * width
    moved = 2 * keys * width + 2 * (keys // 8) * keys * width
    assert cost.root_traffic_bytes == moved
    assert cost.latency_cycles >= max(cost.matrix_work / 1024, moved / 64)


# -- the rewrite -----------------------------------------------------------------------------------


def test_the_rewrite_keeps_inputs_outputs_and_sizes():
    workload = attention(1, 4, 64, 128, D, causal=True)
    form = online_softmax(workload)
    assert form.sizes == workload.sizes
    assert form.mask == workload.mask

    def sides(op: CompoundOp) -> set[tuple]:
        return {(t.name, t.dims, t.bits) for t in op.tensors if not op.is_intermediate(t.name)}

    assert sides(form) == sides(workload)
    assert rewritten(workload, ("online-softmax",)) == form
    assert rewritten(workload, ()) is workload


@pytest.mark.parametrize(
    ("workload", "found"),
    [
        (gemm(8, 8, 8), "gemm has 0 divisions by a row sum"),
        (gemm_softmax(8, 8, 8), "gemm-softmax has 0 divisions by a row sum"),
        (gemm_layernorm(8, 8, 8), "gemm-layernorm has 0 divisions by a row sum"),
        (_one_step(8, 8, 8, 8), "attention has 0 divisions by a row sum"),
        (gemm_layernorm(8, 8, 8, affine=True), "gemm-layernorm has 0 sums"),
    ],
    ids=["gemm", "softmax", "layernorm", "one-step", "affine"],
)
def test_the_rewrite_refuses_other_workloads(workload: CompoundOp, found: str):
    with pytest.raises(MappingError) as error:
        online_softmax(workload)
    assert str(error.value) == (
        f"rewrite online-softmax: {found}; it needs a softmax whose result goes into one "
        "contraction over the same dimension"
    )


def test_an_unknown_rewrite_is_refused():
    with pytest.raises(MappingError) as error:
        rewritten(gemm(8, 8, 8), ("flash",))
    assert str(error.value) == "rewrite: got 'flash'; expected one of online-softmax"
