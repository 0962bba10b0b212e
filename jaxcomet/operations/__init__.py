"""Builders of compound operations."""

from jaxcomet.operations.gemm_softmax import gemm_softmax as gemm_softmax
