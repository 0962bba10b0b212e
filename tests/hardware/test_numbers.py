"""Numbers of machines by key: those of the file, each of them alone, open to gradients."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet.hardware import (
    Machine,
    MachineFileError,
    Quantity,
    load,
    machine_names,
    numbers,
    read_spec,
    to_machine,
)
from jaxcomet.hardware.entries import Bandwidth, Capacity, Count, Latency, Width

MACHINES = Path(__file__).parent / "machines"
ALL = [*machine_names(), *(str(path) for path in sorted(MACHINES.glob("*.toml")))]


def _entries(name: str) -> dict[str, tuple[Quantity, float]]:
    """Numbers of a file with their values in base units; access widths are divided out."""
    spec = read_spec(name)
    clock = None if spec.clock is None else spec.clock.base()
    found = {}
    for key, entry in spec.entries():
        if isinstance(entry, Quantity) and not key.endswith(".access_width"):
            width = spec.memory[key.split(".")[1]].access_width if "memory." in key else None
            access = None if width is None else width.base()
            found[key] = (entry, entry.base(clock_hz=clock, access_bytes=access))
    return found


@pytest.mark.parametrize("name", ALL, ids=lambda name: Path(name).stem)
def test_every_number_of_a_file_is_read_as_the_loader_converts_it(name: str):
    machine = load(name)
    for key, (entry, value) in _entries(name).items():
        assert numbers.read(machine, key) == value, key
        assert numbers.quantity(key, machine) is type(entry), key


@pytest.mark.parametrize("name", ALL, ids=lambda name: Path(name).stem)
def test_keys_are_those_of_the_file_and_the_mesh_of_the_outermost_level(name: str):
    machine, written = load(name), _entries(name)
    root = [f"levels.{machine.levels[0].name}.mesh_{edge}" for edge in "xy"]
    found = numbers.keys(machine)
    assert len(set(found)) == len(found) == len(jax.tree.leaves(machine))
    assert set(found) == {*written, *root}
    depth = [machine.level_index(m.level) for m in machine.memories.values()]
    if depth == sorted(depth):
        assert [key for key in found if key not in root] == [k for k in written if k not in root]


def test_keys_keep_their_order_when_jax_rebuilds_a_machine():
    machine = load("edge")
    rebuilt = jax.tree.map(lambda leaf: leaf, machine)
    assert numbers.keys(rebuilt)[:3] == numbers.keys(machine)[:3]
    memories = [k.split(".")[1] for k in numbers.keys(rebuilt) if k.endswith(".child_bandwidth")]
    assert memories[:2] == ["dram", "gb"]
    assert set(memories[2:]) == {"ib", "wb", "ob"}


@pytest.mark.parametrize("name", ALL, ids=lambda name: Path(name).stem)
def test_replacing_changes_the_one_leaf(name: str):
    machine = load(name)
    before = {key: numbers.read(machine, key) for key in numbers.keys(machine)}
    for key in before:
        changed = numbers.replaced(machine, {key: 0.125})
        after = {other: numbers.read(changed, other) for other in before}
        assert after == before | {key: 0.125}
        assert jax.tree.structure(changed) == jax.tree.structure(machine)
    assert {key: numbers.read(machine, key) for key in before} == before


def test_replacing_by_the_same_numbers_is_the_identity():
    machine = to_machine(read_spec("cloud"))
    same = {key: numbers.read(machine, key) for key in numbers.keys(machine)}
    assert numbers.replaced(machine, same) == machine
    assert numbers.replaced(machine, {}) is machine


def test_values_are_taken_as_they_are():
    sizes = np.array([1.0, 2.0])
    machine = numbers.replaced(load("edge"), {"memory.gb.capacity": sizes})
    assert machine.memories["gb"].capacity_bytes is sizes


@pytest.mark.parametrize("name", ["edge", "r2"])
def test_gradients_pass_through_to_values_and_to_what_stays(name: str):
    machine = load(name)
    known = numbers.keys(machine)
    values = {key: float(index + 1) for index, key in enumerate(known[::2])}
    others = known[1::2]

    def total(given: dict[str, float], machine: Machine) -> jax.Array:
        changed = numbers.replaced(machine, given)
        squares = [jnp.square(numbers.read(changed, key)) for key in values]
        return jnp.asarray(sum(squares) + sum(numbers.read(changed, key) for key in others))

    slopes, rest = jax.grad(total, argnums=(0, 1))(values, machine)
    assert {k: float(s) for k, s in slopes.items()} == {k: 2.0 * v for k, v in values.items()}
    assert [float(numbers.read(rest, key)) for key in known] == [
        0.0 if key in values else 1.0 for key in known
    ]


def test_some_keys_by_hand():
    edge = load("edge")
    assert numbers.read(edge, "memory.dram.child_bandwidth") == 25.0
    assert numbers.read(edge, "memory.gb.network.channel_width") == 512.0
    assert numbers.read(edge, "memory.gb.read_energy") == 474 / 2048
    assert numbers.read(edge, "engine.gemm.ports.wb.bandwidth") == 512.0
    assert numbers.read(edge, "engine.simd.ops.exp.cycles") == 3.0
    assert numbers.read(edge, "router.supply") == 0.9
    assert numbers.read(load("r2"), "clock") == 1e9


def test_the_class_of_an_entry_says_dimension_and_wholeness():
    edge = load("edge")
    assert numbers.quantity("memory.gb.capacity", edge) is Capacity
    assert numbers.quantity("memory.dram.child_bandwidth", edge) is Bandwidth
    assert numbers.quantity("memory.gb.network.channel_width", edge) is Width
    assert numbers.quantity("engine.simd.ops.div.cycles", edge) is Latency
    assert numbers.quantity("engine.gemm.array_rows", edge) is Count
    assert numbers.quantity("engine.simd.lanes", edge).whole


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("memory.gb.capcity", "did you mean memory.gb.capacity"),
        ("memory.l2.capacity", "did you mean "),
        ("capacity", "did you mean memory.gb.capacity or memory.ib.capacity"),
        ("engine.simd.array_rows", "did you mean engine.gemm.array_rows"),
        ("levels.gb", "did you mean levels.gb.mesh_"),
        ("memory.gb.capacity.bytes", "did you mean memory.gb.capacity"),
        ("memory.gb.capacity_bytes", "did you mean memory.gb.capacity"),
        ("memory.dram.capacity", "did you mean memory."),  # unlimited: there is no number
        ("memory.gb.duplex", "did you mean "),
        ("engine.gemm.array", "did you mean engine.gemm.array_"),
        ("memory.gb.access_width", "did you mean "),
        ("name", "keys have a number, e.g. levels.dram.mesh_x"),
        ("clock", "keys have a number"),
        ("", "keys have a number"),
    ],
)
def test_an_unknown_key_names_close_ones(key: str, advice: str):
    edge = load("edge")
    for call in (
        lambda: numbers.read(edge, key),
        lambda: numbers.replaced(edge, {key: 1.0}),
        lambda: numbers.quantity(key, edge),
    ):
        with pytest.raises(MachineFileError) as error:
            call()
        assert str(error.value).startswith(f"edge: {key}: got a key that this machine has no")
        assert advice in str(error.value)
