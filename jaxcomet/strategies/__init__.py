"""Strategies: mapping trees by name, one module per compound operation."""

from collections.abc import Mapping as _MappingABC

from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping, MappingError
from jaxcomet.strategies import attention as _attention
from jaxcomet.strategies import gemm as _gemm
from jaxcomet.strategies import gemm_layernorm as _gemm_layernorm
from jaxcomet.strategies import gemm_softmax as _gemm_softmax
from jaxcomet.strategies.strategy import Plan as Plan
from jaxcomet.strategies.strategy import Strategy as Strategy
from jaxcomet.strategies.strategy import find as _find
from jaxcomet.workload import CompoundOp

_BY_WORKLOAD: dict[str, tuple[Strategy, ...]] = {
    "gemm": _gemm.STRATEGIES,
    "gemm-softmax": _gemm_softmax.STRATEGIES,
    "gemm-layernorm": _gemm_layernorm.STRATEGIES,
    "attention": _attention.STRATEGIES,
}


def available(workload: str) -> tuple[Strategy, ...]:
    """Strategies of a compound operation, by its name.

    Raises:
      MappingError: no strategy is known for it.
    """
    if workload not in _BY_WORKLOAD:
        raise MappingError(
            f"workload: got {workload!r}; strategies are known for {', '.join(_BY_WORKLOAD)}"
        )
    return _BY_WORKLOAD[workload]


def get(workload: str, name: str) -> Strategy:
    """One strategy of a compound operation.

    Raises:
      MappingError: an unknown name; the known ones are listed.
    """
    return _find(available(workload), name, workload)


def build(
    workload: CompoundOp,
    machine: Machine,
    strategy: str,
    factors: _MappingABC[str, object],
    **options: str,
) -> Mapping:
    """A mapping of a workload by a named strategy.

    Args:
      workload: what is mapped.
      machine: whose levels the factors are named after.
      strategy: e.g. ``fused-gemm-distsm``.
      factors: whole numbers by name (``M_dram_t``, ``N_gb_sx``, ``K_comp``), or arrays of them;
        those left out are 1.
      **options: the strategy's options, e.g. ``reduce="tile"``.

    Raises:
      MappingError: an unknown strategy, option or factor, or factors that do not cover the
        workload's dimensions.
    """
    return get(workload.name, strategy).build(workload, machine, factors, **options)
