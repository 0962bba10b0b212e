"""Streamed weights and pipelines: the same laws, and what a pipeline is worth."""

from functools import cache

import numpy as np
import pytest

from jaxcomet import gemm_softmax, strategies
from jaxcomet.cost import Cost, evaluate
from jaxcomet.hardware import load
from tests.reference.sampling import ROWS, Row, both, priced, random_rows

SUM = 1e-12  # relative; sums of at most some hundred float64 terms
STREAMED = ("fused-gemm-distsm", (("weights", "streamed"),))
PIPELINED = ("fused-gemm-distsm", (("weights", "streamed"), ("binding", "pipelined")))
ONE_CORE = ("fused-gemm-sm", (("binding", "pipelined"),))
each_variant = pytest.mark.parametrize(
    "strategy", [STREAMED, PIPELINED, ONE_CORE], ids=["streamed", "pipelined", "one-core"]
)


@cache
def _rows(strategy: tuple) -> list[Row]:
    # a pipeline of the same factors as the sequence that it is compared with
    drawn = STREAMED if strategy == PIPELINED else strategy
    return random_rows(drawn, ROWS, seed=3, machines=both())


@cache
def _cost(strategy: tuple) -> Cost:
    (cost,) = priced(strategy, _rows(strategy))
    return cost


@each_variant
def test_parts_sum_to_whole_cycles(strategy: tuple):
    cost = _cost(strategy)
    parts = np.array([np.broadcast_to(p.cycles, (ROWS,)) for p in cost.latency_parts])
    np.testing.assert_allclose(parts.sum(axis=0), cost.latency_cycles, rtol=SUM)
    assert parts.min() >= -1e-6  # shares of a pipeline's mean step, rounded
    assert np.all(cost.latency_cycles == np.round(cost.latency_cycles))


@each_variant
def test_latency_is_at_least_the_time_of_the_bus_and_traffic_is_compulsory(strategy: tuple):
    cost = _cost(strategy)
    assert np.all(cost.root_traffic_bytes >= cost.compulsory_bytes * (1 - SUM))
    bandwidth = np.array(
        [r.machine.memories["dram"].child_bandwidth_bytes_per_cycle for r in _rows(strategy)]
    )
    assert np.all(cost.latency_cycles * (1 + SUM) >= cost.root_traffic_bytes / bandwidth)


def test_a_pipeline_is_never_slower_and_never_smaller_than_the_sequence():
    sequence, pipeline = _cost(STREAMED), _cost(PIPELINED)
    assert np.all(pipeline.latency_cycles <= sequence.latency_cycles * (1 + SUM))
    assert np.any(pipeline.latency_cycles < 0.9 * sequence.latency_cycles)
    np.testing.assert_allclose(pipeline.energy_pj, sequence.energy_pj, rtol=SUM)
    for one, other in zip(sequence.occupancy, pipeline.occupancy, strict=True):
        assert np.all(other.needed_bytes >= one.needed_bytes)


def test_a_pipeline_takes_the_time_of_a_flow_shop():
    """Jobs that pass two machines one after the other, step by step as a schedule would."""
    op, machine = gemm_softmax(96, 256, 128), load("edge")
    units = dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2)
    factors = {**units, "M_dram_t": 6, "M_comp": 16, "N_comp": 16, "K_dram_t": 2, "K_comp": 64}
    cost = evaluate(
        op,
        strategies.build(op, machine, "fused-gemm-distsm", factors, **dict(PIPELINED[1])),
        machine,
    )
    outer, gemm = cost.nodes[0], cost.nodes[1]
    assert outer.operations[0] == "gemm"
    assert gemm.operations == ("gemm",)
    first = float(gemm.cycles)
    second = float(outer.first_cycles) - first
    ready = [0.0, 0.0]
    for _ in range(6):
        ready[0] += first
        ready[1] = max(ready[0], ready[1]) + second
    conflict = sum(float(p.cycles) for p in cost.latency_parts if p.kind == "CF")
    exposed = outer.ramp_up_cycles + outer.ramp_down_cycles + outer.stall_cycles
    unfinished = sum(float(n.refill_cycles) for n in cost.nodes)  # K in 2: C is continued
    assert unfinished > 0
    assert cost.latency_cycles == ready[1] + conflict + exposed + unfinished
