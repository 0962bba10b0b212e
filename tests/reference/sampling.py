"""Random mappings, priced in batches of one shape.

One idea: a compiled cost program belongs to a tree, a set of conventions and the shape of the
arguments. If every test hands over `ROWS` mappings with their own sizes and their own machine,
tests share programs, and a test run compiles each tree once per set of conventions.
"""

import dataclasses
import math
from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxcomet import gemm_softmax, strategies
from jaxcomet.cost import Conventions, Cost, conventions, evaluate
from jaxcomet.hardware import Machine, load
from jaxcomet.mapping import computes, factor_chain

ROWS = 256
"""Mappings in one batch."""

DIMS = ("M", "N", "K")

STRATEGIES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("unfused", ()),
    ("fused-distsm", ()),
    ("fused-gemm-sm", ()),
    ("fused-gemm-distsm", ()),
)
"""The four strategies with their default options."""

TILE = ("fused-gemm-distsm", (("reduce", "tile"),))
"""The one mapping that the authors released."""


@dataclass(frozen=True)
class Row:
    """One mapping of one shape on one machine."""

    sizes: tuple[int, int, int]
    factors: dict[str, int]
    machine: Machine


def named(machine: Machine) -> Machine:
    """The machine under one name: machines of one batch are one pytree."""
    return dataclasses.replace(machine, name="sampled")


def stacked(machines: Sequence[Machine]) -> Machine:
    """Machines as one, with a row for each in every leaf."""
    distinct = {id(m): named(m) for m in machines}
    leaves = {k: jax.tree.leaves(m) for k, m in distinct.items()}
    columns = np.array([leaves[id(m)] for m in machines], dtype=np.float64).T
    treedef = jax.tree.structure(next(iter(distinct.values())))
    return jax.tree.unflatten(treedef, list(columns))


def arguments(
    strategy: tuple[str, tuple[tuple[str, str], ...]], rows: Sequence[Row]
) -> tuple[Any, Any, Any]:
    """(workload, mapping, machine) with one entry a row in every leaf."""
    name, options = strategy
    machine = stacked([r.machine for r in rows])
    sizes = np.array([r.sizes for r in rows], dtype=np.float64).T
    workload = gemm_softmax(*sizes)
    names = strategies.get("gemm-softmax", name).factor_names(workload, machine, **dict(options))
    factors = {n: np.array([r.factors.get(n, 1) for r in rows], dtype=np.float64) for n in names}
    return workload, strategies.build(workload, machine, name, factors, **dict(options)), machine


def priced(
    strategy: tuple[str, tuple[tuple[str, str], ...]],
    rows: Sequence[Row],
    rules: Conventions | str = "default",
    *,
    size: int = ROWS,
) -> list[Cost]:
    """Costs of the rows, in batches of `size`; the last batch is filled up with its last row."""
    rules = conventions(rules) if isinstance(rules, str) else rules
    found = []
    for start in range(0, len(rows), size):
        part = list(rows[start : start + size])
        filled = part + [part[-1]] * (size - len(part))
        cost = evaluate(*arguments(strategy, filled), conventions=rules)
        keep = len(part)
        found.append(jax.tree.map(lambda x, keep=keep: x[:keep] if np.ndim(x) else x, cost))
    return found


def joined(costs: Sequence[Cost], value: Any) -> np.ndarray:
    """A number of each row of several batches."""
    return np.concatenate([np.broadcast_to(value(c), np.shape(c.latency_cycles)) for c in costs])


# -- drawing ---------------------------------------------------------------------------------------


def _chains(
    strategy: tuple[str, tuple[tuple[str, str], ...]], machine: Machine
) -> list[tuple[str, list[tuple[str, ...]]]]:
    """(dimension, all orders in which the same factors split it), for each set of factors."""
    name, options = strategy
    workload = gemm_softmax(1, 1, 1)
    chosen = strategies.get("gemm-softmax", name)
    tree = chosen.planned(workload, machine, **dict(options)).tree
    groups: dict[tuple[str, frozenset[str]], list[tuple[str, ...]]] = {}
    for call in computes(tree):
        for dim in workload.iteration_dims(workload.operation(call.operation)):
            chain = factor_chain(tree, call.operation, dim)
            known = groups.setdefault((dim, frozenset(chain)), [])
            if chain not in known:
                known.append(chain)
    return [(dim, chains) for (dim, _), chains in groups.items()]


def covers(bound: int, chain: Sequence[str], values: MappingABC[str, int]) -> bool:
    """Whether factors, outermost first, reach the bound without a step that has nothing to do."""
    inner = 1
    for name in reversed(chain):
        if values[name] > 1 and inner * (values[name] - 1) >= bound:
            return False
        inner *= values[name]
    return inner >= bound


def _split(
    rng: np.random.Generator, bound: int, chains: list[tuple[str, ...]], edge: int
) -> dict[str, int]:
    names = list(chains[0])
    spatial = [n for n in names if n.endswith(("_sx", "_sy"))]
    free = [n for n in names if n not in spatial]
    divisors = [d for d in range(1, min(bound, 64) + 1) if bound % d == 0]
    for _ in range(400):
        values = dict.fromkeys(names, 1)
        for n in spatial:
            values[n] = edge if rng.random() < 0.5 else int(rng.integers(1, edge + 1))
        filler = free[int(rng.integers(len(free)))]
        for n in free:
            if n != filler and rng.random() < 0.6:
                choices = divisors if rng.random() < 0.6 else [1, 2, 3, 4, 5, 7]
                values[n] = int(choices[int(rng.integers(len(choices)))])
        others = math.prod(v for n, v in values.items() if n != filler)
        values[filler] = -(-bound // others)
        if all(covers(bound, chain, values) for chain in chains):
            return values
    values = dict.fromkeys(names, 1)
    values[free[-1]] = bound
    return values


def random_rows(
    strategy: tuple[str, tuple[tuple[str, str], ...]],
    count: int,
    *,
    seed: int,
    machines: Sequence[Machine],
    largest: tuple[int, int, int] = (300, 600, 300),
    sizes: Sequence[tuple[int, int, int]] | None = None,
) -> list[Row]:
    """Random mappings of random shapes, half of them with sizes that are round."""
    rng = np.random.default_rng(seed)
    chains = _chains(strategy, machines[0])
    rows = []
    for i in range(count):
        machine = machines[i % len(machines)]
        if sizes is not None:
            shape = sizes[i % len(sizes)]
        elif rng.random() < 0.5:
            shape = tuple(int(rng.integers(1, x + 1)) for x in largest)
        else:
            shape = tuple(2 ** int(rng.integers(0, int(math.log2(x)) + 1)) for x in largest)
        M, N, K = shape
        edge = int(machine.levels[1].mesh_x)
        factors: dict[str, int] = {}
        for dim, orders in chains:
            factors |= _split(rng, shape[DIMS.index(dim)], orders, edge)
        rows.append(Row((M, N, K), factors, machine))
    return rows


def both() -> tuple[Machine, Machine]:
    """The two built-in machines."""
    return load("edge"), load("cloud")
