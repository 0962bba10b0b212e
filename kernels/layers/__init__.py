"""Flax NNX layers over the kernels, which take the places and the parameters of ordinary ones."""

from jaxcomet.kernels.layers.attention import FusedSelfAttention as FusedSelfAttention
from jaxcomet.kernels.layers.norm_linear import FoldedNormLinear as FoldedNormLinear
from jaxcomet.kernels.layers.norm_linear import LayerNormLinear as LayerNormLinear
from jaxcomet.kernels.layers.norm_linear import RMSNormLinear as RMSNormLinear
