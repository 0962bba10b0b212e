"""Machine files of any depth, and one line for each thing that is wrong."""

import math
import pickle
import re
from pathlib import Path

import pytest

from jaxcomet.hardware import MachineFileError, MatrixEngine, VectorEngine, load, read_spec

MACHINES = Path(__file__).parent / "machines"
TWO_LEVEL = (MACHINES / "two_level.toml").read_text(encoding="utf-8")
NUMBER = 'source = "made up", kind = "assumed"'


def _changed(section: str, key: str, line: str) -> str:
    """The two-level machine with the line of one key of one section replaced ("" removes it)."""
    header = f"[{section}]\n" if section else ""
    start = TWO_LEVEL.index(header) + len(header)
    head, rest = TWO_LEVEL[:start], TWO_LEVEL[start:]
    rest, count = re.subn(rf"(?m)^{key} = .*\n", lambda _: line and f"{line}\n", rest, count=1)
    assert count == 1, key
    return head + rest


def _added(section: str, line: str) -> str:
    """The two-level machine with a line more in one section."""
    assert f"[{section}]\n" in TWO_LEVEL
    return TWO_LEVEL.replace(f"[{section}]\n", f"[{section}]\n{line}\n", 1)


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
    path.write_text(_changed("memory.core", "child_bandwidth", line), encoding="utf-8")
    assert load(path).memories["core"].child_bandwidth_bytes_per_cycle == math.inf
    assert str(load(path).memories["main"].child_bandwidth_bytes_per_cycle) == "50.0"


def test_a_channel_may_be_unlimited_where_no_router_grows_with_it(tmp_path: Path):
    path = tmp_path / "machine.toml"
    line = f'channel_width = {{ value = inf, unit = "B", {NUMBER} }}'
    path.write_text(_changed("memory.core.network", "channel_width", line), encoding="utf-8")
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


# One case for each rule. The texts are whole lines, since a reader sees whole lines.

QUANTITIES = [
    (
        _changed("memory.core", "capacity", f'capacty = {{ value = 1, unit = "KiB", {NUMBER} }}'),
        "memory.core.capacty: got unknown key capacty; expected one of level, parent, capacity, "
        "access_width, child_bandwidth, parent_bandwidth, link_bandwidth, read_energy, "
        "write_energy, duplex, shared_ports, double_buffered, network; did you mean capacity?",
    ),
    (
        _added("levels.core", f'zzz = {{ value = 1, unit = "KiB", {NUMBER} }}'),
        "levels.core.zzz: got unknown key zzz; expected one of mesh_x, mesh_y; "
        "remove it: nothing would read it",
    ),
    (
        _changed("memory.core", "read_energy", ""),
        'memory.core.read_energy: got nothing; expected e.g. {value = 1, unit = "pJ/byte", '
        'source = "document, page", kind = "published"}; add the key (docs/machines.md)',
    ),
    (
        _changed("memory.core", "duplex", ""),
        "memory.core.duplex: got nothing; expected e.g. {value = true, "
        'source = "document, page", kind = "published"}; add the key (docs/machines.md)',
    ),
    (
        _changed("", "name", ""),
        "name: got nothing; expected the key; add the key (docs/machines.md)",
    ),
    (
        _changed("memory.main", "child_bandwidth", "child_bandwidth = 25"),
        "memory.main.child_bandwidth: got 25 without unit; expected e.g. {value = 25, "
        'unit = "byte/cycle", source = "document, page", kind = "published"}; '
        "write it as a table",
    ),
    (
        _changed("memory.main", "duplex", "duplex = false"),
        "memory.main.duplex: got false without source; expected e.g. {value = true, "
        'source = "document, page", kind = "published"}; write it as a table',
    ),
    (
        _changed("memory.core", "capacity", f"capacity = {{ value = 32, {NUMBER} }}"),
        'memory.core.capacity: got 32 without unit; expected e.g. {value = 32, unit = "KiB", '
        'source = "document, page", kind = "published"}; add the unit',
    ),
    (
        _changed(
            "memory.core", "capacity", 'capacity = { value = 32, unit = "B", kind = "assumed" }'
        ),
        'memory.core.capacity: got 32 without source; expected e.g. {value = 32, unit = "KiB", '
        'source = "document, page", kind = "published"}; add the source',
    ),
    (
        _changed(
            "memory.core",
            "capacity",
            'capacity = { value = 32, unit = "B", source = " ", kind = "assumed" }',
        ),
        'memory.core.capacity.source: got ""; expected a document and page, or the reason of an '
        "assumption; say where it is from",
    ),
    (
        _changed(
            "memory.core",
            "capacity",
            'capacity = { value = 32, unit = "B", source = "x", kind = "guessed" }',
        ),
        'memory.core.capacity.kind: got "guessed"; expected one of published, measured, assumed; '
        "say how the number is known",
    ),
    (
        _changed("memory.core", "capacity", f'capacity = {{ value = 3, unit = "GB/s", {NUMBER} }}'),
        'memory.core.capacity.unit: got "GB/s"; expected a size: one of byte, B, kB, MB, GB, TB, '
        "KiB, MiB, GiB, TiB, bit; write it in KiB",
    ),
    (
        TWO_LEVEL.replace("value = 128,", f"value = 1{400 * '0'},"),
        f"memory.core.capacity.value: got 1{79 * '0'}...; expected a finite number above 0; "
        "write a plain number",
    ),
    (
        _changed("memory.core", "duplex", f'duplex = {{ value = true, unit = "count", {NUMBER} }}'),
        "memory.core.duplex.unit: got unknown key unit; expected one of source, kind, value; "
        "remove it: yes or no has no unit",
    ),
    (
        _changed("memory.core", "duplex", f"duplex = {{ value = 1, {NUMBER} }}"),
        "memory.core.duplex.value: got 1; expected true or false; write it without quotes",
    ),
    (
        _changed("memory.core", "level", "level = 3"),
        "memory.core.level: got 3; expected a text; write it in quotes",
    ),
    (
        _added("engine.gemm", f'array = {{ value = "broadcst", {NUMBER} }}'),
        'engine.gemm.array.value: got "broadcst"; expected one of systolic, broadcast; did you '
        "mean broadcast?",
    ),
    (
        _added("engine.gemm", f"array = {{ value = 2, {NUMBER} }}"),
        "engine.gemm.array.value: got 2; expected one of systolic, broadcast; choose one of these",
    ),
    (
        _added("engine.gemm", 'array = "broadcast"'),
        'engine.gemm.array: got "broadcast" without source; expected e.g. {value = "broadcast", '
        'source = "document, page", kind = "published"}; write it as a table',
    ),
    (
        _added("engine.gemm", 'array = { value = "broadcast", kind = "assumed" }'),
        'engine.gemm.array: got "broadcast" without source; expected e.g. {value = "broadcast", '
        'source = "document, page", kind = "published"}; add the source',
    ),
    (
        _added("engine.gemm", f'array = {{ value = "systolic", unit = "1", {NUMBER} }}'),
        "engine.gemm.array.unit: got unknown key unit; expected one of source, kind, value; "
        "remove it: a choice has no unit",
    ),
    (
        _added("engine.gemm", f'weight_registers = {{ value = "no", {NUMBER} }}'),
        'engine.gemm.weight_registers.value: got "no"; expected true or false; write it without '
        "quotes",
    ),
    (
        _added("engine.simd", 'row_reduction = { value = "lane", source = "x", kind = "guess" }'),
        'engine.simd.row_reduction.kind: got "guess"; expected one of published, measured, '
        "assumed; say how the number is known\n"
        'engine.simd.row_reduction.value: got "lane"; expected one of tree, lanes; did you mean '
        "lanes?",
    ),
    (
        _added("engine.simd", f'array = {{ value = "systolic", {NUMBER} }}'),
        "engine.simd.array: got unknown key array; expected one of type, operands, result, ports, "
        "lanes, pipeline_stages, row_reduction, ops; remove it: nothing would read it",
    ),
    (
        _changed("engine.gemm", "type", 'type = "matrxi"'),
        'engine.gemm.type: got "matrxi"; expected one of matrix, vector; say what the engine is',
    ),
    (
        _changed("engine.gemm", "type", ""),
        "engine.gemm.type: got nothing; expected one of matrix, vector; say what the engine is",
    ),
    (
        _changed("engine.gemm", "operands", 'operands = ["core"]'),
        'engine.gemm.operands: got ["core"]; expected a list of 2 memory names; write e.g. '
        'operands = ["ib", "wb"]',
    ),
    (
        _changed("engine.simd", "operands", 'operands = ["core", "core"]'),
        'engine.simd.operands: got ["core", "core"]; expected a list of 1 memory name; write e.g. '
        'operands = ["ob"]',
    ),
    (
        _changed("engine.simd", "operands", 'operands = "core"'),
        'engine.simd.operands: got "core"; expected a list of 1 memory name; write e.g. '
        'operands = ["ob"]',
    ),
    (
        re.sub(r"\[engine\.simd\.ops\.exp\]\n.*\n.*\n", "", TWO_LEVEL),
        "engine.simd.ops.exp: got nothing; expected a table with cycles, energy; add the key "
        "(docs/machines.md)",
    ),
    (
        TWO_LEVEL.replace("[engine.simd.ops.exp]", "[engine.simd.ops.expo]"),
        "engine.simd.ops.exp: got nothing; expected a table with cycles, energy; add the key "
        "(docs/machines.md)\n"
        "engine.simd.ops.expo: got unknown key expo; expected one of add, mul, div, exp, max, "
        "sqrt; did you mean exp?",
    ),
]

VALUES = [
    ("memory.core", "capacity", "KiB", "0", "0", "a finite number above 0; correct the value"),
    ("memory.core", "capacity", "KiB", "-4", "-4", "a finite number above 0; correct the value"),
    (
        "memory.core",
        "child_bandwidth",
        "byte/cycle",
        "0.0",
        "0",
        "a number above 0, or inf for unlimited; correct the value",
    ),
    *(
        (section, key, unit, value, value, f"a number above 0, or inf for unlimited; {advice}")
        for section, key, unit in [
            ("memory.core", "child_bandwidth", "GB/s"),
            ("memory.core.network", "channel_width", "bit"),
            ("engine.gemm.ports.core", "bandwidth", "bit/cycle"),
        ]
        for value, advice in [
            ("nan", "give a number, or drop an optional key"),
            ("-inf", "give a number, or drop an optional key"),
            ("-2", "correct the value"),
        ]
    ),
    *(
        (section, key, unit, "inf", "inf", f"{number}; give a number, or drop an optional key")
        for section, key, unit, number in [
            ("memory.main", "read_energy", "pJ/byte", "a finite number, 0 or above"),
            ("memory.core.network", "hop_latency", "cycle", "a finite number, 0 or above"),
            ("memory.core.network", "num_ports", "count", "a whole number above 0"),
            ("engine.gemm", "array_rows", "count", "a whole number above 0"),
            ("engine.gemm", "mac_energy", "pJ", "a finite number, 0 or above"),
            ("engine.simd", "lanes", "count", "a whole number above 0"),
        ]
    ),
    (
        "memory.core.network",
        "hop_latency",
        "cycle",
        "-1",
        "-1",
        "a finite number, 0 or above; correct the value",
    ),
    (
        "memory.core",
        "read_energy",
        "pJ/byte",
        "-0.5",
        "-0.5",
        "a finite number, 0 or above; correct the value",
    ),
    (
        "memory.core",
        "capacity",
        "KiB",
        "nan",
        "nan",
        "a finite number above 0; give a number, or drop an optional key",
    ),
    (
        "memory.core",
        "capacity",
        "KiB",
        "inf",
        "inf",
        "a finite number above 0; give a number, or drop an optional key",
    ),
    (
        "memory.core",
        "capacity",
        "KiB",
        "true",
        "true (yes or no)",
        "a finite number above 0; write a plain number",
    ),
    (
        "memory.core",
        "capacity",
        "KiB",
        '"32"',
        '"32" (a string)',
        "a finite number above 0; write a plain number",
    ),
    *(
        (
            section,
            key,
            "count",
            "2.5",
            "2.5",
            "a whole number above 0; round it to what can be built",
        )
        for section, key in [
            ("levels.core", "mesh_x"),
            ("memory.core.network", "num_ports"),
            ("engine.gemm", "array_rows"),
            ("engine.gemm", "grid_columns"),
            ("engine.simd", "lanes"),
            ("engine.simd", "pipeline_stages"),
        ]
    ),
]

STRUCTURE = [
    (
        _changed("memory.core", "level", 'level = "cor"'),
        "levels.core: got a level without memory; expected a memory in every level; remove it\n"
        'memory.core.level: got "cor"; expected one of main, core; did you mean core?',
    ),
    (
        _changed("memory.core", "parent", 'parent = "mian"'),
        'memory.core.parent: got "mian"; expected one of main; did you mean main?\n'
        "memory.main: got a memory that nothing uses; expected every memory to be a parent, or an "
        "operand or result of an engine; remove it: its numbers would change nothing",
    ),
    (
        _changed("engine.gemm", "operands", 'operands = ["core", "care"]'),
        'engine.gemm.operands.1: got "care"; expected one of main, core; did you mean core?',
    ),
    (
        _changed("engine.simd", "result", 'result = "zzz"'),
        'engine.simd.result: got "zzz"; expected one of main, core; name a memory of this file',
    ),
    (
        TWO_LEVEL.replace("[engine.gemm.ports.core]", "[engine.gemm.ports.croe]"),
        "engine.gemm.ports.core: got nothing; expected a table with bandwidth, hop_latency, since "
        "the engine uses core; add the port\n"
        'engine.gemm.ports.croe: got "croe"; expected one of main, core; did you mean core?',
    ),
    (
        TWO_LEVEL
        + "[engine.simd.ports.main]\n"
        + f'bandwidth = {{ value = 1, unit = "byte/cycle", {NUMBER} }}\n'
        + f'hop_latency = {{ value = 1, unit = "cycle", {NUMBER} }}\n',
        "engine.simd.ports.main: got a port to a memory that the engine does not use; expected "
        "ports to core alone; remove it, or name the memory in operands or result",
    ),
    (
        _added("memory.main", 'parent = "core"'),
        "memory.main.double_buffered: got nothing; expected the key, since main has a parent; "
        "add the key (docs/machines.md)\n"
        'memory.main.level: got "main"; expected a parent above the innermost level core; move '
        "the memory or choose another parent\n"
        "memory.main.network: got nothing; expected the key, since main has a parent; add the key "
        "(docs/machines.md)\n"
        "memory.main.parent: got the circle main -> core -> main; expected a chain of parents that "
        "ends at the outermost memory; leave out the parent of the outermost memory\n"
        "memory.main.parent_bandwidth: got nothing; expected the key, since main has a parent; add "
        "the key (docs/machines.md)\n"
        "memory.main.shared_ports: got nothing; expected the key, since main has a parent; add the "
        "key (docs/machines.md)",
    ),
    (
        _changed("memory.core", "parent", ""),
        "memory: got 2 memories without parent (main, core); expected exactly one, the outermost; "
        "give the others a parent\n"
        'memory.core.level: got "core"; expected main, the outermost level, for a memory without '
        "parent; give it a parent or move it\n"
        "memory.main: got a memory that nothing uses; expected every memory to be a parent, or an "
        "operand or result of an engine; remove it: its numbers would change nothing",
    ),
    (
        _changed("memory.core", "level", 'level = "main"'),
        "levels.core: got a level without memory; expected a memory in every level; remove it\n"
        'memory.core.level: got "main"; expected core, the level below main of its parent main; '
        "move the memory or choose another parent",
    ),
    (
        _added("memory.main", f"shared_ports = {{ value = true, {NUMBER} }}"),
        "memory.main.shared_ports: got the key; expected no such key in the outermost memory, "
        "which has no parent; remove it: nothing would read it",
    ),
    (
        _changed("memory.core", "shared_ports", ""),
        "memory.core.shared_ports: got nothing; expected the key, since core has a parent; add the "
        "key (docs/machines.md)",
    ),
    (
        _changed(
            "memory.core",
            "read_energy",
            f'read_energy = {{ value = 1, unit = "pJ/access", {NUMBER} }}',
        ),
        "memory.core.access_width: got nothing; expected the bytes of one access, since "
        "read_energy is in pJ/access; add it, or write the energy in pJ/byte",
    ),
    (
        _added("memory.core", f'access_width = {{ value = 8, unit = "B", {NUMBER} }}'),
        "memory.core.access_width: got the key; expected it only beside an energy in pJ/access; "
        "remove it: nothing would read it",
    ),
    (
        _added("levels.main", f'mesh_x = {{ value = 2, unit = "count", {NUMBER} }}'),
        "levels.main.mesh_x.value: got 2; expected 1 for the outermost level; put a level with one "
        "unit around it",
    ),
    (
        _changed("levels.core", "mesh_y", ""),
        'levels.core.mesh_y: got nothing; expected e.g. {value = 2, unit = "count", '
        'source = "document, page", kind = "published"}; say how many units there are (only the '
        "outermost level has one)",
    ),
    (
        TWO_LEVEL.replace("[engine.simd", "[engine.main"),
        "engine.main: got main twice; expected a name that no memory has; rename the engine",
    ),
    (
        TWO_LEVEL.replace("[engine.simd", '[engine."si md"'),
        'engine.si md: got the name "si md"; expected letters, digits and _ after a letter; rename '
        "it",
    ),
]


@pytest.mark.parametrize(("text", "lines"), [*QUANTITIES, *STRUCTURE])
def test_what_is_wrong_is_said_in_one_line_each(tmp_path: Path, text: str, lines: str):
    assert text != TWO_LEVEL
    assert _lines(tmp_path, text) == lines.splitlines()


@pytest.mark.parametrize(("section", "key", "unit", "value", "got", "expected"), VALUES)
def test_an_impossible_value(
    tmp_path: Path, section: str, key: str, unit: str, value: str, got: str, expected: str
):
    text = _changed(section, key, f'{key} = {{ value = {value}, unit = "{unit}", {NUMBER} }}')
    assert _lines(tmp_path, text) == [f"{section}.{key}.value: got {got}; expected {expected}"]


def test_a_unit_per_second_needs_the_clock(tmp_path: Path):
    lines = _lines(tmp_path, _changed("", "clock", ""))
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
    text = _changed("engine.gemm", "operands", 'operands = ["core", "main"]')
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
    text = _changed("memory.core", "capacity", "capacity = 5")
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
