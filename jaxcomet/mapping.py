"""Mappings: a tree that says where and when a compound operation runs.

The one idea: structure is static, numbers are leaves. A tree of temporal, spatial, group, compute
and collective nodes names its loop steps by *factors* (``M_gb_t``: dimension M, level gb, temporal;
``N_dram_sx``: spatial along mesh x below dram; ``K_comp``: extent of one engine call); the factors'
values are the only leaves. One compiled cost program therefore serves every mapping of a tree. A
*home* names the memory in which a tensor is handed over from its producer to its consumers (inputs
and outputs of the compound operation: the outermost memory); what moves where follows from the
homes.

Left out: skewed or data-dependent schedules, and one tensor in two homes at once.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jax.tree_util import register_dataclass

from jaxcomet._compat import is_traced
from jaxcomet.arith import Number
from jaxcomet.workload import CompoundOp


class MappingError(ValueError):
    """A mapping that cannot be: the message names the factor, what was got and what is allowed."""


@dataclass(frozen=True)
class Masked:
    """Where a loop over blocks of columns stands among blocks of rows, to skip what is masked.

    Attributes:
      blocks: factors whose product is the number of row blocks (a loop further out).
      rows: factors whose product is the rows of one block.
      columns: factors whose product is the columns of one block.
    """

    blocks: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    """A loop over one dimension; its steps are the product of the named factors.

    Attributes:
      dim: loop dimension.
      factors: names of the factors whose product is the number of steps.
      masked: steps whose columns the workload's mask hides from all rows of the step are left
        out; None: all steps are made.
    """

    dim: str
    factors: tuple[str, ...]
    masked: Masked | None = None


@dataclass(frozen=True)
class Temporal:
    """Steps in time at one level.

    Each step moves tiles between this level's memory and the one below.

    Attributes:
      level: the level whose memories the tiles come from.
      loops: outermost first.
      body: what one step runs.
      rotates: tensors of which each unit of this level holds one tile of these loops at a time:
        the tiles come from a neighbouring unit (a ``permute``), not again from the level above.
      streams: tensors whose tiles move in these steps alone, while the tiles of the others stay
        for all of them: those move at the node of the same level further out. Empty: all tensors
        move here.
    """

    level: str
    loops: tuple[Loop, ...]
    body: "Node"
    rotates: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()

    def moves(self, tensor: str) -> bool:
        """Whether tiles of a tensor move in these steps."""
        return not self.streams or tensor in self.streams


@dataclass(frozen=True)
class Spatial:
    """Copies of the body on the units of a level.

    Attributes:
      level: the level whose units are used.
      x: loops laid along mesh x, outermost first.
      y: loops laid along mesh y.
      body: what each unit runs.
    """

    level: str
    x: tuple[Loop, ...]
    y: tuple[Loop, ...]
    body: "Node"


@dataclass(frozen=True)
class Group:
    """Siblings and how they are bound.

    One after the other, as stages of a pipeline over the enclosing steps (each works on what the
    one before made in the last step), or in parallel within each step (none needs another's
    result of that step).
    """

    children: tuple["Node", ...]
    binding: Literal["sequential", "pipelined", "parallel"] = "sequential"


@dataclass(frozen=True)
class Compute:
    """One engine call.

    Attributes:
      operation: name of the elementary operation.
      tile: extent of the call along each dimension, as loops with one step each per element.
    """

    operation: str
    tile: tuple[Loop, ...]


CollectiveKind = Literal[
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "permute",
]


@dataclass(frozen=True)
class Ranks:
    """Participants of a collective at one more level.

    Attributes:
      memory: where each of them holds its part.
      x: factors whose product is the number of participants along mesh x.
      y: the same along mesh y.
    """

    memory: str
    x: tuple[str, ...]
    y: tuple[str, ...]


@dataclass(frozen=True)
class Collective:
    """An explicit exchange between units.

    Attributes:
      kind: what is exchanged with whom (docs/collectives.md).
      tensor: what is exchanged.
      memory: where each participant holds it.
      x: factors whose product is the number of participants along mesh x.
      y: the same along mesh y.
      tile: extent of one participant's part along each dimension of the tensor.
      function: elementary function that combines (``max``, ``add``); None where nothing is
        combined.
      implied: the mathematics needs it, but the authors' program leaves it out (convention
        ``partial_reductions``).
      algorithm: how it is done; ``auto``: the fastest one.
      bits: bits per element on the way; None: as the tensor's producer moves it.
      outer: further levels that take part, innermost first (algorithm ``hierarchical``).
      groups: factors over units below the nodes above that do not take part: so many exchanges run
        side by side, besides those of the units above.
    """

    kind: CollectiveKind
    tensor: str
    memory: str
    x: tuple[str, ...]
    y: tuple[str, ...]
    tile: tuple[Loop, ...]
    function: str | None = None
    implied: bool = False
    algorithm: str = "mesh"
    bits: int | None = None
    outer: tuple[Ranks, ...] = ()
    groups: tuple[str, ...] = ()


Node = Temporal | Spatial | Group | Compute | Collective


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below a node."""
    match node:
        case Temporal() | Spatial():
            return (node.body,)
        case Group():
            return node.children
        case Compute() | Collective():
            return ()


def walk(node: Node, above: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Every node with its ancestors (outermost first), depth first."""
    yield node, above
    for child in children(node):
        yield from walk(child, (*above, node))


def computes(node: Node) -> tuple[Compute, ...]:
    """The engine calls below a node, in order."""
    return tuple(n for n, _ in walk(node) if isinstance(n, Compute))


def loops_of(node: Node) -> tuple[Loop, ...]:
    """Loops of a node itself, outermost first; x before y."""
    match node:
        case Temporal():
            return node.loops
        case Spatial():
            return (*node.x, *node.y)
        case Compute():
            return node.tile
        case _:
            return ()


def factor_names(tree: Node) -> tuple[str, ...]:
    """Names of all factors of a tree, in order of appearance (outermost first)."""
    names = [f for n, _ in walk(tree) for loop in loops_of(n) for f in loop.factors]
    return tuple(dict.fromkeys(names))


def factor_chain(tree: Node, operation: str, dim: str) -> tuple[str, ...]:
    """Factors that split `dim` for one operation, outermost first."""
    for node, above in walk(tree):
        if isinstance(node, Compute) and node.operation == operation:
            loops = [loop for n in (*above, node) for loop in loops_of(n)]
            return tuple(f for loop in loops if loop.dim == dim for f in loop.factors)
    raise MappingError(
        f"tree: runs no operation {operation!r}; it runs {[c.operation for c in computes(tree)]}"
    )


def reordered(tree: Node, orders: MappingABC[str, Sequence[str]]) -> Node:
    """The tree with the loops in time of some levels in another order.

    Args:
      tree: a mapping tree.
      orders: by level, dimensions from the outermost loop inwards, e.g. ``{"gb": "KMN"}``; loops
        over dimensions that are not named stay inside those that are, in their order.

    Raises:
      MappingError: a level at which the tree has no loops, or a dimension over which it has none
        there.
    """
    found: dict[str, set[str]] = {}
    for node, _ in walk(tree):
        if isinstance(node, Temporal):
            found.setdefault(node.level, set()).update(x.dim for x in node.loops)
    for level, order in orders.items():
        if level not in found:
            raise MappingError(
                f"loop order: got level {level!r}; the tree has loops at {', '.join(found)}"
            )
        for dim in order:
            if dim not in found[level]:
                known = ", ".join(sorted(found[level])) or "none"
                raise MappingError(
                    f"loop order of {level}: got dimension {dim!r}; there are loops over {known}"
                )

    def place(level: str, loop: Loop) -> int:
        order = list(orders[level])
        return order.index(loop.dim) if loop.dim in order else len(order)

    def changed(node: Node) -> Node:
        match node:
            case Temporal():
                loops = node.loops
                if node.level in orders:
                    loops = tuple(sorted(loops, key=lambda x: place(node.level, x)))
                return dataclasses.replace(node, loops=loops, body=changed(node.body))
            case Spatial():
                return dataclasses.replace(node, body=changed(node.body))
            case Group():
                return dataclasses.replace(node, children=tuple(changed(c) for c in node.children))
            case _:
                return node

    return changed(tree)


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Mapping:
    """A mapping tree with its factors; build it with `Mapping.from_factors`.

    Attributes:
      strategy: name of the strategy, with its options, that built the tree.
      tree: the tree.
      homes: (tensor, memory) pairs: where each intermediate tensor is handed over.
      factors: value of every factor of the tree; the leaves.
      rewrites: rewrites of the workload for which the tree is made (see `jaxcomet.rewrite`).
    """

    strategy: str = dataclasses.field(metadata={"static": True})
    tree: Node = dataclasses.field(metadata={"static": True})
    homes: tuple[tuple[str, str], ...] = dataclasses.field(metadata={"static": True})
    factors: MappingABC[str, Number]
    rewrites: tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})

    @classmethod
    def from_factors(
        cls,
        workload: CompoundOp,
        *,
        strategy: str,
        tree: Node,
        homes: MappingABC[str, str],
        factors: MappingABC[str, object],
        rewrites: tuple[str, ...] = (),
    ) -> "Mapping":
        """A checked mapping.

        Args:
          workload: what is mapped, after the rewrites; its sizes are the loop bounds.
          strategy: name for the record.
          tree: the mapping tree.
          homes: memory of every intermediate tensor.
          factors: whole numbers >= 1 by name, or arrays of them (a batch); those left out are 1.
          rewrites: the rewrites that were made.

        Returns:
          The mapping.

        Raises:
          MappingError: an operation that the tree does not run; an unknown factor; a value that is
            no whole number >= 1; factors of a dimension that do not cover its bound, or cover it
            with steps that have nothing to do. A bound that the tiles do not
            divide is covered by a last, partial tile: 7 = 2 steps of 4.
        """
        names = factor_names(tree)
        values: dict[str, Number] = dict.fromkeys(names, 1.0)
        for name, value in factors.items():
            if name not in values:
                near = difflib.get_close_matches(name, names, n=3) or names
                raise MappingError(
                    f"factor {name}: unknown for strategy {strategy}; did you mean "
                    f"{', '.join(near)}?"
                )
            values[name] = _check_factor(name, value)
        run = [c.operation for c in computes(tree)]
        for operation in workload.operations:
            if run.count(operation.name) != 1:
                raise MappingError(
                    f"tree: runs {operation.name} of {workload.name} {run.count(operation.name)} "
                    "times; expected every operation once"
                )
        traced = [*values.values(), *workload.sizes.values()]
        if not any(is_traced(v) for v in traced):
            _check_cover(workload, tree, values, strategy)
        return cls(
            strategy=strategy,
            tree=tree,
            homes=tuple(sorted(homes.items())),
            factors=values,
            rewrites=rewrites,
        )

    def home(self, tensor: str, root: str) -> str:
        """Memory in which a tensor is handed over; `root` unless the mapping says otherwise."""
        return dict(self.homes).get(tensor, root)


def _check_factor(name: str, value: object) -> Number:
    if is_traced(value):
        return value
    wanted = "expected a whole number >= 1"
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise MappingError(f"factor {name}: got {value!r}; {wanted}") from None
    bad = ~(np.isfinite(array) & (array >= 1) & (array == np.floor(array)))
    if bad.any() or isinstance(value, bool):
        index = int(np.argmax(bad.ravel()))
        where = f" in row {index + 1}" if array.ndim else ""
        raise MappingError(f"factor {name}: got {array.ravel()[index]:g}{where}; {wanted}")
    return float(array) if array.ndim == 0 else array


def _check_cover(
    workload: CompoundOp, tree: Node, values: MappingABC[str, Number], strategy: str
) -> None:
    """Factors times each other cover each bound, and no step is empty."""
    problems: list[str] = []
    for compute in computes(tree):
        op = workload.operation(compute.operation)
        for dim in workload.iteration_dims(op):
            chain = factor_chain(tree, op.name, dim)
            bound = np.asarray(workload.sizes[dim])
            inner = np.asarray(1.0)
            fault = None
            for name in reversed(chain):
                factor = np.asarray(values[name])
                # a step is empty where one step fewer would already reach the bound.
                empty = np.asarray((factor > 1) & (inner * (factor - 1) >= bound))
                fault = (
                    _fault(empty, name, factor, bound, np.asarray(np.ceil(bound / inner))) or fault
                )
                inner = np.asarray(inner * factor)
            if (inner < bound).any():
                row = int(
                    np.argmax(
                        np.broadcast_to(
                            inner < bound, np.broadcast_shapes(inner.shape, bound.shape)
                        ).ravel()
                    )
                )
                got = " x ".join(f"{n}={_at(values[n], row):g}" for n in chain) or "no factor"
                where = f" in row {row + 1}" if inner.ndim or bound.ndim else ""
                problems.append(
                    f"dimension {dim} of {op.name}{where}: factors {got} multiply to "
                    f"{_at(inner, row):g}; "
                    f"expected at least {_at(bound, row):g}"
                )
            elif fault:
                problems.append(f"dimension {dim} of {op.name}: {fault}")
    if problems:
        more = f" (and {len(set(problems)) - 1} more)" if len(set(problems)) > 1 else ""
        raise MappingError(
            "; ".join(dict.fromkeys(problems[:2]))
            + (more if len(set(problems)) > 2 else "")
            + f" [strategy {strategy}]"
        )


def _fault(
    empty: np.ndarray, name: str, factor: np.ndarray, bound: np.ndarray, most: np.ndarray
) -> str | None:
    if not empty.any():
        return None
    row = int(np.argmax(empty.ravel()))
    where = f" in row {row + 1}" if empty.ndim else ""
    return (
        f"factor {name}{where}: got {_at(factor, row):g} steps, the last ones with nothing to do; "
        f"expected at most {_at(most, row):g} for a bound of {_at(bound, row):g}"
    )


def _at(value: object, row: int) -> float:
    array = np.asarray(value)
    return float(array if array.ndim == 0 else array.ravel()[row if array.size > 1 else 0])


def describe(node: Node, factors: MappingABC[str, Number], indent: int = 0) -> str:
    """The tree as an indented loop nest, one line a node; loops of one step are left out."""
    pad = "  " * indent

    def loops(items: tuple[Loop, ...], word: str) -> str:
        steps = [(x.dim, math.prod(_at(factors[f], 0) for f in x.factors)) for x in items]
        return ", ".join(f"{word} {d} in {n:g}" for d, n in steps if n != 1)

    match node:
        case Temporal():
            text = f"{pad}{node.level}: {loops(node.loops, 'for') or 'once'}"
            if node.streams:
                text += f" (tiles of {', '.join(node.streams)} alone)"
        case Spatial():
            along = [s for s in (loops(node.x, "x:"), loops(node.y, "y:")) if s]
            text = f"{pad}spread over {node.level} units: {', '.join(along) or 'one unit'}"
        case Group():
            text = f"{pad}{node.binding}:"
        case Compute():
            tile = ", ".join(
                f"{x.dim} {math.prod(_at(factors[f], 0) for f in x.factors):g}" for x in node.tile
            )
            text = f"{pad}{node.operation} on a tile of {tile}"
        case Collective():
            count = math.prod(_at(factors[f], 0) for f in (*node.x, *node.y))
            text = f"{pad}{node.kind} of {node.tensor} between {count:g} {node.memory}"
    return "\n".join([text, *(describe(c, factors, indent + 1) for c in children(node))])
