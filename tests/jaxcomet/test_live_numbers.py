"""Machine numbers are live: each changes the result as the equation says, by hand.

The mapping is that of test_latency.py, whose terms are derived there.
"""

import dataclasses

import pytest

from jaxcomet import gemm_softmax, strategies
from jaxcomet.cost import Cost, evaluate
from jaxcomet.hardware import Machine, load


def _small(machine: Machine) -> Cost:
    """The mapping of test_latency.py: 2 x 32 x 8 over 2 x 2 clusters of 2 x 2 cores."""
    spread = dict.fromkeys(("N_dram_sx", "N_dram_sy", "N_gb_sx", "N_gb_sy"), 2)
    workload = gemm_softmax(2, 32, 8)
    factors = {**spread, "M_comp": 2, "N_comp": 2, "K_comp": 8}
    return evaluate(
        workload, strategies.build(workload, machine, "fused-gemm-distsm", factors), machine
    )


def _doubled_memory(machine: Machine, name: str, number: str) -> Machine:
    memory = machine.memories[name]
    memory = dataclasses.replace(memory, **{number: 2.0 * getattr(memory, number)})
    return dataclasses.replace(machine, memories={**machine.memories, name: memory})


def _doubled_network(machine: Machine, name: str, number: str) -> Machine:
    memory = machine.memories[name]
    network = memory.network
    assert network is not None
    network = dataclasses.replace(network, **{number: 2.0 * getattr(network, number)})
    memory = dataclasses.replace(memory, network=network)
    return dataclasses.replace(machine, memories={**machine.memories, name: memory})


def test_doubled_dram_bandwidth_halves_what_dram_bounds():
    # At 2 B/cycle: A 16 bytes 8 cycles, less than its mesh (2 hops of 7 and a word: 15); B 256
    # bytes 128 cycles; H 64 bytes 32 cycles. At 4: 15, 64 and 16. Energy stays.
    slow = load("edge")
    dram = dataclasses.replace(slow.memories["dram"], child_bandwidth_bytes_per_cycle=2.0)
    slow = dataclasses.replace(slow, memories={**slow.memories, "dram": dram})
    fast = _doubled_memory(slow, "dram", "child_bandwidth_bytes_per_cycle")
    assert _small(slow).latency_cycles - _small(fast).latency_cycles == (128 - 64) + (32 - 16)
    assert _small(slow).energy_pj == _small(fast).energy_pj


@pytest.mark.parametrize(
    ("memory", "number", "cycles"),
    [
        # 2 hops x 5 more cycles for each move over a network; all of them wait for the mesh.
        # DRAM to GB: A, B, H; the exchanges of D and G between the clusters cross 4 hops each.
        ("gb", "hop_latency_cycles", 2 * 5 * 3 + 4 * 5 * 2),
        ("ib", "hop_latency_cycles", 2 * 5),  # A
        ("wb", "hop_latency_cycles", 2 * 5),  # B
        # D up and down, G up and down, H up; D and G between the cores
        ("ob", "hop_latency_cycles", 2 * 5 * 5 + 4 * 5 * 2),
        ("ib", "queuing_delay_cycles", 2 * 2),
        ("wb", "queuing_delay_cycles", 2 * 2),
        ("ob", "queuing_delay_cycles", 2 * 2 * 5 + 4 * 2 * 2),
    ],
)
def test_doubled_mesh_delays_add_hop_by_hop(memory: str, number: str, cycles: int):
    machine = load("edge")
    longer = _doubled_network(machine, memory, number)
    assert _small(longer).latency_cycles - _small(machine).latency_cycles == cycles


def test_doubled_channel_width_halves_the_words():
    # B to the clusters: 256 bytes are 4 words of 512 bits, 2 of 1024: 18 -> 16 cycles; the other
    # moves over this network have at most one word, which stays one cycle when rounded up.
    machine = load("edge")
    wide = _doubled_network(machine, "gb", "channel_width_bits")
    assert _small(wide).latency_cycles - _small(machine).latency_cycles == -2


def test_doubled_buffer_fits_twice_the_tile():
    machine = load("edge")
    workload = gemm_softmax(1, 512, 128)
    mapping = strategies.build(
        workload, machine, "fused-gemm-distsm", {"N_comp": 512, "K_comp": 128}
    )
    small = evaluate(workload, mapping, machine)
    assert small.reasons()[0].startswith("wb: needs 65,536 bytes, has 32,768")
    large = evaluate(workload, mapping, _doubled_memory(machine, "wb", "capacity_bytes"))
    assert large.feasible
    assert large.latency_cycles == small.latency_cycles


@pytest.mark.parametrize(
    ("memory", "number", "moved_bytes"),
    [
        # M = 2, N = 32, K = 8: A 16, B 256, H 64 bytes; 4 clusters, 16 cores
        ("dram", "read_energy_pj_per_byte", 16 + 256),
        ("dram", "write_energy_pj_per_byte", 64),
        # GB writes A once a cluster, B, D and G once a cluster (2 rows of 2 bytes), H in 2 bytes
        ("ib", "write_energy_pj_per_byte", 16 * 16),
        ("wb", "write_energy_pj_per_byte", 256),
        ("ib", "read_energy_pj_per_byte", 16 * 16),  # each core feeds A to its engine
        ("wb", "read_energy_pj_per_byte", 256),
    ],
)
def test_doubled_energies_cost_what_moves(memory: str, number: str, moved_bytes: int):
    machine = load("edge")
    change = _small(_doubled_memory(machine, memory, number)).energy_pj - _small(machine).energy_pj
    assert change == pytest.approx(moved_bytes * getattr(machine.memories[memory], number))


def test_doubled_energies_of_the_cluster_memory():
    # A is read once a cluster (16 bytes, broadcast from there), B by the cores that need it (256);
    # D and G, 4 bytes a cluster, go down to each core: 2 x 16 x 4. H, 128 bytes, is read for DRAM
    # at 1 byte an element: 64. Each exchange of D and G reads and writes each cluster's 4 bytes
    # once.
    machine = load("edge")
    base = _small(machine).energy_pj
    gb = machine.memories["gb"]
    read = _small(_doubled_memory(machine, "gb", "read_energy_pj_per_byte")).energy_pj - base
    assert read == pytest.approx((4 * 16 + 256 + 2 * 64 + 64 + 2 * 16) * gb.read_energy_pj_per_byte)
    # It writes A once a cluster, B, D and G from the cores, H in 2 bytes.
    write = _small(_doubled_memory(machine, "gb", "write_energy_pj_per_byte")).energy_pj - base
    moved = 4 * 16 + 256 + 2 * 16 + 128 + 2 * 16
    assert write == pytest.approx(moved * gb.write_energy_pj_per_byte)


@pytest.mark.parametrize(
    ("op", "count"),
    [
        ("exp", 64),
        ("div", 64),
        # sub: 64; row sums are trees of 4 steps: 4 x 64; exchanges of G: in 4 clusters 3 x 2
        # additions between 4 cores, and 3 x 2 between the clusters
        ("add", 64 + 4 * 64 + 4 * 6 + 6),
        ("max", 4 * 64 + 4 * 6 + 6),
        ("sqrt", 0),
    ],
)
def test_doubled_energies_of_vector_operations(op: str, count: int):
    machine = load("edge")
    simd = machine.engines["simd"]
    assert hasattr(simd, "ops")
    old = simd.ops[op]  # pyright: ignore[reportAttributeAccessIssue]
    ops = {**simd.ops, op: dataclasses.replace(old, energy_pj=2 * old.energy_pj)}  # pyright: ignore[reportAttributeAccessIssue]
    engines = {**machine.engines, "simd": dataclasses.replace(simd, ops=ops)}
    change = (
        _small(dataclasses.replace(machine, engines=engines)).energy_pj - _small(machine).energy_pj
    )
    assert change == pytest.approx(count * old.energy_pj, abs=1e-9)


def test_doubled_energy_of_a_multiplication():
    machine = load("edge")
    gemm = dataclasses.replace(machine.engines["gemm"], mac_energy_pj=2 * 0.2296)  # pyright: ignore[reportCallIssue]
    doubled = dataclasses.replace(machine, engines={**machine.engines, "gemm": gemm})
    assert _small(doubled).energy_pj - _small(machine).energy_pj == pytest.approx(512 * 0.2296)
