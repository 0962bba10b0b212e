"""Traffic and energy of a mapping.

The one idea: the bytes that cross a boundary are the tensor's distinct elements times the times
each must come again, times the copies that the network cannot make. Distinct elements come from the
exact sizes, so partial tiles are never padded (docs/equations.md, 5).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from jax.tree_util import register_dataclass

from jaxcomet.arith import Number, ceil, per, product
from jaxcomet.cost.collective import CollectiveCost
from jaxcomet.cost.compute import call_elements, vector_op
from jaxcomet.cost.placement import Direction, Move, Placement, Site, Spread
from jaxcomet.cost.router import mesh_energy_pj
from jaxcomet.cost.transfer import MoveTime
from jaxcomet.hardware.machine import MatrixEngine
from jaxcomet.mapping import Spatial


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes of one tensor over one boundary, over the whole run and all units.

    Attributes:
      tensor: what moves.
      direction: ``fill`` or ``drain``.
      parent: memory above.
      child: memory or engine below.
      parent_bytes: bytes that the upper memory reads (fill) or writes (drain).
      child_bytes: bytes that the lower memories write (fill) or read (drain); 0 for an engine.
      refetch: how often each distinct element moves.
      parent_energy_pj: energy of the upper memory.
      child_energy_pj: energy of the lower memories.
      mesh_energy_pj: energy of the mesh.
    """

    tensor: str = dataclasses.field(metadata={"static": True})
    direction: str = dataclasses.field(metadata={"static": True})
    parent: str = dataclasses.field(metadata={"static": True})
    child: str = dataclasses.field(metadata={"static": True})
    parent_bytes: Number
    child_bytes: Number
    refetch: Number
    parent_energy_pj: Number
    child_energy_pj: Number
    mesh_energy_pj: Number


def traffic(placement: Placement, move: Move, time: MoveTime) -> tuple[Traffic, ...]:
    """Bytes and energy of a move over the whole run.

    A second entry where partial results are read back.
    """
    rules, machine = placement.conventions, placement.machine
    moves, refetch = placement.whole_run(move)
    spread = placement.spread(move)
    above_units = placement.units(move.above)
    per_step = rules.refill_energy == "per-step"
    if per_step:
        base = _program_elements(placement, move, time, spread.distinct, above_units)
    else:
        base, refetch = placement.elements_moved(move)
    reduced = move.direction == "drain" and placement.already_reduced(move)
    rule = rules.receiver_energy if time.merged else rules.copy_energy
    several = not move.to_engine and not reduced and rule == "all"
    receivers = spread.duplicates if several else 1.0
    copies = 1.0 if time.merged else receivers
    elements_up, elements_down = product([base, copies]), product([base, receivers])
    scale = _unit_scale(placement, move.site) if move.to_engine else 1.0
    up_bytes = product([elements_up, move.bits / 8.0])
    down_bytes = 0.0 if move.to_engine else product([elements_down, move.bits / 8.0])
    mesh = _mesh_energy(placement, move, time, moves, spread)
    parent = machine.memories[move.parent]
    child = None if move.to_engine else machine.memories[move.child]

    def entry(direction: Direction, part: Callable[[Number], Number]) -> Traffic:
        fill = direction == "fill"
        up, down = part(up_bytes), part(down_bytes)
        up_cost = parent.read_energy_pj_per_byte if fill else parent.write_energy_pj_per_byte
        down_cost: Number = 0.0
        if child is not None:
            down_cost = child.write_energy_pj_per_byte if fill else child.read_energy_pj_per_byte
        return Traffic(
            tensor=move.tensor,
            direction=direction,
            parent=move.parent,
            child=move.child,
            parent_bytes=up,
            child_bytes=down,
            refetch=part(refetch),
            parent_energy_pj=product([up, scale]) * up_cost,
            child_energy_pj=down * down_cost,
            mesh_energy_pj=part(mesh),
        )

    whole = entry(move.direction, lambda x: x)
    partial = placement.partial_share(move)
    if isinstance(partial, float) and partial == 0.0:
        return (whole,)
    return whole, entry("fill", lambda x: placement.read_back(move, x))


def _unit_scale(placement: Placement, site: Site) -> Number:
    """Share of the units whose vector energy the convention counts."""
    if placement.conventions.vector_units == "all" or site.operation.kind == "contract":
        return 1.0
    if not placement.workload.is_intermediate(site.operation.output):
        return 1.0
    spatial = [a for a in site.above if isinstance(a, Spatial)]
    if not spatial:
        return 1.0
    inner = spatial[-1]
    return 1.0 / product([placement.steps(loop) for loop in (*inner.x, *inner.y)])


def _program_elements(
    placement: Placement, move: Move, time: MoveTime, distinct: Number, units: Number
) -> Number:
    """Elements as the program counts them.

    At a middle level each step, elsewhere each move of the node itself.
    """
    steps, local, _ = placement.moves_in(move, list(reversed(move.node.loops)))
    level = placement.machine.level_index(move.node.level)
    runs = product([placement.steps(x) for x in placement.nest_above(move.above)])
    count = steps if 0 < level < len(placement.machine.levels) - 1 else local
    return product([runs, count, units, distinct, time.tile_elements])


def _mesh_energy(
    placement: Placement, move: Move, time: MoveTime, moves: Number, spread: Spread
) -> Number:
    rules, machine = placement.conventions, placement.machine
    level = machine.level_index(move.node.level)
    if move.to_engine or (level == 0 and rules.mesh_energy_root == "ignored"):
        return 0.0
    child = machine.memories[move.child]
    if child.network is None:
        return 0.0
    if rules.refill_energy == "per-step":
        runs = product([placement.steps(n) for n in placement.nest_above(move.above)])
        _, local, _ = placement.transitions(move.tensor, list(reversed(move.node.loops)))
        moves = product([runs, local])
    if move.drain_rule is not None and rules.mesh_energy_drain == "last-step":
        moves = product([placement.steps(n) for n in placement.nest_above(move.above)])
    # the mean distance to a child is half the way across; each further receiver of a tile that the
    # network copies is one link away from another one
    reduced = move.direction == "drain" and placement.already_reduced(move)
    again = spread.duplicates - 1.0 if time.merged and not reduced else 0.0
    units = 1.0 if rules.mesh_energy_units == "one" else placement.units(move.above)
    one = mesh_energy_pj(
        placement.router(child),
        child.network,
        x=spread.x,
        y=spread.y,
        hops=time.hops,
        words=time.words,
        word_hops=time.words * (0.5 * time.hops + again),
        rules=rules,
    )
    return product([moves, units, one])


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class EngineEnergy:
    """Energy of one operation on its engine.

    Attributes:
      operation: its name.
      engine: name of the engine.
      work: multiply-accumulates, or elementary operations, that are done.
      energy_pj: their energy.
    """

    operation: str = dataclasses.field(metadata={"static": True})
    engine: str = dataclasses.field(metadata={"static": True})
    work: Number
    energy_pj: Number


def engine_energy(placement: Placement, site: Site) -> EngineEnergy:
    """Energy of the engine calls of one operation."""
    op, rules = site.operation, placement.conventions
    engine = placement.engine(op)
    points = placement.work(site)
    if isinstance(engine, MatrixEngine):
        energy = points * engine.mac_energy_pj
    else:
        _, cost = vector_op(engine, op)
        scale = _unit_scale(placement, site)
        if rules.lane_energy == "per-element":
            energy = product([points, scale]) * cost
        else:
            calls = product([placement.steps(x) for x in placement.nest_above(site.above)])
            instructions: Number = 1.0
            if rules.lane_energy == "per-instruction":
                instructions = ceil(per(call_elements(placement, site), engine.lanes))
            units = placement.units(site.above)
            energy = product([calls, instructions, units, scale]) * engine.lanes * cost
    return EngineEnergy(operation=op.name, engine=engine.name, work=points, energy_pj=energy)


@dataclass(frozen=True)
class Energy:
    """All contributions."""

    traffic: tuple[Traffic, ...]
    engines: tuple[EngineEnergy, ...]
    collectives: tuple[CollectiveCost, ...]

    @property
    def total_pj(self) -> Number:
        """Sum of all contributions."""
        parts = [t.parent_energy_pj + t.child_energy_pj + t.mesh_energy_pj for t in self.traffic]
        parts += [e.energy_pj for e in self.engines]
        parts += [c.total_energy_pj for c in self.collectives]
        return sum(parts[1:], start=parts[0])
