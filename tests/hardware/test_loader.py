"""Machine files of any depth, and one line for each thing that is wrong."""

import math
import pickle
from pathlib import Path

import pytest

from jaxcomet.hardware import MachineFileError, MatrixEngine, VectorEngine, load, read_spec
from tests.hardware.wrong_machines import (
    MACHINES,
    NUMBER,
    QUANTITIES,
    STRUCTURE,
    TWO_LEVEL,
    VALUES,
    changed,
)


def _lines(tmp_path: Path, text: str) -> list[str]:
    """The lines of the error that a file raises, without the name of the file."""
    path = tmp_path / "machine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MachineFileError) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert len(caught.value.problems) == len(lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


def test_a_machine_of_two_levels():
    machine = load(MACHINES / "two_level.toml")
    assert machine.path("core") == ("main", "core")
    assert [(x.mesh_x, x.mesh_y) for x in machine.levels] == [(1.0, 1.0), (3.0, 1.0)]
    assert machine.clock_hz == 2e9
    assert machine.router is None
    core = machine.memories["core"]
    assert core.child_bandwidth_bytes_per_cycle == 50.0  # 100e9 byte/s at 2e9 cycle/s
    assert core.parent_bandwidth_bytes_per_cycle == 64.0  # 512 bit
    assert core.read_energy_pj_per_byte == 16.0  # 2 pJ/bit
    assert core.network is not None
    assert core.network.port_bandwidth_bytes_per_cycle == 25.0  # 400e9 bit/s
    assert core.network.hop_latency_cycles == pytest.approx(6.0, rel=1e-15)  # 3 ns
    assert core.network.channel_width_bits == 512.0  # 64 byte
    assert machine.engines["gemm"].operands == ("core", "core")


def test_a_machine_of_five_levels():
    machine = load(MACHINES / "five_level.toml")
    chain = ("host", "hbm", "shared", "local", "register")
    assert machine.path("register") == chain
    assert tuple(machine.memories) == chain
    assert [level.mesh_x for level in machine.levels] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [m.capacity_bytes for m in machine.memories.values()] == [
        None,
        *(1024.0 * 2 ** (8 - i) for i in range(1, 5)),
    ]


def test_a_machine_of_four_levels():
    machine = load(MACHINES / "four_level.toml")
    assert machine.path("core") == ("dram", "gb", "cluster", "core")
    assert [level.name for level in machine.levels] == ["dram", "gb", "cluster", "core"]
    assert [(x.mesh_x, x.mesh_y) for x in machine.levels] == [(1, 1), (1, 1), (2, 1), (2, 2)]
    assert {engine.level for engine in machine.engines.values()} == {"core"}


def test_a_machine_with_several_memories_at_two_levels():
    machine = load(MACHINES / "several_memories.toml")
    assert [(m.name, m.level, m.parent) for m in machine.memories.values()] == [
        ("dram", "dram", None),
        ("inputs", "gb", "dram"),
        ("weights", "gb", "dram"),
        ("ib", "core", "inputs"),
        ("wb", "core", "weights"),
        ("ob", "core", "inputs"),
    ]
    assert machine.path("wb") == ("dram", "weights", "wb")
    assert machine.path("ob") == ("dram", "inputs", "ob")
    assert machine.engines["gemm"].level == "core"


def test_kinds_of_engines_may_be_left_out():
    engines = load(MACHINES / "two_level.toml").engines
    gemm, simd = engines["gemm"], engines["simd"]
    assert isinstance(gemm, MatrixEngine)
    assert isinstance(simd, VectorEngine)
    assert (gemm.array, gemm.weight_registers, simd.row_reduction) == ("systolic", True, "tree")


def test_kinds_of_engines_are_read():
    engines = load(MACHINES / "four_level.toml").engines
    gemm, simd = engines["gemm"], engines["simd"]
    assert isinstance(gemm, MatrixEngine)
    assert isinstance(simd, VectorEngine)
    assert (gemm.array, gemm.weight_registers, simd.row_reduction) == ("broadcast", True, "lanes")


@pytest.mark.parametrize("unit", ["byte/cycle", "bit/cycle", "GB/s"])
def test_a_bandwidth_may_be_unlimited(tmp_path: Path, unit: str):
    path = tmp_path / "machine.toml"
    line = f'child_bandwidth = {{ value = inf, unit = "{unit}", {NUMBER} }}'
    path.write_text(changed("memory.core", "child_bandwidth", line), encoding="utf-8")
    assert load(path).memories["core"].child_bandwidth_bytes_per_cycle == math.inf
    assert str(load(path).memories["main"].child_bandwidth_bytes_per_cycle) == "50.0"


def test_a_channel_may_be_unlimited_where_no_router_grows_with_it(tmp_path: Path):
    path = tmp_path / "machine.toml"
    line = f'channel_width = {{ value = inf, unit = "B", {NUMBER} }}'
    path.write_text(changed("memory.core.network", "channel_width", line), encoding="utf-8")
    network = load(path).memories["core"].network
    assert network is not None
    assert network.channel_width_bits == math.inf
    with pytest.raises(MachineFileError) as caught:
        load("edge", [("memory.gb.network.channel_width", "inf")])
    assert str(caught.value) == (
        "hardware/specs/edge.toml (with overrides): memory.gb.network.channel_width.value: got "
        "inf; expected a finite number in a machine with router, whose energy grows with the "
        "width; give a width, or leave out the table router"
    )


def test_memories_come_outermost_first_whatever_the_order_of_the_file(tmp_path: Path):
    start = TWO_LEVEL.index("[memory.main]")
    end = TWO_LEVEL.index("[memory.core]")
    path = tmp_path / "machine.toml"
    path.write_text(TWO_LEVEL[:start] + TWO_LEVEL[end:] + TWO_LEVEL[start:end], encoding="utf-8")
    assert list(read_spec(path).memory) == ["core", "main"]
    assert list(load(path).memories) == ["main", "core"]


def test_a_path_may_be_text():
    assert load(str(MACHINES / "two_level.toml")) == load(MACHINES / "two_level.toml")


# Overrides


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(MachineFileError) as caught:
        load("egde")
    assert str(caught.value) == (
        "egde: machine name: got the unknown name egde; expected one of cloud, edge, r2, r2v, "
        "r2w, or the path of a .toml file; did you mean edge?"
    )


def test_a_missing_file(tmp_path: Path):
    path = tmp_path / "none.toml"
    with pytest.raises(MachineFileError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path}: file: got no such file; expected a machine file in TOML; check the path"
    )


def test_a_folder(tmp_path: Path):
    with pytest.raises(MachineFileError, match="file: got a folder; expected a machine file"):
        load(tmp_path)


def test_a_file_that_is_no_text(tmp_path: Path):
    path = tmp_path / "machine.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(MachineFileError, match="file: got byte 8 that is not UTF-8"):
        load(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name = 'x'\nclock 5\n", "line 2: got no valid TOML (Expected '='"),
        ("name = 'x'\nname = 'y'\n", "line 2: got a second definition of a key (Cannot overwrite"),
        ("[levels.a]\n[levels.a]\n", "line 2: got a second definition of a key (Cannot declare"),
        ("[levels.a", "end of the file: got no valid TOML (Expected ']'"),
    ],
)
def test_a_file_that_does_not_parse(tmp_path: Path, text: str, line: str):
    (message,) = _lines(tmp_path, text)
    assert message.startswith(line)


@pytest.mark.parametrize(("text", "lines"), [*QUANTITIES, *STRUCTURE])
def test_what_is_wrong_is_said_in_one_line_each(tmp_path: Path, text: str, lines: str):
    assert text != TWO_LEVEL
    assert _lines(tmp_path, text) == lines.splitlines()


@pytest.mark.parametrize(("section", "key", "unit", "value", "got", "expected"), VALUES)
def test_an_impossible_value(
    tmp_path: Path, section: str, key: str, unit: str, value: str, got: str, expected: str
):
    text = changed(section, key, f'{key} = {{ value = {value}, unit = "{unit}", {NUMBER} }}')
    assert _lines(tmp_path, text) == [f"{section}.{key}.value: got {got}; expected {expected}"]


def test_a_unit_per_second_needs_the_clock(tmp_path: Path):
    lines = _lines(tmp_path, changed("", "clock", ""))
    assert [line.split(": ")[0] for line in lines] == [
        "memory.core.child_bandwidth.unit",
        "memory.core.network.hop_latency.unit",
        "memory.core.network.port_bandwidth.unit",
        "memory.main.child_bandwidth.unit",
    ]
    assert lines[1] == (
        'memory.core.network.hop_latency.unit: got "ns"; expected a unit without seconds, e.g. '
        'cycle, in a machine without clock; add clock = {value = 1, unit = "GHz", ...} or change '
        "the unit"
    )


def test_engines_take_memories_of_one_level(tmp_path: Path):
    text = changed("engine.gemm", "operands", 'operands = ["core", "main"]')
    text += (
        "[engine.gemm.ports.main]\n"
        f'bandwidth = {{ value = 1, unit = "byte/cycle", {NUMBER} }}\n'
        f'hop_latency = {{ value = 1, unit = "cycle", {NUMBER} }}\n'
    )
    assert _lines(tmp_path, text) == [
        "engine.gemm: got memories of several levels (core at core, main at main); expected all "
        "memories of an engine at one level; move a memory or name another"
    ]


def test_all_problems_come_together_sorted_by_key(tmp_path: Path):
    text = changed("memory.core", "capacity", "capacity = 5")
    text = text.replace('result = "core"', 'result = "cor"', 1)
    text = text.replace('kind = "assumed"', 'kind = "guess"', 1)
    keys = [line.split(": ")[0] for line in _lines(tmp_path, text)]
    assert keys == ["clock.kind", "engine.gemm.result", "memory.core.capacity"]


def test_an_empty_file_lists_all_that_is_missing(tmp_path: Path):
    keys = [line.split(": ")[0] for line in _lines(tmp_path, "")]
    assert keys == ["description", "engine", "levels", "memory", "name"]


@pytest.mark.parametrize(
    "text",
    ["levels = 3\nmemory = []\nengine = 'x'", "[memory]\na = 1\n[engine]\nb = 2\n[levels]\n"],
)
def test_tables_of_the_wrong_type_are_reported_and_not_stumbled_over(tmp_path: Path, text: str):
    assert len(_lines(tmp_path, text)) >= 5


def test_the_error_can_be_pickled(tmp_path: Path):
    path = tmp_path / "machine.toml"
    path.write_text("", encoding="utf-8")
    with pytest.raises(MachineFileError) as caught:
        load(path)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.problems) == (str(caught.value), caught.value.problems)
