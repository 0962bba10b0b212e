"""LayerNorm or RMSNorm of a @ b, with rows, columns or the contraction split over devices."""

from jaxcomet.kernels.gemm_layernorm.api import gemm_layernorm as gemm_layernorm
from jaxcomet.kernels.gemm_layernorm.api import gemm_rmsnorm as gemm_rmsnorm
