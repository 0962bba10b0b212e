"""The figures of other cost models: their arithmetic by hand, and the prices of our model.

The architecture is R2 (machines r2, r2w and r2v; docs/machines.md); test_peers.py compares the two.
"""

import dataclasses
import functools
import math

import numpy as np

from jaxcomet import attention, gemm, gemm_softmax, strategies
from jaxcomet.cost import Conventions, Cost, conventions, evaluate
from jaxcomet.hardware import Machine, MatrixEngine, load
from jaxcomet.optimize.enumeration import enumerate_mappings
from jaxcomet.strategies import Strategy
from jaxcomet.workload import CompoundOp, Operation, Tensor, build

S = 512  # every extent but the head width
D = 64  # head width
KIB = 1024
ARRAY, LANES = 32, 64  # multipliers along each edge of the array; vector lanes
DRAM, GLB, MAC, OP = 64.0, 2.0, 0.5, 1.0  # pJ: a byte, a byte, a multiply-accumulate, an operation

STEADY = conventions("roofline", row_partials="free", in_place="elementwise")
"""Time without fill and drain; row values touched once a row; exp overwrites its operand."""
COUNTED = conventions(partial_sums="first-read-too", double_buffer="ignored")
"""ZigZag: fill and drain count, a first partial sum reads its place."""
ELEMENTS = conventions("roofline", row_partials="combined", in_place="elementwise")
"""accelforge: with calls of one column, a row value is touched for every element."""


# -- by hand ---------------------------------------------------------------------------------------


def _tiles(only_divisors: bool) -> np.ndarray:
    return np.array([t for t in range(1, S + 1) if not only_divisors or S % t == 0])


def least_bytes(capacity: int, *, only_divisors: bool = True) -> int:
    """Least DRAM traffic of the 512^3 GEMM: any operand stationary, the others streamed past it."""
    x, y = np.meshgrid(_tiles(only_divisors), _tiles(only_divisors), indexing="ij")
    fits = x * y + x + y <= capacity
    again_x, again_y = -(-S // x), -(-S // y)
    result_stays = S * S * (again_x + again_y + 1)
    # an operand stays: the other is read once for each of its row blocks; results leave once for
    # each of its column blocks and come back for all but the first
    operand_stays = S * S * (1 + again_x + 2 * again_y - 1)
    return int(np.where(fits, np.minimum(result_stays, operand_stays), 2**62).min())


def gemm_energy(dram_bytes: int, weight_reads: int, *, first_read: bool = False) -> float:
    """Energy of the GEMM: DRAM, both sides of the buffer, multiply-accumulates."""
    macs = S**3
    fills = dram_bytes - S * S
    result_reads = macs // ARRAY + (S * S if first_read else 0)  # the drain is one of them
    array = macs // ARRAY + weight_reads + macs // ARRAY + result_reads
    return DRAM * dram_bytes + GLB * (fills + array) + MAC * macs


def fused_bytes(capacity: int, *, only_divisors: bool, live: int) -> int:
    """Least DRAM traffic of a GEMM and row-wise operations on blocks of whole rows.

    A block holds `live` times its rows of all columns, and a column of A beside them. B is read
    once where it fits beside that, else once for each block.
    """
    best = 2**62
    for r in (int(t) for t in _tiles(only_divisors)):
        block = live * r * S + 2 * r
        if block + S * S <= capacity:
            best = min(best, 3 * S * S)
        elif block + 1 <= capacity:
            best = min(best, S * S * (2 + math.ceil(S / r)))
    return best


def softmax_bytes() -> int:
    """Maximum reads C; exp reads C and it; the sum reads F; the division reads F and it."""
    matrix, row = S * S, S
    return (matrix + row) + (2 * matrix + row) + (matrix + row) + (2 * matrix + row)


def softmax_accesses(*, element_by_element: bool) -> int:
    """Bytes between the buffer and the vector engine in the four operations.

    Element by element, a row value is read for each element that needs it, and a reduction writes
    its result for each element and reads it back for each but the first.
    """
    matrix, row = S * S, S
    if not element_by_element:
        return 6 * matrix + 4 * row
    return 6 * matrix + 2 * (matrix + (matrix - row)) + 2 * matrix


def row_accesses_more() -> int:
    """What touching the row values element by element adds."""
    return softmax_accesses(element_by_element=True) - softmax_accesses(element_by_element=False)


def contraction_accesses(m: int, n: int, k: int) -> int:
    """Bytes between buffer and array: A, each weight once, results out and partial ones back."""
    return m * n * k // ARRAY + n * k + m * n * k // ARRAY + (m * n * k // ARRAY - m * n)


def compound_energy(dram_bytes: int, accesses: int, macs: int, elementary: int) -> float:
    """Energy: each DRAM byte passes the buffer, too."""
    return (DRAM + GLB) * dram_bytes + GLB * accesses + MAC * macs + OP * elementary


def gemm_softmax_accesses() -> int:
    return contraction_accesses(S, S, S) + softmax_accesses(element_by_element=True)


def attention_accesses(softmax: int) -> int:
    return contraction_accesses(S, S, D) + softmax + contraction_accesses(S, D, S)


# -- our model -------------------------------------------------------------------------------------


def _machine(name: str, capacity: int) -> Machine:
    return load(name, [("memory.glb.capacity", f"{capacity} B")])


def _op(name: str, kind: str, function: str, inputs: str, output: str) -> Operation:
    return Operation(
        name=name,
        kind=kind,  # pyright: ignore[reportArgumentType]
        function=function,
        inputs=tuple(inputs.split()),
        output=output,
        bits=8,
    )


def _workload(name: str, operations: list[Operation], tensors: str, **sizes: int) -> CompoundOp:
    """Tensors as ``name:dimensions``, of one byte an element."""
    shapes = [t.split(":") for t in tensors.split()]
    return build(
        name,
        operations=tuple(operations),
        tensors=tuple(Tensor(name=n, dims=tuple(d), bits=8) for n, d in shapes),
        sizes=sizes,
    )


GEMM = gemm(S, S, S)
GEMM_SOFTMAX = gemm_softmax(S, S, S, vector_bits=8, fused_exp=True)
ATTENTION = attention(1, 1, S, S, D, vector_bits=8, fused_exp=True)
LAYERNORM = _workload(
    "three-pass-layernorm",
    [
        _op("gemm", "contract", "mac", "A B", "C"),
        _op("mean", "reduce", "add", "C", "U"),
        _op("variance", "reduce", "add", "C U", "G"),
        _op("normalize", "map", "div", "C U G", "H"),
    ],
    "A:MK B:KN C:MN U:M G:M H:MN",
    M=S,
    N=S,
    K=S,
)
ONE_STEP = _workload(
    "one-step-attention",
    [
        _op("scores", "contract", "mac", "Q KT", "S"),
        _op("softmax", "map", "exp", "S", "P"),
        _op("values", "contract", "mac", "P V", "O"),
    ],
    "Q:HMK KT:HKN S:HMN P:HMN V:HNL O:HML",
    H=1,
    M=S,
    N=S,
    K=D,
    L=D,
)
# what these build is read off the operations, so they take the three-pass LayerNorm, too
ROWS_UNFUSED = strategies.get("gemm-layernorm", "unfused")
ROWS_FUSED = strategies.get("gemm-layernorm", "fused-gemm-distln")


@functools.cache
def best(
    workload: str,
    strategy: str,
    capacity: int,
    machine: str = "r2v",
    rules: Conventions = STEADY,
    **options: str,
) -> Cost:
    """The best mapping for energy, every one priced."""
    ops = {
        "gemm": GEMM,
        "gemm-softmax": GEMM_SOFTMAX,
        "attention": ATTENTION,
        "layernorm": LAYERNORM,
        "one-step": ONE_STEP,
    }
    kinds = {("layernorm", "unfused"): ROWS_UNFUSED, ("layernorm", "fused"): ROWS_FUSED}
    family = "attention" if workload == "one-step" else workload
    chosen = kinds.get((workload, strategy)) or strategies.get(family, strategy)
    found = enumerate_mappings(
        ops[workload],
        _machine(machine, capacity),
        chosen,
        options=options,
        conventions=rules,
        objective="energy",
    )
    assert found.cost.feasible
    return found.cost


def priced(
    workload: CompoundOp,
    strategy: Strategy | str,
    capacity: int,
    factors: dict[str, object],
    rules: Conventions = STEADY,
    machine: str | Machine = "r2v",
    **options: str,
) -> Cost:
    """One mapping."""
    made = _machine(machine, capacity) if isinstance(machine, str) else machine
    kind = strategies.get(workload.name, strategy) if isinstance(strategy, str) else strategy
    return evaluate(
        workload,
        kind.build(workload, made, factors, **options),
        made,
        conventions=rules,
    )


def best_gemm(capacity: int, machine: str = "r2", order: str = "NMK") -> Cost:
    return best("gemm", "tiled", capacity, machine, order=order)


QUARTERS = {"N_dram_t": 2, "M_dram_t": 2, "K_dram_t": 4, "M_comp": 256, "N_comp": 256}
QUARTERS |= {"K_comp": 128}
"""The best mapping at 128 KiB: a quarter of C stays."""

LOMA = {"N_dram_t": 4, "M_dram_t": 32, "M_comp": 16, "K_comp": 512, "N_comp": 128}
"""What ZigZag's default engine found: B's tile 512 x 128 stays, A's 16 x 512 pass it."""


def zigzag(factors: dict[str, int], machine: str = "r2") -> Cost:
    return priced(GEMM, "tiled", 128 * KIB, dict(factors), COUNTED, machine)


def onload_offload(factors: dict[str, int]) -> float:
    """Cycles of the first A and B tiles in, and of the last C tile out, at 64 B/cycle."""
    m, n, k = (factors[f"{d}_comp"] for d in "MNK")
    return (m * k + k * n) / 64 + m * n / 64


def any_tiles() -> Cost:
    # three blocks of 171 in M and N, 10 of K at a time: 171^2 + 2 x 171 x 10 = 32,661 bytes
    return priced(
        GEMM,
        "tiled",
        32 * KIB,
        {"M_dram_t": 3, "N_dram_t": 3, "K_dram_t": 52, "M_comp": 171, "N_comp": 171, "K_comp": 10},
        machine="r2",
    )


def systolic() -> Cost:
    plain = _machine("r2", KIB * KIB)
    array = plain.engines["gemm"]
    assert isinstance(array, MatrixEngine)
    machine = dataclasses.replace(
        plain, engines={"gemm": dataclasses.replace(array, array="systolic")}
    )
    rules = conventions(fill_drain="ignored")  # the array's own skew and weight loads still count
    return priced(GEMM, "tiled", 0, {"M_comp": S, "N_comp": S, "K_comp": S}, rules, machine=machine)


def unfused_by_elements() -> Cost:
    """GEMM-softmax at 512 KiB, vector calls of one column."""
    factors = {"N_dram_t": 2, "M_comp": S, "K_comp": S, "N_comp": 256}
    factors |= {"softmax.M_dram_t": 2, "softmax.M_comp": 256, "softmax.N_glb_t": S}
    return priced(GEMM_SOFTMAX, "unfused", 512 * KIB, dict(factors), ELEMENTS)


def fused_by_elements() -> Cost:
    """The same fused; the vector operations split the columns by factors of their own."""
    factors = {"K_dram_t": 16, "K_comp": 32, "M_comp": S, "N_comp": S, "softmax.N_glb_t": S}
    return priced(
        GEMM_SOFTMAX, "fused-gemm-sm", 512 * KIB, dict(factors), ELEMENTS, weights="streamed"
    )


def unfused_attention_by_elements() -> Cost:
    factors = {"N_dram_t": 4, "M_comp": S, "K_comp": D, "N_comp": 128}
    factors |= {"softmax.M_dram_t": 8, "softmax.M_comp": 64, "softmax.N_glb_t": S}
    factors |= {"values.N_dram_t": 4, "values.M_comp": S, "values.N_comp": 128, "values.L_comp": D}
    return priced(ATTENTION, "unfused", 128 * KIB, dict(factors), ELEMENTS)


WHOLE = {"M_comp": S, "K_comp": D, "N_comp": S, "L_comp": D}
"""Attention in one block of rows: all weights stay in the array for all rows."""


def pipelined(workload: CompoundOp, strategy: Strategy | str) -> Cost:
    """Row blocks of 64, the vector engine one block behind the array."""
    factors: dict[str, object] = {"M_dram_t": 8, "M_comp": 64, "K_comp": S, "N_comp": S}
    return priced(workload, strategy, KIB * KIB, factors, binding="pipelined")


def array_time(cost: Cost) -> float:
    """Cycles of the latency in which the array works."""
    return float(cost.utilization * cost.latency_cycles)
