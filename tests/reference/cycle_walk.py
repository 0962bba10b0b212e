"""Latency of a mapping, counted by visiting every step of every loop node one by one.

One idea: docs/equations.md, 1 to 4, read as statements about single steps, under the default
conventions. A tile moves between two steps if the indices of the loops that its tensor depends on
differ, so moves, repetitions, windows and stalls are looked up step by step; no product of loop
bounds stands for any of them. What is one number for a whole run by definition (the time of a
move, of a call, of a collective) comes from `unit_times`. Whole numbers and `Fraction` throughout;
nothing of `jaxcomet.cost`.

How the text was read where it leaves a choice:

* (4.1b) The window of a later step is the mean of the later steps' times.
* (4.2) Of the moves that are active at a port in a step, the largest "taken" counts.
* (4.2) "The time in which nodes of the same level further down use the same port": all their moves
  in one step, as if no tile were still there.
* (4.2) A read-back is active where a fill of the result's tile would be, with the share of all the
  node's moves, over the whole run, that continue a partial result. It loses to the same "taken" as
  the result's own move. Operands come from "there too" if the node moves any.
* A result that an operation also reads (a running value) is filled and drained.
* (4.2), (1.1d) A reduce, like an all-reduce, leaves one copy to be drained.
* (4.1e) A run reads back if its first tile moves and has gone up before.
* A tensor that several operations below a node move through the same two memories moves once, with
  the tile of the first of them.

Not described there, or not written out here, and refused (`refusal`): all-to-all, algorithms of
collectives other than ``mesh``, loops that skip what is masked, engines without weight registers.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, prod

from jaxcomet.hardware import Machine, MatrixEngine
from jaxcomet.mapping import (
    Collective,
    Compute,
    Group,
    Loop,
    Mapping,
    Node,
    Spatial,
    Temporal,
    walk,
)
from jaxcomet.workload import CompoundOp, Operation
from tests.reference.unit_times import (
    MESH_KINDS,
    call,
    collective,
    engine_move,
    engine_of,
    memory_move,
    once_a_run,
)

Indices = tuple[int, ...]
Port = tuple[str, str]
"""(memory, fill or drain), or (memory, "bus"), or (engine or links, "")."""


@dataclass(frozen=True)
class Visited:
    """One loop node, for comparing term by term; names as in (4.1c), refill as in (4.1e)."""

    level: str
    operations: tuple[str, ...]
    steps: int
    first: Fraction
    later: Fraction
    up: Fraction
    down: Fraction
    dependent: Fraction
    stall: Fraction
    extra: Fraction
    refill: Fraction
    total: Fraction


@dataclass
class _Run:
    """The first run of a node, and what a later run saves of it."""

    time: Fraction
    saves: dict[str, Fraction] = field(default_factory=dict)
    busy: dict[Port, Fraction] = field(default_factory=dict)
    engine_side: dict[Port, Fraction] = field(default_factory=dict)
    stages: "list[_Run] | None" = None


@dataclass(frozen=True)
class _Site:
    """An engine call and the nodes above it, outermost first."""

    compute: Compute
    operation: Operation
    above: tuple[Node, ...]


@dataclass(frozen=True)
class _Move:
    tensor: str
    drain: bool
    parent: str
    child: str
    to_engine: bool
    dependent: bool
    site: _Site
    time: Fraction
    hop: Fraction

    @property
    def direction(self) -> str:
        return "drain" if self.drain else "fill"


def _relu(x: Fraction) -> Fraction:
    return max(x, Fraction(0))


def _add(into: dict, key: object, value: Fraction) -> None:
    into[key] = into.get(key, Fraction(0)) + value


def cycles(workload: CompoundOp, mapping: Mapping, machine: Machine) -> Fraction:
    """Latency under the default conventions.

    Args:
      workload: whole sizes, one shape; already rewritten where the mapping asks for it.
      mapping: whole factors, one mapping.
      machine: single numbers.

    Returns:
      Cycles.

    Raises:
      NotImplementedError: the tree has something that docs/equations.md does not describe.
    """
    return visited(workload, mapping, machine)[0]


def visited(
    workload: CompoundOp, mapping: Mapping, machine: Machine
) -> tuple[Fraction, list[Visited]]:
    """(latency, its loop nodes in the order of the tree)."""
    reason = refusal(workload, mapping.tree, machine)
    if reason is not None:
        raise NotImplementedError(reason)
    steps = _Walk(workload, mapping, machine)
    run = steps.run(mapping.tree, ())
    refills = sum((n.refill for n in steps.nodes), Fraction(0))
    return run.time + refills, steps.nodes


def refusal(workload: CompoundOp, tree: Node, machine: Machine) -> str | None:
    """What of a tree or machine docs/equations.md does not describe; None if it does."""
    if not all(getattr(e, "weight_registers", True) for e in machine.engines.values()):
        return "an engine without weight registers"
    for node, _ in walk(tree):
        match node:
            case Temporal():
                masked = [x for x in node.loops if x.masked is not None]
                if masked and workload.mask is not None:
                    return "a loop that skips what is masked"
            case Collective():
                if node.kind not in MESH_KINDS:
                    return f"a collective of the kind {node.kind}"
                if node.algorithm != "mesh" or node.outer:
                    return f"{node.kind} by the algorithm {node.algorithm}"
            case _:
                pass
    return None


class _Walk:
    def __init__(self, workload: CompoundOp, mapping: Mapping, machine: Machine) -> None:
        self.workload, self.mapping, self.machine = workload, mapping, machine
        self.sites = list(self._sites(mapping.tree, ()))
        self.nodes: list[Visited] = []

    def _sites(self, node: Node, above: tuple[Node, ...]) -> Iterator[_Site]:
        match node:
            case Temporal() | Spatial():
                yield from self._sites(node.body, (*above, node))
            case Group():
                for child in node.children:
                    yield from self._sites(child, (*above, node))
            case Compute():
                yield _Site(node, self.workload.operation(node.operation), above)
            case Collective():
                pass

    # -- what the tree says --------------------------------------------------------------------

    def count(self, loop: Loop) -> int:
        return prod(int(self.mapping.factors[f]) for f in loop.factors)

    def steps(self, loops: Sequence[Loop]) -> list[Indices]:
        """Indices of every step, in order."""
        return list(itertools.product(*(range(self.count(x)) for x in loops)))

    def dims(self, tensor: str) -> tuple[str, ...]:
        return self.workload.tensor(tensor).dims

    def key(self, tensor: str, loops: Sequence[Loop], indices: Indices) -> Indices:
        """Indices of the loops that select a tensor's tile."""
        dims = self.dims(tensor)
        return tuple(i for x, i in zip(loops, indices, strict=True) if x.dim in dims)

    def level(self, name: str) -> int:
        return self.machine.level_index(name)

    def home(self, tensor: str) -> int:
        memory = dict(self.mapping.homes).get(tensor, self.machine.root.name)
        return self.level(self.machine.memories[memory].level)

    def path(self, operation: Operation, position: int) -> tuple[str, ...]:
        """Memories of an operand by position, or of the result (-1), outermost first."""
        engine = engine_of(self.machine, operation)
        if position < 0:
            return self.machine.path(engine.result)
        sources = engine.operands
        return self.machine.path(sources[min(position, len(sources) - 1)])

    def port(self, memory: str, direction: str) -> Port:
        """A memory's read or write port, or the bus that both directions share."""
        return (memory, direction if self.machine.memories[memory].duplex else "bus")

    # -- the walk --------------------------------------------------------------------------------

    def run(self, node: Node, above: tuple[Node, ...]) -> _Run:
        match node:
            case Temporal():
                return self._temporal(node, above)
            case Spatial():
                return self.run(node.body, (*above, node))
            case Group():
                return self._group([self.run(c, (*above, node)) for c in node.children], node)
            case Compute():
                time = self._call(node)
                engine = engine_of(self.machine, self.workload.operation(node.operation))
                return _Run(time, busy={(engine.name, ""): time})
            case Collective():
                time = self._collective(node)
                return _Run(time, busy={(f"{node.memory} links", ""): time})

    def _group(self, runs: list[_Run], node: Group) -> _Run:
        total = _Run(sum((r.time for r in runs), Fraction(0)))
        for r in runs:
            for into, new in (
                (total.saves, r.saves),
                (total.busy, r.busy),
                (total.engine_side, r.engine_side),
            ):
                for key, value in new.items():
                    _add(into, key, value)
        if node.binding == "parallel":  # (4.7a)
            total.time = self._together([r.time for r in runs], runs)
            total.saves = {}
        total.stages = None if node.binding == "sequential" else runs
        return total

    def _together(self, times: list[Fraction], runs: list[_Run]) -> Fraction:
        """The slowest of siblings at work together, or what they need of one port, (4.4b)."""
        shared: dict[Port, list[Fraction]] = {}
        for r in runs:
            for port, time in r.busy.items():
                shared.setdefault(port, []).append(time)
        return max([*times, *(sum(v, Fraction(0)) for v in shared.values() if len(v) > 1)])

    def _temporal(self, node: Temporal, above: tuple[Node, ...]) -> _Run:
        place = len(self.nodes)
        child = self.run(node.body, (*above, node))
        level, loops = self.level(node.level), node.loops
        steps = self.steps(loops)

        first, later, body = self._body(child, node, steps)
        moves = self._moves(node)
        up, gain_up = self._ramp([m for m in moves if not m.drain])
        down, gain_down = self._ramp([m for m in moves if m.drain])
        dependent = Fraction(0)
        hidden: list[_Move] = []
        for m in moves:
            if not m.dependent and (m.to_engine or self.machine.memories[m.child].double_buffered):
                hidden.append(m)
            else:
                dependent += (len(self._spans(m, loops, steps)) - 1) * m.time
        stall = self._stalls(node, above, steps, (first, later), hidden, moves, child)
        extra = self._extra(node, steps)
        total = body + up + down + dependent + stall + extra
        refill = sum((self._read_back(m, node, above)[1] * m.time for m in moves), Fraction(0))

        run = _Run(total)
        for name in {**child.saves, **gain_up, **gain_down}:
            stays = self.home(name) <= level and len(self._stays(name, loops, steps)) == 1
            own = gain_up.get(name, Fraction(0)) + gain_down.get(name, Fraction(0))
            run.saves[name] = own + child.saves.get(name, Fraction(0)) if stays else Fraction(0)
        for _ in steps:
            for port, time in child.busy.items():
                _add(run.busy, port, time)
            for port, time in child.engine_side.items():
                _add(run.engine_side, port, time)
        for m in moves:
            for _ in self._spans(m, loops, steps):
                _add(run.busy, self.port(m.parent, m.direction), m.time)
                if m.to_engine:
                    _add(run.engine_side, (m.parent, m.direction), m.time)
        below = tuple(s.operation.name for s in self.sites if any(x is node for x in s.above))
        terms = (first, later, up, down, dependent, stall, extra, refill, total)
        self.nodes.insert(place, Visited(node.level, below, len(steps), *terms))
        return run

    def _body(
        self, child: _Run, node: Temporal, steps: list[Indices]
    ) -> tuple[Fraction, Fraction, Fraction]:
        """(first step, a later one on average, all of them) of what a node repeats."""
        level, loops = self.level(node.level), node.loops

        def later_steps(r: _Run) -> list[Fraction]:
            times = []
            for before, now in itertools.pairwise(steps):
                time = r.time
                for tensor, saving in r.saves.items():
                    same = self.key(tensor, loops, before) == self.key(tensor, loops, now)
                    if same and self.home(tensor) <= level:
                        time -= saving
                times.append(time)
            return times

        if child.stages is None:
            times = later_steps(child)
            mean = sum(times, Fraction(0)) / max(len(times), 1)
            return child.time, mean if times else child.time, sum(times, child.time)
        means = []
        for stage in child.stages:
            times = later_steps(stage)
            means.append(sum(times, Fraction(0)) / len(times) if times else stage.time)
        later = self._together(means, child.stages)
        return child.time, later, child.time + ceil((len(steps) - 1) * later)

    def _stays(
        self, tensor: str, loops: Sequence[Loop], steps: list[Indices]
    ) -> list[tuple[int, int]]:
        """Spans of steps, [begin, end), in which a tensor's tile stays the same."""
        keys = [self.key(tensor, loops, s) for s in steps]
        starts = [i for i in range(len(steps)) if i == 0 or keys[i] != keys[i - 1]]
        return list(itertools.pairwise([*starts, len(steps)]))

    def _spans(
        self, m: _Move, loops: Sequence[Loop], steps: list[Indices]
    ) -> list[tuple[int, int]]:
        """Spans of steps that one move serves."""
        if self._reloaded(m):
            return [(i, i + 1) for i in range(len(steps))]
        return self._stays(m.tensor, loops, steps)

    def _reloaded(self, m: _Move) -> bool:
        """Whether a call leaves other weights in the array than the next one begins with."""
        operation = m.site.operation
        engine = engine_of(self.machine, operation)
        if not (m.to_engine and not m.drain and isinstance(engine, MatrixEngine)):
            return False
        return m.tensor == operation.inputs[1] and self._folds(m.site) > 1

    def _folds(self, site: _Site) -> int:
        left, right = (set(self.dims(t)) for t in site.operation.inputs)
        out = set(self.dims(site.operation.output))
        contracted = columns = 1
        for loop in site.compute.tile:
            if loop.dim in left - out:
                contracted *= self.count(loop)
            elif loop.dim in right - left:
                columns *= self.count(loop)
        engine = engine_of(self.machine, site.operation)
        assert isinstance(engine, MatrixEngine)
        down = -(-contracted // int(engine.grid_rows * engine.array_rows))
        return down * -(-columns // int(engine.grid_columns * engine.array_columns))

    def _ramp(self, moves: list[_Move]) -> tuple[Fraction, dict[str, Fraction]]:
        """First fills, or last drains, (4.1d), and what a resident tile saves of them (4.1f)."""
        memories: dict[str, dict[str, Fraction]] = {}
        for m in moves:
            _add(memories.setdefault(m.parent, {}), m.tensor, m.time + m.hop)
        if not memories:
            return Fraction(0), {}
        longest = max(sum(v.values()) for v in memories.values())
        gains: dict[str, Fraction] = {}
        lost = {m.tensor for m in moves if self._reloaded(m)}
        for memory, tensors in memories.items():
            for tensor in tensors.keys() - lost:
                rest = [
                    sum(t for n, t in v.items() if (name, n) != (memory, tensor))
                    for name, v in memories.items()
                ]
                _add(gains, tensor, Fraction(longest - max(rest)))
        return Fraction(longest), gains

    # -- stalls ----------------------------------------------------------------------------------

    def _stalls(
        self,
        node: Temporal,
        above: tuple[Node, ...],
        steps: list[Indices],
        window: tuple[Fraction, Fraction],
        hidden: list[_Move],
        moves: list[_Move],
        child: _Run,
    ) -> Fraction:
        """(4.2b): the sum over steps of the longest wait at any port."""
        spans: list[tuple[_Move, bool, Port, Fraction, list[tuple[int, int]]]] = []
        operand_ports = {self.port(m.parent, "fill") for m in moves if not m.drain}
        for m in hidden:
            stays = self._spans(m, node.loops, steps)
            spans.append((m, not m.drain, self.port(m.parent, m.direction), m.time, stays))
            share, _ = self._read_back(m, node, above)
            reads = self.port(m.parent, "fill")
            if share and (reads in operand_ports or reads == self.port(m.parent, "drain")):
                spans.append((m, True, reads, m.time * share, stays))
        total = Fraction(0)
        for i in range(len(steps)):
            need: dict[Port, Fraction] = {}
            taken: dict[Port, Fraction] = {}
            for m, fill, port, time, stays in spans:
                begin, end = next(s for s in stays if s[0] <= i < s[1])
                # a fill needs a tile to come after this one, a drain one that was before
                if (fill and end < len(steps)) or (not fill and begin > 0):
                    _add(need, port, time / (end - begin))
                    taken[port] = max(taken.get(port, Fraction(0)), self._taken(m, child))
            open_for = window[0] if i == 0 else window[1]
            waits = [_relu(t - _relu(open_for - taken[p])) for p, t in need.items()]
            total += max(waits, default=Fraction(0))
        return Fraction(ceil(total))

    def _taken(self, m: _Move, child: _Run) -> Fraction:
        taken = child.busy.get(self.port(m.parent, m.direction), Fraction(0))
        if not m.to_engine and self.machine.memories[m.child].shared_ports:
            other = "fill" if m.drain else "drain"
            taken = max(taken, child.engine_side.get((m.child, other), Fraction(0)))
        return taken

    def _read_back(self, m: _Move, node: Temporal, above: tuple[Node, ...]) -> tuple[Fraction, int]:
        """(share of a result's moves that continue a partial one, runs that begin with such)."""
        if not m.drain or m.site.operation.kind not in ("contract", "reduce"):
            return Fraction(0), 0
        frames = [n for n in (*above, node) if isinstance(n, Temporal)]
        loops = [x for n in frames for x in n.loops]
        home = self.home(m.tensor)
        above_home = [self.level(n.level) < home for n in frames for _ in n.loops]
        dims = self.dims(m.tensor)
        resident: Indices | None = None
        sent: set[Indices] = set()
        number = continued = runs = 0
        own = len(node.loops)
        for indices in self.steps(loops):
            content = self.key(m.tensor, loops, indices)
            # what is handed over inside a group is new in each step of the loops above its home
            tile = tuple(
                i
                for x, i, new in zip(loops, indices, above_home, strict=True)
                if x.dim in dims or new
            )
            if tile == resident:
                continue
            resident = tile
            number += 1
            if content in sent:
                continued += 1
                runs += not any(indices[len(indices) - own :])
            sent.add(content)
        return Fraction(continued, number), runs

    # -- moves (1) ---------------------------------------------------------------------------------

    def _moves(self, node: Temporal) -> list[_Move]:
        level = self.level(node.level)
        found: dict[tuple[str, bool, str], _Move] = {}
        for site in self.sites:
            nodes = [n for n in site.above if isinstance(n, Temporal) and n.level == node.level]
            op = site.operation
            for position, tensor in [*enumerate(op.inputs), (-1, op.output)]:
                owners = [n for n in nodes if tensor in n.streams or not n.streams]
                if not owners or owners[-1] is not node:
                    continue
                home, drain = self.home(tensor), position < 0
                if home > level:
                    continue
                path = self.path(op, position)
                to_engine = level + 1 == len(path)
                child = engine_of(self.machine, op).name if to_engine else path[level + 1]
                if (tensor, drain, child) in found:
                    continue
                root = level == 0 and not to_engine
                bits = self.workload.tensor(tensor).bits if root else op.bits
                time, hop = self._move_time(
                    node, site, tensor, drain, path[level], child, to_engine, Fraction(bits)
                )
                dependent = self.workload.is_intermediate(tensor) and home > 0 and not to_engine
                found[tensor, drain, child] = _Move(
                    tensor, drain, path[level], child, to_engine, dependent, site, time, hop
                )
        return list(found.values())

    def _move_time(
        self,
        node: Temporal,
        site: _Site,
        tensor: str,
        drain: bool,
        parent_name: str,
        child_name: str,
        to_engine: bool,
        bits: Fraction,
    ) -> tuple[Fraction, Fraction]:
        """(cycles of one move, hop latency of an engine's port)."""
        dims, level = self.dims(tensor), self.level(node.level)
        at = next(i for i, n in enumerate(site.above) if n is node)
        elements = 1
        along: tuple[list[Loop], list[Loop]] = ([], [])
        rotating = False
        for below in (*site.above[at + 1 :], site.compute):
            loops: tuple[Loop, ...] = ()
            match below:
                case Temporal() if tensor in below.rotates and self.level(below.level) <= level + 1:
                    rotating = True  # each child holds another shard, (4.8)
                case Temporal():
                    loops = below.loops
                case Compute():
                    loops = below.tile
                case Spatial() if self.level(below.level) == level + 1:
                    along[0].extend(below.x)
                    along[1].extend(below.y)
                case Spatial() if self.level(below.level) > level + 1:
                    loops = (*below.x, *below.y)
            elements *= prod(self.count(x) for x in loops if x.dim in dims)
        tile_bytes = elements * bits / 8
        if to_engine:
            return engine_move(self.machine, parent_name, child_name, tile_bytes)
        children = self.steps((*along[0], *along[1]))
        every = (*along[0], *along[1])
        distinct = {c if rotating else self.key(tensor, every, c) for c in children}
        time = memory_move(
            self.machine,
            parent_name,
            child_name,
            tile_bytes,
            drain=drain,
            equal=drain and (site.operation.kind == "map" or _reduces(node, tensor, child_name)),
            distinct=len(distinct),
            along_x=len(self.steps(along[0])),
            along_y=len(self.steps(along[1])),
        )
        return time, Fraction(0)

    # -- engines (2) and collectives (3) -----------------------------------------------------------

    def _call(self, node: Compute) -> Fraction:
        op = self.workload.operation(node.operation)
        tile: dict[str, int] = dict.fromkeys(self.workload.iteration_dims(op), 1)
        for loop in node.tile:
            tile[loop.dim] *= self.count(loop)
        return call(self.workload, self.machine, op, tile)

    def _extra(self, node: Temporal, steps: list[Indices]) -> Fraction:
        if not isinstance(node.body, Compute):
            return Fraction(0)
        op = self.workload.operation(node.body.operation)
        results = {self.key(op.output, node.loops, s) for s in steps}
        return once_a_run(self.machine, op, len(steps), len(results))

    def _collective(self, node: Collective) -> Fraction:
        op = self.workload.producer(node.tensor) or self.workload.consumers(node.tensor)[0]
        x, y = (prod(int(self.mapping.factors[f]) for f in fs) for fs in (node.x, node.y))
        return collective(
            self.machine,
            node.memory,
            node.kind,
            node.function,
            x=x,
            y=y,
            elements=prod(self.count(loop) for loop in node.tile),
            bits=Fraction(op.bits if node.bits is None else node.bits),
        )


def _reduces(node: Node, tensor: str, memory: str) -> bool:
    """Whether a collective below a node combines a tensor of the units of a memory."""
    match node:
        case Temporal() | Spatial():
            return _reduces(node.body, tensor, memory)
        case Group():
            return any(_reduces(c, tensor, memory) for c in node.children)
        case Collective():
            combines = node.kind in ("all_reduce", "reduce")
            return combines and (node.tensor, node.memory) == (tensor, memory)
        case Compute():
            return False
