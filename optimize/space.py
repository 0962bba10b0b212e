"""The space of mappings of a strategy, read off its tree.

The one idea: a tree says which factors split which dimension, so its space is the product, over
dimensions, of all splits of the dimension over the temporal factors. Spatial factors are set to
what the machine's meshes offer. Parts of a tree that share no factor (operations that run apart)
form spaces of their own: the best of the whole is the best of each.

Left out: spreading over fewer units than fit, and other loop orders.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Group, Node, Spatial, computes, factor_chain, factor_names, walk
from jaxcomet.workload import CompoundOp


@dataclass(frozen=True)
class Axis:
    """All splits of one dimension.

    Attributes:
      dim: the dimension.
      names: factors, one per column.
      splits: values, shape (splits, factors), float64.
    """

    dim: str
    names: tuple[str, ...]
    splits: np.ndarray


@dataclass(frozen=True)
class Space:
    """The mappings of a tree, or of a part of it that shares no factor with the rest.

    Attributes:
      tree: the part.
      axes: one or more per dimension; a mapping picks one split of each.
    """

    tree: Node
    axes: tuple[Axis, ...]

    @cached_property
    def size(self) -> int:
        """Number of mappings."""
        size = 1
        for axis in self.axes:
            size *= len(axis.splits)
        return size

    def factors(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Factors of the mappings with the given numbers (0 to size - 1)."""
        found: dict[str, np.ndarray] = {}
        rest = indices
        for axis in reversed(self.axes):
            rest, choice = np.divmod(rest, len(axis.splits))
            picked = axis.splits[choice]
            for column, name in enumerate(axis.names):
                found[name] = picked[:, column]
        return found


def factorizations(extent: int, slots: int) -> np.ndarray:
    """All ordered ways to write `extent` as a product of `slots` whole numbers, shape (ways.

    Slots).

    Example:
      >>> factorizations(4, 2).tolist()
      [[1.0, 4.0], [2.0, 2.0], [4.0, 1.0]]
    """
    divisors = [d for d in range(1, int(extent**0.5) + 1) if extent % d == 0]
    divisors = sorted({*divisors, *(extent // d for d in divisors)})

    def split(rest: int, left: int) -> Iterator[tuple[int, ...]]:
        if left == 1:
            yield (rest,)
            return
        for d in divisors:
            if rest % d == 0:
                for tail in split(rest // d, left - 1):
                    yield (d, *tail)

    return np.array(list(split(extent, slots)), dtype=np.float64)


def _padded(extent: int) -> list[int]:
    """The extent, and those a little larger that have more divisors: at most an eighth more."""
    found = [extent]
    step = 2
    while step <= extent // 8:
        found.append(-(-extent // step) * step)
        step *= 2
    return sorted(set(found))


def _spatial(bound: int, names: list[tuple[str, int]]) -> dict[str, int]:
    """Units along each mesh edge, innermost first: as many as are there and find work."""
    chosen: dict[str, int] = {}
    inner = 1
    for name, units in reversed(names):
        chosen[name] = min(units, -(-bound // inner))
        inner *= chosen[name]
    per_unit = -(-bound // inner)
    inner = per_unit
    for name, _ in reversed(names):
        # a partial last tile may leave units without work
        chosen[name] = min(chosen[name], -(-bound // inner))
        inner *= chosen[name]
    return chosen


def _covers(splits: np.ndarray, bound: int) -> np.ndarray:
    """Which rows (outermost factor first) reach the bound without an empty step."""
    good = np.prod(splits, axis=1) >= bound
    inner = np.ones(len(splits))
    for column in range(splits.shape[1] - 1, -1, -1):
        factor = splits[:, column]
        good &= ~((factor > 1) & (inner * (factor - 1) >= bound))
        inner = inner * factor
    return good


def _mesh_units(machine: Machine, tree: Node) -> dict[str, int]:
    """Units that each spatial factor may use."""
    units: dict[str, int] = {}
    for node, _ in walk(tree):
        if isinstance(node, Spatial):
            level = machine.level(node.level)
            for loops, mesh in ((node.x, level.mesh_x), (node.y, level.mesh_y)):
                for loop in loops:
                    for name in loop.factors:
                        units[name] = int(mesh)
    return units


def axes(workload: CompoundOp, machine: Machine, tree: Node, dim: str) -> tuple[Axis, ...]:
    """All splits of one dimension over the factors of a tree.

    Args:
      workload: its size of `dim` is the bound; a single shape, no batch.
      machine: its meshes bound the spatial factors.
      tree: the tree.
      dim: the dimension.

    Returns:
      One axis per set of factors: operations that split the dimension by factors of their own
      have an axis of their own.
    """
    chains: list[tuple[str, ...]] = []
    for c in computes(tree):
        if dim not in workload.iteration_dims(workload.operation(c.operation)):
            continue
        chain = factor_chain(tree, c.operation, dim)
        related = [x for x in chains if set(x) & set(chain)]
        chains = [x for x in chains if x not in related]
        chains.append(max([*related, chain], key=len))
    return tuple(_axis(workload, machine, tree, dim, chain) for chain in chains)


def _axis(
    workload: CompoundOp, machine: Machine, tree: Node, dim: str, chain: tuple[str, ...]
) -> Axis:
    bound = int(workload.sizes[dim])  # pyright: ignore[reportArgumentType]
    units = _mesh_units(machine, tree)
    spatial = _spatial(bound, [(n, units[n]) for n in chain if n in units])
    spread = int(np.prod([*spatial.values(), 1]))
    free = [n for n in chain if n not in units]
    rows: list[np.ndarray] = []
    for extent in _padded(-(-bound // spread)):
        ways = factorizations(extent, len(free))
        full = np.ones((len(ways), len(chain)))
        for column, name in enumerate(chain):
            full[:, column] = spatial[name] if name in spatial else ways[:, free.index(name)]
        rows.append(full[_covers(full, bound)])
    return Axis(dim=dim, names=chain, splits=np.unique(np.concatenate(rows), axis=0))


def spaces(workload: CompoundOp, machine: Machine, tree: Node) -> tuple[Space, ...]:
    """The spaces of a tree: one, or one per set of parts that share no factor.

    Args:
      workload: a single shape.
      machine: a single machine.
      tree: the mapping tree.
    """
    parts = (
        list(tree.children) if isinstance(tree, Group) and tree.binding == "sequential" else [tree]
    )
    clusters: list[tuple[set[str], list[Node]]] = []
    for part in parts:
        names, nodes = set(factor_names(part)), [part]
        for cluster in [c for c in clusters if c[0] & names]:
            clusters.remove(cluster)
            names |= cluster[0]
            nodes = cluster[1] + nodes
        clusters.append((names, nodes))
    found = []
    for _, nodes in clusters:
        part = nodes[0] if len(nodes) == 1 else Group(tuple(nodes))
        dims = dict.fromkeys(
            d
            for c in computes(part)
            for d in workload.iteration_dims(workload.operation(c.operation))
        )
        found.append(Space(part, tuple(a for d in dims for a in axes(workload, machine, part, d))))
    return tuple(found)
