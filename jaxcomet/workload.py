"""Workloads: a compound operation is a graph of elementary operations over named loop dimensions.

The one idea: every operation is described by its tensors' dimensions alone (as in an einsum), so
the cost model needs to know no operation by name. Left out: sliding windows (convolution) and
data-dependent sizes.
"""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
from jax.tree_util import register_dataclass

from jaxcomet._compat import is_traced
from jaxcomet.arith import Number

OperationKind = Literal["contract", "map", "reduce"]


class WorkloadError(ValueError):
    """A workload that cannot be; the message names argument, what was got and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor: its dimensions, and the width at which the outermost memory stores it.

    Attributes:
      name: unique name.
      dims: loop dimensions, e.g. ``("M", "N")``.
      bits: bits per element in the outermost memory.
    """

    name: str
    dims: tuple[str, ...]
    bits: int


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An elementary operation.

    Attributes:
      name: unique name, e.g. ``rowmax``.
      kind: ``contract`` (einsum of two operands on a matrix engine), ``map`` (element by element)
        or ``reduce`` (along the
        dimensions that the output lacks); the latter two run on a vector engine.
      function: elementary function, ``mac`` or an entry of the vector engine's table (``max``,
        ``exp``, ...).
      inputs: names of the operands.
      output: name of the result.
      bits: bits per element at which the operation's operands and result move inside the machine.
      carried: dimensions along which the operation runs block after block on running values (the
        online softmax): a result that lacks them is updated by each block of their loops and final
        after the last; one that has them is relative to the running values of its block. The
        operation may read its own result, or one that is made later: the value of the block before.
    """

    name: str
    kind: OperationKind
    function: str
    inputs: tuple[str, ...]
    output: str
    bits: int
    carried: tuple[str, ...] = ()


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class CausalMask:
    """Which columns a row may see: row block by row block a few more (bottom-right aligned).

    Rows are ordered by position, the heads that share keys side by side: row m is at position
    ``m // rows_per_position`` and sees the first ``offset + position + 1`` columns.

    Attributes:
      rows: loop dimension of the rows.
      columns: loop dimension of the columns.
      rows_per_position: rows that see the same columns.
      offset: columns before the first position (key length - query length), >= 0.
    """

    rows: str = dataclasses.field(metadata={"static": True})
    columns: str = dataclasses.field(metadata={"static": True})
    rows_per_position: Number
    offset: Number


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class CompoundOp:
    """A graph of elementary operations in the order in which they run.

    Attributes:
      name: e.g. ``gemm-softmax``.
      operations: in dependency order.
      tensors: every tensor that they name.
      sizes: extent of each loop dimension; leaves, so that shapes can be batched.
      mask: columns that some rows may not see; None where all see all.
    """

    name: str = dataclasses.field(metadata={"static": True})
    operations: tuple[Operation, ...] = dataclasses.field(metadata={"static": True})
    tensors: tuple[Tensor, ...] = dataclasses.field(metadata={"static": True})
    sizes: Mapping[str, Number]
    mask: CausalMask | None = None

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`."""
        return next(t for t in self.tensors if t.name == name)

    def operation(self, name: str) -> Operation:
        """The operation called `name`."""
        return next(o for o in self.operations if o.name == name)

    def iteration_dims(self, operation: Operation) -> tuple[str, ...]:
        """Loop dimensions of an operation: those of its tensors, in order of appearance."""
        names = [*operation.inputs, operation.output]
        return tuple(dict.fromkeys(d for n in names for d in self.tensor(n).dims))

    def producer(self, tensor: str) -> Operation | None:
        """The operation that makes a tensor; None for an input of the compound operation."""
        makers = [o for o in self.operations if o.output == tensor]
        return next((o for o in makers if tensor not in o.inputs), makers[0] if makers else None)

    def consumers(self, tensor: str) -> tuple[Operation, ...]:
        """The operations that read a tensor."""
        return tuple(o for o in self.operations if tensor in o.inputs)

    def is_intermediate(self, tensor: str) -> bool:
        """Whether a tensor is made and read inside the compound operation."""
        return self.producer(tensor) is not None and bool(self.consumers(tensor))

    def elements(self, tensor: str) -> Number:
        """Number of elements of a tensor."""
        return math.prod((self.sizes[d] for d in self.tensor(tensor).dims), start=1.0)

    def points(self, operation: Operation) -> Number:
        """Size of an operation's iteration space: multiply-accumulates or elementary operations."""
        return math.prod((self.sizes[d] for d in self.iteration_dims(operation)), start=1.0)

    def needed_points(self, operation: Operation) -> Number:
        """Points of an operation's iteration space that the mask leaves: the work that counts."""
        points, mask = self.points(operation), self.mask
        if mask is None or not {mask.rows, mask.columns} <= set(self.iteration_dims(operation)):
            return points
        rows, columns = self.sizes[mask.rows], self.sizes[mask.columns]
        positions = rows / mask.rows_per_position
        seen = rows * (mask.offset + 0.5 * (positions + 1.0))
        return points * (seen / (rows * columns))


def check_size(name: str, value: object) -> Number:
    """A loop extent as a float, or an array of them.

    Args:
      name: what to call it in the error.
      value: a whole number >= 1, or an array of such.

    Raises:
      WorkloadError: anything else, and sizes beyond 2**53, which a float64 cannot tell apart.
    """
    if is_traced(value):
        return value
    wanted = "expected a whole number from 1 to 2**53"
    if isinstance(value, bool) or not isinstance(value, numbers.Real | np.ndarray | jax.Array):
        raise WorkloadError(f"size {name}: got {value!r}; {wanted}")
    array = np.asarray(value, dtype=np.float64)
    bad = ~(np.isfinite(array) & (array >= 1) & (array <= 2.0**53) & (array == np.floor(array)))
    if bad.any():
        where = f" in row {int(np.argmax(bad.ravel())) + 1}" if array.ndim else ""
        got = array.ravel()[int(np.argmax(bad.ravel()))]
        raise WorkloadError(f"size {name}: got {got:g}{where}; {wanted}")
    return float(array) if array.ndim == 0 else array


def build(
    name: str,
    *,
    operations: tuple[Operation, ...],
    tensors: tuple[Tensor, ...],
    sizes: Mapping[str, object],
    mask: CausalMask | None = None,
) -> CompoundOp:
    """A checked compound operation.

    Raises:
      WorkloadError: an unknown tensor, a tensor made twice or read before it is made (unless a
        running value of a `carried` operation), a dimension without a size, a size that is no
        whole number >= 1, a contraction without exactly two operands.
    """
    by_name = {t.name: t for t in tensors}
    made: set[str] = set()
    produced = {o.output for o in operations}
    running = {o.output for o in operations if o.carried and o.output in o.inputs}
    for op in operations:
        for tensor in (*op.inputs, op.output):
            if tensor not in by_name:
                raise WorkloadError(
                    f"{name}.{op.name}: got tensor {tensor!r}; expected one of {sorted(by_name)}"
                )
            for dim in by_name[tensor].dims:
                if dim not in sizes:
                    raise WorkloadError(
                        f"{name}.{tensor}: got dimension {dim!r} without a size; add it to sizes"
                    )
        for tensor in op.inputs:
            if tensor in produced and tensor not in made and not op.carried:
                raise WorkloadError(
                    f"{name}.{op.name}: reads {tensor!r} before it is made; reorder the operations"
                )
        if op.output in made and not (op.carried and {op.output} <= running):
            raise WorkloadError(
                f"{name}.{op.name}: makes {op.output!r} a second time; give each result its own "
                "name"
            )
        if op.kind == "contract" and len(op.inputs) != 2:
            raise WorkloadError(
                f"{name}.{op.name}: got {len(op.inputs)} operands; a contraction has 2"
            )
        made.add(op.output)
    return CompoundOp(
        name=name,
        operations=operations,
        tensors=tensors,
        sizes={d: check_size(d, s) for d, s in sizes.items()},
        mask=mask,
    )
