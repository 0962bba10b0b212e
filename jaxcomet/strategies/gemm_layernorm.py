"""The strategies of GEMM-LayerNorm (and of GEMM-RMSNorm).

The same trees as for GEMM-softmax; both exchanges are of M x 1 row results.
"""

from jaxcomet.strategies import rows
from jaxcomet.strategies.strategy import Strategy

STRATEGIES = (
    Strategy(name="unfused", options={**rows.TILING, **rows.ALGORITHM}, plan=rows.unfused),
    Strategy(name="fused-distln", options={**rows.TILING, **rows.ALGORITHM}, plan=rows.fused_dist),
    Strategy(
        name="fused-gemm-ln",
        options={**rows.FUSED, **rows.TILING, **rows.GATHER},
        plan=rows.fused_gemm_one,
    ),
    Strategy(
        name="fused-gemm-distln",
        options={**rows.FUSED, **rows.TILING, **rows.ALGORITHM},
        plan=rows.fused_gemm_dist,
    ),
)
