"""The strategy of a plain GEMM: one tiled nest, its outer loop order free."""

import itertools

from jaxcomet.hardware.machine import Machine
from jaxcomet.strategies import rows
from jaxcomet.strategies.nest import Nest, require_engines
from jaxcomet.strategies.strategy import Plan, Strategy
from jaxcomet.workload import CompoundOp


def _tiled(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    require_engines(machine, workload.name, vector=False)
    (gemm,) = workload.operations
    nest = Nest(workload, machine, free=options["tiling"] == "free")
    return Plan(rows.matrix_stage(nest, gemm, options["order"]))


WHOLE = ("NMK", *(o for o in map("".join, itertools.permutations("NMK")) if o != "NMK"))
# the innermost loop leaves one tensor alone; slices of another one can pass along either dimension
# of that, which is the one further in of the outer two, so that the third one stays meanwhile
_SLICED = tuple(o + o[1] for o in WHOLE)

ORDERS = (*WHOLE, *_SLICED)
"""Loop orders of the outermost level, outermost loop first. With four letters the last dimension is
split once more: ``NMKM`` holds a tile of the result and one of the right operand, and streams the
left one beside them in slices of its rows."""

STRATEGIES = (
    Strategy(
        name="tiled",
        options={"order": ORDERS, "tiling": ("free", "rows")},
        tried={"order": WHOLE},
        plan=_tiled,
    ),
)
