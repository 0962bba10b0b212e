"""Random exact splits: whole factors whose products are the sizes, for every strategy.

One idea: the prime factors of a dimension are dealt out over the factors that split it, as its tree
says (`factor_chain`), so that every quotient of sizes and tiles is whole and a factor of 2 can move
from one factor to another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcomet import (
    CompoundOp,
    attention,
    gemm,
    gemm_layernorm,
    gemm_softmax,
    strategies,
)
from jaxcomet.hardware import Machine, load
from jaxcomet.mapping import Mapping, MappingError, Node, Spatial, factor_names, walk
from jaxcomet.rewrite import rewritten
from tests.reference.drawing import constraints, meshes
from tests.reference.sampling import named, stacked

Sizes = tuple[int, ...]

USUAL: dict[str, Sizes] = {
    "gemm": (1024, 768, 512),
    "gemm-softmax": (1024, 1536, 256),
    "gemm-layernorm": (768, 1024, 512),
    "attention": (2, 2, 2, 256, 384, 64),
    "causal": (2, 2, 2, 256, 384, 64),
}
"""A shape of each workload: M, N, K; of attention: batch, kv heads, group, queries, keys, width."""


def workload_of(label: str, sizes: Sequence[Any]) -> CompoundOp:
    """A workload; sizes may be arrays."""
    if label in ("attention", "causal"):
        batch, kv_heads, group, queries, keys, width = sizes
        return attention(
            batch,
            kv_heads * group,
            queries,
            keys,
            width,
            kv_heads=kv_heads,
            causal=label == "causal",
        )
    builders = {"gemm": gemm, "gemm-softmax": gemm_softmax, "gemm-layernorm": gemm_layernorm}
    return builders[label](*sizes)


@dataclass(frozen=True)
class Kind:
    """A workload with one of its strategies, and the strategy's options."""

    label: str
    strategy: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.label, self.strategy, *(v for _, v in self.options)])

    def plan(self, machine: Machine, sizes: Sizes) -> tuple[Node, CompoundOp]:
        """(tree, the workload as the tree needs it)."""
        workload = workload_of(self.label, sizes)
        plan = strategies.get(workload.name, self.strategy).planned(
            workload, machine, **dict(self.options)
        )
        return plan.tree, rewritten(workload, plan.rewrites)


def kinds(machine: Machine) -> tuple[Kind, ...]:
    """Every workload with every strategy that the machine can run."""
    found = []
    for label, sizes in USUAL.items():
        for strategy in strategies.available(workload_of(label, sizes).name):
            kind = Kind(label, strategy.name)
            try:
                kind.plan(machine, sizes)
            except MappingError:
                continue  # it has no vector engine, or too few levels
            found.append(kind)
    return tuple(found)


def _primes(number: int) -> list[int]:
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found


def _dealt(
    rng: np.random.Generator, tree: Node, graph: CompoundOp, machine: Machine
) -> dict[str, int] | None:
    """Factors of one mapping; None where what was dealt first left no place for the rest."""
    wanted, along = constraints(tree, graph), meshes(tree, machine)
    room = [float(edge) for edge, _ in along]
    values: dict[str, int] = {}
    for index in rng.permutation(len(wanted)):
        bound, chain = wanted[int(index)]
        for name in chain:
            if bound % values.get(name, 1):
                return None
            bound //= values.get(name, 1)
        free = [n for n in chain if n not in values]
        values |= dict.fromkeys(free, 1)
        for prime in _primes(bound):
            fits = [
                n
                for n in free
                if all(
                    space >= prime
                    for space, (_, names) in zip(room, along, strict=True)
                    if n in names
                )
            ]
            if not fits:
                return None
            name = fits[int(rng.integers(len(fits)))]
            values[name] *= prime
            for i, (_, names) in enumerate(along):
                room[i] /= prime if name in names else 1
    return values


def split(
    rng: np.random.Generator, tree: Node, graph: CompoundOp, machine: Machine
) -> dict[str, int]:
    """Random whole factors of a tree that cover every dimension exactly."""
    for _ in range(500):
        values = _dealt(rng, tree, graph, machine)
        if values is not None:
            return {n: values.get(n, 1) for n in factor_names(tree)}
    raise AssertionError("no split found")


@dataclass(frozen=True)
class Batch:
    """Mappings of one tree, a row each, with the shape and the machine of each."""

    kind: Kind
    tree: Node
    graph: CompoundOp
    rows: tuple[dict[str, int], ...]
    sizes: tuple[Sizes, ...]
    workload: CompoundOp
    mapping: Mapping
    machine: Machine


def batch(kind: Kind, rows: Sequence[tuple[dict[str, int], Sizes, Machine]]) -> Batch:
    """Mappings given by (factors, shape, machine)."""
    factors, sizes, machines = zip(*rows, strict=True)
    tree, graph = kind.plan(machines[0], sizes[0])
    several = workload_of(kind.label, list(np.array(sizes, dtype=np.float64).T))
    columns = {n: np.array([f[n] for f in factors], dtype=np.float64) for n in factor_names(tree)}
    machine = stacked(machines)
    # planned for one machine: of stacked ones it is not known whether a level has a single unit
    mapping = strategies.build(several, machines[0], kind.strategy, columns, **dict(kind.options))
    return Batch(kind, tree, graph, factors, sizes, several, mapping, machine)


def drawn(
    rng: np.random.Generator, kind: Kind, count: int, machines: Sequence[Machine], sizes: Sizes
) -> list[tuple[dict[str, int], Sizes, Machine]]:
    """Random rows on the machines in turn; their trees must be one."""
    return [
        (split(rng, *kind.plan(m, sizes), m), sizes, m)
        for m in (machines[i % len(machines)] for i in range(count))
    ]


def both() -> tuple[Machine, Machine]:
    """Edge and cloud, of one structure."""
    return named(load("edge")), named(load("cloud"))


def moves(tree: Node, graph: CompoundOp) -> list[tuple[str, str]]:
    """Ordered pairs of factors in time that split the same dimensions of the same operations."""
    spread = [n for n, _ in walk(tree) if isinstance(n, Spatial)]
    spatial = {f for n in spread for loop in (*n.x, *n.y) for f in loop.factors}
    wanted = [chain for _, chain in constraints(tree, graph)]
    where = {
        n: {i for i, chain in enumerate(wanted) if n in chain}
        for n in factor_names(tree)
        if n not in spatial
    }
    return [(a, b) for a in where for b in where if a != b and where[a] == where[b] != set()]
