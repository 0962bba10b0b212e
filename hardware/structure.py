"""Rules of a machine file that join several tables: levels, parents, operands, ports, the clock.

The one idea: the rules read the parsed tables, not the models, so that they still find what is
wrong with the shape of a machine when some number in it is wrong as well. What is not of the
expected type is skipped here; schema.py reports it.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxcomet.hardware.errors import Problem, nearest, one_of, show
from jaxcomet.hardware.units import BANDWIDTH, TIME

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LEADS_TO_PARENT = ("parent_bandwidth", "shared_ports", "double_buffered", "network")


def problems(tables: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the shape of the machine.

    Args:
      tables: the file as parsed.

    Returns:
      The problems, in no order.
    """
    levels = _table(tables, "levels")
    memories = _subtables(tables, "memory")
    engines = _subtables(tables, "engine")
    found = [
        *_names(tables),
        *_levels(tables, levels, memories),
        *_parents(memories),
        *_placement(list(levels), memories),
        *_roots(memories),
        *_access_widths(memories),
        *_engines(memories, engines),
        *_unused(memories, engines),
        *_unlimited_channels(tables, memories),
    ]
    if "clock" not in tables:
        found += _clockless("", tables)
    return found


def _table(tables: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = tables.get(key)
    return table if isinstance(table, dict) else {}


def _subtables(tables: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    return {k: v for k, v in _table(tables, key).items() if isinstance(v, dict)}


def _text(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    return value if isinstance(value, str) else None


def _names(tables: Mapping[str, Any]) -> Iterator[Problem]:
    for kind in ("levels", "memory", "engine"):
        names = _table(tables, kind)
        if kind in tables and isinstance(tables[kind], dict) and not names:
            yield Problem(kind, "an empty table", "at least one", f"write [{kind}.<name>]")
        for name in names:
            if not _NAME.fullmatch(name):
                yield Problem(
                    f"{kind}.{name}",
                    f"the name {show(name)}",
                    "letters, digits and _ after a letter",
                    "rename it",
                )
    for name in _table(tables, "engine"):
        if name in _table(tables, "memory"):
            yield Problem(
                f"engine.{name}", f"{name} twice", "a name that no memory has", "rename the engine"
            )


def _levels(
    tables: Mapping[str, Any], levels: dict[str, Any], memories: dict[str, dict[str, Any]]
) -> Iterator[Problem]:
    used = {_text(memory, "level") for memory in memories.values()}
    for index, (name, level) in enumerate(levels.items()):
        if memories and None not in used and name not in used:
            yield Problem(
                f"levels.{name}", "a level without memory", "a memory in every level", "remove it"
            )
        if not isinstance(level, dict):
            continue
        for key in ("mesh_x", "mesh_y"):
            count = level.get(key)
            value = count.get("value") if isinstance(count, dict) else None
            if index and count is None:
                yield Problem(
                    f"levels.{name}.{key}",
                    "nothing",
                    'e.g. {value = 2, unit = "count", source = "document, page", '
                    'kind = "published"}',
                    "say how many units there are (only the outermost level has one)",
                )
            if not index and isinstance(value, int | float) and value != 1:
                yield Problem(
                    f"levels.{name}.{key}.value",
                    show(value),
                    "1 for the outermost level",
                    "put a level with one unit around it",
                )


def _parents(memories: dict[str, dict[str, Any]]) -> Iterator[Problem]:
    for name, memory in memories.items():
        parent = _text(memory, "parent")
        if parent is not None and parent not in memories:
            yield Problem(
                f"memory.{name}.parent",
                show(parent),
                one_of(other for other in memories if other != name),
                nearest(parent, list(memories), "name a memory of this file"),
            )
    seen: set[str] = set()
    for start in memories:
        chain: list[str] = []
        name: str | None = start
        while name in memories and name not in chain and name not in seen:
            chain.append(name)
            name = _text(memories[name], "parent")
        if name in chain:
            circle = " -> ".join([*chain[chain.index(name) :], name])
            yield Problem(
                f"memory.{name}.parent",
                f"the circle {circle}",
                "a chain of parents that ends at the outermost memory",
                "leave out the parent of the outermost memory",
            )
        seen.update(chain)


def _placement(levels: list[str], memories: dict[str, dict[str, Any]]) -> Iterator[Problem]:
    for name, memory in memories.items():
        level = _text(memory, "level")
        if level is None:
            continue
        key = f"memory.{name}.level"
        if level not in levels:
            advice = nearest(level, levels, "name a level of this file")
            yield Problem(key, show(level), one_of(levels), advice)
            continue
        parent = _text(memory, "parent")
        if parent is None:
            if "parent" not in memory and level != levels[0]:
                yield Problem(
                    key,
                    show(level),
                    f"{levels[0]}, the outermost level, for a memory without parent",
                    "give it a parent or move it",
                )
            continue
        above = _text(memories.get(parent, {}), "level")
        if above in levels and levels.index(level) != levels.index(above) + 1:
            below = levels[levels.index(above) + 1 :][:1]
            yield Problem(
                key,
                show(level),
                f"{below[0]}, the level below {above} of its parent {parent}"
                if below
                else f"a parent above the innermost level {above}",
                "move the memory or choose another parent",
            )


def _roots(memories: dict[str, dict[str, Any]]) -> Iterator[Problem]:
    roots = [name for name, memory in memories.items() if "parent" not in memory]
    if len(roots) > 1:
        yield Problem(
            "memory",
            f"{len(roots)} memories without parent ({', '.join(roots)})",
            "exactly one, the outermost",
            "give the others a parent",
        )
    for name, memory in memories.items():
        for key in _LEADS_TO_PARENT:
            if name in roots and key in memory and len(roots) == 1:
                yield Problem(
                    f"memory.{name}.{key}",
                    "the key",
                    "no such key in the outermost memory, which has no parent",
                    "remove it: nothing would read it",
                )
            if name not in roots and key not in memory:
                yield Problem(
                    f"memory.{name}.{key}",
                    "nothing",
                    f"the key, since {name} has a parent",
                    "add the key (docs/machines.md)",
                )


def _access_widths(memories: dict[str, dict[str, Any]]) -> Iterator[Problem]:
    for name, memory in memories.items():
        per_access = [
            key
            for key in ("read_energy", "write_energy")
            if _text(_table(memory, key), "unit") == "pJ/access"
        ]
        if per_access and "access_width" not in memory:
            yield Problem(
                f"memory.{name}.access_width",
                "nothing",
                f"the bytes of one access, since {per_access[0]} is in pJ/access",
                "add it, or write the energy in pJ/byte",
            )
        if not per_access and "access_width" in memory:
            yield Problem(
                f"memory.{name}.access_width",
                "the key",
                "it only beside an energy in pJ/access",
                "remove it: nothing would read it",
            )


def _operands(engine: Mapping[str, Any]) -> list[str]:
    operands = engine.get("operands")
    return [x for x in operands if isinstance(x, str)] if isinstance(operands, list) else []


def _engines(
    memories: dict[str, dict[str, Any]], engines: dict[str, dict[str, Any]]
) -> Iterator[Problem]:
    for name, engine in engines.items():
        result = _text(engine, "result")
        ports = _table(engine, "ports")
        named = [(f"operands.{i}", memory) for i, memory in enumerate(_operands(engine))]
        named += [("result", result)] if result is not None else []
        named += [(f"ports.{memory}", memory) for memory in ports]
        for key, memory in named:
            if memory not in memories:
                yield Problem(
                    f"engine.{name}.{key}",
                    show(memory),
                    one_of(memories),
                    nearest(memory, list(memories), "name a memory of this file"),
                )
        used = dict.fromkeys(memory for key, memory in named if not key.startswith("ports."))
        if "ports" in engine:
            for memory in used:
                if memory in memories and memory not in ports:
                    yield Problem(
                        f"engine.{name}.ports.{memory}",
                        "nothing",
                        f"a table with bandwidth, hop_latency, since the engine uses {memory}",
                        "add the port",
                    )
        for memory in ports:
            if memory in memories and used and memory not in used:
                yield Problem(
                    f"engine.{name}.ports.{memory}",
                    "a port to a memory that the engine does not use",
                    f"ports to {', '.join(used)} alone",
                    "remove it, or name the memory in operands or result",
                )
        placed = {memory: _text(memories.get(memory, {}), "level") for memory in used}
        levels = dict.fromkeys(level for level in placed.values() if level is not None)
        if len(levels) > 1:
            where = ", ".join(f"{memory} at {level}" for memory, level in placed.items())
            yield Problem(
                f"engine.{name}",
                f"memories of several levels ({where})",
                "all memories of an engine at one level",
                "move a memory or name another",
            )


def _unused(
    memories: dict[str, dict[str, Any]], engines: dict[str, dict[str, Any]]
) -> Iterator[Problem]:
    used = {_text(memory, "parent") for memory in memories.values()}
    for engine in engines.values():
        used |= {*_operands(engine), _text(engine, "result"), *_table(engine, "ports")}
    for name in memories:
        if name not in used:
            yield Problem(
                f"memory.{name}",
                "a memory that nothing uses",
                "every memory to be a parent, or an operand or result of an engine",
                "remove it: its numbers would change nothing",
            )


def _unlimited_channels(
    tables: Mapping[str, Any], memories: dict[str, dict[str, Any]]
) -> Iterator[Problem]:
    if "router" not in tables:
        return
    for name, memory in memories.items():
        width = _table(_table(memory, "network"), "channel_width")
        if width.get("value") == math.inf:
            yield Problem(
                f"memory.{name}.network.channel_width.value",
                "inf",
                "a finite number in a machine with router, whose energy grows with the width",
                "give a width, or leave out the table router",
            )


def _clockless(prefix: str, table: Mapping[str, Any]) -> Iterator[Problem]:
    for key, child in table.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(child, dict):
            yield from _clockless(path, child)
        elif key == "unit" and (child in BANDWIDTH.clocked or child in TIME.clocked):
            example = BANDWIDTH.example if child in BANDWIDTH.clocked else TIME.example
            yield Problem(
                path,
                show(child),
                f"a unit without seconds, e.g. {example}, in a machine without clock",
                'add clock = {value = 1, unit = "GHz", ...} or change the unit',
            )
