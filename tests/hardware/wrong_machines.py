"""The machine file of two levels with one thing wrong each time, and the lines that say it."""

import re
from pathlib import Path

MACHINES = Path(__file__).parent / "machines"
TWO_LEVEL = (MACHINES / "two_level.toml").read_text(encoding="utf-8")
NUMBER = 'source = "made up", kind = "assumed"'


def changed(section: str, key: str, line: str) -> str:
    """The two-level machine with the line of one key of one section replaced ("" removes it)."""
    header = f"[{section}]\n" if section else ""
    start = TWO_LEVEL.index(header) + len(header)
    head, rest = TWO_LEVEL[:start], TWO_LEVEL[start:]
    rest, count = re.subn(rf"(?m)^{key} = .*\n", lambda _: line and f"{line}\n", rest, count=1)
    assert count == 1, key
    return head + rest


def added(section: str, line: str) -> str:
    """The two-level machine with a line more in one section."""
    assert f"[{section}]\n" in TWO_LEVEL
    return TWO_LEVEL.replace(f"[{section}]\n", f"[{section}]\n{line}\n", 1)


# One case for each rule. The texts are whole lines, since a reader sees whole lines.

QUANTITIES = [
    (
        changed("memory.core", "capacity", f'capacty = {{ value = 1, unit = "KiB", {NUMBER} }}'),
        "memory.core.capacty: got unknown key capacty; expected one of level, parent, capacity, "
        "access_width, child_bandwidth, parent_bandwidth, link_bandwidth, read_energy, "
        "write_energy, duplex, shared_ports, double_buffered, network; did you mean capacity?",
    ),
    (
        added("levels.core", f'zzz = {{ value = 1, unit = "KiB", {NUMBER} }}'),
        "levels.core.zzz: got unknown key zzz; expected one of mesh_x, mesh_y; "
        "remove it: nothing would read it",
    ),
    (
        changed("memory.core", "read_energy", ""),
        'memory.core.read_energy: got nothing; expected e.g. {value = 1, unit = "pJ/byte", '
        'source = "document, page", kind = "published"}; add the key (docs/machines.md)',
    ),
    (
        changed("memory.core", "duplex", ""),
        "memory.core.duplex: got nothing; expected e.g. {value = true, "
        'source = "document, page", kind = "published"}; add the key (docs/machines.md)',
    ),
    (
        changed("", "name", ""),
        "name: got nothing; expected the key; add the key (docs/machines.md)",
    ),
    (
        changed("memory.main", "child_bandwidth", "child_bandwidth = 25"),
        "memory.main.child_bandwidth: got 25 without unit; expected e.g. {value = 25, "
        'unit = "byte/cycle", source = "document, page", kind = "published"}; '
        "write it as a table",
    ),
    (
        changed("memory.main", "duplex", "duplex = false"),
        "memory.main.duplex: got false without source; expected e.g. {value = true, "
        'source = "document, page", kind = "published"}; write it as a table',
    ),
    (
        changed("memory.core", "capacity", f"capacity = {{ value = 32, {NUMBER} }}"),
        'memory.core.capacity: got 32 without unit; expected e.g. {value = 32, unit = "KiB", '
        'source = "document, page", kind = "published"}; add the unit',
    ),
    (
        changed(
            "memory.core", "capacity", 'capacity = { value = 32, unit = "B", kind = "assumed" }'
        ),
        'memory.core.capacity: got 32 without source; expected e.g. {value = 32, unit = "KiB", '
        'source = "document, page", kind = "published"}; add the source',
    ),
    (
        changed(
            "memory.core",
            "capacity",
            'capacity = { value = 32, unit = "B", source = " ", kind = "assumed" }',
        ),
        'memory.core.capacity.source: got ""; expected a document and page, or the reason of an '
        "assumption; say where it is from",
    ),
    (
        changed(
            "memory.core",
            "capacity",
            'capacity = { value = 32, unit = "B", source = "x", kind = "guessed" }',
        ),
        'memory.core.capacity.kind: got "guessed"; expected one of published, measured, assumed; '
        "say how the number is known",
    ),
    (
        changed("memory.core", "capacity", f'capacity = {{ value = 3, unit = "GB/s", {NUMBER} }}'),
        'memory.core.capacity.unit: got "GB/s"; expected a size: one of byte, B, kB, MB, GB, TB, '
        "KiB, MiB, GiB, TiB, bit; write it in KiB",
    ),
    (
        TWO_LEVEL.replace("value = 128,", f"value = 1{400 * '0'},"),
        f"memory.core.capacity.value: got 1{79 * '0'}...; expected a finite number above 0; "
        "write a plain number",
    ),
    (
        changed("memory.core", "duplex", f'duplex = {{ value = true, unit = "count", {NUMBER} }}'),
        "memory.core.duplex.unit: got unknown key unit; expected one of source, kind, value; "
        "remove it: yes or no has no unit",
    ),
    (
        changed("memory.core", "duplex", f"duplex = {{ value = 1, {NUMBER} }}"),
        "memory.core.duplex.value: got 1; expected true or false; write it without quotes",
    ),
    (
        changed("memory.core", "level", "level = 3"),
        "memory.core.level: got 3; expected a text; write it in quotes",
    ),
    (
        added("engine.gemm", f'array = {{ value = "broadcst", {NUMBER} }}'),
        'engine.gemm.array.value: got "broadcst"; expected one of systolic, broadcast; did you '
        "mean broadcast?",
    ),
    (
        added("engine.gemm", f"array = {{ value = 2, {NUMBER} }}"),
        "engine.gemm.array.value: got 2; expected one of systolic, broadcast; choose one of these",
    ),
    (
        added("engine.gemm", 'array = "broadcast"'),
        'engine.gemm.array: got "broadcast" without source; expected e.g. {value = "broadcast", '
        'source = "document, page", kind = "published"}; write it as a table',
    ),
    (
        added("engine.gemm", 'array = { value = "broadcast", kind = "assumed" }'),
        'engine.gemm.array: got "broadcast" without source; expected e.g. {value = "broadcast", '
        'source = "document, page", kind = "published"}; add the source',
    ),
    (
        added("engine.gemm", f'array = {{ value = "systolic", unit = "1", {NUMBER} }}'),
        "engine.gemm.array.unit: got unknown key unit; expected one of source, kind, value; "
        "remove it: a choice has no unit",
    ),
    (
        added("engine.gemm", f'weight_registers = {{ value = "no", {NUMBER} }}'),
        'engine.gemm.weight_registers.value: got "no"; expected true or false; write it without '
        "quotes",
    ),
    (
        added("engine.simd", 'row_reduction = { value = "lane", source = "x", kind = "guess" }'),
        'engine.simd.row_reduction.kind: got "guess"; expected one of published, measured, '
        "assumed; say how the number is known\n"
        'engine.simd.row_reduction.value: got "lane"; expected one of tree, lanes; did you mean '
        "lanes?",
    ),
    (
        added("engine.simd", f'array = {{ value = "systolic", {NUMBER} }}'),
        "engine.simd.array: got unknown key array; expected one of type, operands, result, ports, "
        "lanes, pipeline_stages, row_reduction, ops; remove it: nothing would read it",
    ),
    (
        changed("engine.gemm", "type", 'type = "matrxi"'),
        'engine.gemm.type: got "matrxi"; expected one of matrix, vector; say what the engine is',
    ),
    (
        changed("engine.gemm", "type", ""),
        "engine.gemm.type: got nothing; expected one of matrix, vector; say what the engine is",
    ),
    (
        changed("engine.gemm", "operands", 'operands = ["core"]'),
        'engine.gemm.operands: got ["core"]; expected a list of 2 memory names; write e.g. '
        'operands = ["ib", "wb"]',
    ),
    (
        changed("engine.simd", "operands", 'operands = ["core", "core"]'),
        'engine.simd.operands: got ["core", "core"]; expected a list of 1 memory name; write e.g. '
        'operands = ["ob"]',
    ),
    (
        changed("engine.simd", "operands", 'operands = "core"'),
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
        changed("memory.core", "level", 'level = "cor"'),
        "levels.core: got a level without memory; expected a memory in every level; remove it\n"
        'memory.core.level: got "cor"; expected one of main, core; did you mean core?',
    ),
    (
        changed("memory.core", "parent", 'parent = "mian"'),
        'memory.core.parent: got "mian"; expected one of main; did you mean main?\n'
        "memory.main: got a memory that nothing uses; expected every memory to be a parent, or an "
        "operand or result of an engine; remove it: its numbers would change nothing",
    ),
    (
        changed("engine.gemm", "operands", 'operands = ["core", "care"]'),
        'engine.gemm.operands.1: got "care"; expected one of main, core; did you mean core?',
    ),
    (
        changed("engine.simd", "result", 'result = "zzz"'),
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
        added("memory.main", 'parent = "core"'),
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
        changed("memory.core", "parent", ""),
        "memory: got 2 memories without parent (main, core); expected exactly one, the outermost; "
        "give the others a parent\n"
        'memory.core.level: got "core"; expected main, the outermost level, for a memory without '
        "parent; give it a parent or move it\n"
        "memory.main: got a memory that nothing uses; expected every memory to be a parent, or an "
        "operand or result of an engine; remove it: its numbers would change nothing",
    ),
    (
        changed("memory.core", "level", 'level = "main"'),
        "levels.core: got a level without memory; expected a memory in every level; remove it\n"
        'memory.core.level: got "main"; expected core, the level below main of its parent main; '
        "move the memory or choose another parent",
    ),
    (
        added("memory.main", f"shared_ports = {{ value = true, {NUMBER} }}"),
        "memory.main.shared_ports: got the key; expected no such key in the outermost memory, "
        "which has no parent; remove it: nothing would read it",
    ),
    (
        changed("memory.core", "shared_ports", ""),
        "memory.core.shared_ports: got nothing; expected the key, since core has a parent; add the "
        "key (docs/machines.md)",
    ),
    (
        changed(
            "memory.core",
            "read_energy",
            f'read_energy = {{ value = 1, unit = "pJ/access", {NUMBER} }}',
        ),
        "memory.core.access_width: got nothing; expected the bytes of one access, since "
        "read_energy is in pJ/access; add it, or write the energy in pJ/byte",
    ),
    (
        added("memory.core", f'access_width = {{ value = 8, unit = "B", {NUMBER} }}'),
        "memory.core.access_width: got the key; expected it only beside an energy in pJ/access; "
        "remove it: nothing would read it",
    ),
    (
        added("levels.main", f'mesh_x = {{ value = 2, unit = "count", {NUMBER} }}'),
        "levels.main.mesh_x.value: got 2; expected 1 for the outermost level; put a level with one "
        "unit around it",
    ),
    (
        changed("levels.core", "mesh_y", ""),
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
