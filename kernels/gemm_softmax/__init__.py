"""softmax(a @ b) over rows, with rows, columns or the contraction split over devices."""

from jaxcomet.kernels.gemm_softmax.api import gemm_softmax as gemm_softmax
