"""GEMM-LayerNorm and GEMM-RMSNorm: what is computed, how often, and what is exchanged, by hand.

The definitions are those of Ba, Kiros and Hinton 2016 (arXiv:1607.06450, eq. 4) and of Zhang and
Sennrich 2019 (arXiv:1910.07467, eq. 4), written out in the module of the operation.
"""

import functools
import inspect
from typing import Literal

import numpy as np
import pytest

from jaxcomet import gemm_layernorm, strategies
from jaxcomet.cost import Conventions, Cost, conventions, evaluate
from jaxcomet.hardware import Machine, VectorEngine, load
from jaxcomet.workload import CompoundOp, WorkloadError

Norm = Literal["layer", "rms"]
NORMS: tuple[Norm, ...] = ("layer", "rms")

RULES = conventions("roofline")
ROW_SPLIT = {"M_dram_t": 2, "M_gb_t": 2, "M_comp": 8}
UNITS = {"N_dram_sx": 2, "N_dram_sy": 2, "N_gb_sx": 2, "N_gb_sy": 2}
SPREAD = {**ROW_SPLIT, **UNITS, "N_comp": 16, "K_comp": 32}
"""32 rows in 4 steps of 8; 256 columns over 4 clusters of 4 cores."""
M, N, K = 32, 256, 32
CLUSTERS, CORES = 4, 4


@functools.cache
def _edge() -> Machine:
    return load("edge")


def _cost(
    workload: CompoundOp,
    strategy: str,
    factors: dict[str, int],
    machine: Machine | None = None,
    rules: Conventions = RULES,
    **options: str,
) -> Cost:
    made = machine or _edge()
    kind = strategies.get("gemm-layernorm", strategy)
    cost = evaluate(
        workload,
        kind.build(workload, made, dict(factors), **options),
        made,
        conventions=rules,
    )
    assert cost.feasible
    return cost


def _work(cost: Cost) -> dict[str, float]:
    return {e.operation: float(e.work) for e in cost.engine_energy}


# -- the graphs ------------------------------------------------------------------------------------


def _spelled(workload: CompoundOp) -> list[str]:
    return [f"{o.output} = {o.name} {' '.join(o.inputs)}" for o in workload.operations]


LAYER = [
    "C = gemm A B",
    "D = rowsum C",
    "U = mean D",
    "E = sub C U",
    "F = square E",
    "G = squaresum F",
    "R = root G",
    "H = div E R",
]
RMS = ["C = gemm A B", "F = square C", "G = squaresum F", "R = root G", "H = div C R"]


def test_operations_of_both_norms():
    assert _spelled(gemm_layernorm(M, N, K)) == LAYER
    assert _spelled(gemm_layernorm(M, N, K, norm="rms")) == RMS
    scaled = "Y = scale H gamma"
    affine = gemm_layernorm(M, N, K, affine=True)
    assert _spelled(affine) == [*LAYER, scaled, "Z = shift Y beta"]
    assert _spelled(gemm_layernorm(M, N, K, norm="rms", affine=True)) == [*RMS, scaled]


def test_kinds_and_functions():
    kinds = {o.name: (o.kind, o.function) for o in gemm_layernorm(M, N, K, affine=True).operations}
    assert kinds == {
        "gemm": ("contract", "mac"),
        "rowsum": ("reduce", "add"),
        "mean": ("map", "mul"),
        "sub": ("map", "add"),
        "square": ("map", "mul"),
        "squaresum": ("reduce", "add"),
        "root": ("map", "sqrt"),
        "div": ("map", "div"),
        "scale": ("map", "mul"),
        "shift": ("map", "add"),
    }


@pytest.mark.parametrize(
    ("norm", "affine", "result"),
    [("layer", False, "H"), ("layer", True, "Z"), ("rms", False, "H"), ("rms", True, "Y")],
)
def test_tensors_have_their_shapes_and_widths(norm: Norm, affine: bool, result: str):
    workload = gemm_layernorm(
        M, N, K, norm=norm, affine=affine, operand_bits=8, vector_bits=16, output_bits=32
    )
    shapes = {"A": "MK", "B": "KN", "gamma": "N", "beta": "N"}
    shapes |= dict.fromkeys("CEFHYZ", "MN") | dict.fromkeys("DUGR", "M")
    for t in workload.tensors:
        assert t.dims == tuple(shapes[t.name])
        wanted = 8 if t.name in "ABC" else 32 if t.name == result else 16
        assert t.bits == wanted, t.name
    inputs = {t.name for t in workload.tensors if workload.producer(t.name) is None}
    learned = ({"gamma", "beta"} if norm == "layer" else {"gamma"}) if affine else set()
    assert inputs == {"A", "B"} | learned
    outputs = {t.name for t in workload.tensors if not workload.consumers(t.name)}
    assert outputs == {result}


def test_the_graph_computes_a_layernorm():
    """The operations in plain NumPy, in their order, against the definition."""
    rng = np.random.default_rng(0)
    size = {"M": 5, "N": 12, "K": 7}
    for norm in NORMS:
        workload = gemm_layernorm(size["M"], size["N"], size["K"], norm=norm, affine=True)
        values = {
            t.name: rng.normal(size=tuple(size[d] for d in t.dims))
            for t in workload.tensors
            if workload.producer(t.name) is None
        }

        def broadcast(name: str, values: dict = values, workload: CompoundOp = workload):
            dims = workload.tensor(name).dims
            return values[name][:, None] if dims == ("M",) else values[name]

        for op in workload.operations:
            given = [broadcast(t) for t in op.inputs]
            match op.kind, op.function:
                case "contract", _:
                    out = given[0] @ given[1]
                case "reduce", _:
                    out = given[0].sum(axis=1)
                case _, "sqrt":  # the division by N and eps are folded in
                    out = np.sqrt(given[0][:, 0] / size["N"] + 1e-5)
                case _, "div":
                    out = given[0] / given[1]
                case _, "add" if op.name == "sub":
                    out = given[0] - given[1]
                case _, "add":
                    out = given[0] + given[1]
                case _ if op.name == "mean":
                    out = given[0][:, 0] / size["N"]
                case _:
                    out = given[0] * (given[1] if len(given) > 1 else given[0])
            values[op.output] = out
        c = values["A"] @ values["B"]
        centred = c - c.mean(axis=1, keepdims=True) if norm == "layer" else c
        scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
        wanted = centred / scale * values["gamma"] + (values["beta"] if norm == "layer" else 0.0)
        np.testing.assert_allclose(values[workload.operations[-1].output], wanted, rtol=1e-12)


def test_an_unknown_norm_is_refused():
    with pytest.raises(WorkloadError, match="norm: got 'batch'; expected layer or rms"):
        # past the annotation, which the test run checks
        inspect.unwrap(gemm_layernorm)(M, N, K, norm="batch")


# -- work ------------------------------------------------------------------------------------------


def _wanted_work(norm: Norm, affine: bool, row_units: int) -> dict[str, float]:
    """A matrix operation once an element, a row operation once a row on each unit that runs it."""
    matrix, row = M * N, M * row_units
    work = {"gemm": M * N * K}
    if norm == "layer":
        work |= {"rowsum": matrix, "mean": row, "sub": matrix}
    work |= {"square": matrix, "squaresum": matrix, "root": row, "div": matrix}
    if affine:
        work |= {"scale": matrix} | ({"shift": matrix} if norm == "layer" else {})
    return {name: float(w) for name, w in work.items()}


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_row_operations_run_on_all_cores(norm: Norm, affine: bool):
    workload = gemm_layernorm(M, N, K, norm=norm, affine=affine)
    cost = _cost(workload, "fused-gemm-distln", SPREAD)
    assert _work(cost) == _wanted_work(norm, affine, CLUSTERS * CORES)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_row_operations_on_one_core_run_once(norm: Norm):
    workload = gemm_layernorm(M, N, K, norm=norm)
    cost = _cost(workload, "fused-gemm-ln", {**SPREAD, "norm.N_comp": N})
    assert _work(cost) == _wanted_work(norm, False, 1)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_unfused_row_operations_are_spread_over_the_rows(norm: Norm):
    workload = gemm_layernorm(M, N, K, norm=norm)
    factors = {**SPREAD, "row.M_dram_sx": 2, "row.M_dram_sy": 2, "row.M_gb_sx": 2}
    factors |= {"row.M_gb_sy": 2, "row.M_comp": M // 16}
    factors |= {f"norm.{n}": f for n, f in SPREAD.items() if not n.startswith("K")}
    cost = _cost(workload, "unfused", factors)
    assert _work(cost) == _wanted_work(norm, False, 1)


def test_energy_is_work_times_its_price():
    cost = _cost(gemm_layernorm(M, N, K, affine=True), "fused-gemm-distln", SPREAD)
    engine = next(e for e in _edge().engines.values() if isinstance(e, VectorEngine))
    functions = {o.name: o for o in gemm_layernorm(M, N, K, affine=True).operations}
    for e in cost.engine_energy:
        op = functions[e.operation]
        if op.kind == "contract":
            continue
        # a row reduction is a tree over the lanes
        steps = np.ceil(np.log2(engine.lanes)) if op.kind == "reduce" else 1
        assert e.energy_pj == pytest.approx(
            e.work * steps * engine.ops[op.function].energy_pj, rel=1e-12
        )


# -- the exchanges ---------------------------------------------------------------------------------

RING = 2  # an all-reduce sends each byte (p - 1) / p times while adding up, and again while copying


@pytest.mark.parametrize("algorithm", ["mesh", "ring", "halving-doubling"])
@pytest.mark.parametrize(("norm", "exchanged"), [("layer", "DG"), ("rms", "G")])
def test_both_exchanges_are_of_row_results(norm: Norm, exchanged: str, algorithm: str):
    """D and G, M x 1 of 2 bytes each: once between a cluster's cores, once between clusters."""
    workload = gemm_layernorm(M, N, K, norm=norm)
    cost = _cost(workload, "fused-gemm-distln", SPREAD, algorithm=algorithm)
    found = {(c.tensor, c.memory): c for c in cost.collectives}
    assert set(found) == {(t, m) for t in exchanged for m in ("ob", "gb")}
    for (_, memory), c in found.items():
        assert (c.kind, c.participants) == ("all_reduce", 4)
        groups = CLUSTERS if memory == "ob" else 1
        # all rows, in steps of 8
        assert c.part_elements * c.executions == M
        assert c.part_bytes == 2 * c.part_elements
        assert c.groups == groups
        assert c.total_sent_bytes == groups * RING * (4 - 1) * M * 2


def test_one_exchange_over_both_levels():
    workload = gemm_layernorm(M, N, K)
    cost = _cost(workload, "fused-gemm-distln", SPREAD, algorithm="hierarchical")
    assert [c.tensor for c in cost.collectives] == ["D", "G"]
    for c in cost.collectives:
        assert c.participants == CLUSTERS * CORES
        # reduce-scatter within each cluster, all-reduce of a quarter between them, all-gather
        inside = CLUSTERS * RING * (CORES - 1) * M * 2
        between = CORES * RING * (CLUSTERS - 1) * (M * 2 / CORES)
        assert c.total_sent_bytes == inside + between


def test_one_core_gathers_the_matrix_instead():
    cost = _cost(gemm_layernorm(M, N, K), "fused-gemm-ln", {**SPREAD, "norm.N_comp": N})
    assert {(c.kind, c.tensor) for c in cost.collectives} == {("gather", "C")}
    (gather,) = cost.collectives
    # of 16 parts all but that of the core itself are sent
    assert gather.total_sent_bytes == M * N * 15 / 16


# -- bytes and cycles ------------------------------------------------------------------------------


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("norm", "learned"), [("layer", 2), ("rms", 1)])
def test_fused_moves_inputs_and_output_once(norm: Norm, learned: int, affine: bool):
    workload = gemm_layernorm(M, N, K, norm=norm, affine=affine)
    cost = _cost(workload, "fused-gemm-distln", SPREAD)
    by_hand = M * K + K * N + M * N + (learned * 2 * N if affine else 0)
    assert cost.root_traffic_bytes == cost.compulsory_bytes == by_hand


@functools.cache
def _r2v() -> Machine:
    return load("r2v", [("memory.glb.capacity", f"{1 << 20} B")])


def test_unfused_moves_every_intermediate():
    m, n, k = 64, 128, 32
    factors = {"M_comp": m, "N_comp": n, "K_comp": k, "norm.M_comp": m, "norm.N_comp": n}
    factors |= {"row.M_comp": m}
    cost = _cost(gemm_layernorm(m, n, k), "unfused", factors, _r2v())
    c, matrix, row = m * n, 2 * m * n, 2 * m  # C and H of one byte, the rest of two
    by_hand = (
        (m * k + k * n + c)
        + (c + row)  # sum
        + (row + row)  # mean
        + (c + row + matrix)  # difference
        + (matrix + matrix)  # square
        + (matrix + row)  # sum of squares
        + (row + row)  # root
        + (matrix + row + c)  # division
    )
    assert cost.root_traffic_bytes == by_hand


@pytest.mark.parametrize(("norm", "matrix_passes", "row_passes"), [("layer", 5, 2), ("rms", 3, 1)])
def test_latency_is_the_sum_of_the_passes(norm: Norm, matrix_passes: int, row_passes: int):
    # one step on R2V: the GEMM streams M rows for each of its folds; a pass takes N / 64 cycles a
    # row, a row operation M / 64
    m, n, k = 128, 128, 512
    workload = gemm_layernorm(m, n, k, norm=norm)
    cost = _cost(workload, "fused-gemm-distln", {"M_comp": m, "N_comp": n, "K_comp": k}, _r2v())
    folds = (k // 32) * (n // 32)
    by_hand = m * folds + matrix_passes * m * n / 64 + row_passes * m / 64
    assert cost.latency_cycles == by_hand
