"""Fused, sharded JAX kernels for the mapping strategies of the model; imports nothing else of ours.

One folder an operation: `reference` is the specification, in plain jnp; `sharded` what each device
does; `api` the public function, which has the folder's name. Flax layers over them are in
`jaxcomet.kernels.layers`, programs of several processes in `jaxcomet.kernels.cluster`.
"""

if not __name__.startswith("jaxcomet."):
    raise ImportError(f"import jaxcomet.{__name__}, not {__name__}")

from jaxcomet.kernels.attention.api import attention as attention
from jaxcomet.kernels.cross_entropy.api import cross_entropy as cross_entropy
from jaxcomet.kernels.cross_entropy.api import linear_cross_entropy as linear_cross_entropy
from jaxcomet.kernels.devices import emulate as emulate
from jaxcomet.kernels.devices import make_mesh as make_mesh
from jaxcomet.kernels.errors import KernelError as KernelError
from jaxcomet.kernels.gemm_layernorm.api import gemm_layernorm as gemm_layernorm
from jaxcomet.kernels.gemm_layernorm.api import gemm_rmsnorm as gemm_rmsnorm
from jaxcomet.kernels.gemm_softmax.api import gemm_softmax as gemm_softmax
from jaxcomet.kernels.layernorm.api import distributed_layernorm as distributed_layernorm
from jaxcomet.kernels.layernorm.api import distributed_rmsnorm as distributed_rmsnorm
from jaxcomet.kernels.layernorm_linear.api import layernorm_linear as layernorm_linear
from jaxcomet.kernels.layernorm_linear.api import normalized_linear as normalized_linear
from jaxcomet.kernels.layernorm_linear.api import rmsnorm_linear as rmsnorm_linear
from jaxcomet.kernels.layernorm_linear.folding import FoldedLinear as FoldedLinear
from jaxcomet.kernels.layernorm_linear.folding import fold_layernorm as fold_layernorm
from jaxcomet.kernels.layernorm_linear.folding import fold_rmsnorm as fold_rmsnorm
from jaxcomet.kernels.softmax.api import distributed_softmax as distributed_softmax
from jaxcomet.kernels.softmax_matmul.api import softmax_matmul as softmax_matmul
