"""Placement: which tensor moves between which memories at which node of a mapping.

The one idea: a tensor with a home at level h moves through every level from h down to the engine.
Each temporal node owns the moves between its level and the next one, for the operations below it.
Everything here is static structure, resolved while tracing; the numbers come from the factors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jaxcomet.arith import Number, at_least_two, ceil, is_one, per, product, refetch, reuse
from jaxcomet.cost.conventions import Conventions
from jaxcomet.cost.masking import mean_steps
from jaxcomet.cost.router import RouterPower, router_power
from jaxcomet.hardware.machine import Machine, MatrixEngine, Memory, VectorEngine
from jaxcomet.mapping import (
    Collective,
    Compute,
    Group,
    Loop,
    Mapping,
    Node,
    Spatial,
    Temporal,
    loops_of,
    walk,
)
from jaxcomet.workload import CompoundOp, Operation

Direction = Literal["fill", "drain"]


@dataclass(frozen=True)
class Site:
    """An engine call and its place in the tree."""

    compute: Compute
    operation: Operation
    above: tuple[Node, ...]


@dataclass(frozen=True)
class Move:
    """A tensor's tile that moves between a level and the one below, at one temporal node.

    Attributes:
      tensor: its name.
      direction: ``fill`` (down) or ``drain`` (up).
      parent: memory above.
      child: memory or engine below.
      to_engine: whether the child is an engine.
      bits: bits per element on the way.
      dependent: handed over inside a fused group, so that no computing can hide it.
      drain_rule: for a result that is read where it was made: how the convention writes it up; else
        None.
      site: the engine call whose tile sizes count.
      node: the temporal node.
      above: the node's ancestors.
    """

    tensor: str
    direction: Direction
    parent: str
    child: str
    to_engine: bool
    bits: int
    dependent: bool
    drain_rule: str | None
    site: Site
    node: Temporal
    above: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How the children of one memory share a tensor's tiles.

    Attributes:
      distinct: different tiles among the children.
      duplicates: children that hold the same tile.
      x: children along mesh x.
      y: children along mesh y.
    """

    distinct: Number
    duplicates: Number
    x: Number
    y: Number


@dataclass(frozen=True)
class Placement:
    """The resolved structure of one mapping on one machine."""

    workload: CompoundOp
    mapping: Mapping
    machine: Machine
    conventions: Conventions

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Engine calls in order."""
        return tuple(
            Site(node, self.workload.operation(node.operation), above)
            for node, above in walk(self.mapping.tree)
            if isinstance(node, Compute)
        )

    @cached_property
    def parts(self) -> tuple[tuple[Site, ...], ...]:
        """Engine calls by part of the tree that runs apart: the children of a group at the top."""
        tree = self.mapping.tree
        if not (isinstance(tree, Group) and tree.binding == "sequential"):
            return (self.sites,)
        return tuple(p for p in (self.sites_below(c) for c in tree.children) if p)

    @cached_property
    def temporals(self) -> tuple[tuple[Temporal, tuple[Node, ...]], ...]:
        """Temporal nodes with their ancestors."""
        return tuple((n, a) for n, a in walk(self.mapping.tree) if isinstance(n, Temporal))

    @property
    def root(self) -> str:
        """Name of the outermost memory."""
        return self.machine.root.name

    def sites_below(self, node: Node) -> tuple[Site, ...]:
        """Engine calls below a node, or the node itself."""
        return tuple(s for s in self.sites if any(x is node for x in (*s.above, s.compute)))

    def steps(self, loop: Loop) -> Number:
        """Number of steps of a loop; where a mask lets it skip some, their mean."""
        if loop.masked is not None and loop in self._mean_steps:
            return self._mean_steps[loop]
        return self.count(loop.factors)

    @cached_property
    def _mean_steps(self) -> dict[Loop, Number]:
        """Steps of the loops that skip what the workload's mask hides."""
        mask, sizes = self.workload.mask, self.workload.sizes
        if mask is None:
            return {}
        found: dict[Loop, Number] = {}
        for node, _ in walk(self.mapping.tree):
            for loop in node.loops if isinstance(node, Temporal) else ():
                if loop.masked is not None and loop not in found:
                    found[loop] = mean_steps(
                        mask,
                        self.count(loop.masked.rows),
                        self.count(loop.masked.columns),
                        all_rows=sizes[mask.rows],
                        all_columns=sizes[mask.columns],
                    )
        return found

    def visited(self, dims: Sequence[str], loops: Sequence[Loop]) -> Number:
        """Share of the tiles along some dimensions that loops visit: less than 1 under a mask."""
        skipping = [x for x in loops if x.dim in dims and x in self._mean_steps]
        return product([self.steps(x) / self.count(x.factors) for x in skipping])

    def work(self, site: Site) -> Number:
        """Points of its iteration space that an operation computes over the whole run.

        More than the workload's where running values are updated block by block, or where several
        units compute the same; fewer where a mask lets blocks be skipped.
        """
        dims = self.workload.iteration_dims(site.operation)
        loops = [x for a in site.above for x in loops_of(a)]
        again = [self.steps(x) for x in loops if x.dim not in dims]
        points = self.workload.points(site.operation)
        return product([points, *again, self.visited(dims, loops)])

    @cached_property
    def _counts(self) -> dict[tuple[str, ...], Number]:
        return {}

    def count(self, factors: Sequence[str]) -> Number:
        """Product of factors by name; computed once, since a batch of them is large."""
        names = tuple(factors)
        if names not in self._counts:
            self._counts[names] = product([self.mapping.factors[f] for f in names])
        return self._counts[names]

    @cached_property
    def _routers(self) -> dict[str, RouterPower]:
        return {}

    def router(self, memory: Memory) -> RouterPower | None:
        """Power of the routers between a memory's instances; None where none are modelled."""
        technology, network = self.machine.router, memory.network
        if technology is None or network is None:
            return None
        if memory.name not in self._routers:
            power = router_power(technology, network.channel_width_bits, self.conventions)
            self._routers[memory.name] = power
        return self._routers[memory.name]

    @cached_property
    def matrix_engine(self) -> MatrixEngine | None:
        """The machine's first matrix engine by name."""
        engines = [e for _, e in sorted(self.machine.engines.items())]
        return next((e for e in engines if isinstance(e, MatrixEngine)), None)

    @cached_property
    def vector_engine(self) -> VectorEngine | None:
        """The machine's first vector engine by name."""
        engines = [e for _, e in sorted(self.machine.engines.items())]
        return next((e for e in engines if isinstance(e, VectorEngine)), None)

    def engine(self, operation: Operation) -> MatrixEngine | VectorEngine:
        """The engine of an operation: the matrix engine for contractions, else the vector one."""
        engine = self.matrix_engine if operation.kind == "contract" else self.vector_engine
        assert engine is not None  # see `check`
        return engine

    def buffer(self, operation: Operation, tensor: str) -> str:
        """Innermost memory of a tensor for an operation."""
        engine = self.engine(operation)
        if tensor == operation.output:
            return engine.result
        index = operation.inputs.index(tensor) if isinstance(engine, MatrixEngine) else 0
        return engine.operands[min(index, len(engine.operands) - 1)]

    def memory_at(self, operation: Operation, tensor: str, level: int) -> Memory:
        """Memory at a level on the way of a tensor to an operation."""
        return self.machine.memories[self.machine.path(self.buffer(operation, tensor))[level]]

    def home_level(self, tensor: str) -> int:
        """Level of a tensor's home memory."""
        memory = self.machine.memories[self.mapping.home(tensor, self.root)]
        return self.machine.level_index(memory.level)

    def owner(self, site: Site, tensor: str, level: int) -> Temporal | None:
        """The node at which a tensor's tiles move on to an engine call from a level or above."""
        nodes = [
            x
            for x in site.above
            if isinstance(x, Temporal)
            and self.machine.level_index(x.level) <= level
            and x.moves(tensor)
        ]
        return nodes[-1] if nodes else None

    def moves(self, node: Temporal, above: tuple[Node, ...]) -> tuple[Move, ...]:
        """The moves that a temporal node owns, each tensor once per direction and child."""
        level = self.machine.level_index(node.level)
        found: dict[tuple[str, Direction, str], Move] = {}
        for site in self.sites_below(node):
            op = site.operation
            ways: list[tuple[str, Direction]] = [(t, "fill") for t in op.inputs]
            ways.append((op.output, "drain"))
            for tensor, direction in ways:
                if self.owner(site, tensor, level) is not node:
                    continue
                home = self.home_level(tensor)
                rule = None
                if home > level:
                    if direction == "drain":
                        rule = self.drain_rule(site, tensor, level, home)
                    if rule is None:
                        continue
                path = self.machine.path(self.buffer(op, tensor))
                to_engine = level + 1 >= len(path)
                child = self.engine(op).name if to_engine else path[level + 1]
                key = (tensor, direction, child)
                if key in found:
                    continue
                intermediate = self.workload.is_intermediate(tensor)
                found[key] = Move(
                    tensor=tensor,
                    direction=direction,
                    parent=path[level],
                    child=child,
                    to_engine=to_engine,
                    bits=self.workload.tensor(tensor).bits
                    if level == 0 and not to_engine
                    else op.bits,
                    dependent=intermediate and home > 0 and not to_engine,
                    drain_rule=rule,
                    site=site,
                    node=node,
                    above=above,
                )
        return tuple(found.values())

    def drain_rule(self, site: Site, tensor: str, level: int, home: int) -> str | None:
        """How the convention writes up a result that another branch reads where it was made."""
        rule = self.conventions.intermediate_drain
        if rule == "never" or tensor != site.operation.output or level != home - 1 or level == 0:
            return None
        if site.operation.kind != "contract" or not self.workload.is_intermediate(tensor):
            return None
        here = self.branch(site, level)
        consumers = [s for s in self.sites if tensor in s.operation.inputs]
        return rule if any(self.branch(s, level) is not here for s in consumers) else None

    def branch(self, site: Site, level: int) -> Node | None:
        """The innermost temporal node of a level above an engine call; None where it has none."""
        name = self.machine.levels[level].name
        nodes = [x for x in site.above if isinstance(x, Temporal) and x.level == name]
        return nodes[-1] if nodes else None

    # -- numbers ---------------------------------------------------------------------------------

    def relevant(self, tensor: str, loop: Loop) -> bool:
        """Whether a tensor's tile changes along a loop."""
        return loop.dim in self.workload.tensor(tensor).dims

    def tile(
        self, tensor: str, site: Site, below: Node, without_level: int | None
    ) -> dict[str, Number]:
        """Extent of a tensor's tile, by dimension, from the loops below a node.

        Args:
          tensor: the tensor.
          site: the engine call on whose path the loops lie.
          below: the node whose descendants count.
          without_level: spatial loops over units of this level, or of one above it, are left out
            (the tile of one unit), and so are loops in which tiles rotate between these units;
            None: all count.
        """
        start = next(i for i, x in enumerate(site.above) if x is below) + 1
        extents: dict[str, Number] = dict.fromkeys(self.workload.tensor(tensor).dims, 1.0)
        for node in (*site.above[start:], site.compute):
            shared = isinstance(node, Spatial) or (
                isinstance(node, Temporal) and tensor in node.rotates
            )
            if shared and without_level is not None:
                assert isinstance(node, Spatial | Temporal)
                if self.machine.level_index(node.level) <= without_level:
                    continue
            for loop in loops_of(node):
                if loop.dim in extents:
                    extents[loop.dim] = product([extents[loop.dim], self.count(loop.factors)])
        return extents

    def child_tile(self, move: Move) -> Number:
        """Elements of the tile of one child."""
        level = self.machine.level_index(move.node.level)
        return product(list(self.tile(move.tensor, move.site, move.node, level + 1).values()))

    def spread(self, move: Move) -> Spread:
        """How one parent's children share a tensor's tiles."""
        level = self.machine.level_index(move.node.level)
        distinct: list[Number] = []
        duplicates: list[Number] = []
        along_x: list[Number] = []
        along_y: list[Number] = []
        start = next(i for i, x in enumerate(move.site.above) if x is move.node) + 1
        below = move.site.above[start:]
        rotates = any(
            isinstance(n, Temporal)
            and move.tensor in n.rotates
            and self.machine.level_index(n.level) == level + 1
            for n in below
        )
        for node in below:
            if isinstance(node, Spatial) and self.machine.level_index(node.level) == level + 1:
                for loops, along in ((node.x, along_x), (node.y, along_y)):
                    for loop in loops:
                        along.append(self.steps(loop))
                        own = rotates or self.relevant(move.tensor, loop)
                        (distinct if own else duplicates).append(self.steps(loop))
        return Spread(
            distinct=product(distinct),
            duplicates=product(duplicates),
            x=product(along_x),
            y=product(along_y),
        )

    def nest_above(self, above: tuple[Node, ...]) -> list[Loop]:
        """Temporal loops of ancestors, innermost first."""
        return [x for a in reversed(above) if isinstance(a, Temporal) for x in reversed(a.loops)]

    def transitions(self, tensor: str, loops: Sequence[Loop]) -> tuple[Number, Number, Number]:
        """(steps, moves, reuse) of a tile in loops given innermost first; steps = moves x reuse."""
        nest = self._nest(tensor, loops)
        steps = product([self.steps(x) for x in loops])
        if not any(relevant for _, relevant in nest):
            return steps, 1.0, steps
        moves = product([self.distinct_tiles(tensor, loops), refetch(nest)])
        return steps, moves, reuse(nest)

    def _nest(self, tensor: str, loops: Sequence[Loop]) -> list[tuple[Number, bool]]:
        """(steps, whether the tensor depends on the loop) of loops.

        Of a loop that it depends on, only whether there are several steps matters: masked ones
        count.
        """
        return [
            (self.count(x.factors), True) if self.relevant(tensor, x) else (self.steps(x), False)
            for x in loops
        ]

    def refetch(self, tensor: str, loops: Sequence[Loop]) -> Number:
        """How often each distinct tile of a tensor moves in loops given innermost first."""
        return refetch(self._nest(tensor, loops))

    def delivered_again(self, move: Move) -> bool:
        """Whether an engine without weight registers reads its weights for every streamed row."""
        engine = self.machine.engines.get(move.child)
        bare = isinstance(engine, MatrixEngine) and not engine.weight_registers
        return bare and self._loads_weights(move)

    def _loads_weights(self, move: Move) -> bool:
        """Whether a move to a matrix engine brings what stays in its array."""
        return move.direction == "fill" and move.tensor == move.site.operation.inputs[1]

    def kept(self, move: Move) -> Number:
        """1 where a tile that the next step needs again is still there, 0 where it is not.

        Memories keep it, and so do systolic arrays; a broadcast array keeps weights if it has
        registers for them, and nothing else. Of a call of several folds, an array has the weights
        of the last one only.
        """
        engine = self.machine.engines.get(move.child)
        if not isinstance(engine, MatrixEngine):
            return 1.0
        if self._loads_weights(move):
            if not engine.weight_registers:
                return 0.0
            if self.conventions.weight_folds == "kept":
                return 1.0
            return is_one(product(list(self._folds(move.site, engine))))
        return 1.0 if engine.array == "systolic" else 0.0

    def _folds(self, site: Site, engine: MatrixEngine) -> tuple[Number, Number]:
        """Folds of one engine call: along the contracted dimension, along the columns."""
        op, workload = site.operation, self.workload
        left, right = (workload.tensor(t).dims for t in op.inputs)
        out = workload.tensor(op.output).dims
        contracted = [x for x in site.compute.tile if x.dim in left and x.dim not in out]
        columns = [x for x in site.compute.tile if x.dim in right and x.dim not in left]
        return (
            ceil(
                per(
                    product([self.steps(x) for x in contracted]),
                    engine.grid_rows * engine.array_rows,
                )
            ),
            ceil(
                per(
                    product([self.steps(x) for x in columns]),
                    engine.grid_columns * engine.array_columns,
                )
            ),
        )

    def passes(self, move: Move) -> Number:
        """How often a tile passes between a buffer and a broadcast array in one engine call.

        The array keeps nothing between the folds of a call: rows stream again for each fold of the
        columns, partial sums leave after each fold of the contracted dimension.
        """
        engine = self.machine.engines.get(move.child)
        if not isinstance(engine, MatrixEngine) or engine.array == "systolic":
            return 1.0
        contracted, columns = self._folds(move.site, engine)
        if move.direction == "drain":
            return contracted
        return columns if move.tensor == move.site.operation.inputs[0] else 1.0

    def moves_in(self, move: Move, loops: Sequence[Loop]) -> tuple[Number, Number, Number]:
        """(steps, moves, reuse) of a move in the loops of its node, innermost first."""
        kept = self.kept(move)
        if isinstance(kept, float) and kept == 0.0:
            steps = product([self.steps(x) for x in loops])
            return steps, steps, 1.0
        steps, moves, factor = self.transitions(move.tensor, loops)
        if isinstance(kept, float) or (isinstance(factor, float) and factor == 1.0):
            return steps, moves, factor
        moves = steps - kept * (steps - moves)
        return steps, moves, steps / moves

    def elements_moved(self, move: Move) -> tuple[Number, Number]:
        """(elements that move over the whole run, how often each distinct one does).

        Equal tiles of several units below one parent count once, those below several parents for
        each.
        """
        elements = self.workload.elements(move.tensor)
        if self.delivered_again(move):
            reads = self.work(move.site)
            return reads, reads / elements
        _, again = self.whole_run(move)
        replicas = self.units(move.above, skip_relevant_to=move.tensor)
        inner, outer = self._loops_by_home(move)
        dims = self.workload.tensor(move.tensor).dims
        share = self.visited(dims, [*inner, *outer])
        return product([elements, again, replicas, share]), product([again, share])

    def whole_run(self, move: Move) -> tuple[Number, Number]:
        """(moves over the whole run, moves of each distinct tile)."""
        inner, outer = self._loops_by_home(move)
        kept = self.kept(move)
        again = self.refetch(move.tensor, inner)
        if not (isinstance(kept, float) and kept == 1.0):
            each = product([self.steps(x) for x in inner if not self.relevant(move.tensor, x)])
            again = each - kept * (each - again)
        again = product([again, self.passes(move)])
        repeats = [self.steps(x) for x in outer if not self.relevant(move.tensor, x)]
        refetch = product([again, *repeats])
        return product([self.distinct_tiles(move.tensor, [*inner, *outer]), refetch]), refetch

    def continued_runs(self, move: Move) -> Number:
        """Runs of a move's node that begin with a result that an earlier run left unfinished."""
        inner, outer = self._loops_by_home(move)
        nest = self._nest(move.tensor, inner)
        own = len(move.node.loops)
        kept = reuse(nest, beyond=own)
        runs = product([self.steps(x) for x in self.nest_above(move.above)])
        return runs / kept - self.distinct_tiles(move.tensor, [*inner[own:], *outer])

    def _loops_by_home(self, move: Move) -> tuple[list[Loop], list[Loop]]:
        """Loops around a move at its tensor's home or below, and those above, innermost first."""
        home = self.home_level(move.tensor)
        inner, outer = list(reversed(move.node.loops)), []
        for node in reversed(move.above):
            if isinstance(node, Temporal):
                # a value made inside the group is new in each step of the levels above its home
                above_home = self.machine.level_index(node.level) < home
                (outer if above_home else inner).extend(reversed(node.loops))
        return inner, outer

    def partial_share(self, move: Move) -> Number:
        """Share of a result's moves that first read back an earlier partial result."""
        kind, rules = move.site.operation.kind, self.conventions
        charged = (kind == "contract" and rules.partial_sums == "read-and-written") or (
            kind == "reduce" and rules.row_partials == "combined"
        )
        charged = charged or (kind == "contract" and rules.partial_sums == "first-read-too")
        if move.direction == "fill" or not charged:
            return 0.0
        return self.read_back(move, 1.0)

    def read_back(self, move: Move, moved: Number) -> Number:
        """What is read back of partial results of which `moved` is written: all but the first.

        Whole where `moved` is.
        """
        again = self.whole_run(move)[1]
        kind, rule = move.site.operation.kind, self.conventions.partial_sums
        if kind == "contract" and rule == "first-read-too":
            return moved * at_least_two(again)
        return moved - moved / again

    def distinct_tiles(self, tensor: str, loops: Sequence[Loop]) -> Number:
        """Number of different tiles of a tensor in loops."""
        return product([self.steps(x) for x in loops if self.relevant(tensor, x)])

    def units(self, above: Sequence[Node], *, skip_relevant_to: str | None = None) -> Number:
        """Units that run a node: the product of the spatial loops above it.

        Loops that the tensor `skip_relevant_to` depends on are left out.
        """
        factors: list[Number] = []
        for node in above:
            if isinstance(node, Spatial):
                for loop in (*node.x, *node.y):
                    if skip_relevant_to is None or not self.relevant(skip_relevant_to, loop):
                        factors.append(self.steps(loop))
        return product(factors)

    def charged(self, collective: Collective) -> bool:
        """Whether the convention charges a collective."""
        return not (collective.implied and self.conventions.partial_reductions == "free")

    def already_reduced(self, move: Move) -> bool:
        """Whether equal tiles of several children are one result, of which one copy is drained.

        A collective has combined them, or each child has made the same of the same operands.
        """
        if move.direction == "drain" and move.site.operation.kind == "map":
            return True
        return any(
            isinstance(n, Collective)
            and n.kind in ("all_reduce", "reduce")
            and n.tensor == move.tensor
            and move.child in (n.memory, *(r.memory for r in n.outer))
            and self.charged(n)
            for n, _ in walk(move.node)
        )
