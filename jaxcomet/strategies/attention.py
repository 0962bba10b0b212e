"""The strategies of attention as mapping trees.

* ``unfused``: each elementary operation reads from and writes to the outermost memory.
* ``partial``: scores and softmax are fused, as GEMM-softmax is; the values' GEMM runs apart.
* ``row-fused``: all fused for whole rows of scores, which stay on chip (FLAT, arXiv:2107.06419).
* ``flash``: all fused, block after block of keys, with the online softmax (arXiv:2307.08691).
* ``ring``: as flash, queries and keys sharded over the clusters; keys and values travel from
  cluster to cluster (arXiv:2310.01889).

Option ``spread`` says what is laid over the units: ``keys`` the keys, as the GEMM-softmax mappings
do with their columns; ``heads`` the independent problems first, then the keys; ``rows`` the
independent problems, then the query rows, then the keys. docs/attention.md gives each tree.
"""

import dataclasses
from typing import cast

from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Collective, Group, Loop, MappingError, Masked, Node, Temporal
from jaxcomet.rewrite import rewritten
from jaxcomet.strategies import rows
from jaxcomet.strategies.nest import Nest, require_engines
from jaxcomet.strategies.strategy import Plan, Strategy
from jaxcomet.workload import CompoundOp, Operation

_SPREAD = {"keys": ("N",), "heads": ("H", "N"), "rows": ("H", "M", "N")}
_SPREAD_VALUES = {"keys": ("L", "M"), "heads": ("H", "L", "M"), "rows": ("H", "M", "L")}


def _contractions(workload: CompoundOp) -> tuple[Operation, Operation]:
    first, second = (o for o in workload.operations if o.kind == "contract")
    return first, second


def _values_stage(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Node:
    _, values = _contractions(workload)
    nest = Nest(
        workload,
        machine,
        stage="values.",
        spread=_SPREAD_VALUES[options["spread"]],
        free=options["tiling"] == "free",
    )
    return rows.matrix_stage(nest, values, "MLN")


def _unfused(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    scores, softmax = rows.split(workload)
    require_engines(machine, workload.name, vector=True)
    spread = _SPREAD[options["spread"]]
    nest = Nest(workload, machine, stage="softmax.", spread=spread, algorithm=options["algorithm"])
    stages = rows.unfused_vector(nest, nest, softmax)
    free = options["tiling"] == "free"
    first = rows.matrix_stage(Nest(workload, machine, spread=spread, free=free), scores)
    return Plan(Group((first, *stages, _values_stage(workload, machine, options))))


def _fused_scores(
    workload: CompoundOp, machine: Machine, options: dict[str, str]
) -> tuple[Nest, Node, list[Node], dict[str, str]]:
    """(nest, scores inside an outer row step, branches of the softmax, homes)."""
    scores, softmax = rows.split(workload)
    require_engines(machine, workload.name, vector=True)
    plain = Nest(
        workload,
        machine,
        spread=_SPREAD[options["spread"]],
        algorithm=options["algorithm"],
        free=options["tiling"] == "free",
    )
    nest = dataclasses.replace(plain, outer=rows.streamed_columns(plain, options["weights"]))
    branches, homes = rows.dist_branches(nest, softmax)
    first = rows.fused_matrix(plain, scores, options["weights"])
    return nest, first, branches, {scores.output: plain.buffer, **homes}


def _partial(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    nest, first, branches, homes = _fused_scores(workload, machine, options)
    body = Group(
        (first, nest.over_units(1, Group(tuple(branches)))),
        cast(rows.Binding, options["binding"]),
    )
    fused = Temporal(nest.levels[0], rows.outer_loops(nest, "M"), body)
    _, values = _contractions(workload)
    inside = {t: m for t, m in homes.items() if t != values.inputs[0]}
    return Plan(Group((fused, _values_stage(workload, machine, options))), inside)


def _row_fused(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    nest, first, branches, homes = _fused_scores(workload, machine, options)
    _, values = _contractions(workload)
    plain = dataclasses.replace(nest, outer=())
    last = _values(plain, values)
    inside = plain.over_units(1, last[0] if len(last) == 1 else Group(last))
    if options["weights"] == "streamed":
        inside = Temporal(plain.levels[0], (plain.time("N", 0),), inside)
    body = Group(
        (first, nest.over_units(1, Group(tuple(branches))), inside),
        cast(rows.Binding, options["binding"]),
    )
    tree = Temporal(plain.levels[0], rows.outer_loops(plain, "M"), body)
    # the probabilities leave the vector engine's buffer for that of the matrix engine's operand
    return Plan(tree, {**homes, values.inputs[0]: plain.memory(1)})


def _values(nest: Nest, values: Operation) -> tuple[Node, ...]:
    """The values' GEMM below the units of the first level, partial results combined."""
    branch = rows.matrix_branch(nest, values)
    if not nest.reduces(values):
        return (branch,)
    nodes: list[Node] = [branch]
    for level in range(nest.last, 0, -1):
        if nest.reduces_at(values, level):
            nodes += nest.loop((nest.combine("reduce", values.output, "add", level),))
    return tuple(nodes)


_ONLINE = ("online-softmax",)


def _flash(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    form = rewritten(workload, _ONLINE)
    require_engines(machine, workload.name, vector=True)
    nest = Nest(
        form,
        machine,
        spread=_SPREAD[options["spread"]],
        algorithm=options["algorithm"],
        free=options["tiling"] == "free",
    )
    scores, values = _contractions(form)
    vector = _between(form, scores, values)
    keys = Loop(
        "N",
        (nest.factor("N", 0, "t"),),
        Masked(
            blocks=(nest.factor("M", 0, "t"),),
            rows=nest.inside("M"),
            columns=nest.inside("N"),
        ),
    )
    stages = [[rows.matrix_branch(nest, scores)], [], [rows.matrix_branch(nest, values)]]
    for operation in vector:
        maximum = operation.function == "max" and operation.kind == "reduce"
        function = operation.function if maximum else None
        branch = nest.loop(nest.down(operation, min(1, nest.last), function))
        stages[1] += branch
        if maximum and nest.reduces_at(operation, 1):
            # the units need the same maximum; sums stay partial until the last block
            stages[1] += nest.loop((nest.combine("all_reduce", operation.output, "max", 1),))
    if options["binding"] == "pipelined":
        bodies = [nest.over_units(1, s[0] if len(s) == 1 else Group(tuple(s))) for s in stages]
        block: Node = Group(tuple(bodies), "pipelined")
    else:
        block = nest.over_units(1, Group(tuple(n for s in stages for n in s)))
    blocks = Temporal(nest.levels[0], (keys,), block)
    last = _last_step(nest, form, form.operation("normalize"))
    tree = Temporal(nest.levels[0], rows.outer_loops(nest, "M"), Group((blocks, *last)))
    return Plan(tree, _online_homes(nest, form), _ONLINE)


def _between(form: CompoundOp, first: Operation, last: Operation) -> tuple[Operation, ...]:
    operations = form.operations
    return operations[operations.index(first) + 1 : operations.index(last)]


def _online_homes(nest: Nest, form: CompoundOp) -> dict[str, str]:
    """Running values stay in the buffers; what is exchanged or changes engines, a level up."""
    _, values = _contractions(form)
    homes = {t.name: nest.buffer for t in form.tensors if form.is_intermediate(t.name)}
    exchanged = form.operation("rowmax").output
    if nest.reduces(form.operation("rowmax")):
        homes[exchanged] = nest.memory(1)
    # the powers leave the vector engine's buffer for that of the matrix engine's operand
    homes[values.inputs[0]] = nest.memory(1)
    return homes


def _last_step(nest: Nest, form: CompoundOp, normalize: Operation) -> tuple[Node, ...]:
    """The division by the row sums; before it, partial results of several units are combined."""
    result, total = normalize.inputs
    branch = list(nest.loop(nest.down(normalize, min(1, nest.last))))
    if any(nest.column in nest.dims_at(i) for i in range(1, nest.last + 1)):
        sums = [nest.combine_all("all_reduce", t, "add") for t in (total, result)]
        branch = [*nest.loop(sums), *branch]
    return (nest.over_units(1, branch[0] if len(branch) == 1 else Group(tuple(branch))),)


def _ring(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    form = rewritten(workload, _ONLINE)
    require_engines(machine, workload.name, vector=True)
    nest = Nest(form, machine, spread=("M",), algorithm=options["algorithm"])
    if nest.last < 2:
        raise MappingError(
            f"machine {machine.name}: got {len(machine.levels)} levels; strategy ring passes keys "
            "and values between the units of a level between the outermost memory and the cores"
        )
    scores, values = _contractions(form)
    vector = _between(form, scores, values)
    moving = (scores.inputs[1], values.inputs[1])
    shards = nest.spatial_factors("M", 1)

    def core(operation: Operation) -> Node:
        (node,) = dataclasses.replace(nest, row="M").down(operation, 1)
        return node

    block = Group(tuple(core(o) for o in (scores, *vector, values)))
    blocks = Temporal(nest.levels[1], (Loop("N", (nest.factor("N", 1, "t"),)),), block)
    rounds: Node = blocks
    if nest.spread_at(1):
        passes = tuple(_permute(nest, t, shards) for t in moving)
        rounds = Temporal(
            nest.levels[1],
            (Loop("N", shards),),
            Group((blocks, Group(passes)), "parallel"),
            rotates=moving,
        )
    normalize = form.operation("normalize")
    last = Temporal(nest.levels[1], (), _only(nest.down(normalize, 1)))
    body = nest.over_units(1, Group((rounds, last)))
    tree = Temporal(nest.levels[0], rows.outer_loops(nest, "M"), body)
    return Plan(tree, _online_homes(nest, form), _ONLINE)


def _only(nodes: tuple[Node, ...]) -> Node:
    (node,) = nodes
    return node


def _permute(nest: Nest, tensor: str, shards: tuple[str, str]) -> Collective:
    """Each cluster hands its shard of a tensor to its neighbour.

    After the last round it has its own one back, for the next row block.
    """
    part = tuple(
        Loop(d, (nest.factor(d, 1, "t"), *nest.below(d, 1)) if d == "N" else nest.below(d, 1))
        for d in nest.workload.tensor(tensor).dims
        if d not in nest.batch
    )
    return Collective("permute", tensor, nest.memory(1), (shards[0],), (shards[1],), part)


_WAYS = {"spread": ("heads", "rows", "keys"), **rows.TILING, **rows.ALGORITHM}

STRATEGIES = (
    Strategy(name="unfused", options=_WAYS, plan=_unfused),
    Strategy(name="partial", options={**rows.FUSED, **_WAYS}, plan=_partial),
    Strategy(name="row-fused", options={**rows.FUSED, **_WAYS}, plan=_row_fused),
    Strategy(name="flash", options={"binding": ("sequential", "pipelined"), **_WAYS}, plan=_flash),
    Strategy(name="ring", options=rows.ALGORITHM, plan=_ring),
)
