"""Explains a cost in words: what limits, where the cycles go, and each formula with its numbers."""

import math

from jaxcomet.cost.latency import NodeCost
from jaxcomet.cost.result import Cost
from jaxcomet.cost.transfer import MoveTime

KINDS = {
    "compute": "computing",
    "CS": "compulsory stalls (first fills, last drains, moves that nothing can hide)",
    "OS": "optional stalls (moves longer than the computing they hide behind)",
    "CF": "conflicts between pipeline stages",
    "collective": "explicit collectives",
}


def limiting(cost: Cost) -> tuple[str, str, float]:
    """(kind, where, share) of what takes most of the latency; for a single mapping."""
    totals: dict[tuple[str, str], float] = {}
    for part in cost.latency_parts:
        key = (part.kind, part.where)
        totals[key] = totals.get(key, 0.0) + float(part.cycles)
    (kind, where), cycles = max(totals.items(), key=lambda item: item[1])
    return kind, where, cycles / float(cost.latency_cycles)


def _number(x: object) -> str:
    value = float(x)  # pyright: ignore[reportArgumentType]
    if math.isinf(value):
        return "unlimited"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def _move(move: MoveTime, moves: object, cost: Cost) -> list[str]:
    rules = cost.conventions
    arrow = (
        f"{move.parent} -> {move.child}"
        if move.direction == "fill"
        else f"{move.child} -> {move.parent}"
    )
    tile = f"{_number(move.tile_elements)} x {_number(move.element_bytes)} B"
    head = f"{move.tensor} {arrow}: {_number(moves)} moves of {_number(move.cycles)} cycles"
    if move.pattern != "move":
        head += (
            f", {move.pattern} of {_number(move.distinct)} tiles, {_number(move.children)} units"
        )
    ports = (
        f"memory max(ceil({_number(move.copies)} x {tile} / "
        f"{_number(move.parent_bandwidth_bytes_per_cycle)}), "
        f"ceil({tile} / {_number(move.child_bandwidth_bytes_per_cycle)})) = "
        f"{_number(move.memory_cycles)}"
    )
    if float(move.hops) == 0.0:
        return [head, f"  {ports}"]
    combine = "+" if rules.staging == "serial" else "max with"
    mesh = (
        f"mesh {_number(move.hops)} hops and {_number(move.words)} words = "
        f"{_number(move.mesh_cycles)}"
    )
    return [head, f"  {ports}; {combine} {mesh}"]


def _node(node: NodeCost, cost: Cost) -> list[str]:
    pad = "  " * node.depth
    name = "+".join(node.operations) or "collective"
    lines = [
        f"{pad}{node.level} [{name}]: {_number(node.cycles)} cycles a run, "
        f"{_number(node.executions)} runs",
        f"{pad}  first child {_number(node.first_cycles)} + ({_number(node.steps)} - 1) x later "
        "child "
        f"{_number(node.later_cycles)} + ramp up {_number(node.ramp_up_cycles)} + ramp down "
        f"{_number(node.ramp_down_cycles)} + dependent {_number(node.dependent_cycles)} + stall "
        f"{_number(node.stall_cycles)} + extra {_number(node.extra_cycles)} = "
        f"{_number(node.cycles)}",
    ]
    if float(node.refill_cycles):
        again = _number(node.refill_cycles)
        lines.append(f"{pad}  reading back unfinished results: {again} cycles over all runs")
    for move, moves in zip(node.moves, node.moves_per_run, strict=True):
        lines += [f"{pad}    {line}" for line in _move(move, moves, cost)]
    return lines


def below_bound(cost: Cost) -> str:
    """A warning where the conventions let a latency be shorter than its traffic takes; else empty.

    Of a single mapping. The rules of `comet-program` do (a write hides a read of the same memory).
    """
    bound, latency = float(cost.root_bound_cycles), float(cost.latency_cycles)
    if latency >= bound * (1 - 1e-9):
        return ""
    needed = _number(math.ceil(bound))
    return (
        f"shorter than possible: {cost.occupancy[0].memory} alone needs {needed} cycles; the "
        f"conventions {cost.conventions.preset} hide moves that nothing can hide"
    )


def explain(cost: Cost) -> str:
    """The limiting level, the shares, the use of each memory.

    And the tree of formulas with their numbers.

    Args:
      cost: of a single mapping (see `Cost.row`).

    Returns:
      Text of several lines.
    """
    kind, where, share = limiting(cost)
    rules = cost.conventions
    overlap = (
        "moves overlap with computing" if rules.overlap == "double-buffered" else "nothing overlaps"
    )
    ramps = (
        "first fills and last drains counted"
        if rules.fill_drain == "counted"
        else "steady state only"
    )
    lines = [
        f"{cost.strategy} on {cost.machine}: {_number(cost.latency_cycles)} cycles, "
        f"{_number(cost.energy_pj)} pJ "
        f"(conventions {rules.preset}: {overlap}, {ramps})",
        f"limited by {KINDS[kind]} at {where}: {share:.1%} of the latency; "
        f"matrix engines used {float(cost.utilization):.2%}",
    ]
    lines += [f"cannot run: {reason}" for reason in cost.reasons()]
    if below_bound(cost):
        lines.append(below_bound(cost))
    lines += ["", "shares of the latency:"]
    for part in sorted(cost.latency_parts, key=lambda p: -float(p.cycles)):
        if float(part.cycles) != 0.0:
            percent = float(part.cycles) / float(cost.latency_cycles)
            lines.append(
                f"  {part.kind:10s} {part.where:12s} {part.what:32s} {_number(part.cycles):>16s} "
                f"{percent:6.1%}"
            )
    lines += ["", "memories:"]
    for use in cost.occupancy:
        there = (
            "unlimited" if use.capacity_bytes is None else f"{_number(use.capacity_bytes)} bytes"
        )
        lines.append(f"  {use.memory:6s} needs {_number(use.needed_bytes)} of {there}")
    if cost.collectives:
        lines += ["", "collectives:"]
    for c in cost.collectives:
        lines.append(
            f"  {c.kind} of {c.tensor} between {_number(c.participants)} {c.memory}: "
            f"{_number(c.part_elements)} elements "
            f"each; memory {_number(c.memory_cycles)}, mesh {_number(c.mesh_cycles)}, arithmetic "
            f"{_number(c.arithmetic_cycles)} = {_number(c.cycles)} cycles, {_number(c.executions)} "
            "times"
        )
    lines += ["", "tree:"]
    for node in cost.nodes:
        if node.operations:
            lines += _node(node, cost)
    return "\n".join(lines)
