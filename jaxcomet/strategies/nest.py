"""Pieces of which strategies build their trees, for machines of any depth.

The one idea: a nest walks from a level down to the engine, one temporal node a level, and spreads
the same dimensions over the units of every level on the way. Factors are named after the dimension,
the level above the step and the slot: ``M_gb_t`` (time), ``N_dram_sx`` (mesh x of the units below
dram), ``K_comp`` (one engine call); a stage that splits a dimension by factors of its own puts its
name in front (``softmax.M_dram_t``). A level with a single unit is not spread over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxcomet.hardware.machine import Level, Machine, MatrixEngine, VectorEngine
from jaxcomet.mapping import (
    Collective,
    CollectiveKind,
    Compute,
    Group,
    Loop,
    MappingError,
    Node,
    Ranks,
    Spatial,
    Temporal,
)
from jaxcomet.workload import CompoundOp, Operation


@dataclass(frozen=True)
class Roles:
    """Loop dimensions of a contraction by what they do; each in order of appearance."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    contracted: tuple[str, ...]


def roles(workload: CompoundOp, operation: Operation) -> Roles:
    """Which dimensions of a contraction are streamed, stationary, contracted, or independent."""
    left, right = (workload.tensor(t).dims for t in operation.inputs)
    out = workload.tensor(operation.output).dims
    dims = workload.iteration_dims(operation)
    return Roles(
        batch=tuple(d for d in dims if d in left and d in right and d in out),
        rows=tuple(d for d in dims if d in left and d in out and d not in right),
        columns=tuple(d for d in dims if d in right and d in out and d not in left),
        contracted=tuple(d for d in dims if d not in out),
    )


def _is_single(level: Level) -> bool:
    """Whether a level is known to have one unit (not where the number is traced or batched)."""
    return all(isinstance(n, float | int) and n == 1 for n in (level.mesh_x, level.mesh_y))


@dataclass(frozen=True)
class Nest:
    """How one stage of a strategy walks down a machine.

    Attributes:
      workload: what is mapped.
      machine: where.
      stage: prefix of the factors' names.
      row: dimension of the rows.
      row_stage: prefix of the rows' factors where they are another stage's; None: as `stage`.
      column: dimension that vector operations reduce.
      spread: dimensions laid over the units, the first ones first.
      outer: further factors of the columns that one core sees, in front of its own.
      algorithm: of the all-reduces; other collectives take ``mesh``, or ``auto`` where that is
        asked for.
      free: contractions are tiled in all their dimensions at every level in time; else, between
        the outermost and the innermost level, in their rows alone.
    """

    workload: CompoundOp
    machine: Machine
    stage: str = ""
    row: str = "M"
    row_stage: str | None = None
    column: str = "N"
    spread: tuple[str, ...] = ("N",)
    outer: tuple[str, ...] = ()
    algorithm: str = "mesh"
    free: bool = False

    # -- names -----------------------------------------------------------------------------------

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """Names of the levels, outermost first."""
        return tuple(level.name for level in self.machine.levels)

    @property
    def last(self) -> int:
        """Index of the innermost level."""
        return len(self.levels) - 1

    @cached_property
    def buffer(self) -> str:
        """Innermost memory of the vector engine; of the matrix engine's results without one."""
        engines = [e for _, e in sorted(self.machine.engines.items())]
        vector = next((e for e in engines if isinstance(e, VectorEngine)), None)
        if vector is not None:
            return vector.result
        return next(e for e in engines if isinstance(e, MatrixEngine)).result

    def memory(self, level: int) -> str:
        """Memory at a level on the way to the buffer."""
        return self.machine.path(self.buffer)[level]

    def spread_at(self, level: int) -> bool:
        """Whether the units of a level are used: not if there is one only."""
        return level > 0 and not _is_single(self.machine.levels[level])

    def dims_at(self, level: int) -> tuple[str, ...]:
        """Dimensions laid over the units of a level; none where there is one unit.

        Where the units have no peer links, partial results could not be combined: the columns stay
        on one unit then, and the rows are spread instead if nothing else is.
        """
        if not self.spread_at(level):
            return ()
        linked = self.machine.memories[self.memory(level)].link_bandwidth_bytes_per_cycle
        if linked is not None:
            return self.spread
        return tuple(d for d in self.spread if d != self.column) or (self.row,)

    def factor(self, dim: str, level: int, slot: str) -> str:
        """Name of a factor."""
        return f"{self._prefix(dim)}{dim}_{self.levels[level]}_{slot}"

    def _prefix(self, dim: str) -> str:
        borrowed = dim == self.row and self.row_stage is not None
        return (self.row_stage or "") if borrowed else self.stage

    def spatial_factors(self, dim: str, level: int) -> tuple[str, str]:
        """Factors of a dimension along x and y of the units of a level."""
        return self.factor(dim, level - 1, "sx"), self.factor(dim, level - 1, "sy")

    def time(self, dim: str, level: int) -> Loop:
        """The loop over one dimension in time at a level."""
        return Loop(dim, (self.factor(dim, level, "t"),))

    def call(self, dim: str) -> str:
        """Factor of a dimension in one engine call."""
        return f"{self._prefix(dim)}{dim}_comp"

    def below(self, dim: str, level: int) -> tuple[str, ...]:
        """Factors of a dimension in time below a level, the call included."""
        steps = tuple(
            self.factor(dim, i, "t")
            for i in range(level + 1, self.last + 1)
            if i == self.last or dim == self.row or self.free
        )
        return (*steps, self.call(dim))

    def over(self, dim: str, level: int) -> tuple[str, ...]:
        """Factors of a dimension over the units of all levels below a level."""
        return tuple(
            f
            for i in range(level + 1, self.last + 1)
            if dim in self.dims_at(i)
            for f in self.spatial_factors(dim, i)
        )

    def inside(self, dim: str) -> tuple[str, ...]:
        """All factors of a dimension below the outermost level, those over units included."""
        return (*self.over(dim, 0), *self.below(dim, 0))

    # -- nodes -----------------------------------------------------------------------------------

    def over_units(self, level: int, body: Node) -> Node:
        """The spread dimensions over the units of a level; just the body where there is one."""
        dims = self.dims_at(level)
        if not dims:
            return body
        names = {d: self.spatial_factors(d, level) for d in dims}
        x = tuple(Loop(d, (names[d][0],)) for d in dims)
        y = tuple(Loop(d, (names[d][1],)) for d in dims)
        return Spatial(self.levels[level], x, y, body)

    def matrix_core(self, operation: Operation) -> Node:
        """A contraction on one core: columns, contracted dimension, rows innermost."""
        found = roles(self.workload, operation)
        order = (*found.columns, *found.contracted, *found.rows)
        call = (*found.rows, *found.contracted, *found.columns)
        return Temporal(
            self.levels[-1],
            tuple(self.time(d, self.last) for d in order),
            Compute(operation.name, tuple(Loop(d, (self.call(d),)) for d in call)),
        )

    def vector_core(self, operation: Operation) -> Node:
        """A vector operation on one core.

        One row of a call's columns at a time, rows innermost; what has no columns is one call.
        """
        rows = self.below(self.row, self.last - 1)
        dims = self.workload.iteration_dims(operation)
        columns = [d for d in dims if d != self.row and d not in self.batch]
        if not columns:
            return Temporal(self.levels[-1], (), Compute(operation.name, (Loop(self.row, rows),)))
        (column,) = columns
        steps = self.below(column, 0)[:-1]
        if column == self.column:
            steps = (*self.outer, *steps)
        inner = (Loop(self.row, rows),) if self.row in dims else ()
        return Temporal(
            self.levels[-1],
            (Loop(column, steps), *inner),
            Compute(operation.name, (Loop(column, (self.call(column),)),)),
        )

    @property
    def batch(self) -> tuple[str, ...]:
        """Dimensions that every tensor of every contraction has: independent problems."""
        found = [
            roles(self.workload, o).batch for o in self.workload.operations if o.kind == "contract"
        ]
        return found[0]

    def core(self, operation: Operation) -> Node:
        """An operation on one core."""
        if operation.kind == "contract":
            return self.matrix_core(operation)
        return self.vector_core(operation)

    def steps(self, level: int, operation: Operation | None = None) -> tuple[Loop, ...]:
        """Loops in time of a level between the outermost and the innermost one."""
        if not self.free or operation is None or operation.kind != "contract":
            return (self.time(self.row, level),)
        found = roles(self.workload, operation)
        order = (*found.columns, *found.contracted, *found.rows)
        return tuple(self.time(d, level) for d in order)

    def down(
        self, operation: Operation, level: int, function: str | None = None
    ) -> tuple[Node, ...]:
        """Nodes that run an operation below a temporal node of a level.

        Args:
          operation: the operation.
          level: the level whose temporal node is above.
          function: where the columns are spread: combines partial results between the units of
            each level further down.
        """
        if level == self.last:
            return (self.core(operation),)
        under = level + 1
        if under == self.last:
            body = self.core(operation)
        else:
            body = Temporal(
                self.levels[under],
                self.steps(under, operation),
                _group(self.down(operation, under, function)),
            )
        nodes: list[Node] = [self.over_units(under, body)]
        if function is not None and self.reduces_at(operation, under):
            nodes.append(
                self.combine("all_reduce", operation.output, function, under, implied=True)
            )
        return tuple(nodes)

    def reduces_at(self, operation: Operation, level: int) -> bool:
        """Whether partial results of an operation lie on several units of a level."""
        out = self.workload.tensor(operation.output).dims
        dims = self.workload.iteration_dims(operation)
        return any(d in dims and d not in out for d in self.dims_at(level))

    def reduces(self, operation: Operation) -> bool:
        """Whether partial results of an operation lie on several units of some level."""
        return any(self.reduces_at(operation, i) for i in range(1, self.last + 1))

    def combine(
        self,
        kind: CollectiveKind,
        tensor: str,
        function: str | None,
        level: int,
        *,
        implied: bool = False,
        part: tuple[Loop, ...] | None = None,
    ) -> Collective:
        """A collective on a tensor between the units of a level, along the columns' factors."""
        x, y = self.spatial_factors(self.column, level)
        algorithm = self.algorithm
        if kind != "all_reduce" and algorithm != "auto":
            algorithm = "mesh"
        if part is None:
            part = self.part(tensor, level)
        return Collective(
            kind,
            tensor,
            self.memory(level),
            (x,),
            (y,),
            part,
            function,
            implied,
            algorithm,
            groups=() if level == 1 else self.beside(level),
        )

    def beside(self, level: int) -> tuple[str, ...]:
        """Factors over the units of a level of what is spread there besides the columns."""
        dims = [d for d in self.dims_at(level) if d != self.column]
        return tuple(f for d in dims for f in self.spatial_factors(d, level))

    def part(self, tensor: str, level: int) -> tuple[Loop, ...]:
        """What a memory of a level holds of a tensor during one step of the level above it."""
        above = min(max(level - 1, 1), self.last - 1)
        found: list[Loop] = []
        for d in self.workload.tensor(tensor).dims:
            steps = () if d in self.batch else self.below(d, above if d == self.row else 0)
            factors = (*self.over(d, level), *steps)
            if factors:
                found.append(Loop(d, factors))
        return tuple(found)

    def combine_all(self, kind: CollectiveKind, tensor: str, function: str) -> Collective:
        """A collective between all cores along the columns' factors, held in the buffers."""
        levels = [i for i in range(1, self.last + 1) if self.column in self.dims_at(i)]
        names = [self.spatial_factors(self.column, i) for i in levels]
        return Collective(
            kind,
            tensor,
            self.buffer,
            tuple(x for x, _ in names),
            tuple(y for _, y in names),
            self.part(tensor, self.last),
            function,
            algorithm="auto" if self.algorithm == "auto" else "mesh",
            groups=tuple(f for i in levels if i > 1 for f in self.beside(i)),
        )

    def hierarchical(self, tensor: str, function: str) -> Collective:
        """One all-reduce over all levels, held in the buffers."""
        levels = [i for i in range(self.last, 0, -1) if self.column in self.dims_at(i)]
        first, *further = levels
        x, y = self.spatial_factors(self.column, first)
        outer = tuple(
            Ranks(self.memory(i), *((name,) for name in self.spatial_factors(self.column, i)))
            for i in further
        )
        part = self.part(tensor, first)
        return Collective(
            "all_reduce",
            tensor,
            self.memory(first),
            (x,),
            (y,),
            part,
            function,
            algorithm="hierarchical",
            outer=outer,
            groups=tuple(f for i in levels if i > 1 for f in self.beside(i)),
        )

    def loop(self, body: Sequence[Node], operation: Operation | None = None) -> tuple[Node, ...]:
        """Nodes under one loop of the level below the outermost; as they are without one.

        Over the rows; for a contraction that is tiled freely, over all its dimensions.
        """
        if self.last == 1:
            return tuple(body)
        nodes = tuple(body)
        alone = len(nodes) == 1 and isinstance(nodes[0], Collective | Spatial)
        inside = nodes[0] if alone else Group(nodes)
        return (Temporal(self.levels[1], self.steps(1, operation), inside),)


def _group(nodes: tuple[Node, ...]) -> Node:
    return nodes[0] if len(nodes) == 1 else Group(nodes)


def require_engines(machine: Machine, what: str, *, vector: bool) -> None:
    """Refuses a machine that lacks an engine.

    Raises:
      MappingError: it has no matrix engine, or no vector engine though one is needed.
    """
    engines = machine.engines.values()
    if not any(isinstance(e, MatrixEngine) for e in engines):
        raise MappingError(f"machine {machine.name}: has no matrix engine, which {what} needs")
    if vector and not any(isinstance(e, VectorEngine) for e in engines):
        raise MappingError(f"machine {machine.name}: has no vector engine, which {what} needs")
