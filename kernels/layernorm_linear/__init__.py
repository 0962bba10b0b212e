"""The linear layer of normalized rows, with rows, outputs or the contraction split over devices."""

from jaxcomet.kernels.layernorm_linear.api import layernorm_linear as layernorm_linear
from jaxcomet.kernels.layernorm_linear.api import normalized_linear as normalized_linear
from jaxcomet.kernels.layernorm_linear.api import rmsnorm_linear as rmsnorm_linear
from jaxcomet.kernels.layernorm_linear.folding import FoldedLinear as FoldedLinear
from jaxcomet.kernels.layernorm_linear.folding import fold_layernorm as fold_layernorm
from jaxcomet.kernels.layernorm_linear.folding import fold_rmsnorm as fold_rmsnorm
