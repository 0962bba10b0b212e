"""softmax(x) @ v, with rows, outputs or the contraction split over devices."""

from jaxcomet.kernels.softmax_matmul.api import softmax_matmul as softmax_matmul
