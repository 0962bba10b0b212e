"""What other cost models gave for one small architecture, against arithmetic by hand and our model.

The architecture is R2 (machines r2, r2w and r2v; docs/machines.md) and the figures are those of
../shared/data/peer_reference_values.csv: accelforge, ZigZag, Stream, SCALE-Sim, LLMCompass. Every
number is derived here from sizes and capacity; the file is compared where it is present.

Figures of the file that are not ours to reproduce:

* Stream: its vector operations are priced by the ports of a SIMD core's own memory (the latency of
  attention, 38,552 cycles, and the bound of 37,184 below it) and its energy of attention includes
  an intra-core part that nobody could derive. Of its other latencies only the bound stands here:
  they add the fill of a tiling that it generates.
* SCALE-Sim, output-stationary: our systolic arrays are weight-stationary.
* LLMCompass: its memory hierarchy has another level; of its latencies only the bound stands here.
* ASTRA-sim and LLMCompass, collectives: tested in test_exchange.py.
"""

import csv
import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxcomet import attention, gemm, gemm_softmax, strategies
from jaxcomet.cost import Conventions, Cost, conventions, evaluate
from jaxcomet.hardware import Machine, MatrixEngine, load
from jaxcomet.optimize.enumeration import enumerate_mappings
from jaxcomet.strategies import Strategy
from jaxcomet.workload import CompoundOp, Operation, Tensor, build

VALUES = Path(__file__).resolve().parents[3] / "shared" / "data" / "peer_reference_values.csv"

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


# -- row by row ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the file.

    Attributes:
      case: column of the file.
      peer: column of the file.
      quantity: column of the file.
      column: which number of the row: ``by_hand``, or the peer's own ``value``.
      hand: derives it.
      model: prices it.
    """

    case: str
    peer: str
    quantity: str
    column: str
    hand: Callable[[], float]
    model: Callable[[], float]

    def __str__(self) -> str:
        return f"{self.case}-{self.peer}-{self.quantity}-{self.column}"


def _gemm_figures() -> list[Figure]:
    found = []

    def add(case: str, peer: str, quantity: str, column: str, hand: Callable, model: Callable):
        found.append(Figure(case, peer, quantity, column, hand, model))

    for size, tag in (
        (32_768, " perfect"),
        (65_536, " perfect"),
        (131_072, ""),
        (262_144, ""),
        (263_168, ""),
    ):
        add(
            f"R2 GEMM512 GLB={size}{tag}",
            "accelforge",
            "dram_bytes",
            "by_hand",
            functools.partial(least_bytes, size),
            lambda size=size: best_gemm(size).root_traffic_bytes,
        )
    add(
        "R2 GEMM512 GLB=32768 imperfect",
        "accelforge",
        "dram_bytes",
        "by_hand",
        lambda: least_bytes(32_768, only_divisors=False),
        lambda: any_tiles().root_traffic_bytes,
    )
    big = "R2 GEMM512 GLB=131072"
    for column in ("by_hand", "value"):  # the value is of float32
        add(
            big,
            "accelforge",
            "energy",
            column,
            lambda: gemm_energy(least_bytes(131_072), S**3),
            lambda: best_gemm(131_072).energy_pj,
        )
        add(
            "R2W GEMM512 GLB=131072",
            "accelforge",
            "energy",
            column,
            lambda: gemm_energy(least_bytes(131_072), 2 * S * S),
            lambda: best_gemm(131_072, "r2w").energy_pj,
        )
    ideal = S**3 / ARRAY**2
    for case, peer in (
        (big, "accelforge"),
        ("R2 GEMM512 int8", "stream"),
        ("R2 GEMM512 int8 exhaustive", "LLMCompass"),
        ("R2 GEMM512 int8 heuristic-GPU", "LLMCompass"),
    ):
        add(
            case,
            peer,
            "latency",
            "by_hand",
            lambda: ideal,
            lambda: best_gemm(131_072).latency_cycles,
        )
    for case, workload, strategy in (
        ("R2 GEMM-softmax int8 SIMD64", GEMM_SOFTMAX, "fused-gemm-distsm"),
        ("R2 GEMM-layernorm int8 SIMD64", LAYERNORM, ROWS_FUSED),
    ):
        add(
            case,
            "stream",
            "latency",
            "by_hand",
            lambda: ideal,
            lambda w=workload, s=strategy: array_time(pipelined(w, s)),
        )
    charged = functools.partial(gemm_energy, first_read=True)
    add(
        big,
        "zigzag-salsa",
        "energy",
        "by_hand",
        lambda: charged(least_bytes(131_072), S**3),
        lambda: zigzag(QUARTERS).energy_pj,
    )
    add(
        big,
        "zigzag-salsa",
        "dram_bytes",
        "by_hand",
        lambda: least_bytes(131_072),
        lambda: zigzag(QUARTERS).root_traffic_bytes,
    )
    add(
        big,
        "zigzag-salsa",
        "latency",
        "value",
        lambda: ideal + onload_offload(QUARTERS),
        lambda: zigzag(QUARTERS).latency_cycles,
    )
    add(
        "R2W GEMM512 GLB=131072",
        "zigzag-salsa",
        "energy",
        "by_hand",
        lambda: charged(least_bytes(131_072), 2 * S * S),
        lambda: zigzag(QUARTERS, "r2w").energy_pj,
    )
    add(
        big,
        "zigzag-loma lpf 5-9",
        "energy",
        "by_hand",  # of the best mapping, which it missed
        lambda: charged(least_bytes(131_072), S**3),
        lambda: zigzag(QUARTERS).energy_pj,
    )
    add(
        big,
        "zigzag-loma lpf 5-9",
        "energy",
        "value",
        lambda: charged((4 + 1 + 1) * S * S, S**3),
        lambda: zigzag(LOMA).energy_pj,
    )
    add(
        big,
        "zigzag-loma lpf 6",
        "latency",
        "by_hand",
        lambda: ideal + onload_offload(LOMA),
        lambda: zigzag(LOMA).latency_cycles,
    )
    add(
        "R2 GEMM512 int8",
        "stream",
        "dram_bytes",
        "by_hand",
        lambda: least_bytes(131_072),
        lambda: best_gemm(131_072).root_traffic_bytes,
    )
    add(
        "R2 GEMM512 int8",
        "stream",
        "dram_bytes",
        "value",  # tiles of 32 x 64 x 512: A is read for each of 8 column blocks
        lambda: (8 + 1 + 1) * S * S,
        lambda: (
            priced(
                GEMM,
                "tiled",
                128 * KIB,
                {"N_dram_t": 8, "M_dram_t": 16, "M_comp": 32, "K_comp": S, "N_comp": 64},
                machine="r2",
            ).root_traffic_bytes
        ),
    )
    # it prints the number of the last cycle, counted from 0
    add(
        "systolic 32x32 WS GEMM512 compute only",
        "scalesim",
        "latency",
        "by_hand",
        lambda: (S // ARRAY) ** 2 * (S + 3 * ARRAY - 2) - 1,
        lambda: systolic().latency_cycles - 1,
    )
    return found


def _compound_figures() -> list[Figure]:
    found = []

    def add(case: str, quantity: str, column: str, hand: Callable, model: Callable):
        peer = "stream" if "SIMD64" in case else "accelforge"
        found.append(Figure(case, peer, quantity, column, hand, model))

    for size in (131_072, 524_288):
        add(
            f"R2V GEMM-softmax unfused GLB={size}",
            "dram_bytes",
            "by_hand",
            lambda size=size: least_bytes(size) + softmax_bytes(),
            lambda size=size: best("gemm-softmax", "unfused", size).root_traffic_bytes,
        )
    softmax = 4 * S * S
    add(
        "R2V GEMM-softmax unfused GLB=524288",
        "energy",
        "value",
        # C is read back for its way to DRAM
        lambda: compound_energy(
            3 * S * S + softmax_bytes(), gemm_softmax_accesses(), S**3, softmax
        ),
        lambda: unfused_by_elements().energy_pj,
    )
    fused = "R2V GEMM-softmax fused GLB=524288"
    add(
        fused,
        "dram_bytes",
        "by_hand",
        lambda: fused_bytes(524_288, only_divisors=True, live=1),
        lambda: best("gemm-softmax", "fused-gemm-distsm", 524_288).root_traffic_bytes,
    )
    add(
        fused,
        "energy",
        "value",
        lambda: compound_energy(3 * S * S, gemm_softmax_accesses(), S**3, softmax),
        lambda: fused_by_elements().energy_pj,
    )
    add(
        fused,
        "latency",
        "by_hand",
        lambda: S**3 / ARRAY**2 + softmax / LANES,
        lambda: best("gemm-softmax", "fused-gemm-distsm", 524_288).latency_cycles,
    )
    add(
        "R2V GEMM-layernorm unfused GLB=131072",
        "dram_bytes",
        "by_hand",
        lambda: (
            least_bytes(131_072)
            + (S * S + S)  # the mean reads C
            + (S * S + 2 * S)  # the variance reads C and the mean
            + (2 * S * S + 2 * S)  # normalizing reads C and both
        ),
        lambda: best("layernorm", "unfused", 131_072).root_traffic_bytes,
    )
    add(
        "R2 GEMM-softmax int8 SIMD64",
        "dram_bytes",
        "by_hand",
        lambda: fused_bytes(131_072, only_divisors=True, live=2),
        lambda: best_never().root_traffic_bytes,
    )
    contractions = 2 * S * S * D
    sides = 4 * S * D  # Q, K, V and O
    head = "R2V attention S=512 D=64"
    for capacity in (131_072, 524_288):
        add(
            f"{head} unfused",
            "dram_bytes",
            "by_hand",
            lambda: sides + 2 * S * S + softmax_bytes(),
            lambda capacity=capacity: best("attention", "unfused", capacity).root_traffic_bytes,
        )
        for case in (f"{head} fused", "R2 attention S=512 D=64 int8 SIMD64"):
            add(
                case,
                "dram_bytes",
                "by_hand",
                lambda: sides,
                lambda capacity=capacity: (
                    best("attention", "row-fused", capacity).root_traffic_bytes
                ),
            )
    accesses = functools.partial(attention_accesses, softmax_accesses(element_by_element=True))
    add(
        f"{head} unfused",
        "energy",
        "value",
        lambda: compound_energy(
            sides + 2 * S * S + softmax_bytes(), accesses(), contractions, softmax
        ),
        lambda: unfused_attention_by_elements().energy_pj,
    )
    add(
        f"{head} fused",
        "energy",
        "value",
        lambda: compound_energy(sides, accesses(), contractions, softmax),
        lambda: (
            priced(ATTENTION, "row-fused", 512 * KIB, dict(WHOLE)).energy_pj
            + GLB * row_accesses_more()
        ),
    )
    add(
        f"{head} fused",
        "latency",
        "by_hand",
        lambda: contractions / ARRAY**2 + softmax / LANES,
        lambda: best("attention", "row-fused", 131_072).latency_cycles,
    )
    one = "R2V attention elementwise softmax"
    add(
        f"{one} unfused",
        "dram_bytes",
        "by_hand",
        lambda: sides + 4 * S * S,
        lambda: best("one-step", "unfused", 131_072).root_traffic_bytes,
    )
    add(
        f"{one} unfused",
        "energy",
        "value",
        lambda: compound_energy(
            sides + 4 * S * S, attention_accesses(2 * S * S), contractions, S * S
        ),
        lambda: best("one-step", "unfused", 131_072).energy_pj,
    )
    add(
        f"{one} fused",
        "energy",
        "value",
        lambda: compound_energy(sides, attention_accesses(2 * S * S), contractions, S * S),
        lambda: (
            priced(
                ONE_STEP, strategies.get("attention", "row-fused"), 512 * KIB, dict(WHOLE)
            ).energy_pj
        ),
    )
    add(
        f"{one} fused",
        "latency",
        "by_hand",
        lambda: contractions / ARRAY**2 + S * S / LANES,
        lambda: best("one-step", "row-fused", 131_072).latency_cycles,
    )
    return found


def best_never() -> Cost:
    """GEMM-softmax fused at 128 KiB, where exp has a place of its own for its result."""
    rules = dataclasses.replace(STEADY, in_place="never")
    return best(
        "gemm-softmax", "fused-gemm-distsm", 131_072, "r2v", rules=rules, weights="streamed"
    )


FIGURES = (*_gemm_figures(), *_compound_figures())

NOT_COVERED = {
    ("R2 attention S=512 D=64 int8 SIMD64", "stream", "latency"): "ports of a SIMD core's memory",
    ("R2 attention S=512 D=64 int8 SIMD64", "stream", "energy"): "intra-core part not derivable",
    ("systolic 32x32 OS GEMM512 compute only", "scalesim", "latency"): "output-stationary",
}
"""Rows that the model does not give, and why (see the module docstring)."""

COLLECTIVES = ("ring all-reduce", "halving-doubling", "direct on fully connected", "2-D torus")
"""Cases that test_exchange.py tests."""


def _recorded() -> list[dict[str, str]]:
    if not VALUES.exists():
        pytest.skip(f"{VALUES} is not there: the figures of other tools cannot be compared")
    with VALUES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _tolerance(quantity: str) -> float:
    # bytes and cycles are whole numbers; energies are sums of them times prices
    return 1e-6 if quantity == "energy" else 0.0


@pytest.mark.parametrize("figure", FIGURES, ids=str)
def test_the_model_gives_the_figure_derived_by_hand(figure: Figure):
    hand, model = figure.hand(), float(figure.model())
    assert model == pytest.approx(hand, rel=_tolerance(figure.quantity), abs=0.0)


@pytest.mark.parametrize("figure", FIGURES, ids=str)
def test_the_figure_derived_by_hand_is_the_recorded_one(figure: Figure):
    wanted = (figure.case, figure.peer, figure.quantity)
    (row,) = (r for r in _recorded() if (r["case"], r["peer"], r["quantity"]) == wanted)
    tolerance = _tolerance(figure.quantity) if figure.column == "value" else 0.0
    assert figure.hand() == pytest.approx(float(row[figure.column]), rel=tolerance, abs=0.0)


def test_every_recorded_row_is_tested_or_listed():
    tested = {(f.case, f.peer, f.quantity, f.column) for f in FIGURES}
    seen = set()
    for row in _recorded():
        key = (row["case"], row["peer"], row["quantity"])
        if row["case"].startswith(COLLECTIVES):
            continue
        if key in NOT_COVERED:
            seen.add(key)
            assert not any((*key, c) in tested for c in ("by_hand", "value"))
            continue
        column = "by_hand" if row["by_hand"] else "value"
        assert (*key, column) in tested, key
    assert seen == set(NOT_COVERED)


# -- figures that the file lacks -------------------------------------------------------------------


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
