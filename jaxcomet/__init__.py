"""jaxcomet.

A differentiable model of machines and mappings for the compound operations of transformers.
"""

from jaxcomet import hardware as hardware
from jaxcomet import strategies as strategies
from jaxcomet._version import __version__ as __version__
from jaxcomet.cost import (
    Conventions as Conventions,
)
from jaxcomet.cost import (
    Cost as Cost,
)
from jaxcomet.cost import (
    conventions as conventions,
)
from jaxcomet.cost import (
    evaluate as evaluate,
)
from jaxcomet.cost import (
    evaluate_relaxed as evaluate_relaxed,
)
from jaxcomet.mapping import Mapping as Mapping
from jaxcomet.mapping import MappingError as MappingError
from jaxcomet.operations import attention as attention
from jaxcomet.operations import gemm as gemm
from jaxcomet.operations import gemm_layernorm as gemm_layernorm
from jaxcomet.operations import gemm_softmax as gemm_softmax
from jaxcomet.workload import CompoundOp as CompoundOp
from jaxcomet.workload import WorkloadError as WorkloadError
