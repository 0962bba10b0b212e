"""Area and energies by hand, and their gradients.

The numbers written out here are those of hardware/specs/edge.toml and hardware/technologies/
45nm.toml.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet.hardware import (
    Machine,
    Port,
    area,
    load,
    load_technology,
    numbers,
    outside,
    scaled_energies,
)

MACHINES = Path(__file__).parent / "machines"
T45 = load_technology("45nm")
EDGE = load("edge")
SINGLE = 1e-5  # of figures computed in float32: powers and sums of some terms

TAKE_ROOM = {
    *(f"levels.{level}.mesh_{edge}" for level in ("dram", "gb", "core") for edge in "xy"),
    *(f"memory.{memory}.capacity" for memory in ("gb", "ib", "wb", "ob")),
    *(f"memory.{memory}.network.channel_width" for memory in ("gb", "ib", "wb", "ob")),
    *(f"engine.gemm.{part}_{side}" for part in ("array", "grid") for side in ("rows", "columns")),
    # what the engines take is less than the buffers' own bandwidth; gb's is above the fit's widest
    *(f"engine.gemm.ports.{memory}.bandwidth" for memory in ("ib", "wb", "ob")),
    "engine.simd.ports.ob.bandwidth",
    "engine.simd.lanes",
    "memory.dram.child_bandwidth",
    "router.channel_pitch",
    "router.virtual_channels",
    "router.buffer_depth",
    "router.crossbar_ports",
}


def _with(machine: Machine, memory: str, **changes: Any) -> Machine:
    changed = dataclasses.replace(machine.memories[memory], **changes)
    return dataclasses.replace(machine, memories={**machine.memories, memory: changed})


def _energies(machine: Machine) -> dict[str, Any]:
    return {
        f"{name}.{what}": getattr(memory, f"{what}_energy_pj_per_byte")
        for name, memory in machine.memories.items()
        for what in ("read", "write")
    }


# -- area ------------------------------------------------------------------------------------------


def test_the_parts_of_edge_by_hand():
    found = area(EDGE, T45)
    assert found.parts == pytest.approx(
        {
            # units * um2 at 64 KiB and 64 byte * (capacity / 64 KiB)^a * (width / 64 byte)^b
            "gb": 4 * 2.45e5 * 32**0.9888 * 8**0.1373,  # 2 MiB; 2048 byte wide counts as 512
            "ib": 16 * 2.45e5 * 0.5**0.9888,  # 32 KiB, of which gemm takes 64 byte a cycle
            "wb": 16 * 2.45e5 * 0.5**0.9888 * 8**0.1373,  # the same, 512 byte
            "ob": 16 * 2.45e5 * 2**0.9888 * 2**0.1373,  # 128 KiB; gemm and simd take 64 byte each
            "gemm": 16 * (32 * 32) * (8 * 8) * (282 + 137),
            "simd": 16 * 16 * (4184 + 7700),
            # side 5 ports * 512 bit * 0.16 um = 409.6 um; 5 * 3 * 10 * 512 flip-flops; routers of
            # gb's network in 4 clusters, and of the networks of ib, wb and ob in 16 cores each
            "network": (4 + 3 * 16) * (409.6**2 + 76800 * 4.522),
            "dram interface": 25 * 0.25e6,
        },
        rel=1e-12,
    )
    assert found.not_modelled == ()
    assert found.total_um2 == sum(found.parts.values())
    assert found.total_mm2 == found.total_um2 / 1e6


def test_a_part_stands_once_for_every_unit_of_all_levels_above():
    # five_level.toml: meshes of 1 x 1, 2, 3, 4 and 5 units along x
    machine = load(MACHINES / "five_level.toml")
    fives = [level.mesh_x * level.mesh_y for level in machine.levels]
    assert fives == [1, 2, 3, 4, 5]
    found = area(machine, T45)
    for name, units in {"hbm": 2, "shared": 6, "local": 24, "register": 120}.items():
        memory = machine.memories[name]
        width: Any = memory.child_bandwidth_bytes_per_cycle
        if name == "register":
            width = min(width, sum(_port(machine, e, name) for e in ("gemm", "simd")))
        assert found.parts[name] == units * T45.sram.area_um2(_capacity(machine, name), width)
    assert found.not_modelled == ("network: the machine has no router table",)
    assert "network" not in found.parts


def _capacity(machine: Machine, memory: str) -> Any:
    return machine.memories[memory].capacity_bytes


def _port(machine: Machine, engine: str, memory: str) -> Any:
    return machine.engines[engine].ports[memory].bandwidth_bytes_per_cycle


def test_several_memories_of_a_level_each_stand_in_every_unit():
    machine = load(MACHINES / "several_memories.toml")
    found = area(machine, T45)
    cores = math.prod(level.mesh_x * level.mesh_y for level in machine.levels)
    width = min(
        machine.memories["wb"].child_bandwidth_bytes_per_cycle, _port(machine, "gemm", "wb")
    )
    assert found.parts["wb"] == cores * T45.sram.area_um2(8 * 1024.0, width)
    assert set(found.parts) >= {"inputs", "weights", "ib", "wb", "ob"}


@pytest.mark.parametrize("width", [512.0, 513.0, 2048.0, math.inf])
def test_a_port_wider_than_the_fit_counts_as_its_widest(width: float):
    widest = T45.sram.area_um2(2.0**21, 512.0)
    for kind in (float, np.array, jnp.array):
        assert T45.sram.area_um2(2.0**21, kind(width)) == pytest.approx(widest, rel=SINGLE)
    slope = jax.grad(T45.sram.area_um2, argnums=1)(2.0**21, width)
    # b * y / width below; none above; half of it at the widest itself
    expected = 0.1373 * widest / 512 / 2 if width == 512.0 else 0.0
    assert float(slope) == pytest.approx(expected, rel=SINGLE)


def test_a_memory_that_fills_another_is_as_wide_as_its_own_port():
    lanes = dataclasses.replace(
        EDGE.engines["simd"],
        name="near",
        level="gb",
        ports={"gb": Port(bandwidth_bytes_per_cycle=16.0, hop_latency_cycles=1.0)},
    )
    machine = dataclasses.replace(EDGE, engines={**EDGE.engines, "near": lanes})
    parts = area(machine, T45).parts
    assert parts["gb"] == area(EDGE, T45).parts["gb"]
    assert parts["near"] == 4 * 16 * (4184 + 7700)


def test_the_outermost_memory_takes_its_interface_alone():
    machine = _with(EDGE, "dram", capacity_bytes=2.0**34)
    assert area(machine, T45).parts == area(EDGE, T45).parts
    assert outside(machine, T45) == outside(EDGE, T45)


def test_what_has_no_limit_counts_nothing_and_is_named():
    machine = numbers.replaced(
        EDGE,
        {"memory.dram.child_bandwidth": math.inf, "memory.gb.network.channel_width": math.inf},
    )
    machine = _with(machine, "ib", capacity_bytes=None)
    found = area(machine, T45)
    assert found.parts["dram interface"] == 0.0
    assert found.parts["network"] == pytest.approx(48 * (409.6**2 + 76800 * 4.522), rel=1e-12)
    assert "ib" not in found.parts
    assert found.not_modelled == (
        "ib: it has no capacity",
        "network of gb: its channel width has no limit",
        "dram interface: its bandwidth has no limit",
    )


def test_numbers_without_limit_have_no_gradient():
    keys = [
        "memory.dram.child_bandwidth",
        "memory.gb.network.channel_width",
        "engine.gemm.ports.ib.bandwidth",
        "memory.ib.child_bandwidth",
    ]

    def total(values: dict[str, Any]) -> jax.Array:
        return jnp.asarray(area(numbers.replaced(EDGE, values), T45).total_mm2)

    slopes = jax.jit(jax.grad(total))(dict.fromkeys(keys, math.inf))
    assert {key: float(slope) for key, slope in slopes.items()} == dict.fromkeys(keys, 0.0)
    several = numbers.replaced(EDGE, {keys[0]: np.array([25.0, math.inf])})
    assert area(several, T45).parts["dram interface"] == pytest.approx([6.25e6, 0.0], rel=1e-12)


def test_an_engine_called_network_hides_no_router():
    simd = dataclasses.replace(EDGE.engines["simd"], name="network")
    machine = dataclasses.replace(EDGE, engines={"gemm": EDGE.engines["gemm"], "network": simd})
    assert area(machine, T45).total_um2 == pytest.approx(area(EDGE, T45).total_um2, rel=1e-12)


# -- gradients and arrays --------------------------------------------------------------------------


def _total(values: dict[str, Any]) -> Any:
    return area(numbers.replaced(EDGE, values), T45).total_mm2


def test_a_gradient_above_0_reaches_every_number_that_takes_room_and_no_other():
    values: dict[str, Any] = {key: numbers.read(EDGE, key) for key in numbers.keys(EDGE)}
    slopes = {key: float(slope) for key, slope in jax.grad(_total)(values).items()}
    assert {key for key, slope in slopes.items() if slope != 0.0} == TAKE_ROOM
    whole = _total(values)
    for key in TAKE_ROOM - {"engine.gemm.ports.wb.bandwidth"}:  # at the widest of the fit: a kink
        up, down = (_total(values | {key: values[key] * (1 + s)}) for s in (1e-5, -1e-5))
        slope = values[key] * slopes[key] / whole
        assert slope > 0
        # differences are in float64; their own error is some 1e-10
        assert slope == pytest.approx((up - down) / 2e-5 / whole, rel=1e-4, abs=1e-8), key


def test_a_buffers_own_bandwidth_takes_room_where_it_is_the_narrowest():
    keys = ("memory.gb.child_bandwidth", "memory.ib.child_bandwidth")
    slopes = jax.grad(_total)(dict.fromkeys(keys, 48.0))
    assert min(float(slope) for slope in slopes.values()) > 0


GRID: dict[str, list[float]] = {
    "memory.gb.capacity": [2.0**20, 2.0**21, 2.0**22],
    "memory.gb.child_bandwidth": [128.0, 512.0, math.inf],
    "engine.gemm.ports.ob.bandwidth": [8.0, 64.0, 4096.0],
    "memory.ob.network.channel_width": [256.0, 512.0, 1024.0],
    "memory.dram.child_bandwidth": [25.0, 50.0, math.inf],
    "levels.core.mesh_x": [1.0, 2.0, 3.0],
    "engine.simd.lanes": [8.0, 16.0, 32.0],
}


def _both(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    machine = scaled_energies(numbers.replaced(EDGE, values), EDGE, T45)
    return dict(area(machine, T45).parts), _energies(machine)


@pytest.mark.parametrize("kind", ["numpy", "jax", "jit", "vmap"])
def test_arrays_of_machines_agree_with_single_ones(kind: str):
    arrays: dict[str, Any] = {key: np.array(values) for key, values in GRID.items()}
    if kind != "numpy":
        arrays = {key: jnp.array(values) for key, values in arrays.items()}
    called = {"jit": jax.jit(_both), "vmap": jax.vmap(_both)}.get(kind, _both)
    for found, *singles in zip(
        called(arrays),
        *(_both({key: values[i] for key, values in GRID.items()}) for i in range(3)),
        strict=True,
    ):
        for name, values in found.items():
            expected = [single[name] for single in singles]
            rel = 1e-12 if kind == "numpy" else SINGLE
            np.testing.assert_allclose(np.broadcast_to(values, 3), expected, rtol=rel)


def test_machine_and_technology_may_be_traced_and_new_values_compile_nothing():
    traces = []

    @jax.jit
    def total(machine: Machine, technology: Any) -> Any:
        traces.append(machine)
        return area(scaled_energies(machine, machine, technology), technology).total_mm2

    assert float(total(EDGE, T45)) == pytest.approx(area(EDGE, T45).total_mm2, rel=SINGLE)
    larger = numbers.replaced(EDGE, {"memory.gb.capacity": 2.0**22})
    assert float(total(larger, T45)) == pytest.approx(area(larger, T45).total_mm2, rel=SINGLE)
    assert len(traces) == 1


# -- energies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["edge", "cloud", "r2"])
def test_energies_at_the_start_are_those_of_the_start(name: str):
    machine = load(name)
    assert scaled_energies(machine, machine, T45) == machine
    traced = jax.jit(lambda m: scaled_energies(m, machine, T45))(machine)
    same = jax.tree.map(jnp.float32, machine)
    assert {k: float(v) for k, v in _energies(traced).items()} == {
        k: float(v) for k, v in _energies(same).items()
    }


def test_energies_follow_the_exponents_of_the_fit():
    twice = numbers.replaced(
        EDGE,
        {
            "memory.gb.capacity": 2.0**22,  # twice
            "memory.ib.capacity": 2.0**14,  # half
            "engine.gemm.ports.ib.bandwidth": 256.0,  # four times
        },
    )
    energies, before = _energies(scaled_energies(twice, EDGE, T45)), _energies(EDGE)
    ratios = {key: energies[key] / before[key] for key in energies}
    assert ratios == pytest.approx(
        {
            **dict.fromkeys(before, 1.0),
            "gb.read": 2**0.6007,
            "gb.write": 2**0.4852,
            "ib.read": 0.5**0.6007 * 4**-0.1996,
            "ib.write": 0.5**0.4852 * 4**-0.0213,
        },
        rel=1e-12,
    )


def test_a_wider_port_than_the_fit_changes_no_energy():
    wider = numbers.replaced(EDGE, {"memory.gb.child_bandwidth": 8192.0})
    assert _energies(scaled_energies(wider, EDGE, T45)) == _energies(EDGE)
    # 2048 at the start counts as 512: 128 is a fourth
    narrow = numbers.replaced(EDGE, {"memory.gb.child_bandwidth": 128.0})
    found = scaled_energies(narrow, EDGE, T45).memories["gb"].read_energy_pj_per_byte
    assert found == pytest.approx(474 / 2048 * 0.25**-0.1996, rel=1e-12)


def test_the_outermost_memory_and_those_without_limit_keep_their_energies():
    start = _with(EDGE, "dram", capacity_bytes=2.0**33)
    machine = _with(EDGE, "dram", capacity_bytes=2.0**34, read_energy_pj_per_byte=7.0)
    machine = _with(machine, "ib", capacity_bytes=math.inf)
    machine = _with(machine, "wb", capacity_bytes=None)
    assert scaled_energies(machine, start, T45) == machine
    assert scaled_energies(start, machine, T45).memories["ib"] == start.memories["ib"]


def test_gradients_of_energies_are_the_exponents():
    def read_energy(capacity: Any) -> Any:
        machine = numbers.replaced(EDGE, {"memory.gb.capacity": capacity})
        return scaled_energies(machine, EDGE, T45).memories["gb"].read_energy_pj_per_byte

    slope = float(jax.grad(read_energy)(2.0**21))
    assert slope * 2**21 / (474 / 2048) == pytest.approx(0.6007, rel=SINGLE)


def test_a_memory_that_the_start_lacks_is_refused():
    memories = {name: memory for name, memory in EDGE.memories.items() if name != "wb"}
    start = dataclasses.replace(EDGE, memories=memories)
    with pytest.raises(ValueError, match="got memory 'wb', which machine 'edge' lacks; expected"):
        scaled_energies(EDGE, start, T45)


# -- the range of the fit --------------------------------------------------------------------------


def test_what_lies_outside_of_the_fit_is_named_with_its_range():
    # 512 byte are 4096 bit: half as many rows of 512 byte are 1 MiB
    gb = (
        "memory.gb: ports of 2048 byte/cycle (counted as 512); "
        "the SRAM fit covers 16 to 512 byte wide"
    )
    wb = (
        "memory.wb.capacity: 32768 byte at 512 byte/cycle; "
        "the SRAM fit covers 1048576 byte and above at this width"
    )
    assert outside(EDGE, T45) == (gb, wb)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("memory.gb.capacity", 2.0**25, None),
        (
            "memory.gb.capacity",
            2.0**26,
            "memory.gb.capacity: 67108864 byte; the SRAM fit covers 4096 to 33554432 byte",
        ),
        ("memory.ib.capacity", 16384.0, None),  # 256 rows of 512 bit
        (
            "memory.ib.capacity",
            8192.0,
            "memory.ib.capacity: 8192 byte at 64 byte/cycle; "
            "the SRAM fit covers 16384 byte and above at this width",
        ),
        ("engine.gemm.ports.ib.bandwidth", 16.0, None),
        (
            "engine.gemm.ports.ib.bandwidth",
            8.0,
            "memory.ib: ports of 8 byte/cycle; the SRAM fit covers 16 to 512 byte wide",
        ),
    ],
)
def test_one_line_for_each_number_beyond_the_fit(key: str, value: float, line: str | None):
    within = numbers.replaced(
        EDGE, {"memory.gb.child_bandwidth": 512.0, "engine.gemm.ports.wb.bandwidth": 64.0}
    )
    assert outside(within, T45) == ()
    found = outside(numbers.replaced(within, {key: value}), T45)
    assert found == (() if line is None else (line,))


def test_a_buffer_may_lie_outside_in_several_ways():
    within = numbers.replaced(
        EDGE, {"memory.gb.child_bandwidth": math.inf, "engine.gemm.ports.wb.bandwidth": 64.0}
    )
    assert outside(numbers.replaced(within, {"memory.gb.capacity": 2048.0}), T45) == (
        "memory.gb.capacity: 2048 byte; the SRAM fit covers 4096 to 33554432 byte",
        "memory.gb: ports of inf byte/cycle (counted as 512); "
        "the SRAM fit covers 16 to 512 byte wide",
        "memory.gb.capacity: 2048 byte at 512 byte/cycle; "
        "the SRAM fit covers 1048576 byte and above at this width",
    )
