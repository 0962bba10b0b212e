"""The strategies of GEMM-softmax."""

from jaxcomet.strategies import rows
from jaxcomet.strategies.strategy import Strategy

STRATEGIES = (
    Strategy(name="unfused", options={**rows.TILING, **rows.ALGORITHM}, plan=rows.unfused),
    Strategy(
        name="fused-distsm",
        options={**rows.REDUCE, **rows.TILING, **rows.ALGORITHM},
        plan=rows.fused_dist,
    ),
    Strategy(
        name="fused-gemm-sm",
        options={**rows.FUSED, **rows.TILING, **rows.GATHER},
        plan=rows.fused_gemm_one,
    ),
    Strategy(
        name="fused-gemm-distsm",
        options={**rows.REDUCE, **rows.FUSED, **rows.TILING, **rows.ALGORITHM},
        plan=rows.fused_gemm_dist,
    ),
)
