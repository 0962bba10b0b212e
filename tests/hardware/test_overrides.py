"""Overrides: single numbers of a machine changed without a file of one's own."""

import math
from pathlib import Path

import pytest

from jaxcomet.hardware import MachineFileError, load, read_spec

MACHINES = Path(__file__).parent / "machines"


def test_an_override_changes_the_value_and_keeps_the_unit():
    machine = load("edge", [("memory.dram.child_bandwidth", "50")])
    assert machine.memories["dram"].child_bandwidth_bytes_per_cycle == 50.0
    assert load("edge").memories["dram"].child_bandwidth_bytes_per_cycle == 25.0


@pytest.mark.parametrize(
    ("text", "expected"), [("64 KiB", 65536.0), ("1e3 B", 1e3), ("64KiB", 65536.0), ("1", 1024.0)]
)
def test_an_override_may_bring_its_unit(text: str, expected: float):
    assert load("edge", [("memory.ib.capacity", text)]).memories["ib"].capacity_bytes == expected


def test_an_override_of_a_switch():
    network = load("edge", [("memory.ob.network.broadcast", "true")]).memories["ob"].network
    assert network is not None
    assert network.broadcast is True


def test_an_override_of_a_choice():
    engine = load("edge", [("engine.gemm.array", "broadcast")]).engines["gemm"]
    assert engine.array == "broadcast"  # pyright: ignore[reportAttributeAccessIssue]


def test_an_override_may_lift_a_limit_or_set_one():
    key = "memory.gb.child_bandwidth"
    assert load("edge", [(key, "inf")]).memories["gb"].child_bandwidth_bytes_per_cycle == math.inf
    entry = read_spec("r2", [("memory.glb.child_bandwidth", "256")]).memory["glb"].child_bandwidth
    assert (entry.value, entry.unit) == (256, "byte/cycle")
    assert entry.source == "override of unlimited (reference machine R2 of docs/machines.md)"


def test_an_override_may_give_an_optional_number():
    machine = load(
        "edge",
        [
            ("clock", "1 GHz"),
            ("memory.dram.capacity", "8 GiB"),
            ("memory.gb.link_bandwidth", "1 GB/s"),
        ],
    )
    assert machine.clock_hz == 1e9
    assert machine.memories["dram"].capacity_bytes == 8 * 2.0**30
    assert machine.memories["gb"].link_bandwidth_bytes_per_cycle == 1.0


def test_the_last_override_of_a_key_wins():
    machine = load("edge", [("engine.simd.lanes", "8"), ("engine.simd.lanes", "32")])
    assert machine.engines["simd"].lanes == 32.0  # pyright: ignore[reportAttributeAccessIssue]


def test_an_overridden_number_says_so():
    entry = read_spec("edge", [("engine.gemm.mac_energy", "0.1")]).engine["gemm"]
    energy = dict(read_spec("edge", [("engine.gemm.mac_energy", "0.1")]).entries())[
        "engine.gemm.mac_energy"
    ]
    assert entry.type == "matrix"
    assert energy.kind == "assumed"
    assert energy.source.startswith("override of 0.2296 pJ (d-matrix-ai/comet")


@pytest.mark.parametrize(
    ("key", "text", "line"),
    [
        (
            "memory.dram.bandwidth",
            "50",
            "memory.dram.bandwidth: got a key that is no number of this machine; "
            "expected the key of a number; did you mean memory.dram.child_bandwidth",
        ),
        (
            "dram.child_bandwidth",
            "50",
            "dram.child_bandwidth: got a key that is no number of this machine; "
            "expected the key of a number; did you mean memory.dram.child_bandwidth",
        ),
        (
            "memory.gb.parent",
            "x",
            "memory.gb.parent: got a key that is no number of this machine; "
            "expected the key of a number; did you mean",
        ),
        (
            "zzz",
            "1",
            "zzz: got a key that is no number of this machine; expected the key of a number; "
            "119 keys can be set, e.g. engine.gemm.array, engine.gemm.array_columns",
        ),
        (
            "memory.gb.capacity",
            "-1",
            "memory.gb.capacity.value: got -1; expected a finite number above 0; correct the value",
        ),
        (
            "memory.gb.capacity",
            "nan",
            "memory.gb.capacity.value: got nan; expected a finite number above 0",
        ),
        (
            "memory.gb.capacity",
            "big",
            'memory.gb.capacity.value: got "big" (a string); expected a finite number above 0',
        ),
        (
            "memory.gb.capacity",
            "true",
            "memory.gb.capacity.value: got true (yes or no); expected a finite number above 0",
        ),
        (
            "memory.gb.capacity",
            "1 Mb",
            'memory.gb.capacity.unit: got "Mb"; expected a size: one of byte, B, kB, MB, GB, TB, '
            "KiB, MiB, GiB, TiB, bit; b may be bit or byte: write Mbit or MB",
        ),
        (
            "engine.gemm.array",
            "broad",
            'engine.gemm.array.value: got "broad"; expected one of systolic, broadcast; did you '
            "mean broadcast?",
        ),
        (
            "memory.gb.child_bandwidth",
            "unlimited",
            'memory.gb.child_bandwidth.value: got "unlimited" (a string); expected a number above '
            "0, or inf for unlimited",
        ),
        ("memory.gb.duplex", "1", "memory.gb.duplex.value: got 1; expected true or false"),
        (
            "clock",
            "1",
            'clock: got 1 without unit; expected e.g. {value = 1, unit = "GHz", ',
        ),
        (
            "memory.dram.child_bandwidth",
            "1 GB/s",
            'memory.dram.child_bandwidth.unit: got "GB/s"; expected a unit without seconds, e.g. '
            "byte/cycle, in a machine without clock; add clock",
        ),
    ],
)
def test_an_override_that_cannot_be_used(key: str, text: str, line: str):
    with pytest.raises(MachineFileError) as caught:
        load("edge", [(key, text)])
    (message,) = str(caught.value).splitlines()
    assert message.startswith(f"hardware/specs/edge.toml (with overrides): {line}")


def test_all_wrong_overrides_are_listed():
    with pytest.raises(MachineFileError) as caught:
        load("edge", [("b", "1"), ("a", "1")])
    assert [problem.key for problem in caught.value.problems] == ["a", "b"]


# Names and files
