"""How a layer runs its kernel, settled when the layer is made.

The one idea: an attribute of an nnx module that holds no arrays is part of its graph definition, so
it must be hashable; wrong names are refused where they are written, not at the first call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet.kernels.errors import one_of
from jaxcomet.kernels.partition import Axis, Partition, check_partitioner, partition
from jaxcomet.kernels.statistics import REDUCTIONS


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The arguments of a kernel that are no arrays; static and hashable.

    Attributes:
      strategy: of the kernel.
      partition: the mesh, and the mesh axes of each dimension.
      partitioner: ``shard_map`` or ``auto``.
      reduction: of statistics, ``combined`` or ``separate``.
      wire_dtype: name of the dtype of what is sent, or None for the kernel's own choice.
    """

    strategy: str
    partition: Partition
    partitioner: str
    reduction: str
    wire_dtype: str | None

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the kernel."""
        mesh = self.partition.mesh
        return {
            "strategy": self.strategy,
            "mesh": mesh,
            "axis": None if mesh is None else dict(self.partition.axes),
            "partitioner": self.partitioner,
            "reduction": self.reduction,
            "wire_dtype": self.wire_dtype,
        }


def execution(
    layer: str,
    *,
    strategy: str,
    strategies: Sequence[str],
    mesh: Mesh | None,
    axis: Axis,
    dimensions: Sequence[str],
    default: str,
    partitioner: str,
    reduction: str,
    wire_dtype: DTypeLike | None,
) -> Execution:
    """Checks how a layer is to be run.

    Args:
      layer: its class, for messages.
      strategy: the name asked for.
      strategies: those there are.
      mesh: the devices, or None for one.
      axis: as of the kernel.
      dimensions: that may be split.
      default: the dimension meant where `axis` names mesh axes alone.
      partitioner: as of the kernel.
      reduction: as of the kernel.
      wire_dtype: as of the kernel.

    Raises:
      KernelError: an unknown name, or an axis that the mesh does not have.
    """
    one_of(layer, "strategy", strategy, strategies)
    one_of(layer, "reduction", reduction, REDUCTIONS)
    check_partitioner(layer, partitioner, mesh)
    return Execution(
        strategy=strategy,
        partition=partition(layer, mesh, axis, dimensions=dimensions, default=default),
        partitioner=partitioner,
        reduction=reduction,
        wire_dtype=None if wire_dtype is None else jnp.dtype(wire_dtype).name,
    )
