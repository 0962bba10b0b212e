"""What users of other cost models asked for: T01, T02, T04, T05 and T06 of the project's list.

The list gives each input and the right answer; the issue numbers below are where it went wrong
elsewhere. Small operations on small machines, mapped by hand. T03 is tested in test_attention.py,
T07 in test_peaks.py and tests/hardware/test_units.py, T08 and T09 in test_exchange.py.
"""

import math

import pytest

from jaxcomet import gemm_softmax, strategies
from jaxcomet.cost import Conventions, Cost, conventions, evaluate
from jaxcomet.hardware import (
    Level,
    Machine,
    MatrixEngine,
    Memory,
    Network,
    Port,
    VectorEngine,
    VectorOp,
    load,
)
from jaxcomet.mapping import Compute, Loop, Mapping, MappingError, Spatial, Temporal
from jaxcomet.workload import CompoundOp, Operation, Tensor, WorkloadError, build

FREE = math.inf
"""A bandwidth that takes no time."""


def _network(bandwidth: float = FREE) -> Network:
    return Network(
        port_bandwidth_bytes_per_cycle=bandwidth,
        hop_latency_cycles=0.0,
        queuing_delay_cycles=0.0,
        channel_width_bits=FREE,
        num_ports=1.0,
        broadcast=True,
        reduction=True,
    )


def _memory(
    name: str,
    level: str,
    parent: str | None,
    *,
    capacity: float | None = None,
    bandwidth: float = FREE,
    double_buffered: bool = True,
    duplex: bool = True,
) -> Memory:
    """A memory; `bandwidth` is that towards its parent, the rest is free."""
    return Memory(
        name=name,
        level=level,
        parent=parent,
        capacity_bytes=capacity,
        child_bandwidth_bytes_per_cycle=FREE,
        parent_bandwidth_bytes_per_cycle=None if parent is None else bandwidth,
        link_bandwidth_bytes_per_cycle=None,
        read_energy_pj_per_byte=0.0,
        write_energy_pj_per_byte=0.0,
        network=None if parent is None else _network(),
        duplex=duplex,
        shared_ports=False,
        double_buffered=double_buffered,
    )


def _port(bandwidth: float = FREE) -> Port:
    return Port(bandwidth_bytes_per_cycle=bandwidth, hop_latency_cycles=0.0)


def _matrix(memory: str, *, rows: float, columns: float, mac_pj: float = 1.0) -> MatrixEngine:
    return MatrixEngine(
        name="array",
        level="core",
        operands=(memory, memory),
        result=memory,
        ports={memory: _port()},
        array_rows=rows,
        array_columns=columns,
        grid_rows=1.0,
        grid_columns=1.0,
        mac_energy_pj=mac_pj,
    )


def _vector(operands: str, result: str, *, lanes: float, bandwidth: float = FREE) -> VectorEngine:
    return VectorEngine(
        name="simd",
        level="core",
        operands=(operands,),
        result=result,
        ports={operands: _port(bandwidth)} | ({} if result == operands else {result: _port()}),
        lanes=lanes,
        pipeline_stages=1.0,
        ops={"mul": VectorOp(cycles=1.0, energy_pj=1.0)},
    )


def _machine(
    memories: list[Memory], engines: list[MatrixEngine | VectorEngine], units: float = 1.0
) -> Machine:
    levels = (
        Level(name="main", mesh_x=1.0, mesh_y=1.0),
        Level(name="core", mesh_x=units, mesh_y=1.0),
    )
    return Machine(
        name="made-up",
        levels=levels,
        memories={m.name: m for m in memories},
        engines={e.name: e for e in engines},
        router=None,
        clock_hz=None,
    )


def _product(M: int, N: int, K: int, bits: int = 8) -> CompoundOp:
    return build(
        "product",
        operations=(
            Operation(
                name="gemm",
                kind="contract",
                function="mac",
                inputs=("A", "B"),
                output="C",
                bits=bits,
            ),
        ),
        tensors=(
            Tensor(name="A", dims=("M", "K"), bits=bits),
            Tensor(name="B", dims=("K", "N"), bits=bits),
            Tensor(name="C", dims=("M", "N"), bits=bits),
        ),
        sizes={"M": M, "N": N, "K": K},
    )


def _loop(dim: str, slot: str) -> Loop:
    return Loop(dim, (f"{dim}_{slot}",))


def _nest(operation: str, dims: str, *, spatial: str = "") -> Temporal:
    """Time at the outer memory, units along x, time in the core, one call; every dimension."""
    call = Compute(operation, tuple(_loop(d, "comp") for d in dims))
    core = Temporal("core", tuple(_loop(d, "core_t") for d in dims), call)
    body = (
        Spatial("core", tuple(_loop(d, "main_sx") for d in spatial), (), core) if spatial else core
    )
    return Temporal("main", tuple(_loop(d, "main_t") for d in dims), body)


def _cost(
    workload: CompoundOp,
    machine: Machine,
    tree: Temporal,
    factors: dict[str, int],
    rules: Conventions,
) -> Cost:
    mapping = Mapping.from_factors(
        workload, strategy="by-hand", tree=tree, homes={}, factors=factors
    )
    return evaluate(workload, mapping, machine, conventions=rules)


ROOFLINE = conventions("roofline")


# -- T01: an uneven spatial split (NVlabs/timeloop 328, 300) --------------------------------------


def test_t01_an_uneven_spatial_split_charges_useful_work_only():
    # 8 x 8 x 8 multiply-accumulates, one loop over 6 units: 6, then 2. One operation a cycle a
    # unit.
    workload = build(
        "t01",
        operations=(
            Operation(
                name="mac", kind="map", function="mul", inputs=("A", "B"), output="C", bits=8
            ),
        ),
        tensors=(
            Tensor(name="A", dims=("M", "K"), bits=8),
            Tensor(name="B", dims=("K", "N"), bits=8),
            Tensor(name="C", dims=("M", "N"), bits=8),
        ),
        sizes={"M": 8, "N": 8, "K": 8},
    )
    machine = _machine(
        [_memory("main", "main", None), _memory("core", "core", "main")],
        [_vector("core", "core", lanes=1.0)],
        units=6.0,
    )
    factors = {"N_main_t": 2, "N_main_sx": 6, "M_core_t": 8, "K_core_t": 8}
    cost = _cost(workload, machine, _nest("mac", "MNK", spatial="N"), factors, ROOFLINE)
    assert cost.engine_energy[0].work == 512
    assert cost.engine_energy[0].energy_pj == 512  # not 768
    assert cost.latency_cycles == 128
    assert 512 / (6 * cost.latency_cycles) == pytest.approx(0.6667, abs=1e-4)


def test_t01_on_matrix_units_of_one_multiplier():
    # The same on 6 arrays of 1 x 1. An array of R rows takes R cycles to load its first weights,
    # which nothing can hide: 1 cycle in each of 2 calls of 8 rows, 8 weights and one column.
    machine = _machine(
        [_memory("main", "main", None), _memory("core", "core", "main")],
        [_matrix("core", rows=1.0, columns=1.0)],
        units=6.0,
    )
    factors = {"N_main_t": 2, "N_main_sx": 6, "M_comp": 8, "K_comp": 8}
    cost = _cost(_product(8, 8, 8), machine, _nest("gemm", "MNK", spatial="N"), factors, ROOFLINE)
    assert cost.matrix_work == 512
    assert cost.engine_energy[0].energy_pj == 512
    assert cost.latency_cycles == 128 + 2
    assert cost.utilization == pytest.approx(512 / (6 * 130))


def test_t01_seven_is_two_steps_of_four_with_three_busy_in_the_second():
    machine = _machine(
        [_memory("main", "main", None), _memory("core", "core", "main")],
        [_vector("core", "core", lanes=1.0)],
        units=4.0,
    )
    workload = build(
        "seven",
        operations=(
            Operation(name="scale", kind="map", function="mul", inputs=("X",), output="Y", bits=8),
        ),
        tensors=(Tensor(name="X", dims=("N",), bits=8), Tensor(name="Y", dims=("N",), bits=8)),
        sizes={"N": 7},
    )
    tree = _nest("scale", "N", spatial="N")
    cost = _cost(workload, machine, tree, {"N_main_t": 2, "N_main_sx": 4}, ROOFLINE)
    assert cost.latency_cycles == 2
    assert cost.engine_energy[0].work == 7
    assert cost.root_traffic_bytes == 14


# -- T02: beyond 32 bits (NVlabs/timeloop 156, jax-ml/jax 18385) -----------------------------------


def test_t02_a_tensor_of_more_bits_than_32_bits_count():
    elements = 669_141_632
    workload = build(
        "copy",
        operations=(
            Operation(name="scale", kind="map", function="mul", inputs=("X",), output="Y", bits=8),
        ),
        tensors=(Tensor(name="X", dims=("N",), bits=8), Tensor(name="Y", dims=(), bits=8)),
        sizes={"N": elements},
    )
    machine = _machine(
        [_memory("main", "main", None, capacity=1600.0 * 2**20), _memory("core", "core", "main")],
        [_vector("core", "core", lanes=1.0)],
    )
    cost = _cost(workload, machine, _nest("scale", "N"), {"N_main_t": elements}, ROOFLINE)
    main = cost.occupancy[0]
    assert main.capacity_bytes == 1_677_721_600
    (held,) = main.moments
    assert next(h for h in held if h.tensor == "X").total_bytes == elements
    assert main.share == pytest.approx(0.399, abs=5e-4)
    assert cost.feasible
    assert cost.reasons() == ()


def test_t02_a_product_of_side_65536():
    side = 65_536
    machine = _machine(
        [_memory("main", "main", None), _memory("core", "core", "main")],
        [_matrix("core", rows=128.0, columns=128.0)],
    )
    tree = _nest("gemm", "MNK")
    factors = {f"{d}_{s}": f for d in "MNK" for s, f in (("main_t", 512), ("comp", 128))}
    cost = _cost(_product(side, side, side, bits=16), machine, tree, factors, ROOFLINE)
    assert cost.matrix_work == pytest.approx(281_474_976_710_656, rel=1e-6)
    assert cost.compulsory_bytes == pytest.approx(25_769_803_776, rel=1e-6)
    assert cost.engine_energy[0].energy_pj == pytest.approx(281_474_976_710_656, rel=1e-6)
    # every call moves 128 rows in 128 + 128 cycles, the first load aside: nothing wraps here either
    assert cost.latency_cycles == 512**3 * 256


# -- T04: overlap or not (NVlabs/timeloop 273, 108) ------------------------------------------------


def _three_stages(lanes: float, rules: Conventions) -> Cost:
    # 100 elements of 1 byte come in 10 blocks over a link of 5 B/cycle; they move on as 10 bytes
    # each (1,000 in all) over 20 B/cycle; each meets 100 partners: 10,000 operations. The result
    # costs nothing.
    workload = build(
        "t04",
        operations=(
            Operation(name="work", kind="map", function="mul", inputs=("X",), output="Y", bits=80),
        ),
        tensors=(Tensor(name="X", dims=("M",), bits=8), Tensor(name="Y", dims=("M", "N"), bits=0)),
        sizes={"M": 100, "N": 100},
    )
    machine = _machine(
        [
            _memory("main", "main", None),
            _memory("core", "core", "main", bandwidth=5.0),
            _memory("out", "core", "main"),
        ],
        [_vector("core", "out", lanes=lanes, bandwidth=20.0)],
    )
    return _cost(
        workload, machine, _nest("work", "MN"), {"M_main_t": 10, "M_comp": 10, "N_comp": 100}, rules
    )


def test_t04_three_stages_with_and_without_overlap():
    overlapped = _three_stages(1000.0, ROOFLINE)
    assert overlapped.latency_cycles == 50
    assert overlapped.conventions.overlap == "double-buffered"
    waits = {(p.kind, p.where): p.cycles for p in overlapped.latency_parts}
    # 10 cycles of work; the rest waits for the second link, none of it for the first
    assert waits["compute", "simd"] == 10
    assert waits["OS", "core"] == 40
    assert waits["OS", "main"] == 0

    serial = _three_stages(1000.0, conventions("roofline", overlap="none"))
    assert serial.latency_cycles == 20 + 50 + 10
    assert serial.conventions.overlap == "none"

    assert _three_stages(2000.0, ROOFLINE).latency_cycles == 50


# -- T05: matrix-matrix against matrix-vector (ARM-software/SCALE-Sim 51, maestro 17) --------------


@pytest.mark.parametrize(
    ("M", "load_weights", "cycles", "utilization"),
    [
        (256, "exposed", 4608, 0.667),
        (256, "hidden", 3200, 0.96),
        (1, "exposed", 1548, 0.0078),
        (1, "hidden", 1537, 0.0078),
    ],
)
def test_t05_a_vector_leaves_the_array_idle(
    M: int, load_weights: str, cycles: int, utilization: float
):
    machine = _machine(
        [_memory("main", "main", None), _memory("core", "core", "main")],
        [_matrix("core", rows=128.0, columns=128.0)],
    )
    tree, factors = _nest("gemm", "MNK"), {"M_comp": M, "N_comp": 256, "K_comp": 768}
    rules = conventions("roofline", weight_load=load_weights)
    cost = _cost(_product(M, 256, 768), machine, tree, factors, rules)
    assert cost.latency_cycles == cycles
    assert cost.utilization == pytest.approx(utilization, abs=5e-4)
    assert cost.matrix_work / cost.latency_cycles <= 128 * 128


def test_t05_with_skew_a_vector_is_cheaper_still():
    machine = _machine(
        [_memory("main", "main", None), _memory("core", "core", "main")],
        [_matrix("core", rows=128.0, columns=128.0)],
    )
    found = []
    for M in (256, 1):
        factors = {"M_comp": M, "N_comp": 256, "K_comp": 768}
        found.append(
            _cost(_product(M, 256, 768), machine, _nest("gemm", "MNK"), factors, conventions())
        )
    # (2 x 128 + 128 + M - 2) cycles for each of 12 weight tiles
    assert [c.latency_cycles for c in found] == [12 * (382 + 256), 12 * (382 + 1)]
    assert found[1].utilization < 0.008


# -- T06: no mapping, and why (NVlabs/timeloop 99, 187, 23; zigzag 19) -----------------------------


def _scratchpad(tile: int, rules: Conventions) -> Cost:
    machine = _machine(
        [_memory("main", "main", None), _memory("scratchpad", "core", "main", capacity=1024.0)],
        [_matrix("scratchpad", rows=8.0, columns=8.0)],
    )
    factors = {f"{d}_main_t": 64 // tile for d in "MNK"} | {f"{d}_comp": tile for d in "MNK"}
    return _cost(_product(64, 64, 64, bits=32), machine, _nest("gemm", "MNK"), factors, rules)


SINGLE = conventions(double_buffer="ignored")


def test_t06_a_fixed_tile_that_is_too_large():
    single = _scratchpad(16, SINGLE)
    assert not single.feasible
    (reason,) = single.reasons()
    assert "scratchpad: needs 3,072 bytes, has 1,024" in reason
    assert "double buffering" not in reason

    double = _scratchpad(16, conventions())
    assert not double.feasible
    (reason,) = double.reasons()
    assert "scratchpad: needs 6,144 bytes, has 1,024" in reason
    # the tile itself is the cause, and its size stands there: double buffering is not to blame
    assert "3,072" in reason
    assert "cause is double buffering" not in reason


def test_t06_a_tile_that_fits_once():
    cost = _scratchpad(8, SINGLE)
    assert cost.feasible
    assert cost.reasons() == ()
    scratchpad = next(o for o in cost.occupancy if o.memory == "scratchpad")
    assert (scratchpad.needed_bytes, scratchpad.capacity_bytes) == (768, 1024)


def test_t06_a_tile_that_does_not_fit_twice():
    cost = _scratchpad(8, conventions())
    assert not cost.feasible
    (reason,) = cost.reasons()
    assert "scratchpad: needs 1,536 bytes, has 1,024" in reason
    assert "the cause is double buffering" in reason
    assert "768" in reason


def test_t06_uncovered_dimensions_are_all_named():
    # A 3 x 3 kernel (written out as a contraction over R and S) whose factors are 1 at every level.
    workload = build(
        "convolution",
        operations=(
            Operation(
                name="conv", kind="contract", function="mac", inputs=("X", "W"), output="Y", bits=8
            ),
        ),
        tensors=(
            Tensor(name="X", dims=("P", "R", "S"), bits=8),
            Tensor(name="W", dims=("R", "S"), bits=8),
            Tensor(name="Y", dims=("P",), bits=8),
        ),
        sizes={"P": 16, "R": 3, "S": 3},
    )
    with pytest.raises(MappingError) as error:
        Mapping.from_factors(
            workload,
            strategy="by-hand",
            tree=_nest("conv", "PRS"),
            homes={},
            factors={"P_comp": 16},
        )
    message = str(error.value)
    assert "dimension R of conv" in message
    assert "dimension S of conv" in message
    assert "dimension P" not in message
    assert message.count("multiply to 1; expected at least 3") == 2


# -- sizes that do not divide, and what is refused -------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "factors"),
    [
        (
            (7, 7, 7),
            {"M_gb_t": 2, "M_comp": 4, "N_core_t": 2, "N_comp": 4, "K_core_t": 2, "K_comp": 4},
        ),
        ((1025, 64, 8), {"M_dram_t": 33, "M_gb_t": 4, "M_comp": 8, "N_comp": 64, "K_comp": 8}),
        (
            (13, 31, 17),
            {"M_gb_t": 2, "M_comp": 7, "N_gb_sx": 2, "N_core_t": 4, "N_comp": 4, "K_comp": 17},
        ),
        ((2, 127, 3), {"M_comp": 2, "N_dram_sx": 2, "N_dram_sy": 2, "N_comp": 32, "K_comp": 3}),
    ],
)
def test_sizes_that_do_not_divide_are_normal(sizes: tuple[int, int, int], factors: dict[str, int]):
    M, N, K = sizes
    workload, machine = gemm_softmax(*sizes), load("edge")
    mapping = strategies.build(workload, machine, "fused-gemm-distsm", dict(factors))
    cost = evaluate(workload, mapping, machine)
    work = {e.operation: e.work for e in cost.engine_energy}
    assert work == {"gemm": M * N * K} | dict.fromkeys(
        ("rowmax", "sub", "exp", "rowsum", "div"), M * N
    )
    gemm = next(e for e in cost.engine_energy if e.operation == "gemm")
    assert gemm.energy_pj == pytest.approx(M * N * K * 0.2296)
    # here everything moves over the outermost boundary once
    assert cost.root_traffic_bytes == cost.compulsory_bytes == M * K + K * N + M * N
    assert cost.utilization <= 1.0


FACTORS = {"M_comp": 8, "N_comp": 16, "K_comp": 8}


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ({**FACTORS, "M_comp": 4}, ("dimension M of gemm", "M_comp=4 multiply to 4", "at least 8")),
        (
            {**FACTORS, "N_core_t": 2},
            ("dimension N", "factor N_core_t", "nothing to do", "at most 1"),
        ),
        # 3 x 4 covers 8, but 2 x 4 already does
        ({**FACTORS, "M_gb_t": 3, "M_comp": 4}, ("factor M_gb_t: got 3 steps", "at most 2")),
        ({**FACTORS, "M_gbt": 2}, ("factor M_gbt", "did you mean M_gb_t")),
        ({**FACTORS, "M_comp": 8.5}, ("factor M_comp: got 8.5", "whole number >= 1")),
        ({**FACTORS, "M_comp": -8}, ("factor M_comp: got -8", "whole number >= 1")),
        ({**FACTORS, "M_comp": 0}, ("factor M_comp: got 0", "whole number >= 1")),
        ({**FACTORS, "M_comp": float("nan")}, ("factor M_comp: got nan", "whole number >= 1")),
        ({**FACTORS, "M_comp": float("inf")}, ("factor M_comp: got inf", "whole number >= 1")),
        ({**FACTORS, "M_gb_t": True}, ("factor M_gb_t", "whole number >= 1")),
        ({**FACTORS, "M_comp": "eight"}, ("factor M_comp: got 'eight'", "whole number >= 1")),
        ({**FACTORS, "M_comp": None}, ("factor M_comp", "whole number >= 1")),
    ],
)
def test_factors_that_cannot_be_are_refused(factors: dict[str, object], words: tuple[str, ...]):
    with pytest.raises(MappingError) as error:
        strategies.build(gemm_softmax(8, 16, 8), load("edge"), "fused-gemm-distsm", factors)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "size", [0, -4, 2.5, float("nan"), float("inf"), True, "8", None, 2**53 + 2, [8]]
)
def test_sizes_that_cannot_be_are_refused(size: object):
    with pytest.raises(WorkloadError) as error:
        gemm_softmax(size, 16, 8)
    assert str(error.value).startswith("size M: got ")
    assert "whole number from 1 to 2**53" in str(error.value)


def test_unknown_strategies_and_options_list_the_known_ones():
    machine = load("edge")
    with pytest.raises(MappingError, match=r"got 'fused-gemm-dsm' .*known: unfused, fused-distsm"):
        strategies.build(gemm_softmax(1, 1, 1), machine, "fused-gemm-dsm", {})
    with pytest.raises(MappingError, match=r"option reduce: got 'row'; expected rows or tile"):
        strategies.build(gemm_softmax(1, 1, 1), machine, "fused-gemm-distsm", {}, reduce="row")
    with pytest.raises(MappingError, match=r"got option 'reduse'; it has reduce"):
        strategies.build(gemm_softmax(1, 1, 1), machine, "fused-gemm-distsm", {}, reduse="rows")
    with pytest.raises(
        MappingError, match=r"got 'convolution'; strategies are known for gemm, gemm-softmax"
    ):
        strategies.available("convolution")
