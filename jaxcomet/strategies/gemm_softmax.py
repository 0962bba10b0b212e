"""The strategies of GEMM-softmax as mapping trees.

All spread N over clusters and cores and step through M in time (row granularity, as the authors'
released mapping does: d-matrix-ai/comet 917af0d, test/iterative_mapper/mapping.yaml). They differ
in what is fused and where the softmax runs:

* ``unfused``: each of the six operations reads from and writes to the outermost memory.
* ``fused-distsm``: the GEMM runs apart; the five vector operations are fused, on all cores, with
  all-reduces.
* ``fused-gemm-sm``: GEMM and softmax are fused; a gather brings each row block to one core's vector
  unit.
* ``fused-gemm-distsm``: both fused, softmax on all cores; the one mapping that the authors
  released.

docs/strategies.md gives each tree with the reason for every choice.
"""

from jaxcomet.hardware.machine import Machine, VectorEngine
from jaxcomet.mapping import Collective, Compute, Group, Loop, MappingError, Node, Spatial, Temporal
from jaxcomet.strategies.strategy import Strategy

_VECTOR_OPS = ("rowmax", "sub", "exp", "rowsum", "div")
_ROW_OPS = {"rowmax": ("D", "max"), "rowsum": ("G", "add")}


class _Names:
    """Names of levels, memories and factors on one machine."""

    def __init__(self, machine: Machine) -> None:
        if len(machine.levels) != 3:
            raise MappingError(
                f"machine {machine.name}: got {len(machine.levels)} levels; the strategies of "
                "gemm-softmax spread over "
                f"3 (memory, clusters, cores)"
            )
        self.outer, self.middle, self.inner = (level.name for level in machine.levels)
        vector = next((e for e in machine.engines.values() if isinstance(e, VectorEngine)), None)
        if vector is None:
            raise MappingError(
                f"machine {machine.name}: has no vector engine, which a softmax needs"
            )
        self.buffer = vector.result
        self.cluster = machine.path(vector.result)[1]

    def factor(self, dim: str, level: str, slot: str, stage: str = "") -> str:
        return f"{stage}{dim}_{level}_{slot}"

    def time(self, dim: str, level: str, stage: str = "") -> Loop:
        return Loop(dim, (self.factor(dim, level, "t", stage),))

    def call(self, dim: str, stage: str = "") -> str:
        return f"{stage}{dim}_comp"

    def spread(self, level: str, body: Node, stage: str = "") -> Spatial:
        """N over the mesh of the units below `level`.

        Factors are named by the level above, as the data files do.
        """
        below = self.middle if level == self.outer else self.inner
        x, y = (Loop("N", (self.factor("N", level, s, stage),)) for s in ("sx", "sy"))
        return Spatial(below, (x,), (y,), body)

    def rows(self, stage: str = "") -> tuple[str, str]:
        """Factors of the rows of one cluster step: m = core steps x call."""
        return self.factor("M", self.inner, "t", stage), self.call("M", stage)


def _gemm_core(n: _Names) -> Node:
    loops = (n.time("N", n.inner), n.time("K", n.inner), n.time("M", n.inner))
    tile = tuple(Loop(d, (n.call(d),)) for d in ("M", "K", "N"))
    return Temporal(n.inner, loops, Compute("gemm", tile))


def _gemm_branch(n: _Names) -> Node:
    return Temporal(n.middle, (n.time("M", n.middle),), n.spread(n.middle, _gemm_core(n)))


def _vector_core(
    n: _Names,
    operation: str,
    stage: str,
    *,
    row_stage: str | None = None,
    outer: tuple[str, ...] = (),
) -> Node:
    """A vector operation on one core: one row of a call's columns at a time, rows innermost."""
    columns = Loop("N", (*outer, n.factor("N", n.inner, "t", stage)))
    rows = Loop("M", n.rows(stage if row_stage is None else row_stage))
    call = Compute(operation, (Loop("N", (n.call("N", stage),)),))
    return Temporal(n.inner, (columns, rows), call)


def _across(
    n: _Names, tensor: str, function: str, level: str, stage: str, *, implied: bool
) -> Collective:
    """All-reduce of a row result between the units below `level` (clusters or cores)."""
    return Collective(
        "all_reduce",
        tensor,
        n.cluster if level == n.outer else n.buffer,
        (n.factor("N", level, "sx", stage),),
        (n.factor("N", level, "sy", stage),),
        (Loop("M", n.rows(stage)),),
        function,
        implied,
    )


def _on_cores(
    n: _Names, operations: tuple[str, ...], stage: str, outer: tuple[str, ...] = ()
) -> tuple[Node, ...]:
    """Vector operations on a cluster's cores, partial row results combined between these."""
    children: list[Node] = []
    for operation in operations:
        core = _vector_core(n, operation, stage, outer=outer)
        children.append(n.spread(n.middle, core, stage))
        if operation in _ROW_OPS:
            tensor, function = _ROW_OPS[operation]
            children.append(_across(n, tensor, function, n.middle, stage, implied=True))
    return tuple(children)


def _vector_branch(
    n: _Names, operations: tuple[str, ...], stage: str, outer: tuple[str, ...] = ()
) -> Node:
    """One cluster loop over fused vector operations."""
    return _cluster_loop(n, Group(_on_cores(n, operations, stage, outer)), stage)


def _cluster_loop(n: _Names, body: Node, stage: str) -> Node:
    return Temporal(n.middle, (n.time("M", n.middle, stage),), body)


def _dist_softmax(
    n: _Names, stage: str, reduce: str, outer: tuple[str, ...] = ()
) -> tuple[list[Node], dict[str, str]]:
    """Branches of a softmax on all cores, and the homes of what passes between them.

    `outer` names further factors of its columns, those in which the GEMM steps above the clusters.
    """
    max_reduce = _cluster_loop(n, _across(n, "D", "max", n.outer, stage, implied=False), stage)
    if reduce == "rows":
        # one loop from the subtraction to the division, so that the result's way out hides behind
        # the next step and F stays where it is for one step only
        sum_reduce = _across(n, "G", "add", n.outer, stage, implied=False)
        before = _on_cores(n, ("sub", "exp", "rowsum"), stage, outer)
        after = _on_cores(n, ("div",), stage, outer)
        branches = [
            _vector_branch(n, ("rowmax",), stage, outer),
            max_reduce,
            _cluster_loop(n, Group((*before, sum_reduce, *after)), stage),
        ]
        return branches, {"D": n.cluster, "E": n.buffer, "F": n.buffer, "G": n.cluster}
    whole = Collective(
        "all_reduce",
        "F",
        n.cluster,
        (n.factor("N", n.outer, "sx", stage),),
        (n.factor("N", n.outer, "sy", stage),),
        (
            Loop("M", n.rows(stage)),
            Loop(
                "N",
                (
                    *outer,
                    n.factor("N", n.middle, "sx", stage),
                    n.factor("N", n.middle, "sy", stage),
                    n.factor("N", n.inner, "t", stage),
                    n.call("N", stage),
                ),
            ),
        ),
        "add",
    )
    branches = [
        _vector_branch(n, ("rowmax",), stage, outer),
        max_reduce,
        _vector_branch(n, ("sub", "exp"), stage, outer),
        _cluster_loop(n, whole, stage),
        _vector_branch(n, ("rowsum", "div"), stage, outer),
    ]
    return branches, {"D": n.cluster, "E": n.buffer, "F": n.cluster, "G": n.buffer}


def _weights(n: _Names, weights: str) -> Node:
    """The GEMM inside one outer row step.

    B whole in the cluster memory, or streamed in tiles of N and K.
    """
    inside = n.spread(n.outer, _gemm_branch(n))
    if weights == "resident":
        return inside
    return Temporal(n.outer, (n.time("N", n.outer), n.time("K", n.outer)), inside)


def _fused_rows(n: _Names, gemm: Node, branches: list[Node], binding: str, weights: str) -> Node:
    """One outer loop over row blocks, in it the GEMM and then the softmax."""
    if weights == "resident" and binding == "sequential":
        first = _gemm_branch(n)
        body: Node = n.spread(n.outer, Group((first, *branches)))
    else:
        body = Group((gemm, n.spread(n.outer, Group(tuple(branches)))), binding)  # pyright: ignore[reportArgumentType]
    return Temporal(n.outer, (n.time("M", n.outer),), body)


def _fused_gemm_distsm(machine: Machine, options: dict[str, str]) -> tuple[Node, dict[str, str]]:
    n = _Names(machine)
    # the softmax sees all columns of a row block, also those that the GEMM makes in later steps
    streamed = n.factor("N", n.outer, "t")
    outer = (streamed,) if options["weights"] == "streamed" else ()
    branches, homes = _dist_softmax(n, "", options["reduce"], outer)
    tree = _fused_rows(
        n, _weights(n, options["weights"]), branches, options["binding"], options["weights"]
    )
    return tree, {"C": n.buffer, **homes}


def _fused_gemm_sm(machine: Machine, options: dict[str, str]) -> tuple[Node, dict[str, str]]:
    n = _Names(machine)
    spread_x = (n.factor("N", n.outer, "sx"), n.factor("N", n.middle, "sx"))
    spread_y = (n.factor("N", n.outer, "sy"), n.factor("N", n.middle, "sy"))
    streamed = (n.factor("N", n.outer, "t"),) if options["weights"] == "streamed" else ()
    part = (
        Loop("M", n.rows()),
        Loop("N", (*streamed, n.factor("N", n.inner, "t"), n.call("N"))),
    )
    gather = Collective("gather", "C", n.buffer, spread_x, spread_y, part)
    # one core has all columns, so it splits them by factors of its own; the rows are the GEMM's
    softmax = [
        _vector_core(n, op, "softmax.", row_stage="")
        for op in ("rowmax", "sub", "exp", "rowsum", "div")
    ]
    one_core = _cluster_loop(n, Group((gather, *softmax)), "")
    body = Group((_weights(n, options["weights"]), one_core), options["binding"])  # pyright: ignore[reportArgumentType]
    homes: dict[str, str] = dict.fromkeys("CDEFG", n.buffer)
    return Temporal(n.outer, (n.time("M", n.outer),), body), homes


def _gemm_stage(n: _Names) -> Node:
    """A GEMM that reads and writes the outermost memory.

    K innermost there, so that a result tile is finished in place.
    """
    loops = tuple(n.time(d, n.outer) for d in ("N", "M", "K"))
    return Temporal(n.outer, loops, n.spread(n.outer, _gemm_branch(n)))


def _fused_distsm(machine: Machine, options: dict[str, str]) -> tuple[Node, dict[str, str]]:
    n = _Names(machine)
    stage = "softmax."
    branches, homes = _dist_softmax(n, stage, options["reduce"])
    softmax = Temporal(
        n.outer, (n.time("M", n.outer, stage),), n.spread(n.outer, Group(tuple(branches)), stage)
    )
    return Group((_gemm_stage(n), softmax)), homes


def _unfused(machine: Machine, options: dict[str, str]) -> tuple[Node, dict[str, str]]:
    del options
    n = _Names(machine)
    stage = "softmax."
    stages: list[Node] = [_gemm_stage(n)]
    for operation in _VECTOR_OPS:
        inside: list[Node] = [_vector_branch(n, (operation,), stage)]
        if operation in _ROW_OPS:
            tensor, function = _ROW_OPS[operation]
            inside.append(
                _cluster_loop(n, _across(n, tensor, function, n.outer, stage, implied=False), stage)
            )
        stages.append(
            Temporal(
                n.outer,
                (n.time("M", n.outer, stage),),
                n.spread(n.outer, Group(tuple(inside)), stage),
            )
        )
    return Group(tuple(stages)), {}


_REDUCE = {"reduce": ("rows", "tile")}
_FUSED = {"weights": ("resident", "streamed"), "binding": ("sequential", "pipelined")}

STRATEGIES = (
    Strategy(name="unfused", options={}, tree=_unfused),
    Strategy(name="fused-distsm", options=_REDUCE, tree=_fused_distsm),
    Strategy(name="fused-gemm-sm", options=_FUSED, tree=_fused_gemm_sm),
    Strategy(name="fused-gemm-distsm", options={**_REDUCE, **_FUSED}, tree=_fused_gemm_distsm),
)
