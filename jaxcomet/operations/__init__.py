"""Builders of compound operations, and the catalog of them by name."""

from jaxcomet.operations import catalog as catalog
from jaxcomet.operations.attention import attention as attention
from jaxcomet.operations.gemm import gemm as gemm
from jaxcomet.operations.gemm_layernorm import gemm_layernorm as gemm_layernorm
from jaxcomet.operations.gemm_softmax import gemm_softmax as gemm_softmax
