"""The machines that come with the package, against the published figures, written out by hand."""

import dataclasses
import math

import pytest

from jaxcomet.hardware import (
    Machine,
    MatrixEngine,
    VectorEngine,
    load,
    machine_names,
    read_spec,
)


def test_names():
    assert machine_names() == ("cloud", "edge", "r2", "r2v", "r2w")


@pytest.mark.parametrize(("name", "mesh"), [("edge", 2.0), ("cloud", 4.0)])
def test_levels(name: str, mesh: float):
    machine = load(name)
    assert machine.name == name
    assert [(x.name, x.mesh_x, x.mesh_y) for x in machine.levels] == [
        ("dram", 1.0, 1.0),
        ("gb", mesh, mesh),
        ("core", mesh, mesh),
    ]
    assert machine.clock_hz is None
    assert machine.root.name == "dram"
    assert machine.path("ob") == ("dram", "gb", "ob")


@pytest.mark.parametrize(("name", "bandwidth"), [("edge", 25.0), ("cloud", 50.0)])
def test_dram(name: str, bandwidth: float):
    dram = load(name).memories["dram"]
    assert (dram.level, dram.parent, dram.capacity_bytes, dram.network) == (
        "dram",
        None,
        None,
        None,
    )
    assert dram.child_bandwidth_bytes_per_cycle == bandwidth
    assert not dram.duplex  # the figure is the total of reads and writes
    assert dram.read_energy_pj_per_byte == dram.write_energy_pj_per_byte == 800 / 8


@pytest.mark.parametrize(
    ("name", "capacity", "width", "read", "write", "link"),
    [
        ("edge", 2048 * 1024, 2048, 474, 532, 64.0),
        ("cloud", 4096 * 2048, 4096, 994, 1111, 256.0),
    ],
)
def test_global_buffer(name: str, capacity: int, width: int, read: int, write: int, link: float):
    gb = load(name).memories["gb"]
    assert (gb.level, gb.parent, gb.capacity_bytes) == ("gb", "dram", capacity)
    assert gb.child_bandwidth_bytes_per_cycle == gb.parent_bandwidth_bytes_per_cycle == 2048.0
    assert gb.link_bandwidth_bytes_per_cycle == link
    assert gb.read_energy_pj_per_byte == read / width
    assert gb.write_energy_pj_per_byte == write / width
    assert (gb.duplex, gb.shared_ports, gb.double_buffered) == (True, False, True)


@pytest.mark.parametrize("name", ["edge", "cloud"])
@pytest.mark.parametrize(
    ("buffer", "rows", "read", "write", "shared"),
    [("ib", 8, 47, 60, False), ("wb", 8, 47, 60, False), ("ob", 32, 72, 129, True)],
)
def test_core_buffers(name: str, buffer: str, rows: int, read: int, write: int, shared: bool):
    memory = load(name).memories[buffer]
    assert (memory.level, memory.parent) == ("core", "gb")
    assert memory.capacity_bytes == 4096 * rows
    assert memory.child_bandwidth_bytes_per_cycle == 4096.0
    assert memory.parent_bandwidth_bytes_per_cycle == 4096.0
    link = {"edge": 64.0, "cloud": 256.0}[name] if buffer == "ob" else None
    assert memory.link_bandwidth_bytes_per_cycle == link
    assert memory.read_energy_pj_per_byte == read / 4096
    assert memory.write_energy_pj_per_byte == write / 4096
    assert (memory.duplex, memory.shared_ports, memory.double_buffered) == (True, shared, True)


@pytest.mark.parametrize(
    ("name", "port", "channel"), [("edge", 64.0, 512.0), ("cloud", 256.0, 2048.0)]
)
@pytest.mark.parametrize("buffer", ["gb", "ib", "wb", "ob"])
def test_networks(name: str, port: float, channel: float, buffer: str):
    network = load(name).memories[buffer].network
    assert network is not None
    assert network.port_bandwidth_bytes_per_cycle == port
    assert (network.hop_latency_cycles, network.queuing_delay_cycles) == (5.0, 2.0)
    assert (network.channel_width_bits, network.num_ports) == (channel, 1.0)
    assert (network.broadcast, network.reduction) == (buffer != "ob", False)


def _matrix(machine: Machine) -> MatrixEngine:
    engine = machine.engines["gemm"]
    assert isinstance(engine, MatrixEngine)
    return engine


def _vector(machine: Machine) -> VectorEngine:
    engine = machine.engines["simd"]
    assert isinstance(engine, VectorEngine)
    return engine


@pytest.mark.parametrize(
    ("name", "ib", "wb", "ob"), [("edge", 64.0, 512.0, 64.0), ("cloud", 256.0, 256.0, 256.0)]
)
def test_matrix_engine(name: str, ib: float, wb: float, ob: float):
    engine = _matrix(load(name))
    assert (engine.level, engine.operands, engine.result) == ("core", ("ib", "wb"), "ob")
    assert (engine.array_rows, engine.array_columns) == (32.0, 32.0)
    assert (engine.grid_rows, engine.grid_columns) == (8.0, 8.0)
    assert engine.mac_energy_pj == 0.2296
    assert (engine.array, engine.weight_registers) == ("systolic", True)
    assert {k: v.bandwidth_bytes_per_cycle for k, v in engine.ports.items()} == {
        "ib": ib,
        "wb": wb,
        "ob": ob,
    }
    assert [port.hop_latency_cycles for port in engine.ports.values()] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("name", "port"), [("edge", 64.0), ("cloud", 256.0)])
def test_vector_engine(name: str, port: float):
    engine = _vector(load(name))
    assert (engine.level, engine.operands, engine.result) == ("core", ("ob",), "ob")
    assert (engine.lanes, engine.pipeline_stages) == (16.0, 6.0)
    assert engine.row_reduction == "tree"
    assert list(engine.ports) == ["ob"]
    assert engine.ports["ob"].bandwidth_bytes_per_cycle == port
    assert engine.ports["ob"].hop_latency_cycles == 1.0
    assert {op: (cost.cycles, cost.energy_pj) for op, cost in engine.ops.items()} == {
        "add": (1.0, 0.11),
        "mul": (1.0, 0.64),
        "div": (1.0, 0.8),
        "exp": (3.0, 3.86),
        "max": (1.0, 0.0025),
        "sqrt": (1.0, 2.84),
    }


@pytest.mark.parametrize("name", ["edge", "cloud"])
def test_router_clock_is_twenty_inverter_delays(name: str):
    router = load(name).router
    assert router is not None
    # R (3 Cd + 12 Cg + 12 Cl) = 5.1485e-12 s; the clock of the published constants is 9.71 GHz.
    delay = router.transistor_resistance_ohm * (
        3 * router.drain_capacitance_farad
        + 12 * router.gate_capacitance_farad
        + 12 * router.overlap_capacitance_farad
    )
    assert 1 / (router.fanout_delays_per_clock * delay) == pytest.approx(9.71e9, rel=1e-3)
    assert router.wire_capacitance_farad == 4 * 2.67339e-13
    assert router.channel_pitch == 2 * router.metal_pitch == 1.6e-4
    assert (router.supply_volt, router.feature_size, router.repeater_factor) == (0.9, 0.016, 8.1)
    assert (router.virtual_channels, router.buffer_depth, router.crossbar_ports) == (3, 10, 5)


@pytest.mark.parametrize("name", ["edge", "cloud"])
def test_every_number_says_where_it_is_from(name: str):
    entries = dict(read_spec(name).entries())
    assert len(entries) == 119
    assumed = {key for key, entry in entries.items() if entry.kind == "assumed"}
    assert assumed == {
        "memory.gb.double_buffered",
        "memory.wb.double_buffered",
        "memory.ob.double_buffered",
        "memory.ob.network.num_ports",
    }
    assert all(
        entry.source.startswith("d-matrix-ai/comet 917af0d")
        for key, entry in entries.items()
        if key not in assumed
    )


# The reference machines, against their definition in docs/machines.md


@pytest.mark.parametrize("name", ["r2", "r2w", "r2v"])
def test_memories_of_a_reference_machine(name: str):
    machine = load(name)
    assert [(x.name, x.mesh_x, x.mesh_y) for x in machine.levels] == [
        ("dram", 1.0, 1.0),
        ("glb", 1.0, 1.0),
    ]
    assert machine.clock_hz == 1e9
    assert machine.router is None
    dram, glb = machine.memories["dram"], machine.memories["glb"]
    assert (dram.capacity_bytes, dram.child_bandwidth_bytes_per_cycle) == (None, 64.0)
    assert not dram.duplex
    assert dram.read_energy_pj_per_byte == dram.write_energy_pj_per_byte == 64.0
    assert (glb.parent, glb.capacity_bytes) == ("dram", 131_072.0)
    assert glb.child_bandwidth_bytes_per_cycle == glb.parent_bandwidth_bytes_per_cycle == math.inf
    assert glb.link_bandwidth_bytes_per_cycle is None
    assert glb.read_energy_pj_per_byte == glb.write_energy_pj_per_byte == 2.0
    assert glb.double_buffered
    network = glb.network
    assert network is not None
    assert network.port_bandwidth_bytes_per_cycle == network.channel_width_bits == math.inf
    assert (network.hop_latency_cycles, network.queuing_delay_cycles) == (0.0, 0.0)


@pytest.mark.parametrize(("name", "registers"), [("r2", False), ("r2w", True), ("r2v", True)])
def test_array_of_a_reference_machine(name: str, registers: bool):
    engine = _matrix(load(name))
    assert (engine.operands, engine.result) == (("glb", "glb"), "glb")
    assert (engine.array_rows, engine.array_columns) == (32.0, 32.0)
    assert (engine.grid_rows, engine.grid_columns, engine.mac_energy_pj) == (1.0, 1.0, 0.5)
    assert (engine.array, engine.weight_registers) == ("broadcast", registers)
    port = engine.ports["glb"]
    assert (port.bandwidth_bytes_per_cycle, port.hop_latency_cycles) == (math.inf, 0.0)


def test_vector_engine_of_a_reference_machine():
    engine = _vector(load("r2v"))
    assert (engine.lanes, engine.pipeline_stages, engine.row_reduction) == (64.0, 1.0, "lanes")
    assert {(cost.cycles, cost.energy_pj) for cost in engine.ops.values()} == {(1.0, 1.0)}
    assert engine.ports["glb"].bandwidth_bytes_per_cycle == math.inf
    assert list(load("r2").engines) == list(load("r2w").engines) == ["gemm"]


@pytest.mark.parametrize("name", ["r2w", "r2v"])
def test_the_reference_machines_differ_in_what_their_names_say(name: str):
    r2, other = load("r2"), load(name)
    with_registers = dataclasses.replace(_matrix(r2), weight_registers=True)
    assert other.memories == r2.memories
    assert other.levels == r2.levels
    assert other.engines["gemm"] == with_registers


@pytest.mark.parametrize("name", ["r2", "r2w", "r2v"])
def test_a_reference_machine_is_defined_not_measured(name: str):
    expected = f"reference machine {name.upper()} of docs/machines.md"
    assert {(e.source, e.kind) for _, e in read_spec(name).entries()} == {(expected, "assumed")}
