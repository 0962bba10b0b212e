"""Random mappings of any tree: every workload, strategy and option that jaxcomet offers.

One idea: a tree says itself which factors it has, which of them split which dimension of which
operation (`factor_chain`), and which lie along a mesh. Factors are drawn until every dimension of
every operation is covered without a step that has nothing to do; a factor that several operations
or dimensions share is drawn once and must suit them all. Nothing here knows a workload, a strategy
or a factor by name, so what is added to jaxcomet is drawn, too.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jaxcomet import operations, strategies
from jaxcomet.hardware import Machine, MatrixEngine, VectorEngine, load
from jaxcomet.mapping import (
    Group,
    Loop,
    Mapping,
    MappingError,
    Node,
    Spatial,
    Temporal,
    computes,
    factor_chain,
    factor_names,
    walk,
)
from jaxcomet.rewrite import rewritten
from jaxcomet.workload import CompoundOp, WorkloadError

Constraint = tuple[int, tuple[str, ...]]
"""(bound of a dimension, factors that split it, outermost first)."""


@dataclass(frozen=True)
class Kind:
    """A workload's builder, one of its strategies, and the strategy's options."""

    builder: str
    strategy: str
    options: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "-".join([self.builder, self.strategy, *(v for _, v in self.options)])


@dataclass(frozen=True)
class Case:
    """A mapping of a shape on a machine; `graph` is the workload as the mapping rewrites it."""

    kind: Kind
    workload: CompoundOp
    graph: CompoundOp
    mapping: Mapping
    machine: Machine

    def __str__(self) -> str:
        sizes = {d: int(s) for d, s in self.workload.sizes.items()}
        factors = {n: int(v) for n, v in self.mapping.factors.items() if v != 1}
        return f"{self.kind} {sizes} {factors} on {self.machine.name}"


def _arguments(builder: Callable[..., CompoundOp]) -> list[str]:
    parameters = inspect.signature(builder).parameters.values()
    return [p.name for p in parameters if p.default is inspect.Parameter.empty]


def _build(name: str, sizes: Sequence[int]) -> CompoundOp:
    builder = getattr(operations, name)
    return builder(**dict(zip(_arguments(builder), sizes, strict=True)))


def smallest(kind: Kind) -> CompoundOp:
    """The workload with all arguments 1."""
    return _build(kind.builder, [1] * len(_arguments(getattr(operations, kind.builder))))


def kinds() -> list[Kind]:
    """Every workload with every strategy and every choice of its options."""
    found = []
    for name, builder in inspect.getmembers(operations, inspect.isfunction):
        if name.startswith("_"):
            continue
        workload = _build(name, [1] * len(_arguments(builder)))
        try:
            offered = strategies.available(workload.name)
        except MappingError:
            continue  # a workload for which no strategy is offered
        for strategy in offered:
            names = list(strategy.options)
            for values in itertools.product(*strategy.options.values()):
                found.append(Kind(name, strategy.name, tuple(zip(names, values, strict=True))))
    return found


def _sizes(rng: np.random.Generator, name: str, largest: int, points: int) -> CompoundOp:
    number = len(_arguments(getattr(operations, name)))
    for _ in range(1000):
        top = rng.integers(1, largest + 1, size=number)
        try:
            workload = _build(name, [int(rng.integers(1, t + 1)) for t in top])
        except WorkloadError:
            continue  # sizes that do not go together
        bounds = [int(s) for s in workload.sizes.values()]
        work = max(int(workload.points(o)) for o in workload.operations)
        if max(bounds) <= largest and work <= points:
            return workload
    raise AssertionError(f"no small shape of {name}")


def planned(kind: Kind, workload: CompoundOp, machine: Machine) -> tuple[Node, CompoundOp]:
    """(tree, the workload as the tree needs it): those of the mapping whose factors are all 1."""
    ones = dataclasses.replace(workload, sizes=dict.fromkeys(workload.sizes, 1.0))
    mapping = strategies.build(ones, machine, kind.strategy, {}, **dict(kind.options))
    return mapping.tree, rewritten(workload, mapping.rewrites)


def constraints(tree: Node, graph: CompoundOp) -> list[Constraint]:
    """What the factors of a tree must cover, each set of factors in each order once."""
    found: dict[Constraint, None] = {}
    for call in computes(tree):
        for dim in graph.iteration_dims(graph.operation(call.operation)):
            found[int(graph.sizes[dim]), factor_chain(tree, call.operation, dim)] = None
    return list(found)


def meshes(tree: Node, machine: Machine) -> list[tuple[int, tuple[str, ...]]]:
    """(units along an edge, factors laid along it) of each spread level."""
    found: dict[tuple[int, tuple[str, ...]], None] = {}
    for node, _ in walk(tree):
        if isinstance(node, Spatial):
            level = machine.level(node.level)
            for loops, edge in ((node.x, level.mesh_x), (node.y, level.mesh_y)):
                found[int(edge), tuple(f for loop in loops for f in loop.factors)] = None
    return list(found)


def covers(bound: int, chain: Sequence[str], values: dict[str, int]) -> bool:
    """Whether factors, outermost first, reach the bound without a step that has nothing to do."""
    inner = 1
    for name in reversed(chain):
        if values[name] > 1 and inner * (values[name] - 1) >= bound:
            return False
        inner *= values[name]
    return inner >= bound


def _fill(
    rng: np.random.Generator,
    bound: int,
    chain: tuple[str, ...],
    values: dict[str, int],
    edges: dict[str, int],
) -> bool:
    """Draws the factors of a chain that have no value yet; whether they cover the bound."""
    free = [n for n in chain if n not in values]
    if not free:
        return covers(bound, chain, values)
    # what is left falls to a factor in time, where there is one
    fillers = [n for n in free if n not in edges] or free
    for _ in range(60):
        drawn = dict(values)
        filler = fillers[int(rng.integers(len(fillers)))]
        for n in free:
            most = min(bound, edges.get(n, bound))
            drawn[n] = int(rng.integers(1, most + 1)) if n in edges or rng.random() < 0.5 else 1
        drawn[filler] = 1
        others = 1
        for n in chain:
            others *= drawn[n]
        drawn[filler] = -(-bound // others)
        if drawn[filler] <= edges.get(filler, bound) and covers(bound, chain, drawn):
            values.update({n: drawn[n] for n in free})
            return True
    return False


def factors(
    rng: np.random.Generator, tree: Node, graph: CompoundOp, machine: Machine
) -> dict[str, int] | None:
    """Random factors of a tree; None where none were found."""
    wanted, along = constraints(tree, graph), meshes(tree, machine)
    edges = {n: min(e for e, names in along if n in names) for _, ns in along for n in ns}
    for _ in range(200):
        values: dict[str, int] = {}
        order = rng.permutation(len(wanted))
        if not all(_fill(rng, *wanted[int(i)], values, edges) for i in order):
            continue
        laid = all(np.prod([values[n] for n in names]) <= edge for edge, names in along)
        if laid and all(covers(bound, chain, values) for bound, chain in wanted):
            return values
    return None


def draw(
    rng: np.random.Generator, kind: Kind, machine: Machine, *, largest: int = 12, points: int = 300
) -> Case:
    """A random mapping of a random small shape.

    Args:
      rng: the source of chance.
      kind: workload, strategy and options.
      machine: its meshes bound the spatial factors.
      largest: longest dimension.
      points: most multiply-accumulates or elementary operations of one operation.
    """
    for _ in range(50):
        workload = _sizes(rng, kind.builder, largest, points)
        tree, graph = planned(kind, workload, machine)
        values = factors(rng, tree, graph, machine)
        if values is None:
            continue
        options = dict(kind.options)
        mapping = strategies.build(workload, machine, kind.strategy, values, **options)
        return Case(kind, workload, graph, mapping, machine)
    raise AssertionError(f"no mapping found for {kind}")


# -- trees that no strategy builds ---------------------------------------------------------------


def disturbed(rng: np.random.Generator, case: Case) -> Case | None:
    """The same on a tree with more loops, in another order, some of them in nodes of their own.

    What it computes is of no use; what it costs is defined all the same.
    """
    dims = list(case.graph.sizes)
    added = itertools.count()

    def change(node: Node) -> Node:
        match node:
            case Temporal():
                more = [str(rng.choice(dims)) for _ in range(int(rng.choice([0, 0, 1, 2])))]
                loops = [*node.loops, *(Loop(d, (f"{d}_extra{next(added)}",)) for d in more)]
                loops = [loops[int(i)] for i in rng.permutation(len(loops))]
                cut = int(rng.integers(len(loops) + 1)) if rng.random() < 0.2 else len(loops)
                body = change(node.body)
                if cut < len(loops):
                    body = dataclasses.replace(node, loops=tuple(loops[cut:]), body=body)
                return dataclasses.replace(node, loops=tuple(loops[:cut]), body=body)
            case Spatial():
                return dataclasses.replace(node, body=change(node.body))
            case Group():
                return dataclasses.replace(node, children=tuple(change(c) for c in node.children))
            case _:
                return node

    tree = change(case.mapping.tree)
    values = factors(rng, tree, case.graph, case.machine)
    if values is None:
        return None
    # a loop around collectives alone splits nothing that must be covered
    floats = {n: float(values.get(n, 1)) for n in factor_names(tree)}
    mapping = dataclasses.replace(case.mapping, tree=tree, factors=floats)
    return dataclasses.replace(case, mapping=mapping)


# -- machines ------------------------------------------------------------------------------------


def small_machine(rng: np.random.Generator, name: str) -> Machine:
    """A machine of the edge machine's shape with small random numbers and random switches."""

    def pick(*values: float) -> float:
        return float(values[int(rng.integers(len(values)))])

    def flip() -> bool:
        return bool(rng.integers(2))

    edge = load("edge")
    levels = tuple(
        dataclasses.replace(x, mesh_x=pick(1, 2), mesh_y=pick(1, 2)) if i else x
        for i, x in enumerate(edge.levels)
    )
    memories = {}
    for key, memory in sorted(edge.memories.items()):
        network = memory.network and dataclasses.replace(
            memory.network,
            port_bandwidth_bytes_per_cycle=pick(1, 2, 3, 4, 7, 16),
            hop_latency_cycles=pick(0, 1, 2, 5),
            queuing_delay_cycles=pick(0, 1, 3),
            channel_width_bits=pick(8, 16, 24, 64),
            num_ports=pick(1, 2, 3, 4),
            broadcast=flip(),
            reduction=rng.random() < 0.25,
        )
        memories[key] = dataclasses.replace(
            memory,
            child_bandwidth_bytes_per_cycle=pick(1, 2, 3, 5, 8, 32),
            parent_bandwidth_bytes_per_cycle=network and pick(1, 2, 3, 5, 8, 32),
            link_bandwidth_bytes_per_cycle=memory.link_bandwidth_bytes_per_cycle
            and pick(1, 2, 3, 8),
            network=network,
            duplex=flip(),
            shared_ports=flip(),
            double_buffered=rng.random() < 0.75,
        )
    engines: dict[str, MatrixEngine | VectorEngine] = {}
    for key, engine in sorted(edge.engines.items()):
        ports = {
            n: dataclasses.replace(
                p, bandwidth_bytes_per_cycle=pick(1, 2, 3, 8), hop_latency_cycles=pick(0, 1, 2)
            )
            for n, p in sorted(engine.ports.items())
        }
        if isinstance(engine, MatrixEngine):
            engines[key] = dataclasses.replace(
                engine,
                ports=ports,
                array_rows=pick(1, 2, 4),
                array_columns=pick(1, 2, 4),
                grid_rows=pick(1, 2),
                grid_columns=pick(1, 2),
            )
        else:
            engines[key] = dataclasses.replace(
                engine,
                ports=ports,
                lanes=pick(1, 2, 3, 4, 16),
                pipeline_stages=pick(1, 2, 6),
                ops={
                    n: dataclasses.replace(o, cycles=pick(1, 2, 3))
                    for n, o in sorted(engine.ops.items())
                },
            )
    return dataclasses.replace(edge, name=name, levels=levels, memories=memories, engines=engines)


def machines(rng: np.random.Generator) -> Iterator[Machine]:
    """Edge, cloud, and then small random machines without end, these three in every four."""
    built_in = itertools.cycle([load("edge"), load("cloud")])
    for i in itertools.count():
        yield next(built_in) if i % 4 == 0 else small_machine(rng, f"small-{i}")
