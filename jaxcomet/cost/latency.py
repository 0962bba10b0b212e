"""Latency of a mapping by one walk over its tree.

The one idea: a node's time depends on which tiles are still below it from the step before. The walk
returns, for each node, the time of a *first* run and, per tensor, what a later run *saves* when
that tensor's tile has not changed; a loop of T steps then takes ``first + (T - 1) (first - sum_X
f_X saving_X)`` with f_X the share of later steps that leave X alone (docs/equations.md, 4). Nothing
here knows an operation or a strategy by name.
"""

import dataclasses
from dataclasses import dataclass, field

from jax.tree_util import register_dataclass

from jaxcomet.arith import (
    Number,
    ceil,
    floor,
    is_one,
    maximum,
    minimum,
    product,
    reached,
    relu,
    select,
)
from jaxcomet.cost.collective import CollectiveCost, collective_cost
from jaxcomet.cost.compute import call_cycles
from jaxcomet.cost.placement import Move, Placement
from jaxcomet.cost.stall import Demand, stall_cycles, step_stall
from jaxcomet.cost.transfer import MoveTime, move_time
from jaxcomet.hardware.machine import VectorEngine
from jaxcomet.mapping import Collective, Compute, Group, Loop, Node, Spatial, Temporal

Part = tuple[str, str, str]
"""(kind, where, what) of a share of the latency; kind is compute, CS, OS, CF or collective."""


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class NodeCost:
    """One temporal node of the tree, for explaining.

    Attributes:
      level: its level.
      operations: the operations below it.
      depth: temporal nodes above it.
      steps: T.
      first_cycles: child in the first step.
      later_cycles: child in each later step.
      ramp_up_cycles: first fills, exposed.
      ramp_down_cycles: last drains, exposed.
      dependent_cycles: further moves that nothing can hide.
      stall_cycles: waits for moves that are longer than their windows.
      extra_cycles: pipeline fill and combining of row partials.
      refill_cycles: over the whole run, reading back what earlier runs left unfinished.
      cycles: time of one run.
      executions: runs over the whole.
      moves: what it moves.
      moves_per_run: how often each tensor moves in one run.
    """

    level: str = dataclasses.field(metadata={"static": True})
    operations: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    depth: int = dataclasses.field(metadata={"static": True})
    steps: Number
    first_cycles: Number
    later_cycles: Number
    ramp_up_cycles: Number
    ramp_down_cycles: Number
    dependent_cycles: Number
    stall_cycles: Number
    extra_cycles: Number
    refill_cycles: Number
    cycles: Number
    executions: Number
    moves: tuple[MoveTime, ...]
    moves_per_run: tuple[Number, ...]


@dataclass
class _Time:
    """Time of a node: see the module docstring."""

    first: Number = 0.0
    savings: dict[str, Number] = field(default_factory=dict)
    ports: dict[tuple[str, str], Number] = field(default_factory=dict)
    busy: dict[str, Number] = field(default_factory=dict)
    parts: dict[Part, Number] = field(default_factory=dict)
    saved_parts: dict[str, dict[Part, Number]] = field(default_factory=dict)
    stages: "list[_Time] | None" = None
    binding: str = "sequential"


@dataclass(frozen=True)
class _Steps:
    """A child in its first step, in a later one on average, and all steps with their shares."""

    first: Number
    later: Number
    total: Number
    parts: dict[Part, Number]


def _add(into: dict, key: object, value: Number) -> None:
    into[key] = into[key] + value if key in into else value


@dataclass(frozen=True)
class Latency:
    """Result of the walk: total, shares, and what explains them."""

    cycles: Number
    parts: dict[Part, Number]
    nodes: tuple[NodeCost, ...]
    moves: tuple[tuple[Move, MoveTime], ...]
    collectives: tuple[CollectiveCost, ...]


class _Walk:
    """Carries the placement and collects records; one instance per evaluation."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.nodes: list[NodeCost] = []
        self.moves: list[tuple[Move, MoveTime]] = []
        self.collectives: list[CollectiveCost] = []
        self.refills: dict[Part, Number] = {}

    def time(self, node: Node, above: tuple[Node, ...]) -> _Time:
        match node:
            case Temporal():
                return self._temporal(node, above)
            case Spatial():
                return self.time(node.body, (*above, node))
            case Group():
                return self._group(node, above)
            case Compute():
                return self._compute(node)
            case Collective():
                return self._collective(node, above)

    def _compute(self, node: Compute) -> _Time:
        site = next(s for s in self.placement.sites if s.compute is node)
        cycles = call_cycles(self.placement, site)
        engine = self.placement.engine(site.operation).name
        return _Time(
            first=cycles,
            busy={engine: cycles},
            parts={("compute", engine, node.operation): cycles},
        )

    def _collective(self, node: Collective, above: tuple[Node, ...]) -> _Time:
        if not self.placement.charged(node):
            return _Time()
        executions = product([self.placement.steps(x) for x in self.placement.nest_above(above)])
        inside = {*node.x, *node.y, *(f for r in node.outer for f in (*r.x, *r.y))}
        # spread loops over the participants themselves do not multiply the exchange
        others = [
            self.placement.steps(x)
            for a in above
            if isinstance(a, Spatial)
            for x in (*a.x, *a.y)
            if not set(x.factors) & inside
        ]
        groups = product([*others, self.placement.count(node.groups)])
        cost = collective_cost(self.placement, node, executions, groups)
        self.collectives.append(cost)
        return _Time(
            first=cost.cycles,
            busy={
                f"{memory} links": cost.cycles
                for memory in (node.memory, *(r.memory for r in node.outer))
            },
            parts={("collective", node.kind, node.tensor): cost.cycles},
        )

    def _group(self, node: Group, above: tuple[Node, ...]) -> _Time:
        times = [self.time(c, (*above, node)) for c in node.children]
        total = _Time(first=sum((t.first for t in times[1:]), start=times[0].first))
        for t in times:
            for into, new in (
                (total.savings, t.savings),
                (total.ports, t.ports),
                (total.busy, t.busy),
                (total.parts, t.parts),
            ):
                for key, value in new.items():
                    _add(into, key, value)
            for tensor, parts in t.saved_parts.items():
                for key, value in parts.items():
                    _add(total.saved_parts.setdefault(tensor, {}), key, value)
        if node.binding == "parallel":
            slowest, conflict, parts = _slowest([(t.first, t.parts) for t in times], times)
            levels = [a.level for a in above if isinstance(a, Temporal)]
            outermost = self.placement.machine.levels[0].name
            _add(parts, ("CF", levels[-1] if levels else outermost, "parallel"), conflict)
            total.first, total.parts = slowest + conflict, parts
            # what a resident tile saves of one sibling is not what it saves of the longest
            total.savings, total.saved_parts = {}, {}
        total.stages = times if node.binding != "sequential" else None
        total.binding = node.binding
        return total

    def _temporal(self, node: Temporal, above: tuple[Node, ...]) -> _Time:
        place, rules = self.placement, self.placement.conventions
        index = len(self.nodes)
        child = self.time(node.body, (*above, node))
        steps = product([place.steps(x) for x in node.loops])
        own = list(reversed(node.loops))
        level = place.machine.level_index(node.level)
        saving = [tensor for t in child.stages or (child,) for tensor in t.savings]
        unchanged = {
            tensor: self._unchanged(tensor, own, steps)
            for tensor in dict.fromkeys(saving)
            if place.home_level(tensor) <= level
        }
        result = self._run(child, steps, unchanged, level)
        first, later = result.first, result.later
        window = (first, first) if rules.windows == "first-step" else (first, later)

        label = "+".join(s.operation.name for s in place.sites_below(node)) or "collective"
        moves = place.moves(node, above)
        timed = [(m, move_time(place, m)) for m in moves]
        self.moves += timed
        counts = {id(m): place.moves_in(m, own) for m in moves}
        up, down, saved = self._ramps(timed, counts, steps)
        dependent, stall = self._waits(timed, counts, steps, window, child)
        extra, compute_key = self._extra(node, steps)
        refill = self._refills(timed)

        key_cs, key_os = ("CS", node.level, label), ("OS", node.level, label)
        cycles = result.total + up + down + dependent + stall + extra
        parts = result.parts
        if moves:
            # a node of the same level further in has added its own
            _add(parts, key_cs, up + down + dependent)
            _add(parts, key_os, stall)
            _add(self.refills, key_cs, refill)
        if compute_key is not None:
            _add(parts, compute_key, extra)
        time = _Time(first=cycles, parts=parts)
        for tensor in {**child.savings, **saved}:
            single = (
                is_one(place.transitions(tensor, own)[1])
                if place.home_level(tensor) <= level
                else 0.0
            )
            below = child.savings.get(tensor, 0.0)
            time.savings[tensor] = single * (saved.get(tensor, 0.0) + below)
            shares: dict[Part, Number] = {
                k: single * v for k, v in child.saved_parts.get(tensor, {}).items()
            }
            if tensor in saved:
                _add(shares, key_cs, single * saved[tensor])
            time.saved_parts[tensor] = shares
        for engine_port, value in child.ports.items():
            time.ports[engine_port] = value * steps
        for name, value in child.busy.items():
            time.busy[name] = value * steps
        for m, t in timed:
            if m.drain_rule == "last-step":
                continue
            total = t.cycles * counts[id(m)][1]
            _add(time.busy, self._port(m.parent, m.direction), total)
            if m.to_engine:
                _add(time.ports, (m.parent, m.direction), total)
        executions = product([place.steps(x) for x in place.nest_above(above)])
        self.nodes.insert(
            index,
            NodeCost(
                level=node.level,
                operations=tuple(s.operation.name for s in place.sites_below(node)),
                depth=sum(isinstance(x, Temporal) for x in above),
                steps=steps,
                first_cycles=first,
                later_cycles=later,
                ramp_up_cycles=up,
                ramp_down_cycles=down,
                dependent_cycles=dependent,
                stall_cycles=stall,
                extra_cycles=extra,
                refill_cycles=refill,
                cycles=cycles,
                executions=executions,
                moves=tuple(t for _, t in timed),
                moves_per_run=tuple(counts[id(m)][1] for m in moves),
            ),
        )
        return time

    def _unchanged(self, tensor: str, own: list[Loop], steps: Number) -> Number:
        """Number of later steps that leave a tensor's tile alone."""
        _, moves, factor = self.placement.transitions(tensor, own)
        return 0.0 if isinstance(factor, float) and factor == 1.0 else steps - moves

    def _run(self, child: _Time, steps: Number, unchanged: dict[str, Number], level: int) -> _Steps:
        """The child over all steps."""

        def saved_of(t: _Time) -> tuple[Number, dict[Part, Number]]:
            """What the later steps together save of `steps` first runs."""
            cycles: Number = 0.0
            parts: dict[Part, Number] = {}
            for tensor, saving in t.savings.items():
                count = unchanged.get(tensor, 0.0)
                if isinstance(count, float) and count == 0.0:
                    continue
                cycles = cycles + count * saving
                for key, value in t.saved_parts.get(tensor, {}).items():
                    _add(parts, key, count * value)
            return cycles, parts

        repeats = steps - 1.0
        first = child.first
        if child.stages is None:
            saved, saved_parts = saved_of(child)
            parts: dict[Part, Number] = {k: steps * v for k, v in child.parts.items()}
            for key, value in saved_parts.items():
                _add(parts, key, -value)
            if isinstance(saved, float) and saved == 0.0:
                return _Steps(first, first, steps * first, parts)
            later = first - saved / maximum(repeats, 1.0)
            return _Steps(first, later, steps * first - saved, parts)
        stages: list[tuple[Number, dict[Part, Number]]] = []
        for t in child.stages:
            saved, saved_parts = saved_of(t)
            share = 1.0 / maximum(repeats, 1.0)
            parts = dict(t.parts)
            for key, value in saved_parts.items():
                _add(parts, key, -share * value)
            stages.append((t.first - share * saved, parts))
        slowest, conflict, slow_parts = _slowest(stages, child.stages)
        parts = dict(child.parts)
        for key, value in slow_parts.items():
            _add(parts, key, repeats * value)
        steady = ceil(repeats * (slowest + conflict))
        waits = steady - repeats * slowest  # the conflict, and what rounding to whole cycles adds
        what = "pipeline" if child.binding == "pipelined" else child.binding
        _add(parts, ("CF", self.placement.machine.levels[level].name, what), waits)
        return _Steps(first, slowest + conflict, first + steady, parts)

    def _ramps(
        self, timed: list[tuple[Move, MoveTime]], counts: dict, steps: Number
    ) -> tuple[Number, Number, dict[str, Number]]:
        """First fills, last drains, and what a resident tensor saves of them."""
        rules = self.placement.conventions
        sides: dict[str, dict[str, dict[str, Number]]] = {"fill": {}, "drain": {}}
        held = {m.tensor: self.placement.kept(m) for m, _ in timed if m.to_engine}
        for m, t in timed:
            value = t.cycles
            if m.drain_rule == "last-step":
                value = t.memory_cycles + is_one(steps) * t.mesh_cycles
            elif rules.fill_drain == "ignored":
                continue
            elif m.to_engine and rules.engine_hops == "counted":
                port = self.placement.machine.engines[m.child].ports[m.parent]
                value = value + port.hop_latency_cycles
            _add(sides[m.direction].setdefault(m.parent, {}), m.tensor, value)
        saved: dict[str, Number] = {}
        totals: list[Number] = []
        for memories in sides.values():
            sums = {name: sum(v.values()) for name, v in memories.items()}
            totals.append(maximum(*sums.values()) if sums else 0.0)
            for name, tensors in memories.items():
                others = [s for n, s in sums.items() if n != name]
                for tensor, value in tensors.items():
                    if not others:
                        gain = value
                    elif rules.resident_ramp == "all-or-nothing":
                        gain = product([reached(sums[name] - maximum(*others)), value])
                    else:
                        gain = totals[-1] - maximum(sums[name] - value, *others)
                    kept = held.get(tensor, 1.0)
                    _add(saved, tensor, product([gain, kept]))
        return totals[0], totals[1], saved

    def _refills(self, timed: list[tuple[Move, MoveTime]]) -> Number:
        """Cycles, over the whole run, of first reading back what earlier runs left unfinished."""
        total: Number = 0.0
        if self.placement.conventions.fill_drain == "ignored":
            return total
        for m, t in timed:
            share = self.placement.partial_share(m)
            if not (isinstance(share, float) and share == 0.0):
                total = total + self.placement.continued_runs(m) * t.cycles
        return total

    def _waits(
        self,
        timed: list[tuple[Move, MoveTime]],
        counts: dict,
        steps: Number,
        window: tuple[Number, Number],
        child: _Time,
    ) -> tuple[Number, Number]:
        """(moves that nothing hides beyond the ramps, stalls of those that may hide)."""
        place, rules = self.placement, self.placement.conventions
        dependent: Number = 0.0
        demands: list[Demand] = []
        ramped = 0.0 if rules.fill_drain == "ignored" else 1.0
        for m, t in timed:
            if m.drain_rule == "last-step":
                continue
            _, moves, factor = counts[id(m)]
            fill = m.direction == "fill"
            taken = self._taken(m, child)
            produces = self._produces(m)
            first_only = fill and produces and rules.read_stalls == "first-step"
            hidden = (
                rules.overlap == "double-buffered"
                and not m.dependent
                and m.drain_rule is None
                and (m.to_engine or place.machine.memories[m.child].double_buffered)
            )
            if not hidden:
                if isinstance(moves, float) and moves == 1.0 and ramped:
                    continue
                number = moves - ramped
                if first_only and m.dependent:
                    number = minimum(number, 1.0)
                cycles = t.cycles
                if rules.compulsory == "twice-when-long":
                    cycles = cycles + relu(cycles - relu(window[0] - taken))
                dependent = dependent + number * cycles
                continue
            if isinstance(moves, float) and moves == 1.0 and ramped:
                continue
            cycles_per_step = t.cycles
            if not (isinstance(factor, float) and factor == 1.0):
                cycles_per_step = t.cycles / factor
                if rules.step_share == "floor":
                    cycles_per_step = floor(cycles_per_step)
            demands.append(
                Demand(
                    port=self._port(m.parent, m.direction),
                    cycles_per_step=cycles_per_step,
                    fill=fill,
                    reuse=factor,
                    taken=taken,
                    first_only=first_only,
                )
            )
            share = place.partial_share(m)
            reads = self._port(m.parent, "fill")
            if isinstance(share, float) and share == 0.0:
                continue
            if reads in {d.port for d in demands}:
                # a partial result is read back through the port of the operands; where nothing
                # else uses that port, its write takes as long and the read adds nothing
                refill = Demand(
                    port=reads,
                    cycles_per_step=cycles_per_step * share,
                    fill=True,
                    reuse=factor,
                    taken=taken,
                    first_only=False,
                )
                demands.append(refill)
        if not ramped:
            stall = steps * step_stall([(d, 1.0) for d in demands], window[1])
        else:
            stall = stall_cycles(demands, steps, window[0], window[1])
        if rules.step_share == "exact" and not (isinstance(stall, float) and stall == 0.0):
            stall = ceil(stall, scale=steps * maximum(window[0], window[1]))
        return dependent, stall

    def _taken(self, move: Move, child: _Time) -> Number:
        """Cycles of a window in which the ports at either end of a move serve others."""
        machine = self.placement.machine
        # a node of the same level further down moves its own tiles through the upper memory
        taken = child.busy.get(self._port(move.parent, move.direction), 0.0)
        if not move.to_engine and machine.memories[move.child].shared_ports:
            # a drain reads the child memory, as its engines' fills do; a fill writes it, as
            # their drains do
            other = "fill" if move.direction == "drain" else "drain"
            taken = maximum(taken, child.ports.get((move.child, other), 0.0))
        return taken

    def _port(self, memory: str, direction: str) -> str:
        """Name of what a move occupies: a memory's port, or the bus that both directions share."""
        shared = self.placement.conventions.shared_bus == "as-built"
        one_bus = shared and not self.placement.machine.memories[memory].duplex
        return memory if one_bus else f"{memory} {direction}"

    def _produces(self, move: Move) -> bool:
        """Whether a result made below the node passes the move's upper memory."""
        level = self.placement.machine.level_index(move.node.level)
        return any(
            self.placement.memory_at(s.operation, s.operation.output, level).name == move.parent
            for s in self.placement.sites_below(move.node)
        )

    def _extra(self, node: Temporal, steps: Number) -> tuple[Number, Part | None]:
        """Pipeline fill of a vector operation and combining of row partials, once per run."""
        place, rules = self.placement, self.placement.conventions
        if not isinstance(node.body, Compute):
            return 0.0, None
        site = next(s for s in place.sites if s.compute is node.body)
        engine = place.engine(site.operation)
        if not isinstance(engine, VectorEngine):
            return 0.0, None
        extra: Number = 0.0
        if rules.vector_pipeline == "filled":
            extra = extra + (engine.pipeline_stages - 1.0)
        tree = engine.row_reduction == "tree"  # else each lane goes on with the partial it has
        if site.operation.kind == "reduce" and rules.row_partials == "combined" and tree:
            cycles = engine.ops[site.operation.function].cycles
            distinct = place.distinct_tiles(site.operation.output, node.loops)
            extra = extra + (steps - distinct) * cycles
        return extra, ("compute", engine.name, site.operation.name)


def _slowest(
    stages: list[tuple[Number, dict[Part, Number]]], times: list[_Time]
) -> tuple[Number, Number, dict[Part, Number]]:
    """(cycles of the slowest of siblings at work together, conflict beyond it, its shares)."""
    slowest = maximum(*(cycles for cycles, _ in stages))
    shared: dict[str, list[Number]] = {}
    for t in times:
        for name, value in t.busy.items():
            shared.setdefault(name, []).append(value)
    use = [sum(v[1:], start=v[0]) for v in shared.values() if len(v) > 1]
    conflict = relu(maximum(*use) - slowest) if use else 0.0 * slowest
    parts: dict[Part, Number] = {}
    taken: Number = 0.0
    for cycles, stage_parts in stages:
        # the first of the slowest stages is the one whose shares are counted
        chosen = select(cycles >= slowest, 1.0 - taken, 0.0)
        taken = taken + chosen
        for key, value in stage_parts.items():
            _add(parts, key, chosen * value)
    return slowest, conflict, parts


def latency(placement: Placement) -> Latency:
    """Walks the tree; see the module docstring."""
    walk = _Walk(placement)
    time = walk.time(placement.mapping.tree, ())
    cycles = time.first
    for key, refill in walk.refills.items():
        if not (isinstance(refill, float) and refill == 0.0):
            cycles = cycles + refill
            _add(time.parts, key, refill)
    return Latency(
        cycles=cycles,
        parts=time.parts,
        nodes=tuple(walk.nodes),
        moves=tuple(walk.moves),
        collectives=tuple(walk.collectives),
    )
