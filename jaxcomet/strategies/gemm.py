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


ORDERS = ("NMK", *(o for o in map("".join, itertools.permutations("NMK")) if o != "NMK"))
"""Loop orders of the outermost level, outermost loop first."""

STRATEGIES = (
    Strategy(name="tiled", options={"order": ORDERS, "tiling": ("free", "rows")}, plan=_tiled),
)
