"""A GEMM and the row-wise normalization after it, as mapping trees.

All step through the rows M in time and spread the columns N over the units (row granularity, as the
authors' released mapping does: d-matrix-ai/comet 917af0d, test/iterative_mapper/mapping.yaml). They
differ in what is fused and where the normalization runs:

* `unfused`: each elementary operation reads from and writes to the outermost memory.
* `fused_dist`: the GEMM runs apart; the vector operations are fused, on all cores, with
  all-reduces.
* `fused_gemm_one`: all fused; a gather brings each row block to one core's vector unit.
* `fused_gemm_dist`: all fused, the vector operations on all cores; the mapping that was
  released.

Nothing here knows a softmax from a LayerNorm: what is reduced is read off the operations.
docs/gemm-softmax.md and docs/gemm-layernorm.md give each tree with the reason for every choice.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, cast

from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Collective, Group, Loop, Node, Temporal
from jaxcomet.strategies.nest import Nest, require_engines
from jaxcomet.strategies.strategy import Plan
from jaxcomet.workload import CompoundOp, Operation

Binding = Literal["sequential", "pipelined"]

TILING = {"tiling": ("rows", "free")}
REDUCE = {"reduce": ("rows", "tile")}
FUSED = {"weights": ("resident", "streamed"), "binding": ("sequential", "pipelined")}
ALGORITHM = {
    "algorithm": (
        "mesh",
        "auto",
        "ring",
        "bidirectional-ring",
        "tree",
        "halving-doubling",
        "recursive-doubling",
        "direct",
        "one-shot",
        "hierarchical",
    )
}

GATHER = {"algorithm": ("mesh", "auto", "ring", "tree", "direct")}


def split(workload: CompoundOp) -> tuple[Operation, tuple[Operation, ...]]:
    """The first contraction and the vector operations after it, up to the next contraction."""
    operations = workload.operations
    first = next(i for i, o in enumerate(operations) if o.kind == "contract")
    after = operations[first + 1 :]
    end = next((i for i, o in enumerate(after) if o.kind == "contract"), len(after))
    return operations[first], after[:end]


def outer_loops(nest: Nest, *dims: str) -> tuple[Loop, ...]:
    """Loops of the outermost level: the independent problems, then the dimensions given."""
    return tuple(nest.time(d, 0) for d in (*nest.batch, *dims))


def matrix_branch(nest: Nest, operation: Operation) -> Node:
    """A contraction below the units of the first level."""
    if nest.last == 1:
        return nest.core(operation)
    (node,) = nest.loop(nest.down(operation, 1), operation)
    return node


def matrix_stage(nest: Nest, operation: Operation, order: str = "NMK") -> Node:
    """A contraction that reads and writes the outermost memory, which loops over `order`.

    A dimension that comes a second time is split once more, further in: of the tensor that has it
    and the dimension before, one slice after the other arrives, while the others stay.
    """
    inside = nest.over_units(1, matrix_branch(nest, operation))
    if order[-1] in order[:-1]:
        last, sliced = order[-2:]
        names = (*operation.inputs, operation.output)
        slices = Loop(sliced, (nest.factor(sliced, 0, "slices"),))
        streams = [t for t in names if {last, sliced} <= {*nest.workload.tensor(t).dims}]
        inside = Temporal(nest.levels[0], (slices,), inside, streams=tuple(streams))
        order = order[:-1]
    return Temporal(nest.levels[0], outer_loops(nest, *order), inside)


def vector_stage(nest: Nest, operation: Operation, *, columns: bool) -> Node:
    """A vector operation that reads and writes the outermost memory.

    Which loops over the rows and, inside them, over the `columns` if asked for, so that a row
    result stays until it is whole.
    """
    inside = list(nest.loop(nest.down(operation, min(1, nest.last), operation.function)))
    if nest.reduces_at(operation, 1):
        across = nest.combine("all_reduce", operation.output, operation.function, 1)
        inside += nest.loop((across,))
    body = nest.over_units(1, inside[0] if len(inside) == 1 else Group(tuple(inside)))
    dims = nest.workload.iteration_dims(operation)
    inner = [d for d in dims if columns and d != nest.row and d not in nest.batch]
    return Temporal(nest.levels[0], outer_loops(nest, nest.row, *inner), body)


def unfused_vector(nest: Nest, rows: Nest, operations: Sequence[Operation]) -> list[Node]:
    """Each vector operation as a stage; what has no columns is spread over the rows."""
    # what units have combined once they must not add up again: then a row is one step
    columns = not any(nest.reduces(o) for o in operations)
    found: list[Node] = []
    for o in operations:
        whole_rows = nest.column in nest.workload.iteration_dims(o)
        found.append(vector_stage(nest if whole_rows else rows, o, columns=columns))
    return found


def dist_branches(
    nest: Nest, operations: Sequence[Operation], reduce: str = "rows"
) -> tuple[list[Node], dict[str, str]]:
    """Branches of a normalization on all cores, and the homes of what passes between them."""
    if reduce == "tile":
        return _tile_branches(nest, operations)
    homes = {o.output: nest.buffer for o in operations if nest.workload.is_intermediate(o.output)}
    reductions = [o for o in operations if nest.reduces(o)]
    for o in reductions:
        homes[o.output] = nest.memory(1)
        if nest.algorithm == "hierarchical":
            spread = [i for i in range(1, nest.last + 1) if nest.reduces_at(o, i)]
            homes[o.output] = nest.memory(spread[-1])

    def nodes(several: Sequence[Operation]) -> list[Node]:
        found: list[Node] = []
        for o in several:
            function = None if nest.algorithm == "hierarchical" else o.function
            found += nest.down(o, min(1, nest.last), function)
        return found

    def across(operation: Operation) -> tuple[Collective, ...]:
        if not nest.reduces(operation):
            return ()
        if nest.algorithm == "hierarchical":
            return (nest.hierarchical(operation.output, operation.function),)
        if not nest.reduces_at(operation, 1):
            return ()
        return (nest.combine("all_reduce", operation.output, operation.function, 1),)

    if not reductions:
        return list(nest.loop(nodes(operations))), homes
    # the first reduction, its exchange, and then one loop over all the rest, so that the result's
    # way out hides behind the next step and what is made there stays for one step only
    first = operations.index(reductions[0]) + 1
    branches = list(nest.loop(nodes(operations[:first])))
    for exchange in across(reductions[0]):
        branches += nest.loop((exchange,))
    rest: list[Node] = []
    for o in operations[first:]:
        rest += nodes((o,))
        rest += across(o)
    return [*branches, *nest.loop(rest)], homes


def _tile_branches(
    nest: Nest, operations: Sequence[Operation]
) -> tuple[list[Node], dict[str, str]]:
    """As the authors' program: what the second sum adds up is exchanged whole, before it."""
    first, second = (o for o in operations if o.kind == "reduce")
    summed = second.inputs[0]
    at = operations.index(second)
    columns = (*nest.outer, *nest.over(nest.column, 1), *nest.below(nest.column, 0))
    part = (
        Loop(nest.row, nest.below(nest.row, min(1, nest.last - 1))),
        Loop(nest.column, columns),
    )

    def branch(several: Sequence[Operation]) -> tuple[Node, ...]:
        nodes = [n for o in several for n in nest.down(o, min(1, nest.last), o.function)]
        return nest.loop(nodes)

    def exchange(tensor: str, function: str, tile: tuple[Loop, ...] | None) -> tuple[Node, ...]:
        if nest.column not in nest.dims_at(1):
            return ()
        node = nest.combine("all_reduce", tensor, function, 1, part=tile)
        return nest.loop((node,))

    start = operations.index(first) + 1
    branches = [
        *branch(operations[:start]),
        *exchange(first.output, first.function, None),
        *branch(operations[start:at]),
        *exchange(summed, second.function, part),
        *branch(operations[at:]),
    ]
    homes = {o.output: nest.buffer for o in operations if nest.workload.is_intermediate(o.output)}
    return branches, {**homes, first.output: nest.memory(1), summed: nest.memory(1)}


def fused_matrix(nest: Nest, operation: Operation, weights: str) -> Node:
    """The contraction inside one outer row step.

    Its second operand whole in the memories of the first level, or streamed in tiles of columns and
    contracted dimension.
    """
    inside = nest.over_units(1, matrix_branch(nest, operation))
    if weights == "resident":
        return inside
    return Temporal(nest.levels[0], (nest.time("N", 0), nest.time("K", 0)), inside)


def streamed_columns(nest: Nest, weights: str) -> tuple[str, ...]:
    """Factors of the columns that a core sees besides its own: those streamed in the GEMM."""
    return (nest.factor("N", 0, "t"),) if weights == "streamed" else ()


def unfused(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    """Each elementary operation through the outermost memory."""
    gemm, vector = split(workload)
    require_engines(machine, workload.name, vector=True)
    nest = Nest(workload, machine, stage=_stage(workload), algorithm=options["algorithm"])
    rows = Nest(workload, machine, stage="row.", spread=("M",))
    stages = unfused_vector(nest, rows, vector)
    return Plan(Group((matrix_stage(_matrix(workload, machine, options), gemm), *stages)))


def _matrix(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Nest:
    """The nest of the contraction."""
    return Nest(workload, machine, free=options["tiling"] == "free")


def _stage(workload: CompoundOp) -> str:
    """Name of the vector operations as a stage."""
    softmax = any(o.function == "exp" for o in workload.operations)
    return "softmax." if softmax else "norm."


def fused_dist(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    """The GEMM apart; the vector operations fused, on all cores."""
    gemm, vector = split(workload)
    require_engines(machine, workload.name, vector=True)
    nest = Nest(workload, machine, stage=_stage(workload), algorithm=options["algorithm"])
    branches, homes = dist_branches(nest, vector, options.get("reduce", "rows"))
    body = nest.over_units(1, Group(tuple(branches)))
    fused = Temporal(nest.levels[0], outer_loops(nest, nest.row), body)
    return Plan(Group((matrix_stage(_matrix(workload, machine, options), gemm), fused)), homes)


def fused_gemm_dist(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    """All fused, the vector operations on all cores."""
    gemm, vector = split(workload)
    require_engines(machine, workload.name, vector=True)
    weights, binding = options["weights"], cast(Binding, options["binding"])
    plain = _matrix(workload, machine, options)
    # the vector operations see all columns of a row block, also those that the GEMM makes in later
    # steps
    nest = dataclasses.replace(
        plain, outer=streamed_columns(plain, weights), algorithm=options["algorithm"]
    )
    branches, homes = dist_branches(nest, vector, options.get("reduce", "rows"))
    body: Node
    if weights == "resident" and binding == "sequential":
        body = plain.over_units(1, Group((matrix_branch(plain, gemm), *branches)))
    else:
        first = fused_matrix(plain, gemm, weights)
        body = Group((first, nest.over_units(1, Group(tuple(branches)))), binding)
    tree = Temporal(plain.levels[0], outer_loops(plain, "M"), body)
    return Plan(tree, {gemm.output: plain.buffer, **homes})


def fused_gemm_one(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    """All fused; a gather brings each row block to one core's vector unit."""
    gemm, vector = split(workload)
    require_engines(machine, workload.name, vector=True)
    weights, binding = options["weights"], cast(Binding, options["binding"])
    nest = _matrix(workload, machine, options)
    # one core has all columns, so it splits them by factors of its own; the rows are the GEMM's
    alone = Nest(workload, machine, stage=_stage(workload), row_stage="", spread=())
    nodes: list[Node] = [n for o in vector for n in alone.down(o, min(1, nest.last))]
    used = [(d, i) for i in range(1, nest.last + 1) for d in nest.dims_at(i)]
    if used:
        spread_x, spread_y = zip(*(nest.spatial_factors(d, i) for d, i in used), strict=True)
        columns = (*streamed_columns(nest, weights), *nest.below("N", 0))
        part = (Loop("M", nest.below("M", min(1, nest.last - 1))), Loop("N", columns))
        gather = Collective(
            "gather",
            gemm.output,
            nest.buffer,
            spread_x,
            spread_y,
            part,
            algorithm=options["algorithm"],
        )
        nodes.insert(0, gather)
    one_core = nest.loop(nodes)
    last = one_core[0] if len(one_core) == 1 else Group(one_core)
    body = Group((fused_matrix(nest, gemm, weights), last), binding)
    homes = {t.name: nest.buffer for t in workload.tensors if workload.is_intermediate(t.name)}
    return Plan(Temporal(nest.levels[0], outer_loops(nest, "M"), body), homes)
