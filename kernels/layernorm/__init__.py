"""LayerNorm and RMSNorm over rows that are split over devices."""

from jaxcomet.kernels.layernorm.api import distributed_layernorm as distributed_layernorm
from jaxcomet.kernels.layernorm.api import distributed_rmsnorm as distributed_rmsnorm
