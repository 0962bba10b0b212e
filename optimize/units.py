"""Units that the spatial factors of a tree take on a machine: as many as are there and find work.

The one idea: what a mapping spreads follows from the meshes, so that a mesh may be a number that a
search moves. The rules are the same on whole numbers, on arrays of machines and workloads, and
relaxed between whole numbers (`jaxcomet.arith`).
"""

from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import dataclass

from jaxcomet.arith import Number, ceil, floor, maximum, minimum, product
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Node, Spatial, computes, factor_chain, walk
from jaxcomet.workload import CompoundOp


@dataclass
class _Share:
    """What is left of a dimension's extent for further units, and the factors that take of it."""

    names: set[str]
    bound: Number
    inner: Number = 1.0

    @property
    def rest(self) -> Number:
        """Steps that are left when the units chosen so far take theirs."""
        return ceil(self.bound / self.inner)


@dataclass(frozen=True)
class _Slot:
    """A factor that takes units along an edge of a mesh, and when it is its turn."""

    turn: tuple[bool, int, int, tuple[int, int]]
    name: str
    units: Number


def spatial_factors(workload: CompoundOp, machine: Machine, tree: Node) -> dict[str, Number]:
    """Units that each spatial factor of a tree takes: as many as are there and find work.

    Dimensions that share a mesh are served in the order in which the tree names them: all but the
    last one from the outermost level inwards, so that what is independent goes to units far apart;
    the last one from the innermost level outwards.

    Args:
      workload: its sizes are the bounds; they may be arrays.
      machine: its meshes; they may be arrays.
      tree: the tree.

    Returns:
      Whole numbers, as floats or arrays of the shape that sizes and meshes broadcast to.
    """
    nodes = [n for n, _ in walk(tree) if isinstance(n, Spatial)]
    unique = list(dict.fromkeys((n.level, n.x, n.y) for n in nodes))
    names = {f for _, x, y in unique for loop in (*x, *y) for f in loop.factors}
    shares: list[_Share] = []
    for chain_dim, chain in chains(workload, tree):
        used = set(chain) & names
        if used:
            shares.append(_Share(used, workload.sizes[chain_dim]))
    slots: list[_Slot] = []
    for order, (level, x, y) in enumerate(unique):
        mesh = machine.level(level)
        depth = machine.level_index(level)
        for edge, (loops, units) in enumerate(((x, mesh.mesh_x), (y, mesh.mesh_y))):
            for position, loop in enumerate(loops):
                last = position == len(loops) - 1
                rank = -(2 * depth + edge) if last else 2 * depth + edge
                turn = (last, 0 if last else position, rank, (order, edge))
                slots += [_Slot(turn, name, units) for name in loop.factors]
    free: dict[tuple[int, int], Number] = {}
    chosen: dict[str, Number] = {}
    for slot in sorted(slots, key=lambda s: (s.turn, s.name)):
        if slot.name in chosen:
            continue
        left = free.get(slot.turn[-1], slot.units)
        taking = [s for s in shares if slot.name in s.names]
        taken = maximum(1.0, minimum(left, *(s.rest for s in taking)))
        chosen[slot.name] = taken
        free[slot.turn[-1]] = floor(left / taken)
        for s in taking:
            s.inner = s.inner * taken
    return chosen


def chains(workload: CompoundOp, tree: Node) -> list[tuple[str, tuple[str, ...]]]:
    """(dimension, factors that split it) for each way in which an operation does so."""
    found: dict[tuple[str, tuple[str, ...]], None] = {}
    for c in computes(tree):
        for dim in workload.iteration_dims(workload.operation(c.operation)):
            found[dim, factor_chain(tree, c.operation, dim)] = None
    return list(found)


def without_idle(
    bound: Number, names: Sequence[str], chosen: MappingABC[str, Number]
) -> dict[str, Number]:
    """The units of some factors without those that a partial last tile leaves without work.

    Args:
      bound: extent of the dimension.
      names: its factors over units, outermost first; the innermost lose units first.
      chosen: the units so far.

    Returns:
      The units of these factors.
    """
    inner = ceil(bound / product([chosen[n] for n in names]))
    found: dict[str, Number] = {}
    for name in reversed(names):
        found[name] = minimum(chosen[name], ceil(bound / inner))
        inner = inner * found[name]
    return found
