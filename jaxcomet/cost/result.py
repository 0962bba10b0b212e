"""The result of an evaluation: totals as sums of breakdowns, feasibility with its reason."""

import dataclasses
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.tree_util import register_dataclass

from jaxcomet.arith import Number, maximum, per
from jaxcomet.cost.collective import CollectiveCost
from jaxcomet.cost.conventions import Conventions
from jaxcomet.cost.energy import EngineEnergy, Traffic
from jaxcomet.cost.latency import NodeCost
from jaxcomet.cost.legality import Illegal
from jaxcomet.cost.occupancy import Occupancy


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class LatencyPart:
    """A share of the latency.

    Attributes:
      kind: ``compute``, ``CS`` (compulsory stall), ``OS`` (optional stall), ``CF`` (conflict) or
        ``collective``.
      where: engine, level or kind of collective.
      what: operation(s) or tensor.
      cycles: cycles.
    """

    kind: str = dataclasses.field(metadata={"static": True})
    where: str = dataclasses.field(metadata={"static": True})
    what: str = dataclasses.field(metadata={"static": True})
    cycles: Number


@dataclass(frozen=True, kw_only=True)
class CollectiveEntry:
    """One collective of a single mapping, explicit or implied by a move to or from several units.

    Attributes:
      kind: ``broadcast``, ``scatter`` or ``gather`` of a move; any kind where it is explicit.
      tensor: what is exchanged.
      where: ``between`` the instances of a memory, or from one memory ``to`` another.
      participants: how many take part; of a move: the units that get or give a tile.
      part_bytes: bytes of one participant's part; of a move: of one tile.
      steps: steps of the algorithm; of a move and of ``mesh``: hops.
      algorithm: how it is done; ``mesh`` for a move.
      cycles: time of one, whether or not computing hides it (it hides no explicit one).
      executions: how often, over the whole run.
      explicit: a node of the mapping, not a move.
    """

    kind: str
    tensor: str
    where: str
    participants: float
    part_bytes: float
    steps: float
    algorithm: str
    cycles: float
    executions: float
    explicit: bool


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class SpatialUse:
    """Units of a level below one unit of the level above: used by a mapping, and there."""

    level: str = dataclasses.field(metadata={"static": True})
    used_x: Number
    used_y: Number
    mesh_x: Number
    mesh_y: Number


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a mapping costs on a machine. All numbers may be batched arrays.

    Attributes:
      workload: name of the workload.
      strategy: name of the strategy.
      machine: name of the machine.
      conventions: the rules of accounting used.
      latency_cycles: latency of one run; the sum of `latency_parts`.
      latency_parts: its shares.
      traffic: bytes and energy per tensor and boundary.
      engine_energy: energy per operation.
      collectives: explicit collectives.
      occupancy: use of every memory.
      spatial: use of every spread level.
      nodes: the walked tree, for explaining.
      illegal: loops that must have one step for the mapping to compute what it should.
      compulsory_bytes: bytes that must cross the outermost boundary: inputs and outputs, once each.
      root_bound_cycles: cycles that the outermost memory's ports need for the bytes that cross
        them: no schedule is faster, and only conventions that are not physical let a latency be.
      matrix_work: multiply-accumulates that the workload needs; masked ones are not counted.
      matrix_capacity: multiply-accumulates that all matrix engines used can do in the latency.
    """

    workload: str = dataclasses.field(metadata={"static": True})
    strategy: str = dataclasses.field(metadata={"static": True})
    machine: str = dataclasses.field(metadata={"static": True})
    conventions: Conventions = dataclasses.field(metadata={"static": True})
    latency_cycles: Number
    latency_parts: tuple[LatencyPart, ...]
    traffic: tuple[Traffic, ...]
    engine_energy: tuple[EngineEnergy, ...]
    collectives: tuple[CollectiveCost, ...]
    occupancy: tuple[Occupancy, ...]
    spatial: tuple[SpatialUse, ...]
    nodes: tuple[NodeCost, ...]
    illegal: tuple[Illegal, ...]
    compulsory_bytes: Number
    root_bound_cycles: Number
    matrix_work: Number
    matrix_capacity: Number

    @property
    def energy_parts(self) -> dict[str, Number]:
        """PJ by component: each memory, ``mesh``, each engine, ``collectives``."""
        parts: dict[str, Number] = {}

        def add(key: str, value: Number) -> None:
            parts[key] = parts[key] + value if key in parts else value

        for t in self.traffic:
            add(t.parent, t.parent_energy_pj)
            if not (isinstance(t.child_energy_pj, float) and t.child_energy_pj == 0.0):
                add(t.child, t.child_energy_pj)
            add("mesh", t.mesh_energy_pj)
        for e in self.engine_energy:
            add(e.engine, e.energy_pj)
        for c in self.collectives:
            add("collectives", c.total_energy_pj)
        return parts

    @property
    def energy_pj(self) -> Number:
        """Energy of one run, pJ: the sum of `energy_parts`."""
        values = list(self.energy_parts.values())
        return sum(values[1:], start=values[0])

    @property
    def edp_pj_cycles(self) -> Number:
        """Energy-delay product, pJ x cycles."""
        return self.energy_pj * self.latency_cycles

    @property
    def traffic_bytes(self) -> dict[str, Number]:
        """Bytes over each boundary, e.g. ``dram_to_gb_bytes``, counted at the upper memory."""
        found: dict[str, Number] = {}
        for t in self.traffic:
            ends = (t.parent, t.child) if t.direction == "fill" else (t.child, t.parent)
            key = f"{ends[0]}_to_{ends[1]}_bytes"
            found[key] = found[key] + t.parent_bytes if key in found else t.parent_bytes
        return found

    @property
    def root_traffic_bytes(self) -> Number:
        """Bytes over the outermost boundary, both directions."""
        root = self.occupancy[0].memory
        return sum(t.parent_bytes for t in self.traffic if t.parent == root)

    @property
    def pressure(self) -> Number:
        """Largest ratio of needed to there, over memories and spread levels; feasible up to 1.

        Loops that break a rule of legality count their steps, where one is allowed.
        """
        ratios = [
            1.0 + per(o.needed_bytes - o.capacity_bytes, o.capacity_bytes)
            for o in self.occupancy
            if o.capacity_bytes is not None
        ]
        for s in self.spatial:
            ratios += [1.0 + per(u - t, t) for u, t in ((s.used_x, s.mesh_x), (s.used_y, s.mesh_y))]
        return maximum(0.0, *ratios, *(fault.steps for fault in self.illegal))

    @property
    def feasible(self) -> Any:
        """Whether every memory holds its tiles, every level has the units, and all is legal."""
        return self.pressure <= 1.0

    @property
    def utilization(self) -> Number:
        """Multiply-accumulates needed / possible in the latency on the engines used, in [0, 1]."""
        return self.matrix_work / self.matrix_capacity

    def row(self, index: int) -> "Cost":
        """One mapping of a batch."""

        def pick(leaf: Any) -> Any:
            array = np.asarray(leaf)
            return (
                float(array)
                if array.ndim == 0
                else float(array.ravel()[index if array.size > 1 else 0])
            )

        return jax.tree.map(pick, self)

    def reasons(self) -> tuple[str, ...]:
        """Why a single mapping (see `row`) cannot run, one line per fault; empty if it can."""
        faults = [fault.reason for fault in self.illegal if float(fault.steps) > 1]
        for s in self.spatial:
            if float(s.used_x) > float(s.mesh_x) or float(s.used_y) > float(s.mesh_y):
                faults.append(
                    f"level {s.level}: spread over {float(s.used_x):g} x {float(s.used_y):g} "
                    "units, "
                    f"machine has {float(s.mesh_x):g} x {float(s.mesh_y):g}"
                )
        for o in self.occupancy:
            if o.capacity_bytes is None or float(o.needed_bytes) <= float(o.capacity_bytes):
                continue
            sums = [sum(float(h.total_bytes) for h in held) for held in o.moments]
            worst = int(np.argmax(sums))
            held = sorted(o.moments[worst], key=lambda h: -float(h.total_bytes))
            tiles = ", ".join(_held(h) for h in held)
            text = (
                f"{o.memory}: needs {float(o.needed_bytes):,.0f} bytes, has "
                f"{float(o.capacity_bytes):,.0f}; "
                f"during {o.operations[worst]}: {tiles}"
            )
            single = sum(float(h.elements) * float(h.element_bytes) for h in held)
            if single < float(o.needed_bytes):
                fits = single <= float(o.capacity_bytes)
                text += "; the cause is double buffering" if fits else ""
                text += f" (single: {single:,.0f} bytes)"
            faults.append(text)
        return tuple(faults)

    def collective_list(self, index: int = 0) -> tuple[CollectiveEntry, ...]:
        """Every collective of a mapping: the explicit ones, then those that its moves imply.

        Args:
          index: which mapping of a batch.

        Returns:
          The collectives; moves to or from a single unit are none.
        """
        one = self.row(index)
        explicit = [
            CollectiveEntry(
                kind=c.kind,
                tensor=c.tensor,
                where=f"between {c.memory}",
                participants=float(c.participants),
                part_bytes=float(c.part_bytes),
                steps=float(c.steps),
                algorithm=c.algorithm,
                cycles=float(c.cycles),
                executions=float(c.executions),
                explicit=True,
            )
            for c in one.collectives
        ]
        implied = [
            CollectiveEntry(
                kind=m.pattern,
                tensor=m.tensor,
                where=" to ".join(
                    (m.parent, m.child) if m.direction == "fill" else (m.child, m.parent)
                ),
                participants=float(m.children),
                part_bytes=float(m.tile_elements) * float(m.element_bytes),
                steps=float(m.hops),
                algorithm="mesh",
                cycles=float(m.cycles),
                executions=float(moves) * float(node.executions),
                explicit=False,
            )
            for node in one.nodes
            for m, moves in zip(node.moves, node.moves_per_run, strict=True)
            if m.pattern != "none"
        ]
        return (*explicit, *implied)

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data for JSON; for a single mapping."""
        one = self.row(0)
        return {
            "workload": one.workload,
            "strategy": one.strategy,
            "machine": one.machine,
            "conventions": one.conventions.preset,
            "feasible": bool(one.feasible),
            "reasons": list(one.reasons()),
            "latency_cycles": one.latency_cycles,
            "energy_pj": one.energy_pj,
            "edp_pj_cycles": one.edp_pj_cycles,
            "utilization": one.utilization,
            "root_bound_cycles": one.root_bound_cycles,
            "latency_parts": [dataclasses.asdict(p) for p in one.latency_parts],
            "energy_parts_pj": one.energy_parts,
            "traffic_bytes": one.traffic_bytes,
            "compulsory_bytes": one.compulsory_bytes,
            "collectives": [
                {
                    **{
                        k: v
                        for k, v in dataclasses.asdict(c).items()
                        if k not in ("names", "choice")
                    },
                    "algorithm": c.algorithm,
                    "total_cycles": c.total_cycles,
                    "total_energy_pj": c.total_energy_pj,
                }
                for c in one.collectives
            ],
            "moves": [
                {
                    "tensor": m.tensor,
                    "from": m.parent if m.direction == "fill" else m.child,
                    "to": m.child if m.direction == "fill" else m.parent,
                    "pattern": m.pattern,
                    "tile_bytes": m.tile_elements * m.element_bytes,
                    "cycles": m.cycles,
                    "moves": moves * node.executions,
                }
                for node in one.nodes
                for m, moves in zip(node.moves, node.moves_per_run, strict=True)
            ],
            "occupancy": [
                {
                    "memory": o.memory,
                    "needed_bytes": o.needed_bytes,
                    "capacity_bytes": o.capacity_bytes,
                    "share": o.share,
                }
                for o in one.occupancy
            ],
        }

    def explain(self) -> str:
        """The limiting level and the formulas with their numbers, as text; for a single mapping."""
        from jaxcomet.explain import explain

        return explain(self.row(0))


def _held(h: Any) -> str:
    copies = f"{float(h.copies):g} x " if float(h.copies) > 1 else ""
    return f"{h.tensor} {copies}{float(h.elements):,.0f} x {float(h.element_bytes):g} B"


def parts_of(parts: MappingABC[tuple[str, str, str], Number]) -> tuple[LatencyPart, ...]:
    """Breakdown entries in a fixed order."""
    return tuple(
        LatencyPart(kind=k[0], where=k[1], what=k[2], cycles=v) for k, v in sorted(parts.items())
    )
