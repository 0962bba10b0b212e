"""jaxcomet: a differentiable model of machines and mappings for the compound operations of transformers."""

from jaxcomet import hardware as hardware, strategies as strategies
from jaxcomet._version import __version__ as __version__
from jaxcomet.cost import (
    Conventions as Conventions,
    Cost as Cost,
    conventions as conventions,
    evaluate as evaluate,
)
from jaxcomet.mapping import Mapping as Mapping, MappingError as MappingError
from jaxcomet.operations import gemm_softmax as gemm_softmax
from jaxcomet.workload import CompoundOp as CompoundOp, WorkloadError as WorkloadError
