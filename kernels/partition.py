"""Which axes of a device mesh each dimension of an operation is split over.

The one idea: a kernel speaks of the dimensions of its operation (m, n, k; heads, sequence), the
user of the axes of a mesh, and a `Partition` is the table between them. Sizes that do not divide
are padded here and masked by the kernel, which asks how many of its elements are real.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxcomet.kernels.errors import KernelError, one_of

Axis = str | tuple[str, ...] | Mapping[str, str | tuple[str, ...]] | None
"""The mesh axis or axes of a kernel's usual dimension, or of each dimension by name."""

PARTITIONERS = ("shard_map", "auto")
"""Who decides what moves: the kernel (shard_map), or XLA from the shardings of the arguments."""


Dimensions = Sequence[str | tuple[str, ...] | None]
"""The dimension along each axis of an array."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The mesh, and the mesh axes that each dimension is split over; static and hashable.

    Attributes:
      mesh: the devices, or None for one device and no collectives.
      axes: pairs of a dimension and its mesh axes, for split dimensions alone.
    """

    mesh: Mesh | None
    axes: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def names(self, *dimensions: str) -> tuple[str, ...]:
        """The mesh axes of these dimensions, in this order; empty where none is split."""
        table = dict(self.axes)
        return tuple(name for dimension in dimensions for name in table.get(dimension, ()))

    def shards(self, *dimensions: str) -> int:
        """Into how many parts these dimensions are split."""
        if self.mesh is None:
            return 1
        return math.prod(self.mesh.shape[name] for name in self.names(*dimensions))

    def spec(self, *dimensions: str | tuple[str, ...] | None) -> PartitionSpec:
        """The PartitionSpec of an array whose axes are these dimensions.

        A tuple is one axis of the array that is split over the mesh axes of several dimensions.
        """
        return PartitionSpec(*(self.names(*_several(name)) or None for name in dimensions))

    def map(
        self,
        body: Callable[..., Any],
        in_specs: Sequence[PartitionSpec],
        out_specs: Any,
    ) -> Callable[..., Any]:
        """`body` on each device's part by `jax.shard_map`, with replication checking on.

        Without a mesh it is `body` itself. On a mesh with explicit axis types the arguments are
        resharded to `in_specs` first, since shard_map would refuse any other sharding there.
        """
        if self.mesh is None:
            return body
        mapped = jax.shard_map(body, mesh=self.mesh, in_specs=tuple(in_specs), out_specs=out_specs)
        if not self._explicit:
            return mapped
        return lambda *arguments: mapped(*map(self._placed, arguments, in_specs))

    def map_padded(
        self,
        body: Callable[..., Any],
        operands: Sequence[Array],
        dimensions: Sequence[Dimensions],
        result: Dimensions,
        sizes: Mapping[str, int],
    ) -> Array:
        """`map` for sizes that do not divide: operands are padded with zeros, the result cut.

        Where a size of the result does not divide, the cut leaves its sharding to XLA, which
        gathers it.

        Args:
          body: what each device does with its parts.
          operands: whole arrays.
          dimensions: for each operand the dimensions along each of its axes: a name, several names
            for an axis that is split over the mesh axes of them all, or None for one that is not
            split. An axis of size 1 is broadcast, not split.
          result: the same for the result.
          sizes: the real size of each dimension, under the first name of its axes.

        Returns:
          The result of `body`, put together.
        """
        axes = [_several(name) for names in (*dimensions, result) for name in names]
        whole = {
            name: padded(
                size, math.lcm(*(self.shards(*axis) for axis in axes if axis[:1] == (name,)))
            )
            for name, size in sizes.items()
        }
        specs, padded_operands = [], []
        for operand, names in zip(operands, dimensions, strict=True):
            kept = []
            for axis, name in enumerate(names):
                first = _several(name)[:1]
                broadcast = first and operand.shape[axis] == 1 and sizes[first[0]] != 1
                kept.append(None if broadcast else name)
                if first and not broadcast:
                    operand = pad(operand, axis, whole[first[0]])
            specs.append(self.spec(*kept))
            padded_operands.append(operand)
        mapped = self.map(body, specs, self.spec(*result))(*padded_operands)
        cut = [
            sizes[_several(name)[0]] if name else size
            for name, size in zip(result, mapped.shape, strict=True)
        ]
        mapped = self.resharded(mapped, *result, sizes=cut)
        return mapped[tuple(slice(size) for size in cut)]

    def constrain(self, array: Array, *dimensions: str | tuple[str, ...] | None) -> Array:
        """An array with its sharding stated to the automatic partitioner, where its sizes divide.

        Args:
          array: as it is without a mesh.
          dimensions: of its axes, as of `map_padded`.
        """
        if self.mesh is None:
            return array
        spec = self._dividing(dimensions, array.shape)
        return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, spec))

    def resharded(
        self,
        array: Array,
        *dimensions: str | tuple[str, ...] | None,
        sizes: Sequence[int] | None = None,
    ) -> Array:
        """On explicit axes, an array split along those of its axes whose sizes divide.

        Such axes admit neither padding nor cutting where they are split unevenly, and a derivative
        must be split as its argument is. Elsewhere it is the array itself.

        Args:
          array: to be split.
          dimensions: of its first axes, as of `map_padded`.
          sizes: that must divide, where they are not those of the array.
        """
        if not self._explicit:
            return array
        return self._placed(array, self._dividing(dimensions, sizes or array.shape))

    @property
    def _explicit(self) -> bool:
        """Whether shardings are part of the types, as on a mesh from `jax.make_mesh`."""
        return self.mesh is not None and AxisType.Explicit in self.mesh.axis_types

    def _placed(self, array: Array, spec: PartitionSpec) -> Array:
        assert self.mesh is not None
        return jax.reshard(array, NamedSharding(self.mesh, spec))

    def _dividing(self, dimensions: Dimensions, sizes: Sequence[int]) -> PartitionSpec:
        """The spec of an array that is split along those of its axes whose sizes divide."""
        return self.spec(
            *(
                name if size % self.shards(*_several(name)) == 0 else None
                for name, size in zip(dimensions, sizes, strict=False)
            )
        )


def partition(
    function: str,
    mesh: Mesh | None,
    axis: Axis,
    *,
    dimensions: Sequence[str],
    default: str,
) -> Partition:
    """Checks the `mesh` and `axis` arguments of a kernel.

    Args:
      function: the public function, for messages.
      mesh: the devices, or None.
      axis: a mesh axis, or several, for the `default` dimension; or a mapping from dimensions to
        mesh axes; None is all axes of the mesh for the `default` dimension.
      dimensions: the dimensions that may be split.
      default: the dimension that is meant where only mesh axes are named.

    Raises:
      KernelError: an axis without a mesh, an unknown dimension or mesh axis, a mesh axis that is
        used twice.
    """
    if mesh is None:
        if axis is not None:
            raise KernelError(f"{function}: axis: got {axis!r} without a mesh; give mesh= too")
        return Partition(mesh=None)
    if axis is None:
        axis = {default: tuple(mesh.axis_names)}
    elif not isinstance(axis, Mapping):
        axis = {default: axis}
    axes, seen = [], {}
    for dimension, names in axis.items():
        one_of(function, "axis", dimension, dimensions)
        names = (names,) if isinstance(names, str) else tuple(names)
        for name in names:
            one_of(function, f"axis of {dimension}", name, mesh.axis_names)
            if name in seen:
                raise KernelError(
                    f"{function}: axis: got mesh axis {name!r} for {seen[name]} and {dimension}; "
                    "expected each mesh axis once; name another one"
                )
            seen[name] = dimension
        if names:
            axes.append((dimension, names))
    return Partition(mesh=mesh, axes=tuple(axes))


def check_partitioner(function: str, partitioner: str, mesh: Mesh | None) -> None:
    """Refuses an unknown partitioner, and the automatic one on a mesh that leaves it nothing.

    Raises:
      KernelError: no such partitioner, or ``auto`` with explicit axis types.
    """
    one_of(function, "partitioner", partitioner, PARTITIONERS)
    if partitioner == "auto" and mesh is not None and AxisType.Explicit in mesh.axis_types:
        raise KernelError(
            f"{function}: partitioner: got 'auto' with a mesh of explicit axis types, where XLA "
            "decides nothing; make the mesh by jaxcomet.kernels.make_mesh, or with "
            "axis_types=(AxisType.Auto,) * number of axes"
        )


def padded(size: int, multiple: int) -> int:
    """The smallest multiple that holds a size.

    Example:
      >>> padded(5, 4)
      8
    """
    return -(-size // multiple) * multiple


def pad(array: Array, axis: int, size: int) -> Array:
    """An array with zeros behind it along one axis, so that the axis has `size` elements."""
    missing = size - array.shape[axis]
    if missing == 0:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, missing)
    return jnp.pad(array, widths)


def _several(name: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The dimensions of one axis as a tuple."""
    return (name,) if isinstance(name, str) else name or ()
