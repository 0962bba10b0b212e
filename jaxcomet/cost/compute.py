"""Time and energy of engine calls.

Matrix engine (docs/equations.md, 2.1): weight-stationary systolic arrays after SCALE-Sim
(arXiv:1811.02883): a call that streams T rows through arrays of R rows and C columns takes ``2R + C
+ T - 2`` cycles a fold: R to load the weights, T rows, R + C - 2 of skew. A broadcast array takes
the T cycles alone. Vector engine (2.2): ``cycles(op) * ceil(elements / lanes)``; a row reduction is
a tree of ceil(log2 lanes) steps an instruction, or one step where each lane has rows of its own.
"""

from jaxcomet.arith import Number, ceil, log2, maximum, per, product
from jaxcomet.cost.conventions import Conventions
from jaxcomet.cost.placement import Placement, Site
from jaxcomet.hardware.machine import MatrixEngine, VectorEngine
from jaxcomet.workload import Operation


def array_cycles(
    engine: MatrixEngine, streamed: Number, contracted: Number, columns: Number, rules: Conventions
) -> Number:
    """Cycles of one call of a weight-stationary matrix engine.

    Args:
      engine: the grid of arrays; ``array`` says of which kind.
      streamed: rows that stream through (M of the call).
      contracted: extent along the arrays' rows (K of the call).
      columns: extent along the arrays' columns (N of the call).
      rules: ``weight_load`` and ``array_skew``; a broadcast array has neither.

    Returns:
      Cycles. Systolic, with exposed loads and counted skew: (2R + C + T - 2) a fold. Broadcast: T a
      fold; its weights arrive through the engine's port, which `move_time` prices.
    """
    folds = product(
        [
            ceil(per(contracted, engine.grid_rows * engine.array_rows)),
            ceil(per(columns, engine.grid_columns * engine.array_columns)),
        ]
    )
    if engine.array == "broadcast":
        return streamed * folds
    skew = engine.array_rows + engine.array_columns - 2.0 if rules.array_skew == "counted" else 0.0
    stream = streamed + skew
    if rules.weight_load == "exposed":
        return (engine.array_rows + stream) * folds
    return engine.array_rows + maximum(stream, engine.array_rows) * (folds - 1.0) + stream


def reduction_steps(engine: VectorEngine) -> Number:
    """Steps of a row reduction per instruction: ceil(log2 lanes) in a tree over the lanes.

    1 where each lane accumulates rows of its own.
    """
    if engine.row_reduction == "lanes":
        return 1.0
    return ceil(log2(engine.lanes))


def vector_op(engine: VectorEngine, operation: Operation) -> tuple[Number, Number]:
    """(cycles per instruction, pJ per lane and instruction) of an elementary operation."""
    cost = engine.ops[operation.function]
    if operation.kind == "reduce":
        steps = reduction_steps(engine)
        return cost.cycles * steps, cost.energy_pj * steps
    return cost.cycles, cost.energy_pj


def call_tile(placement: Placement, site: Site, dim: str) -> Number:
    """Extent of an engine call along a dimension."""
    return product([placement.steps(loop) for loop in site.compute.tile if loop.dim == dim])


def call_elements(placement: Placement, site: Site) -> Number:
    """Points of the iteration space of one engine call."""
    return product([placement.steps(loop) for loop in site.compute.tile])


def call_cycles(placement: Placement, site: Site) -> Number:
    """Cycles of one engine call."""
    op = site.operation
    engine = placement.engine(op)
    if isinstance(engine, MatrixEngine):
        left, right = (set(placement.workload.tensor(t).dims) for t in op.inputs)
        out = set(placement.workload.tensor(op.output).dims)
        dims = placement.workload.iteration_dims(op)
        streamed = product([call_tile(placement, site, d) for d in dims if d in left and d in out])
        contracted = product([call_tile(placement, site, d) for d in dims if d not in out])
        columns = product(
            [call_tile(placement, site, d) for d in dims if d in right - left and d in out]
        )
        return array_cycles(engine, streamed, contracted, columns, placement.conventions)
    cycles, _ = vector_op(engine, op)
    return cycles * ceil(per(call_elements(placement, site), engine.lanes))
