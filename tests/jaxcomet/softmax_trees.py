"""Trees by hand for a softmax after a GEMM, on machine r2v: a buffer below DRAM.

Five operations: gemm, rowmax, exp, rowsum, div.
"""

from collections.abc import Mapping as MappingABC

import pytest

from jaxcomet import gemm_softmax
from jaxcomet.cost import Conventions, Cost, conventions, evaluate
from jaxcomet.hardware import Machine, load
from jaxcomet.mapping import (
    Compute,
    Group,
    Loop,
    Mapping,
    MappingError,
    Node,
    Spatial,
    Temporal,
)
from jaxcomet.workload import CompoundOp

RULES = conventions("roofline")
IN_PLACE = conventions("roofline", in_place="elementwise")

SOFTMAX = ("gemm", "rowmax", "exp", "rowsum", "div")
HOMES = dict.fromkeys("CDFG", "glb")
DIMS = {"gemm": "MKN"} | dict.fromkeys(SOFTMAX[1:], "MN")


def softmax(M: int = 8, N: int = 16, K: int = 4) -> CompoundOp:
    return gemm_softmax(M, N, K, vector_bits=8, fused_exp=True)


def r2v(capacity: int = 131_072, units: int = 1) -> Machine:
    return load(
        "r2v",
        [
            ("memory.glb.capacity", f"{capacity} B"),
            ("levels.glb.mesh_x", str(units)),
            ("memory.glb.link_bandwidth", "64 byte/cycle"),
        ],
    )


def call(operation: str, dims: str | None = None) -> Node:
    """One engine call for all that lies below the outer loops."""
    tile = tuple(Loop(d, (f"{d}_comp",)) for d in dims or DIMS[operation])
    return Temporal("glb", (), Compute(operation, tile))


def steps(dims: str, *body: Node, binding: str = "sequential") -> Node:
    """Loops in time at DRAM around some nodes."""
    loops = tuple(Loop(d, (f"{d}_dram_t",)) for d in dims)
    inside = body[0] if len(body) == 1 else Group(body, binding)  # pyright: ignore[reportArgumentType]
    return Temporal("dram", loops, inside)


def units_along(dim: str, body: Node) -> Node:
    return Spatial("glb", (Loop(dim, (f"{dim}_dram_sx",)),), (), body)


def mapping_of(
    tree: Node,
    factors: MappingABC[str, object],
    workload: CompoundOp | None = None,
    homes: MappingABC[str, str] = HOMES,
) -> Mapping:
    return Mapping.from_factors(
        workload or softmax(), strategy="by-hand", tree=tree, homes=homes, factors=factors
    )


def priced(
    tree: Node,
    factors: MappingABC[str, object],
    workload: CompoundOp | None = None,
    machine: Machine | None = None,
    homes: MappingABC[str, str] = HOMES,
    rules: Conventions = RULES,
) -> Cost:
    op = workload or softmax()
    return evaluate(op, mapping_of(tree, factors, op, homes), machine or r2v(), conventions=rules)


def refused(sentence: str, tree: Node, factors: MappingABC[str, object], **rest: object) -> None:
    with pytest.raises(MappingError) as error:
        priced(tree, factors, **rest)  # pyright: ignore[reportArgumentType]
    assert str(error.value) == sentence


def calls(*names: str) -> tuple[Node, ...]:
    return tuple(call(n) for n in names)


def peak(cost: Cost, memory: str = "glb") -> tuple[float, dict[str, dict[str, float]]]:
    """(needed bytes, bytes of each tensor by operation) in a memory."""
    (use,) = (o for o in cost.occupancy if o.memory == memory)
    held = {
        name: {h.tensor: float(h.total_bytes) for h in moment}
        for name, moment in zip(use.operations, use.moments, strict=True)
    }
    return float(use.needed_bytes), held


FULL = {"M_comp": 8, "N_comp": 16, "K_comp": 4}
"""All in one call."""
