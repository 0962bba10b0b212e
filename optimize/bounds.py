"""Lower bounds: what no mapping of a workload, or none of one tree, can go below.

The one idea: the walk of the latency (docs/equations.md, 4) is made once for all factors, with the
least that each thing takes over the whole run. All of a dimension goes into the innermost step of
its operation, since time and energy of calls, moves and exchanges are at least linear in size.

* An engine call takes its points per unit over the engine's rate; each fold of a systolic array has
  its load and skew (2.1), a vector operation takes whole instructions (2.2).
* A sequential group takes the sum. Stages and siblings take the longest, or what they together need
  of an engine, a port or a link: the conflict (4.4b).
* A temporal node takes E + max(C, R). C is its child. E are moves that nothing hides: dependent
  ones, those into single buffers, and tensors along which the node has no loop, which fill before
  its first step or drain after its last (4.1d). R is all other use of a port, the child's included:
  a step that its ports need longer for stalls (4.2a). Each element moves once at least: what stays
  resident (4.1g) saves later fills, never the first.
* A collective takes one exchange of all that it exchanges, by the best algorithm; it counts where
  `spatial` tells the participants.

Energy: all work, and each tensor once over each boundary between home and engine (5.1 to 5.5).

`workload_bound` walks a tree that is at most as slow as any: all dimensions looped over and spread
at all levels, all operations in parallel, intermediates at home at the innermost level, E in R.

What conventions hide hides here: fills with ``read_stalls=first-step``, reused tensors with
``step_share=floor``, R with ``windows=first-step`` where a tensor stays or stages are below. With
``fill_drain=ignored`` E is part of R. A node's fills from several memories, or drains to several,
do not count: savings may overlap there (7).

A causal mask leaves a share (offset + (Q + 1) / 2) / N of the scores, for Q positions, N columns.
Skipped blocks pad the time; bytes, work and energy count blocks, a partial one as a whole (4.6b):
with c columns a block, the mean of up(s / c) / up(N / c) over s = N - Q + 1 to N. As up(a) + up(b)
>= up(a + b), s and 2 N - Q - s make a whole together: the share is at least (Q + 1) / (2 Q).

Assumed of a mapping: feasible; no step without work; a node of every level above each engine call,
the innermost its own; one spread over a level's units on that way; a collective's part covers what
it exchanges; inputs and outputs at home in the outermost memory. Left out: refetches, capacities.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field
from typing import Literal

import jax
import numpy as np

from jaxcomet._compat import is_traced
from jaxcomet.arith import Number
from jaxcomet.cost.collective import collective_cost
from jaxcomet.cost.compute import array_cycles, call_cycles, vector_op
from jaxcomet.cost.conventions import DEFAULT, Conventions
from jaxcomet.cost.energy import engine_energy, traffic
from jaxcomet.cost.legality import check
from jaxcomet.cost.placement import Move, Placement, Site
from jaxcomet.cost.transfer import move_time
from jaxcomet.hardware.machine import Machine, MatrixEngine, VectorEngine
from jaxcomet.mapping import (
    Collective,
    Compute,
    Group,
    Loop,
    Mapping,
    MappingError,
    Node,
    Spatial,
    Temporal,
    computes,
    factor_chain,
    factor_names,
    loops_of,
    walk,
)
from jaxcomet.rewrite import REWRITES, rewritten
from jaxcomet.workload import CompoundOp

_ROUNDING = 1e-12  # share that is taken off: more than sums of floats, here and there, can be off

_Use = dict[str, float]
"""Cycles by engine, port and link, or pJ by memory, engine, ``mesh`` and ``collectives``."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One part of a bound: cycles (kind latency) or pJ (energy), and the sum with its numbers."""

    name: str
    kind: Literal["latency", "energy"]
    value: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What no mapping can go below.

    Attributes:
      latency_cycles: the largest limit of the latency.
      energy_pj: the sum of the limits of the energy.
      limits: each limit of the latency is a bound of its own; those of the energy add up.
    """

    latency_cycles: float
    energy_pj: float
    limits: tuple[Limit, ...]

    @property
    def edp(self) -> float:
        """Energy-delay product, pJ x cycles: the product of the two bounds."""
        return self.latency_cycles * self.energy_pj

    def of(self, objective: str) -> float:
        """The bound of ``latency``, ``energy`` or ``edp``; ValueError for anything else."""
        values = {"latency": self.latency_cycles, "energy": self.energy_pj, "edp": self.edp}
        if objective not in values:
            raise ValueError(f"objective: got {objective!r}; expected one of {', '.join(values)}")
        return values[objective]

    def limiting(self, objective: str) -> Limit:
        """The limit that sets the latency (also for edp), or the largest part of the energy."""
        self.of(objective)
        kind = "energy" if objective == "energy" else "latency"
        return max((x for x in self.limits if x.kind == kind), key=lambda x: x.value)


def _together(uses: Iterable[_Use]) -> _Use:
    total: _Use = {}
    for key, value in (item for use in uses for item in use.items()):
        total[key] = total.get(key, 0.0) + value
    return total


@dataclass(frozen=True)
class _Walk:
    """The walk over a tree whose factors are ideal; `terms` says in words what adds up.

    `fast` has as many units as can be, `lean` one; both have those that are given if `known`.
    `any_tree`: the tree stands for all trees.
    """

    fast: Placement
    lean: Placement
    known: bool
    any_tree: bool = False
    terms: dict[str, list[str]] = field(default_factory=dict)

    def use(self, key: str, what: str, count: Number, value: Number, unit: str = "") -> _Use:
        """A use with its words: cycles at a rate, or pJ."""
        if value:
            rate = f"x {float(value / count):.6g}" if unit else f"at {float(count / value):,.6g}"
            text = f"{float(count):,.0f} {what} {rate}{unit or ' a cycle'}"
            self.terms.setdefault(key + unit, []).append(text)
        return {key: float(value)}

    def units(self, above: Sequence[Node], dims: Sequence[str]) -> float:
        """Most units over which loops along some dimensions are spread."""
        total, machine = 1.0, self.fast.machine
        for node in (n for n in above if isinstance(n, Spatial)):
            level = machine.level(node.level)
            for loops, edge in ((node.x, level.mesh_x), (node.y, level.mesh_y)):
                counts = [float(self.fast.count(x.factors)) for x in loops if x.dim in dims]
                total *= min(float(edge), math.prod(counts))
        return total

    def seen(self, site: Site, dims: Sequence[str], *, needed: bool = False) -> float:
        """Share of the points along some dimensions that a mask leaves: needed, or ever visited."""
        mask, sizes = self.fast.workload.mask, self.fast.workload.sizes
        skips = any(x.masked is not None for a in site.above for x in loops_of(a))
        if mask is None or not (skips or self.any_tree) or {mask.rows, mask.columns} - {*dims}:
            return 1.0
        positions = sizes[mask.rows] / mask.rows_per_position
        share = 0.5 * (positions + 1.0) / positions
        return float((mask.offset + share * positions) / sizes[mask.columns] if needed else share)

    def time(self, node: Node, above: tuple[Node, ...] = ()) -> tuple[float, _Use]:
        """Least time of a node over the whole run, and least use."""
        match node:
            case Spatial():
                return self.time(node.body, (*above, node))
            case Temporal():
                return self._temporal(node, above)
            case Compute():
                return self._compute(node)
            case Collective():
                size, cycles, _ = self.exchange(node, above)
                what = f"elements of {node.tensor}"
                memories = (node.memory, *(ranks.memory for ranks in node.outer))
                links = [self.use(f"{m} links", what, size, cycles) for m in memories]
                return cycles, _together(links)
        times, uses = zip(*(self.time(c, (*above, node)) for c in node.children), strict=True)
        busy = _together(uses)
        if node.binding == "sequential":
            return sum(times), busy
        return max(*times, *busy.values(), 0.0), busy

    def _compute(self, node: Compute) -> tuple[float, _Use]:
        place, work, rules = self.fast, self.fast.workload, self.fast.conventions
        site = next(s for s in place.sites if s.compute is node)
        op, engine = site.operation, place.engine(site.operation)
        dims = work.iteration_dims(op)
        seen = self.seen(site, dims, needed=True)
        points = seen * float(work.points(op))
        share = points / self.units(site.above, dims)
        if isinstance(engine, VectorEngine):
            time = float(vector_op(engine, op)[0]) * max(1.0, share / float(engine.lanes))
        else:
            rows = engine.grid_rows * engine.array_rows
            streamed = max(1.0, float(share / (rows * engine.grid_columns * engine.array_columns)))
            kept = {*work.tensor(op.inputs[0]).dims} & {*work.tensor(op.output).dims}
            longest = math.prod(float(work.sizes[x.dim]) for x in node.tile if x.dim in kept)
            folds = max(1.0, streamed / longest) if rules.weight_load == "exposed" else 1.0
            time = folds * float(array_cycles(engine, streamed / folds, 1.0, 1.0, rules))
        if seen == 1.0:
            calls = math.prod(float(place.steps(x)) for x in place.nest_above(site.above))
            time = max(time, calls * float(call_cycles(place, site)))
        return time, self.use(engine.name, f"points of {op.name}", points, time)

    def exchange(self, node: Collective, above: tuple[Node, ...]) -> tuple[float, float, float]:
        """Elements, least cycles and energy of a collective: of all its exchanges made as one."""
        place = self.fast
        if not self.known or not place.charged(node):
            return 0.0, 0.0, 0.0
        size = math.prod(float(place.steps(x)) for x in (*place.nest_above(above), *node.tile))
        mapping = dataclasses.replace(place.mapping, factors={**place.mapping.factors, "": size})
        place = dataclasses.replace(place, mapping=mapping)
        once = dataclasses.replace(node, tile=(Loop("", ("",)),))
        inside = {*node.x, *node.y, *(f for r in node.outer for f in (*r.x, *r.y))}
        spread = [x.factors for a in above if isinstance(a, Spatial) for x in loops_of(a)]
        beside = [*(f for x in spread if not {*x} & inside for f in x), *node.groups]
        names = [node.algorithm]
        if node.algorithm == "auto":
            names = collective_cost(place, once, 1.0, 1.0).names
        ways = [dataclasses.replace(once, algorithm=name) for name in names]
        costs = [collective_cost(place, way, 1.0, 1.0) for way in ways]
        # rounded down, small exchanges may take less than their bytes do; the time at the links not
        down = place.conventions.collective_staging == "serial"
        cycles = min(float(c.memory_cycles if down else c.cycles) for c in costs)
        return size, cycles, min(float(c.energy_pj) for c in costs) * float(place.count(beside))

    def _temporal(self, node: Temporal, above: tuple[Node, ...]) -> tuple[float, _Use]:
        place, rules, work = self.fast, self.fast.conventions, self.fast.workload
        inside, busy = self.time(node.body, (*above, node))
        level, moves = place.machine.level_index(node.level), place.moves(node, above)
        live = {x.dim for x in node.loops if float(work.sizes[x.dim]) > 1.0}
        sites = place.sites_below(node)
        # steps after the first are shorter where a tensor stays, or stages work side by side
        shorter = any(isinstance(n, Group) and n.binding != "sequential" for n, _ in walk(node))
        for t in {t for s in sites for t in (*s.operation.inputs, s.operation.output)}:
            shorter |= place.home_level(t) <= level and bool(live - {*work.tensor(t).dims})
        ramped, bare, ports = rules.fill_drain == "counted", [], [busy]
        for m in moves:
            ends = {x.parent for x in moves if x.direction == m.direction}
            if len(ends) > 1 or m.drain_rule == "last-step":
                continue
            dims = {*work.tensor(m.tensor).dims}
            once = m.direction == "fill" and rules.read_stalls == "first-step"
            single = not m.to_engine and not place.machine.memories[m.child].double_buffered
            single |= rules.overlap == "none" or m.dependent or m.drain_rule is not None
            exposed = (single and not (once and m.dependent)) or (ramped and not dims & live)
            hidden = once and (ramped or m.dependent)
            hidden |= rules.step_share == "floor" and bool(live - dims)
            hidden |= rules.windows == "first-step" and shorter
            if exposed and not self.any_tree:
                bare.append(self._move(m))
            elif exposed or not hidden:
                ports.append(self._move(m))
        busy, alone = _together(ports), _together(bare)
        time = sum(alone.values()) + max(inside, *busy.values(), 0.0)
        if isinstance(node.body, Compute) and rules.vector_pipeline == "filled":
            engine = place.engine(sites[0].operation)
            time += engine.pipeline_stages - 1.0 if isinstance(engine, VectorEngine) else 0.0
        return float(time), _together([busy, alone])

    def _move(self, move: Move) -> _Use:
        """Least use of its port by a move."""
        place, rules, t = self.fast, self.fast.conventions, move_time(self.fast, move)
        share = self.seen(move.site, self._dims(move), needed=True)
        moves = share * float(place.whole_run(move)[0] / place.passes(move))  # t has the passes
        size = moves * float(t.tile_elements * t.element_bytes)
        copies = float(t.copies if self.known else t.distinct)
        slow = max(
            copies / t.parent_bandwidth_bytes_per_cycle, 1.0 / t.child_bandwidth_bytes_per_cycle
        )
        cycles = float(size * slow)
        if self.known and moves == 1.0 and rules.mesh_queuing == "per-hop":
            cycles = max(cycles, float(t.cycles))  # with hops, and rounded up
        bus = rules.shared_bus == "as-built" and not place.machine.memories[move.parent].duplex
        port = move.parent if bus else f"{move.parent} {move.direction}"
        return self.use(port, f"bytes of {move.tensor}", size * copies, cycles)

    def _dims(self, move: Move) -> tuple[str, ...]:
        """Dimensions along which a move counts elements."""
        if self.fast.delivered_again(move):
            return self.fast.workload.iteration_dims(move.site.operation)
        return self.fast.workload.tensor(move.tensor).dims

    def energy(self, *, outermost: bool = True) -> _Use:
        """Least energy of engines, collectives and moves, also of the `outermost` memory if so."""
        place, found = self.lean, list[_Use]()
        # nobody knows how many units count
        some = not self.known and place.conventions.vector_units != "all"
        idle = [s for s in place.sites if some and s.operation.kind != "contract"]
        for site in (s for s in place.sites if s not in idle):
            share = self.seen(site, place.workload.iteration_dims(site.operation))
            e = engine_energy(place, site)
            what = f"points of {e.operation}"
            found.append(self.use(e.engine, what, e.work, share * e.energy_pj, " pJ"))
        moves = [m for node, above in place.temporals for m in place.moves(node, above)]
        for m in (m for m in moves if outermost or m.parent != place.root):
            share, what = self.seen(m.site, self._dims(m)), f"bytes of {m.tensor}"
            # units that share a sum may leave nothing to read back
            moved = traffic(place, m, move_time(place, m))[: None if self.known else 1]
            for t in moved:
                up, down = share * t.parent_energy_pj, share * t.child_energy_pj
                if not (m.to_engine and m.site in idle):
                    found.append(self.use(t.parent, what, t.parent_bytes, up, " pJ"))
                if not m.to_engine:
                    found.append(self.use(t.child, what, t.child_bytes, down, " pJ"))
                if self.known and m.drain_rule is None:
                    mesh = share * t.mesh_energy_pj
                    found.append(self.use("mesh", what, t.parent_bytes, mesh, " pJ"))
        for node, above in walk(place.mapping.tree):
            if isinstance(node, Collective):
                size, _, energy = self.exchange(node, above)
                what = f"elements of {node.tensor}"
                found.append(self.use("collectives", what, size, energy, " pJ"))
        return _together(found)


def _units(workload: CompoundOp, machine: Machine, tree: Node) -> dict[str, float]:
    """Factors over units, and the most that each can be."""
    found: dict[str, float] = {}
    for node in (n for n, _ in walk(tree) if isinstance(n, Spatial)):
        level = machine.level(node.level)
        for loops, edge in ((node.x, level.mesh_x), (node.y, level.mesh_y)):
            for x in loops:
                most = min(float(edge), float(workload.sizes[x.dim]))
                found |= dict.fromkeys(x.factors, most)
    return found


def _place(
    workload: CompoundOp,
    machine: Machine,
    plan: tuple[Node, MappingABC[str, str]],
    rules: Conventions,
    units: MappingABC[str, float],
    *,
    whole: bool,
) -> Placement:
    """The tree with what its units leave of each dimension in one innermost step."""
    tree, homes = plan
    factors = {**dict.fromkeys(factor_names(tree), 1.0), **units}
    chains = {
        (factor_chain(tree, c.operation, d), float(workload.sizes[d]))
        for c in computes(tree)
        for d in workload.iteration_dims(workload.operation(c.operation))
    }
    for chain, size in sorted(chains, key=lambda x: (len(x[0]), x)):
        rest = size / math.prod(factors[f] for f in chain)
        if whole:  # partial tiles are padded; of blocks that a mask skips, only the mean is known
            rest = float(math.ceil(rest)) if workload.mask is None else max(1.0, rest)
        for name in [f for f in chain if f not in units and factors[f] == 1.0][-1:]:
            factors[name] = rest
    pairs = tuple(sorted(homes.items()))
    mapping = Mapping(strategy="bound", tree=tree, homes=pairs, factors=factors)
    return Placement(workload, mapping, machine, rules)


def _bound(walked: _Walk) -> Bound:
    """The bound of a tree, from the walk."""
    machine, tree = walked.fast.machine, walked.fast.mapping.tree
    parts = tree.children if isinstance(tree, Group) and tree.binding == "sequential" else (tree,)
    least = [walked.time(part, () if part is tree else (tree,)) for part in parts]
    limits: list[Limit] = []

    def limit(
        name: str, kind: Literal["latency", "energy"], value: float, words: list[str]
    ) -> None:
        if value:
            value *= 1.0 - _ROUNDING
            limits.append(Limit(name=name, kind=kind, value=value, reason="; ".join(words)))

    for key, cycles in _together(use for _, use in least).items():
        name = f"collectives on {key}" if key.endswith(" links") else f"moves of {key}"
        if key in machine.engines:
            matrix = isinstance(machine.engines[key], MatrixEngine)
            name = "matrix compute" if matrix else "vector compute"
        elif key.split()[0] == machine.root.name:
            name = f"compulsory traffic of {key}"
        limit(name, "latency", cycles, walked.terms.get(key, []))
    named = [", ".join(c.operation for c in computes(part)) or "collective" for part in parts]
    words = [f"{what}: {time:,.6g}" for what, (time, _) in zip(named, least, strict=True)]
    limit("one after the other", "latency", sum(time for time, _ in least), words)
    for key, energy in walked.energy().items():
        limit(f"energy of {key}", "energy", energy, walked.terms.get(f"{key} pJ", []))
    return _of(limits)


def _of(limits: Sequence[Limit]) -> Bound:
    return Bound(
        latency_cycles=max((x.value for x in limits if x.kind == "latency"), default=0.0),
        energy_pj=sum(x.value for x in limits if x.kind == "energy"),
        limits=tuple(limits),
    )


def _chosen(bounds: Sequence[Bound], pick: Callable[..., Bound]) -> Bound:
    """The least, or the largest, of several: latency and energy apart."""
    times = pick(bounds, key=lambda b: b.latency_cycles).limits
    energies = pick(bounds, key=lambda b: b.energy_pj).limits
    chosen = [x for x in times if x.kind == "latency"]
    return _of([*chosen, *(x for x in energies if x.kind == "energy")])


def _any_tree(form: CompoundOp, machine: Machine, rules: Conventions) -> Bound:
    """The bound of a tree that is at most as slow as any other."""
    names = [level.name for level in machine.levels]
    loops = tuple(Loop(d, (f"{d}_t",)) for d in form.sizes)
    calls = [
        Compute(o.name, tuple(Loop(d, (f"{d}_comp",)) for d in form.iteration_dims(o)))
        for o in form.operations
    ]
    tree: Node = Group(tuple(Temporal(names[-1], loops, c) for c in calls), "parallel")
    for above, name in [*itertools.pairwise(names)][::-1]:
        x, y = (tuple(Loop(d, (f"{d}_{name}_s{edge}",)) for d in form.sizes) for edge in "xy")
        tree = Temporal(above, loops, Spatial(name, x, y, tree))
    inner = next(m.name for m in machine.memories.values() if m.level == names[-1])
    made = [o.output for o in form.operations if form.is_intermediate(o.output)]
    plan, most = (tree, dict.fromkeys(made, inner)), _units(form, machine, tree)
    fast = _place(form, machine, plan, rules, most, whole=False)
    check(fast)
    lean = _place(form, machine, plan, rules, dict.fromkeys(most, 1.0), whole=False)
    return _bound(_Walk(fast, lean, known=False, any_tree=True))


def _single(workload: CompoundOp, machine: Machine) -> tuple[CompoundOp, Machine]:
    """Both with floats, which run without JAX; ValueError for a batch, or what is traced."""
    for name, value in ((workload.name, workload), (f"machine {machine.name}", machine)):
        for leaf in jax.tree.leaves(value):
            if is_traced(leaf) or np.ndim(leaf):
                raise ValueError(f"{name}: got {leaf!r}; expected single numbers, no batch")
    return jax.tree.map(float, workload), jax.tree.map(float, machine)


def workload_bound(
    workload: CompoundOp, machine: Machine, *, conventions: Conventions = DEFAULT
) -> Bound:
    """A bound for every mapping of a workload by any strategy.

    The largest of: matrix compute, vector compute, the traffic of inputs and outputs over each
    boundary; the sum of the energies. Of the workload and its rewrites, the least counts.

    Args:
      workload: a single shape.
      machine: a single machine.
      conventions: rules of accounting.

    Returns:
      The bound; its limits are those of the form that is the fastest, and of the leanest.

    Raises:
      ValueError: a batch of shapes or machines.
      MappingError: the machine lacks an engine or operation that the workload needs.

    Example:
      >>> from jaxcomet import gemm, hardware
      >>> bound = workload_bound(gemm(512, 512, 512), hardware.load("r2"))
      >>> print(f"{bound.latency_cycles:.0f}: {bound.limiting('latency').reason}")
      131072: 134,217,728 points of gemm at 1,024 a cycle
    """
    workload, machine = _single(workload, machine)
    found: list[Bound] = []
    refused: list[MappingError] = []
    for names in ((), *((name,) for name in REWRITES)):
        try:
            found.append(_any_tree(rewritten(workload, names), machine, conventions))
        except MappingError as error:  # without the pattern, or what the form needs
            refused.append(error)
    if not found:
        raise refused[0]
    return _chosen(found, min)


def tree_bound(
    workload: CompoundOp, machine: Machine, *, conventions: Conventions = DEFAULT
) -> Bound:
    """A bound for every mapping tree of one form of a workload; else as `workload_bound`."""
    return _any_tree(*_single(workload, machine), conventions)


def plan_bound(
    workload: CompoundOp,
    machine: Machine,
    tree: Node,
    homes: MappingABC[str, str],
    *,
    spatial: MappingABC[str, int] | None = None,
    conventions: Conventions = DEFAULT,
    any_tree: Bound | None = None,
) -> Bound:
    """A bound for all factors of one mapping tree; at least that of `workload_bound`.

    Args:
      workload: a single shape, after the rewrites of the tree's strategy.
      machine: a single machine.
      tree: the tree.
      homes: memory of every intermediate that is not handed over in the outermost one.
      spatial: all factors over units, where only those mappings count that have them. Without
        them collectives, replicas and the mesh are free, and a tree whose tiles rotate gets the
        bound of the workload.
      conventions: rules of accounting.
      any_tree: `tree_bound` of the workload, where it is known.

    Returns:
      The bound.

    Raises:
      ValueError: a batch of shapes or machines.
      MappingError: a tree that does not run every operation once, or that the machine cannot run;
        spatial factors that are not those of the tree.

    Example:
      >>> from jaxcomet import gemm_softmax, hardware, strategies
      >>> machine, op = hardware.load("edge"), gemm_softmax(1024, 1024, 256)
      >>> plan = strategies.get("gemm-softmax", "unfused").planned(op, machine)
      >>> bound = plan_bound(op, machine, plan.tree, plan.homes)
      >>> bound.limiting("latency").name, round(bound.latency_cycles)
      ('compulsory traffic of dram', 608502)
    """
    workload, machine = _single(workload, machine)
    run, names = [c.operation for c in computes(tree)], [o.name for o in workload.operations]
    if sorted(run) != sorted(names):
        raise MappingError(f"tree: runs {', '.join(run)}; expected once each: {', '.join(names)}")
    plan = tree, homes
    check(_place(workload, machine, plan, conventions, {}, whole=False))
    least = any_tree or _any_tree(workload, machine, conventions)
    walked = _walked(workload, machine, plan, spatial, conventions)
    return least if walked is None else _chosen([_bound(walked), least], max)


def _walked(
    workload: CompoundOp,
    machine: Machine,
    plan: tuple[Node, MappingABC[str, str]],
    spatial: MappingABC[str, int] | None,
    rules: Conventions,
) -> _Walk | None:
    """The walk of a tree; None where tiles rotate between units whose number is not known."""
    tree = plan[0]
    most = _units(workload, machine, tree)
    if spatial is not None:
        if set(spatial) != set(most) or any(v < 1 for v in spatial.values()):
            got, known = (", ".join(x) or "none" for x in (spatial, most))
            raise MappingError(f"spatial: got {got}; expected numbers >= 1 for all of {known}")
        units = {name: float(v) for name, v in spatial.items()}
        fast = lean = _place(workload, machine, plan, rules, units, whole=True)
    else:
        timed = [x for n, _ in walk(tree) if isinstance(n, Temporal) for x in n.loops]
        if any(f in most for x in timed for f in x.factors):
            return None
        fast = _place(workload, machine, plan, rules, most, whole=False)
        ones = dict.fromkeys(most, 1.0)
        lean = _place(workload, machine, plan, rules, ones, whole=False)
    return _Walk(fast, lean, known=spatial is not None)


def part_bound(
    workload: CompoundOp,
    machine: Machine,
    tree: Node,
    homes: MappingABC[str, str],
    *,
    spatial: MappingABC[str, int] | None,
    conventions: Conventions,
) -> tuple[float, float]:
    """Least cycles of a part of a tree, and least pJ without the moves of the outermost memory.

    Args:
      workload: a single shape, after the rewrites of the tree's strategy.
      machine: a single machine.
      tree: the part, which runs some of the operations.
      homes: as of `plan_bound`.
      spatial: as of `plan_bound`.
      conventions: rules of accounting.
    """
    walked = _walked(workload, machine, (tree, homes), spatial, conventions)
    if walked is None:
        return 0.0, 0.0
    inner = sum(walked.energy(outermost=False).values())
    return _bound(walked).latency_cycles, inner * (1.0 - _ROUNDING)
